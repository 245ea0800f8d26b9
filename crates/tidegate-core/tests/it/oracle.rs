//! A naive limiter: it keeps the whole history in a list, recomputes every count from
//! it, uses exact fractions in 128 bits, and finds waits by trying one microsecond after
//! another. It is slow, and shares no code with the crate.

use tidegate_core::{Algorithm, Cost, Limit, PermitId};

use crate::window_oracle::WindowOracle;

const LARGEST_EXACT: u128 = 1 << 53;

#[derive(Clone, Debug)]
struct Hit {
    at: u64,
    units: u128,
    permit: PermitId,
}

/// All charges that still matter, and the definitions of the algorithms.
#[derive(Clone, Debug)]
pub struct Oracle {
    algorithm: Algorithm,
    count: u128,
    capacity: u128,
    window_us: u64,
    tick_us: u64,
    window_ticks: u128,
    /// The charges in order of time. Moving charges from the future to now preserves the order.
    hits: Vec<Hit>,
    /// The times at which a `token-bucket` was advanced or charged, with the debt added or
    /// subtracted.
    steps: Vec<(u64, i128)>,
    /// The state of a `sliding-window`.
    window: WindowOracle,
}

impl Oracle {
    pub fn new(limit: &Limit) -> Self {
        let largest = u128::from(limit.count().max(limit.burst()));
        let ticks = |tick: u64| u128::from(limit.window_us().div_ceil(tick));
        let tick_us = (0..)
            .map(|power| 10_u64.pow(power))
            .find(|&tick| (largest + 1) * ticks(tick) <= LARGEST_EXACT)
            .expect("some tick is coarse enough");
        Oracle {
            algorithm: limit.algorithm(),
            count: limit.count().into(),
            capacity: if limit.count() == 0 { 0 } else { limit.burst().into() },
            window_us: limit.window_us(),
            tick_us,
            window_ticks: ticks(tick_us),
            hits: Vec::new(),
            steps: Vec::new(),
            window: WindowOracle::new(limit.window_us()),
        }
    }

    /// Decides and charges. Returns whether the cost was admitted.
    pub fn decide(&mut self, cost: Cost, permit: PermitId, now: u64) -> bool {
        self.arrive(now);
        match cost {
            Cost::Ask(units) => {
                let admitted = self.admits(units.max(1), now);
                if admitted {
                    self.charge(units, permit, now);
                }
                admitted
            }
            Cost::Force(units) => {
                self.charge(units, permit, now);
                true
            }
            Cost::Refund(units) => {
                self.refund(units, now);
                true
            }
        }
    }

    /// Releases a permit. Returns whether it was held.
    pub fn release(&mut self, permit: PermitId) -> bool {
        let index = self.hits.iter().position(|hit| hit.permit == permit);
        index.map(|index| self.hits.remove(index)).is_some()
    }

    /// Restarts the lease of a permit. Returns whether it was held.
    pub fn renew(&mut self, permit: PermitId, now: u64) -> bool {
        self.arrive(now);
        let index = self.hits.iter().position(|hit| hit.permit == permit);
        let Some(index) = index else { return false };
        let held = self.hits.remove(index);
        self.hits.push(Hit { at: now, ..held });
        true
    }

    /// Whether `cost` would pass at `now`, which must not be before the last step.
    pub fn admits(&self, cost: u64, now: u64) -> bool {
        let cost = u128::from(cost);
        if cost > self.capacity {
            return false;
        }
        match self.algorithm {
            Algorithm::SlidingWindow => self.window.used(now) + cost <= self.count,
            Algorithm::SlidingCounter => self.counter_admits(cost, now),
            Algorithm::TokenBucket => {
                self.debt(now) + cost * self.window_ticks <= self.capacity * self.window_ticks
            }
            _ => self.live_units(now) + cost <= self.count,
        }
    }

    /// The largest cost that passes, found by search.
    pub fn remaining(&self, now: u64) -> u64 {
        let capacity = u64::try_from(self.capacity).expect("fits");
        if capacity <= 16 {
            return (1..=capacity).take_while(|&cost| self.admits(cost, now)).count() as u64;
        }
        let (mut passes, mut fails) = (0, capacity + 1);
        while fails - passes > 1 {
            let middle = passes + (fails - passes) / 2;
            if self.admits(middle, now) { passes = middle } else { fails = middle }
        }
        passes
    }

    /// The wait of `cost`, found by trying one microsecond after another.
    pub fn first_pass(&self, cost: u64, now: u64) -> u64 {
        (0..).find(|wait| self.admits(cost, now + wait)).expect("it passes some time")
    }

    /// Whether `cost` passes after `wait`, and not a microsecond earlier. A wait until the largest
    /// time is accepted in place of a longer one.
    pub fn passes_first_after(&self, wait: u64, cost: u64, now: u64) -> bool {
        let then = now.saturating_add(wait);
        (then == u64::MAX || self.admits(cost, then)) && (wait == 0 || !self.admits(cost, then - 1))
    }

    /// Whether the whole limit is available again after `reset`. For a `sliding-window` that is
    /// when the last hit, rounded up, is a window old.
    pub fn resets_after(&self, reset: u64, now: u64) -> bool {
        let capacity = u64::try_from(self.capacity).expect("fits");
        if self.algorithm != Algorithm::SlidingWindow {
            return self.passes_first_after(reset, capacity, now);
        }
        let then = now.saturating_add(reset);
        let released = self.window.released().unwrap_or(now.into());
        i128::from(then) == released.min(u64::MAX.into())
            && (then == u64::MAX || self.admits(capacity, then))
    }

    /// Changes the count or the burst of the limit, and keeps what was counted.
    pub fn change(&mut self, limit: &Limit) {
        let last_seen = self.steps.last().map_or(0, |step| step.0);
        let (debt, old_ticks) = (self.debt(last_seen), self.window_ticks);
        let changed = Oracle::new(limit);
        let hits = std::mem::take(&mut self.hits);
        let debt = (debt * changed.window_ticks).div_ceil(old_ticks).min(LARGEST_EXACT);
        let steps = vec![(last_seen, i128::try_from(debt).expect("fits"))];
        let window = self.window.clone();
        *self = Oracle { hits, steps, window, ..changed };
    }

    /// Advances to `now`: moves charges from the future to now, and drops those that have expired.
    fn arrive(&mut self, now: u64) {
        if self.algorithm == Algorithm::SlidingWindow {
            return self.window.arrive(now);
        }
        for hit in &mut self.hits {
            hit.at = hit.at.min(now);
        }
        if self.algorithm == Algorithm::TokenBucket {
            self.steps.push((now, 0));
            return;
        }
        let live: Vec<bool> = self.hits.iter().map(|hit| self.remembers(hit, now)).collect();
        let mut live = live.into_iter();
        self.hits.retain(|_| live.next() == Some(true));
        if matches!(self.algorithm, Algorithm::SlidingCounter | Algorithm::FixedWindow) {
            self.trim_counts(now);
        }
    }

    fn index(&self, at: u64) -> u64 {
        at / self.window_us
    }

    fn remembers(&self, hit: &Hit, now: u64) -> bool {
        let within_window = |at: u64| now - at < self.window_us;
        match self.algorithm {
            Algorithm::SlidingLog | Algorithm::Concurrency => within_window(hit.at),
            Algorithm::FixedWindow => self.index(hit.at) == self.index(now),
            Algorithm::SlidingCounter => self.index(hit.at) + 1 >= self.index(now),
            Algorithm::TokenBucket | Algorithm::SlidingWindow => true,
        }
    }

    /// Cuts counts off where their product with the window would not be exact.
    fn trim_counts(&mut self, now: u64) {
        let cap = self.cap();
        for index in [self.index(now).wrapping_sub(1), self.index(now)] {
            let mut room = cap;
            for hit in &mut self.hits {
                if hit.at / self.window_us == index {
                    hit.units = hit.units.min(room);
                    room -= hit.units;
                }
            }
        }
    }

    fn cap(&self) -> u128 {
        LARGEST_EXACT / self.window_ticks
    }

    fn live_units(&self, now: u64) -> u128 {
        self.hits.iter().filter(|hit| self.remembers(hit, now)).map(|hit| hit.units).sum()
    }

    fn units_in_window(&self, index: u64) -> u128 {
        self.hits.iter().filter(|hit| self.index(hit.at) == index).map(|hit| hit.units).sum()
    }

    /// `floor(P*(W-e)/W) + C + c <= L`, multiplied out.
    fn counter_admits(&self, cost: u128, now: u64) -> bool {
        let index = self.index(now);
        let current = self.units_in_window(index);
        let previous = index.checked_sub(1).map_or(0, |index| self.units_in_window(index));
        let elapsed = u128::from(now % self.window_us / self.tick_us);
        let weighed = previous * (self.window_ticks - elapsed);
        match self.count.checked_sub(current + cost) {
            Some(headroom) => weighed < (headroom + 1) * self.window_ticks,
            None => false,
        }
    }

    /// A level that charges increase and time decreases, but never below zero, is the largest sum
    /// of the steps since some point in time.
    fn debt(&self, now: u64) -> u128 {
        let (mut sum, mut largest, mut later) = (0_i128, 0_i128, now);
        let rate = i128::try_from(self.count).expect("fits");
        for &(at, step) in self.steps.iter().rev() {
            let ticks = (later / self.tick_us).saturating_sub(at / self.tick_us);
            sum += step - rate * i128::from(ticks);
            largest = largest.max(sum);
            later = at;
        }
        u128::try_from(largest).expect("not negative")
    }

    fn charge(&mut self, units: u64, permit: PermitId, now: u64) {
        if self.algorithm == Algorithm::SlidingWindow {
            return self.window.charge(self.count, units, now);
        }
        let units = u128::from(units);
        if self.algorithm == Algorithm::TokenBucket {
            let room = LARGEST_EXACT - self.debt(now);
            let added = (units.min(self.cap()) * self.window_ticks).min(room);
            self.steps.push((now, i128::try_from(added).expect("fits")));
            return;
        }
        let counted = match self.algorithm {
            Algorithm::SlidingCounter => self.units_in_window(self.index(now)),
            _ => self.live_units(now),
        };
        let units = units.min(self.cap().saturating_sub(counted));
        if units == 0 {
            return;
        }
        self.hits.push(Hit { at: now, units, permit });
    }

    fn refund(&mut self, units: u64, now: u64) {
        if self.algorithm == Algorithm::SlidingWindow {
            return self.window.refund(units);
        }
        let mut units = u128::from(units);
        if self.algorithm == Algorithm::TokenBucket {
            let taken = units.min(self.cap()) * self.window_ticks;
            self.steps.push((now, -i128::try_from(taken).expect("fits")));
            return;
        }
        while units > 0
            && let Some(newest) = self.hits.last_mut()
        {
            let taken = units.min(newest.units);
            newest.units -= taken;
            units -= taken;
            if newest.units == 0 {
                self.hits.pop();
            }
        }
    }
}
