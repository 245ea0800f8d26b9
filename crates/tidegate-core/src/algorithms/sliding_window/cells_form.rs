//! The forms with cells: the numbers of each cell, and how many of its units have expired.

use super::form::{STEP_BITS, STEPS};
use super::{WORDS, WindowForm};
use crate::algorithms::{AlgorithmState, rarely};
use crate::limit::{Grid, WindowPosition};
use crate::{Attempt, Limit, Packed, PackedWords, ResetAfter, Timestamp};

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
/// The form of cells does not change: the [`SlidingWindow`](super::SlidingWindow) that holds them
/// charges their units to new cells when a limit or a charge requires a wider form. So where the
/// form is a constant, the positions of all numbers are constants too. The pace changes in place,
/// and the lags are raised.
///
/// `W` gives access to the words of the cells. They are in the state itself or, while a packed
/// state is decided in place, in the packed state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cells<W = [u64; WORDS]> {
    pub(super) form: WindowForm,
    /// The `L` that lags are measured against.
    pub(super) pace: u64,
    /// Units of all cells, expired ones included.
    pub(super) total: u64,
    /// Units of the oldest cell that had expired when the cells were last advanced.
    pub(super) expired: u64,
    /// The index of the oldest cell that holds units.
    pub(super) oldest: u64,
    /// The index of the newest cell that holds units.
    pub(super) newest: u64,
    /// The oldest cell, unless it is also the newest. Every decision reads the oldest and the
    /// newest cell, so they are kept unpacked.
    pub(super) first: Cell,
    /// The newest cell. It is the one that is charged.
    pub(super) last: Cell,
    /// The cells between the oldest and the newest, youngest first, packed without gaps. All other
    /// bits are undefined.
    pub(super) words: W,
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
impl<W: PackedWords> CellWords for &mut W {
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

    /// The time since the start of a cell that began `cells` cells before the current one.
    #[inline(always)]
    fn age_us(&self, cells: u64, elapsed_us: u64) -> u64 {
        cells * self.cell.value + elapsed_us
    }

    /// The units of a cell that are certainly a window old.
    pub(super) fn expired(&self, index: u64, cell: Cell, now_us: u64) -> u64 {
        let (current, elapsed_us) = self.cell.split(now_us);
        let age_us = self.age_us(current.saturating_sub(index), elapsed_us);
        if self.is_expired(cell, age_us) { cell.units } else { self.partly_expired(cell, age_us) }
    }

    /// Whether the last unit of a cell that began `age_us` ago is a window old.
    #[inline(always)]
    fn is_expired(&self, cell: Cell, age_us: u64) -> bool {
        age_us >= self.window_us + self.last_offset_us(cell)
    }

    /// The units of a cell that began `age_us` ago that are certainly a window old, if its last
    /// unit is not.
    #[inline(always)]
    fn partly_expired(&self, cell: Cell, age_us: u64) -> u64 {
        let past_us = age_us.saturating_sub(self.window_us);
        self.pace.units_in(past_us).saturating_sub(cell.lag).min(cell.units)
    }

    /// The time at which `units` units of a cell, at least one, are certainly a window old.
    #[inline(always)]
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

    /// Restores cells with their indexes, oldest first. Returns `None` if `form` is the times form,
    /// or is too narrow for the cells or for the pace.
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
        let deadline = Packed::deadline_at(self.expires_at(limit))?;
        self.pack_words();
        Some(Packed::new(deadline, self.packed_head(), self.words))
    }

    /// The time at which the oldest `units` of those that count are released. Only the oldest cell
    /// can be partly expired: the units of a cell expire once the start of the window is past the
    /// start of the cell, and by then all units of the cell before it have expired.
    #[cold]
    fn release_us(&self, grid: &Grid, mut units: u64) -> u64 {
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
        let (first, last) = (Cell::default(), Cell::default());
        Self { form, pace, total: 0, expired: 0, oldest: 0, newest: 0, first, last, words }
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
        let Self { form, pace, total, expired, oldest, newest, first, last, .. } = *self;
        let word = |number: usize| self.words.get(number);
        let words = [word(0), word(1), word(2), word(3), word(4), word(5)];
        Cells { form, pace, total, expired, oldest, newest, first, last, words }
    }

    /// The cells that hold units with their indexes, oldest first.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, Cell)> {
        let len = if self.is_empty() { 0 } else { self.newest - self.oldest + 1 };
        let cells = (self.oldest..self.oldest + len).map(|index| (index, self.get(index)));
        cells.filter(|(_, cell)| cell.units > 0)
    }

    /// The word and the bit at which a cell between the oldest and the newest begins.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "there are at most 14 cells")]
    fn position(&self, index: u64) -> (usize, u32) {
        let at = (self.newest - index - 1) as u32 * self.form.cell_bits();
        ((at / u64::BITS) as usize, at % u64::BITS)
    }

    #[inline(always)]
    pub(super) fn get(&self, index: u64) -> Cell {
        debug_assert!((self.oldest..=self.newest).contains(&index), "{index} is outside");
        if index == self.newest {
            self.last
        } else if index == self.oldest {
            self.first
        } else {
            self.between(index)
        }
    }

    /// A cell between the oldest and the newest.
    #[inline(always)]
    fn between(&self, index: u64) -> Cell {
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

    #[expect(clippy::cast_possible_truncation, reason = "bits are written word by word")]
    fn set(&mut self, index: u64, cell: Cell) {
        if index == self.newest {
            self.last = cell;
            return;
        }
        if index == self.oldest {
            self.first = cell;
            return;
        }
        let (word, shift) = self.position(index);
        let words = &mut self.words;
        let mut put = |number: usize, mask: u64, bits: u64| {
            // The mask is 0 if the word does not exist.
            let word = (word + number).min(WORDS - 1);
            words.set(word, words.get(word) & !mask | bits);
        };
        let bits = self.form.pack_cell(cell);
        let mask = (1_u128 << self.form.cell_bits()) - 1;
        put(0, (mask << shift) as u64, (bits << shift) as u64);
        put(1, (mask << shift >> 64) as u64, (bits << shift >> 64) as u64);
    }

    /// Makes an empty cell the newest. Its index is above that of the newest cell, unless the state
    /// is empty.
    #[inline(always)]
    fn begin(&mut self, index: u64) {
        if self.is_empty() {
            self.oldest = index;
        } else {
            // Where requests are frequent or regular, most new cells follow the newest.
            match index - self.newest {
                1 => self.push_last(1),
                count => self.push_last(count),
            }
        }
        self.newest = index;
        self.last = Cell::default();
    }

    /// Moves the newest cell to the words, and adds empty cells after it, `count` cells in all.
    ///
    /// The words are shifted at once: a loop over the cells would have an unpredictable number of
    /// iterations.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "bits are written word by word")]
    fn push_last(&mut self, count: u64) {
        debug_assert!(count <= self.form.cells());
        if self.oldest == self.newest {
            self.first = self.last;
        }
        // Zeros, the newest cell in the highest bits, and the words.
        let bits = self.form.pack_cell(self.last) << (u128::BITS - self.form.cell_bits());
        let mut padded = [0; 2 * WORDS];
        padded[WORDS - 2] = bits as u64;
        padded[WORDS - 1] = (bits >> u64::BITS) as u64;
        for number in 0..WORDS {
            padded[WORDS + number] = self.words.get(number);
        }
        let by = count as u32 * self.form.cell_bits();
        let (words, shift) = ((by / u64::BITS) as usize, by % u64::BITS);
        let from = &padded[WORDS - 1 - words..];
        for number in 0..WORDS {
            // A shift by 64 is not defined, so it is done in two steps.
            let below = from[number] >> 1 >> (u64::BITS - 1 - shift);
            self.words.set(number, from[number + 1] << shift | below);
        }
    }

    /// Makes the cell before the newest the newest.
    fn pop_last(&mut self) {
        self.last = self.get(self.newest - 1);
        self.newest -= 1;
        if self.oldest == self.newest {
            return;
        }
        let (skipped, shift) = self.cell_words();
        for number in 0..WORDS {
            let word = |number: usize| if number < WORDS { self.words.get(number) } else { 0 };
            let above = word(number + skipped + 1) << (u64::BITS - shift);
            self.words.set(number, word(number + skipped) >> shift | above);
        }
    }

    /// The length of a cell as a number of whole words and of further bits, which is not 0.
    #[inline(always)]
    fn cell_words(&self) -> (usize, u32) {
        let bits = self.form.cell_bits();
        ((bits / u64::BITS) as usize, bits % u64::BITS)
    }

    /// Removes cells whose last unit is a window old, at the time `elapsed_us` after the start of
    /// the cell `current`, and counts the expired units of the oldest cell that is left. No cell
    /// may be later than `current`.
    #[inline(always)]
    pub(super) fn drop_expired(&mut self, grid: &Grid, current: u64, elapsed_us: u64) {
        self.expired = 0;
        if self.is_empty() {
            return;
        }
        let mut cell = self.oldest_cell();
        let mut age_us = grid.age_us(current - self.oldest, elapsed_us);
        if grid.is_expired(cell, age_us) {
            rarely();
            self.drop_oldest(grid, current, elapsed_us);
            if self.is_empty() {
                return;
            }
            cell = self.oldest_cell();
            age_us = grid.age_us(current - self.oldest, elapsed_us);
        }
        self.expired = grid.partly_expired(cell, age_us);
    }

    /// The oldest cell. Until they are charged, cells that are decided in place have it even if it
    /// is the only one.
    #[inline(always)]
    fn oldest_cell(&self) -> Cell {
        if W::IN_PLACE { self.first } else { self.get(self.oldest) }
    }

    /// Removes the cells that have expired, of which the oldest cell is one.
    #[inline(always)]
    fn drop_oldest(&mut self, grid: &Grid, current: u64, elapsed_us: u64) {
        // A cell has expired if the next one is older than a window. At most one more cell has.
        let mut most = self.form.cells();
        most -= u64::from(grid.age_us(most - 1, elapsed_us) >= grid.window_us);
        let oldest = (self.oldest + 1).max(current.saturating_sub(most));
        if oldest > self.newest {
            self.total = 0;
            return;
        }
        let cell = if oldest < self.newest { self.between(oldest) } else { self.last };
        // As in `begin`, most often one cell is removed.
        self.total = match oldest - self.oldest {
            1 => self.total - self.oldest_cell().units,
            _ => self.units_since(oldest),
        };
        self.oldest = oldest;
        if grid.is_expired(cell, grid.age_us(current - oldest, elapsed_us)) {
            self.oldest += 1;
            self.total -= cell.units;
            if self.oldest <= self.newest {
                let is_between = self.oldest < self.newest;
                self.first = if is_between { self.between(self.oldest) } else { self.last };
            }
        } else {
            self.first = cell;
        }
    }

    /// The units of the cells from the cell `oldest` on, which is later than the oldest cell.
    ///
    /// All positions of cells are added up, and those without a cell as zeros, because a loop over
    /// the cells would have an unpredictable number of iterations.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "there are at most 14 cells")]
    pub(super) fn units_since(&self, oldest: u64) -> u64 {
        let masks = self.form.cell_masks(self.newest - oldest);
        let word = |number: usize| self.words.get(number) & masks[number];
        let words = [word(0), word(1), word(2), word(3), word(4), word(5)];
        let (unit_bits, cell_bits) = (self.form.unit_bits(), self.form.cell_bits());
        let (mut sum, mut at) = (self.last.units, 0);
        while at < (self.form.cells() as u32 - 1) * cell_bits {
            let (word, shift) = ((at / u64::BITS) as usize, at % u64::BITS);
            let low_bits = (u64::BITS - shift).min(unit_bits);
            sum += words[word] >> shift & ((1 << low_bits) - 1);
            if low_bits < unit_bits {
                sum += (words[word + 1] & ((1 << (unit_bits - low_bits)) - 1)) << low_bits;
            }
            at += cell_bits;
        }
        sum
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
            self.pop_last();
        }
        taken
    }

    /// Adds units to the cell `index`, at an offset into it. Units that do not fit are cut off.
    #[inline(always)]
    pub(super) fn add(&mut self, grid: &Grid, units: u64, index: u64, offset_us: u64) {
        if self.is_empty() || index != self.newest {
            rarely();
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

impl<W: CellWords> Cells<W> {
    /// Whether the newest of several cells is the current one, and the oldest has not expired. A
    /// decision then neither begins nor removes a cell.
    #[inline(always)]
    pub(super) fn is_steady(&self, limit: &Limit, now: &WindowPosition) -> bool {
        let grid = grid!(self, limit);
        let age_us = grid.age_us(now.index - self.oldest, now.elapsed_us);
        let is_current = self.newest == now.index && self.oldest < now.index;
        is_current && !self.is_empty() && !grid.is_expired(self.oldest_cell(), age_us)
    }

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
            lacking => {
                let oldest = self.oldest_cell();
                let released = self.expired + lacking;
                // A key that is denied often waits for units of its oldest cell.
                let grid = grid!(self, limit);
                let at_us = if released <= oldest.units {
                    grid.release_us(self.oldest, oldest, released)
                } else {
                    self.copied().release_us(grid, lacking)
                };
                at_us - now.at.as_micros()
            }
        }
    }

    #[inline(always)]
    fn reset_after(&self, limit: &Limit, now: &WindowPosition) -> ResetAfter {
        // A limit that is decided in place is not 0.
        if self.is_empty() || !W::IN_PLACE && limit.count() == 0 {
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
