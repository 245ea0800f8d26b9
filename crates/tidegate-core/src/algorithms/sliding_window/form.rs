//! The forms of a `sliding-window`: the number of its cells, and the bits of their numbers.

/// The representation of a [`SlidingWindow`](super::SlidingWindow), from the narrowest to the
/// widest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum WindowForm {
    /// Stores the times of up to 20 units.
    #[default]
    Times,
    /// Divides the window into 15 cells, of up to 2,047 units each.
    Cells15,
    /// Divides the window into 7 cells, of up to 2,097,151 units each.
    Cells7,
    /// Divides the window into 3 cells, of up to 2^40 - 1 units each.
    Cells3,
}

/// The most units in the times form: 20 times of 16 bits.
pub(super) const MAX_TIMES: u64 = 20;
/// The number of bits of a time in the times form. The window is at most 2^16 - 1 grid steps long.
pub(super) const TIME_BITS: u32 = 16;
/// The number of bits of a last hit, which counts fifteenths of a cell.
pub(super) const STEP_BITS: u32 = 4;
/// The number of steps in a cell. Last hits are rounded up to a step.
pub(super) const STEPS: u64 = 15;

impl WindowForm {
    pub(super) const ALL: [WindowForm; 4] =
        [WindowForm::Times, WindowForm::Cells15, WindowForm::Cells7, WindowForm::Cells3];

    /// Returns the narrowest form in which a limit of `count` units decides precisely.
    pub const fn of(count: u64) -> Self {
        match count {
            0..=20 => WindowForm::Times,
            21..=2_000 => WindowForm::Cells15,
            2_001..=2_000_000 => WindowForm::Cells7,
            _ => WindowForm::Cells3,
        }
    }

    /// Returns the number of cells in a window; 0 in the times form.
    pub const fn cells(self) -> u64 {
        match self {
            WindowForm::Times => 0,
            WindowForm::Cells15 => 15,
            WindowForm::Cells7 => 7,
            WindowForm::Cells3 => 3,
        }
    }

    pub(super) const fn wider(self) -> Option<Self> {
        match self {
            WindowForm::Times => Some(WindowForm::Cells15),
            WindowForm::Cells15 => Some(WindowForm::Cells7),
            WindowForm::Cells7 => Some(WindowForm::Cells3),
            WindowForm::Cells3 => None,
        }
    }

    /// The number of bits of the units of a cell.
    pub(super) const fn unit_bits(self) -> u32 {
        match self {
            WindowForm::Times => 0,
            WindowForm::Cells15 => 11,
            WindowForm::Cells7 => 21,
            WindowForm::Cells3 => 40,
        }
    }

    /// The number of bits of the lag of a cell.
    pub(super) const fn lag_bits(self) -> u32 {
        match self {
            WindowForm::Times => 0,
            WindowForm::Cells15 => 8,
            WindowForm::Cells7 => 19,
            WindowForm::Cells3 => 39,
        }
    }

    /// The number of bits of a cell: its units, its lag and its last hit, from the lowest bits up.
    pub(super) const fn cell_bits(self) -> u32 {
        self.unit_bits() + self.lag_bits() + STEP_BITS
    }

    /// The most units that the times form, or a cell of another form, can hold.
    pub(super) const fn most_units(self) -> u64 {
        match self {
            WindowForm::Times => MAX_TIMES,
            _ => (1 << self.unit_bits()) - 1,
        }
    }

    pub(super) const fn most_lag(self) -> u64 {
        (1 << self.lag_bits()) - 1
    }

    /// The length of a step of a cell of this length.
    pub(crate) const fn step_us(cell_us: u64) -> u64 {
        cell_us.div_ceil(STEPS)
    }

    /// Returns the length of a cell; in the times form, the step of the grid.
    pub const fn cell_us(self, window_us: u64) -> u64 {
        match self {
            WindowForm::Times => times_step_us(window_us),
            _ => window_us.div_ceil(self.cells()),
        }
    }
}

/// The smallest of 1, 2, 5, 10, 20, 50, ... microseconds that divides a window into at most 65,535
/// steps.
const fn times_step_us(window_us: u64) -> u64 {
    const MOST_STEPS: u64 = (1 << TIME_BITS) - 1;
    // The factors from one step to the next are 2, 2.5 and 2.
    let (mut step_us, mut number) = (1, 0);
    while window_us.div_ceil(step_us) > MOST_STEPS {
        step_us = if number % 3 == 1 { step_us / 2 * 5 } else { step_us * 2 };
        number += 1;
    }
    step_us
}
