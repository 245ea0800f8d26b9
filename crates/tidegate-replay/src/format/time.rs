//! Times as written in logs: numbers in some unit, RFC 3339, or the dates of the common log format.
//!
//! Numbers do not indicate their unit. If the name of the field does not either, the first number
//! of a file does: in current times, seconds have 10 digits, milliseconds 13, microseconds 16 and
//! nanoseconds 19. The detected unit is reported. A later number of another size is a malformed
//! line, not a change of the unit.

use std::str::FromStr;

use clap::ValueEnum;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone, TimeZoneDatabase};
use smallvec::SmallVec;

use super::BadLine;

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Seconds,
    Millis,
    Micros,
    Nanos,
}

impl Unit {
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Seconds => "s",
            Unit::Millis => "ms",
            Unit::Micros => "us",
            Unit::Nanos => "ns",
        }
    }

    /// Returns the unit of a number of this size. The ranges of milliseconds,
    /// microseconds and nanoseconds begin in 1973 and end in 5138.
    const fn of_size(number: u64) -> Self {
        match number {
            0..100_000_000_000 => Unit::Seconds,
            100_000_000_000..100_000_000_000_000 => Unit::Millis,
            100_000_000_000_000..100_000_000_000_000_000 => Unit::Micros,
            _ => Unit::Nanos,
        }
    }

    /// Returns the unit that the name of a field ends in, e.g. `time_us`.
    fn of_name(name: &str) -> Option<Self> {
        let units = [Unit::Millis, Unit::Micros, Unit::Nanos, Unit::Seconds];
        let end = name.rsplit(['_', '.']).next().filter(|end| end.len() < name.len())?;
        units.into_iter().find(|unit| unit.name() == end)
    }
}

/// The unit of times that are numbers, or `auto` to detect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UnitChoice {
    Auto,
    S,
    Ms,
    Us,
    Ns,
}

impl UnitChoice {
    pub const fn unit(self) -> Option<Unit> {
        match self {
            UnitChoice::Auto => None,
            UnitChoice::S => Some(Unit::Seconds),
            UnitChoice::Ms => Some(Unit::Millis),
            UnitChoice::Us => Some(Unit::Micros),
            UnitChoice::Ns => Some(Unit::Nanos),
        }
    }
}

/// The zone of times that name none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone(TimeZone);

impl Default for Zone {
    fn default() -> Self {
        Zone(TimeZone::UTC)
    }
}

impl FromStr for Zone {
    type Err = &'static str;

    /// Parses an offset, or a name of the IANA database. The database is the bundled one, so that
    /// a log is read alike on every machine.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let zone = match offset(text.as_bytes()) {
            Some(Some(offset)) => Some(TimeZone::fixed(offset)),
            _ => TimeZoneDatabase::bundled().get(text).ok().filter(|zone| !zone.is_unknown()),
        };
        zone.map(Zone).ok_or("write it as +02:00, -0430, Z or a name such as Europe/Berlin")
    }
}

/// Parses the times of one file.
#[derive(Clone, Debug)]
pub struct Times {
    /// The unit that was given, or that the name of the field ends in.
    given: Option<Unit>,
    /// The detected unit.
    found: Option<Unit>,
    zone: Zone,
    /// The number of times without a zone.
    pub zoneless: u64,
    /// Whether any time was a number.
    pub has_numbers: bool,
}

impl Times {
    pub fn new(given: Option<Unit>, zone: Zone) -> Self {
        Times { given, found: None, zone, zoneless: 0, has_numbers: false }
    }

    /// Takes the unit from the name of the field, if none was given.
    pub fn named(mut self, name: &str) -> Self {
        self.given = self.given.or(Unit::of_name(name));
        self
    }

    /// Returns the unit of numbers, or `None` if it was not given and no number has been parsed.
    pub fn unit(&self) -> Option<Unit> {
        self.given.or(self.found)
    }

    /// Returns whether the unit was guessed.
    pub fn is_guessed(&self) -> bool {
        self.given.is_none() && self.found.is_some()
    }

    /// Parses a time, and returns it in microseconds since 1970.
    pub fn read(&mut self, text: &[u8]) -> Result<u64, BadLine> {
        match text {
            [b'-', b'0'..=b'9', ..] => Err(BadLine::TimeBefore1970),
            [_, _, _, b'0'..=b'9', b'-' | b'/', ..] => self.rfc3339(text),
            [b'0'..=b'9', b':', ..] | [_, b'0'..=b'9', b':', ..] => Err(BadLine::NoDateField),
            // Only lines of logs have the brackets that the other message shows.
            [_, _, b'/', ..] => log_date_us(text).map_err(|why| match why {
                BadLine::BadDate => BadLine::BadTime,
                why => why,
            }),
            _ => self.number(text),
        }
    }

    /// Parses a time. If it is a time of day, the date is read before it.
    pub fn read_parts(&mut self, date: Option<&[u8]>, time: Option<&[u8]>) -> Result<u64, BadLine> {
        let time = time.ok_or(BadLine::NoTime)?;
        match (date, time) {
            (Some(date), [b'0'..=b'9', b':', ..] | [b'0'..=b'9', b'0'..=b'9', b':', ..]) => {
                let padding: &[u8] = if time[1] == b':' { b"0" } else { b"" };
                let whole: SmallVec<[u8; 64]> =
                    [date, b" ", padding, time].into_iter().flatten().copied().collect();
                self.read(&whole)
            }
            _ => self.read(time),
        }
    }

    fn number(&mut self, text: &[u8]) -> Result<u64, BadLine> {
        let (whole, rest) = digits(text).ok_or(BadLine::BadTime)?;
        let fraction = match rest {
            [] => &[][..],
            [b'.', fraction @ ..] if fraction.iter().all(u8::is_ascii_digit) => fraction,
            _ => return self.number(&expanded(text).ok_or(BadLine::BadTime)?),
        };
        self.has_numbers = true;
        let unit = match self.given {
            Some(unit) => unit,
            None => {
                let size = Unit::of_size(whole);
                let unit = *self.found.get_or_insert(size);
                if unit != size {
                    return Err(BadLine::OtherUnit { usual: unit, this: size });
                }
                unit
            }
        };
        let (scale, places) = match unit {
            Unit::Seconds => (1_000_000, 6),
            Unit::Millis => (1_000, 3),
            Unit::Micros => (1, 0),
            Unit::Nanos => return Ok(whole / 1_000),
        };
        let part = (0..places).fold(0, |part, place| {
            part * 10 + fraction.get(place).map_or(0, |digit| u64::from(digit - b'0'))
        });
        whole.checked_mul(scale).and_then(|us| us.checked_add(part)).ok_or(BadLine::TimeTooLate)
    }

    /// Parses `2023-11-14T22:13:20.5Z`, also with a space instead of the T, or slashes in the date.
    fn rfc3339(&mut self, text: &[u8]) -> Result<u64, BadLine> {
        let is_date = text.len() == 10 && text[7] == text[4];
        let missing = if is_date { BadLine::NoClock } else { BadLine::BadTime };
        let date = text.get(..19).ok_or(missing)?;
        let separators = [(7, date[4]), (13, b':'), (16, b':')];
        let between = matches!(date[10], b'T' | b't' | b' ' | b'_');
        if !between || separators.iter().any(|&(at, byte)| date[at] != byte) {
            return Err(BadLine::BadTime);
        }
        let year = number(&date[..4]).ok_or(BadLine::BadTime)?;
        let of = |from: usize| number(&date[from..from + 2]);
        let [Some(month), Some(day), Some(hour), Some(minute), Some(second)] =
            [of(5), of(8), of(11), of(14), of(17)]
        else {
            return Err(BadLine::BadTime);
        };
        let local = LocalTime { year, month, day, hour, minute, second };
        let (fraction_us, rest) = fraction(&text[19..]);
        let named = offset(rest).ok_or(BadLine::BadTime)?;
        self.zoneless += u64::from(named.is_none());
        let seconds = match named {
            Some(offset) => local.seconds(&TimeZone::fixed(offset)),
            None => local.seconds(&self.zone.0),
        };
        let seconds = seconds.ok_or(BadLine::BadTime)?;
        let seconds = u64::try_from(seconds).map_err(|_| BadLine::TimeBefore1970)?;
        Ok(seconds * 1_000_000 + fraction_us)
    }
}

/// The maximum number of digits on either side of the point of a number with an exponent.
const MAX_SHIFT: usize = 24;

/// Rewrites `1.7e9` as `1700000000.`, without an exponent.
#[cold]
fn expanded(text: &[u8]) -> Option<Vec<u8>> {
    let at = text.iter().position(|byte| matches!(byte, b'e' | b'E'))?;
    let (mantissa, exponent) = (&text[..at], std::str::from_utf8(&text[at + 1..]).ok()?);
    let exponent: i32 = exponent.parse().ok()?;
    let point = mantissa.iter().position(|&byte| byte == b'.').unwrap_or(mantissa.len());
    let (whole, fraction) = (&mantissa[..point], mantissa.get(point + 1..).unwrap_or_default());
    let all = || whole.iter().chain(fraction);
    if whole.is_empty() || !all().all(u8::is_ascii_digit) {
        return None;
    }
    let shift =
        usize::try_from(exponent.unsigned_abs()).ok().filter(|&shift| shift <= MAX_SHIFT)?;
    let zeros = || std::iter::repeat_n(b'0', shift);
    let mut digits: Vec<u8> = all().copied().collect();
    let place = if exponent < 0 {
        digits.splice(..0, zeros());
        whole.len()
    } else {
        digits.extend(zeros());
        whole.len() + shift
    };
    digits.insert(place, b'.');
    Some(digits)
}

/// Parses `01/Aug/1995:00:00:01 -0400`, with an optional fraction after the seconds.
pub fn log_date_us(text: &[u8]) -> Result<u64, BadLine> {
    let date = text.get(..20).ok_or(BadLine::BadDate)?;
    let (fraction_us, rest) = fraction(&text[20..]);
    let seconds = log_seconds(date, rest).ok_or(BadLine::BadDate)?;
    let seconds = u64::try_from(seconds).map_err(|_| BadLine::TimeBefore1970)?;
    Ok(seconds * 1_000_000 + fraction_us)
}

/// Returns the seconds of `01/Aug/1995:00:00:01` with ` -0400`.
fn log_seconds(date: &[u8], zone_text: &[u8]) -> Option<i64> {
    let separators = [(2, b'/'), (6, b'/'), (11, b':'), (14, b':'), (17, b':')];
    if separators.iter().any(|&(at, byte)| date[at] != byte) {
        return None;
    }
    let local_time = LocalTime {
        year: number(&date[7..11])?,
        month: month(&date[3..6])?,
        day: number(&date[..2])?,
        hour: number(&date[12..14])?,
        minute: number(&date[15..17])?,
        second: number(&date[18..20])?,
    };
    let zone_text = zone_text.strip_prefix(b" ").filter(|zone| zone.len() == 5)?;
    local_time.seconds(&TimeZone::fixed(offset(zone_text)??))
}

struct LocalTime {
    year: i16,
    month: i8,
    day: i8,
    hour: i8,
    minute: i8,
    second: i8,
}

impl LocalTime {
    /// Returns the seconds since 1970, or `None` if the date or time of day does not exist.
    ///
    /// Of a time that the zone has twice, the first is taken. A time that the zone skips counts as
    /// if the clock had not been set forward yet.
    fn seconds(&self, zone: &TimeZone) -> Option<i64> {
        let LocalTime { year, month, day, hour, minute, second } = *self;
        // A leap second is written as the 60th: it is the second after the 59th.
        let leap = i8::from(second == 60);
        let local = DateTime::new(year, month, day, hour, minute, second - leap, 0).ok()?;
        // The last day of the year 9999 is out of range. It is too late for an event anyway.
        let time = zone.to_timestamp(local).unwrap_or(Timestamp::MAX);
        Some(time.as_second() + i64::from(leap))
    }
}

/// Returns the microseconds of `.5`, and the remaining text; 0 without a fraction.
fn fraction(text: &[u8]) -> (u64, &[u8]) {
    let Some((b'.' | b',', rest)) = text.split_first() else { return (0, text) };
    let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let us = (0..6).fold(0, |us, place| {
        us * 10 + rest[..length].get(place).map_or(0, |digit| u64::from(digit - b'0'))
    });
    (us, &rest[length..])
}

/// The offset at the end of a time: `Z`, `+02:00`, `-0430`, ` +0000`; none is `Some(None)`.
fn offset(text: &[u8]) -> Option<Option<Offset>> {
    let text = text.strip_prefix(b" ").unwrap_or(text);
    let (east, hours, minutes) = match text {
        [] => return Some(None),
        b"Z" | b"z" | b"UTC" => return Some(Some(Offset::UTC)),
        [sign, h1, h2, b':', m1, m2] | [sign, h1, h2, m1, m2] => {
            (*sign, number::<i32>(&[*h1, *h2])?, number(&[*m1, *m2])?)
        }
        [sign, h1, h2] => (*sign, number(&[*h1, *h2])?, 0),
        _ => return None,
    };
    let sign = match east {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let seconds = (hours < 24 && minutes < 60).then_some(sign * (hours * 3_600 + minutes * 60))?;
    Offset::from_seconds(seconds).ok().map(Some)
}

/// The number of digits with which every number fits in 64 bits.
const DIGITS_THAT_FIT: usize = 19;

/// Returns the number at the start of a field and the remaining text, or `None` without digits. A
/// number that does not fit saturates, and is out of range anyway.
#[inline]
pub fn digits(field: &[u8]) -> Option<(u64, &[u8])> {
    let mut number: u64 = 0;
    let mut digits = 0;
    for byte in field {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        number = number.wrapping_mul(10).wrapping_add(u64::from(digit));
        digits += 1;
    }
    let number = if digits > DIGITS_THAT_FIT { u64::MAX } else { number };
    (digits > 0).then(|| (number, &field[digits..]))
}

/// The number of up to four digits.
fn number<N: TryFrom<i32>>(digits: &[u8]) -> Option<N> {
    let number = digits.iter().try_fold(0, |number, byte| {
        byte.is_ascii_digit().then(|| number * 10 + i32::from(byte - b'0'))
    })?;
    N::try_from(number).ok()
}

fn month(name: &[u8]) -> Option<i8> {
    const NAMES: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    NAMES.chunks(3).zip(1..).find(|(known, _)| *known == name).map(|(_, month)| month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_log_dates() {
        let time = |date: &str| log_date_us(date.as_bytes()).ok();
        assert_eq!(time("01/Jan/1970:00:00:00 +0000"), Some(0));
        assert_eq!(time("01/Aug/1995:00:00:01 -0400"), Some(807_249_601_000_000));
        assert_eq!(time("01/Aug/1995:00:00:01.25 -0400"), Some(807_249_601_250_000));
        assert_eq!(time("29/Feb/2024:12:00:00 +0530"), Some(1_709_188_200_000_000));
        assert_eq!(time("31/Dec/2016:23:59:60 +0000"), time("01/Jan/2017:00:00:00 +0000"));
        assert!(matches!(log_date_us(b"01/Jan/1970:00:00:00 +0100"), Err(BadLine::TimeBefore1970)));
        for bad in [
            "29/Feb/2023:12:00:00 +0000",
            "00/Jan/2023:12:00:00 +0000",
            "32/Jan/2023:12:00:00 +0000",
            "01/jan/2023:12:00:00 +0000",
            "01/Jan/2023:24:00:00 +0000",
            "01/Jan/2023:12:60:00 +0000",
            "01/Jan/2023:12:00:61 +0000",
            "01/Jan/2023:12:00:00 0000",
            "01/Jan/2023:12:00:00 +2400",
            "01/Jan/2023 12:00:00 +0000",
            "1/Jan/2023:12:00:00 +0000",
            "+1/Jan/2023:12:00:00 +0000",
            "01/Jan/2023:12:00:00",
            "",
        ] {
            assert_eq!(time(bad), None, "{bad}");
        }
    }

    #[test]
    fn detects_time_unit_from_first_number() {
        let rows = [
            ("1700000000", Unit::Seconds, 1_700_000_000_000_000),
            ("1700000000.0000019", Unit::Seconds, 1_700_000_000_000_001),
            ("1700000000123", Unit::Millis, 1_700_000_000_123_000),
            ("1700000000123.4", Unit::Millis, 1_700_000_000_123_400),
            ("1700000000123456", Unit::Micros, 1_700_000_000_123_456),
            ("1700000000123456789", Unit::Nanos, 1_700_000_000_123_456),
        ];
        for (text, unit, time_us) in rows {
            let mut times = Times::new(None, Zone::default());
            assert_eq!(times.read(text.as_bytes()).ok(), Some(time_us), "{text}");
            assert_eq!((times.unit(), times.is_guessed()), (Some(unit), true));
            for (other, size, _) in rows.iter().filter(|row| row.1 != unit) {
                let read = times.read(other.as_bytes());
                assert!(
                    matches!(read, Err(BadLine::OtherUnit { usual, this }) if usual == unit && this == *size)
                );
            }
        }
        let mut given = Times::new(None, Zone::default()).named("time_us");
        assert_eq!(given.read(b"5").ok(), Some(5));
        assert_eq!(given.read(b"1700000000123456").ok(), Some(1_700_000_000_123_456));
        for bad in ["", "x", "1e", "e9", "1e99", "1e9e9", "1.x", "-5", "18446744073709551615.0"] {
            assert!(Times::new(Some(Unit::Seconds), Zone::default()).read(bad.as_bytes()).is_err());
        }
    }

    #[test]
    fn parses_rfc3339_variants() {
        let east: Zone = "+02:00".parse().expect("a zone");
        for (text, time_us, zoneless) in [
            ("2023-11-14T22:13:20Z", Some(1_700_000_000_000_000), 0),
            ("2023-11-14 22:13:20.123456789Z", Some(1_700_000_000_123_456), 0),
            ("2023-11-15T00:13:20+02:00", Some(1_700_000_000_000_000), 0),
            ("2023-11-14T17:43:20.5-0430", Some(1_700_000_000_500_000), 0),
            ("2023-11-15 00:13:20", Some(1_700_000_000_000_000), 1),
            ("2023-11-14T22:13", None, 0),
            ("2023-02-29T00:00:00Z", None, 0),
            ("2023-13-01T00:00:00Z", None, 0),
            ("2023-11-14T22:13:20 CET", None, 0),
            ("1969-12-31T23:59:59Z", None, 0),
        ] {
            let mut times = Times::new(None, Zone::clone(&east));
            assert_eq!(times.read(text.as_bytes()).ok(), time_us, "{text}");
            assert_eq!(times.zoneless, zoneless, "{text}");
        }
        for bad in ["", "2", "+25:00", "+02:60", "CEST", "Europe", "Etc/Unknown", "Europe/Bonn"] {
            assert!(bad.parse::<Zone>().is_err(), "{bad}");
        }
    }

    #[test]
    fn reads_local_times_of_named_zones() {
        let rows = [
            // The clock goes from 02:00 to 03:00.
            ("Europe/Berlin", "2025-03-30 01:59:59", "2025-03-30T00:59:59Z"),
            ("Europe/Berlin", "2025-03-30 02:30:00", "2025-03-30T01:30:00Z"),
            ("Europe/Berlin", "2025-03-30 03:00:00", "2025-03-30T01:00:00Z"),
            // The clock goes from 03:00 back to 02:00.
            ("Europe/Berlin", "2025-10-26 01:59:59", "2025-10-25T23:59:59Z"),
            ("Europe/Berlin", "2025-10-26 02:00:00", "2025-10-26T00:00:00Z"),
            ("Europe/Berlin", "2025-10-26 02:59:59.5", "2025-10-26T00:59:59.5Z"),
            ("Europe/Berlin", "2025-10-26 03:00:00", "2025-10-26T02:00:00Z"),
            // A time that names its offset has that one.
            ("Europe/Berlin", "2025-10-26 02:30:00+01:00", "2025-10-26T01:30:00Z"),
            ("america/new_york", "2025-07-01 00:00:00", "2025-07-01T04:00:00Z"),
            ("Asia/Kathmandu", "2025-07-01 00:00:00", "2025-06-30T18:15:00Z"),
            ("UTC", "2025-07-01 00:00:00", "2025-07-01T00:00:00Z"),
            // Beyond the last rule that the database states.
            ("Europe/Berlin", "2200-07-01 00:00:00", "2200-06-30T22:00:00Z"),
        ];
        for (zone, local, utc) in rows {
            let read = |zone: Zone, text: &str| Times::new(None, zone).read(text.as_bytes()).ok();
            let time_us = read(zone.parse().expect(zone), local);
            assert!(time_us.is_some(), "{local}");
            assert_eq!(time_us, read(Zone::default(), utc), "{local} {zone}");
        }
    }

    #[test]
    fn times_at_the_end_of_the_calendar_are_too_late() {
        let mut times = Times::new(None, Zone::default());
        let latest = times.read(b"9999-12-31T23:59:60Z").ok();
        assert!(latest > Some(crate::format::MAX_TIME_US));
        let leap_second = times.read(b"2016-12-31T23:59:60Z").ok();
        assert_eq!(leap_second, times.read(b"2017-01-01T00:00:00Z").ok());
    }
}
