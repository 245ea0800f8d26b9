//! Conversion between days and dates of the Gregorian calendar.

use std::fmt;

/// The number of days in 400 years. Years begin in March here, so that the leap day is the last day
/// of a year; any 400 consecutive years then have the same number of days.
const DAYS_IN_400_YEARS: i64 = 146_097;

/// The number of days from March 1 of year 0 to January 1, 1970.
const DAYS_TO_1970: i64 = 719_468;

/// Returns the number of days from 1970-01-01 to this date, which must exist.
pub fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leap_days + days_before_month(month) + day - 1 - DAYS_TO_1970
}

/// Returns the number of days before a month of a year that begins in March. Months are counted
/// from 0 and have 31, 30, 31, 30, 31 days, repeatedly.
fn days_before_month(month_from_march: i64) -> i64 {
    (153 * month_from_march + 2) / 5
}

pub fn days_in_month(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns the year, month and day that is `days` days after 1970-01-01.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + DAYS_TO_1970;
    let cycle = days.div_euclid(DAYS_IN_400_YEARS);
    let day = days.rem_euclid(DAYS_IN_400_YEARS);
    // Without the leap days so far, each year has 365 days.
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (year * 365 + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - days_before_month(month) + 1;
    let year = cycle * 400 + year;
    if month < 10 { (year, month + 3, day) } else { (year + 1, month - 9, day) }
}

/// A time for display, such as `1995-08-01 04:00:01Z`.
#[derive(Clone, Copy, Debug)]
pub struct Utc {
    pub time_us: u64,
}

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.time_us / 1_000_000;
        let (year, month, day) = date((seconds / 86_400).cast_signed());
        let second = seconds % 86_400;
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_every_day_from_1900_to_2300() {
        let mut days = days_since_1970(1900, 1, 1);
        assert_eq!(days, -25_567);
        for year in 1900..=2300 {
            for month in 1..=12 {
                for day in 1..=days_in_month(year, month) {
                    assert_eq!(days_since_1970(year, month, day), days);
                    assert_eq!(date(days), (year, month, day));
                    days += 1;
                }
            }
        }
    }

    #[test]
    fn formats_times() {
        assert_eq!(Utc { time_us: 0 }.to_string(), "1970-01-01 00:00:00Z");
        assert_eq!(Utc { time_us: 807_249_601_999_999 }.to_string(), "1995-08-01 04:00:01Z");
    }
}
