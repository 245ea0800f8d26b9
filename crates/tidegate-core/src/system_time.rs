//! Times that a caller has read from the system's clock.
//!
//! The crate itself reads no clock: this only converts.

extern crate std;

use std::time::{SystemTime, UNIX_EPOCH};

use crate::Timestamp;

impl From<SystemTime> for Timestamp {
    /// A time before 1970 becomes [`Timestamp::EPOCH`], one after [`Timestamp::LAST`] becomes that.
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        Timestamp::from_micros(micros).min(Timestamp::LAST)
    }
}
