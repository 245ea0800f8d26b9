//! Computes how much was admitted from the records of the callers alone.
//!
//! A caller does not know when Redis decided, only when it sent the request and received the
//! answer. So only calls that certainly lie within one window are counted: those sent at or after
//! some call was sent and answered before a window has passed since. If their number exceeds the
//! bound, the true number does too.

use std::time::Duration;

use tidegate::unstable::stats::Decided;

use super::FaultResult;
use super::fault::Fault;
use super::nodes::{CallRecord, KEYS, LIMIT, NODE_SHARE, NODES, Policy, WINDOW};
use crate::cli::name_of;

/// Returns the documented maximum that may be admitted in a window.
pub fn bound(fault: Fault, policy: Policy) -> u32 {
    let shared = LIMIT * (1 + fault.limit_resets());
    match policy {
        // While the store fails, every node admits its share in addition to earlier admissions.
        Policy::Local => shared + NODES * NODE_SHARE,
        // Uncounted admissions have an unlimited number, so they are excluded here.
        Policy::Allow | Policy::Deny => shared,
    }
}

/// Returns the maximum admitted in any window for any key.
pub fn max_in_window(result: &FaultResult, policy: Policy) -> u32 {
    (0..KEYS).map(|key| max_in_window_of_key(&result.calls, policy, key)).max().unwrap_or(0)
}

fn max_in_window_of_key(calls: &[CallRecord], policy: Policy, key: u8) -> u32 {
    let counted = |call: &&CallRecord| {
        call.allowed
            && (call.policy, call.key) == (policy, key)
            && call.decided != Decided::FailedOpen
    };
    let mut admitted: Vec<(Duration, Duration)> =
        calls.iter().filter(counted).map(|call| (call.sent, call.received)).collect();
    admitted.sort_unstable();
    let windows = admitted.iter().enumerate().map(|(first, &(begin, _))| {
        let later = admitted[first..].iter().take_while(|(sent, _)| *sent < begin + WINDOW);
        later.filter(|(_, received)| *received < begin + WINDOW).count()
    });
    u32::try_from(windows.max().unwrap_or(0)).unwrap_or(u32::MAX)
}

/// Describes all violated expectations.
pub fn violations(result: &FaultResult) -> Vec<String> {
    let fault = result.fault;
    let mut violations = Vec::new();
    for policy in Policy::ALL {
        let (most, bound) = (max_in_window(result, policy), bound(fault, policy));
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
