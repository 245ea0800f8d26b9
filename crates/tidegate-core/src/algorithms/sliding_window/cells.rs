//! The forms with cells: the numbers of each cell, and how many of its units have expired.

use super::form::{STEP_BITS, STEPS};
use super::{WORDS, WindowForm};
use crate::algorithms::AlgorithmState;
use crate::limit::{Grid, WindowPosition};
use crate::packed::with_low_bits;
use crate::{Attempt, Limit, Packed, PackedWords, ResetAfter, Timestamp};

/// The number of bits of the index of the newest cell in a packed state. A cell is at least 67 us
/// long, so fewer than 2^13 cells begin within a deadline step, and the low bits identify one of them.
pub(super) const INDEX_BITS: u32 = 14;
/// The first bit of the pace in the head of a packed state.
const PACE_SHIFT: u32 = 2 + INDEX_BITS;

/// The numbers of one cell.
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
/// The form and the pace do not change. The [`SlidingWindow`](super::SlidingWindow) that holds the
/// cells replaces them when a limit or a charge requires another form or pace. So where the form is a
/// constant, the positions of all numbers are constants too.
///
/// `W` gives access to the words of the cells. They are in the state itself or, while a packed state
/// is decided in place, in the packed state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cells<W = [u64; WORDS]> {
    pub(super) form: WindowForm,
    /// The `L` that lags are measured against.
    pub(super) pace: u64,
    /// Units of all cells, expired ones included.
    pub(super) total: u64,
    /// Units of the oldest cell that had expired when the cells were last advanced.
    expired: u64,
    /// The index of the oldest cell that holds units.
    pub(super) oldest: u64,
    /// The index of the newest cell that holds units.
    pub(super) newest: u64,
    /// The newest cell. It is the one that is charged, so it is kept unpacked.
    last: Cell,
    /// The cells before the newest by index modulo their number, packed without gaps. The bits of
    /// cells outside `oldest..newest` are undefined.
    words: W,
}

/// Access to the words of cells.
pub(super) trait CellWords: PackedWords {
    /// Whether they are the words of a packed state that is decided in place. The cells then have
    /// the form and the pace of the limit.
    const IN_PLACE: bool;
}

impl CellWords for [u64; WORDS] {
    const IN_PLACE: bool = false;
}

/// The words of a packed state that is decided in place.
pub(super) struct InPlace<'w, W>(pub(super) &'w mut W);

impl<W: PackedWords> PackedWords for InPlace<'_, W> {
    #[inline(always)]
    fn get(&self, number: usize) -> u64 {
        self.0.get(number)
    }

    #[inline(always)]
    fn set(&mut self, number: usize, bits: u64) {
        self.0.set(number, bits);
    }
}

impl<W: PackedWords> CellWords for InPlace<'_, W> {
    const IN_PLACE: bool = true;
}

/// The grid of cells: that of the limit if they are decided in place, and otherwise a new one.
macro_rules! grid {
    ($cells:expr, $limit:expr) => {
        if W::IN_PLACE { $limit.grid() } else { &$cells.grid($limit) }
    };
}

impl Grid {
    #[inline(always)]
    pub(super) fn new(limit: &Limit, form: WindowForm, pace: u64) -> Self {
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

    /// The time at which the last unit of a cell is a window old.
    #[inline(always)]
    fn whole_us(&self, index: u64, cell: Cell) -> u64 {
        self.last_us(index, cell).saturating_add(self.window_us)
    }

    /// The time by which the start of the window is past the start of a cell that began `age` cells
    /// before the current one. `None` if it is not past it; no unit of the cell has expired then.
    #[inline(always)]
    fn past_start_us(&self, age: u64, elapsed_us: u64) -> Option<u64> {
        (age * self.cell.value + elapsed_us).checked_sub(self.window_us)
    }

    /// The units of a cell that are certainly a window old.
    pub(super) fn expired(&self, index: u64, cell: Cell, now_us: u64) -> u64 {
        let (current, elapsed_us) = self.cell.split(now_us);
        match self.past_start_us(current.saturating_sub(index), elapsed_us) {
            Some(past_us) if past_us >= self.last_offset_us(cell) => cell.units,
            Some(past_us) => self.partly_expired(cell, past_us),
            None => 0,
        }
    }

    /// The units of a cell that are certainly a window old, if its last unit is not.
    #[inline(always)]
    fn partly_expired(&self, cell: Cell, past_us: u64) -> u64 {
        self.pace.units_in(past_us).saturating_sub(cell.lag).min(cell.units)
    }

    /// The time at which `units` units of a cell, at least one, are certainly a window old.
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
    /// Creates cells without units.
    pub(super) fn new(form: WindowForm, pace: u64) -> Self {
        Self::empty(form, pace, [0; WORDS])
    }

    /// Restores cells with their indexes, oldest first. Returns `None` if `form` is the log form, or
    /// is too narrow for the cells or for the pace.
    pub(super) fn from_cells(form: WindowForm, pace: u64, cells: &[(u64, Cell)]) -> Option<Self> {
        let &(newest, _) = cells.last()?;
        if form == WindowForm::Times || form < WindowForm::of(pace) {
            return None;
        }
        let mut restored = Cells::new(form, pace);
        for &(index, cell) in cells {
            let fits = cell.units <= form.most_units()
                && cell.lag <= form.most_lag()
                && cell.steps <= STEPS;
            let is_next = restored.is_empty() || index > restored.newest;
            if !is_next || newest.saturating_sub(index) > form.cells() || cell.units == 0 || !fits {
                return None;
            }
            restored.begin(index);
            restored.last = cell;
            restored.total += cell.units;
        }
        Some(restored)
    }

    pub(super) fn pack(mut self, limit: &Limit) -> Option<Packed> {
        if self.is_empty() {
            return Some(Packed::default());
        }
        let deadline = Packed::deadline(self.expires_at(limit))?;
        let head = self.pack_head();
        Some(Packed { deadline, head, words: self.words })
    }

    /// The time at which the oldest `units` of those that count are released. Only the oldest cell
    /// can be partly expired: the units of a cell expire once the start of the window is past the
    /// start of the cell, and by then all units of the cell before it have expired.
    #[cold]
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

impl<W: CellWords> Cells<W> {
    /// Creates cells without units. The words may have any value.
    #[inline(always)]
    pub(super) fn empty(form: WindowForm, pace: u64, words: W) -> Self {
        let last = Cell::default();
        Self { form, pace, total: 0, expired: 0, oldest: 0, newest: 0, last, words }
    }

    /// Restores cells that were packed in this form, from their words. The index of the newest cell
    /// is at most `latest`, and less than 2^14 below it.
    #[inline(always)]
    pub(super) fn unpack(form: WindowForm, head: u64, latest: u64, words: W) -> Self {
        let newest = with_low_bits(latest, head >> 2, INDEX_BITS);
        let oldest = newest - (head >> span_shift(form) & form.cells());
        let Tail { total, pace, last } = Tail::read(form, head, &words);
        let mut cells = Self { form, pace, total, expired: 0, oldest, newest, last, words };
        if form == WindowForm::Cells3 {
            let mut index = oldest;
            while index <= newest {
                cells.total += cells.get(index).units;
                index += 1;
            }
        }
        cells
    }

    /// Returns the head of the packed state of cells that are not empty. Numbers that do not fit the
    /// head are written into the bits of the words that the cells leave unused.
    #[inline(always)]
    pub(super) fn pack_head(&mut self) -> u64 {
        let tail = Tail { total: self.total, pace: self.pace, last: self.last };
        tail.write(self.form, &mut self.words);
        let newest = (self.newest & ((1 << INDEX_BITS) - 1)) << 2;
        let span = (self.newest - self.oldest) << span_shift(self.form);
        packed_form_and_pace(self.form, self.pace) | newest | span
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.total == 0
    }

    pub(super) fn grid(&self, limit: &Limit) -> Grid {
        Grid::new(limit, self.form, self.pace)
    }

    /// A copy for rare computations. A state whose address is passed to a function is kept in
    /// memory, and one whose address is not is kept in registers.
    #[inline(always)]
    fn copied(&self) -> Cells {
        let Self { form, pace, total, expired, oldest, newest, last, .. } = *self;
        let word = |number: usize| self.words.get(number);
        let words = [word(0), word(1), word(2), word(3), word(4), word(5)];
        Cells { form, pace, total, expired, oldest, newest, last, words }
    }

    /// The cells that hold units with their indexes, oldest first.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, Cell)> {
        let len = if self.is_empty() { 0 } else { self.newest - self.oldest + 1 };
        let cells = (self.oldest..self.oldest + len).map(|index| (index, self.get(index)));
        cells.filter(|(_, cell)| cell.units > 0)
    }

    /// The word and the bit at which a cell before the newest begins.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "there are at most 15 cells")]
    fn position(&self, index: u64) -> (usize, u32) {
        let at = (index % self.form.cells()) as u32 * self.form.cell_bits();
        ((at / u64::BITS) as usize, at % u64::BITS)
    }

    #[inline(always)]
    pub(super) fn get(&self, index: u64) -> Cell {
        debug_assert!((self.oldest..=self.newest).contains(&index), "{index} is outside");
        if index == self.newest {
            return self.last;
        }
        let (unit_bits, lag_bits) = (self.form.unit_bits(), self.form.lag_bits());
        let (word, shift) = self.position(index);
        // No cell extends beyond the last word.
        let word_after = |number: usize| self.words.get((word + number).min(WORDS - 1));
        // The 64 bits that begin `number` words after the first bit. A shift by 64 is not defined,
        // so it is done in two steps.
        let bits_after = |number: usize| {
            word_after(number) >> shift | word_after(number + 1) << 1 << (u64::BITS - 1 - shift)
        };
        let bits = bits_after(0);
        let rest = match self.form {
            WindowForm::Cells3 => bits >> unit_bits | bits_after(1) << (u64::BITS - unit_bits),
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
        if index == self.newest {
            self.last = cell;
            return;
        }
        let (unit_bits, cell_bits) = (self.form.unit_bits(), self.form.cell_bits());
        let (word, shift) = self.position(index);
        let words = &mut self.words;
        let mut put = |number: usize, mask: u64, bits: u64| {
            // The mask is 0 if the word does not exist.
            let word = (word + number).min(WORDS - 1);
            words.set(word, words.get(word) & !mask | bits);
        };
        let rest = cell.steps << self.form.lag_bits() | cell.lag;
        let bits = u128::from(rest) << unit_bits | u128::from(cell.units);
        let mask = (1_u128 << cell_bits) - 1;
        put(0, (mask << shift) as u64, (bits << shift) as u64);
        put(1, (mask << shift >> 64) as u64, (bits << shift >> 64) as u64);
    }

    /// Makes an empty cell the newest. Its index is not below that of the newest cell.
    #[inline(always)]
    fn begin(&mut self, index: u64) {
        if self.is_empty() {
            self.oldest = index;
        } else {
            let (before, last) = (self.newest, self.last);
            // The previous newest cell is stored with the packed ones.
            self.newest = index;
            self.set(before, last);
            // A `while` loop: loops over iterators are not always inlined, and the cells would then
            // be kept in memory.
            let mut skipped = before + 1;
            while skipped < index {
                self.set(skipped, Cell::default());
                skipped += 1;
            }
        }
        self.newest = index;
        self.last = Cell::default();
    }

    /// Removes cells whose last unit is a window old, at the time `elapsed_us` after the start of the
    /// cell `current`. No cell may be later than that.
    #[inline(always)]
    pub(super) fn drop_expired(&mut self, grid: &Grid, current: u64, elapsed_us: u64) {
        self.expired = 0;
        // Most often none can be removed, so the first one is checked outside the loop.
        if self.is_empty() || !self.drop_oldest(grid, current, elapsed_us) {
            return;
        }
        while self.total > 0 && self.drop_oldest(grid, current, elapsed_us) {}
    }

    /// Removes the oldest cell if its last unit is a window old, and otherwise counts its expired
    /// units. Returns whether the cell was removed.
    #[inline(always)]
    fn drop_oldest(&mut self, grid: &Grid, current: u64, elapsed_us: u64) -> bool {
        let past_us = grid.past_start_us(current - self.oldest, elapsed_us);
        let Some(past_us) = past_us else { return false };
        let cell = self.get(self.oldest);
        if cell.units > 0 && past_us < grid.last_offset_us(cell) {
            self.expired = grid.partly_expired(cell, past_us);
            return false;
        }
        self.total -= cell.units;
        self.oldest += 1;
        true
    }

    /// Removes up to `units` from the newest cell and returns how many. An emptied cell is removed.
    pub(super) fn take_newest(&mut self, units: u64) -> u64 {
        let taken = units.min(self.last.units);
        self.last.units -= taken;
        self.total -= taken;
        if self.last.units == 0 {
            self.last = Cell::default();
        }
        while self.total > 0 && self.last.units == 0 {
            let before = self.newest - 1;
            (self.newest, self.last) = (before, self.get(before));
        }
        taken
    }

    /// Adds units to the cell `index`, at an offset into it. Units that do not fit are cut off.
    #[inline(always)]
    pub(super) fn add(&mut self, grid: &Grid, units: u64, index: u64, offset_us: u64) {
        if self.is_empty() || index != self.newest {
            self.begin(index);
        }
        let cell = self.last;
        let behind = grid.pace.units_in(offset_us).saturating_sub(cell.units);
        let steps = cell.steps.max(grid.step.ceil(offset_us));
        self.last = if W::IN_PLACE {
            // The form can hold the units that its limit admits, and the lag of its pace.
            Cell { units: cell.units + units, lag: cell.lag.max(behind), steps }
        } else {
            let units = cell.units.saturating_add(units).min(self.form.most_units());
            Cell { units, lag: cell.lag.max(behind).min(self.form.most_lag()), steps }
        };
        self.total += self.last.units - cell.units;
    }

    /// Raises the lags until each cell is released as a whole. The arrivals in a cell are then only
    /// known not to be later than its last hit.
    pub(super) fn forget_arrivals(&mut self, grid: &Grid) {
        for index in self.oldest..=self.newest {
            let cell = self.get(index);
            if cell.units > 0 {
                let lag = grid.pace.units_in(grid.last_offset_us(cell));
                self.set(index, Cell { lag, ..cell });
            }
        }
    }
}

/// The form and, if it is not in the words, the pace, as bits of the head of a packed state.
#[inline(always)]
const fn packed_form_and_pace(form: WindowForm, pace: u64) -> u64 {
    match form {
        WindowForm::Cells3 => form as u64,
        _ => form as u64 | pace << PACE_SHIFT,
    }
}

/// The first bit of the number of cells from the oldest to the newest in the head of a packed state.
const fn span_shift(form: WindowForm) -> u32 {
    match form {
        WindowForm::Cells3 => PACE_SHIFT,
        _ => PACE_SHIFT + form.unit_bits(),
    }
}

impl<W: CellWords> Cells<W> {
    /// The index of the current cell, and the time since it began.
    #[inline(always)]
    fn split(&self, limit: &Limit, now: &WindowPosition) -> (u64, u64) {
        if W::IN_PLACE { (now.index, now.elapsed_us) } else { limit.split(self.form, now) }
    }
}

impl<W: CellWords> AlgorithmState for Cells<W> {
    #[inline(always)]
    fn advance(&mut self, limit: &Limit, now: &WindowPosition) {
        let (current, elapsed_us) = self.split(limit, now);
        let grid = grid!(self, limit);
        self.drop_expired(grid, current, elapsed_us);
    }

    #[inline(always)]
    fn available(&self, limit: &Limit, _now: &WindowPosition) -> u64 {
        limit.count().saturating_sub(self.total - self.expired)
    }

    #[inline(always)]
    fn wait_us(&self, limit: &Limit, cost: u64, now: &WindowPosition) -> u64 {
        match (self.total - self.expired + cost).saturating_sub(limit.count()) {
            0 => 0,
            lacking => self.copied().release_us(limit, lacking) - now.at.as_micros(),
        }
    }

    #[inline(always)]
    fn reset_after(&self, limit: &Limit, now: &WindowPosition) -> ResetAfter {
        if self.is_empty() || limit.count() == 0 {
            return ResetAfter::from_micros(0);
        }
        let (current, elapsed_us) = self.split(limit, now);
        let grid = grid!(self, limit);
        let passed_us = (current - self.newest) * grid.cell.value + elapsed_us;
        ResetAfter::from_micros(grid.last_offset_us(self.last) + grid.window_us - passed_us)
    }

    #[inline(always)]
    fn charge(&mut self, limit: &Limit, units: u64, _attempt: &Attempt, now: &WindowPosition) {
        if units > 0 {
            let (index, offset_us) = self.split(limit, now);
            let grid = grid!(self, limit);
            self.add(grid, units, index, offset_us);
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
        let grid = grid!(self, limit);
        Timestamp::from_micros(grid.whole_us(self.newest, self.last))
    }
}

/// The numbers that a packed state keeps in the bits that the cells before the newest leave unused:
/// the newest cell and, where they fit, the total and the pace. The other forms keep the pace in the
/// head.
struct Tail {
    total: u64,
    pace: u64,
    last: Cell,
}

/// The first bits of the numbers in the last word of the form with 15 cells, which leave 39 bits of
/// it unused.
const TOTAL15: u32 = 25;
const UNITS15: u32 = TOTAL15 + 16;
const LAG15: u32 = UNITS15 + WindowForm::Cells15.unit_bits();
const STEPS15: u32 = LAG15 + WindowForm::Cells15.lag_bits();
/// The first bits of the lag and the total in the last word of the form with 7 cells. They and the
/// units fill it. The steps are at the end of the word before.
const LAG7: u32 = WindowForm::Cells7.unit_bits();
const TOTAL7: u32 = LAG7 + WindowForm::Cells7.lag_bits();
const STEPS7: u32 = u64::BITS - STEP_BITS;
/// The first bits of numbers in the form with 3 cells. The last word but one has the units and the
/// low bits of the pace. The last word has the lag, the steps and the rest of the pace. The total is
/// not kept.
const PACE3: u32 = WindowForm::Cells3.unit_bits();
const STEPS3: u32 = WindowForm::Cells3.lag_bits();
const PACE3_HIGH: u32 = STEPS3 + STEP_BITS;

/// Extracts `count` bits of a word.
#[inline(always)]
const fn bits(word: u64, shift: u32, count: u32) -> u64 {
    word >> shift & ((1 << count) - 1)
}

impl Tail {
    #[inline(always)]
    fn read(form: WindowForm, head: u64, words: &impl PackedWords) -> Self {
        let (before, end) = (words.get(WORDS - 2), words.get(WORDS - 1));
        let (unit_bits, lag_bits) = (form.unit_bits(), form.lag_bits());
        let pace = head >> PACE_SHIFT & form.most_units();
        match form {
            WindowForm::Times => Tail { total: 0, pace: 0, last: Cell::default() },
            WindowForm::Cells15 => {
                let (units, lag) = (bits(end, UNITS15, unit_bits), bits(end, LAG15, lag_bits));
                let last = Cell { units, lag, steps: end >> STEPS15 };
                Tail { total: bits(end, TOTAL15, UNITS15 - TOTAL15), pace, last }
            }
            WindowForm::Cells7 => {
                let (units, lag) = (bits(end, 0, unit_bits), bits(end, LAG7, lag_bits));
                let last = Cell { units, lag, steps: before >> STEPS7 };
                Tail { total: end >> TOTAL7, pace, last }
            }
            WindowForm::Cells3 => {
                let (units, lag) = (bits(before, 0, unit_bits), bits(end, 0, lag_bits));
                let last = Cell { units, lag, steps: bits(end, STEPS3, STEP_BITS) };
                let pace = before >> PACE3 | end >> PACE3_HIGH << (u64::BITS - PACE3);
                Tail { total: 0, pace, last }
            }
        }
    }

    #[inline(always)]
    fn write(self, form: WindowForm, words: &mut impl PackedWords) {
        const BEFORE: usize = WORDS - 2;
        const END: usize = WORDS - 1;
        let Cell { units, lag, steps } = self.last;
        match form {
            WindowForm::Times => {}
            WindowForm::Cells15 => {
                let tail = self.total << TOTAL15 | units << UNITS15 | lag << LAG15;
                words.set(END, bits(words.get(END), 0, TOTAL15) | tail | steps << STEPS15);
            }
            WindowForm::Cells7 => {
                words.set(BEFORE, bits(words.get(BEFORE), 0, STEPS7) | steps << STEPS7);
                words.set(END, self.total << TOTAL7 | lag << LAG7 | units);
            }
            WindowForm::Cells3 => {
                words.set(BEFORE, self.pace << PACE3 | units);
                let pace_high = self.pace >> (u64::BITS - PACE3) << PACE3_HIGH;
                words.set(END, pace_high | steps << STEPS3 | lag);
            }
        }
    }
}
