//! The options of a Redis store.

use std::fmt;
use std::time::Duration;

use super::error::ConnectError;
use super::url::RedisUrl;

/// The length of the longest prefix. It is bounded because it is part of every key.
const MAX_PREFIX_BYTES: usize = 64;

/// The options of a Redis store.
#[derive(Clone)]
pub struct RedisOptions {
    /// The URL: `redis://`, `rediss://`, `redis+unix://`, `redis-sentinel://` or `redis-cluster://`, with
    /// credentials if they are needed. `Debug` shows it without credentials.
    pub url: String,
    /// The time that a caller waits for an answer; default: 25 ms.
    pub timeout: Duration,
    /// The prefix of the names of all keys; default: `tg`.
    pub key_prefix: String,
    /// Whether repeated denials are answered from memory; default: `true`.
    pub deny_cache: bool,
    /// Whether units of hot keys are leased: taken from the store before they are spent, and spent
    /// without a round trip. Nothing is admitted beyond the limits. Default: `false`.
    pub leases: bool,
}

impl RedisOptions {
    /// Creates the options of the store at `url`, with the defaults.
    pub fn new(url: impl Into<String>) -> Self {
        RedisOptions {
            url: url.into(),
            timeout: Duration::from_millis(25),
            key_prefix: "tg".into(),
            deny_cache: true,
            leases: false,
        }
    }

    /// Checks the options. Returns the parsed URL.
    pub(super) fn check(&self) -> Result<RedisUrl, ConnectError> {
        let url = RedisUrl::parse(&self.url)?;
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        let prefix = self.key_prefix.as_bytes();
        if prefix.is_empty()
            || prefix.len() > MAX_PREFIX_BYTES
            || !prefix.iter().all(|b| is_allowed(*b))
        {
            return Err(ConnectError::Prefix);
        }
        if self.timeout.is_zero() {
            return Err(ConnectError::NoTime);
        }
        Ok(url)
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = RedisUrl::parse(&self.url).map(|url| url.to_string());
        f.debug_struct("RedisOptions")
            .field("url", &url.unwrap_or_else(|error| error.to_string()))
            .field("timeout", &self.timeout)
            .field("key_prefix", &self.key_prefix)
            .field("deny_cache", &self.deny_cache)
            .field("leases", &self.leases)
            .finish()
    }
}
