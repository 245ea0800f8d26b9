//! ratelimit: a token bucket without keys, so each key gets its own bucket in a map.

use std::hint::black_box;
use std::time::Duration;

use dashmap::DashMap;
use ratelimit::Ratelimiter;

use super::{Subject, UNREACHED_LIMIT, UNREACHED_PERIOD_SECS};
use crate::measure::{Outcome, Pass, time_shared};

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
