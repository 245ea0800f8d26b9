//! `time_us,key[,cost]`, or any columns if the first line names them.
//!
//! A field that contains a comma or a quote is quoted, and quotes in it are doubled. Keys need not
//! be UTF-8.

use std::borrow::Cow;

use memchr::memchr;

use super::columns::{Columns, Splitter, cut};
use super::field_map::parse_cost;
use super::roles::{KeySource, Role, is_same_name};
use super::time::digits;
use super::{BadLine, Event, ParseOptions};

/// A field, and the text after its separator, if any.
type FieldAndRest<'a> = (Cow<'a, [u8]>, Option<&'a [u8]>);

/// The bytes that can separate columns with names.
const SEPARATORS: [u8; 3] = [b',', b'\t', b';'];

/// The longest name of a column. Longer fields are text that contains a separator.
const MAX_NAME_BYTES: usize = 64;

/// The names of the columns of a file without a header.
const UNNAMED: [&str; 3] = ["time_us", "key", "cost"];

/// Returns whether lines with these columns can be read by [`parse`], which is faster.
pub fn is_plain(options: &ParseOptions, columns: &Columns) -> bool {
    let Columns { names, splitter, .. } = columns;
    let usual = matches!(options.key, KeySource::Usual) && options.fields.is_empty();
    let known = names.iter().zip(UNNAMED).all(|(name, usual)| name == usual);
    let has_both = (2..=UNNAMED.len()).contains(&names.len());
    usual && options.unit.is_none() && known && has_both && *splitter == Splitter::Csv(b',')
}

/// Returns the columns of a file with this first line.
pub fn columns(first: &[u8]) -> Columns {
    header(first).unwrap_or_else(|| Columns {
        names: UNNAMED.map(String::from).to_vec(),
        splitter: Splitter::Csv(b','),
        width: 1..=UNNAMED.len(),
    })
}

/// Returns the columns, if this line is a header: it has several fields or the usual name of a
/// time, and each of them begins with a letter, `_`, `@` or `$`. The first may be empty, as where
/// it numbers the rows.
pub fn header(line: &[u8]) -> Option<Columns> {
    let splits = SEPARATORS.map(|separator| {
        let splitter = Splitter::Csv(separator);
        let fields = splitter.split(line).ok()?;
        (fields.len() > 1 || is_time_name(&fields[0])).then_some((fields, splitter))
    });
    let (fields, splitter) = splits.into_iter().flatten().max_by_key(|(fields, splitter)| {
        (fields.len(), *splitter == Splitter::Csv(SEPARATORS[0]))
    })?;
    let is_name = |(column, field): (usize, &Cow<'_, [u8]>)| match field.trim_ascii().first() {
        None => column == 0,
        Some(byte) if field.len() <= MAX_NAME_BYTES => {
            byte.is_ascii_alphabetic() || b"_@$".contains(byte)
        }
        Some(_) => false,
    };
    if !fields.iter().enumerate().all(is_name) {
        return None;
    }
    let name = |field: &Cow<'_, [u8]>| String::from_utf8_lossy(field.trim_ascii()).into_owned();
    let names: Vec<String> = fields.iter().map(name).collect();
    let width = 1..=names.len();
    Some(Columns { names, splitter, width })
}

fn is_time_name(field: &[u8]) -> bool {
    let name = std::str::from_utf8(field.trim_ascii());
    name.is_ok_and(|name| Role::Time.usual_names().any(|usual| is_same_name(name, usual)))
}

#[inline]
pub fn parse(line: &[u8]) -> Result<Event<'_>, BadLine> {
    let (time_us, rest) = digits(line).ok_or(BadLine::NoTime)?;
    let rest = match rest.split_first() {
        Some((b',', rest)) => rest,
        None => return Err(BadLine::NoKey),
        Some(_) => return Err(BadLine::NoTime),
    };
    let (key, cost) = first_field(rest, b',')?;
    let cost = cost.map_or(Ok(1), last_cost)?;
    Ok(Event { time_us, key, cost })
}

/// Returns the field at the start of `text`, and the text after its separator, if any.
#[inline]
pub fn first_field(text: &[u8], separator: u8) -> Result<FieldAndRest<'_>, BadLine> {
    if text.first() == Some(&b'"') {
        return quoted(text, separator);
    }
    let (field, rest) = cut(text, separator);
    Ok((Cow::Borrowed(field), rest))
}

#[cold]
fn last_cost(field: &[u8]) -> Result<i64, BadLine> {
    if memchr(b',', field).is_some() {
        return Err(BadLine::TooManyFields);
    }
    parse_cost(field)
}

/// Returns the quoted field at the start of `text`, and the text after its separator, if any.
#[cold]
fn quoted(text: &[u8], separator: u8) -> Result<FieldAndRest<'_>, BadLine> {
    let mut field = Vec::new();
    let mut at = 1;
    loop {
        let length = memchr(b'"', &text[at..]).ok_or(BadLine::OpenQuote)?;
        field.extend_from_slice(&text[at..at + length]);
        at += length + 1;
        match text.get(at) {
            Some(b'"') => field.push(b'"'),
            Some(&byte) if byte == separator => {
                return Ok((Cow::Owned(field), Some(&text[at + 1..])));
            }
            None => return Ok((Cow::Owned(field), None)),
            Some(_) => return Err(BadLine::OpenQuote),
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::columns::ColumnParser;
    use super::super::field_map::MissingField;
    use super::*;

    fn event(line: &str) -> (u64, String, i64) {
        let event = parse(line.as_bytes()).unwrap_or_else(|error| panic!("{line}: {error}"));
        (event.time_us, String::from_utf8_lossy(&event.key).into_owned(), event.cost)
    }

    #[test]
    fn parses_valid_lines() {
        assert_eq!(event("12,alice"), (12, "alice".into(), 1));
        assert_eq!(event("0,a b,7"), (0, "a b".into(), 7));
        assert_eq!(event("5,k,-3"), (5, "k".into(), -3));
        assert_eq!(event("5,k,0"), (5, "k".into(), 0));
        assert_eq!(event("5,\"a,b\",2"), (5, "a,b".into(), 2));
        assert_eq!(event("5,\"say \"\"hi\"\"\""), (5, "say \"hi\"".into(), 1));
        assert_eq!(parse(b"5,\xff\xfe").expect("any bytes").key.as_ref(), b"\xff\xfe");
        // A number beyond 64 bits saturates instead of wrapping around.
        assert_eq!(event("99999999999999999999999,k").0, u64::MAX);
    }

    #[test]
    fn rejects_invalid_lines() {
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
    fn detects_header_row() {
        assert!(header(b"time_us,key").is_some());
        assert!(header(b"ts,\"client ip\",path").is_some());
        for (line, names) in [
            ("TIMESTAMP;Client IP", &["TIMESTAMP", "Client IP"][..]),
            ("date\ttime\tc-ip", &["date", "time", "c-ip"]),
            (",ts,key", &["", "ts", "key"]),
            ("time_us", &["time_us"]),
        ] {
            assert_eq!(header(line.as_bytes()).expect(line).names, names, "{line}");
        }
        for line in ["time_us,", "5,key", "key", "", "time_us,5"] {
            assert!(header(line.as_bytes()).is_none(), "{line}");
        }
    }

    #[test]
    fn maps_columns_by_name() {
        let options = ParseOptions::default();
        let parser = |first: &str| ColumnParser::new(&options, &columns(first.as_bytes()));
        for (first, plain) in [("5,a", true), ("time_us,key,cost", true), ("key,time_us", false)] {
            assert_eq!(is_plain(&options, &columns(first.as_bytes())), plain, "{first}");
        }
        assert_eq!(parser("planet,key").err(), Some(MissingField::Time));
        assert_eq!(parser("ts,planet").err(), Some(MissingField::Key));
        let mut csv = parser("status,client_ip,ts").expect("columns");
        let event = csv.parse(b"200,a,1700000000.25").expect("an event");
        assert_eq!((event.time_us, &*event.key), (1_700_000_000_250_000, &b"a"[..]));
        let why = |error: BadLine| error.to_string();
        assert_eq!(
            why(csv.parse(b"200,a").expect_err("no time")),
            "no time: field `ts` is missing or empty"
        );
        let no_key = csv.parse(b"200,,1700000000").expect_err("no key");
        assert_eq!(why(no_key), "no key: field `client_ip` is missing or empty");
        assert!(matches!(csv.parse(b"1,2,3,4"), Err(BadLine::TooManyFields)));
    }
}
