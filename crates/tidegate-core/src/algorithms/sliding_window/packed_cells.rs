//! Where the numbers of cells are in a packed state.
//!
//! ```text
//!   head    form 2 | pace | cells from the oldest to the newest | index of the newest 14
//!   words   cells between the oldest and the newest, youngest first | oldest | total | newest
//! ```
//!
//! The forms differ in the number of bits, and in which words the last numbers fit. The oldest and
//! the newest cell have fixed positions, because every decision reads them.

use super::cells_form::{Cell, Cells};
use super::form::STEP_BITS;
use super::{WORDS, WindowForm};
use crate::PackedWords;
use crate::packed::with_low_bits;

/// The number of bits of the index of the newest cell in a packed state. A cell is at least 67 us
/// long, so fewer than 2^13 cells begin within a deadline step, and the low bits identify one of
/// them.
pub(super) const INDEX_BITS: u32 = 14;

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
pub(super) const fn packed_form_and_pace(form: WindowForm, pace: u64) -> u64 {
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
pub(super) const fn span_shift(form: WindowForm) -> u32 {
    match form {
        WindowForm::Cells3 => PACE_SHIFT,
        _ => PACE_SHIFT + form.unit_bits(),
    }
}

/// The first bit of the index of the newest cell in the head of a packed state.
pub(super) const fn index_shift(form: WindowForm) -> u32 {
    span_shift(form) + form.cells().count_ones()
}

/// The numbers that a packed state keeps in the bits that the other cells leave unused: the newest
/// cell and, where they fit, the total and the pace. The other forms keep the pace in the head.
pub(super) struct Tail {
    pub(super) total: u64,
    pub(super) pace: u64,
    pub(super) last: Cell,
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

impl<W: PackedWords> Cells<W> {
    /// The oldest cell, unless it is also the newest.
    #[inline(always)]
    pub(super) fn first(&self) -> Cell {
        let (unit_bits, lag_bits) = (self.form.unit_bits(), self.form.lag_bits());
        let end = self.words.get(END);
        match self.form {
            WindowForm::Times => Cell::default(),
            WindowForm::Cells15 => {
                use bits15::*;
                Cell {
                    units: bits(end, FIRST_UNITS, unit_bits),
                    lag: bits(end, FIRST_LAG, lag_bits),
                    steps: bits(end, FIRST_STEPS, STEP_BITS),
                }
            }
            WindowForm::Cells7 => {
                use bits7::*;
                let before = self.words.get(BEFORE);
                Cell {
                    units: bits(before, FIRST_UNITS, unit_bits),
                    lag: bits(before, FIRST_LAG, lag_bits),
                    steps: bits(before, FIRST_STEPS, STEP_BITS),
                }
            }
            WindowForm::Cells3 => {
                use bits3::*;
                let lag_high = bits(self.words.get(2), FIRST_LAG_HIGH, FIRST_LAG_HIGH_BITS);
                Cell {
                    units: bits(self.words.get(3), 0, unit_bits),
                    lag: end >> FIRST_LAG | lag_high << FIRST_LAG_LOW_BITS,
                    steps: bits(self.words.get(BEFORE), FIRST_STEPS, STEP_BITS),
                }
            }
        }
    }

    #[inline(always)]
    pub(super) fn set_first(&mut self, cell: Cell) {
        let words = &mut self.words;
        // Replaces all bits of a word from `shift` on, up to `end`.
        let mut put = |word: usize, shift: u32, end: u32, bits: u64| {
            let mask = (u64::MAX >> (u64::BITS - end)) & (u64::MAX << shift);
            words.set(word, words.get(word) & !mask | bits << shift);
        };
        match self.form {
            WindowForm::Times => {}
            WindowForm::Cells15 => {
                use bits15::*;
                let rest = cell.lag << (FIRST_LAG - FIRST_UNITS);
                let steps = cell.steps << (FIRST_STEPS - FIRST_UNITS);
                put(END, FIRST_UNITS, TOTAL, cell.units | rest | steps);
            }
            WindowForm::Cells7 => {
                use bits7::*;
                let rest = cell.lag << (FIRST_LAG - FIRST_UNITS);
                let steps = cell.steps << (FIRST_STEPS - FIRST_UNITS);
                put(BEFORE, FIRST_UNITS, FIRST_STEPS + STEP_BITS, cell.units | rest | steps);
            }
            WindowForm::Cells3 => {
                use bits3::*;
                let lag_high = cell.lag >> FIRST_LAG_LOW_BITS;
                put(2, FIRST_LAG_HIGH, FIRST_LAG_HIGH + FIRST_LAG_HIGH_BITS, lag_high);
                put(3, 0, PACE, cell.units);
                put(BEFORE, FIRST_STEPS, STEPS, cell.steps);
                put(END, FIRST_LAG, u64::BITS, cell.lag & ((1 << FIRST_LAG_LOW_BITS) - 1));
            }
        }
    }
}

impl Tail {
    #[inline(always)]
    pub(super) fn read(form: WindowForm, head: u64, words: &impl PackedWords) -> Self {
        let (unit_bits, lag_bits) = (form.unit_bits(), form.lag_bits());
        let end = words.get(END);
        let pace = head >> PACE_SHIFT & form.most_units();
        match form {
            WindowForm::Times => Tail { total: 0, pace: 0, last: Cell::default() },
            WindowForm::Cells15 => {
                use bits15::*;
                let (units, lag) = (bits(end, UNITS, unit_bits), bits(end, LAG, lag_bits));
                let last = Cell { units, lag, steps: end >> STEPS };
                Tail { total: bits(end, TOTAL, UNITS - TOTAL), pace, last }
            }
            WindowForm::Cells7 => {
                use bits7::*;
                let (units, lag) = (bits(end, 0, unit_bits), bits(end, LAG, lag_bits));
                let last = Cell { units, lag, steps: words.get(BEFORE) >> STEPS };
                Tail { total: end >> TOTAL, pace, last }
            }
            WindowForm::Cells3 => {
                use bits3::*;
                let before = words.get(BEFORE);
                let (units, lag) = (bits(before, 0, unit_bits), bits(end, 0, lag_bits));
                let last = Cell { units, lag, steps: before >> STEPS };
                let pace_high = bits(before, PACE, PACE_HIGH_BITS) << PACE_LOW_BITS;
                Tail { total: 0, pace: words.get(3) >> PACE | pace_high, last }
            }
        }
    }

    #[inline(always)]
    pub(super) fn write(self, form: WindowForm, words: &mut impl PackedWords) {
        let Tail { total, pace, last: Cell { units, lag, steps } } = self;
        let end = words.get(END);
        match form {
            WindowForm::Times => {}
            WindowForm::Cells15 => {
                use bits15::*;
                let newest = units << UNITS | lag << LAG | steps << STEPS;
                words.set(END, bits(end, 0, TOTAL) | total << TOTAL | newest);
            }
            WindowForm::Cells7 => {
                use bits7::*;
                words.set(BEFORE, bits(words.get(BEFORE), 0, STEPS) | steps << STEPS);
                words.set(END, total << TOTAL | lag << LAG | units);
            }
            WindowForm::Cells3 => {
                use bits3::*;
                words.set(3, bits(words.get(3), 0, PACE) | pace << PACE);
                let first_steps = bits(words.get(BEFORE), FIRST_STEPS, STEP_BITS) << FIRST_STEPS;
                let newest = units | steps << STEPS;
                words.set(BEFORE, newest | first_steps | pace >> PACE_LOW_BITS << PACE);
                words.set(END, end >> FIRST_LAG << FIRST_LAG | lag);
            }
        }
    }
}
