//! Why a store cannot be used, with the fix. Nothing here repeats a credential.

use std::fmt;

/// A store URL that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlError {
    /// Which part of it.
    pub part: &'static str,
    /// What is wrong with it, and how to write it.
    pub(super) fix: Box<str>,
}

/// Why a store cannot be used at all. A server that is merely not there is not
/// an error: the store starts without it and finds it later.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL cannot be read.
    Url(UrlError),
    /// The prefix of the keys cannot be used.
    Prefix,
    /// No time is given to answer.
    NoTime,
    /// The files for TLS cannot be used.
    TlsFiles(Box<str>),
    /// The server's certificate is not believed.
    Tls(Box<str>),
    /// A URL for TLS leads to a server that speaks none.
    NoTls,
    /// User or password were refused, or are missing.
    Credentials(Box<str>),
    /// The user may not do what is needed.
    NotPermitted(Box<str>),
    /// A `redis://` URL leads to a node of a cluster.
    IsCluster,
    /// A `redis-cluster://` URL leads to a server that is in no cluster.
    NotCluster,
    /// A URL for servers leads to a Sentinel.
    IsSentinel,
    /// A `redis-sentinel://` URL leads to something that is no Sentinel.
    NotSentinel(Box<str>),
    /// A Sentinel refused user or password, or the user may not ask it.
    SentinelRefuses(Box<str>),
    /// The Sentinels do not watch a primary of that name.
    UnknownMaster(Box<str>),
    /// The server is a replica.
    IsReplica,
    /// The server is older than the oldest that will do.
    TooOld(Box<str>),
    /// The server answers in a way that cannot be used.
    Unusable(Box<str>),
}

/// The oldest server that will do: the first with ACLs and exact script replication.
pub(super) const OLDEST: (u32, u32) = (6, 0);

/// What the user of the store must be allowed to do, as in
/// `ACL SETUSER tidegate on >password ~tg:* ...`. The pattern of the keys goes with
/// `key_prefix`; `asking` and `cluster|slots` are for a cluster, and another database than 0
/// takes `+select`. A user of the Sentinels themselves needs
/// `+sentinel|get-master-addr-by-name` alone.
pub const ACL_RULES: &str = "~tg:* -@all +evalsha +script|load +info +asking \
                             +cluster|slots +get +set +incr +incrby +decrby +del +time";

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store's {} {}", self.part, self.fix)
    }
}

impl std::error::Error for UrlError {}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::Url(error) => error.fmt(f),
            ConnectError::Prefix => f.write_str(
                "key_prefix must be 1 to 64 letters, digits, `.`, `_`, `:` or `-`",
            ),
            ConnectError::NoTime => f.write_str("store_timeout is 0: give it at least 1 ms"),
            ConnectError::TlsFiles(text) => write!(f, "the store's TLS files: {text}"),
            ConnectError::Tls(text) => write!(
                f,
                "TLS with the store failed: {text}; name the certificate authority with ?ca=FILE"
            ),
            ConnectError::NoTls => f.write_str(
                "the store speaks no TLS there: name its TLS port, or write redis:// (Sentinel, Cluster: leave out tls=true)",
            ),
            ConnectError::Credentials(text) => write!(
                f,
                "the store refused the credentials: {text}; check user and password in the URL \
                 (user:password@, or :password@ for the default user)"
            ),
            ConnectError::NotPermitted(text) => write!(
                f,
                "the store's user may not do what is needed: {text}; as an administrator run \
                 ACL SETUSER <name> on ><password> {ACL_RULES} (with key_prefix for tg)"
            ),
            ConnectError::IsCluster => {
                f.write_str("the store is a node of a cluster: write redis-cluster://")
            }
            ConnectError::NotCluster => f.write_str(
                "the store is not a cluster: write redis:// or rediss://, or turn on cluster-enabled",
            ),
            ConnectError::IsSentinel => f.write_str(
                "the store is a Sentinel: write redis-sentinel://host/NAME with the name of its primary",
            ),
            ConnectError::NotSentinel(text) => write!(
                f,
                "the store's Sentinel does not answer as one: {text}; name Sentinels (port 26379), or \
                 write redis:// for a server"
            ),
            ConnectError::SentinelRefuses(text) => write!(
                f,
                "the store's Sentinel refuses: {text}; check sentinel_user and sentinel_password in the URL, \
                 and that the user has +sentinel|get-master-addr-by-name"
            ),
            ConnectError::UnknownMaster(name) => write!(
                f,
                "the Sentinels do not know the primary `{}`: use the name of their `sentinel monitor` line",
                name.escape_debug()
            ),
            ConnectError::IsReplica => f.write_str(
                "the store is a replica, which must not decide: name its primary, or use redis-sentinel://",
            ),
            ConnectError::TooOld(version) => write!(
                f,
                "the store is version {version}: use Redis {}.{} or later, or Valkey",
                OLDEST.0, OLDEST.1
            ),
            ConnectError::Unusable(text) => write!(f, "the store cannot be used: {text}"),
        }
    }
}

impl std::error::Error for ConnectError {}

impl From<UrlError> for ConnectError {
    fn from(error: UrlError) -> Self {
        ConnectError::Url(error)
    }
}
