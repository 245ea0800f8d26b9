//! Where the numbers of cells are in a packed state.
//!
//! ```text
//!   head    form 2 | pace | cells from the oldest to the newest | index of the newest 14
//!   words   cells between the oldest and the newest, youngest first | oldest | total | newest
//! ```
//!
//! The forms differ in the number of bits, and in which words the last numbers fit. The oldest and
//! the newest cell have fixed positions, because every decision reads them.

use super::cells_form::{Cell, CellWords, Cells};
use super::form::STEP_BITS;
use super::{WORDS, WindowForm};
use crate::limit::WindowPosition;
use crate::packed::with_low_bits;
use crate::{Packed, PackedWords, ResetAfter};

/// The number of bits of the index of the newest cell in a packed state. A cell is at least 67 us
/// long, so fewer than 2^13 cells begin within a deadline step, and the low bits identify one of
/// them.
const INDEX_BITS: u32 = 14;

impl WindowForm {
    /// The bits of the words that belong to the youngest `count` cells between the oldest and the
    /// newest.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "there are at most 14 cells")]
    pub(super) fn cell_masks(self, count: u64) -> &'static [u64; WORDS] {
        &CELL_MASKS[self as usize][count as usize]
    }

    /// The bits of a cell.
    #[inline(always)]
    pub(super) fn pack_cell(self, cell: Cell) -> u128 {
        let rest = cell.steps << self.lag_bits() | cell.lag;
        u128::from(rest) << self.unit_bits() | u128::from(cell.units)
    }
}

/// The bits of the words that belong to the youngest cells between the oldest and the newest, by
/// form and by the number of these cells.
static CELL_MASKS: [[[u64; WORDS]; MOST_BETWEEN + 1]; 4] = [
    cell_masks(WindowForm::Times),
    cell_masks(WindowForm::Cells15),
    cell_masks(WindowForm::Cells7),
    cell_masks(WindowForm::Cells3),
];

/// The most cells between the oldest and the newest.
const MOST_BETWEEN: usize = 14;

const fn cell_masks(form: WindowForm) -> [[u64; WORDS]; MOST_BETWEEN + 1] {
    let mut masks = [[0; WORDS]; MOST_BETWEEN + 1];
    let (mut count, mut end) = (0, 0);
    while count <= MOST_BETWEEN {
        let (mut number, mut bits) = (0, end);
        while number < WORDS {
            masks[count][number] = if bits < u64::BITS { (1 << bits) - 1 } else { u64::MAX };
            (number, bits) = (number + 1, bits.saturating_sub(u64::BITS));
        }
        (count, end) = (count + 1, end + form.cell_bits());
    }
    masks
}

/// The form and, if it is not in the words, the pace, as the low bits of the head of a packed
/// state.
#[inline(always)]
const fn packed_form_and_pace(form: WindowForm, pace: u64) -> u64 {
    match form {
        WindowForm::Cells3 => form as u64,
        _ => form as u64 | pace << PACE_SHIFT,
    }
}

/// Whether the head of a packed state has a form and, if it is not in the words, a pace.
#[inline(always)]
pub(super) fn has_form_and_pace(head: u64, form: WindowForm, pace: u64) -> bool {
    let mask = (1 << span_shift(form)) - 1;
    head & mask == packed_form_and_pace(form, pace)
}

/// The low bits of the index of the newest cell, from the head of a packed state.
#[inline(always)]
fn packed_index(head: u64, form: WindowForm) -> u64 {
    head >> index_shift(form) & ((1 << INDEX_BITS) - 1)
}

/// The index of the newest cell of a packed state, from its head. It is at most `latest`, and less
/// than 2^14 below it.
pub(super) fn newest_before(latest: u64, head: u64, form: WindowForm) -> u64 {
    with_low_bits(latest, packed_index(head, form), INDEX_BITS)
}

/// The number of cells by which the newest cell of a packed state is older than the cell `current`.
/// `None` if it is newer, because the clock stepped back. It is known to be fewer than 2^13 cells
/// before or after the current one.
#[inline(always)]
pub(super) fn newest_age(current: u64, head: u64, form: WindowForm) -> Option<u64> {
    let age = current.wrapping_sub(packed_index(head, form)) & ((1 << INDEX_BITS) - 1);
    (age < 1 << (INDEX_BITS - 1)).then_some(age)
}

/// The first bit of the pace in the head of a packed state, after the form.
const PACE_SHIFT: u32 = 2;

/// The first bit of the number of cells from the oldest to the newest in the head of a packed
/// state.
const fn span_shift(form: WindowForm) -> u32 {
    match form {
        WindowForm::Cells3 => PACE_SHIFT,
        _ => PACE_SHIFT + form.unit_bits(),
    }
}

/// The first bit of the index of the newest cell in the head of a packed state.
const fn index_shift(form: WindowForm) -> u32 {
    span_shift(form) + form.cells().count_ones()
}

/// The numbers that a packed state keeps in the bits that the other cells leave unused: the oldest
/// and the newest cell and, where they fit, the total and the pace. The other forms keep the pace
/// in the head.
struct Tail {
    total: u64,
    pace: u64,
    /// The oldest cell. If it is also the newest, both are equal.
    first: Cell,
    last: Cell,
}

/// The first bits of the numbers in the last word of the form with 15 cells. The first two bits of
/// it belong to the cells between the oldest and the newest.
mod bits15 {
    use super::*;

    const UNIT_BITS: u32 = WindowForm::Cells15.unit_bits();
    const LAG_BITS: u32 = WindowForm::Cells15.lag_bits();
    pub(super) const FIRST_UNITS: u32 = 2;
    pub(super) const FIRST_LAG: u32 = FIRST_UNITS + UNIT_BITS;
    pub(super) const FIRST_STEPS: u32 = FIRST_LAG + LAG_BITS;
    pub(super) const TOTAL: u32 = FIRST_STEPS + STEP_BITS;
    pub(super) const UNITS: u32 = TOTAL + 16;
    pub(super) const LAG: u32 = UNITS + UNIT_BITS;
    pub(super) const STEPS: u32 = LAG + LAG_BITS;
}

/// The first bits of the numbers in the last two words of the form with 7 cells. The last word but
/// one begins with 8 bits of the cells between the oldest and the newest, then has the oldest cell,
/// and ends with the steps of the newest. The last word has the units and the lag of the newest,
/// and the total.
mod bits7 {
    use super::*;

    const UNIT_BITS: u32 = WindowForm::Cells7.unit_bits();
    const LAG_BITS: u32 = WindowForm::Cells7.lag_bits();
    pub(super) const FIRST_UNITS: u32 = 8;
    pub(super) const FIRST_LAG: u32 = FIRST_UNITS + UNIT_BITS;
    pub(super) const FIRST_STEPS: u32 = FIRST_LAG + LAG_BITS;
    pub(super) const STEPS: u32 = u64::BITS - STEP_BITS;
    pub(super) const LAG: u32 = UNIT_BITS;
    pub(super) const TOTAL: u32 = LAG + LAG_BITS;
}

/// The first bits of the numbers in the last four words of the form with 3 cells. The first of them
/// begins with 38 bits of the cells between the oldest and the newest, and has the high bits of the
/// lag of the oldest. The others have the units of the oldest and the low bits of the pace; the
/// units of the newest, the high bits of the pace and both steps; and the lag of the newest and the
/// low bits of the lag of the oldest. The total is not kept.
mod bits3 {
    use super::*;

    const UNIT_BITS: u32 = WindowForm::Cells3.unit_bits();
    pub(super) const FIRST_LAG_HIGH: u32 = 38;
    pub(super) const FIRST_LAG_HIGH_BITS: u32 = WindowForm::Cells3.lag_bits() - FIRST_LAG_LOW_BITS;
    pub(super) const PACE: u32 = UNIT_BITS;
    pub(super) const PACE_LOW_BITS: u32 = u64::BITS - UNIT_BITS;
    pub(super) const PACE_HIGH_BITS: u32 = UNIT_BITS - PACE_LOW_BITS;
    pub(super) const FIRST_STEPS: u32 = PACE + PACE_HIGH_BITS;
    pub(super) const STEPS: u32 = FIRST_STEPS + STEP_BITS;
    pub(super) const FIRST_LAG: u32 = WindowForm::Cells3.lag_bits();
    pub(super) const FIRST_LAG_LOW_BITS: u32 = u64::BITS - FIRST_LAG;
}

/// Extracts `count` bits of a word.
#[inline(always)]
const fn bits(word: u64, shift: u32, count: u32) -> u64 {
    word >> shift & ((1 << count) - 1)
}

/// The words that contain the numbers above.
const END: usize = WORDS - 1;
const BEFORE: usize = WORDS - 2;

impl<W: CellWords> Cells<W> {
    /// Restores cells that were packed in this form, from their words and the index of the newest
    /// cell.
    #[inline(always)]
    pub(super) fn unpack(form: WindowForm, head: u64, newest: u64, words: W) -> Self {
        let oldest = newest - (head >> span_shift(form) & form.cells());
        let Tail { total, pace, first, last } = Tail::read(form, head, &words);
        let mut cells = Self { form, pace, total, expired: 0, oldest, newest, first, last, words };
        if form == WindowForm::Cells3 {
            cells.total = last.units;
            if oldest < newest {
                cells.total = first.units + cells.units_since(oldest + 1);
            }
        }
        cells
    }

    /// Writes the numbers that do not fit the head of a packed state into the bits of the words
    /// that the cells between the oldest and the newest leave unused. The cells are not empty.
    #[inline(always)]
    pub(super) fn pack_words(&mut self) {
        let Self { form, total, pace, last, .. } = *self;
        let first = if self.oldest == self.newest { last } else { self.first };
        Tail { total, pace, first, last }.write(form, &mut self.words);
    }

    /// Returns the head of the packed state of cells that are not empty.
    #[inline(always)]
    pub(super) fn packed_head(&self) -> u64 {
        let span = (self.newest - self.oldest) << span_shift(self.form);
        let newest = (self.newest & ((1 << INDEX_BITS) - 1)) << index_shift(self.form);
        packed_form_and_pace(self.form, self.pace) | span | newest
    }

    /// Packs cells that are not empty and that expire after `reset_after`. Returns the body of the
    /// packed state, whose body was `before`. If the cells were steady, its head is the same.
    #[inline(always)]
    pub(super) fn pack_in_place<const STEADY: bool>(
        &mut self,
        now: &WindowPosition,
        reset_after: ResetAfter,
        before: u64,
    ) -> u64 {
        self.pack_words();
        let head = if STEADY { before & Packed::HEAD_MASK } else { self.packed_head() };
        let expires_us = now.at.as_micros() + reset_after.as_micros();
        Packed::body(Packed::deadline_from_us(expires_us), head)
    }
}

impl Tail {
    #[inline(always)]
    fn read(form: WindowForm, head: u64, words: &impl PackedWords) -> Self {
        let (unit_bits, lag_bits) = (form.unit_bits(), form.lag_bits());
        let end = words.get(END);
        let pace = head >> PACE_SHIFT & form.most_units();
        match form {
            WindowForm::Times => {
                let (first, last) = (Cell::default(), Cell::default());
                Tail { total: 0, pace: 0, first, last }
            }
            WindowForm::Cells15 => {
                use bits15::*;
                let first = Cell {
                    units: bits(end, FIRST_UNITS, unit_bits),
                    lag: bits(end, FIRST_LAG, lag_bits),
                    steps: bits(end, FIRST_STEPS, STEP_BITS),
                };
                let (units, lag) = (bits(end, UNITS, unit_bits), bits(end, LAG, lag_bits));
                let last = Cell { units, lag, steps: end >> STEPS };
                Tail { total: bits(end, TOTAL, UNITS - TOTAL), pace, first, last }
            }
            WindowForm::Cells7 => {
                use bits7::*;
                let before = words.get(BEFORE);
                let first = Cell {
                    units: bits(before, FIRST_UNITS, unit_bits),
                    lag: bits(before, FIRST_LAG, lag_bits),
                    steps: bits(before, FIRST_STEPS, STEP_BITS),
                };
                let (units, lag) = (bits(end, 0, unit_bits), bits(end, LAG, lag_bits));
                let last = Cell { units, lag, steps: before >> STEPS };
                Tail { total: end >> TOTAL, pace, first, last }
            }
            WindowForm::Cells3 => {
                use bits3::*;
                let (before, pace_low) = (words.get(BEFORE), words.get(3) >> PACE);
                let lag_high = bits(words.get(2), FIRST_LAG_HIGH, FIRST_LAG_HIGH_BITS);
                let first = Cell {
                    units: bits(words.get(3), 0, unit_bits),
                    lag: end >> FIRST_LAG | lag_high << FIRST_LAG_LOW_BITS,
                    steps: bits(before, FIRST_STEPS, STEP_BITS),
                };
                let (units, lag) = (bits(before, 0, unit_bits), bits(end, 0, lag_bits));
                let last = Cell { units, lag, steps: before >> STEPS };
                let pace_high = bits(before, PACE, PACE_HIGH_BITS) << PACE_LOW_BITS;
                Tail { total: 0, pace: pace_low | pace_high, first, last }
            }
        }
    }

    #[inline(always)]
    fn write(self, form: WindowForm, words: &mut impl PackedWords) {
        let Tail { total, pace, first, last: Cell { units, lag, steps } } = self;
        match form {
            WindowForm::Times => {}
            WindowForm::Cells15 => {
                use bits15::*;
                let between = bits(words.get(END), 0, FIRST_UNITS);
                let oldest = first.units << FIRST_UNITS | first.lag << FIRST_LAG;
                let newest = units << UNITS | lag << LAG | steps << STEPS;
                let oldest = oldest | first.steps << FIRST_STEPS;
                words.set(END, between | oldest | total << TOTAL | newest);
            }
            WindowForm::Cells7 => {
                use bits7::*;
                let between = bits(words.get(BEFORE), 0, FIRST_UNITS);
                let oldest = first.units << FIRST_UNITS | first.lag << FIRST_LAG;
                let oldest = oldest | first.steps << FIRST_STEPS;
                words.set(BEFORE, between | oldest | steps << STEPS);
                words.set(END, total << TOTAL | lag << LAG | units);
            }
            WindowForm::Cells3 => {
                use bits3::*;
                let between = bits(words.get(2), 0, FIRST_LAG_HIGH);
                words.set(2, between | first.lag >> FIRST_LAG_LOW_BITS << FIRST_LAG_HIGH);
                words.set(3, first.units | pace << PACE);
                let steps = first.steps << FIRST_STEPS | steps << STEPS;
                words.set(BEFORE, units | pace >> PACE_LOW_BITS << PACE | steps);
                words.set(END, first.lag << FIRST_LAG | lag);
            }
        }
    }
}
