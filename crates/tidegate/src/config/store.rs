//! Where counts are kept, and what of that may be shown.

use std::fmt;
use std::str::FromStr;

use super::fields::STORE_SCHEMES;

/// Where counts are kept.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreUrl {
    /// In this process.
    Memory,
    /// In Redis: `redis://`, `rediss://`, `redis-sentinel://` or `redis-cluster://`.
    Redis(String),
}

impl StoreUrl {
    /// The address with its secrets; `None` for memory.
    pub fn redis(&self) -> Option<&str> {
        match self {
            StoreUrl::Memory => None,
            StoreUrl::Redis(url) => Some(url),
        }
    }
}

impl FromStr for StoreUrl {
    type Err = NotAStore;

    fn from_str(text: &str) -> Result<Self, NotAStore> {
        if text == "memory" {
            return Ok(StoreUrl::Memory);
        }
        let known = |scheme: &str| STORE_SCHEMES.contains(&scheme);
        match text.split_once("://") {
            Some((scheme, rest)) if known(scheme) && !rest.is_empty() => {
                check(text)?;
                Ok(StoreUrl::Redis(text.into()))
            }
            _ => Err(NotAStore::Kind),
        }
    }
}

/// What the store itself has to say about its URL.
#[cfg(feature = "redis")]
fn check(url: &str) -> Result<(), NotAStore> {
    crate::store::redis::check_url(url).map_err(|error| NotAStore::Url(error.to_string()))
}

#[cfg(not(feature = "redis"))]
fn check(_: &str) -> Result<(), NotAStore> {
    Ok(())
}

/// The URL may hold secrets, so only scheme, hosts and path are shown: nothing up to the
/// last `@` and nothing from the first `?` behind it.
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

/// A text that names no store. It is not repeated: it may hold a password.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotAStore {
    /// It is neither `memory` nor a URL of a known kind.
    Kind,
    /// The URL cannot be used, and why.
    Url(String),
}

impl NotAStore {
    /// What is wrong, in a few words.
    pub const fn problem(&self) -> &'static str {
        match self {
            NotAStore::Kind => "this is not a store",
            NotAStore::Url(_) => "this store cannot be used",
        }
    }

    /// What to write instead.
    pub fn help(&self) -> &str {
        match self {
            NotAStore::Kind => {
                "write `memory`, or a URL that begins with `redis://`, `rediss://`, `redis-sentinel://` or \
                 `redis-cluster://`"
            }
            NotAStore::Url(why) => why,
        }
    }
}

impl fmt::Display for NotAStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.problem(), self.help())
    }
}

impl std::error::Error for NotAStore {}
