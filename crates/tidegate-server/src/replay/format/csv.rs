//! `time_us,key[,cost]`.
//!
//! A key that contains a comma or a quote stands in quotes, with quotes inside
//! it doubled. Keys need not be UTF-8.

use std::borrow::Cow;

use memchr::memchr;

use super::{BadLine, Event};

/// The key, and the field of the cost if there is one.
type KeyAndCost<'a> = (Cow<'a, [u8]>, Option<&'a [u8]>);

pub fn is_header(line: &[u8]) -> bool {
    line.strip_prefix(b"time_us,")
        .is_some_and(|rest| rest.first().is_some_and(u8::is_ascii_alphabetic))
}

#[inline]
pub fn parse(line: &[u8]) -> Result<Event<'_>, BadLine> {
    let (time_us, rest) = leading_number(line).ok_or(BadLine::NoTime)?;
    let rest = match rest.split_first() {
        Some((b',', rest)) => rest,
        None => return Err(BadLine::NoKey),
        Some(_) => return Err(BadLine::NoTime),
    };
    let (key, cost) = if rest.first() == Some(&b'"') {
        quoted(rest)?
    } else {
        match memchr(b',', rest) {
            None => (Cow::Borrowed(rest), None),
            Some(at) => (Cow::Borrowed(&rest[..at]), Some(&rest[at + 1..])),
        }
    };
    let cost = cost.map_or(Ok(1), parse_cost)?;
    Ok(Event { time_us, key, cost })
}

/// Any number of so many digits fits in 64 bits.
const DIGITS_THAT_FIT: usize = 19;

/// The digits at the start of a field and what follows; `None` without digits.
/// A longer number than fits is the largest, which is out of range anyway.
#[inline]
fn leading_number(field: &[u8]) -> Option<(u64, &[u8])> {
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

#[cold]
fn parse_cost(field: &[u8]) -> Result<i64, BadLine> {
    if memchr(b',', field).is_some() {
        return Err(BadLine::TooManyFields);
    }
    let text = std::str::from_utf8(field).map_err(|_| BadLine::BadCost)?;
    text.parse().map_err(|_| BadLine::BadCost)
}

/// A quoted field at the start of `rest`, and the field after it if there is one.
#[cold]
fn quoted(rest: &[u8]) -> Result<KeyAndCost<'_>, BadLine> {
    let mut key = Vec::new();
    let mut at = 1;
    loop {
        let length = memchr(b'"', &rest[at..]).ok_or(BadLine::OpenQuote)?;
        key.extend_from_slice(&rest[at..at + length]);
        at += length + 1;
        match rest.get(at) {
            Some(b'"') => key.push(b'"'),
            Some(b',') => return Ok((Cow::Owned(key), Some(&rest[at + 1..]))),
            None => return Ok((Cow::Owned(key), None)),
            Some(_) => return Err(BadLine::OpenQuote),
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(line: &str) -> (u64, String, i64) {
        let event = parse(line.as_bytes()).unwrap_or_else(|error| panic!("{line}: {error}"));
        (event.time_us, String::from_utf8_lossy(&event.key).into_owned(), event.cost)
    }

    #[test]
    fn good_lines() {
        assert_eq!(event("12,alice"), (12, "alice".into(), 1));
        assert_eq!(event("0,a b,7"), (0, "a b".into(), 7));
        assert_eq!(event("5,k,-3"), (5, "k".into(), -3));
        assert_eq!(event("5,k,0"), (5, "k".into(), 0));
        assert_eq!(event("5,\"a,b\",2"), (5, "a,b".into(), 2));
        assert_eq!(event("5,\"say \"\"hi\"\"\""), (5, "say \"hi\"".into(), 1));
        assert_eq!(parse(b"5,\xff\xfe").expect("any bytes").key.as_ref(), b"\xff\xfe");
        // Beyond 64 bits the number stays too large rather than wrapping round.
        assert_eq!(event("99999999999999999999999,k").0, u64::MAX);
    }

    #[test]
    fn bad_lines() {
        let why = |line: &[u8]| parse(line).expect_err("a bad line").to_string();
        for line in ["", ",k", "x,k", "-5,k", "5 ,k", "5.5,k", " 5,k", "5;k"] {
            assert_eq!(why(line.as_bytes()), BadLine::NoTime.to_string(), "{line}");
        }
        assert_eq!(why(b"15219"), BadLine::NoKey.to_string());
        for line in ["5,k,", "5,k,x", "5,k,1.5", "5,k, 1", "5,k,9223372036854775808"] {
            assert_eq!(why(line.as_bytes()), BadLine::BadCost.to_string(), "{line}");
        }
        assert_eq!(why(b"5,k,1,2"), BadLine::TooManyFields.to_string());
        assert_eq!(why(b"5,\"k"), BadLine::OpenQuote.to_string());
        assert_eq!(why(b"5,\"k\"x"), BadLine::OpenQuote.to_string());
    }

    #[test]
    fn only_a_row_of_names_is_a_header() {
        assert!(is_header(b"time_us,key"));
        assert!(is_header(b"time_us,key,cost"));
        assert!(!is_header(b"time_us,"));
        assert!(!is_header(b"5,key"));
    }
}
