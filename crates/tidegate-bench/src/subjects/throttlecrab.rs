//! throttlecrab: GCRA over a `HashMap` of strings, behind `&mut self`.

use std::hint::black_box;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use throttlecrab::{PeriodicStore, RateLimiter};

use super::{LIMIT, Subject};
use crate::measure::{Outcome, Pass, time_exclusive, time_shared};

pub struct Throttlecrab {
    /// Only a run with two threads locks it; one thread bypasses the lock, as its users do.
    limiter: Mutex<RateLimiter<PeriodicStore>>,
}

impl Throttlecrab {
    pub fn new() -> Self {
        Throttlecrab { limiter: Mutex::new(RateLimiter::new(PeriodicStore::new())) }
    }
}

fn decide(limiter: &mut RateLimiter<PeriodicStore>, now_ns: u64, key: &str) -> bool {
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
            return time_exclusive(pass, |now_ns, _, key| decide(limiter, now_ns, key));
        }
        let limiter = &self.limiter;
        time_shared(pass, |now_ns, _, key| {
            decide(&mut limiter.lock().expect("no thread panicked"), now_ns, key)
        })
    }

    /// Returns `None`: the store does not expose its length.
    fn tracked_keys(&self) -> Option<u64> {
        None
    }
}
