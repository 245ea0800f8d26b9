//! The forms with cells: the numbers of each cell, and what has expired of them.

use core::borrow::BorrowMut;

use super::form::{STEP_BITS, STEPS};
use super::{Form, WORDS};
use crate::algorithms::Window;
use crate::limit::{Divisor, Moment, Pace};
use crate::packed::with_low_bits;
use crate::{Ask, Limit, Packed, ResetAfter, Timestamp};

/// Bits of the index of the newest cell in a packed state. A cell is at least 67 us long, so fewer
/// than 2^14 cells begin within a deadline unit.
const INDEX_BITS: u32 = 14;
/// Where the pace begins in the head of a packed state.
const PACE_SHIFT: u32 = 2 + INDEX_BITS;

/// One cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// Units charged in it.
    pub units: u64,
    /// The most by which arrivals fell behind the pace.
    pub lag: u64,
    /// Its last hit, in fifteenths of the cell, rounded up.
    pub steps: u64,
}

/// Units in the cells of one form, measured against one pace.
///
/// Neither changes: the [`SlidingWindow`](super::SlidingWindow) that holds the cells replaces them
/// when a limit or a charge requires another form or pace. So where the form is a constant, the
/// positions of all numbers are too.
///
/// `W` is where the cells are: in the state itself or, while a packed state is decided on, in that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cells<W = [u64; WORDS]> {
    pub(super) form: Form,
    /// The `L` that lags are measured against.
    pub(super) pace: u64,
    /// Units of all cells, expired ones included.
    pub(super) total: u64,
    /// Those of the oldest cell that were expired when the cells were last advanced.
    expired: u64,
    /// The index of the oldest cell that holds units.
    pub(super) oldest: u64,
    /// The index of the newest cell that holds units.
    pub(super) newest: u64,
    /// When the newest cell's last unit is a window old, once that is known; otherwise 0.
    newest_whole_us: u64,
    /// Cells by index modulo their number, packed without gaps. Those outside `oldest..=newest`
    /// are zero.
    words: W,
}

/// Where the cells of a form lie in time, and the pace they are measured against.
pub(super) struct Grid {
    window_us: u64,
    pub(super) cell: Divisor,
    step: Divisor,
    pace: Pace,
}

impl Grid {
    #[inline(always)]
    pub(super) fn new(limit: &Limit, form: Form, pace: u64) -> Self {
        let (cell, step) = limit.cell_and_step(form);
        Grid { window_us: limit.window_us(), cell, step, pace: limit.pace(pace) }
    }

    #[inline(always)]
    fn start_us(&self, index: u64) -> u64 {
        index.saturating_mul(self.cell.value)
    }

    /// The last hit of a cell, as an offset.
    #[inline(always)]
    fn last_offset_us(&self, cell: Cell) -> u64 {
        (cell.steps * self.step.value).min(self.cell.value)
    }

    #[inline(always)]
    pub(super) fn last_us(&self, index: u64, cell: Cell) -> u64 {
        self.start_us(index).saturating_add(self.last_offset_us(cell))
    }

    /// When the last unit of a cell is a window old.
    #[inline(always)]
    fn whole_us(&self, index: u64, cell: Cell) -> u64 {
        self.last_us(index, cell).saturating_add(self.window_us)
    }

    /// The units of a cell that are certainly a window old.
    #[inline(always)]
    pub(super) fn expired(&self, index: u64, cell: Cell, now_us: u64) -> u64 {
        if self.whole_us(index, cell) <= now_us {
            return cell.units;
        }
        self.partly_expired(index, cell, now_us)
    }

    /// The units of a cell that are certainly a window old, if its last unit is not.
    #[inline(always)]
    fn partly_expired(&self, index: u64, cell: Cell, now_us: u64) -> u64 {
        match now_us.checked_sub(self.start_us(index).saturating_add(self.window_us)) {
            Some(us) => self.pace.units_in(us).saturating_sub(cell.lag).min(cell.units),
            None => 0,
        }
    }

    /// When this many of a cell's units, at least one, are certainly a window old.
    fn release_us(&self, index: u64, cell: Cell, units: u64) -> u64 {
        let whole_us = self.whole_us(index, cell);
        let reached = units + cell.lag;
        if reached > self.pace.units_in(self.cell.value) {
            return whole_us;
        }
        let start_us = self.start_us(index).saturating_add(self.window_us);
        whole_us.min(start_us.saturating_add(self.pace.us_for(reached)))
    }
}

impl Cells {
    /// Cells that hold nothing.
    pub(super) fn new(form: Form, pace: u64) -> Self {
        Self::empty(form, pace, [0; WORDS])
    }

    /// Restores cells with their indexes, oldest first. `None` if the form has no cells, or is too
    /// narrow for them or for the pace.
    pub(super) fn from_cells(form: Form, pace: u64, cells: &[(u64, Cell)]) -> Option<Self> {
        let &(newest, _) = cells.last()?;
        if form == Form::Log || form < Form::of(pace) {
            return None;
        }
        let mut restored = Cells { oldest: cells.first()?.0, newest, ..Cells::new(form, pace) };
        let mut next = newest.saturating_sub(form.cells());
        for &(index, cell) in cells {
            let fits = cell.units <= form.most_units()
                && cell.lag <= form.most_lag()
                && cell.steps <= STEPS;
            if index < next || index > newest || cell.units == 0 || !fits {
                return None;
            }
            restored.set(index, cell);
            restored.total += cell.units;
            next = index + 1;
        }
        Some(restored)
    }

    pub(super) fn pack(mut self, limit: &Limit) -> Option<Packed> {
        let (head, deadline) = self.pack_head(limit)?;
        Some(Packed { deadline, head, words: self.words })
    }
}

impl<W: BorrowMut<[u64; WORDS]>> Cells<W> {
    /// Cells that hold nothing, with words that are zero.
    #[inline(always)]
    pub(super) fn empty(form: Form, pace: u64, words: W) -> Self {
        Self { form, pace, total: 0, expired: 0, oldest: 0, newest: 0, newest_whole_us: 0, words }
    }

    /// The cells that were packed in this form, with their words.
    #[inline(always)]
    pub(super) fn unpack(form: Form, limit: &Limit, head: u64, deadline_us: u64, words: W) -> Self {
        let latest = limit.cell(form).split(deadline_us - limit.window_us()).0;
        let newest = with_low_bits(latest, head >> 2, INDEX_BITS);
        let oldest = newest - (head >> span_shift(form) & form.cells());
        let in_words = words.borrow()[WORDS - 1] >> form.last_word_bits();
        let (pace, total) = match form {
            Form::Cells3 => (in_words, 0),
            _ => (head >> PACE_SHIFT & form.most_units(), in_words),
        };
        let mut cells =
            Self { form, pace, total, expired: 0, oldest, newest, newest_whole_us: 0, words };
        if form == Form::Cells3 {
            cells.total = (oldest..=newest).map(|index| cells.get(index).units).sum();
        }
        cells
    }

    /// Returns the head of the packed state and its deadline. Numbers that do not fit the head are
    /// written into the unused bits at the end of the last word.
    #[inline(always)]
    pub(super) fn pack_head(&mut self, limit: &Limit) -> Option<(u64, u64)> {
        if self.is_empty() {
            *self.words.borrow_mut() = [0; WORDS];
            return Some((0, 0));
        }
        let deadline = Packed::deadline(self.expires_at(limit))?;
        let (in_head, in_words) = match self.form {
            // A pace of 40 bits does not fit the head.
            Form::Cells3 => (0, self.pace),
            _ => (self.pace, self.total),
        };
        let cell_bits = self.form.last_word_bits();
        let last = &mut self.words.borrow_mut()[WORDS - 1];
        *last = *last & ((1 << cell_bits) - 1) | in_words << cell_bits;
        let newest = (self.newest & ((1 << INDEX_BITS) - 1)) << 2;
        let span = (self.newest - self.oldest) << span_shift(self.form);
        Some((self.form as u64 | newest | in_head << PACE_SHIFT | span, deadline))
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.total == 0
    }

    #[inline(always)]
    pub(super) fn grid(&self, limit: &Limit) -> Grid {
        Grid::new(limit, self.form, self.pace)
    }

    /// Cells that hold units with their indexes, oldest first.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, Cell)> {
        let len = if self.is_empty() { 0 } else { self.newest - self.oldest + 1 };
        let cells = (self.oldest..self.oldest + len).map(|index| (index, self.get(index)));
        cells.filter(|(_, cell)| cell.units > 0)
    }

    /// The word in which a cell begins, and the bit.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "there are at most 16 cells")]
    fn position(&self, index: u64) -> (usize, u32) {
        // One more than there are cells is a power of two.
        let at = (index & self.form.cells()) as u32 * self.form.cell_bits();
        ((at / u64::BITS) as usize, at % u64::BITS)
    }

    #[inline(always)]
    pub(super) fn get(&self, index: u64) -> Cell {
        let (unit_bits, lag_bits) = (self.form.unit_bits(), self.form.lag_bits());
        let (word, shift) = self.position(index);
        let words = self.words.borrow();
        // The last word has none after it, and nothing reaches beyond it.
        let word_after = |number: usize| words[(word + number).min(WORDS - 1)];
        // 64 bits from the one that is `number` words after the first. A shift by 64 is not
        // defined, so it is done in two steps.
        let bits_after = |number: usize| {
            word_after(number) >> shift | word_after(number + 1) << 1 << (u64::BITS - 1 - shift)
        };
        let bits = bits_after(0);
        let rest = match self.form {
            Form::Cells3 => bits >> unit_bits | bits_after(1) << (u64::BITS - unit_bits),
            _ => bits >> unit_bits,
        };
        Cell {
            units: bits & ((1 << unit_bits) - 1),
            lag: rest & ((1 << lag_bits) - 1),
            steps: rest >> lag_bits & ((1 << STEP_BITS) - 1),
        }
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "bits are written word by word")]
    fn set(&mut self, index: u64, cell: Cell) {
        let (unit_bits, cell_bits) = (self.form.unit_bits(), self.form.cell_bits());
        let (word, shift) = self.position(index);
        let words = self.words.borrow_mut();
        let mut put = |number: usize, mask: u64, bits: u64| {
            // The mask is 0 if there is no such word.
            let word = &mut words[(word + number).min(WORDS - 1)];
            *word = *word & !mask | bits;
        };
        let rest = cell.steps << self.form.lag_bits() | cell.lag;
        let bits = u128::from(rest) << unit_bits | u128::from(cell.units);
        let mask = (1_u128 << cell_bits) - 1;
        put(0, (mask << shift) as u64, (bits << shift) as u64);
        put(1, (mask << shift >> 64) as u64, (bits << shift >> 64) as u64);
        if self.form == Form::Cells3 {
            let back = u128::BITS - 1 - shift;
            put(2, (mask >> 1 >> back) as u64, (bits >> 1 >> back) as u64);
        }
    }

    /// Removes cells whose last unit is a window old. None may lie ahead of now.
    #[inline(always)]
    pub(super) fn drop_expired(&mut self, grid: &Grid, now_us: u64) {
        self.expired = 0;
        while self.total > 0 {
            let cell = self.get(self.oldest);
            if cell.units > 0 {
                if grid.whole_us(self.oldest, cell) > now_us {
                    self.expired = grid.partly_expired(self.oldest, cell, now_us);
                    return;
                }
                self.set(self.oldest, Cell::default());
                self.total -= cell.units;
            }
            self.oldest += 1;
        }
    }

    /// Takes up to `units` off the newest cell and returns how many. An emptied cell is removed.
    pub(super) fn take_newest(&mut self, units: u64) -> u64 {
        let cell = self.get(self.newest);
        let taken = units.min(cell.units);
        self.newest_whole_us = 0;
        self.total -= taken;
        if taken < cell.units {
            self.set(self.newest, Cell { units: cell.units - taken, ..cell });
            return taken;
        }
        self.set(self.newest, Cell::default());
        while self.total > 0 && self.get(self.newest).units == 0 {
            self.newest -= 1;
        }
        taken
    }

    /// Adds units to the cell `index`, at an offset into it. What does not fit is cut off.
    #[inline(always)]
    pub(super) fn add(&mut self, grid: &Grid, units: u64, index: u64, offset_us: u64) {
        let cell = self.get(index);
        let behind = grid.pace.units_in(offset_us).saturating_sub(cell.units);
        let charged = Cell {
            units: cell.units.saturating_add(units).min(self.form.most_units()),
            lag: cell.lag.max(behind).min(self.form.most_lag()),
            steps: cell.steps.max(grid.step.ceil(offset_us)),
        };
        self.set(index, charged);
        if self.is_empty() {
            self.oldest = index;
        }
        self.total += charged.units - cell.units;
        self.newest = index;
        self.newest_whole_us = grid.whole_us(index, charged);
    }

    /// Raises the lags until each cell is released as a whole: all that is known of the arrivals in
    /// a cell is that they came before its last hit.
    pub(super) fn forget_arrivals(&mut self, grid: &Grid) {
        for index in self.oldest..=self.newest {
            let cell = self.get(index);
            if cell.units > 0 {
                let lag = grid.pace.units_in(grid.last_offset_us(cell));
                self.set(index, Cell { lag, ..cell });
            }
        }
    }

    /// When the oldest `units` of those that count are released. Only the oldest cell can be partly
    /// expired: units of a cell expire when the window has moved past its start, and all of the
    /// cell before it have expired by then.
    fn release_us(&self, limit: &Limit, mut units: u64) -> u64 {
        let grid = self.grid(limit);
        let (mut index, mut expired) = (self.oldest, self.expired);
        loop {
            let cell = self.get(index);
            let live = cell.units - expired;
            if units <= live || index >= self.newest {
                return grid.release_us(index, cell, expired + units);
            }
            (index, units, expired) = (index + 1, units - live, 0);
        }
    }
}

/// Where the head of a packed state has the number of cells from the oldest to the newest.
const fn span_shift(form: Form) -> u32 {
    match form {
        Form::Cells3 => PACE_SHIFT,
        _ => PACE_SHIFT + form.unit_bits(),
    }
}

impl<W: BorrowMut<[u64; WORDS]>> Window for Cells<W> {
    #[inline(always)]
    fn advance(&mut self, limit: &Limit, now: &Moment) {
        self.drop_expired(&self.grid(limit), now.at.as_micros());
    }

    #[inline(always)]
    fn available(&self, limit: &Limit, _now: &Moment) -> u64 {
        limit.count().saturating_sub(self.total - self.expired)
    }

    #[inline(always)]
    fn wait_us(&self, limit: &Limit, cost: u64, now: &Moment) -> u64 {
        match (self.total - self.expired + cost).saturating_sub(limit.count()) {
            0 => 0,
            lacking => self.release_us(limit, lacking) - now.at.as_micros(),
        }
    }

    #[inline(always)]
    fn reset_after(&self, limit: &Limit, now: &Moment) -> ResetAfter {
        let left_us = self.expires_at(limit).as_micros().saturating_sub(now.at.as_micros());
        ResetAfter::from_micros(if limit.count() > 0 { left_us } else { 0 })
    }

    #[inline(always)]
    fn charge(&mut self, limit: &Limit, units: u64, _ask: &Ask, now: &Moment) {
        if units > 0 {
            let (index, offset_us) = limit.split(self.form, now);
            self.add(&self.grid(limit), units, index, offset_us);
        }
    }

    fn refund(&mut self, _limit: &Limit, mut units: u64) {
        while units > 0 && self.total > 0 {
            units -= self.take_newest(units);
        }
    }

    #[inline(always)]
    fn expires_at(&self, limit: &Limit) -> Timestamp {
        if self.is_empty() {
            return Timestamp::EPOCH;
        }
        Timestamp::from_micros(match self.newest_whole_us {
            0 => self.grid(limit).whole_us(self.newest, self.get(self.newest)),
            whole_us => whole_us,
        })
    }
}
