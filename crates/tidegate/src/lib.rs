//! A rate limiter with sliding windows done right.
//!
//! ```
//! use tidegate::{Limit, Limiter};
//!
//! let limiter = Limiter::new();
//! let limit: Limit = "5 per 1m sliding-log".parse()?;
//! for _ in 0..5 {
//!     assert!(limiter.check("alice", &limit, 1)?.allowed);
//! }
//! let denied = limiter.check("alice", &limit, 1)?;
//! assert!(!denied.allowed);
//! println!("come back in {:?}", denied.retry_after.as_duration());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Choosing an algorithm
//!
//! | name | in any window admits at most | memory per key | |
//! | --- | --- | --- | --- |
//! | `sliding-log` | the limit, exactly | about 3 bytes per request in the window | exact |
//! | `sliding-buckets` | the limit, always | constant | capacity may return a little late |
//! | `sliding-counter` | close to twice the limit, for someone who aims at it | a slot of 16 bytes | the default |
//! | `fixed-window` | twice the limit, across a boundary | a slot | |
//! | `token-bucket` | the burst plus the limit | a slot and 40 bytes | a steady rate |
//! | `concurrency` | the limit at once | 40 bytes per permit | held, not counted |
//!
//! # What a decision says
//!
//! [`Decision`] carries `allowed`, `remaining`, `retry_after` and
//! `reset_after`, all exact: at `retry_after` the same cost passes, one tick
//! earlier it does not. A denial is a value and charges nothing; an error
//! ([`CheckError`]) means that the question made no sense.
//!
//! # Layout
//!
//! - `limiter.rs`: [`Limiter`], what users hold; `check.rs`: what it is asked and answers;
//! - `store/`: [`Store`], and `store/memory/`, the one in this process;
//! - `wait.rs`, `permit.rs`: waiting one's turn, holding a place;
//! - `clock.rs`, `timer.rs`: where time comes from, who wakes whom.

#[cfg(feature = "policies")]
pub mod attributes;
mod check;
mod clock;
#[cfg(feature = "config")]
pub mod config;
#[cfg(feature = "policies")]
pub mod gate;
#[cfg(feature = "policies")]
pub mod headers;
#[cfg(feature = "policies")]
pub mod identity;
mod limiter;
mod permit;
#[cfg(feature = "policies")]
pub mod policy;
#[cfg(feature = "policies")]
pub mod stats;
mod store;
mod sync;
mod timer;
#[cfg(feature = "tower")]
pub mod tower;
mod wait;

pub use check::{Check, CheckError, MAX_CHECKS, Verdict};
pub use clock::{Clock, ManualClock};
pub use limiter::{Builder, Limiter};
pub use permit::{Acquired, Permit};
#[cfg(feature = "redis")]
pub use store::redis;
pub use store::{
    Failure, MemoryOptions, MemoryStats, MemoryStore, OutOfMemory, PermitAct, Request, Store,
    StoreError, WhenFull,
};
pub use tidegate_core::{
    Algorithm, Cost, Decision, Limit, LimitError, LimitErrorKind, PermitId, ResetAfter, RetryAfter,
    Timestamp, bounds,
};
