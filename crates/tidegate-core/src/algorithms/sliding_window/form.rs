//! The forms of a `sliding-window`: the number of its cells, and the bits of their numbers.

/// The representation of a [`SlidingWindow`](super::SlidingWindow), from the narrowest to the widest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// Stores the times of up to 20 units.
    #[default]
    Log,
    /// Divides the window into 15 cells, of up to 2,047 units each.
    Cells15,
    /// Divides the window into 7 cells, of up to 2,097,151 units each.
    Cells7,
    /// Divides the window into 3 cells, of up to 2^40 - 1 units each.
    Cells3,
}

/// The most units in the log form: 20 times of 16 bits.
pub(super) const LOG_UNITS: u64 = 20;
/// The number of bits of a time in the log form. The window is at most 2^16 - 1 grid steps long.
pub(super) const TIME_BITS: u32 = 16;
/// The number of bits of a last hit, which counts fifteenths of a cell.
pub(super) const STEP_BITS: u32 = 4;
/// The number of steps in a cell. Last hits are rounded up to a step.
pub(super) const STEPS: u64 = 15;

impl Form {
    pub(super) const ALL: [Form; 4] = [Form::Log, Form::Cells15, Form::Cells7, Form::Cells3];

    /// Returns the narrowest form in which a limit of `count` units decides precisely.
    pub const fn of(count: u64) -> Self {
        match count {
            0..=20 => Form::Log,
            21..=2_000 => Form::Cells15,
            2_001..=2_000_000 => Form::Cells7,
            _ => Form::Cells3,
        }
    }

    /// Returns the number of cells in a window; 0 in the log form.
    pub const fn cells(self) -> u64 {
        match self {
            Form::Log => 0,
            Form::Cells15 => 15,
            Form::Cells7 => 7,
            Form::Cells3 => 3,
        }
    }

    pub(super) const fn wider(self) -> Option<Self> {
        match self {
            Form::Log => Some(Form::Cells15),
            Form::Cells15 => Some(Form::Cells7),
            Form::Cells7 => Some(Form::Cells3),
            Form::Cells3 => None,
        }
    }

    /// The number of bits of the units of a cell.
    pub(super) const fn unit_bits(self) -> u32 {
        match self {
            Form::Log => 0,
            Form::Cells15 => 11,
            Form::Cells7 => 21,
            Form::Cells3 => 40,
        }
    }

    /// The number of bits of the lag of a cell.
    pub(super) const fn lag_bits(self) -> u32 {
        match self {
            Form::Log => 0,
            Form::Cells15 => 8,
            Form::Cells7 => 19,
            Form::Cells3 => 39,
        }
    }

    /// The number of bits of a cell: its units, its lag and its last hit, from the lowest bits up.
    pub(super) const fn cell_bits(self) -> u32 {
        self.unit_bits() + self.lag_bits() + STEP_BITS
    }

    /// The most units that the log, or a cell, can hold.
    pub(super) const fn most_units(self) -> u64 {
        match self {
            Form::Log => LOG_UNITS,
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

    /// Returns the length of a cell; in the log form, the step of the grid.
    pub const fn cell_us(self, window_us: u64) -> u64 {
        match self {
            Form::Log => log_step_us(window_us),
            _ => window_us.div_ceil(self.cells()),
        }
    }
}

/// The smallest of 1, 2, 5, 10, 20, 50, ... microseconds that divides a window into at most 65,535
/// steps.
const fn log_step_us(window_us: u64) -> u64 {
    const MOST_STEPS: u64 = (1 << TIME_BITS) - 1;
    // The factors from one step to the next are 2, 2.5 and 2.
    let (mut step_us, mut number) = (1, 0);
    while window_us.div_ceil(step_us) > MOST_STEPS {
        step_us = if number % 3 == 1 { step_us / 2 * 5 } else { step_us * 2 };
        number += 1;
    }
    step_us
}
