//! Judges the answers that callers received, by the definition of each limit.
//!
//! The oracle shares no code with the engine. It knows the text of each limit, and the time of each
//! admitted unit: if the store decided, the time of the script, and if the node spent a unit of a
//! lease, the time of the answer. It checks the window that ends at each admission, because the
//! fullest windows end at one.

use std::fmt;

use super::network::EPOCH_US;

/// How a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// At most the count in every window: `sliding-log` and `sliding-window`.
    Rolling,
    /// At most the count between two multiples of the window.
    Aligned,
    /// At most the count by the estimate of a `sliding-counter`.
    Estimated,
    /// A debt of at most this many units, which falls by the count in every window.
    Bucket { burst: u64 },
}

/// A limit, as its definition reads.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    pub kind: Kind,
    pub count: u64,
    pub window_us: u64,
}

/// An answer to a caller.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The clock of the store at the decision, and the true time of it.
    pub clock_us: u64,
    pub at: u64,
    pub key: usize,
    pub units: u64,
    pub is_allowed: bool,
    /// Whether it was decided from a lease.
    pub is_leased: bool,
    pub remaining: u64,
}

/// A refund.
#[derive(Clone, Copy, Debug)]
pub struct Refund {
    /// The clock of the store at which it was sent.
    pub sent_us: u64,
    pub key: usize,
    pub units: u64,
}

/// An event that loses what was counted, at a true time.
#[derive(Clone, Copy, Debug)]
pub enum Loss {
    /// The store forgot everything.
    Everything { at: u64 },
    /// The store forgot the writes of the last microseconds.
    Writes { at: u64, of_last_us: u64 },
    /// The clock of the store was set, forward or back.
    ClockStep { at: u64, is_back: bool },
}

/// The longest lease of a node. Units of a lease are spent within it, and a little later on a node
/// with a slow clock.
const LONGEST_LEASE_US: u64 = 501_000;
/// A refund whose reply is lost takes effect within this time.
const LATEST_REFUND_US: u64 = 10_000_000;

/// A window that holds too much.
#[derive(Debug)]
pub struct Violation {
    key: usize,
    at: u64,
    counted: u64,
    allowed: u64,
    rule: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { key, at, counted, allowed, rule } = self;
        write!(f, "key {key} at {at} us: {counted} of {allowed} units ({rule})")
    }
}

/// What happened in a run.
#[derive(Debug, Default)]
pub struct History {
    pub answers: Vec<Answer>,
    pub refunds: Vec<Refund>,
    pub losses: Vec<Loss>,
}

impl History {
    /// Checks all windows of a key. While a limit changes, `definition` is the larger one.
    pub fn judge(&self, key: usize, definition: &Definition) -> Result<(), Violation> {
        let timeline = Timeline::new(self.of(key), |answer| self.judged_time(answer));
        let capacity = match definition.kind {
            Kind::Bucket { burst } => burst,
            _ => definition.count,
        };
        let window_us = definition.window_us;
        let mut debt = Debt::default();
        for &(now, units) in &timeline.admitted {
            let begin = now - now % window_us;
            // The units that count at `now`, and the time from which on they were admitted.
            let (counted, since) = match definition.kind {
                Kind::Rolling => (timeline.units(now + 1 - window_us, now), now + 1 - window_us),
                Kind::Aligned => (timeline.units(begin, now), begin),
                Kind::Estimated => {
                    let previous = timeline.units(begin - window_us, begin - 1);
                    let weighted = previous * (begin + window_us - now) / window_us;
                    (weighted + timeline.units(begin, now), begin - window_us)
                }
                Kind::Bucket { .. } => (debt.charge(definition, now, units), 0),
            };
            if counted > capacity {
                let allowed = capacity + self.allowance(key, since, now, capacity);
                if counted > allowed {
                    return Err(Violation { key, at: now, counted, allowed, rule: "bound" });
                }
            }
        }
        Ok(())
    }

    /// Checks that no answer promised more than the limit had left. For limits that do not change,
    /// without refunds and losses.
    pub fn judge_remaining(&self, key: usize, definition: &Definition) -> Result<(), Violation> {
        if definition.kind != Kind::Rolling {
            return Ok(());
        }
        let timeline = Timeline::new(self.of(key), |answer| answer.clock_us);
        for answer in self.of(key).filter(|answer| answer.is_allowed) {
            let now = answer.clock_us;
            let earlier = timeline.units(now + 1 - definition.window_us, now - 1);
            let counted = earlier + answer.units + answer.remaining;
            if counted > definition.count {
                let allowed = definition.count;
                return Err(Violation { key, at: now, counted, allowed, rule: "remaining" });
            }
        }
        Ok(())
    }

    /// The time of an answer by which windows are judged: the clock of the store, as documented.
    /// After a step back that clock shows some times twice, and true time is used.
    fn judged_time(&self, answer: &Answer) -> u64 {
        let is_back = |loss: &Loss| matches!(loss, Loss::ClockStep { is_back: true, .. });
        if self.losses.iter().any(is_back) { EPOCH_US + answer.at } else { answer.clock_us }
    }

    fn of(&self, key: usize) -> impl Iterator<Item = &Answer> {
        self.answers.iter().filter(move |answer| answer.key == key)
    }

    /// The units that may be admitted besides the limit from `since` to `now`: those that were
    /// refunded, and those that the documented losses forget.
    fn allowance(&self, key: usize, since: u64, now: u64, capacity: u64) -> u64 {
        let is_effective = |refund: &&Refund| {
            refund.key == key && refund.sent_us <= now && refund.sent_us + LATEST_REFUND_US > since
        };
        let refunds = self.refunds.iter().filter(is_effective);
        let losses = self.losses.iter().map(|loss| self.lost(loss, key, now, capacity));
        refunds.map(|refund| refund.units).sum::<u64>() + losses.sum::<u64>()
    }

    /// The units that may be admitted once more until `now` because of a loss.
    fn lost(&self, loss: &Loss, key: usize, now: u64, capacity: u64) -> u64 {
        let (Loss::Everything { at } | Loss::Writes { at, .. } | Loss::ClockStep { at, .. }) =
            *loss;
        let is_later = |answer: &&Answer| answer.at >= at && self.judged_time(answer) <= now;
        if !self.answers.iter().any(|answer| is_later(&answer)) {
            return 0;
        }
        let sum = |is_lost: &dyn Fn(&Answer) -> bool| -> u64 {
            let lost = self.of(key).filter(|answer| answer.is_allowed && is_lost(answer));
            lost.map(|answer| answer.units).sum()
        };
        // Units of leases that were out after a time.
        let out_after = |from: u64| {
            sum(&|answer| {
                answer.is_leased && answer.at >= from && answer.at <= at + LONGEST_LEASE_US
            })
        };
        match *loss {
            Loss::Everything { .. } => capacity + out_after(at),
            Loss::ClockStep { .. } => out_after(at),
            Loss::Writes { of_last_us, .. } => {
                let from = at.saturating_sub(of_last_us + 1);
                let is_lost =
                    |answer: &Answer| !answer.is_leased && answer.at > from && answer.at <= at;
                sum(&is_lost) + out_after(from)
            }
        }
    }
}

/// The admitted units of a key in the order of their times.
struct Timeline {
    /// Times and units.
    admitted: Vec<(u64, u64)>,
    /// The sum of the units before each index.
    sums: Vec<u64>,
}

impl Timeline {
    fn new<'a>(answers: impl Iterator<Item = &'a Answer>, time: impl Fn(&Answer) -> u64) -> Self {
        let answers = answers.filter(|answer| answer.is_allowed);
        let mut admitted: Vec<_> = answers.map(|answer| (time(answer), answer.units)).collect();
        admitted.sort_unstable();
        let mut sums = vec![0];
        for (_, units) in &admitted {
            sums.push(sums[sums.len() - 1] + units);
        }
        Timeline { admitted, sums }
    }

    /// The units from `first` to `last`, both included.
    fn units(&self, first: u64, last: u64) -> u64 {
        let from = self.admitted.partition_point(|(at, _)| *at < first);
        let until = self.admitted.partition_point(|(at, _)| *at <= last);
        self.sums[until] - self.sums[from]
    }
}

/// The debt of a token bucket.
#[derive(Default)]
struct Debt {
    /// In units times the window in microseconds.
    owed: u128,
    at: u64,
}

impl Debt {
    /// Charges units. Returns the debt in units, rounded up.
    fn charge(&mut self, definition: &Definition, now: u64, units: u64) -> u64 {
        let (window, count) = (u128::from(definition.window_us), u128::from(definition.count));
        let repaid = u128::from(now - self.at) * count;
        self.owed = self.owed.saturating_sub(repaid) + u128::from(units) * window;
        self.at = now;
        u64::try_from(self.owed.div_ceil(window)).expect("a debt of few units")
    }
}
