//! Internals that `tidegate-server` is built from (feature `unstable`).
//!
//! Nothing here is covered by a promise of stability: names and signatures may change in any
//! release. What a program needs is at the root of the crate, in `tower` and in `redis`.
//!
//! | module | contents | feature |
//! | --- | --- | --- |
//! | `attributes` | the facts of a request | `policies` |
//! | `identity` | the client's address behind proxies | `policies` |
//! | `policy` | policies: conditions, key templates, limits, selection | `policies` |
//! | `gate` | policies in front of a limiter | `policies` |
//! | `headers` | rate limit fields and problem documents | `policies` |
//! | `stats` | counters, top keys, events, masked keys | `policies` |
//! | `config` | policies and settings from YAML, and from Envoy's format | `config` |
//! | `redis` | the wire format of the Redis store | `redis` |
//! | `bounds` | bounds of limits | |

pub use tidegate_core::bounds;

#[cfg(feature = "policies")]
#[doc(inline)]
pub use crate::{attributes, gate, headers, identity, policy, stats};

#[cfg(feature = "config")]
#[doc(inline)]
pub use crate::config;

/// The wire format of the Redis store, for tests and benchmarks that send scripts themselves.
#[cfg(feature = "redis")]
pub mod redis {
    pub use crate::store::redis::wire::*;
    pub use crate::store::redis::{ACL_RULES, MAX_DENY_CACHE, check_url};
}
