//! Reads the settings: all fields except the policies.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;

use super::error::SourceLocation;
use super::reader::{LocatedNode, Object, Reader, excerpt};
use super::schema::{
    AUTO, FORMS, FORWARDED_HEADERS, LOG_KEYS, MAX_KEYS, MAX_NODES, PATH_VARIANTS, STORE_SCHEMES,
    TLS, TLS_FILES, WHEN_FULL,
};
use super::warnings::check_trusted;
use super::{Config, Fronts, Tls};
use crate::WhenFull;
use crate::headers::{Form, Forms};
use crate::identity::parse_network;
use crate::identity::{DEFAULT_IPV6_PREFIX, Identity};
use crate::stats::{LogKeys, MIN_SECRET_BYTES, MaskSecret};

/// The longest store timeout. Callers rarely wait longer than a minute.
const MAX_STORE_TIMEOUT: Duration = Duration::from_secs(60);

/// The bounds of a connection's age. Below a second a connection would end right after its
/// handshake; 365 days is practically unlimited.
const MIN_CONNECTION_AGE: Duration = Duration::from_secs(1);
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(365 * 24 * 3600);

/// The longest key prefix. The prefix is part of every key.
const MAX_PREFIX_BYTES: usize = 32;

/// Sets the fields that the config contains, and leaves all others unchanged.
pub(super) fn read_settings(reader: &Reader<'_>, object: &Object<'_, '_>, config: &mut Config) {
    set(&mut config.store, object.get("store").and_then(|located| read_store(reader, &located)));
    let range = Duration::from_millis(1)..=MAX_STORE_TIMEOUT;
    set(&mut config.store_timeout, object.duration("store_timeout", range));
    set(
        &mut config.key_prefix,
        object.get("key_prefix").and_then(|located| read_prefix(reader, &located)),
    );
    set(&mut config.nodes, object.get("nodes").and_then(|located| read_nodes(reader, &located)));
    set(
        &mut config.headers,
        object.get("headers").and_then(|located| read_forms(reader, &located)),
    );
    let size = |name, least| object.integer(name, least..=MAX_KEYS);
    set(&mut config.max_keys, size("max_keys", 1).and_then(|n| usize::try_from(n).ok()));
    set(&mut config.max_log_entries, size("max_log_entries", 1));
    set(&mut config.max_ids, size("max_ids", 0).and_then(|n| usize::try_from(n).ok()));
    set(&mut config.when_full, object.word("when_full", &WHEN_FULL).map(when_full));
    set(&mut config.log_keys, object.word("log_keys", &LOG_KEYS).and_then(log_keys));
    let secret = object.get("mask_secret").and_then(|located| read_mask_secret(reader, &located));
    config.mask_secret = secret;
    config.identity = read_identity(reader, object);
    let variants = object.word("path_variants", &PATH_VARIANTS);
    set(&mut config.path_variants, variants.and_then(|name| name.parse().ok()));
    let mut address = |name: &str| {
        let located = object.get(name)?;
        config.locations.push((located.path.clone(), reader.location(&located)));
        read_address(reader, &located)
    };
    config.fronts = Fronts {
        http: address("http"),
        grpc: address("grpc"),
        resp: address("resp"),
        admin: address("admin"),
    };
    let age = object.duration("grpc_max_connection_age", MIN_CONNECTION_AGE..=MAX_CONNECTION_AGE);
    set(&mut config.grpc_max_connection_age, age);
    if let Some(located) = object.get("tls") {
        let locations = &mut config.locations;
        set(&mut config.tls, read_tls(reader, &located, locations));
    }
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

fn when_full(word: &str) -> WhenFull {
    match word {
        "deny" => WhenFull::Deny,
        "allow" => WhenFull::Allow,
        _ => WhenFull::Overflow,
    }
}

fn log_keys(word: &str) -> Option<LogKeys> {
    LogKeys::ALL.into_iter().find(|choice| choice.name() == word)
}

fn read_mask_secret(reader: &Reader<'_>, located: &LocatedNode) -> Option<MaskSecret> {
    let secret: Result<MaskSecret, _> = reader.any_text(located)?.parse();
    let problem = "this secret can be guessed";
    let help =
        format!("use at least {MIN_SECRET_BYTES} bytes, for example of `openssl rand -hex 32`");
    secret.map_err(|_| reader.fail(located, problem, help)).ok()
}

fn read_store(reader: &Reader<'_>, located: &LocatedNode) -> Option<StoreUrl> {
    let store: Result<StoreUrl, _> = reader.text(located)?.parse();
    // The error does not show the text, because it may contain a password.
    store.map_err(|error| reader.fail(located, error.problem(), error.help())).ok()
}

/// Reads the number of nodes, which is 0 for `auto`.
fn read_nodes(reader: &Reader<'_>, located: &LocatedNode) -> Option<u32> {
    let scalar = reader.scalar(located)?;
    if scalar.text == AUTO {
        return Some(0);
    }
    let digits = scalar.text.replace('_', "");
    let number = digits.parse::<u32>().ok().filter(|_| scalar.is_plain);
    let nodes = number.filter(|number| (1..=MAX_NODES).contains(&u64::from(*number)));
    if nodes.is_none() {
        let message = format!("`{}` is not a number of nodes", excerpt(&scalar.text));
        reader.fail(located, message, format!("write 1 to {MAX_NODES} without quotes, or `auto`"));
    }
    nodes
}

fn read_prefix(reader: &Reader<'_>, located: &LocatedNode) -> Option<String> {
    let text = reader.any_text(located)?;
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    if text.is_empty() || text.len() > MAX_PREFIX_BYTES || !text.bytes().all(is_allowed) {
        let help = format!("use 1 to {MAX_PREFIX_BYTES} letters, digits, `.`, `_`, `:` and `-`");
        reader.fail(located, format!("`{}` cannot begin a key", excerpt(text)), help);
        return None;
    }
    Some(text.into())
}

fn read_forms(reader: &Reader<'_>, located: &LocatedNode) -> Option<Forms> {
    let items = reader.one_or_list(located);
    let form_name = |item: &LocatedNode| match reader.any_text(item) {
        Some(draft @ ("draft-8" | "draft-9")) => {
            let message = format!("`headers` cannot be `{draft}`");
            reader.fail(item, message, "write `draft-10`, which has the same form");
            None
        }
        _ => reader.word(item, &FORMS),
    };
    let words: Vec<&str> = items.iter().filter_map(form_name).collect();
    if let Some(none) = words.iter().position(|word| *word == "none")
        && words.len() > 1
    {
        let at = items.get(none).unwrap_or(located);
        reader.fail(at, "`none` stands beside other forms", "write `none` alone, or leave it out");
        return None;
    }
    if items.is_empty() {
        reader.fail(located, "`headers` is empty", "write `none` to send none");
    }
    let form = |word: &&str| Form::ALL.into_iter().find(|form| form.name() == *word);
    let forms = words.iter().filter_map(form);
    Some(forms.fold(Forms::NONE, Forms::with))
}

fn read_identity(reader: &Reader<'_>, object: &Object<'_, '_>) -> Identity {
    let mut trusted: Vec<IpNet> = Vec::new();
    if let Some(located) = object.get("trusted_proxies") {
        for item in reader.one_or_list(&located) {
            let Some(text) = reader.any_text(&item) else { continue };
            match parse_network(text) {
                Ok(net) => {
                    check_trusted(reader, &item, net);
                    trusted.push(net);
                }
                Err(kind) => {
                    reader.fail(
                        &item,
                        format!("`{}`: {}", excerpt(text), kind.problem()),
                        kind.help(),
                    );
                }
            }
        }
    }
    let prefix = object.integer("ipv6_prefix", 1..=128).and_then(|bits| u8::try_from(bits).ok());
    let source = object.word("forwarded_header", &FORWARDED_HEADERS);
    let source = source.and_then(|name| name.parse().ok()).unwrap_or_default();
    Identity::of(trusted).ipv6_prefix(prefix.unwrap_or(DEFAULT_IPV6_PREFIX)).reading(source)
}

fn read_address(reader: &Reader<'_>, located: &LocatedNode) -> Option<String> {
    let text = reader.any_text(located)?;
    let is_address = text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !host.contains(['/', ' ']) && port.parse::<u16>().is_ok()
    });
    if text == "off" || is_address {
        return Some(text.into());
    }
    let message = format!("`{}` is not an address to listen on", excerpt(text));
    reader.fail(
        located,
        message,
        "write an address and port, for example `127.0.0.1:8080`, or `off`",
    );
    None
}

fn read_tls(
    reader: &Reader<'_>,
    located: &LocatedNode,
    locations: &mut Vec<(String, SourceLocation)>,
) -> Option<Fronts<Option<Tls>>> {
    let file_names: Vec<&str> = TLS_FILES.iter().map(|field| field.name).collect();
    if located.has_field(&file_names) {
        let help = "put them under a front: `tls: { http: { cert: ..., key: ... } }`";
        let at = reader.start_of(located);
        reader.fail_at(at, &located.path, "`tls` has files that belong to no front", help);
        return None;
    }
    let object = reader.object(located, TLS)?;
    let mut front = |name: &str| {
        let located = object.get(name)?;
        let files = reader.object(&located, TLS_FILES)?;
        let mut file = |name: &str| {
            let located = files.get(name)?;
            locations.push((located.path.clone(), reader.location(&located)));
            reader.any_text(&located).map(str::to_owned)
        };
        Some(Tls { cert: file("cert")?, key: file("key")?, client_ca: file("client_ca") })
    };
    Some(Fronts {
        http: front("http"),
        grpc: front("grpc"),
        resp: front("resp"),
        admin: front("admin"),
    })
}

/// The store that keeps the counts.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreUrl {
    /// The memory of this process.
    Memory,
    /// Redis, by a URL with `redis://`, `rediss://`, `redis+unix://`, `redis-sentinel://` or
    /// `redis-cluster://`.
    Redis(String),
}

impl StoreUrl {
    /// Returns the Redis URL, including its secrets; `None` for memory.
    pub fn redis(&self) -> Option<&str> {
        match self {
            StoreUrl::Memory => None,
            StoreUrl::Redis(url) => Some(url),
        }
    }
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        if text == "memory" {
            return Ok(StoreUrl::Memory);
        }
        let known = |scheme: &str| STORE_SCHEMES.contains(&scheme);
        match text.split_once("://") {
            Some((scheme, _)) if known(scheme) => {
                check_url(text)?;
                Ok(StoreUrl::Redis(text.into()))
            }
            _ => Err(StoreUrlError::Kind),
        }
    }
}

/// Checks a URL with the parser of the store.
#[cfg(feature = "redis")]
fn check_url(url: &str) -> Result<(), StoreUrlError> {
    crate::store::redis::check_url(url).map_err(|error| StoreUrlError::Url(error.to_string()))
}

#[cfg(not(feature = "redis"))]
fn check_url(url: &str) -> Result<(), StoreUrlError> {
    if url.ends_with("://") { Err(StoreUrlError::Kind) } else { Ok(()) }
}

/// Writes only the scheme, hosts and path of a URL, because the rest may contain secrets: text up
/// to the last `@`, and from the first `?` or `#` after it, is omitted.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StoreUrl::Redis(url) = self else { return f.write_str("memory") };
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
        let place = place.split(['?', '#']).next().unwrap_or_default();
        write!(f, "{scheme}://{}", super::error::printable(place))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error of a text that is not a store. It does not contain the text, which may hold a
/// password.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreUrlError {
    /// The text is neither `memory` nor a URL with a supported scheme.
    Kind,
    /// The URL is not valid, with the reason.
    Url(String),
}

impl StoreUrlError {
    /// Returns a short description of the error.
    pub const fn problem(&self) -> &'static str {
        match self {
            StoreUrlError::Kind => "this is not a store",
            StoreUrlError::Url(_) => "this store cannot be used",
        }
    }

    /// Returns how to fix it.
    pub fn help(&self) -> &str {
        match self {
            StoreUrlError::Kind => {
                "write `memory`, or a URL that begins with `redis://`, `rediss://`, `redis+unix://`, \
                 `redis-sentinel://` or `redis-cluster://`"
            }
            StoreUrlError::Url(why) => why,
        }
    }
}

impl fmt::Display for StoreUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.problem(), self.help())
    }
}

impl std::error::Error for StoreUrlError {}
