//! The rate-limit algorithms of tidegate as pure functions.
//!
//! Every algorithm here is a transition over plain data: a [`State`], an [`Attempt`]
//! (cost and time) and a [`Limit`] give a [`Decision`] and the next state. This
//! crate uses no clock, I/O, lock, async or float, and because it is `no_std`
//! the compiler enforces most of that. The stores of tidegate keep states and
//! apply these transitions to them.
//!
//! ```
//! use tidegate_core::{Attempt, Limit, RetryAfter, State, Timestamp};
//!
//! let limit: Limit = "2 per 10s sliding-log".parse()?;
//! let mut state = State::new(&limit);
//! let at = |secs: u64| Timestamp::from_micros(secs * 1_000_000);
//!
//! assert!(state.decide(&limit, &Attempt::new(1, at(100))).allowed);
//! assert!(state.decide(&limit, &Attempt::new(1, at(104))).allowed);
//! let denied = state.decide(&limit, &Attempt::new(1, at(107)));
//! assert_eq!(denied.retry_after, RetryAfter::Micros(3_000_000));
//! # Ok::<(), tidegate_core::LimitError>(())
//! ```
//!
//! The modules, in reading order:
//!
//! - [`limit`](Limit): a validated limit, and its text form in `limit/text.rs`;
//! - `algorithms/`: a file or directory for each algorithm, with its idea, its bound and its cost;
//! - `entries.rs`: the packed log of `sliding-log`;
//! - [`State`]: dispatch over the six algorithms;
//! - [`Packed`]: a state in the fixed number of bits that a store keeps;
//! - [`LeasedState`] and [`Lease`]: units that a node takes from a shared store and spends locally;
//! - [`View`]: the contents of a state, for display.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]
#![warn(clippy::float_arithmetic)]

extern crate alloc;

mod algorithms;
mod attempt;
mod decision;
mod dyn_state;
mod entries;
mod lease;
mod limit;
mod packed;
mod state;
#[cfg(feature = "std")]
mod system_time;
mod time;
mod view;

pub use algorithms::{
    concurrency::Permits,
    fixed_window::FixedWindow,
    sliding_counter::SlidingCounter,
    sliding_log::SlidingLog,
    sliding_window::{Cell, SlidingWindow, WindowForm},
    token_bucket::TokenBucket,
};
pub use attempt::{Attempt, Cost, PermitId};
pub use decision::{Decided, Decision, DenialReason, Denied, ResetAfter, RetryAfter};
pub use dyn_state::DynState;
pub use entries::{Entries, Entry};
pub use lease::{
    GiveBack, Grant, GrantId, Lease, LeaseRequest, LeasedState, MAX_GRANTS, MAX_LEASE_US,
    MIN_LEASE_US,
};
pub use limit::{Algorithm, Limit, LimitError, LimitErrorKind, ParsedLimit, bounds};
pub use packed::{Packed, PackedKind, PackedSize, PackedWords};
pub use state::State;
pub use time::Timestamp;
pub use view::{CellView, Ratio, View};
