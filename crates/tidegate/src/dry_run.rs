//! Checks that are decided without charging anything, for requests that wait and for fallbacks.

use std::time::Duration;

use tidegate_core::{Algorithm, Cost, Limit};

use crate::request::Checks;
use crate::{Check, MAX_CHECKS, Overflow};

/// A limit that never admits anything.
pub(crate) fn deny_all() -> Option<Limit> {
    Limit::new(0, Duration::from_millis(1), Algorithm::FixedWindow).ok()
}

/// Returns checks that get the same decisions and charge nothing. A check that never passes is
/// added before them, so the request is denied and charges nothing. It has the key of the first
/// check, so that it is decided in the same shard or slot. A request that already has
/// [`MAX_CHECKS`] is peeked at instead, and decided as a cost of 1.
pub(crate) fn dry_run_checks<'c>(checks: &[Check<'c>], deny_all: &'c Option<Limit>) -> Checks<'c> {
    match (deny_all, checks) {
        (Some(deny_all), [first, ..]) if checks.len() < MAX_CHECKS => {
            let before = Check::new(first.key, deny_all, 1_u64);
            let dry_run = checks.iter().map(|check| Check { overflow: Overflow::Refuse, ..*check });
            std::iter::once(before).chain(dry_run).collect()
        }
        _ => checks.iter().map(|check| Check { cost: Cost::PEEK, ..*check }).collect(),
    }
}
