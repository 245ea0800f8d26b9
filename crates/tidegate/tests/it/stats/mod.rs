//! What is counted, who is named, what is told, and that none of it grows.

mod bounds;
mod counters;
mod events;
mod masking;
mod sketch;

use std::sync::LazyLock;

use tidegate::unstable::stats::{Decided, LimitStats, Line, Seen, Stats};
use tidegate::{Limit, ManualClock, RetryAfter, Timestamp};

use crate::common::{NOW, at, limit};

/// The limit of lines that do not say which.
static TEN: LazyLock<Limit> = LazyLock::new(|| limit("10 per 1s"));

/// Stats on a clock that tests move.
fn stats() -> (Stats, ManualClock) {
    let clock = ManualClock::new(start());
    (Stats::new(clock.clock()), clock)
}

fn start() -> Timestamp {
    at(NOW)
}

/// A limit's answer that allows and leaves plenty.
fn allowing<'a>(stats: &'a LimitStats, key: &'a [u8]) -> Line<'a> {
    Line {
        stats,
        limit: &TEN,
        key,
        allowed: true,
        remaining: Some(1_000_000),
        retry_after: RetryAfter::Now,
        decided: Decided::Exact,
    }
}

/// A limit's answer that denies.
fn denying<'a>(stats: &'a LimitStats, key: &'a [u8]) -> Line<'a> {
    let retry_after = RetryAfter::from_micros(1_500_000);
    Line { allowed: false, remaining: Some(0), retry_after, ..allowing(stats, key) }
}

/// Records a request of one policy; allowed if all its lines are.
fn record(stats: &Stats, lines: &[Line<'_>]) {
    let allowed = lines.iter().all(|line| line.allowed);
    stats.record(&Seen { lines, allowed, route: Some("/login"), ..Seen::default() });
}
