//! The URL of the store, from the variables of Redis.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tidegate::redis::ConnectError;
use tidegate::unstable::config::{StoreUrl, StoreUrlError};

use super::variables::{Reader, VariableError};

/// The characters that are encoded in the path of a URL.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_');

/// The variables that select a store.
const SELECTING: [&str; 3] = ["REDIS_URL", "REDIS_SOCKET_TYPE", "REDIS_TYPE"];

/// The variables of files: the authority of the server, and the certificate of the client.
const TLS_FILES: [&str; 3] = ["REDIS_TLS_CACERT", "REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY"];

/// Returns the store; `None` if no variable selects one.
pub fn store(reader: &Reader) -> Result<Option<StoreUrl>, VariableError> {
    if !SELECTING.iter().any(|name| reader.is_set(name)) {
        return Ok(None);
    }
    let tls = reader.boolean("REDIS_TLS")?;
    if tls {
        let [_, certificate, key] = TLS_FILES;
        reader.both_or_neither(certificate, key)?;
    }
    let url = reader.text("REDIS_URL");
    let kind = reader.text("REDIS_TYPE").to_ascii_uppercase();
    let (scheme, master, list) = match &*kind {
        "SINGLE" if is_socket(reader)? => return socket(reader).map(Some),
        "SINGLE" => (if tls { "rediss" } else { "redis" }, None, url),
        "SENTINEL" => {
            let help = "write the name of the primary, then the Sentinels: name,host:port,...";
            let split = url.split_once(',').ok_or_else(|| reader.error("REDIS_URL", help))?;
            ("redis-sentinel", Some(split.0), split.1)
        }
        "CLUSTER" => ("redis-cluster", None, url),
        _ => return Err(reader.error("REDIS_TYPE", "write SINGLE, SENTINEL or CLUSTER")),
    };
    let addresses: Vec<Address<'_>> = list.split(',').map(Address::parse).collect();
    let in_list = addresses.iter().find_map(|address| address.login);
    let auth = reader.non_empty("REDIS_AUTH").map(login);
    let auth = auth.or(in_list.filter(|_| master.is_none()).map(str::to_owned));
    let auth = auth.map(|login| login + "@").unwrap_or_default();
    let hosts: Vec<&str> = addresses.iter().map(|address| address.host).collect();
    let path = master.or(addresses.first().and_then(|address| address.database));
    let path = path.map(|path| format!("/{}", encode(path))).unwrap_or_default();
    let query = query(reader, scheme, tls).join("&");
    let url = format!("{scheme}://{auth}{}{path}?{query}", hosts.join(","));
    parse(reader, url.trim_end_matches('?')).map(Some)
}

/// Converts an error of the store to one about the variable at fault, unless none is.
pub fn store_error(reader: &Reader, error: ConnectError) -> Result<VariableError, ConnectError> {
    let named = |name, reason: String| Ok(reader.error(name, reason));
    match error {
        ConnectError::Credentials(text) => {
            let help = "write password, or user:password";
            named("REDIS_AUTH", format!("the store refused the credentials: {text}; {help}"))
        }
        ConnectError::SentinelRefuses(text) => {
            let help = "write password, or user:password, of a user with \
                        +sentinel|get-master-addr-by-name";
            named("REDIS_SENTINEL_AUTH", format!("the Sentinel refuses: {text}; {help}"))
        }
        ConnectError::TlsFiles(text) => {
            // The text begins with the path of the file.
            let of_file = |name: &&str| {
                let path = reader.non_empty(name)?;
                text.strip_prefix(path)?.strip_prefix(": ")
            };
            let name = TLS_FILES.into_iter().find(|name| of_file(name).is_some());
            let name = name.unwrap_or("REDIS_TLS_CACERT");
            named(name, of_file(&name).unwrap_or(&text).to_owned())
        }
        ConnectError::Tls(text) => {
            let help = "name the authority of the store's certificate with REDIS_TLS_CACERT";
            named("REDIS_TLS", format!("TLS with the store failed: {text}; {help}"))
        }
        ConnectError::NoTls => {
            named("REDIS_TLS", "the store does not use TLS on this port".to_owned())
        }
        ConnectError::IsCluster => {
            named("REDIS_TYPE", "the store is a node of a cluster: write CLUSTER".to_owned())
        }
        ConnectError::NotCluster => {
            named("REDIS_TYPE", "the store is not a cluster: write SINGLE or SENTINEL".to_owned())
        }
        ConnectError::IsSentinel => {
            named("REDIS_TYPE", "the store is a Sentinel: write SENTINEL".to_owned())
        }
        ConnectError::NotSentinel(text) => {
            let help = "name Sentinels in REDIS_URL, or write SINGLE";
            named("REDIS_TYPE", format!("the Sentinel does not answer as one: {text}; {help}"))
        }
        other => Err(other),
    }
}

fn parse(reader: &Reader, url: &str) -> Result<StoreUrl, VariableError> {
    url.parse().map_err(|error: StoreUrlError| reader.error("REDIS_URL", error.help()))
}

/// Whether `REDIS_URL` is the path of a unix socket, which is the default.
fn is_socket(reader: &Reader) -> Result<bool, VariableError> {
    let is_path = reader.text("REDIS_URL").starts_with('/');
    match (reader.text("REDIS_SOCKET_TYPE"), is_path) {
        ("tcp", false) => Ok(false),
        ("unix", true) => Ok(true),
        ("tcp", true) => {
            let help = "this is a path: write host:port, or set REDIS_SOCKET_TYPE=unix";
            Err(reader.error("REDIS_URL", help))
        }
        ("unix", false) => {
            let help = "REDIS_SOCKET_TYPE is unix: write the path of a socket that begins with `/`, or \
                        set REDIS_SOCKET_TYPE=tcp";
            Err(reader.error("REDIS_URL", help))
        }
        _ => Err(reader.error("REDIS_SOCKET_TYPE", "write tcp or unix")),
    }
}

/// Returns the store behind the unix socket at `REDIS_URL`.
fn socket(reader: &Reader) -> Result<StoreUrl, VariableError> {
    if reader.boolean("REDIS_TLS")? {
        return Err(reader.error("REDIS_TLS", "a unix socket has no TLS: set REDIS_TLS=false"));
    }
    let path = utf8_percent_encode(reader.text("REDIS_URL"), IN_PATH);
    let auth = reader.non_empty("REDIS_AUTH").map(|auth| login(auth) + "@").unwrap_or_default();
    parse(reader, &format!("redis+unix://{auth}{path}"))
}

/// The options of the URL.
fn query(reader: &Reader, scheme: &str, tls: bool) -> Vec<String> {
    let mut options = Vec::new();
    if tls && !scheme.starts_with("rediss") {
        options.push("tls=true".to_owned());
    }
    // envoyproxy/ratelimit reads these files only if TLS is on.
    for (option, variable) in ["ca", "cert", "key"].into_iter().zip(TLS_FILES) {
        if let Some(path) = reader.non_empty(variable).filter(|_| tls) {
            options.push(format!("{option}={}", encode(path)));
        }
    }
    if let Some(auth) = reader.non_empty("REDIS_SENTINEL_AUTH")
        && scheme == "redis-sentinel"
    {
        let (user, password) = auth.split_once(':').unwrap_or(("", auth));
        if !user.is_empty() {
            options.push(format!("sentinel_user={}", encode(user)));
        }
        options.push(format!("sentinel_password={}", encode(password)));
    }
    options
}

/// A server, written as `host:port` or as a URL.
struct Address<'a> {
    /// `user:password` or `:password`, as written in the URL.
    login: Option<&'a str>,
    host: &'a str,
    database: Option<&'a str>,
}

impl<'a> Address<'a> {
    fn parse(text: &'a str) -> Self {
        let rest = text.trim().strip_prefix("redis://").unwrap_or(text.trim());
        let (login, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) => (Some(login), rest),
            None => (None, rest),
        };
        let (host, database) = rest.split_once('/').unwrap_or((rest, ""));
        Address { login, host, database: Some(database).filter(|text| !text.is_empty()) }
    }
}

/// Returns the login of `password` or `user:password`, in the form of a URL.
fn login(auth: &str) -> String {
    let (user, password) = auth.split_once(':').unwrap_or(("", auth));
    format!("{}:{}", encode(user), encode(password))
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(set: &[(&str, &str)]) -> Result<Option<String>, String> {
        let set = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let store = store(&Reader::new(set)).map_err(|error| error.to_string())?;
        Ok(store.and_then(|store| store.redis().map(str::to_owned)))
    }

    #[test]
    fn makes_urls_of_variables() {
        const TCP: (&str, &str) = ("REDIS_SOCKET_TYPE", "tcp");
        #[rustfmt::skip]
        let rows: [(&[(&str, &str)], &str); 11] = [
            (&[("REDIS_URL", "/run/re dis.sock")], "redis+unix:///run/re%20dis.sock"),
            (&[("REDIS_SOCKET_TYPE", "unix")], "redis+unix:///var/run/nutcracker/ratelimit.sock"),
            (&[("REDIS_URL", "/s"), ("REDIS_AUTH", "u:p")], "redis+unix://u:p@/s"),
            (&[TCP, ("REDIS_URL", "redis:6379")], "redis://redis:6379"),
            (&[TCP, ("REDIS_TYPE", "single"), ("REDIS_URL", "redis://u:p%40@h:1/3")], "redis://u:p%40@h:1/3"),
            (&[TCP, ("REDIS_URL", "h:1"), ("REDIS_AUTH", "s@cret")], "redis://:s%40cret@h:1"),
            (&[TCP, ("REDIS_URL", "h:1"), ("REDIS_AUTH", "u:p:q")], "redis://u:p%3Aq@h:1"),
            (&[TCP, ("REDIS_URL", "h:1"), ("REDIS_TLS", "true"), ("REDIS_TLS_CACERT", "/ca"),
               ("REDIS_TLS_CLIENT_CERT", "c"), ("REDIS_TLS_CLIENT_KEY", "k")], "rediss://h:1?ca=%2Fca&cert=c&key=k"),
            (&[("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "main,a:1,b:2"), ("REDIS_AUTH", "x"),
               ("REDIS_SENTINEL_AUTH", "u:y")], "redis-sentinel://:x@a:1,b:2/main?sentinel_user=u&sentinel_password=y"),
            (&[("REDIS_TYPE", "cluster"), ("REDIS_URL", "a:1,b:2"), ("REDIS_TLS", "t")], "redis-cluster://a:1,b:2?tls=true"),
            (&[("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", "a:1"), ("REDIS_TLS_CACERT", "/unused")], "redis-cluster://a:1"),
        ];
        for (set, expected) in rows {
            assert_eq!(url(set), Ok(Some(expected.to_owned())), "{set:?}");
        }
        assert_eq!(url(&[("REDIS_TLS", "true"), ("REDIS_AUTH", "x")]), Ok(None));
    }

    #[test]
    fn errors_of_the_store_name_the_variable() {
        let set =
            [("REDIS_TYPE", "SINGLE"), ("REDIS_AUTH", "s3cret"), ("REDIS_TLS_CLIENT_KEY", "/k")];
        let set = set.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let reader = Reader::new(set);
        let text = || "why".into();
        let rows = [
            (
                ConnectError::Credentials(text()),
                "REDIS_AUTH: the store refused the credentials: why",
            ),
            (
                ConnectError::SentinelRefuses(text()),
                "REDIS_SENTINEL_AUTH: the Sentinel refuses: why",
            ),
            (ConnectError::TlsFiles("/k: missing".into()), "REDIS_TLS_CLIENT_KEY=/k: missing"),
            (ConnectError::TlsFiles(text()), "REDIS_TLS_CACERT=: why"),
            (ConnectError::NoTls, "REDIS_TLS=false: "),
            (ConnectError::IsCluster, "REDIS_TYPE=SINGLE: the store is a node of a cluster"),
        ];
        for (error, expected) in rows {
            let error = store_error(&reader, error).expect(expected).to_string();
            assert!(error.starts_with(expected) && !error.contains("s3cret"), "{error}");
        }
        let replica = store_error(&reader, ConnectError::IsReplica);
        assert_eq!(replica.err(), Some(ConnectError::IsReplica));
    }

    #[test]
    fn refuses_stores_by_variable() {
        let long = format!("/s3cret/{}", "x".repeat(100));
        #[rustfmt::skip]
        let rows: [(&[(&str, &str)], &str); 11] = [
            (&[("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "h:1"), ("REDIS_TLS", "true"), ("REDIS_TLS_CLIENT_CERT", "c")],
             "REDIS_TLS_CLIENT_KEY=: set REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY, or neither"),
            (&[("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", "h:1"), ("REDIS_TLS", "true"), ("REDIS_TLS_CLIENT_KEY", "k")],
             "REDIS_TLS_CLIENT_CERT=: set REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY, or neither"),
            (&[("REDIS_URL", "redis:6379")], "REDIS_URL: REDIS_SOCKET_TYPE is unix: write the path"),
            (&[("REDIS_SOCKET_TYPE", "udp")], "REDIS_SOCKET_TYPE=udp: write tcp or unix"),
            (&[("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "/run/s3cret")], "REDIS_URL: this is a path"),
            (&[("REDIS_URL", &long)], "REDIS_URL: "),
            (&[("REDIS_URL", "/run/s3cret/")], "REDIS_URL: "),
            (&[("REDIS_URL", "/run/s3cret"), ("REDIS_TLS", "true")], "REDIS_TLS=true: a unix socket has no TLS"),
            (&[("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "main")], "REDIS_URL: write the name of the primary"),
            (&[("REDIS_TYPE", "RING"), ("REDIS_URL", "h:1")], "REDIS_TYPE=RING: write SINGLE, SENTINEL or CLUSTER"),
            (&[("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "s3cret:x")], "REDIS_URL: "),
        ];
        for (set, expected) in rows {
            let error = url(set).expect_err(expected);
            assert!(error.starts_with(expected), "{error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}
