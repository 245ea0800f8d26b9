//! limitador: fixed windows in a `moka` cache, with conditions and variables.

use std::collections::HashMap;
use std::hint::black_box;

use limitador::RateLimiter;
use limitador::limit::{Context, Limit, Namespace};

use super::{Subject, UNREACHED_LIMIT, UNREACHED_PERIOD_SECS};
use crate::measure::{Outcome, Pass, time_shared};

/// Capacity per key. The cache evicts by its own policy when full; at twice the capacity it never
/// is.
const ROOM: u64 = 2;

pub struct Limitador {
    limiter: RateLimiter,
    namespace: Namespace,
}

impl Limitador {
    pub fn new(keys: u32) -> Self {
        let limiter = RateLimiter::new(ROOM * u64::from(keys));
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
