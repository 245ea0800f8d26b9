//! governor: GCRA over a `DashMap`, the limiter that most Rust programs use.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;
use std::num::NonZeroU32;

use governor::clock::{Clock, DefaultClock};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};

use super::{EPOCH_NS, LIMIT, Subject};
use crate::measure::{Outcome, Pass, time_shared};

type Keyed<S> =
    RateLimiter<String, DashMapStateStore<String, S>, VirtualClock, NoOpMiddleware<Nanos>>;

thread_local! {
    /// The virtual time of this thread's next decision. governor reads time only from a clock.
    static NOW_NS: Cell<u64> = const { Cell::new(EPOCH_NS) };
}

/// Reads the default clock, as users of governor do, but returns the virtual time.
#[derive(Clone, Default)]
pub struct VirtualClock(DefaultClock);

impl Clock for VirtualClock {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        black_box(self.0.now());
        NOW_NS.get().into()
    }
}

pub struct Governor<S: BuildHasher + Clone> {
    limiter: Keyed<S>,
}

impl Governor<RandomState> {
    /// Creates a limiter with the hasher that its documentation uses.
    pub fn with_default_hasher() -> Self {
        Governor::new(RandomState::default())
    }
}

impl Governor<foldhash::fast::RandomState> {
    /// Creates a limiter with foldhash, to show how much of the difference is the hasher.
    pub fn with_foldhash() -> Self {
        Governor::new(foldhash::fast::RandomState::default())
    }
}

impl<S: BuildHasher + Clone> Governor<S> {
    fn new(hasher: S) -> Self {
        let quota = Quota::per_minute(NonZeroU32::new(LIMIT).expect("the limit is not zero"));
        // A limiter reads its clock when it is created.
        NOW_NS.set(EPOCH_NS);
        let store = DashMapStateStore::with_hasher(hasher);
        Governor { limiter: RateLimiter::new(quota, store, VirtualClock::default()) }
    }

    #[inline(always)]
    pub fn decide(&self, now_ns: u64, key: &String) -> bool {
        NOW_NS.set(now_ns);
        black_box(self.limiter.check_key(key)).is_ok()
    }

    /// Drops expired keys. governor can only do that for all keys in one call.
    pub fn sweep(&self, now_ns: u64) {
        NOW_NS.set(now_ns);
        self.limiter.retain_recent();
        assert_eq!(self.limiter.len(), 0, "governor still holds expired keys");
    }
}

impl<S: BuildHasher + Clone + Send + Sync> Subject for Governor<S> {
    fn pass(&mut self, pass: &Pass<'_>) -> Outcome {
        let this = &*self;
        time_shared(pass, |now_ns, _, key| this.decide(now_ns, key))
    }

    fn tracked_keys(&self) -> Option<u64> {
        Some(self.limiter.len() as u64)
    }
}
