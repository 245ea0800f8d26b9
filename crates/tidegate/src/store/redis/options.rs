//! Where the store is and how it is used.

use std::fmt;
use std::time::Duration;

use super::error::ConnectError;
use super::url::StoreUrl;

/// The longest prefix: it is part of every key.
const MAX_PREFIX_BYTES: usize = 64;

/// Where the store is and how it is used.
#[derive(Clone)]
pub struct RedisOptions {
    /// `redis://`, `rediss://`, `redis-sentinel://` or `redis-cluster://`, with
    /// credentials if need be. It is never shown.
    pub url: String,
    /// How long a caller waits for an answer.
    pub timeout: Duration,
    /// What the names of all keys begin with.
    pub key_prefix: String,
    /// Whether denials are answered from memory until they end.
    pub deny_cache: bool,
}

impl RedisOptions {
    /// The store at `url`: 25 ms for an answer, keys under `tg`, denials remembered.
    pub fn new(url: impl Into<String>) -> Self {
        RedisOptions {
            url: url.into(),
            timeout: Duration::from_millis(25),
            key_prefix: "tg".into(),
            deny_cache: true,
        }
    }

    /// The URL, once everything else makes sense too.
    pub(super) fn check(&self) -> Result<StoreUrl, ConnectError> {
        let url = StoreUrl::parse(&self.url)?;
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
        let url = StoreUrl::parse(&self.url).map(|url| url.to_string());
        f.debug_struct("RedisOptions")
            .field("url", &url.unwrap_or_else(|error| error.to_string()))
            .field("timeout", &self.timeout)
            .field("key_prefix", &self.key_prefix)
            .field("deny_cache", &self.deny_cache)
            .finish()
    }
}
