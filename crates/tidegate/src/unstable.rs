//! Internals that `tidegate-server` is built from (feature `unstable`).
//!
//! These items are not covered by a promise of stability: names and signatures may change in any
//! release. Programs should use the items at the root of the crate, in `tower` and in `redis`.
//!
//! | module | contents | feature |
//! | --- | --- | --- |
//! | `attributes` | the attributes of a request | `policies` |
//! | `identity` | the client's address behind proxies | `policies` |
//! | `policy` | policies: conditions, key templates, limits, selection | `policies` |
//! | `gate` | policies in front of a limiter | `policies` |
//! | `headers` | rate limit fields and problem documents | `policies` |
//! | `stats` | counters, top keys, events, masked keys | `policies` |
//! | `config` | policies and settings from YAML, and from Envoy's format | `config` |
//! | `redis` | the wire format of the Redis store | `redis` |
//! | `bounds` | bounds of limits | |

pub use tidegate_core::bounds;

/// The attributes of a request.
#[cfg(feature = "policies")]
pub mod attributes {
    pub use crate::attributes::*;
}

/// Policies and settings from YAML.
#[cfg(feature = "config")]
pub mod config {
    pub use crate::config::*;
}

/// Policies in front of a limiter.
#[cfg(feature = "policies")]
pub mod gate {
    pub use crate::gate::*;
}

/// Rate limit fields and problem documents.
#[cfg(feature = "policies")]
pub mod headers {
    pub use crate::headers::*;
}

/// The client's address, behind proxies.
#[cfg(feature = "policies")]
pub mod identity {
    pub use crate::identity::*;
}

/// Policies: conditions, key templates, limits, selection.
#[cfg(feature = "policies")]
pub mod policy {
    pub use crate::policy::*;
}

/// Counters, top keys, events, masked keys.
#[cfg(feature = "policies")]
pub mod stats {
    pub use crate::stats::*;
}

/// The wire format of the Redis store, for tests and benchmarks that send scripts themselves.
#[cfg(feature = "redis")]
pub mod redis {
    pub use crate::store::redis::wire::*;
}
