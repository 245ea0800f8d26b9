//! Counts over time, in a bounded number of bins.
//!
//! The length of a trace is unknown until its end. So bins begin narrow, and when there are too
//! many, their width doubles and neighbours are added in pairs. Bins begin at multiples of their
//! width, so the result does not depend on the order of times.

use crate::ground_truth::HeldCount;

/// The largest number of bins: about as many as a plot can show as separate pixels.
pub const MAX_BINS: usize = 480;

const SECOND_US: u64 = 1_000_000;

/// The width of bins at first. Doubled six times it is a second, so that wider bins contain equally
/// many whole seconds.
const FIRST_WIDTH_US: u64 = SECOND_US / 64;

/// The counts of one bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    pub admitted: u64,
    pub denied: u64,
    pub over_admitted: u64,
    pub false_denials: u64,
    pub differ: u64,
}

/// Counts by time.
#[derive(Clone, Debug)]
pub struct Timeline {
    width_us: u64,
    /// Whether some time is not a whole second.
    has_fractions: bool,
    /// The start of the first bin, as a multiple of the width.
    first: u64,
    bins: Vec<Bin>,
    /// The largest true count in each bin for each limit.
    most: Vec<u64>,
    limits: usize,
}

impl Timeline {
    /// Creates a timeline with the largest counts of `limits` limits.
    pub fn new(limits: usize) -> Self {
        Timeline {
            width_us: FIRST_WIDTH_US,
            has_fractions: false,
            first: 0,
            bins: Vec::new(),
            most: Vec::new(),
            limits,
        }
    }

    /// Returns the start of the first bin.
    pub fn start_us(&self) -> u64 {
        self.first * self.width_us
    }

    pub fn width_us(&self) -> u64 {
        self.width_us
    }

    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }

    /// Returns the largest true count of a limit in each bin.
    pub fn most(&self, limit: usize) -> impl Iterator<Item = u64> {
        self.most.iter().skip(limit).step_by(self.limits.max(1)).copied()
    }

    /// Returns the index of the bin of a time.
    #[inline]
    pub fn bin_index(&mut self, time_us: u64) -> usize {
        self.has_fractions |= !time_us.is_multiple_of(SECOND_US);
        let at = (time_us / self.width_us).wrapping_sub(self.first);
        match usize::try_from(at) {
            Ok(at) if at < self.bins.len() => at,
            _ => self.add_bin(time_us),
        }
    }

    #[inline]
    pub fn bin(&mut self, index: usize) -> &mut Bin {
        &mut self.bins[index]
    }

    /// Records a true count of a limit.
    #[inline]
    pub fn record_max(&mut self, index: usize, limit: usize, count: u64) {
        let most = &mut self.most[index * self.limits + limit];
        *most = count.max(*most);
    }

    /// Records the true counts that keys of a limit had between requests. These times are between
    /// the first and the last bin.
    pub fn record_held(&mut self, limit: usize, held: impl IntoIterator<Item = HeldCount>) {
        for HeldCount { from_us, to_us, count } in held {
            let [first, last] = [from_us, to_us].map(|time_us| {
                let index = (time_us / self.width_us).saturating_sub(self.first);
                usize::try_from(index).unwrap_or(usize::MAX).min(self.bins.len() - 1)
            });
            (first..=last).for_each(|index| self.record_max(index, limit, count));
        }
    }

    /// Widens bins to at least a second if all times are whole seconds: narrower bins would
    /// alternate between the count of a second and zero. Call it after the last event.
    pub fn finish(&mut self) {
        while !self.has_fractions && self.width_us < SECOND_US {
            self.double();
        }
    }

    /// Returns the last time of the last bin.
    pub fn end_us(&self) -> u64 {
        ((self.first + self.bins.len() as u64) * self.width_us).saturating_sub(1)
    }

    /// Adds a bin for a time outside of all bins.
    #[cold]
    fn add_bin(&mut self, time_us: u64) -> usize {
        if self.bins.is_empty() {
            self.first = time_us / self.width_us;
        }
        loop {
            let index = time_us / self.width_us;
            let first = self.first.min(index);
            let last = (self.first + self.bins.len().max(1) as u64 - 1).max(index);
            match usize::try_from(last - first + 1) {
                Ok(length) if length <= MAX_BINS => {
                    self.extend_to(first, length);
                    return usize::try_from(index - first).unwrap_or(0);
                }
                _ => self.double(),
            }
        }
    }

    /// Extends the bins: the first one begins at this multiple of the width, and there are `length`
    /// of them.
    fn extend_to(&mut self, first: u64, length: usize) {
        let before = usize::try_from(self.first - first).unwrap_or(0);
        self.bins.splice(..0, std::iter::repeat_n(Bin::default(), before));
        self.bins.resize(length, Bin::default());
        self.most.splice(..0, std::iter::repeat_n(0, before * self.limits));
        self.most.resize(length * self.limits, 0);
        self.first = first;
    }

    fn double(&mut self) {
        let bins = std::mem::take(&mut self.bins);
        let most = std::mem::take(&mut self.most);
        let old_first = self.first;
        self.width_us *= 2;
        self.first /= 2;
        for (old_index, bin) in (old_first..).zip(&bins) {
            let index = usize::try_from(old_index / 2 - self.first).unwrap_or(0);
            if index >= self.bins.len() {
                self.extend_to(self.first, index + 1);
            }
            self.bins[index].add(bin);
            let old = usize::try_from(old_index - old_first).unwrap_or(0) * self.limits;
            for (limit, &count) in most[old..old + self.limits].iter().enumerate() {
                self.record_max(index, limit, count);
            }
        }
    }
}

impl Bin {
    fn add(&mut self, other: &Bin) {
        self.admitted += other.admitted;
        self.denied += other.denied;
        self.over_admitted += other.over_admitted;
        self.false_denials += other.false_denials;
        self.differ += other.differ;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts each time once, with the time itself as the count of the second of two limits.
    fn counted(times: impl Iterator<Item = u64>) -> Timeline {
        let mut timeline = Timeline::new(2);
        for time_us in times {
            let index = timeline.bin_index(time_us);
            timeline.bin(index).admitted += 1;
            timeline.record_max(index, 1, time_us);
        }
        timeline
    }

    #[test]
    fn bins_keep_every_count() {
        for (start, step, count) in [(0, 1, 10), (5_000_000, 999, 5_000), (1 << 52, 1 << 41, 1_500)]
        {
            let times = || (0..count).map(|n| start + n * step);
            let timeline = counted(times());
            assert!(timeline.bins().len() <= MAX_BINS);
            let all: u64 = timeline.bins().iter().map(|bin| bin.admitted).sum();
            assert_eq!(all, count);
            let last = times().next_back().expect("some");
            assert_eq!(timeline.most(1).max(), Some(last));
            assert_eq!(timeline.most(0).max(), Some(0));
            assert!(
                timeline.start_us() <= start && start - timeline.start_us() < timeline.width_us()
            );
            // The result is the same in reverse order.
            let backwards = counted(times().rev());
            assert_eq!(backwards.bins(), timeline.bins());
            assert_eq!(backwards.start_us(), timeline.start_us());
            assert!(backwards.most(1).eq(timeline.most(1)));
        }
    }

    #[test]
    fn bins_have_counts_between_requests() {
        let width_us = FIRST_WIDTH_US;
        let last_us = 5 * width_us + 1;
        let mut timeline = counted([0, last_us].into_iter());
        let held = HeldCount { from_us: width_us + 1, to_us: 4 * width_us - 1, count: 7 };
        timeline.record_held(1, [held]);
        assert_eq!(timeline.most(1).collect::<Vec<_>>(), [0, 7, 7, 7, 0, last_us]);
        assert_eq!(timeline.end_us(), 6 * width_us - 1);
    }

    #[test]
    fn bins_cover_extreme_times() {
        let timeline = counted([1 << 53, 0].into_iter());
        assert_eq!(timeline.bins().iter().map(|bin| bin.admitted).sum::<u64>(), 2);
        assert!(timeline.bins().len() <= MAX_BINS);
    }
}
