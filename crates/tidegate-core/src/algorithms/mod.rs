//! The six algorithms, one file each.
//!
//! All share one shape, [`Window`]: bring the state up to `now`, ask how much is
//! available, charge, refund, and say when a cost will fit. Everything a caller
//! sees (admission, remaining, retry-after, reset-after) follows from these in
//! one place, [`Window::decide`], so the algorithms cannot disagree about it.

pub(crate) mod concurrency;
pub(crate) mod fixed_window;
pub(crate) mod sliding_counter;
pub(crate) mod sliding_log;
pub(crate) mod sliding_window;
pub(crate) mod token_bucket;

use crate::limit::WindowPosition;
use crate::{Ask, Cost, Decided, Decision, Limit, ResetAfter, RetryAfter, Timestamp};

/// What became of an ask, before it is worked out when to come back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    allowed: bool,
    remaining: u64,
}

/// One limit's state as a window over time.
///
/// Every method but `advance` expects a state already advanced to `now`.
pub(crate) trait Window {
    /// Brings the state up to `now`: lets go of what has aged out and re-enters
    /// at `now` what lies in its future (the clock stepped back).
    ///
    /// This is kept even when the request is denied. It never changes what is
    /// counted, and without it a state from the future would be re-entered at
    /// every retry and freeze its key until the clock caught up.
    fn advance(&mut self, limit: &Limit, now: &WindowPosition);

    /// The largest cost that passes now.
    fn available(&self, limit: &Limit, now: &WindowPosition) -> u64;

    /// Microseconds until `cost` passes if nothing else arrives; 0 if it does now.
    /// `cost` is at least 1 and at most the limit's capacity.
    fn wait_us(&self, limit: &Limit, cost: u64, now: &WindowPosition) -> u64;

    /// How long until everything is available again if nothing arrives: until all
    /// of it would pass at once.
    #[inline]
    fn reset_after(&self, limit: &Limit, now: &WindowPosition) -> ResetAfter {
        ResetAfter::from_micros(match limit.capacity() {
            0 => 0,
            capacity => self.wait_us(limit, capacity, now),
        })
    }

    /// Adds `units` without asking.
    fn charge(&mut self, limit: &Limit, units: u64, ask: &Ask, now: &WindowPosition);

    /// Adds `units` of those that are `available`, and returns how many are available then.
    #[inline(always)]
    fn admit(
        &mut self,
        limit: &Limit,
        units: u64,
        ask: &Ask,
        now: &WindowPosition,
        available: u64,
    ) -> u64 {
        self.charge(limit, units, ask, now);
        available - units
    }

    /// Takes `units` off again, newest first, never below zero.
    fn refund(&mut self, limit: &Limit, units: u64);

    /// From when on the state is as good as none.
    fn expires_at(&self, limit: &Limit) -> Timestamp;

    /// How many log entries or permits it holds; 0 for states of bounded size.
    fn held_entries(&self) -> usize {
        0
    }

    /// Lets the next entry of a log share the newest one's place.
    fn merge_newest_entry(&mut self, _now: Timestamp) {}

    /// Whether the limit on its own admits the ask.
    #[inline]
    fn admits(&self, limit: &Limit, ask: &Ask, now: &WindowPosition) -> bool {
        match ask.cost {
            Cost::Ask(units) => units.max(1) <= self.available(limit, now),
            Cost::Force(_) | Cost::Refund(_) => true,
        }
    }

    /// Charges the ask if it was `admitted` (by every limit of its request).
    #[inline(always)]
    fn apply(&mut self, limit: &Limit, ask: &Ask, now: &WindowPosition, admitted: bool) -> Outcome {
        match ask.cost {
            Cost::Ask(units) => {
                let available = self.available(limit, now);
                // A peek answers as one unit would, and takes none.
                if units == 0 {
                    return Outcome { allowed: available > 0, remaining: available };
                }
                let allowed = units <= available;
                if allowed && admitted {
                    Outcome { allowed, remaining: self.admit(limit, units, ask, now, available) }
                } else {
                    Outcome { allowed, remaining: available }
                }
            }
            Cost::Force(units) | Cost::Refund(units) => {
                if admitted {
                    self.correct(limit, units, ask, now);
                }
                Outcome { allowed: true, remaining: self.available(limit, now) }
            }
        }
    }

    /// Answers an ask that was applied.
    #[inline(always)]
    fn report(
        &self,
        limit: &Limit,
        cost: Cost,
        now: &WindowPosition,
        outcome: Outcome,
    ) -> Decision {
        let Outcome { allowed, remaining } = outcome;
        let retry_after = match cost {
            Cost::Ask(units) if !allowed && units.max(1) > limit.capacity() => RetryAfter::Never,
            Cost::Ask(units) if !allowed => {
                RetryAfter::from_micros(self.wait_us(limit, units.max(1), now))
            }
            _ => RetryAfter::Now,
        };
        let reset_after = self.reset_after(limit, now);
        Decision {
            allowed,
            limit: limit.count(),
            remaining,
            retry_after,
            reset_after,
            no_room: false,
            decided: Decided::Exact,
        }
    }

    /// [`Window::apply`] and [`Window::report`] in one.
    #[inline(always)]
    fn finish(
        &mut self,
        limit: &Limit,
        ask: &Ask,
        now: &WindowPosition,
        admitted: bool,
    ) -> Decision {
        let outcome = self.apply(limit, ask, now, admitted);
        self.report(limit, ask.cost, now, outcome)
    }

    /// Adds or takes off units without asking.
    #[cold]
    fn correct(&mut self, limit: &Limit, units: u64, ask: &Ask, now: &WindowPosition) {
        correct(self, limit, units, ask, now);
    }

    /// One ask, decided alone.
    #[inline(always)]
    fn decide(&mut self, limit: &Limit, ask: &Ask) -> Decision {
        let now = limit.window_position(ask.now);
        self.advance(limit, &now);
        self.finish(limit, ask, &now, true)
    }
}

/// Adds or takes off units without asking.
fn correct<T: Window + ?Sized>(
    state: &mut T,
    limit: &Limit,
    units: u64,
    ask: &Ask,
    now: &WindowPosition,
) {
    if let Cost::Refund(_) = ask.cost {
        state.refund(limit, units);
        // What it restored may have aged out since.
        state.advance(limit, now);
    } else {
        state.charge(limit, units, ask, now);
    }
}
