//! All memory is bounded, whatever names clients invent.

use std::time::Duration;

use tidegate::unstable::policy::Mode;
use tidegate::unstable::stats::{
    MAX_SERIES, MAX_TRACKED_POLICIES, OTHER, RankBy, SKETCH_ENTRIES, Stats,
};

use super::{allowing, denying, record, stats};
use crate::common::limit;

fn total_allowed(stats: &Stats) -> u64 {
    stats.series().iter().map(|series| series.allowed[0]).sum()
}

#[test]
fn unused_series_are_replaced() {
    let (stats, _) = stats();
    let ten = limit("10 per 1s");
    let kept = stats.limit("kept", &ten, Mode::Enforce);
    let reloads = 3 * MAX_SERIES as u64;
    for number in 0..reloads {
        let gone = stats.limit(&format!("policy-{number}"), &ten, Mode::Enforce);
        record(&stats, &[allowing(&gone, b"a")]);
        record(&stats, &[allowing(&kept, b"a")]);
    }
    let all = stats.series();
    assert!(all.len() <= MAX_SERIES + 1, "{} series", all.len());
    let allowed =
        |name: &str| all.iter().find(|one| &*one.policy == name).map(|one| one.allowed[0]);
    assert_eq!(allowed("kept"), Some(reloads));
    assert_eq!(allowed(&format!("policy-{}", reloads - 1)), Some(1));
    assert_eq!(allowed("policy-0"), None);
    // Sums never decrease: counts of removed series are added to another series.
    assert_eq!(total_allowed(&stats), 2 * reloads);
}

#[test]
fn series_beyond_the_bound_share_one() {
    let (stats, _) = stats();
    let ten = limit("10 per 1s");
    let held: Vec<_> = (0..MAX_SERIES + 100)
        .map(|number| stats.limit(&format!("policy-{number}"), &ten, Mode::Enforce))
        .collect();
    held.iter().for_each(|one| record(&stats, &[allowing(one, b"a")]));
    let all = stats.series();
    assert_eq!(all.len(), MAX_SERIES + 1);
    let other = all.iter().find(|one| &*one.policy == OTHER).expect("another");
    assert_eq!(other.allowed[0], 100);
    // The same names use the same counts again.
    let again = stats.limit("policy-7", &ten, Mode::Enforce);
    record(&stats, &[allowing(&again, b"a")]);
    let seventh = stats.series().into_iter().find(|one| &*one.policy == "policy-7");
    assert_eq!(seventh.expect("the series is still listed").allowed[0], 2);
}

#[test]
fn top_keys_use_bounded_memory() {
    let (stats, _) = stats();
    let ten = limit("10 per 1s");
    let policies: Vec<_> = (0..MAX_TRACKED_POLICIES + 10)
        .map(|number| stats.limit(&format!("policy-{number}"), &ten, Mode::Enforce))
        .collect();
    for policy in &policies {
        for key in 0..2 * SKETCH_ENTRIES {
            record(&stats, &[denying(policy, key.to_string().as_bytes())]);
        }
    }
    let top = stats.top(RankBy::Denied, None, usize::MAX);
    assert_eq!(top.keys.entries.len(), (MAX_TRACKED_POLICIES + 1) * SKETCH_ENTRIES);
    assert_eq!(
        stats.top(RankBy::Denied, Some(OTHER), usize::MAX).keys.entries.len(),
        SKETCH_ENTRIES
    );
    assert_eq!(top.routes.entries.len(), MAX_TRACKED_POLICIES + 1);
}

#[test]
fn denials_of_new_keys_do_not_allocate_when_full() {
    let (stats, clock) = stats();
    let ten = stats.limit("p", &limit("10 per 1s"), Mode::Enforce);
    let keys: Vec<_> = (0..40_000_u64).map(u64::to_be_bytes).collect();
    let deny = |keys: &[[u8; 8]]| {
        for key in keys {
            clock.advance(Duration::from_millis(1));
            record(&stats, &[denying(&ten, key)]);
        }
    };
    // Enough events to fill the ring buffer as well.
    let (first, more) = keys.split_at(39_000);
    deny(first);
    let measured = allocation_counter::measure(|| deny(more));
    assert_eq!(measured.count_total, 0);
}
