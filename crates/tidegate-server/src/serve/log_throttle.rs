//! Events that come in bursts, with one log line for each burst.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// After a line, further events are only counted for this long.
const QUIET: Duration = Duration::from_secs(10);

/// Decides which of many equal events are logged.
#[derive(Debug, Default)]
pub struct Bursts(Mutex<Burst>);

#[derive(Debug, Default)]
struct Burst {
    logged: Option<Instant>,
    suppressed: u64,
}

impl Bursts {
    /// Notes an event. If it is to be logged, returns how many were not since the last one
    /// that was.
    pub fn note(&self, now: Instant) -> Option<u64> {
        let mut burst = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if burst.logged.is_some_and(|logged| now.saturating_duration_since(logged) < QUIET) {
            burst.suppressed += 1;
            return None;
        }
        burst.logged = Some(now);
        Some(std::mem::take(&mut burst.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_per_burst_is_logged() {
        let bursts = Bursts::default();
        let start = Instant::now();
        let rows = [(0, Some(0)), (50, None), (9_999, None), (10_000, Some(2)), (10_001, None)];
        for (ms, expected) in rows {
            assert_eq!(bursts.note(start + Duration::from_millis(ms)), expected, "{ms} ms");
        }
        assert_eq!(bursts.note(start + Duration::from_secs(60)), Some(1));
    }
}
