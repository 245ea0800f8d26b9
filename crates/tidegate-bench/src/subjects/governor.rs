//! governor: GCRA over a `DashMap`, the limiter most Rust programs use.

use std::hash::BuildHasher;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::{Clock, DefaultClock, FakeRelativeClock};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};

use super::{LIMIT, PERIOD_SECS, Subject};
use crate::measure::{Outcome, Pass, shared};

type Keyed<S, C> =
    RateLimiter<String, DashMapStateStore<String, S>, C, NoOpMiddleware<<C as Clock>::Instant>>;

pub struct Governor<S: BuildHasher + Clone> {
    limiter: Keyed<S, DefaultClock>,
}

/// Built the way its documentation shows.
pub fn as_users_get_it() -> Governor<std::hash::RandomState> {
    Governor { limiter: RateLimiter::keyed(quota()) }
}

/// With a hasher as fast as ours: how much of the difference is the hash?
pub fn with_foldhash() -> Governor<foldhash::fast::RandomState> {
    let hasher = foldhash::fast::RandomState::default();
    Governor { limiter: RateLimiter::dashmap_with_hasher(quota(), hasher) }
}

fn quota() -> Quota {
    let burst = NonZeroU32::new(LIMIT).expect("the limit is not zero");
    let interval = Duration::from_secs(u64::from(PERIOD_SECS)) / LIMIT;
    Quota::with_period(interval).expect("the interval is not zero").allow_burst(burst)
}

impl<S: BuildHasher + Clone + Send + Sync> Subject for Governor<S> {
    fn pass(&mut self, pass: &Pass<'_>) -> Outcome {
        let limiter = &self.limiter;
        shared(pass, |_, key| black_box(limiter.check_key(key)).is_ok())
    }

    fn tracked_keys(&self) -> Option<u64> {
        Some(self.limiter.len() as u64)
    }
}

/// governor on a clock set by hand, for the pauses.
pub struct Expiring {
    limiter: Keyed<std::hash::RandomState, FakeRelativeClock>,
    clock: FakeRelativeClock,
}

impl Expiring {
    pub fn new() -> Self {
        let clock = FakeRelativeClock::default();
        let limiter = RateLimiter::dashmap_with_clock(quota(), clock.clone());
        Expiring { limiter, clock }
    }

    pub fn decide(&self, key: &String) -> bool {
        black_box(self.limiter.check_key(key)).is_ok()
    }

    /// Lets everything expire, and drops it the only way governor has: in one call.
    pub fn expire(&self) {
        self.clock.advance(Duration::from_secs(u64::from(PERIOD_SECS) * 3));
        self.limiter.retain_recent();
        assert_eq!(self.limiter.len(), 0, "governor still holds expired keys");
    }
}
