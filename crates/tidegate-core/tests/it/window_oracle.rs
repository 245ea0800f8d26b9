//! A direct implementation of the definition of `sliding-window`, with plain maps and wide signed
//! numbers, that recomputes every count. It shares no code with the crate.

use std::collections::BTreeMap;

/// The forms, narrowest first: cells to the window, the largest limit, the most units in a cell.
/// The times form holds 20 units.
const FORMS: [(i128, i128, i128); 4] =
    [(0, 20, 20), (15, 2_000, 2_047), (7, 2_000_000, 2_097_151), (3, i128::MAX, (1 << 40) - 1)];

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    units: i128,
    lag: i128,
    steps: i128,
}

#[derive(Clone, Debug)]
pub struct WindowOracle {
    window: i128,
    form: usize,
    pace: i128,
    /// The times form: one time per unit.
    times: Vec<i128>,
    cells: BTreeMap<i128, Cell>,
}

fn div_ceil(dividend: i128, divisor: i128) -> i128 {
    (dividend + divisor - 1) / divisor
}

impl WindowOracle {
    pub fn new(window_us: u64) -> Self {
        let window = window_us.into();
        WindowOracle { window, form: 0, pace: 0, times: Vec::new(), cells: BTreeMap::new() }
    }

    fn form_of(limit: i128) -> usize {
        FORMS.iter().position(|(_, most, _)| limit <= *most).expect("the last has no end")
    }

    /// The step of the grid of the times form: the smallest of 1, 2, 5, 10, ... that divides the
    /// window into at most 65,535.
    fn tick(&self) -> i128 {
        let ticks = (0..30).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_i128.pow(power)));
        ticks.into_iter().find(|tick| div_ceil(self.window, *tick) <= 65_535).expect("some")
    }

    fn width(&self) -> i128 {
        div_ceil(self.window, FORMS[self.form].0)
    }

    fn step(&self) -> i128 {
        div_ceil(self.width(), 15)
    }

    /// The units that arrive in `x` microseconds at the pace.
    fn f(&self, x: i128) -> i128 {
        let powers = (0..30).map(|power| 10_i128.pow(power));
        let fits = |tick: &i128| div_ceil(self.window, *tick) <= (1 << 53) / (self.pace + 1);
        let tick = powers.into_iter().find(fits).expect("some");
        self.pace * (x / tick) / div_ceil(self.window, tick)
    }

    fn last(&self, index: i128, cell: &Cell) -> i128 {
        index * self.width() + (cell.steps * self.step()).min(self.width())
    }

    fn live(&self, index: i128, cell: &Cell, now: i128) -> i128 {
        if self.last(index, cell) + self.window <= now {
            return 0;
        }
        let x = now - self.window - index * self.width();
        let expired = if x <= 0 { 0 } else { (self.f(x) - cell.lag).clamp(0, cell.units) };
        cell.units - expired
    }

    fn is_live_time(&self, time: i128, now: i128) -> bool {
        time + div_ceil(self.window, self.tick()) > now / self.tick()
    }

    fn is_empty(&self) -> bool {
        self.times.is_empty() && self.cells.is_empty()
    }

    pub fn used(&self, now: u64) -> u128 {
        let now = now.into();
        let times = self.times.iter().filter(|time| self.is_live_time(**time, now)).count();
        let cells: i128 = self.cells.iter().map(|(index, cell)| self.live(*index, cell, now)).sum();
        u128::try_from(times as i128 + cells).expect("not negative")
    }

    /// The time at which the newest unit is released, if any is held.
    pub fn released(&self) -> Option<i128> {
        let time =
            self.times.last().map(|time| (time + div_ceil(self.window, self.tick())) * self.tick());
        let cell = self.cells.last_key_value();
        time.or(cell.map(|(index, cell)| self.last(*index, cell) + self.window))
    }

    /// Advances to `now`: drops expired units, and moves units from the future to now.
    pub fn arrive(&mut self, now: u64) {
        let now = i128::from(now);
        if self.form == 0 {
            let newest = div_ceil(now, self.tick());
            self.times.iter_mut().for_each(|time| *time = newest.min(*time));
            let times = std::mem::take(&mut self.times);
            self.times = times.into_iter().filter(|time| self.is_live_time(*time, now)).collect();
            return;
        }
        let ahead = self.cells.split_off(&(now / self.width() + 1));
        self.drop_expired(now);
        let units: i128 = ahead.values().map(|cell| cell.units).sum();
        if units > 0 {
            self.widen_for(units, self.pace, now);
            self.add(units, now);
        }
    }

    fn drop_expired(&mut self, now: i128) {
        let cells = std::mem::take(&mut self.cells);
        let is_live = |(index, cell): &(i128, Cell)| self.last(*index, cell) + self.window > now;
        self.cells = cells.into_iter().filter(is_live).collect();
    }

    /// Charges units under a limit.
    pub fn charge(&mut self, limit: u128, units: u64, now: u64) {
        let (limit, units, now) =
            (i128::try_from(limit).expect("small"), i128::from(units), i128::from(now));
        if units == 0 {
            return;
        }
        if self.is_empty() {
            (self.form, self.pace) = (Self::form_of(limit), limit);
        }
        while self.form < Self::form_of(limit) {
            self.widen(limit, now);
        }
        self.widen_for(units, limit, now);
        if self.pace != limit {
            self.pace = limit;
            let lag = |cell: &Cell| self.f((cell.steps * self.step()).min(self.width()));
            let cells =
                self.cells.iter().map(|(index, cell)| (*index, Cell { lag: lag(cell), ..*cell }));
            self.cells = cells.collect();
        }
        self.add(units, now);
    }

    fn widen_for(&mut self, units: i128, pace: i128, now: i128) {
        while self.form < 3 {
            let held = match self.form {
                0 => self.times.len() as i128,
                _ => self.cells.get(&(now / self.width())).map_or(0, |cell| cell.units),
            };
            if held + units <= FORMS[self.form].2 {
                return;
            }
            self.widen(pace, now);
        }
    }

    fn widen(&mut self, pace: i128, now: i128) {
        let times = self.times.iter().map(|time| (time * self.tick(), 1));
        let cells = self.cells.iter().map(|(index, cell)| (self.last(*index, cell), cell.units));
        let held: Vec<(i128, i128)> = times.chain(cells).collect();
        (self.form, self.pace) = (self.form + 1, pace);
        self.times.clear();
        self.cells.clear();
        for (last, units) in held {
            self.add(units, last.min(now));
        }
        self.drop_expired(now);
    }

    fn add(&mut self, units: i128, now: i128) {
        if self.form == 0 {
            let time = div_ceil(now, self.tick());
            (0..units).for_each(|_| self.times.push(time));
            return;
        }
        let (index, offset) = (now / self.width(), now % self.width());
        let mut cell = self.cells.get(&index).copied().unwrap_or_default();
        cell.lag = cell.lag.max(self.f(offset) - cell.units).min(self.f(self.width()));
        cell.units = (cell.units + units).min(FORMS[self.form].2);
        cell.steps = cell.steps.max(div_ceil(offset, self.step()));
        self.cells.insert(index, cell);
    }

    pub fn refund(&mut self, units: u64) {
        let mut units = i128::from(units);
        while units > 0 && self.times.pop().is_some() {
            units -= 1;
        }
        while units > 0
            && let Some(mut newest) = self.cells.last_entry()
        {
            let taken = units.min(newest.get().units);
            units -= taken;
            newest.get_mut().units -= taken;
            if newest.get().units == 0 {
                newest.remove();
            }
        }
    }
}
