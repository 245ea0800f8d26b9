//! A rate limiter with sliding windows done right.
//!
//! ```
//! use tidegate::{Limit, Limiter};
//!
//! static PER_USER: Limit = Limit::per_minute(5);
//!
//! fn send(limiter: &Limiter, user: &str) -> Result<(), Box<dyn std::error::Error>> {
//!     limiter.check(user, &PER_USER, 1)?.or_deny()?;
//!     // Only what the limit admits comes here.
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
//! A [`Limiter`] decides in this process's memory, with plain calls, or over any [`Store`], such as
//! `redis::RedisStore` (feature `redis`), with calls that are awaited. It also waits
//! ([`Limiter::wait`]), holds permits ([`Limiter::acquire`]) and charges estimates that are settled
//! later ([`Limiter::reserve`]).
//!
//! # Choosing an algorithm
//!
//! | name | in any window admits at most | memory per key | |
//! | --- | --- | --- | --- |
//! | `sliding-log` | the limit, exactly | about 3 bytes per request in the window | exact |
//! | `sliding-window` | the limit, always | 64 bytes | the default; capacity may return a little late |
//! | `sliding-counter` | close to twice the limit, for someone who aims at it | a slot of 16 bytes | the least memory |
//! | `fixed-window` | twice the limit, across a boundary | a slot | |
//! | `token-bucket` | the burst plus the limit | 64 bytes | a steady rate |
//! | `concurrency` | the limit at once | 40 bytes per permit | held, not counted |
//!
//! 1. The default, `sliding-window`, never admits more than the limit. Take `sliding-log` if
//!    every unit must also return exactly on time; its memory grows with the limit.
//! 2. Are there so many keys that 64 bytes for each are too much, and is an estimate enough? Take
//!    `sliding-counter`. On recorded traffic 0.06 to 20 % of its decisions differ from the log's
//!    where keys are really limited. A client that sends at the end of a window gets close to
//!    twice the limit.
//! 3. Is there a steady rate behind it that can only take so much? Take `token-bucket`, with a
//!    burst as long as the queue in front of it.
//! 4. Are requests slow, or of very different length? No rate bounds how many run at once:
//!    take `concurrency`, perhaps beside a rate.
//! 5. Does somebody else count by the calendar, as a bill does? Take `fixed-window`.
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
//! The limit `L` and the window `W` say two things at once: the rate over a long time, `L/W`, and how
//! much may come at once, all of `L`. `60 per 1m` and `1 per 1s` are the same rate, and a page with
//! ten pictures passes only the first. So say both: a short window for bursts, a long one for
//! the total. A request must pass all of them and is charged under all or none.
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
//! Begin with what is there: the busiest honest client, times two. `tidegate replay` shows on recorded
//! traffic whom a limit would have denied, and an observed check ([`Check::observed`]) shows it
//! live, without denying anybody.
//!
//! # Keys
//!
//! A key is any bytes: who is counted. Whoever can choose a value freely can have as many keys as
//! they like, so count by what is dear to get: an account, an API key that was checked, an address. Put
//! several together so that they cannot be confused, with a length before each or with a separator that
//! neither can contain; the key templates of `tower::Rule` do that by themselves.
//!
//! ```
//! use tidegate::{Limit, Limiter};
//!
//! /// `("a:b", "c")` and `("a", "b:c")` are two keys.
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
//! **Many people behind one address.** An office, a university or a mobile carrier's NAT is one IPv4
//! address; one household is 2^64 IPv6 addresses. Limit addresses generously and accounts
//! strictly, together; and group IPv6 by /64, as `tower::Identity` does.
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
//! **Storms at a boundary.** Under a fixed window everybody who was denied is told the same moment to
//! come back, and comes. With sliding windows the moments differ; `retry_after` is exact for each, and
//! clients should add some jitter all the same. Who would rather wait than be denied can
//! ([`Limiter::wait`]): then nobody asks twice.
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
//! **Silent throttling.** A client that is not told why it is denied, and until when, tries again at
//! once. Send a status, `Retry-After` and what is left: the layer (`tower`)
//! sends it.
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
//! With feature `tower` a layer puts limits in front of any HTTP service (`tower::RateLimitLayer`);
//! `config` adds policies from a file, and `redis` shares counts between nodes. The feature
//! `unstable` has the internals that the server is built from, without a promise of stability.
//!
//! # What a decision says
//!
//! [`Decision`] carries `allowed`, `remaining`, `retry_after` and
//! `reset_after`, all exact: at `retry_after` the same cost passes, one tick
//! earlier it does not. A denial is a value and charges nothing; an error
//! ([`CheckError`]) means that the question made no sense. [`Decision::or_deny`] makes an error of a
//! denial ([`Denied`]). `decided` says whether the store decided or, because it failed, something
//! else ([`OnStoreFailure`]).
//!
//! # Layout
//!
//! - `limiter/`: [`Limiter`], in memory and over any store; `check.rs`: requests and verdicts;
//! - `store/`: [`Store`], and `store/memory/`, the one in this process;
//! - `fallback/`: answers while a shared store fails; `wait/`: queues of those who wait;
//! - `clock.rs`, `timer.rs`: where time comes from, who wakes whom.

// `unstable` exports the modules that have an `allow`. Dead code in them is found in builds with that
// feature and `tower`.
#[cfg(feature = "policies")]
mod asker;
#[cfg(feature = "policies")]
#[cfg_attr(not(feature = "unstable"), allow(dead_code, unused_imports, reason = "for the server"))]
mod attributes;
mod block_on;
#[cfg(feature = "policies")]
mod buffer;
#[cfg(feature = "policies")]
mod char_boundary;
mod check;
mod clock;
#[cfg(feature = "config")]
#[cfg_attr(not(feature = "unstable"), allow(dead_code, unused_imports, reason = "for the server"))]
mod config;
mod fallback;
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
mod join;
mod limiter;
#[cfg(feature = "policies")]
#[cfg_attr(not(feature = "unstable"), allow(dead_code, unused_imports, reason = "for the server"))]
mod policy;
#[cfg(feature = "policies")]
#[cfg_attr(not(feature = "unstable"), allow(dead_code, unused_imports, reason = "for the server"))]
mod stats;
mod store;
mod sync;
mod timer;
#[cfg(feature = "tower")]
pub mod tower;
#[cfg(feature = "unstable")]
pub mod unstable;
mod wait;

pub use check::{Check, CheckError, MAX_CHECKS, Overflow, Verdict};
pub use clock::{Clock, ManualClock};
pub use fallback::OnStoreFailure;
pub use limiter::{Acquired, Builder, Limiter, Permit, Reserved, jitter};
pub use store::{
    Failure, MemoryOptions, MemoryStats, MemoryStore, OutOfMemory, PermitAct, Request, Store,
    StoreError, WhenFull,
};
pub use tidegate_core::{
    Algorithm, Cost, Decided, Decision, DenialReason, Denied, Limit, LimitError, LimitErrorKind,
    PermitId, ResetAfter, RetryAfter, Timestamp,
};

#[cfg(feature = "policies")]
pub use policy::ParseEnumError;

/// State shared by many nodes on Redis or Valkey.
///
/// [`RedisStore`](redis::RedisStore) is a [`Store`]: [`Builder::over`] makes a limiter of it.
#[cfg(feature = "redis")]
pub mod redis {
    pub use crate::store::redis::{ConnectError, RedisOptions, RedisStats, RedisStore, UrlError};
}
