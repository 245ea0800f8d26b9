//! A rate limiter with sliding windows done right.
//!
//! ```
//! use tidegate::{Limit, Limiter};
//!
//! static PER_USER: Limit = Limit::per_minute(5);
//!
//! fn send(limiter: &Limiter, user: &str) -> Result<(), Box<dyn std::error::Error>> {
//!     limiter.check(user, &PER_USER, 1)?.or_deny()?;
//!     // Reached only if the limit admits the request.
//!     Ok(())
//! }
//!
//! let limiter = Limiter::new();
//! for _ in 0..5 {
//!     send(&limiter, "alice")?;
//! }
//! let denied = send(&limiter, "alice").unwrap_err();
//! println!("{denied}"); // the limit of 5 is reached: retry in 60s
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Limiter`] decides in the memory of this process, with synchronous calls, or over any
//! [`Store`], such as `redis::RedisStore` (feature `redis`), with asynchronous calls. It can also
//! wait until a request passes ([`Limiter::wait`]), hold permits ([`Limiter::acquire`]) and charge
//! estimates that are settled later ([`Limiter::reserve`]).
//!
//! # Choosing an algorithm
//!
//! | name | in any window admits at most | memory per key | |
//! | --- | --- | --- | --- |
//! | `sliding-log` | the limit, exactly | about 3 bytes per request in the window | exact |
//! | `sliding-window` | the limit, always | 64 bytes | the default; capacity may return a little late |
//! | `sliding-counter` | close to twice the limit, for a client that exploits it | a slot of 16 bytes | the least memory |
//! | `fixed-window` | twice the limit, across a boundary | a slot | |
//! | `token-bucket` | the burst plus the limit | 64 bytes | a steady rate |
//! | `concurrency` | the limit, concurrently | 40 bytes per permit | held, not counted |
//!
//! 1. The default, `sliding-window`, never admits more than the limit. Use `sliding-log` if every
//!    unit must also return exactly on time; its memory grows with the limit.
//! 2. Use `sliding-counter` if 64 bytes per key are too much for the number of keys, and an
//!    estimate is enough. On recorded traffic, 0.06 to 20 % of its decisions differ from those of
//!    the log if keys do reach the limit. A client that sends at the end of a window gets close to
//!    twice the limit.
//! 3. Use `token-bucket` in front of something that processes requests at a steady rate, with a
//!    burst as long as the queue in front of it.
//! 4. Use `concurrency`, possibly together with a rate, if requests are slow or vary widely in
//!    duration. A rate does not bound how many requests run concurrently.
//! 5. Use `fixed-window` to match something that is counted by the calendar, such as a bill.
//!
//! ```
//! use tidegate::{Limit, Limiter};
//!
//! let limiter = Limiter::new();
//! let passwords: Limit = "5 per 15m sliding-log".parse()?;
//! let pages: Limit = "100 per 1m".parse()?; // sliding-window
//! let clicks: Limit = "100000 per 1d sliding-counter".parse()?;
//! let printer: Limit = "30 per 1m token-bucket burst 3".parse()?;
//! let reports: Limit = "4 concurrent lease 60s".parse()?;
//! for limit in [passwords, pages, clicks, printer] {
//!     assert!(limiter.check("ann", &limit, 1)?.allowed);
//! }
//! assert!(limiter.acquire(&[tidegate::Check::new("ann", &reports, 1)])?.permit().is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Choosing the limit and the window
//!
//! The limit `L` and the window `W` define both the long-term rate, `L/W`, and the largest burst,
//! which is all of `L`. `60 per 1m` and `1 per 1s` have the same rate, but a page with ten pictures
//! passes only the first. So use both: a short window for bursts, and a long one for the total. A
//! request must pass all of them, and is charged under all or none.
//!
//! ```
//! use tidegate::{Check, Limit, Limiter};
//!
//! let limiter = Limiter::new();
//! let burst: Limit = "20 per 1s".parse()?;
//! let total: Limit = "600 per 1h".parse()?;
//! let both = [Check::new("ann", &burst, 1), Check::new("ann", &total, 1)];
//! let verdict = limiter.check_all(&both)?;
//! assert!(verdict.allowed);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Start with twice the usage of the busiest legitimate client. `tidegate replay` shows on recorded
//! traffic which clients a limit would have denied. An observed check ([`Check::observed`]) shows
//! it on live traffic, without denying anything.
//!
//! # Keys
//!
//! A key identifies who is counted. It can be any bytes. A client that can choose a value freely
//! can have any number of keys, so count by something that is costly to obtain: an account, a
//! verified API key, an address. Combine several values so that they cannot be confused, with a
//! length before each, or with a separator that none of them can contain. The key templates of
//! `tower::Rule` do that automatically.
//!
//! ```
//! use tidegate::{Limit, Limiter};
//!
//! /// `("a:b", "c")` and `("a", "b:c")` are different keys.
//! fn key(org: &str, user: &str) -> String {
//!     format!("{}:{org}{user}", org.len())
//! }
//!
//! let limiter = Limiter::new();
//! let limit: Limit = "1 per 1m sliding-log".parse()?;
//! assert!(limiter.check(key("a:b", "c"), &limit, 1)?.allowed);
//! assert!(limiter.check(key("a", "b:c"), &limit, 1)?.allowed);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Pitfalls
//!
//! **Many people behind one address.** An office, a university or the NAT of a mobile carrier is
//! one IPv4 address; one household has 2^64 IPv6 addresses. Limit addresses generously and accounts
//! strictly, together, and group IPv6 by /64, as `tower::Identity` does.
//!
//! ```
//! use tidegate::{Check, Limit, Limiter};
//!
//! let limiter = Limiter::new();
//! let per_address: Limit = "1000 per 1m".parse()?;
//! let per_account: Limit = "60 per 1m".parse()?;
//! let allowed = |account: &str| -> Result<bool, tidegate::CheckError> {
//!     let checks = [
//!         Check::new("address 192.0.2.1", &per_address, 1),
//!         Check::new(account, &per_account, 1),
//!     ];
//!     Ok(limiter.check_all(&checks)?.allowed)
//! };
//! for _ in 0..60 {
//!     assert!(allowed("account ann")?);
//! }
//! assert!(!allowed("account ann")?);
//! assert!(allowed("account ben")?, "a colleague is not locked out");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Storms at a boundary.** Under a fixed window, all denied clients get the same time to retry,
//! and retry together. With sliding windows the times differ. `retry_after` is exact for each of
//! them, but clients should still add some jitter. A client can also wait instead of being denied
//! ([`Limiter::wait`]): then no request is sent twice.
//!
//! ```
//! use tidegate::{Check, Limit, Limiter, ManualClock, Timestamp};
//! use std::time::Duration;
//!
//! let clock = ManualClock::new(Timestamp::from_micros(0));
//! let limiter = Limiter::builder().clock(clock.clock()).build()?;
//! let fixed: Limit = "1 per 60s fixed-window".parse()?;
//! let sliding: Limit = "1 per 60s sliding-log".parse()?;
//! let mut waits = Vec::new();
//! for key in ["ann", "ben"] {
//!     clock.advance(Duration::from_secs(10));
//!     for limit in [fixed, sliding] {
//!         limiter.check(key, &limit, 1)?.or_deny()?;
//!     }
//! }
//! for key in ["ann", "ben"] {
//!     let wait = |limit| limiter.check(key, limit, 1).map(|denied| denied.retry_after.as_secs());
//!     waits.push((wait(&fixed)?, wait(&sliding)?));
//! }
//! assert_eq!(waits, [(Some(40), Some(50)), (Some(40), Some(60))]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Silent throttling.** A client that does not learn why it is denied, and until when, retries
//! immediately. Send a status, `Retry-After` and the remaining units, as the layer (`tower`) does.
//!
//! ```
//! use tidegate::{Limit, Limiter, RetryAfter};
//!
//! let limiter = Limiter::new();
//! let limit: Limit = "1 per 1m sliding-log".parse()?;
//! limiter.check("ann", &limit, 1)?.or_deny()?;
//! let denied = limiter.check("ann", &limit, 1)?;
//! let answer = match denied.retry_after {
//!     RetryAfter::Never => "413: more than the limit can ever hold".to_owned(),
//!     wait => format!("429: retry after {} s", wait.as_secs().unwrap_or_default()),
//! };
//! assert_eq!(answer, "429: retry after 60 s");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # In a service
//!
//! With feature `tower`, a layer puts limits in front of any HTTP service
//! (`tower::RateLimitLayer`). `config` adds policies from a file, and `redis` shares counts between
//! nodes. `unstable` exports the internals that the server is built from, without a promise of
//! stability.
//!
//! # Contents of a decision
//!
//! A [`Decision`] has `allowed`, `remaining`, `retry_after` and `reset_after`, all exact: the same
//! cost passes at `retry_after`, and not one tick earlier. A denial is a value, and charges nothing
//! unless a check is [consuming](Check::consuming). An error ([`CheckError`]) means that the
//! request was invalid. [`Decision::or_deny`] turns a denial into an error ([`Denied`]). `decided`
//! reports whether the store decided or, because it failed, the fallback ([`OnStoreFailure`]).
//!
//! # Layout
//!
//! - `limiter/`: [`Limiter`], in memory and over any store; `request.rs`, `verdict.rs`: requests
//!   and verdicts;
//! - `store/`: [`Store`], and in `store/memory/` the store in memory;
//! - `fallback.rs`: decisions while a shared store fails; `local_node.rs`: the local memory for
//!   them, which mirrors the store while it works; `wait_queue.rs`: ordered waiting;
//! - `clock.rs`: clocks and timers.

// `unstable` exports the modules that have an `allow`. Dead code in them is found in builds with
// that feature and `tower`.
#[cfg(feature = "policies")]
#[cfg_attr(not(feature = "unstable"), allow(dead_code, unused_imports, reason = "for the server"))]
mod attributes;
mod clock;
#[cfg(feature = "config")]
#[cfg_attr(not(feature = "unstable"), allow(dead_code, unused_imports, reason = "for the server"))]
mod config;
mod fallback;
mod futures;
#[cfg(feature = "policies")]
#[cfg_attr(
    not(all(feature = "tower", feature = "unstable")),
    allow(dead_code, unused_imports, reason = "some of it serves the layer or the server alone")
)]
mod gate;
#[cfg(feature = "policies")]
#[cfg_attr(not(feature = "unstable"), allow(dead_code, unused_imports, reason = "for the server"))]
mod headers;
#[cfg(feature = "policies")]
#[cfg_attr(not(feature = "unstable"), allow(dead_code, unused_imports, reason = "for the server"))]
mod identity;
mod limiter;
mod local_node;
#[cfg(feature = "policies")]
#[cfg_attr(not(feature = "unstable"), allow(dead_code, unused_imports, reason = "for the server"))]
mod policy;
mod request;
#[cfg(feature = "policies")]
#[cfg_attr(not(feature = "unstable"), allow(dead_code, unused_imports, reason = "for the server"))]
mod stats;
mod store;
mod sync;
#[cfg(feature = "policies")]
mod text;
#[cfg(feature = "tower")]
pub mod tower;
mod verdict;
mod wait_queue;

pub use clock::{Clock, ManualClock};
pub use fallback::OnStoreFailure;
pub use limiter::{Acquired, Builder, Limiter, Permit, Reserved, jitter};
pub use request::{Check, CheckError, MAX_CHECKS, Overflow, Request};
pub use store::{
    Failure, MemoryOptions, MemoryStats, MemoryStore, OutOfMemory, PermitOperation, Store,
    StoreError, WhenFull,
};
pub use tidegate_core::{
    Algorithm, Cost, Decided, Decision, DenialReason, Denied, Limit, LimitError, LimitErrorKind,
    PermitId, ResetAfter, RetryAfter, Timestamp,
};
pub use verdict::Verdict;

#[cfg(feature = "policies")]
pub use policy::ParseEnumError;

/// A store on Redis or Valkey that many nodes share.
///
/// [`RedisStore`](redis::RedisStore) is a [`Store`]: [`Builder::build_with_store`] builds a limiter
/// over it.
#[cfg(feature = "redis")]
pub mod redis {
    pub use crate::store::redis::{
        ConnectError, DataLoss, LiveNode, RedisOptions, RedisServer, RedisStats, RedisStore,
        UrlError,
    };
}

#[cfg(feature = "unstable")]
pub mod unstable {
    //! Internals that `tidegate-server` is built from (feature `unstable`).
    //!
    //! These items are not covered by a promise of stability: names and signatures may change in
    //! any release. Programs should use the items at the root of the crate, in `tower` and in
    //! `redis`.
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
    //!
    //! [`ParsedLimit`] is a limit with the burst that its text gives.

    pub use tidegate_core::{ParsedLimit, bounds};

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
}
