//! Durations on a logarithmic scale, with percentiles.

use std::time::Duration;

/// Number of steps per power of two of nanoseconds; neighbouring steps are 3 % apart.
const STEPS: u64 = 32;

/// Durations, counted on a logarithmic scale.
pub struct Histogram {
    counts: Vec<u64>,
    pub total: u64,
    pub max_ns: u64,
    pub over_100_us: u64,
    pub over_1_ms: u64,
}

impl Histogram {
    pub fn new() -> Self {
        Histogram { counts: vec![0; 64 * 32], total: 0, max_ns: 0, over_100_us: 0, over_1_ms: 0 }
    }

    /// Counts one duration.
    pub fn record(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counts[slot(ns)] += 1;
        self.total += 1;
        self.max_ns = self.max_ns.max(ns);
        self.over_100_us += u64::from(ns > 100_000);
        self.over_1_ms += u64::from(ns > 1_000_000);
    }

    /// Adds the durations of another histogram.
    pub fn add(&mut self, other: &Histogram) {
        for (count, added) in self.counts.iter_mut().zip(&other.counts) {
            *count += added;
        }
        self.total += other.total;
        self.max_ns = self.max_ns.max(other.max_ns);
        self.over_100_us += other.over_100_us;
        self.over_1_ms += other.over_1_ms;
    }

    /// Returns the time that all but one in `one_in` durations stay below: 100 is the 99th
    /// percentile.
    pub fn all_but_one_in(&self, one_in: u64) -> u64 {
        let below = self.total - self.total / one_in;
        let mut seen = 0;
        for (slot, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= below {
                return upper_ns(slot as u64).min(self.max_ns);
            }
        }
        self.max_ns
    }
}

/// Returns the index of the step that contains a time.
fn slot(ns: u64) -> usize {
    let ns = ns.max(STEPS);
    let power = u64::from(ns.ilog2() - STEPS.ilog2());
    let step = (ns >> power) - STEPS;
    usize::try_from(power * STEPS + step).expect("64 powers of 32 steps")
}

/// Returns the largest time of a step.
fn upper_ns(slot: u64) -> u64 {
    let (power, step) = (slot / STEPS, slot % STEPS);
    ((STEPS + step + 1) << power) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_contain_times_up_to_their_upper_end() {
        for ns in [32, 33, 63, 64, 65, 1_000, 123_456, 5_000_000_000] {
            let upper = upper_ns(slot(ns) as u64);
            assert!(upper >= ns && upper - ns <= ns / STEPS, "{ns} fell on a step up to {upper}");
            assert!(slot(upper) == slot(ns) && slot(upper + 1) > slot(ns));
        }
    }

    #[test]
    fn percentiles_include_rare_slow_values() {
        let mut times = Histogram::new();
        (0..9_990).for_each(|_| times.record(Duration::from_nanos(100)));
        (0..10).for_each(|_| times.record(Duration::from_micros(200)));
        assert!((100..104).contains(&times.all_but_one_in(100)));
        assert_eq!(times.all_but_one_in(10_000), 200_000);
        assert_eq!((times.max_ns, times.over_100_us, times.over_1_ms), (200_000, 10, 0));
    }
}
