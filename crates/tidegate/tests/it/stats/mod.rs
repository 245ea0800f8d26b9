//! Statistics: counters, rankings and events, and their bounds.

mod bounds;
mod counters;
mod events;
mod masking;
mod requests;
mod top_keys;

use std::sync::LazyLock;

use tidegate::unstable::stats::{Decided, LimitRecord, LimitStats, RequestRecord, Stats};
use tidegate::{Limit, ManualClock, RetryAfter, Timestamp};

use crate::common::{NOW, at, limit};

/// The limit of records that do not specify one.
static TEN: LazyLock<Limit> = LazyLock::new(|| limit("10 per 1s"));

/// Returns stats on a manual clock.
fn stats() -> (Stats, ManualClock) {
    let clock = ManualClock::new(start());
    (Stats::new(clock.clock()), clock)
}

fn start() -> Timestamp {
    at(NOW)
}

/// Returns the result of a limit that allows, with many units left.
fn allowing<'a>(stats: &'a LimitStats, key: &'a [u8]) -> LimitRecord<'a> {
    LimitRecord {
        stats,
        limit: &TEN,
        key,
        allowed: true,
        remaining: Some(1_000_000),
        retry_after: RetryAfter::Now,
        decided: Decided::Exact,
    }
}

/// Returns the result of a limit that denies.
fn denying<'a>(stats: &'a LimitStats, key: &'a [u8]) -> LimitRecord<'a> {
    let retry_after = RetryAfter::from_micros(1_500_000);
    LimitRecord { allowed: false, remaining: Some(0), retry_after, ..allowing(stats, key) }
}

/// Records a request of one policy, which is allowed if all results are.
fn record(stats: &Stats, limit_records: &[LimitRecord<'_>]) {
    let allowed = limit_records.iter().all(|limit_record| limit_record.allowed);
    stats.record(&RequestRecord {
        limits: limit_records,
        allowed,
        route: Some("/login"),
        ..RequestRecord::default()
    });
}
