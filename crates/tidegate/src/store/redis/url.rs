//! The URL of a store.
//!
//! ```text
//!   redis://[user:password@]host[:port][/db]
//!   rediss://...                                          over TLS
//!   redis+unix://[user:password@]/path[?db=N]             a unix socket
//!   redis-sentinel://[..@]host[:port][,host..]/master[/db]
//!   redis-cluster://[..@]host[:port][,host..]
//!   ?ca=FILE&cert=FILE&key=FILE&tls=true&sentinel_user=..&sentinel_password=..
//! ```
//!
//! A general URL parser is not used, because those accept only one host, and because an error must
//! not repeat text that may be a password. Errors here name only the part that is wrong.

use std::fmt;
use std::path::PathBuf;

use super::error::UrlError;

/// The maximum number of servers in a URL. While a store is down, each of them may be tried in
/// turn.
const MAX_HOSTS: usize = 64;
/// The size of the longest URL, larger than any that is useful.
const MAX_URL_BYTES: usize = 4096;

/// The longest path of a unix socket that every system accepts: 104 bytes with a zero byte.
const MAX_SOCKET_PATH_BYTES: usize = 103;

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// The scheme of a unix socket.
const SOCKET_SCHEME: &str = "redis+unix";

/// How to write a password that has characters with a meaning in a URL.
const ENCODING: &str = "% @ / : ? # in a password as %25 %40 %2F %3A %3F %23";

/// How the servers of a store are deployed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deployment {
    Single,
    Sentinel,
    Cluster,
}

/// A host and a port, or the path of a unix socket and 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Address {
    pub(super) host: Box<str>,
    pub(super) port: u16,
}

/// A user and a password, which are never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
}

/// The files for TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClientTlsFiles {
    /// The certificate authorities that are trusted instead of those of the system.
    pub(super) ca: Option<PathBuf>,
    /// The client certificate and its key.
    pub(super) own: Option<(PathBuf, PathBuf)>,
}

/// A parsed URL.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct RedisUrl {
    pub(super) deployment: Deployment,
    /// At least one; for `Single` exactly one.
    pub(super) hosts: Vec<Address>,
    pub(super) login: Login,
    pub(super) db: u32,
    /// The name of the primary at the Sentinels; empty for other kinds.
    pub(super) master: String,
    /// The login at the Sentinels themselves.
    pub(super) sentinel_login: Login,
    pub(super) tls: Option<ClientTlsFiles>,
}

impl RedisUrl {
    pub(super) fn parse(text: &str) -> Result<Self, UrlError> {
        Self::read(text).map_err(|error| {
            // A `/` or `?` in a password ends the hosts, so the end of the login comes after them.
            let after_hosts =
                text.split_once("://").and_then(|(_, rest)| rest.split_once(['/', '?']));
            match after_hosts {
                Some((_, rest)) if rest.contains('@') && error.part != "host" => {
                    fail(error.part, format!("{}; write {ENCODING}", error.fix))
                }
                _ => error,
            }
        })
    }

    fn read(text: &str) -> Result<Self, UrlError> {
        if text.len() > MAX_URL_BYTES {
            return Err(fail("URL", format!("is longer than {MAX_URL_BYTES} bytes")));
        }
        if text.bytes().any(|byte| byte.is_ascii_control() || byte == b' ') {
            let fix = "has a space or a control character in it: write it as %20 or the like";
            return Err(fail("URL", fix));
        }
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let (deployment, tls) = match scheme {
            "redis" => (Deployment::Single, None),
            "rediss" => (Deployment::Single, Some(ClientTlsFiles::default())),
            SOCKET_SCHEME => (Deployment::Single, None),
            "redis-sentinel" => (Deployment::Sentinel, None),
            "redis-cluster" => (Deployment::Cluster, None),
            _ => {
                let fix = "must be `redis://`, `rediss://`, `redis+unix://`, `redis-sentinel://` or `redis-cluster://`";
                return Err(fail("scheme", fix));
            }
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (read_login(login)?, hosts),
            None => (Login::default(), authority),
        };
        let is_socket = scheme == SOCKET_SCHEME;
        let hosts = if is_socket {
            vec![read_socket(hosts, path)?]
        } else {
            read_hosts(hosts, deployment)?
        };
        let mut url = RedisUrl {
            deployment,
            hosts,
            login,
            db: 0,
            master: String::new(),
            sentinel_login: Login::default(),
            tls,
        };
        url.read_path(if is_socket { "" } else { path })?;
        url.read_query(query)?;
        Ok(url)
    }

    fn read_path(&mut self, path: &str) -> Result<(), UrlError> {
        let db = match self.deployment {
            Deployment::Single => path,
            Deployment::Cluster if path.is_empty() || path == "0" => path,
            Deployment::Cluster => {
                return Err(fail("path", "must be empty: a cluster has database 0 alone"));
            }
            Deployment::Sentinel => {
                let (master, db) = path.split_once('/').unwrap_or((path, ""));
                if master.contains('@') {
                    return Err(fail("master name", "has an @"));
                }
                self.master = decode("master name", master)?;
                if self.master.is_empty() {
                    let fix = "is missing: write redis-sentinel://host/NAME, as in the Sentinel's `sentinel monitor NAME`";
                    return Err(fail("master name", fix));
                }
                db
            }
        };
        if db.is_empty() { Ok(()) } else { self.read_db(db) }
    }

    fn read_db(&mut self, db: &str) -> Result<(), UrlError> {
        let wrong = || fail("database", "must be a number, as in redis://host/0");
        self.db = db.parse().map_err(|_| wrong())?;
        Ok(())
    }

    fn is_socket(&self) -> bool {
        self.hosts.iter().any(Address::is_socket)
    }

    fn read_query(&mut self, query: &str) -> Result<(), UrlError> {
        let (mut cert, mut key) = (None, None);
        let mut files = ClientTlsFiles::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let text = |part| decode(part, value);
            match name {
                "ca" => files.ca = Some(text("ca")?.into()),
                "cert" => cert = Some(text("cert")?.into()),
                "key" => key = Some(text("key")?.into()),
                "tls" => self.read_tls(value)?,
                "db" if self.is_socket() => self.read_db(value)?,
                "sentinel_user" => self.sentinel_login.user = Some(text("sentinel_user")?),
                "sentinel_password" => {
                    self.sentinel_login.password = Some(text("sentinel_password")?);
                }
                _ => {
                    let fix = "has an unknown name: known are ca, cert, key, tls, sentinel_user and sentinel_password";
                    return Err(fail("query", fix));
                }
            }
        }
        if self.sentinel_login != Login::default() && self.deployment != Deployment::Sentinel {
            return Err(fail("query", "names a Sentinel login, but the scheme is another"));
        }
        files.own = match (cert, key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((cert, key)),
            _ => return Err(fail("query", "needs cert and key together, or neither")),
        };
        if files != ClientTlsFiles::default() {
            let Some(tls) = &mut self.tls else {
                let fix = "names TLS files, but TLS is off: write rediss://, or tls=true with Sentinel or Cluster";
                return Err(fail("query", fix));
            };
            *tls = files;
        }
        Ok(())
    }

    /// Reads the value of `tls=`. It may come before or after the files, which are set at the end.
    fn read_tls(&mut self, value: &str) -> Result<(), UrlError> {
        self.tls = match (value, self.deployment) {
            (_, Deployment::Single) => {
                return Err(fail("tls", "is set by the scheme: write redis:// or rediss://"));
            }
            ("true", _) => Some(ClientTlsFiles::default()),
            ("false", _) => None,
            _ => return Err(fail("tls", "must be true or false")),
        };
        Ok(())
    }
}

/// Shows the URL without credentials, and without options that may contain some.
impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.deployment, &self.tls) {
            _ if self.is_socket() => "redis+unix://",
            (Deployment::Single, None) => "redis://",
            (Deployment::Single, Some(_)) => "rediss://",
            (Deployment::Sentinel, _) => "redis-sentinel://",
            (Deployment::Cluster, _) => "redis-cluster://",
        })?;
        for (index, host) in self.hosts.iter().enumerate() {
            write!(f, "{}{host}", if index > 0 { "," } else { "" })?;
        }
        if self.deployment == Deployment::Sentinel {
            write!(f, "/{}", self.master.escape_debug())?;
        }
        if self.db != 0 {
            write!(f, "{}{}", if self.is_socket() { "?db=" } else { "/" }, self.db)?;
        }
        let tls = self.tls.is_some() && self.deployment != Deployment::Single;
        f.write_str(if tls { "?tls=true" } else { "" })
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(..)")
    }
}

impl Address {
    /// Whether this is the path of a unix socket.
    pub(super) fn is_socket(&self) -> bool {
        self.host.starts_with('/')
    }

    /// Parses `host:port` of a redirect. If the host is missing, it is that of `queried`, the
    /// server that sent the redirect.
    pub(super) fn from_redirect(text: &str, queried: &Address) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Some(Address::reported(host, port.parse().ok()?, queried))
    }

    /// The address that the server `queried` reports. If the host is missing or `?`, it is the host
    /// of that server.
    pub(super) fn reported(host: &str, port: u16, queried: &Address) -> Self {
        let known = !host.is_empty() && host != "?";
        Address { host: if known { host.into() } else { queried.host.clone() }, port }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_socket() {
            return write!(f, "{}", self.host.escape_debug());
        }
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{close}:{}", self.host, self.port)
    }
}

fn read_login(text: &str) -> Result<Login, UrlError> {
    let Some((user, password)) = text.split_once(':') else {
        let fix = "lacks a colon: write user:password@ or :password@";
        return Err(fail("login", fix));
    };
    let user = decode("user", user)?;
    let password = decode("password", password)?;
    if password.is_empty() {
        return Err(fail(
            "password",
            "is empty: write user:password@, or leave out both and the @",
        ));
    }
    Ok(Login { user: Some(user).filter(|user| !user.is_empty()), password: Some(password) })
}

/// Reads the path of a unix socket, without its first slash.
fn read_socket(authority: &str, path: &str) -> Result<Address, UrlError> {
    let path = format!("/{}", decode("path", path)?);
    if !authority.is_empty() || path.len() == 1 || path.ends_with('/') || path.contains('\0') {
        let fix = "must be that of a socket: write redis+unix:///run/redis/redis.sock";
        return Err(fail("path", fix));
    }
    if path.len() > MAX_SOCKET_PATH_BYTES {
        return Err(fail("path", format!("is longer than {MAX_SOCKET_PATH_BYTES} bytes")));
    }
    Ok(Address { host: path.into(), port: 0 })
}

fn read_hosts(text: &str, deployment: Deployment) -> Result<Vec<Address>, UrlError> {
    let port = if deployment == Deployment::Sentinel { SENTINEL_PORT } else { REDIS_PORT };
    let hosts: Result<Vec<Address>, UrlError> =
        text.split(',').take(MAX_HOSTS + 1).map(|host| read_host(host, port)).collect();
    let hosts = hosts?;
    if hosts.len() > MAX_HOSTS {
        return Err(fail(
            "hosts",
            format!("are more than {MAX_HOSTS}: name a few, the rest is found"),
        ));
    }
    if deployment == Deployment::Single && hosts.len() > 1 {
        let fix = "are several: one server has one address; write redis-sentinel:// or redis-cluster:// for more";
        return Err(fail("hosts", fix));
    }
    Ok(hosts)
}

fn read_host(text: &str, default_port: u16) -> Result<Address, UrlError> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':').or(port.is_empty().then_some(""))),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, Some("")),
        },
    };
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:%".contains(&byte);
    if host.is_empty() || !host.bytes().all(allowed) {
        let fix = format!(
            "is missing or has characters no host has: write redis://host:6379, an IPv6 address in \
             [ ], and {ENCODING}"
        );
        return Err(fail("host", fix));
    }
    let port = match port {
        Some("") => Some(default_port),
        Some(port) => port.parse().ok().filter(|port| *port != 0),
        None => None,
    };
    let wrong = || fail("port", "must be a number from 1 to 65535; an IPv6 address stands in [ ]");
    Ok(Address { host: host.into(), port: port.ok_or_else(wrong)? })
}

/// Decodes `%XX` escapes.
fn decode(part: &'static str, text: &str) -> Result<String, UrlError> {
    let wrong = || {
        fail(
            part,
            "has a % that is not followed by two hex digits, or is not UTF-8: write % as %25",
        )
    };
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(wrong()) };
        decoded.push(u8::try_from(high * 16 + low).unwrap_or(u8::MAX));
    }
    String::from_utf8(decoded).map_err(|_| wrong())
}

fn fail(part: &'static str, fix: impl Into<Box<str>>) -> UrlError {
    UrlError { part, fix: fix.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_shown_without_secrets() {
        let rows = [
            ("redis://h", "redis://h:6379"),
            ("redis://h:1/", "redis://h:1"),
            ("redis://h/3", "redis://h:6379/3"),
            ("rediss://u:p%40ss@h:7000/3?ca=/tmp/ca.pem", "rediss://h:7000/3"),
            ("redis://:secret@[::1]:7000", "redis://[::1]:7000"),
            ("redis://u:p@[::1]", "redis://[::1]:6379"),
            ("redis-sentinel://a,b:1/mymaster", "redis-sentinel://a:26379,b:1/mymaster"),
            (
                "redis-sentinel://u:p@a/my%2Fmaster/2?sentinel_password=x&tls=true&ca=f",
                "redis-sentinel://a:26379/my/master/2?tls=true",
            ),
            ("redis-cluster://a,b:2,[::1]:3", "redis-cluster://a:6379,b:2,[::1]:3"),
            ("redis-cluster://:p@a/0?tls=true", "redis-cluster://a:6379?tls=true"),
            ("redis+unix:///run/redis.sock", "redis+unix:///run/redis.sock"),
            ("redis+unix://u:p@/run/r%20s?db=3", "redis+unix:///run/r s?db=3"),
        ];
        for (text, displayed) in rows {
            let url = RedisUrl::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(url.to_string(), displayed, "{text}");
            assert_eq!(format!("{url:?}"), displayed, "{text}");
            assert!(!format!("{:?}", url.login).contains('p'), "{text}");
        }
        let url = RedisUrl::parse("rediss://u:p%40ss@h?cert=c%20c&key=k").expect("good");
        assert_eq!(url.login.user.as_deref(), Some("u"));
        assert_eq!(url.login.password.as_deref(), Some("p@ss"));
        assert_eq!(
            url.tls,
            Some(ClientTlsFiles { ca: None, own: Some(("c c".into(), "k".into())) })
        );
    }

    #[test]
    fn url_errors_name_the_part_and_no_secret() {
        let rows = [
            ("", "scheme"),
            ("h:6379", "scheme"),
            ("http://s3cret@h", "scheme"),
            ("redis://", "host"),
            ("redis://s3cret@h", "login"),
            ("redis://u:@h", "password"),
            ("redis://u:s3cret%4@h", "password"),
            ("redis://u:s3cret%ff@h", "password"),
            ("redis://u:s3/cret@h", "port"),
            ("redis://h:0", "port"),
            ("redis://h:65536", "port"),
            ("redis://::1", "host"),
            ("redis://[::1]7", "port"),
            ("redis://h/s3cret", "database"),
            ("redis://a,b", "hosts"),
            ("redis://h h", "URL"),
            ("redis://h\r\n", "URL"),
            ("redis-sentinel://h", "master name"),
            ("redis-sentinel://h//1", "master name"),
            ("redis-sentinel://h/m/s3cret", "database"),
            ("redis-cluster://h/1", "path"),
            ("redis://h?s3cret=1", "query"),
            ("redis://h?ca=f", "query"),
            ("rediss://h?cert=f", "query"),
            ("redis://h?sentinel_password=s3cret", "query"),
            ("redis://h?tls=true", "tls"),
            ("redis-cluster://h?tls=s3cret", "tls"),
            ("redis+unix://", "path"),
            ("redis+unix:///", "path"),
            ("redis+unix:///run/", "path"),
            ("redis+unix://s3cret/run/x", "path"),
            ("redis+unix:///run/x%00", "path"),
            ("redis+unix:///run/x?db=s3cret", "database"),
            ("redis+unix:///run/x?tls=true", "tls"),
            ("redis+unix:///run/x?ca=f", "query"),
            ("redis://h?db=1", "query"),
        ];
        for (text, part) in rows {
            let error = RedisUrl::parse(text).expect_err(text);
            assert_eq!(error.part, part, "{text}: {error}");
            assert!(!format!("{error} {error:?}").contains("s3"), "{text}: {error}");
        }
        // A password that is not percent-encoded was an error about another part, without help, or
        // the name of a primary.
        for (text, part) in [
            ("redis://:p@s3/cret@h:1", "database"),
            ("redis://u:s3/cret@h", "port"),
            ("redis://u:s3?cret@h", "port"),
            ("redis://:p@s3?cret@h", "query"),
            ("redis://:?s3cret@h", "host"),
            ("redis-sentinel://:p@s3/cret@h/m", "master name"),
            ("redis-cluster://:p@s3/cret@h", "path"),
            ("redis+unix://:p/s3cret@/run/x", "path"),
        ] {
            let error = RedisUrl::parse(text).expect_err(text);
            assert_eq!(error.part, part, "{text}: {error}");
            assert_eq!(error.to_string().matches("%40 %2F").count(), 1, "{text}: {error}");
            assert!(!format!("{error} {error:?}").contains("s3"), "{text}: {error}");
        }
        let many = vec!["h"; MAX_HOSTS + 1].join(",");
        let error = RedisUrl::parse(&format!("redis-cluster://{many}")).expect_err("too many");
        assert_eq!(error.part, "hosts");
        let socket = "s".repeat(MAX_SOCKET_PATH_BYTES - 1);
        assert!(RedisUrl::parse(&format!("redis+unix:///{socket}")).is_ok());
        let error = RedisUrl::parse(&format!("redis+unix:///{socket}s")).expect_err("long");
        assert_eq!(error.part, "path");
        let long = "h".repeat(MAX_URL_BYTES);
        assert_eq!(RedisUrl::parse(&format!("redis://{long}")).expect_err("long").part, "URL");
    }

    #[test]
    fn redirect_addresses_are_parsed() {
        let queried = Address { host: "me".into(), port: 1 };
        let rows = [
            ("10.0.0.1:7", Some("10.0.0.1:7")),
            (":7", Some("me:7")),
            ("?:7", Some("me:7")),
            ("::1:7", Some("[::1]:7")),
            ("h:x", None),
            ("h", None),
        ];
        for (text, expect) in rows {
            let reported =
                Address::from_redirect(text, &queried).map(|address| address.to_string());
            assert_eq!(reported.as_deref(), expect, "{text}");
        }
    }
}
