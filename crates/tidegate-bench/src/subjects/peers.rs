//! Adapters of the other limiters, and the lower bound.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dashmap::DashMap;
use governor::Quota;
use governor::clock::{Clock, DefaultClock};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::keyed::DashMapStateStore;
use limitador::limit::{Context, Limit, Namespace};
use ratelimit::Ratelimiter;
use throttlecrab::PeriodicStore;

use super::{EPOCH_NS, LIMIT, Subject, UNREACHED_LIMIT, UNREACHED_PERIOD_SECS};
use crate::measure::{Outcome, Pass, time_exclusive, time_shared};

type Keyed<S> = governor::RateLimiter<
    String,
    DashMapStateStore<String, S>,
    VirtualClock,
    NoOpMiddleware<Nanos>,
>;

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

/// governor: GCRA over a `DashMap`, the limiter that most Rust programs use.
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
        Governor { limiter: governor::RateLimiter::new(quota, store, VirtualClock::default()) }
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

/// throttlecrab: GCRA over a `HashMap` of strings, behind `&mut self`.
pub struct Throttlecrab {
    /// Only a run with two threads locks it; one thread bypasses the lock, as its users do.
    limiter: Mutex<throttlecrab::RateLimiter<PeriodicStore>>,
}

impl Throttlecrab {
    pub fn new() -> Self {
        Throttlecrab { limiter: Mutex::new(throttlecrab::RateLimiter::new(PeriodicStore::new())) }
    }
}

fn throttlecrab_decide(
    limiter: &mut throttlecrab::RateLimiter<PeriodicStore>,
    now_ns: u64,
    key: &str,
) -> bool {
    let limit = i64::from(LIMIT);
    // Its users pass the system time and pay for reading it.
    black_box(SystemTime::now());
    let now = UNIX_EPOCH + Duration::from_nanos(now_ns);
    matches!(black_box(limiter.rate_limit(key, limit, limit, 60, 1, now)), Ok((true, _)))
}

impl Subject for Throttlecrab {
    fn pass(&mut self, pass: &Pass<'_>) -> Outcome {
        if pass.threads == 1 {
            let limiter = self.limiter.get_mut().expect("no thread panicked");
            return time_exclusive(pass, |now_ns, _, key| {
                throttlecrab_decide(limiter, now_ns, key)
            });
        }
        let limiter = &self.limiter;
        time_shared(pass, |now_ns, _, key| {
            throttlecrab_decide(&mut limiter.lock().expect("no thread panicked"), now_ns, key)
        })
    }

    /// Returns `None`: the store does not expose its length.
    fn tracked_keys(&self) -> Option<u64> {
        None
    }
}

/// Capacity of limitador per key. Its cache evicts by its own policy when full; at twice the
/// capacity it never is.
const LIMITADOR_CAPACITY: u64 = 2;

/// limitador: fixed windows in a `moka` cache, with conditions and variables.
pub struct Limitador {
    limiter: limitador::RateLimiter,
    namespace: Namespace,
}

impl Limitador {
    pub fn new(keys: u32) -> Self {
        let limiter = limitador::RateLimiter::new(LIMITADOR_CAPACITY * u64::from(keys));
        let user = "user".try_into().expect("a variable's name is an expression");
        let (units, seconds) = (u64::from(UNREACHED_LIMIT), UNREACHED_PERIOD_SECS);
        limiter.add_limit(Limit::new("bench", units, seconds, vec![], vec![user]));
        Limitador { limiter, namespace: "bench".into() }
    }
}

impl Subject for Limitador {
    fn pass(&mut self, pass: &Pass<'_>) -> Outcome {
        let (limiter, namespace) = (&self.limiter, &self.namespace);
        time_shared(pass, |_, _, key| {
            let values = HashMap::from([("user".to_owned(), key.clone())]);
            let context = Context::from(values);
            let result = limiter.check_rate_limited_and_update(namespace, &context, 1);
            black_box(result).is_ok_and(|result| !result.limited)
        })
    }

    fn tracked_keys(&self) -> Option<u64> {
        self.limiter.get_counters(&self.namespace).ok().map(|counters| counters.len() as u64)
    }
}

/// ratelimit: a token bucket without keys, so each key gets its own bucket in a map.
#[derive(Default)]
pub struct KeyedRatelimit {
    limiters: DashMap<String, Ratelimiter>,
}

fn bucket() -> Ratelimiter {
    Ratelimiter::builder(u64::from(UNREACHED_LIMIT))
        .period(Duration::from_secs(UNREACHED_PERIOD_SECS))
        .initial_available(u64::from(UNREACHED_LIMIT))
        .build()
        .expect("the bucket's numbers are in range")
}

impl Subject for KeyedRatelimit {
    fn pass(&mut self, pass: &Pass<'_>) -> Outcome {
        let limiters = &self.limiters;
        time_shared(pass, |_, _, key| {
            // A read lock suffices for an existing key; only a new key is cloned.
            if let Some(limiter) = limiters.get(key) {
                return black_box(limiter.try_wait()).is_ok();
            }
            let limiter = limiters.entry(key.clone()).or_insert_with(bucket);
            black_box(limiter.try_wait()).is_ok()
        })
    }

    fn tracked_keys(&self) -> Option<u64> {
        Some(self.limiters.len() as u64)
    }
}

/// The lower bound: counting by index, without any lookup.
pub struct Floor {
    counts: Vec<AtomicU64>,
}

impl Floor {
    pub fn new(keys: u32) -> Self {
        Floor { counts: (0..keys).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Subject for Floor {
    fn pass(&mut self, pass: &Pass<'_>) -> Outcome {
        let counts = &self.counts;
        time_shared(pass, |_, number, _| {
            let before = counts[number as usize].fetch_add(1, Ordering::Relaxed);
            black_box(before) < u64::MAX
        })
    }

    fn tracked_keys(&self) -> Option<u64> {
        let used = self.counts.iter().filter(|count| count.load(Ordering::Relaxed) > 0);
        Some(used.count() as u64)
    }
}
