//! Conversion of times that a caller has read from the system clock.
//!
//! The crate itself does not read a clock. This file is separate so that a check of the sources can
//! forbid `std` in all others.

extern crate std;

use std::time::{SystemTime, UNIX_EPOCH};

use crate::Timestamp;

impl From<SystemTime> for Timestamp {
    /// Converts a time. A time before 1970 becomes [`Timestamp::EPOCH`], and a time after
    /// [`Timestamp::LAST`] becomes [`Timestamp::LAST`].
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        Timestamp::from_micros(micros).min(Timestamp::LAST)
    }
}
