//! The effective settings. A flag overrides the environment, which overrides the file and the
//! default.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use tidegate::unstable::config::{Config, Fronts, Tls};

use super::args::ListenAddr;
use super::args::ServeArgs;
use super::error::ServeError;
use super::tls::{FrontTls, TlsFiles};
use crate::access::{Access, Secrets};
pub use crate::admin::FrontName;

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
}

impl Settings {
    /// Merges the arguments (which include the environment), the config and the secrets.
    ///
    /// # Errors
    /// When an address, a certificate or a secret is missing or invalid.
    pub fn new(args: &ServeArgs, config: &Config, secrets: Secrets) -> Result<Self, ServeError> {
        let configured = Fronts {
            http: choose(FrontName::Http, args.http.as_ref(), config.fronts.http.as_deref())?,
            grpc: choose(FrontName::Grpc, args.grpc.as_ref(), config.fronts.grpc.as_deref())?,
            resp: choose(FrontName::Resp, args.resp.as_ref(), config.fronts.resp.as_deref())?,
            admin: choose(FrontName::Admin, args.admin.as_ref(), config.fronts.admin.as_deref())?,
        };
        let mut settings =
            Settings { http: None, grpc: None, resp: None, admin: None, exposed: Vec::new() };
        let base = args.config.as_deref().and_then(Path::parent);
        let mut build = |front, configured: Option<ListenAddr>, default, files: Option<&Tls>| {
            let address = configured.unwrap_or(ListenAddr::At(default));
            if address == ListenAddr::Off {
                return Ok(None);
            }
            let access = settings.access(front, &address, &secrets, args.insecure_no_auth)?;
            let client_name = args.grpc_client_name.clone().filter(|_| front == FrontName::Grpc);
            let files = files.map(|files| TlsFiles { client_name, ..TlsFiles::new(files, base) });
            let tls = files.map(FrontTls::load).transpose()?.map(Arc::new);
            Ok::<_, ServeError>(Some(FrontSettings { front, address, access, tls }))
        };
        let http = build(FrontName::Http, configured.http, DEFAULT_HTTP, config.tls.http.as_ref())?;
        let grpc = build(FrontName::Grpc, configured.grpc, DEFAULT_GRPC, config.tls.grpc.as_ref())?;
        let resp = build(FrontName::Resp, configured.resp, DEFAULT_RESP, config.tls.resp.as_ref())?;
        let admin =
            build(FrontName::Admin, configured.admin, DEFAULT_ADMIN, config.tls.admin.as_ref())?;
        if [&http, &grpc, &resp, &admin].into_iter().all(Option::is_none) {
            return Err(ServeError::NothingToServe);
        }
        Ok(Settings { http, grpc, resp, admin, ..settings })
    }

    /// Returns which callers a front accepts. An address that other machines can reach without a
    /// secret is an error unless `insecure` is set. TLS does not replace a secret, because it does
    /// not authenticate the caller.
    fn access(
        &mut self,
        front: FrontName,
        address: &ListenAddr,
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
        if !tokens.is_empty() {
            return Ok(Access::Secrets(tokens.clone()));
        }
        // The permissions of a unix socket restrict who can reach it.
        let reachable = address.filter(|address| !address.ip().to_canonical().is_loopback());
        let Some(address) = reachable else { return Ok(Access::Local) };
        if !insecure {
            return Err(ServeError::Exposed { front, address });
        }
        self.exposed.push(front);
        Ok(Access::Unrestricted)
    }
}

fn choose(
    front: FrontName,
    flag: Option<&ListenAddr>,
    file: Option<&str>,
) -> Result<Option<ListenAddr>, ServeError> {
    match (flag, file) {
        (Some(choice), _) => Ok(Some(choice.clone())),
        (None, Some(text)) => {
            text.parse().map(Some).map_err(|error| ServeError::Address { front, error })
        }
        (None, None) => Ok(None),
    }
}

/// The fields that differ between two configs and take effect only after a restart.
pub fn needing_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    let fields = [
        ("store_timeout", old.store_timeout != new.store_timeout),
        ("key_prefix", old.key_prefix != new.key_prefix),
        ("max_keys", old.max_keys != new.max_keys),
        ("max_log_entries", old.max_log_entries != new.max_log_entries),
        ("max_ids", old.max_ids != new.max_ids),
        ("when_full", old.when_full != new.when_full),
        ("http", old.fronts.http != new.fronts.http),
        ("grpc", old.fronts.grpc != new.fronts.grpc),
        ("grpc_max_connection_age", old.grpc_max_connection_age != new.grpc_max_connection_age),
        ("resp", old.fronts.resp != new.fronts.resp),
        ("admin", old.fronts.admin != new.fronts.admin),
        ("tls", old.tls != new.tls),
    ];
    fields.into_iter().filter(|(_, differs)| *differs).map(|(field, _)| field).collect()
}
