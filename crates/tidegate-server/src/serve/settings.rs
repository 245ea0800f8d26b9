//! The settings of `tidegate serve`: its flags and variables ([`ServeArgs`]), and the effective
//! settings. A flag overrides the environment, which overrides the file and the default.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Id};
use tidegate::Algorithm;
use tidegate::unstable::config::{Config, ConfigWarning};
use tidegate_replay::rate_algorithm;

use super::error::ServeError;
use crate::authentication::{Access, Secrets};
use crate::connections::{FrontTls, ListenAddr, TlsFiles};
use crate::envoy_ratelimit::{EnvoySettings, XdsAddress, grpc_tls_error};
use crate::logs::LogFormat;
use crate::server_state::FrontName;

/// Decide requests over HTTP, gRPC and RESP, and for gateways
///
/// Without a config: a memory store and one policy, `default`, that allows every
/// client address 100 requests per minute.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = SERVE_HELP)]
pub struct ServeArgs {
    /// The policies and settings; reloaded when it changes and on SIGHUP
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CONFIG")]
    pub config: Option<PathBuf>,

    /// Files of envoyproxy/ratelimit, one per domain: a directory of *.yaml, or one file;
    /// reloaded like --config, whose settings apply and whose policies come first
    #[arg(long, value_name = "DIR", env = "TIDEGATE_ENVOY_CONFIG")]
    pub envoy_config: Option<PathBuf>,

    /// The xDS control plane that sends configs of envoyproxy/ratelimit, as host:port, in place of
    /// the files of --envoy-config; CONFIG_GRPC_XDS_* and XDS_CLIENT_* set the other options
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "TIDEGATE_ENVOY_XDS",
        conflicts_with = "envoy_config"
    )]
    pub envoy_xds: Option<XdsAddress>,

    /// Take the place of envoyproxy/ratelimit: read its environment variables, listen on its
    /// ports, and reply as it does; also set if the program is started as `ratelimit`
    #[arg(long, env = "TIDEGATE_AS_ENVOY_RATELIMIT", value_parser = switch)]
    pub as_envoy_ratelimit: bool,

    /// The algorithm of limits from --envoy-config or --envoy-xds, and of limits that Envoy sends
    /// with a request; `fixed-window` has the windows of envoyproxy/ratelimit [default:
    /// sliding-window, or fixed-window with --as-envoy-ratelimit]
    #[arg(long, value_name = "NAME", env = "TIDEGATE_ALGORITHM", value_parser = rate_algorithm)]
    pub algorithm: Option<Algorithm>,

    /// Allow several files of --envoy-config to have the same domain
    #[arg(long, env = "TIDEGATE_MERGE_DOMAINS", value_parser = switch)]
    pub merge_domains: bool,

    /// The address of the HTTP API [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR|off", env = "TIDEGATE_HTTP")]
    pub http: Option<ListenAddr>,

    /// The address of Envoy's rate limit service, over gRPC [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDR|unix:PATH|off", env = "TIDEGATE_GRPC")]
    pub grpc: Option<ListenAddr>,

    /// The address for Redis clients (RESP) [default: 127.0.0.1:6380]
    #[arg(long, value_name = "ADDR|off", env = "TIDEGATE_RESP")]
    pub resp: Option<ListenAddr>,

    /// The address of health, metrics and the admin API [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDR|off", env = "TIDEGATE_ADMIN")]
    pub admin: Option<ListenAddr>,

    /// The format of the log on standard error; RUST_LOG selects what is logged [default: text]
    #[arg(long, value_enum, value_name = "FORMAT", env = "TIDEGATE_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,

    /// Serve other machines without authentication: anyone who can connect can use
    /// up the limits of others
    #[arg(long, env = "TIDEGATE_INSECURE_NO_AUTH", value_parser = switch)]
    pub insecure_no_auth: bool,

    /// The arguments that environment variables set, for errors.
    #[arg(skip)]
    pub set_by_variable: Vec<Id>,
}

/// Parses the variable of a flag without a value. Any other text is an error, so that a misspelt
/// "no" does not turn authentication off.
fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "t" | "yes" | "y" | "on" | "1" => Ok(true),
        "false" | "f" | "no" | "n" | "off" | "0" | "" => Ok(false),
        _ => Err("write true or false".into()),
    }
}

const SERVE_HELP: &str = "\
Precedence: flag, environment variable, config file, default.

Secrets come from the environment, or from files it names:
  TIDEGATE_TOKENS        secrets that clients of --http, --grpc and --resp send, separated by
                         commas
  TIDEGATE_ADMIN_TOKEN   secret of the admin API; /healthz, /readyz and /metrics need none
  TIDEGATE_STORE         URL of the store that nodes share; overrides `store` of the config
  TIDEGATE_MASK_SECRET   masks keys the same way on all nodes; overrides `mask_secret`
  TIDEGATE_TOKENS_FILE, TIDEGATE_ADMIN_TOKEN_FILE, TIDEGATE_STORE_FILE,
  TIDEGATE_MASK_SECRET_FILE
An address that other machines can reach needs its secret. TLS is set in the config (tls:).
RUST_LOG selects what is logged, e.g. RUST_LOG=debug.

Examples:
  tidegate serve
  tidegate serve --envoy-config /etc/ratelimit/config --algorithm fixed-window
  tidegate serve --config tidegate.yaml --http 127.0.0.1:9000 --admin off
  TIDEGATE_TOKENS=$(openssl rand -hex 32) tidegate serve --http 0.0.0.0:8080";

/// The default addresses of the fronts.
const DEFAULT_HTTP: SocketAddr = SocketAddr::new(LOOPBACK, 8080);
const DEFAULT_GRPC: SocketAddr = SocketAddr::new(LOOPBACK, 8081);
const DEFAULT_RESP: SocketAddr = SocketAddr::new(LOOPBACK, 6380);
const DEFAULT_ADMIN: SocketAddr = SocketAddr::new(LOOPBACK, 9090);
const LOOPBACK: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// The environment variable that holds the secret of a front.
pub const fn secret_of(front: FrontName) -> &'static str {
    match front {
        FrontName::Admin => "TIDEGATE_ADMIN_TOKEN",
        _ => "TIDEGATE_TOKENS",
    }
}

/// A front that is served: its address, its accepted callers and its TLS configuration.
pub struct FrontSettings {
    pub front: FrontName,
    pub address: ListenAddr,
    /// What sets the address, for errors: a flag, variables or the config.
    pub setting: String,
    pub access: Access,
    pub tls: Option<Arc<FrontTls>>,
}

/// The effective settings of the server.
pub struct Settings {
    pub http: Option<FrontSettings>,
    pub grpc: Option<FrontSettings>,
    pub resp: Option<FrontSettings>,
    pub admin: Option<FrontSettings>,
    /// Fronts that other machines can reach without a secret, because of `--insecure-no-auth`.
    pub exposed: Vec<FrontName>,
    /// Fronts that other machines can reach with a secret that can be guessed.
    pub guessable: Vec<FrontName>,
}

/// Where settings come from. The arguments include the environment.
#[derive(Clone, Copy)]
pub struct SettingSources<'a> {
    pub args: &'a ServeArgs,
    /// The variables of envoyproxy/ratelimit, with `--as-envoy-ratelimit`.
    pub variables: Option<&'a EnvoySettings>,
    pub config: &'a Config,
}

impl Settings {
    /// Merges all settings.
    ///
    /// # Errors
    /// When an address, a certificate or a secret is missing or invalid.
    pub fn new(sources: SettingSources<'_>, secrets: &Secrets) -> Result<Self, ServeError> {
        let mut settings = Settings {
            http: None,
            grpc: None,
            resp: None,
            admin: None,
            exposed: Vec::new(),
            guessable: Vec::new(),
        };
        settings.http = settings.front(FrontName::Http, sources, secrets)?;
        settings.grpc = settings.front(FrontName::Grpc, sources, secrets)?;
        settings.resp = settings.front(FrontName::Resp, sources, secrets)?;
        settings.admin = settings.front(FrontName::Admin, sources, secrets)?;
        let fronts = [&settings.http, &settings.grpc, &settings.resp, &settings.admin];
        if fronts.into_iter().all(Option::is_none) {
            return Err(ServeError::NothingToServe);
        }
        Ok(settings)
    }

    /// Returns the settings of a front; `None` if it is off.
    fn front(
        &mut self,
        front: FrontName,
        sources: SettingSources<'_>,
        secrets: &Secrets,
    ) -> Result<Option<FrontSettings>, ServeError> {
        let (address, setting) = address(front, sources)?;
        if address == ListenAddr::Off {
            return Ok(None);
        }
        let insecure = sources.args.insecure_no_auth;
        let access = self.access(front, (&address, &setting), secrets, insecure)?;
        let tls = load_tls(front, sources)?.map(Arc::new);
        Ok(Some(FrontSettings { front, address, setting, access, tls }))
    }

    /// Returns which callers a front accepts. An address that other machines can reach without a
    /// secret is an error unless `insecure` is set. TLS does not replace a secret, because it does
    /// not authenticate the caller.
    fn access(
        &mut self,
        front: FrontName,
        (address, setting): (&ListenAddr, &str),
        secrets: &Secrets,
        insecure: bool,
    ) -> Result<Access, ServeError> {
        let address = match address {
            ListenAddr::At(address) => Some(*address),
            ListenAddr::Unix(_) if front != FrontName::Grpc => {
                return Err(ServeError::UnixSocket { front });
            }
            _ => None,
        };
        let tokens = match front {
            FrontName::Admin => &secrets.admin,
            _ => &secrets.tokens,
        };
        // The permissions of a unix socket restrict who can reach it.
        let reachable = address.filter(|address| !address.ip().to_canonical().is_loopback());
        if !tokens.is_empty() {
            if reachable.is_some() && tokens.can_be_guessed() {
                self.guessable.push(front);
            }
            return Ok(Access::Secrets(tokens.for_front(front.name(), secret_of(front))));
        }
        if reachable.is_none() {
            return Ok(Access::Local);
        }
        if !insecure {
            return Err(ServeError::Exposed { front, setting: setting.to_owned() });
        }
        self.exposed.push(front);
        Ok(Access::Unrestricted)
    }
}

/// Returns the address of a front, and what sets it, for errors. A flag overrides a variable of
/// envoyproxy/ratelimit, which overrides the config. The default is that of the variable, or else
/// that of tidegate.
fn address(
    front: FrontName,
    SettingSources { args, variables, config }: SettingSources<'_>,
) -> Result<(ListenAddr, String), ServeError> {
    let (flag, file, default) = match front {
        FrontName::Http => (&args.http, &config.fronts.http, DEFAULT_HTTP),
        FrontName::Grpc => (&args.grpc, &config.fronts.grpc, DEFAULT_GRPC),
        FrontName::Resp => (&args.resp, &config.fronts.resp, DEFAULT_RESP),
        FrontName::Admin => (&args.admin, &config.fronts.admin, DEFAULT_ADMIN),
    };
    let variable = variables.and_then(|variables| variables.address(front));
    let name = front.name();
    Ok(match (flag, variable, file) {
        (Some(address), ..) if args.set_by_variable.iter().any(|id| id == name) => {
            let variable = name.to_ascii_uppercase();
            (address.clone(), format!("TIDEGATE_{variable} (--{name} {address})"))
        }
        (Some(address), ..) => (address.clone(), format!("--{name} {address}")),
        (None, Some(variable), file) if variable.is_set || file.is_none() => {
            (variable.address.clone(), variable.setting.clone())
        }
        (None, _, Some(text)) => {
            let address = text.parse().map_err(|error| ServeError::Address { front, error })?;
            let config = args.config.as_deref().unwrap_or(Path::new("the config")).display();
            (address, format!("{name}: {text} ({config})"))
        }
        // envoyproxy/ratelimit does not have this front.
        (None, None, None) if variables.is_some() => (ListenAddr::Off, String::new()),
        (None, _, None) => (ListenAddr::At(default), format!("--{name} {default} (the default)")),
    })
}

/// Returns warnings of fronts that have the same address, as they are in the config or by default.
/// A server with these addresses does not start. Flags and variables can replace them, so this is
/// for a config by itself.
pub fn address_warnings(config: &Config) -> Vec<ConfigWarning> {
    let fronts = [
        ("http", &config.fronts.http, DEFAULT_HTTP),
        ("grpc", &config.fronts.grpc, DEFAULT_GRPC),
        ("resp", &config.fronts.resp, DEFAULT_RESP),
        ("admin", &config.fronts.admin, DEFAULT_ADMIN),
    ];
    let addresses =
        fronts.map(|(_, file, default)| file.clone().unwrap_or_else(|| default.to_string()));
    let mut warnings = Vec::new();
    for (second, address) in addresses.iter().enumerate() {
        let Some(first) = addresses[..second].iter().position(|other| overlap(other, address))
        else {
            continue;
        };
        let (first, second) = (&fronts[first], &fronts[second]);
        // At least one of them is in the config, because the defaults differ.
        let (field, other) = if second.1.is_some() { (second, first) } else { (first, second) };
        let relation = if other.1.is_some() { "same address as" } else { "default address of" };
        let message = format!(
            "`{}` has the {relation} `{}`; the server does not start with it",
            field.0, other.0
        );
        let help = "choose another port for one of them, or write `off`";
        warnings.push(config.warning(field.0, message, help.into()));
    }
    warnings
}

/// Whether sockets at these addresses would receive the same connections. The names of hosts are
/// not looked up.
fn overlap(one: &str, other: &str) -> bool {
    match (one.parse(), other.parse()) {
        (Ok(one), Ok(other)) => ListenAddr::At(one).overlaps(&ListenAddr::At(other)),
        _ => one == other && one != "off" && !one.ends_with(":0"),
    }
}

/// Loads the TLS files of a front; `None` if it has none.
fn load_tls(
    front: FrontName,
    SettingSources { args, variables, config }: SettingSources<'_>,
) -> Result<Option<FrontTls>, ServeError> {
    let files = match front {
        FrontName::Http => &config.tls.http,
        FrontName::Grpc => &config.tls.grpc,
        FrontName::Resp => &config.tls.resp,
        FrontName::Admin => &config.tls.admin,
    };
    let Some(files) = files else { return Ok(None) };
    let base = args.config.as_deref().and_then(Path::parent);
    let variables = variables.filter(|_| front == FrontName::Grpc);
    let client_name = variables.and_then(|variables| variables.grpc_client_name.clone());
    let loaded = FrontTls::load(TlsFiles { client_name, ..TlsFiles::new(files, base) });
    loaded.map(Some).map_err(|error| match variables {
        Some(variables) if variables.grpc_tls.is_some() => grpc_tls_error(&error).into(),
        _ => ServeError::Tls { front, error },
    })
}

/// The fields that differ between two configs and take effect only after a restart. Addresses that
/// a flag or a variable overrides are left out, because their fields have no effect.
pub fn needing_restart(old: &Config, new: &Config, args: &ServeArgs) -> Vec<&'static str> {
    let fields = [
        ("store_timeout", old.store_timeout != new.store_timeout),
        ("key_prefix", old.key_prefix != new.key_prefix),
        ("max_keys", old.max_keys != new.max_keys),
        ("max_log_entries", old.max_log_entries != new.max_log_entries),
        ("max_ids", old.max_ids != new.max_ids),
        ("when_full", old.when_full != new.when_full),
        ("http", args.http.is_none() && old.fronts.http != new.fronts.http),
        ("grpc", args.grpc.is_none() && old.fronts.grpc != new.fronts.grpc),
        ("grpc_max_connection_age", old.grpc_max_connection_age != new.grpc_max_connection_age),
        ("resp", args.resp.is_none() && old.fronts.resp != new.fronts.resp),
        ("admin", args.admin.is_none() && old.fronts.admin != new.fronts.admin),
        ("tls", old.tls != new.tls),
    ];
    fields.into_iter().filter(|(_, differs)| *differs).map(|(field, _)| field).collect()
}
