//! `sliding-window`: a sliding window that never exceeds its limit, in constant memory.
//!
//! There are two classic ways to count a sliding window, and each gives something up.
//!
//! - The **two-counter estimate** ([`SlidingCounter`](crate::SlidingCounter)) assumes that the
//!   requests of the previous window came evenly. A client that sends everything at the end of
//!   a window breaks the assumption and gets close to `2L`.
//! - The **log** ([`SlidingLog`](crate::SlidingLog)) remembers every request. It is exact, and
//!   its memory grows with the limit.
//!
//! This algorithm divides the window into cells and counts per cell. The oldest cell is partly
//! inside the window, and the question is how many of its units have already left. Instead of
//! assuming that they arrived evenly, it measures how far they fell behind an even pace.
//!
//! # Lag
//!
//! The limit's own pace brings `f(x) = floor(L * x / W)` units in `x` microseconds. A cell's
//! *lag* is the most by which its arrivals ever fell behind that pace:
//!
//! ```text
//!   limit 120 per 60 s: 15 cells of 4 s, the pace brings 8 units per cell
//!
//!   units                                units
//!     8 |          pace .'*                8 |          pace .'***
//!     6 |          . '*                    6 |          . '  *
//!     4 |      . '*       lag 0            4 |      . '      *     lag 7
//!     2 |  . '*                            2 |  . '          *
//!     0 +-*---------------                 0 +---------------*---
//!       0     2 s     4 s                    0     2 s     4 s
//!       one unit every half second           all 8 units after 3.5 s
//! ```
//!
//! At every offset `y` of the cell at least `f(y) - lag` units had arrived: had there been
//! fewer, the next arrival would have raised the lag. So once the window has moved `x`
//! microseconds past the start of the cell, at least `f(x) - lag` of its units are a window
//! old. They are released, and no others. On the left, half of the cell is released after 2 s.
//! On the right nothing is released until the last unit is a window old. The estimate releases
//! four units in both cases, and on the right that is four too many.
//!
//! # Worked numbers
//!
//! ```text
//!   limit 120 per 60 s, cell 0 holds 8 units, first row with lag 0, second row with lag 7
//!
//!   now             60 s    61 s    62 s    63 s    64 s
//!   f(now - 60 s)      0       2       4       6       8
//!   used, lag 0        8       6       4       2       0
//!   used, lag 7        8       8       8       8       0   (the last hit was at 3.5 s,
//!                                                          kept as 3.734 s: see below)
//! ```
//!
//! # A cell
//!
//! A cell holds three numbers: the **units** charged in it, its **lag**, and its **last hit** in
//! fifteenths of the cell, rounded up. When the last hit is a window old, the whole cell is
//! released: that matters for a cell that was filled early and then left alone.
//!
//! The number of cells `N` depends on the limit: 15 up to 2,000 units, 7 up to 2,000,000, 3
//! above. At most `N + 1` of them overlap the window. Counts, lags and hits of all of them fit
//! in 48 bytes for every limit.
//!
//! Limits up to 20 need no cells: the 20 times fit in the same place, on a grid of 1 us or of
//! less than `W / 26,214`. Such a limit is a log, and is late by less than two steps of the grid.
//!
//! # Bound
//!
//! **`L`, always.** What is released is at least a window old, so `used` is never below the
//! number of units admitted in the last window, and the argument for the log applies. What is
//! given up: capacity may return late, by at most one cell.
//! `docs/proof.md` has the proof, `docs/accuracy.md` what it costs on real traffic.
//!
//! # Forms and paces
//!
//! A key can meet several limits over the same window: a reload, an override, nodes with
//! different files. Forced charges can exceed any limit. So a state carries its [`Form`] (the log,
//! 15, 7 or 3 cells) and its pace (the `L` of `f` above), and both can change while units are
//! held. Before units are charged under a limit:
//!
//! 1. An empty state takes the form and the pace of the limit.
//! 2. A form that is too narrow for the limit, or for the units, is widened: everything held is
//!    charged again in the next form, at its last hit. A form never becomes narrower while
//!    anything is held. Only the widest form saturates.
//! 3. If the pace still differs, it becomes the limit's. The lags were measured against another
//!    pace, so they are raised until each cell is released as a whole.
//!
//! Alternating limits therefore lose precision, never the bound. A unit is released at most one
//! cell of each form that held it late, and everything is released one window, one cell and one
//! fifteenth of a cell after the last charge.
//!
//! # Cost
//!
//! 48 bytes of cells, their position, form and pace. An admission reads the oldest and the current
//! cell; a retry-after, a wider form or another pace walks all of them.

use alloc::vec::Vec;
use core::borrow::BorrowMut;

use super::{Window, correct};
use crate::limit::{Divisor, Moment, Pace};
use crate::packed::with_low_bits;
use crate::{Ask, CellView, Limit, Packed, ResetAfter, Timestamp};

/// How a [`SlidingWindow`] counts, from the narrowest to the widest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// The times of up to 20 units.
    #[default]
    Log,
    /// 15 cells to the window, of up to 2,047 units each.
    Cells15,
    /// 7 cells to the window, of up to 2,097,151 units each.
    Cells7,
    /// 3 cells to the window, of up to 2^40 - 1 units each.
    Cells3,
}

/// The most units in the log form: 20 times of 16 bits.
const LOG_UNITS: u64 = 20;
/// Bits of a time in the log form. The window is at most 2^16 - 1 grid steps long.
const TIME_BITS: u32 = 16;
/// Bits of a last hit, which counts fifteenths of a cell.
const STEP_BITS: u32 = 4;
/// Last hits are rounded up to this fraction of a cell.
const STEPS: u64 = 15;
/// Words that hold the cells: 16 cells of 23 bits, 8 of 44, 4 of 83, or 20 times of 16.
const WORDS: usize = Packed::WORDS;
/// The number of the last of them.
const LAST_WORD: u32 = 5;
/// Bits of the index of the newest cell in a packed state. A cell is at least 67 us long, so fewer
/// than 2^14 cells begin within a deadline unit.
const INDEX_BITS: u32 = 14;
/// Bits of the newest time in a packed log. A deadline unit is at most 2^19 steps long.
const NEWEST_BITS: u32 = 20;

impl Form {
    const ALL: [Form; 4] = [Form::Log, Form::Cells15, Form::Cells7, Form::Cells3];

    /// The narrowest form in which a limit of `count` units decides precisely.
    pub const fn of(count: u64) -> Self {
        match count {
            0..=20 => Form::Log,
            21..=2_000 => Form::Cells15,
            2_001..=2_000_000 => Form::Cells7,
            _ => Form::Cells3,
        }
    }

    /// Cells to the window; 0 in the log form.
    pub const fn cells(self) -> u64 {
        match self {
            Form::Log => 0,
            Form::Cells15 => 15,
            Form::Cells7 => 7,
            Form::Cells3 => 3,
        }
    }

    const fn wider(self) -> Option<Self> {
        match self {
            Form::Log => Some(Form::Cells15),
            Form::Cells15 => Some(Form::Cells7),
            Form::Cells7 => Some(Form::Cells3),
            Form::Cells3 => None,
        }
    }

    /// Where things are in the words. A table, because a decision asks for it again and again.
    #[inline(always)]
    const fn layout(self) -> &'static Layout {
        const fn layout(cells: u32, unit_bits: u32, lag_bits: u32, pace_bits: u32) -> Layout {
            let width = unit_bits + lag_bits + STEP_BITS;
            let last_word_bits = match cells {
                0 => 0,
                _ => (cells + 1) * width - u64::BITS * LAST_WORD,
            };
            let (span_shift, most_units) = (16 + pace_bits, (1 << unit_bits) - 1);
            Layout { unit_bits, lag_bits, width, span_shift, last_word_bits, most_units }
        }
        const LAYOUTS: [Layout; 4] = [
            Layout { most_units: LOG_UNITS, ..layout(0, 0, 0, 0) },
            layout(15, 11, 8, 11),
            layout(7, 21, 19, 21),
            // A pace of 40 bits does not fit the head.
            layout(3, 40, 39, 0),
        ];
        &LAYOUTS[self as usize]
    }

    /// The most units the log, or a cell, can hold.
    const fn most_units(self) -> u64 {
        self.layout().most_units
    }

    const fn most_lag(self) -> u64 {
        (1 << self.layout().lag_bits) - 1
    }

    /// The length of a cell; in the log form, the step of the grid.
    pub fn cell_us(self, window_us: u64) -> u64 {
        match self {
            Form::Log => log_step_us(window_us),
            _ => window_us.div_ceil(self.cells()),
        }
    }
}

/// Where a form has its numbers.
struct Layout {
    /// Bits of the units of a cell, which come first.
    unit_bits: u32,
    /// Bits of its lag, which comes next.
    lag_bits: u32,
    /// Bits of a cell.
    width: u32,
    /// Packed, where the head has the number of cells from the oldest to the newest.
    span_shift: u32,
    /// Bits of the last word that cells use.
    last_word_bits: u32,
    /// The most units of a cell, or of the log.
    most_units: u64,
}

/// The smallest of 1, 2, 5, 10, 20, 50, ... microseconds of which a window has at most 65,535.
fn log_step_us(window_us: u64) -> u64 {
    const MOST_STEPS: u64 = (1 << TIME_BITS) - 1;
    let mut decade = 1;
    loop {
        for step_us in [decade, 2 * decade, 5 * decade] {
            if window_us.div_ceil(step_us) <= MOST_STEPS {
                return step_us;
            }
        }
        decade *= 10;
    }
}

/// The steps that a window takes, rounded up.
#[inline]
fn steps_of(window_us: u64, step: Divisor) -> u64 {
    step.split(window_us - 1).0 + 1
}

/// The lowest bits of a number.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "fewer than 64 bits are asked for")]
fn low_bits(bits: u128, count: u32) -> u64 {
    bits as u64 & ((1 << count) - 1)
}

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

/// The state of a `sliding-window`.
///
/// `W` is where its cells are: in the state itself or, while a packed state is decided on, in that.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlidingWindow<W = [u64; WORDS]> {
    form: Form,
    /// The `L` that lags are measured against; 0 in the log form.
    pace: u64,
    /// Units of all times or cells, expired ones included.
    total: u64,
    /// Those of the oldest cell that were expired when it was last advanced.
    expired: u64,
    /// The place of the oldest time, or the index of the oldest cell that holds units.
    oldest: u64,
    /// The newest time on the grid, or the index of the newest cell that holds units.
    newest: u64,
    /// When the newest cell's last unit is a window old, once that is known; otherwise 0.
    newest_whole_us: u64,
    /// Times in a ring, or cells by index modulo their number, packed without gaps.
    words: W,
}

/// Where the cells of a state lie, and the pace they are measured against.
struct Grid {
    window_us: u64,
    cell: Divisor,
    step_us: u64,
    pace: Pace,
}

impl Grid {
    /// The units that the pace brings in `us` microseconds.
    #[inline(always)]
    fn paced(&self, us: u64) -> u64 {
        self.pace.units_in(us)
    }

    /// The last hit of a cell, as an offset.
    #[inline(always)]
    fn last_offset_us(&self, cell: Cell) -> u64 {
        (cell.steps * self.step_us).min(self.cell.value)
    }

    #[inline(always)]
    fn last_us(&self, index: u64, cell: Cell) -> u64 {
        index.saturating_mul(self.cell.value).saturating_add(self.last_offset_us(cell))
    }

    /// When the last unit of a cell is a window old.
    #[inline(always)]
    fn whole_us(&self, index: u64, cell: Cell) -> u64 {
        self.last_us(index, cell).saturating_add(self.window_us)
    }

    /// When a time of the log form is a window old, both in whole steps.
    #[inline(always)]
    fn time_release_us(&self, time: u64) -> u64 {
        let window = steps_of(self.window_us, self.cell);
        time.saturating_add(window).saturating_mul(self.cell.value)
    }

    /// The units of a cell that are certainly a window old.
    #[inline(always)]
    fn expired(&self, index: u64, cell: Cell, now_us: u64) -> u64 {
        if self.whole_us(index, cell) <= now_us {
            return cell.units;
        }
        self.partly_expired(index, cell, now_us)
    }

    /// The units of a cell that are certainly a window old, if its last unit is not.
    #[inline(always)]
    fn partly_expired(&self, index: u64, cell: Cell, now_us: u64) -> u64 {
        let passed = now_us.checked_sub(self.window_us);
        match passed.and_then(|start| start.checked_sub(index.saturating_mul(self.cell.value))) {
            Some(us) => self.paced(us).saturating_sub(cell.lag).min(cell.units),
            None => 0,
        }
    }

    /// When this many of a cell's units, at least one, are certainly a window old.
    fn release_us(&self, index: u64, cell: Cell, units: u64) -> u64 {
        let whole_us = self.whole_us(index, cell);
        let reached = units + cell.lag;
        if reached > self.paced(self.cell.value) {
            return whole_us;
        }
        let start_us = index.saturating_mul(self.cell.value).saturating_add(self.window_us);
        whole_us.min(start_us.saturating_add(self.pace.us_for(reached)))
    }
}

impl SlidingWindow {
    /// Restores a state in the log form from its times, oldest first, at most a window apart.
    /// `None` if they are too many or not in order.
    pub fn from_times(times: &[u64]) -> Option<Self> {
        let mut state = SlidingWindow { newest: *times.last()?, ..Self::default() };
        if times.len() as u64 > LOG_UNITS || !times.is_sorted() {
            return None;
        }
        for &time in times {
            if (state.newest - time) >> TIME_BITS > 0 {
                return None;
            }
            state.push_time(time);
        }
        Some(state)
    }

    /// Its cells or times, packed.
    pub(crate) fn into_words(self) -> [u64; WORDS] {
        self.words
    }

    /// Restores a state from its cells, oldest first, with their indexes. `None` if the form has
    /// no cells, or is too narrow for them or for the pace.
    pub fn from_cells(form: Form, pace: u64, cells: &[(u64, Cell)]) -> Option<Self> {
        let &(newest, _) = cells.last()?;
        if form == Form::Log || form < Form::of(pace) {
            return None;
        }
        let oldest = cells.first()?.0;
        let mut state = SlidingWindow { form, pace, oldest, newest, ..Self::default() };
        let mut next = newest.saturating_sub(form.cells());
        for &(index, cell) in cells {
            let fits = cell.units <= form.most_units()
                && cell.lag <= form.most_lag()
                && cell.steps <= STEPS;
            if index < next || index > newest || cell.units == 0 || !fits {
                return None;
            }
            state.set_cell(index, cell);
            state.total += cell.units;
            next = index + 1;
        }
        Some(state)
    }
}

impl<W: BorrowMut<[u64; WORDS]>> SlidingWindow<W> {
    /// How it counts.
    pub fn form(&self) -> Form {
        self.form
    }

    /// The limit that its lags are measured against; 0 in the log form.
    pub fn pace(&self) -> u64 {
        self.pace
    }

    /// Its form and pace; those of the limit if it holds nothing.
    pub(crate) fn form_under(&self, limit: &Limit) -> (Form, u64) {
        if self.is_empty() { limit.form_and_pace() } else { (self.form, self.pace) }
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Cells that hold units with their indexes, oldest first; none in the log form.
    pub fn cells(&self) -> impl DoubleEndedIterator<Item = (u64, Cell)> {
        let has_cells = self.form != Form::Log && !self.is_empty();
        let cells = has_cells.then(|| self.cells_between());
        cells.into_iter().flatten().filter(|(_, cell)| cell.units > 0)
    }

    /// All cells from the oldest to the newest.
    fn cells_between(&self) -> impl DoubleEndedIterator<Item = (u64, Cell)> {
        let len = self.newest - self.oldest + 1;
        (0..len).map(|number| (self.oldest + number, self.cell(self.oldest + number)))
    }

    /// The times of the log form in steps of its grid, oldest first; none in the other forms.
    pub fn times(&self) -> impl DoubleEndedIterator<Item = u64> {
        let len = if self.form == Form::Log { self.total } else { 0 };
        (0..len).map(|age| self.time(age))
    }

    /// Returns the head of the packed state and its deadline. Numbers that do not fit the head are
    /// written into the unused bits at the end of the last word.
    #[inline(always)]
    pub(crate) fn pack_head(&mut self, limit: &Limit) -> Option<(u64, u64)> {
        let Some(released_us) = self.last_release_us(limit) else { return Some((0, 0)) };
        let deadline = Packed::deadline(Timestamp::from_micros(released_us))?;
        let low = |value: u64, bits: u32| value & ((1 << bits) - 1);
        let form = self.form;
        if form == Form::Log {
            let head = self.total << 2 | self.oldest << 7 | low(self.newest, NEWEST_BITS) << 12;
            return Some((head, deadline));
        }
        let (in_head, in_words) = match form {
            Form::Cells3 => (0, self.pace),
            _ => (self.pace, self.total),
        };
        let used_bits = form.layout().last_word_bits;
        let last = &mut self.words_mut()[WORDS - 1];
        *last = low(*last, used_bits) | in_words << used_bits;
        let newest = low(self.newest, INDEX_BITS) << 2;
        let span = (self.newest - self.oldest) << form.layout().span_shift;
        Some((form as u64 | newest | in_head << 16 | span, deadline))
    }

    /// The state that was packed, with its words.
    #[inline(always)]
    pub(crate) fn unpack(limit: &Limit, head: u64, deadline_us: u64, words: W) -> Self {
        let form = Form::ALL[(head & 3) as usize];
        let cell = limit.cell(form);
        let mut state = SlidingWindow {
            form,
            pace: 0,
            total: 0,
            expired: 0,
            oldest: 0,
            newest: 0,
            newest_whole_us: 0,
            words,
        };
        if form == Form::Log {
            state.total = head >> 2 & 0x1f;
            if state.total > 0 {
                state.oldest = head >> 7 & 0x1f;
                // It is a window old by the deadline, and was not a unit earlier.
                let latest = cell.split(deadline_us).0 - steps_of(limit.window_us(), cell);
                state.newest = with_low_bits(latest, head >> 12, NEWEST_BITS);
            }
            return state;
        }
        let latest = cell.split(deadline_us - limit.window_us()).0;
        state.newest = with_low_bits(latest, head >> 2, INDEX_BITS);
        state.oldest = state.newest - (head >> form.layout().span_shift & form.cells());
        let in_words = state.words()[WORDS - 1] >> form.layout().last_word_bits;
        if form == Form::Cells3 {
            state.pace = in_words;
            state.total = state.cells_between().map(|(_, cell)| cell.units).sum();
        } else {
            state.pace = head >> 16 & ((1 << (form.layout().span_shift - 16)) - 1);
            state.total = in_words;
        }
        state
    }

    /// Forgets everything.
    #[inline(always)]
    fn clear(&mut self) {
        self.begin(Form::Log, 0);
    }

    /// Forgets everything, and counts in another form and pace from now on.
    #[inline(always)]
    fn begin(&mut self, form: Form, pace: u64) {
        (self.form, self.pace) = (form, pace);
        (self.total, self.expired, self.oldest, self.newest) = (0, 0, 0, 0);
        self.newest_whole_us = 0;
        *self.words_mut() = [0; WORDS];
    }

    /// Returns a copy that owns its words.
    #[inline(always)]
    fn owned(&self) -> SlidingWindow {
        let SlidingWindow { form, pace, total, expired, oldest, newest, newest_whole_us, .. } =
            *self;
        let words = *self.words();
        SlidingWindow { form, pace, total, expired, oldest, newest, newest_whole_us, words }
    }

    /// Runs something that is rarely needed on a copy. A state whose address is not taken stays in
    /// registers.
    #[inline(always)]
    fn rarely<T>(&mut self, run: impl FnOnce(&mut SlidingWindow) -> T) -> T {
        let mut copy = self.owned();
        let result = run(&mut copy);
        self.become_state(&copy);
        result
    }

    /// Becomes another state.
    #[inline(always)]
    fn become_state(&mut self, other: &SlidingWindow) {
        let SlidingWindow { form, pace, total, expired, oldest, newest, .. } = *other;
        (self.form, self.pace, self.total, self.expired) = (form, pace, total, expired);
        (self.oldest, self.newest, self.newest_whole_us) = (oldest, newest, other.newest_whole_us);
        *self.words_mut() = other.words;
    }

    #[inline(always)]
    fn words(&self) -> &[u64; WORDS] {
        self.words.borrow()
    }

    #[inline(always)]
    fn words_mut(&mut self) -> &mut [u64; WORDS] {
        self.words.borrow_mut()
    }

    #[inline(always)]
    fn grid(&self, limit: &Limit) -> Grid {
        let cell = limit.cell(self.form);
        let pace = limit.pace(self.pace);
        Grid { window_us: limit.window_us(), step_us: cell.value.div_ceil(STEPS), cell, pace }
    }

    #[inline(always)]
    fn cell(&self, index: u64) -> Cell {
        let Layout { unit_bits, lag_bits, .. } = *self.form.layout();
        let bits = self.bits(self.cell_position(index));
        let rest = bits >> unit_bits;
        Cell {
            units: low_bits(bits, unit_bits),
            lag: low_bits(rest, lag_bits),
            steps: low_bits(rest >> lag_bits, STEP_BITS),
        }
    }

    #[inline(always)]
    fn set_cell(&mut self, index: u64, cell: Cell) {
        let Layout { unit_bits, lag_bits, width, .. } = *self.form.layout();
        let rest = u128::from(cell.steps) << lag_bits | u128::from(cell.lag);
        let bits = rest << unit_bits | u128::from(cell.units);
        self.set_bits(self.cell_position(index), width, bits);
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "there are at most 16 cells")]
    fn cell_position(&self, index: u64) -> u32 {
        // One more than there are cells is a power of two.
        (index & self.form.cells()) as u32 * self.form.layout().width
    }

    /// A time of the log form, counted from the oldest.
    #[inline(always)]
    fn time(&self, number: u64) -> u64 {
        // Only the low bits are kept: all times lie within 2^16 steps before the newest.
        let low = low_bits(self.bits(self.time_position(number)), TIME_BITS);
        let age = self.newest.wrapping_sub(low) & ((1 << TIME_BITS) - 1);
        self.newest.saturating_sub(age)
    }

    /// Appends a time of the log form. It is the newest, or `newest` is set to the newest of those
    /// that follow.
    #[inline(always)]
    fn push_time(&mut self, time: u64) {
        let at = self.time_position(self.total);
        self.set_bits(at, TIME_BITS, u128::from(time) & ((1 << TIME_BITS) - 1));
        self.total += 1;
    }

    #[inline(always)]
    fn time_position(&self, number: u64) -> u32 {
        ((self.oldest + number) % LOG_UNITS) as u32 * TIME_BITS
    }

    /// The bits from a position on: all of a cell or a time, and more above.
    #[inline(always)]
    fn bits(&self, at: u32) -> u128 {
        let words = self.words();
        let (word, shift) = ((at / 64) as usize, at % 64);
        // The last word has none after it, and nothing reaches beyond it.
        let word_after = |number: usize| u128::from(words[(word + number).min(WORDS - 1)]);
        let bits = (word_after(1) << 64 | u128::from(words[word])) >> shift;
        if self.form == Form::Cells3 && shift > 0 {
            return bits | word_after(2) << (128 - shift);
        }
        bits
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "bits are written word by word")]
    fn set_bits(&mut self, at: u32, width: u32, bits: u128) {
        let words: &mut [u64] = self.words_mut();
        let (word, shift) = ((at / 64) as usize, at % 64);
        let mask = (1_u128 << width) - 1;
        let mut put = |number: usize, mask: u64, bits: u64| {
            if let Some(word) = words.get_mut(word + number) {
                *word = *word & !mask | bits;
            }
        };
        put(0, (mask << shift) as u64, (bits << shift) as u64);
        put(1, (mask << shift >> 64) as u64, (bits << shift >> 64) as u64);
        if width + shift > 128 {
            put(2, (mask >> (128 - shift)) as u64, (bits >> (128 - shift)) as u64);
        }
    }

    /// The last hit and the units of everything held, oldest first.
    fn held(&self, limit: &Limit) -> impl DoubleEndedIterator<Item = (u64, u64)> {
        let grid = self.grid(limit);
        let step_us = grid.cell.value;
        let times = self.times().map(move |time| (time.saturating_mul(step_us), 1));
        let last_hit = move |(index, cell): (u64, Cell)| (grid.last_us(index, cell), cell.units);
        times.chain(self.cells().map(last_hit))
    }

    /// Units that count against the limit.
    pub fn used(&self, limit: &Limit, now: Timestamp) -> u64 {
        if self.form == Form::Log || self.is_empty() {
            return self.total;
        }
        // Units of a cell expire when the window has moved past its start, and all of the cell
        // before it have expired by then: only the oldest can be partly expired.
        let cell = self.cell(self.oldest);
        self.total - self.grid(limit).expired(self.oldest, cell, now.as_micros())
    }

    /// What it holds, for people who look at it; units at one time of the log form are one cell.
    pub(crate) fn view(&self, limit: &Limit, now: Timestamp) -> Vec<CellView> {
        let grid = self.grid(limit);
        let at = |index: u64| Timestamp::from_micros(index.saturating_mul(grid.cell.value));
        let mut views: Vec<CellView> = Vec::new();
        for time in self.times().map(at) {
            match views.last_mut() {
                Some(last) if last.last_hit == time => last.units += 1,
                _ => {
                    let unit =
                        CellView { start: time, last_hit: time, units: 1, lag: 0, expired: 0 };
                    views.push(unit);
                }
            }
        }
        views.extend(self.cells().map(|(index, cell)| CellView {
            start: at(index),
            last_hit: Timestamp::from_micros(grid.last_us(index, cell)),
            units: cell.units,
            lag: cell.lag,
            expired: grid.expired(index, cell, now.as_micros()),
        }));
        views
    }

    /// Brings the log form up to now.
    #[inline]
    fn advance_log(&mut self, limit: &Limit, now_us: u64) {
        let step = limit.cell(Form::Log);
        let (passed, rest_us) = step.split(now_us);
        let newest = passed + u64::from(rest_us > 0);
        let window = steps_of(limit.window_us(), step);
        if self.newest > newest {
            // The clock stepped back: times ahead of now become now.
            let ahead = self.owned();
            self.clear();
            self.newest = newest;
            ahead.times().for_each(|time| self.push_time(time.min(newest)));
        }
        while self.total > 0 && self.time(0).saturating_add(window) <= passed {
            self.oldest = (self.oldest + 1) % LOG_UNITS;
            self.total -= 1;
        }
        if self.is_empty() {
            self.clear();
        }
    }

    /// Brings the forms with cells up to now.
    #[inline(always)]
    fn advance_cells(&mut self, limit: &Limit, now_us: u64) {
        let cell_us = limit.cell(self.form).value;
        if self.newest.saturating_mul(cell_us) > now_us {
            return self.rarely(|state| state.reenter_future(limit, now_us));
        }
        self.drop_expired(limit, now_us);
    }

    /// The clock stepped back: units of cells that lie ahead are charged again, now.
    #[cold]
    fn reenter_future(&mut self, limit: &Limit, now_us: u64) {
        let cell_us = limit.cell(self.form).value;
        let mut ahead = 0;
        while self.total > 0 && self.newest.saturating_mul(cell_us) > now_us {
            ahead += self.take_newest(u64::MAX);
        }
        let (form, pace) = (self.form, self.pace);
        self.drop_expired(limit, now_us);
        if self.is_empty() {
            self.begin(form, pace);
        }
        self.make_room(limit, pace, ahead, now_us);
        self.add(&self.grid(limit), ahead, now_us);
        self.drop_expired(limit, now_us);
    }

    /// Removes cells whose last unit is a window old.
    #[inline(always)]
    fn drop_expired(&mut self, limit: &Limit, now_us: u64) {
        let grid = self.grid(limit);
        while self.total > 0 {
            let cell = self.cell(self.oldest);
            if grid.whole_us(self.oldest, cell) > now_us {
                self.expired = grid.partly_expired(self.oldest, cell, now_us);
                return;
            }
            self.set_cell(self.oldest, Cell::default());
            self.total -= cell.units;
            while self.total > 0 && self.cell(self.oldest).units == 0 {
                self.oldest += 1;
            }
        }
        self.clear();
    }

    /// Takes up to `units` off the newest cell and returns how many. An emptied cell is removed.
    fn take_newest(&mut self, units: u64) -> u64 {
        let cell = self.cell(self.newest);
        let taken = units.min(cell.units);
        self.newest_whole_us = 0;
        self.total -= taken;
        if taken < cell.units {
            self.set_cell(self.newest, Cell { units: cell.units - taken, ..cell });
            return taken;
        }
        self.set_cell(self.newest, Cell::default());
        while self.total > 0 && self.cell(self.newest).units == 0 {
            self.newest -= 1;
        }
        taken
    }

    /// Widens the form until it can hold `units` more at `now_us`, or is the widest.
    fn make_room(&mut self, limit: &Limit, pace: u64, units: u64, now_us: u64) {
        while !self.has_room(limit, units, now_us)
            && let Some(form) = self.form.wider()
        {
            self.widen(limit, form, pace, now_us);
        }
    }

    fn has_room(&self, limit: &Limit, units: u64, now_us: u64) -> bool {
        let most = self.form.most_units();
        if self.total.saturating_add(units) <= most {
            return true;
        }
        let current = limit.cell(self.form).split(now_us).0;
        self.form != Form::Log && self.cell(current).units.saturating_add(units) <= most
    }

    /// Charges everything held again in a wider form, under another pace.
    #[cold]
    fn widen(&mut self, limit: &Limit, form: Form, pace: u64, now_us: u64) {
        let mut wider = SlidingWindow { form, pace, ..SlidingWindow::default() };
        let grid = wider.grid(limit);
        // The log holds units up to a step of its grid longer than a window. Their cell may be
        // over, and one that is too old shares the place of a newer one.
        let oldest = grid.cell.split(now_us).0.saturating_sub(form.cells());
        for (last_us, units) in self.held(limit) {
            let last_us = last_us.min(now_us);
            if grid.cell.split(last_us).0 >= oldest {
                wider.add(&grid, units, last_us);
            }
        }
        wider.drop_expired(limit, now_us);
        if wider.is_empty() {
            (wider.form, wider.pace) = (form, pace);
        }
        self.become_state(&wider);
    }

    /// Measures against another pace from now on. What is known of the arrivals in a cell is
    /// that all of them came before its last hit, so the cell is released as a whole.
    #[cold]
    fn set_pace(&mut self, limit: &Limit, pace: u64, now_us: u64) {
        let held = self.owned();
        self.pace = pace;
        let grid = self.grid(limit);
        for (index, cell) in held.cells() {
            let lag = grid.paced(grid.last_offset_us(cell));
            self.set_cell(index, Cell { lag, ..cell });
        }
        self.drop_expired(limit, now_us);
    }

    /// Changes form and pace to what the limit and `units` more require.
    #[inline(never)]
    fn reshape(&mut self, limit: &Limit, units: u64, now_us: u64) {
        let pace = limit.count();
        while self.form < limit.form()
            && let Some(wider) = self.form.wider()
        {
            self.widen(limit, wider, pace, now_us);
        }
        self.make_room(limit, pace, units, now_us);
        if self.form != Form::Log && self.pace != pace {
            self.set_pace(limit, pace, now_us);
        }
    }

    /// Adds units in the form and pace it has. What does not fit is cut off.
    fn add(&mut self, grid: &Grid, units: u64, now_us: u64) {
        let (index, offset_us) = grid.cell.split(now_us);
        self.add_at(grid, units, index, offset_us);
    }

    /// Adds units to the cell `index`, at an offset into it.
    #[inline(always)]
    fn add_at(&mut self, grid: &Grid, units: u64, index: u64, offset_us: u64) {
        if self.form == Form::Log {
            self.newest = index + u64::from(offset_us > 0);
            for _ in 0..units.min(LOG_UNITS - self.total) {
                self.push_time(self.newest);
            }
            return;
        }
        let cell = self.cell(index);
        let behind = grid.paced(offset_us).saturating_sub(cell.units);
        let last_us = cell.steps * grid.step_us;
        let charged = Cell {
            units: cell.units.saturating_add(units).min(self.form.most_units()),
            lag: cell.lag.max(behind).min(self.form.most_lag()),
            steps: if last_us < offset_us { offset_us.div_ceil(grid.step_us) } else { cell.steps },
        };
        self.set_cell(index, charged);
        if self.is_empty() {
            self.oldest = index;
        }
        self.total += charged.units - cell.units;
        self.newest = index;
        self.newest_whole_us = grid.whole_us(index, charged);
    }

    /// When the newest unit is released.
    #[inline(always)]
    fn last_release_us(&self, limit: &Limit) -> Option<u64> {
        if self.is_empty() {
            return None;
        }
        let grid = self.grid(limit);
        Some(match self.form {
            Form::Log => grid.time_release_us(self.newest),
            _ if self.newest_whole_us > 0 => self.newest_whole_us,
            _ => grid.whole_us(self.newest, self.cell(self.newest)),
        })
    }

    /// When the oldest `units` of those that count are released.
    #[inline(never)]
    fn release_us(&self, limit: &Limit, mut units: u64, now_us: u64) -> u64 {
        let grid = self.grid(limit);
        if self.form == Form::Log {
            return grid.time_release_us(self.time(units - 1));
        }
        for (index, cell) in self.cells() {
            let expired = grid.expired(index, cell, now_us);
            let live = cell.units - expired;
            if units <= live {
                return grid.release_us(index, cell, expired + units);
            }
            units -= live;
        }
        now_us
    }
}

impl SlidingWindow {
    #[cold]
    fn correct_out_of_line(&mut self, limit: &Limit, units: u64, ask: &Ask, now: &Moment) {
        correct(self, limit, units, ask, now);
    }
}

impl<W: BorrowMut<[u64; WORDS]>> Window for SlidingWindow<W> {
    #[inline(always)]
    fn advance(&mut self, limit: &Limit, now: &Moment) {
        let now_us = now.at.as_micros();
        match self.form {
            Form::Log => self.advance_log(limit, now_us),
            _ => self.advance_cells(limit, now_us),
        }
    }

    #[inline(always)]
    fn available(&self, limit: &Limit, _now: &Moment) -> u64 {
        limit.count().saturating_sub(self.total - self.expired)
    }

    #[inline(always)]
    fn wait_us(&self, limit: &Limit, cost: u64, now: &Moment) -> u64 {
        let lacking = (self.total - self.expired + cost).saturating_sub(limit.count());
        if lacking == 0 {
            return 0;
        }
        let now_us = now.at.as_micros();
        self.owned().release_us(limit, lacking, now_us) - now_us
    }

    #[inline(always)]
    fn reset_after(&self, limit: &Limit, now: &Moment) -> ResetAfter {
        let released_us = self.last_release_us(limit).filter(|_| limit.count() > 0);
        ResetAfter::from_micros(released_us.map_or(0, |us| us - now.at.as_micros()))
    }

    #[inline(always)]
    fn charge(&mut self, limit: &Limit, units: u64, _ask: &Ask, now: &Moment) {
        if units == 0 {
            return;
        }
        if self.is_empty() {
            let (form, pace) = limit.form_and_pace();
            self.begin(form, pace);
        }
        let (form, pace) = limit.form_and_pace();
        if (self.form, self.pace) != (form, pace)
            || self.total.saturating_add(units) > form.most_units()
        {
            self.rarely(|state| state.reshape(limit, units, now.at.as_micros()));
        }
        if self.form == form {
            self.add_at(&self.grid(limit), units, now.index, now.elapsed_us);
        } else {
            self.add(&self.grid(limit), units, now.at.as_micros());
        }
    }

    #[inline(always)]
    fn correct(&mut self, limit: &Limit, units: u64, ask: &Ask, now: &Moment) {
        self.rarely(|state| state.correct_out_of_line(limit, units, ask, now));
    }

    #[inline(always)]
    fn admit(&mut self, limit: &Limit, units: u64, ask: &Ask, now: &Moment, available: u64) -> u64 {
        let before = self.form_under(limit);
        self.charge(limit, units, ask, now);
        if (self.form, self.pace) == before {
            return available - units;
        }
        // Widening the form, or changing the pace, may take back units that were released.
        self.available(limit, now)
    }

    fn refund(&mut self, _limit: &Limit, mut units: u64) {
        if self.form == Form::Log {
            self.total = self.total.saturating_sub(units);
            self.newest = if self.is_empty() { 0 } else { self.time(self.total - 1) };
        }
        while self.form != Form::Log && units > 0 && self.total > 0 {
            units -= self.take_newest(units);
        }
        if self.is_empty() {
            self.clear();
        }
    }

    fn expires_at(&self, limit: &Limit) -> Timestamp {
        self.last_release_us(limit).map_or(Timestamp::EPOCH, Timestamp::from_micros)
    }
}
