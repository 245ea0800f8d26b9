//! Detects clocks that drift apart by more than leases allow for.
//!
//! A lease ends on the clock of the node. That is safe while the clock of the store is faster by at
//! most one part in a thousand. Each reply has the time of the store, and the node knows when it
//! sent the request and when it received the reply. So the difference of the two clocks is known up
//! to the round trip:
//!
//! ```text
//!   store - node    is between    store - received    and    store - sent
//! ```
//!
//! If two replies show that the difference has certainly changed by more than a thousandth of the
//! time between them, a clock drifts or was set, or the node was suspended.

use tidegate_core::Timestamp;

/// The part of a time by which the clocks may differ: one in this number, as in
/// [`tidegate_core::Lease`].
const DRIFT_DIVISOR: i128 = 1_000;
/// The time after which two replies are compared, in microseconds. Within it, a round trip would
/// hide more than the allowance.
const MIN_INTERVAL_US: i128 = 1_000_000;
/// The time after which a newer reply becomes the one that others are compared with. Slow drift of
/// both clocks that NTP corrects must not add up.
const MAX_INTERVAL_US: i128 = 30_000_000;

/// The times of one reply, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyTimes {
    /// The time on the clock of the node at which the request was sent.
    pub(super) sent: Timestamp,
    /// The time on the clock of the node at which the reply was received.
    pub(super) received: Timestamp,
    /// The time on the clock of the store.
    pub(super) store: Timestamp,
}

impl ReplyTimes {
    /// The smallest and the largest possible difference of the clocks.
    fn difference(&self) -> (i128, i128) {
        let micros = |time: Timestamp| i128::from(time.as_micros());
        (micros(self.store) - micros(self.received), micros(self.store) - micros(self.sent))
    }
}

/// Compares the clocks of this node and of the store.
#[derive(Debug, Default)]
pub(super) struct DriftDetector {
    earlier: Option<ReplyTimes>,
}

impl DriftDetector {
    /// Records a reply. Returns whether it shows that the clocks drift apart.
    pub(super) fn note(&mut self, reply: ReplyTimes) -> bool {
        let Some(earlier) = self.earlier else {
            self.earlier = Some(reply);
            return false;
        };
        let (low, high) = reply.difference();
        let (earlier_low, earlier_high) = earlier.difference();
        let elapsed = i128::from(reply.received.as_micros()) - i128::from(earlier.sent.as_micros());
        let allowed = elapsed.max(MIN_INTERVAL_US) / DRIFT_DIVISOR;
        let drifts = low - earlier_high > allowed || earlier_low - high > allowed;
        if drifts || elapsed > MAX_INTERVAL_US {
            self.earlier = Some(reply);
        }
        drifts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    /// A reply after `at` microseconds, whose round trip takes 400 us, and in the middle of which
    /// the clock of the store is ahead by `ahead`.
    fn reply(at: u64, ahead: i64) -> ReplyTimes {
        let time = Timestamp::from_micros;
        let store = (500 * SECOND + at + 200).checked_add_signed(ahead).expect("later than 1970");
        ReplyTimes { sent: time(at), received: time(at + 400), store: time(store) }
    }

    #[test]
    fn round_trips_and_slow_drift_are_within_the_allowance() {
        let mut detector = DriftDetector::default();
        for (at, ahead) in [(0, 0), (2_000, 0), (SECOND, 900), (60 * SECOND, 50_000)] {
            assert!(!detector.note(reply(at, ahead)), "{at}");
        }
        // 70 ms over 70 s, as fast as it may be.
        assert!(!detector.note(reply(80 * SECOND, 70_000)));
    }

    #[test]
    fn drift_and_steps_are_detected() {
        for (at, ahead) in [(10 * SECOND, 11_000), (10 * SECOND, -11_000), (2_000, 2_000)] {
            let mut detector = DriftDetector::default();
            assert!(!detector.note(reply(0, 0)));
            assert!(detector.note(reply(at, ahead)), "{at}, {ahead}");
            // The next replies are compared with this one.
            assert!(!detector.note(reply(at + 1_000, ahead)));
        }
    }
}
