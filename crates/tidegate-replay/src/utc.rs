//! Times as readable dates.

use std::fmt;

use jiff::Timestamp;

/// A time for display, such as `1995-08-01 04:00:01Z`.
#[derive(Clone, Copy, Debug)]
pub struct Utc {
    pub time_us: u64,
}

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = i64::try_from(self.time_us).ok().map(Timestamp::from_microsecond);
        // Times of events end in the year 2255, so this one is in range.
        let time = time.and_then(Result::ok).unwrap_or(Timestamp::MAX);
        write!(f, "{}", time.strftime("%Y-%m-%d %H:%M:%SZ"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_whole_seconds_of_utc() {
        assert_eq!(Utc { time_us: 0 }.to_string(), "1970-01-01 00:00:00Z");
        assert_eq!(Utc { time_us: 807_249_601_999_999 }.to_string(), "1995-08-01 04:00:01Z");
        assert_eq!(Utc { time_us: 1 << 53 }.to_string(), "2255-06-05 23:47:34Z");
    }
}
