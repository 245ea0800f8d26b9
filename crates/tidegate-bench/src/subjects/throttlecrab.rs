//! throttlecrab: GCRA over a `HashMap` of strings, behind `&mut self`.

use std::hint::black_box;
use std::sync::Mutex;
use std::time::SystemTime;

use throttlecrab::{PeriodicStore, RateLimiter};

use super::{LIMIT, PERIOD_SECS, Subject};
use crate::measure::{Outcome, Pass, exclusive, shared};

pub struct Throttlecrab {
    /// Only two threads lock it; one thread goes past the lock, as its users do.
    limiter: Mutex<RateLimiter<PeriodicStore>>,
}

impl Throttlecrab {
    pub fn new() -> Self {
        Throttlecrab { limiter: Mutex::new(RateLimiter::new(PeriodicStore::new())) }
    }
}

fn decide(limiter: &mut RateLimiter<PeriodicStore>, key: &str) -> bool {
    let (burst, count) = (i64::from(LIMIT), i64::from(LIMIT));
    let period = i64::from(PERIOD_SECS);
    let result = limiter.rate_limit(key, burst, count, period, 1, SystemTime::now());
    matches!(black_box(result), Ok((true, _)))
}

impl Subject for Throttlecrab {
    fn pass(&mut self, pass: &Pass<'_>) -> Outcome {
        if pass.threads == 1 {
            let limiter = self.limiter.get_mut().expect("no thread panicked");
            return exclusive(pass, |_, key| decide(limiter, key));
        }
        let limiter = &self.limiter;
        shared(pass, |_, key| decide(&mut limiter.lock().expect("no thread panicked"), key))
    }

    /// Its store keeps its length to itself.
    fn tracked_keys(&self) -> Option<u64> {
        None
    }
}
