//! The forms of a `sliding-window`: how many cells it has and how many bits their numbers take.

/// How a [`SlidingWindow`](super::SlidingWindow) counts, from the narrowest to the widest.
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
pub(super) const LOG_UNITS: u64 = 20;
/// Bits of a time in the log form. The window is at most 2^16 - 1 grid steps long.
pub(super) const TIME_BITS: u32 = 16;
/// Bits of a last hit, which counts fifteenths of a cell.
pub(super) const STEP_BITS: u32 = 4;
/// Last hits are rounded up to this fraction of a cell.
pub(super) const STEPS: u64 = 15;

impl Form {
    pub(super) const ALL: [Form; 4] = [Form::Log, Form::Cells15, Form::Cells7, Form::Cells3];

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

    pub(super) const fn wider(self) -> Option<Self> {
        match self {
            Form::Log => Some(Form::Cells15),
            Form::Cells15 => Some(Form::Cells7),
            Form::Cells7 => Some(Form::Cells3),
            Form::Cells3 => None,
        }
    }

    /// Bits of the units of a cell.
    pub(super) const fn unit_bits(self) -> u32 {
        match self {
            Form::Log => 0,
            Form::Cells15 => 11,
            Form::Cells7 => 21,
            Form::Cells3 => 40,
        }
    }

    /// Bits of the lag of a cell.
    pub(super) const fn lag_bits(self) -> u32 {
        match self {
            Form::Log => 0,
            Form::Cells15 => 8,
            Form::Cells7 => 19,
            Form::Cells3 => 39,
        }
    }

    /// Bits of a cell: its units, its lag and its last hit, from the lowest bits up.
    pub(super) const fn cell_bits(self) -> u32 {
        self.unit_bits() + self.lag_bits() + STEP_BITS
    }

    /// The most units the log, or a cell, can hold.
    pub(super) const fn most_units(self) -> u64 {
        match self {
            Form::Log => LOG_UNITS,
            _ => (1 << self.unit_bits()) - 1,
        }
    }

    pub(super) const fn most_lag(self) -> u64 {
        (1 << self.lag_bits()) - 1
    }

    /// The unit of the last hits of a cell of this length.
    pub(crate) const fn step_us(cell_us: u64) -> u64 {
        cell_us.div_ceil(STEPS)
    }

    /// The length of a cell; in the log form, the step of the grid.
    pub const fn cell_us(self, window_us: u64) -> u64 {
        match self {
            Form::Log => log_step_us(window_us),
            _ => window_us.div_ceil(self.cells()),
        }
    }
}

/// The smallest of 1, 2, 5, 10, 20, 50, ... microseconds of which a window has at most 65,535.
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
