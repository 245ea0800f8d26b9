//! Counts what was admitted from what callers saw, without knowing how it was decided.
//!
//! A caller does not see when Redis decided, only when it asked and when it was
//! answered. So windows are counted that surely hold what is counted: from the
//! moment some call was made, all those made later and answered before a window
//! had passed. If these are more than the bound, so is the truth.

use std::time::Duration;

use tidegate::unstable::stats::Decided;

use super::Outcome;
use super::fault::Fault;
use super::nodes::{Event, KEYS, LIMIT, NODES, Policy, SHARE, WINDOW};
use crate::cli::name_of;

/// The most that may be admitted in a window, as the documents state it.
pub fn bound(fault: Fault, policy: Policy) -> u32 {
    let shared = LIMIT * (1 + fault.losses());
    match policy {
        // While the store fails every node has its share, on top of what was there before.
        Policy::Local => shared + NODES * SHARE,
        // What is let through uncounted has no bound, so it is not counted here.
        Policy::Allow | Policy::Deny => shared,
    }
}

/// The most admitted in any window, for the key for which that is most.
pub fn most(outcome: &Outcome, policy: Policy) -> u32 {
    (0..KEYS).map(|key| most_of(&outcome.events, policy, key)).max().unwrap_or(0)
}

fn most_of(events: &[Event], policy: Policy, key: u8) -> u32 {
    let counted = |event: &&Event| {
        event.allowed
            && (event.policy, event.key) == (policy, key)
            && event.decided != Decided::FailedOpen
    };
    let mut admitted: Vec<(Duration, Duration)> =
        events.iter().filter(counted).map(|event| (event.sent, event.received)).collect();
    admitted.sort_unstable();
    let windows = admitted.iter().enumerate().map(|(first, &(begin, _))| {
        let later = admitted[first..].iter().take_while(|(sent, _)| *sent < begin + WINDOW);
        later.filter(|(_, received)| *received < begin + WINDOW).count()
    });
    u32::try_from(windows.max().unwrap_or(0)).unwrap_or(u32::MAX)
}

/// What does not hold that should.
pub fn broken(outcome: &Outcome) -> Vec<String> {
    let fault = outcome.fault;
    let mut broken = Vec::new();
    for policy in Policy::ALL {
        let (most, bound) = (most(outcome, policy), bound(fault, policy));
        if most > bound {
            broken.push(format!("{policy:?} admitted {most} in a window, the bound is {bound}"));
        }
        let strange = |event: &&Event| event.policy == policy && !policy.may_answer(event);
        if let Some(event) = outcome.events.iter().find(strange) {
            broken.push(format!("{policy:?} was answered {:?}, {}", event.decided, event.allowed));
        }
        let exact = |event: &&Event| event.policy == policy && event.decided == Decided::Exact;
        let failed = |event: &&Event| event.policy == policy && event.decided != Decided::Exact;
        if !outcome.events.iter().any(|event| exact(&event)) {
            broken.push(format!("{policy:?} never had an exact answer"));
        }
        if fault.cuts_off() && !outcome.events.iter().any(|event| failed(&event)) {
            broken.push(format!("{policy:?} never noticed that the store was gone"));
        }
        if !outcome.events.iter().filter(exact).any(|event| event.sent >= outcome.ended) {
            broken.push(format!("{policy:?} had no exact answer after the store was back"));
        }
    }
    let name = name_of(&fault);
    broken.into_iter().map(|what| format!("{name}: {what}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(sent_ms: u64, received_ms: u64) -> Event {
        let (sent, received) = (Duration::from_millis(sent_ms), Duration::from_millis(received_ms));
        Event {
            sent,
            received,
            policy: Policy::Deny,
            key: 0,

            allowed: true,
            decided: Decided::Exact,
        }
    }

    #[test]
    fn only_what_surely_lies_in_one_window_is_counted() {
        let window_ms = u64::try_from(WINDOW.as_millis()).expect("a short window");
        let within = [event(0, 1), event(1, 2), event(window_ms - 2, window_ms - 1)];
        assert_eq!(most_of(&within, Policy::Deny, 0), 3);
        // An admission exactly one window after another is not in the same window.
        let two = [event(0, 1), event(1, window_ms), event(2, window_ms)];
        assert_eq!(most_of(&two, Policy::Deny, 0), 2);
        let perhaps = [event(0, 1), event(1, window_ms), event(2, window_ms + 1)];
        assert_eq!(most_of(&perhaps, Policy::Deny, 0), 1);
        assert_eq!(most_of(&within, Policy::Deny, 1), 0);
    }
}
