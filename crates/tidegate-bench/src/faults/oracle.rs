//! Computes how much was admitted from the records of the callers alone.
//!
//! A caller does not know when Redis decided, only when it sent the request and received the
//! answer. So only calls that certainly lie within one window are counted: those sent at or after
//! some call was sent and answered before a window has passed since. If their number exceeds the
//! bound, the true number does too.

use std::time::Duration;

use tidegate::unstable::stats::Decided;

use super::FaultResult;
use super::nodes::{CallRecord, LEASED_LIMIT, LIMIT, NODE_SHARE, NODES, Policy, WINDOW};
use crate::cli::name_of;

/// Returns the documented maximum that may be admitted in a window.
pub fn bound(result: &FaultResult, policy: Policy) -> u32 {
    let resets = result.fault.limit_resets();
    match policy {
        // While the store fails, every node admits its share in addition to earlier admissions.
        Policy::Local => LIMIT * (1 + resets) + NODES * NODE_SHARE,
        // Uncounted admissions have an unlimited number, so they are excluded here.
        Policy::Allow | Policy::Deny => LIMIT * (1 + resets),
        // When Redis forgets everything, the units that are out and those that were used before are
        // at most the limit together.
        Policy::Leased if resets > 0 => LEASED_LIMIT * (1 + resets),
        Policy::Leased => bound_after_loss(result),
    }
}

/// Returns the maximum that may be admitted of the leased key in a window that begins after Redis
/// has lost its keys: the limit, and the units that were out if Redis has forgotten them.
fn bound_after_loss(result: &FaultResult) -> u32 {
    let forgotten = if result.fault.forgets_leases() { result.units_out } else { 0 };
    LEASED_LIMIT.saturating_add(u32::try_from(forgotten).unwrap_or(u32::MAX))
}

/// Returns the maximum admitted in any window for any key.
pub fn max_in_window(result: &FaultResult, policy: Policy) -> u32 {
    let keys = 0..policy.keys();
    keys.map(|key| max_in_window_of_key(&result.calls, policy, key)).max().unwrap_or(0)
}

fn max_in_window_of_key(calls: &[CallRecord], policy: Policy, key: u8) -> u32 {
    let counted = |call: &&CallRecord| {
        call.allowed
            && (call.policy, call.key) == (policy, key)
            && call.decided != Decided::FailedOpen
    };
    max_admitted(calls.iter().filter(counted).map(|call| (call.sent, call.received)), WINDOW)
}

/// Returns the maximum number of calls that certainly lie in one window. A call is the times at
/// which it was sent and answered. A window is counted too low if calls take longer than it.
pub fn max_admitted(calls: impl Iterator<Item = (Duration, Duration)>, window: Duration) -> u32 {
    let (mut sent, mut received): (Vec<_>, Vec<_>) = calls.unzip();
    sent.sort_unstable();
    received.sort_unstable();
    let windows = sent.iter().enumerate().map(|(earlier, &begin)| {
        let answered = received.partition_point(|received| *received < begin + window);
        answered.saturating_sub(earlier)
    });
    u32::try_from(windows.max().unwrap_or(0)).unwrap_or(u32::MAX)
}

/// Describes the violated expectations about leases.
fn lease_violations(result: &FaultResult) -> Vec<String> {
    let mut violations = Vec::new();
    if result.units_out == 0 {
        violations.push("no units were out when the fault began".to_owned());
    }
    if result.units_left_behind > 0 {
        let units = result.units_left_behind;
        violations.push(format!("{units} units still count a window after their leases ended"));
    }
    // Calls are in the order in which they were sent.
    let first = result.calls.partition_point(|call| call.sent < result.lost);
    let most = max_in_window_of_key(&result.calls[first..], Policy::Leased, 0);
    let bound = bound_after_loss(result);
    if most > bound {
        violations.push(format!(
            "Leased admitted {most} in a window after the fault; the bound is {bound}"
        ));
    }
    violations
}

/// Describes all violated expectations.
pub fn violations(result: &FaultResult) -> Vec<String> {
    let fault = result.fault;
    let mut violations = lease_violations(result);
    for policy in Policy::ALL {
        let (most, bound) = (max_in_window(result, policy), bound(result, policy));
        if most > bound {
            violations
                .push(format!("{policy:?} admitted {most} in a window; the bound is {bound}"));
        }
        let strange = |call: &&CallRecord| call.policy == policy && !policy.may_answer(call);
        if let Some(call) = result.calls.iter().find(strange) {
            violations.push(format!(
                "{policy:?} gave an unexpected answer: decided {:?}, allowed {}",
                call.decided, call.allowed
            ));
        }
        let exact = |call: &&CallRecord| call.policy == policy && call.decided == Decided::Exact;
        let failed = |call: &&CallRecord| call.policy == policy && call.decided != Decided::Exact;
        if !result.calls.iter().any(|call| exact(&call)) {
            violations.push(format!("{policy:?} never had an exact answer"));
        }
        if fault.makes_store_unavailable() && !result.calls.iter().any(|call| failed(&call)) {
            violations.push(format!("{policy:?} never reported that the store was unavailable"));
        }
        if !result.calls.iter().filter(exact).any(|call| call.sent >= result.ended) {
            violations.push(format!("{policy:?} had no exact answer after the end of the fault"));
        }
    }
    let name = name_of(&fault);
    violations.into_iter().map(|violation| format!("{name}: {violation}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(sent_ms: u64, received_ms: u64) -> CallRecord {
        let (sent, received) = (Duration::from_millis(sent_ms), Duration::from_millis(received_ms));
        CallRecord {
            sent,
            received,
            policy: Policy::Deny,
            key: 0,
            allowed: true,
            decided: Decided::Exact,
            remaining: None,
        }
    }

    #[test]
    fn counts_only_calls_certainly_in_one_window() {
        let window_ms = u64::try_from(WINDOW.as_millis()).expect("a short window");
        let within = [call(0, 1), call(1, 2), call(window_ms - 2, window_ms - 1)];
        assert_eq!(max_in_window_of_key(&within, Policy::Deny, 0), 3);
        // An admission exactly one window after another is not in the same window.
        let two = [call(0, 1), call(1, window_ms), call(2, window_ms)];
        assert_eq!(max_in_window_of_key(&two, Policy::Deny, 0), 2);
        let uncertain = [call(0, 1), call(1, window_ms), call(2, window_ms + 1)];
        assert_eq!(max_in_window_of_key(&uncertain, Policy::Deny, 0), 1);
        assert_eq!(max_in_window_of_key(&within, Policy::Deny, 1), 0);
    }
}
