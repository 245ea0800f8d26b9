//! Apache's common and combined log formats:
//!
//! ```text
//! host ident user [01/Aug/1995:00:00:01 -0400] "GET / HTTP/1.0" 200 1839
//! host ident user [01/Aug/1995:00:00:01 -0400] "GET / HTTP/1.0" 200 1839 "referer" "agent"
//! ```
//!
//! Old servers logged requests with bare quotes inside, so the request ends at
//! the first quote that a status and a size follow. Whatever servers append
//! after the last field is ignored.

use std::borrow::Cow;

use memchr::{memchr, memchr_iter, memmem};

use super::{BadLine, Event};
use crate::cli::KeyField;
use crate::replay::calendar::{days_in_month, days_since_1970};

/// Which fields a line must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fields {
    Common,
    Combined,
}

/// Every log line costs one.
const COST: i64 = 1;

pub fn parse(line: &[u8], fields: Fields, key: KeyField) -> Result<Event<'_>, BadLine> {
    let host_end = memchr(b' ', line).ok_or(BadLine::NoDate)?;
    let date_start = memmem::find(line, b" [").ok_or(BadLine::NoDate)? + 2;
    let rest = &line[date_start..];
    let date_end = memchr(b']', rest).ok_or(BadLine::NoDate)?;
    let seconds = seconds_since_1970(&rest[..date_end]).ok_or(BadLine::BadDate)?;
    let seconds = u64::try_from(seconds).map_err(|_| BadLine::TimeBefore1970)?;
    let rest = rest[date_end + 1..].strip_prefix(b" \"").ok_or(BadLine::NoRequest)?;
    let rest = after_request(rest)?;
    let agent = match fields {
        Fields::Common => None,
        Fields::Combined => Some(agent(rest)?),
    };
    let host = &line[..host_end];
    let key = match (key, agent) {
        (KeyField::User, _) => user(&line[host_end..date_start - 2]).ok_or(BadLine::NoKey)?,
        (KeyField::Agent, Some(agent)) => agent,
        _ => host,
    };
    Ok(Event { time_us: seconds * 1_000_000, key: Cow::Borrowed(key), cost: COST })
}

/// The user of ` ident user`; it may contain blanks.
fn user(names: &[u8]) -> Option<&[u8]> {
    let names = names.strip_prefix(b" ")?;
    memchr(b' ', names).map(|at| &names[at + 1..])
}

/// What follows the request, the status and the size.
fn after_request(text: &[u8]) -> Result<&[u8], BadLine> {
    let mut closed = false;
    for at in memchr_iter(b'"', text) {
        closed = true;
        if let Some(rest) = after_status_and_size(&text[at + 1..]) {
            return Ok(rest);
        }
    }
    Err(if closed { BadLine::NoStatus } else { BadLine::NoRequest })
}

/// What follows ` 200 1839`, where either number may be `-`.
fn after_status_and_size(text: &[u8]) -> Option<&[u8]> {
    let rest = after_number(text.strip_prefix(b" ")?)?;
    let rest = after_number(rest.strip_prefix(b" ")?)?;
    (rest.is_empty() || rest[0] == b' ').then_some(rest)
}

fn after_number(text: &[u8]) -> Option<&[u8]> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    match digits {
        0 => text.strip_prefix(b"-"),
        _ => Some(&text[digits..]),
    }
}

/// The agent of ` "referer" "agent"`. Quotes within either are escaped.
fn agent(text: &[u8]) -> Result<&[u8], BadLine> {
    let (_, rest) = quoted(text)?;
    quoted(rest).map(|(agent, _)| agent)
}

fn quoted(text: &[u8]) -> Result<(&[u8], &[u8]), BadLine> {
    let text = text.strip_prefix(b" \"").ok_or(BadLine::NoAgent)?;
    let mut escaped = false;
    for (at, &byte) in text.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Ok((&text[..at], &text[at + 1..])),
            _ => {}
        }
    }
    Err(BadLine::NoAgent)
}

/// Seconds of `01/Aug/1995:00:00:01 -0400`.
fn seconds_since_1970(date: &[u8]) -> Option<i64> {
    let date: &[u8; 26] = date.try_into().ok()?;
    let separators = [(2, b'/'), (6, b'/'), (11, b':'), (14, b':'), (17, b':'), (20, b' ')];
    if separators.iter().any(|&(at, byte)| date[at] != byte) {
        return None;
    }
    let month = month(&date[3..6])?;
    let year = number(&date[7..11])?;
    let day = number(&date[..2])?;
    let [hour, minute, second] =
        [number(&date[12..14])?, number(&date[15..17])?, number(&date[18..20])?];
    // A leap second is written as the 60th.
    let on_the_clock = hour < 24 && minute < 60 && second <= 60;
    if !on_the_clock || !(1..=days_in_month(year, month)).contains(&day) {
        return None;
    }
    let [zone_hours, zone_minutes] = [number(&date[22..24])?, number(&date[24..26])?];
    let east = match date[21] {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    if zone_hours >= 24 || zone_minutes >= 60 {
        return None;
    }
    let local = days_since_1970(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    Some(local - east * (zone_hours * 3_600 + zone_minutes * 60))
}

fn number(digits: &[u8]) -> Option<i64> {
    digits.iter().try_fold(0, |number, byte| {
        byte.is_ascii_digit().then(|| number * 10 + i64::from(byte - b'0'))
    })
}

fn month(name: &[u8]) -> Option<i64> {
    const NAMES: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    NAMES.chunks(3).zip(1..).find(|(known, _)| *known == name).map(|(_, month)| month)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(date: &str) -> Option<i64> {
        seconds_since_1970(date.as_bytes())
    }

    #[test]
    fn dates() {
        assert_eq!(time("01/Jan/1970:00:00:00 +0000"), Some(0));
        assert_eq!(time("01/Aug/1995:00:00:01 -0400"), Some(807_249_601));
        assert_eq!(time("29/Feb/2024:12:00:00 +0530"), Some(1_709_188_200));
        assert_eq!(time("31/Dec/2016:23:59:60 +0000"), time("01/Jan/2017:00:00:00 +0000"));
        assert_eq!(time("01/Jan/1970:00:00:00 +0100"), Some(-3600));
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
            "",
        ] {
            assert_eq!(time(bad), None, "{bad}");
        }
    }

    const DATE: &str = "[01/Jan/1970:00:00:02 +0000]";

    fn key(line: &str, fields: Fields, key: KeyField) -> Result<String, BadLine> {
        let line = line.replace("DATE", DATE);
        let event = parse(line.as_bytes(), fields, key)?;
        assert_eq!((event.time_us, event.cost), (2_000_000, 1));
        Ok(String::from_utf8_lossy(&event.key).into_owned())
    }

    #[test]
    fn keys() {
        let common = |line, field| key(line, Fields::Common, field).expect(line);
        let combined = |line, field| key(line, Fields::Combined, field).expect(line);
        assert_eq!(common("h - u DATE \"GET / HTTP/1.0\" 200 5", KeyField::Host), "h");
        assert_eq!(common("h - a b DATE \"GET / HTTP/1.0\" 200 -", KeyField::User), "a b");
        assert_eq!(common("h - - DATE \"say \"hi\" 1\" 200 5", KeyField::Host), "h");
        assert_eq!(common("h - - DATE \"-\" - - \"r\" \"a\"", KeyField::Host), "h");
        let line = "h - u DATE \"GET /\" 200 5 \"r \\\" r\" \"an \\\" agent\" 0.1";
        assert_eq!(combined(line, KeyField::Agent), "an \\\" agent");
        assert_eq!(combined(line, KeyField::User), "u");
    }

    #[test]
    fn truncated_lines_are_not_events() {
        let whole = format!("host - user {DATE} \"GET / HTTP/1.0\" 200 1839 \"-\" \"agent\"");
        assert!(parse(whole.as_bytes(), Fields::Combined, KeyField::Host).is_ok());
        for length in 0..whole.len() {
            let cut = &whole.as_bytes()[..length];
            assert!(parse(cut, Fields::Combined, KeyField::Host).is_err(), "{length}");
        }
        let size = whole.find("1839").expect("the size");
        for length in 0..size {
            let cut = &whole.as_bytes()[..length];
            assert!(parse(cut, Fields::Common, KeyField::Host).is_err(), "{length}");
        }
    }

    #[test]
    fn why_a_line_is_bad() {
        let why = |line: &str| {
            key(line, Fields::Combined, KeyField::Host).expect_err("a bad line").to_string()
        };
        assert_eq!(why("h"), BadLine::NoDate.to_string());
        assert_eq!(why("h - - [x] \"GET /\" 200 5"), BadLine::BadDate.to_string());
        assert_eq!(why("h - - DATE GET / 200 5"), BadLine::NoRequest.to_string());
        assert_eq!(why("h - - DATE \"GET /\" 200"), BadLine::NoStatus.to_string());
        assert_eq!(why("h - - DATE \"GET /\" 200 5"), BadLine::NoAgent.to_string());
        assert_eq!(
            why("h - - [31/Dec/1969:23:59:59 +0000] \"GET /\" 200 5"),
            BadLine::TimeBefore1970.to_string()
        );
    }
}
