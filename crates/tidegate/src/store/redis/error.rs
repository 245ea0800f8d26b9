//! The errors of connecting to a store, each with a fix. No message contains a credential.

use std::fmt;

use super::script::ACL_RULES;
use super::server_info::OLDEST;

/// A store URL that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlError {
    /// The part of the URL that is wrong.
    pub part: &'static str,
    /// The problem, and how to write the part.
    pub(super) fix: Box<str>,
}

/// The reason that a store cannot be used.
///
/// A server that cannot be reached is not an error: the store starts without it, and connects to it
/// later.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL cannot be parsed.
    Url(UrlError),
    /// The prefix of keys is empty, too long, or has a character that is not allowed.
    Prefix,
    /// The timeout for an answer is zero.
    NoTime,
    /// A file for TLS cannot be read or used.
    TlsFiles(Box<str>),
    /// The TLS handshake failed, or the certificate of the server is not trusted.
    Tls(Box<str>),
    /// The URL requires TLS, and the server does not use it.
    NoTls,
    /// The user or the password was refused or is missing.
    Credentials(Box<str>),
    /// The user lacks a permission.
    NotPermitted(Box<str>),
    /// The URL is for a single server or Sentinel, and the server is a node of a cluster.
    IsCluster,
    /// The URL is for a cluster, and the server is not a node of one.
    NotCluster,
    /// The URL is for a server or a cluster, and the server is a Sentinel.
    IsSentinel,
    /// The URL is for Sentinels, and the server is not a Sentinel.
    NotSentinel(Box<str>),
    /// A Sentinel refused the user or the password, or the user lacks a permission there.
    SentinelRefuses(Box<str>),
    /// The Sentinels do not monitor a primary of this name.
    UnknownMaster(Box<str>),
    /// The server is a replica.
    IsReplica,
    /// The server is older than the oldest supported version.
    TooOld(Box<str>),
    /// The server cannot be used for another reason.
    Unusable(Box<str>),
}

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
                "the store does not use TLS on this port: name its TLS port, or write redis:// \
                 (Sentinel, Cluster: leave out tls=true)",
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
