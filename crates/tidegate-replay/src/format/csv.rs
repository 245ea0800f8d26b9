//! `time_us,key[,cost]`, or any columns if the first line names them.
//!
//! A field that contains a comma or a quote is quoted, and quotes in it are doubled. Keys need not
//! be UTF-8.

use std::borrow::Cow;

use memchr::memchr;
use smallvec::SmallVec;

use super::field_map::{FieldMap, MissingField, Values, parse_cost};
use super::fields::{KeySource, Role};
use super::time::digits;
use super::{BadLine, Event, ParseOptions};

/// A field, and the text after its comma, if any.
type FieldAndRest<'a> = (Cow<'a, [u8]>, Option<&'a [u8]>);

/// The maximum number of columns. Lines with more are not traffic.
const MAX_COLUMNS: usize = 256;

/// Parses the lines of one file.
#[derive(Clone, Debug)]
pub enum CsvParser {
    /// `time_us,key[,cost]` and nothing else.
    Plain,
    /// Named columns, from a header or from `UNNAMED`.
    Named(Box<Named>),
}

#[derive(Clone, Debug)]
pub struct Named {
    pub field_map: FieldMap,
    /// The column of each field that is needed.
    columns: Vec<usize>,
    /// The maximum number of columns of a line.
    width: usize,
}

/// The names of the columns of a file without a header.
const UNNAMED: [&str; 3] = ["time_us", "key", "cost"];

impl CsvParser {
    /// Creates a parser for a file with this first line.
    pub fn new(options: &ParseOptions, first: &[u8]) -> Result<Self, MissingField> {
        let header = header(first);
        let names = header.clone().unwrap_or_else(|| UNNAMED.map(String::from).to_vec());
        if let KeySource::Field(name) = &options.key
            && !names.iter().any(|known| *known == **name)
        {
            return Err(MissingField::Key);
        }
        let field_map = FieldMap::new(options, &names)?;
        let column = |name: &str| names.iter().position(|known| known == name);
        let columns: Option<Vec<usize>> = field_map.fields().map(column).collect();
        // The default columns exist, so only a column named by `--field` can be missing.
        let columns = columns.ok_or(MissingField::Key)?;
        let usual = matches!(options.key, KeySource::Usual) && options.fields.is_empty();
        let in_micros = field_map.name_of(&Role::Time) == Some("time_us") && options.unit.is_none();
        let known = names.iter().zip(UNNAMED).all(|(name, usual)| name == usual);
        if usual && in_micros && known && names.len() <= UNNAMED.len() {
            return Ok(CsvParser::Plain);
        }
        let width = if header.is_some() { names.len() } else { UNNAMED.len() };
        Ok(CsvParser::Named(Box::new(Named { field_map, columns, width })))
    }

    #[inline]
    pub fn parse<'a>(&mut self, line: &'a [u8]) -> Result<Event<'a>, BadLine> {
        match self {
            CsvParser::Plain => parse(line),
            CsvParser::Named(named) => named.parse(line),
        }
    }
}

impl Named {
    fn parse<'a>(&mut self, line: &'a [u8]) -> Result<Event<'a>, BadLine> {
        let fields = split(line)?;
        if fields.len() > self.width {
            return Err(BadLine::TooManyFields);
        }
        let field = |&column: &usize| fields.get(column).filter(|field| !field.is_empty()).cloned();
        let mut values: Values<'a> = self.columns.iter().map(field).collect();
        self.field_map.event(&mut values)
    }
}

/// Returns the names of the columns, if this line is a header: it has several fields, and each of
/// them begins with a letter, `_`, `@` or `$`.
pub fn header(line: &[u8]) -> Option<Vec<String>> {
    let fields = split(line).ok().filter(|fields| fields.len() > 1)?;
    let is_name = |field: &Cow<'_, [u8]>| {
        field.first().is_some_and(|&byte| byte.is_ascii_alphabetic() || b"_@$".contains(&byte))
    };
    let names = fields.iter().filter(|field| is_name(field));
    let names: Vec<String> =
        names.map(|field| String::from_utf8_lossy(field.trim_ascii()).into_owned()).collect();
    (names.len() == fields.len()).then_some(names)
}

fn split(line: &[u8]) -> Result<SmallVec<[Cow<'_, [u8]>; 8]>, BadLine> {
    let mut fields = SmallVec::new();
    let mut rest = Some(line);
    while let Some(text) = rest {
        let (field, after) = first_field(text)?;
        fields.push(field);
        if fields.len() > MAX_COLUMNS {
            return Err(BadLine::TooManyFields);
        }
        rest = after;
    }
    Ok(fields)
}

#[inline]
pub fn parse(line: &[u8]) -> Result<Event<'_>, BadLine> {
    let (time_us, rest) = digits(line).ok_or(BadLine::NoTime)?;
    let rest = match rest.split_first() {
        Some((b',', rest)) => rest,
        None => return Err(BadLine::NoKey),
        Some(_) => return Err(BadLine::NoTime),
    };
    let (key, cost) = first_field(rest)?;
    let cost = cost.map_or(Ok(1), last_cost)?;
    Ok(Event { time_us, key, cost })
}

/// Returns the field at the start of `text`, and the text after its comma, if any.
#[inline]
fn first_field(text: &[u8]) -> Result<FieldAndRest<'_>, BadLine> {
    if text.first() == Some(&b'"') {
        return quoted(text);
    }
    Ok(match memchr(b',', text) {
        None => (Cow::Borrowed(text), None),
        Some(at) => (Cow::Borrowed(&text[..at]), Some(&text[at + 1..])),
    })
}

#[cold]
fn last_cost(field: &[u8]) -> Result<i64, BadLine> {
    if memchr(b',', field).is_some() {
        return Err(BadLine::TooManyFields);
    }
    parse_cost(field)
}

/// Returns the quoted field at the start of `text`, and the text after its comma, if any.
#[cold]
fn quoted(text: &[u8]) -> Result<FieldAndRest<'_>, BadLine> {
    let mut field = Vec::new();
    let mut at = 1;
    loop {
        let length = memchr(b'"', &text[at..]).ok_or(BadLine::OpenQuote)?;
        field.extend_from_slice(&text[at..at + length]);
        at += length + 1;
        match text.get(at) {
            Some(b'"') => field.push(b'"'),
            Some(b',') => return Ok((Cow::Owned(field), Some(&text[at + 1..]))),
            None => return Ok((Cow::Owned(field), None)),
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
        for line in ["time_us,", "5,key", "key", "", "time_us,5"] {
            assert!(header(line.as_bytes()).is_none(), "{line}");
        }
    }

    #[test]
    fn maps_columns_by_name() {
        let options = ParseOptions::default();
        assert!(matches!(CsvParser::new(&options, b"5,a"), Ok(CsvParser::Plain)));
        assert!(matches!(CsvParser::new(&options, b"time_us,key,cost"), Ok(CsvParser::Plain)));
        assert_eq!(CsvParser::new(&options, b"planet,key").err(), Some(MissingField::Time));
        assert_eq!(CsvParser::new(&options, b"ts,planet").err(), Some(MissingField::Key));
        let mut csv = CsvParser::new(&options, b"status,client_ip,ts").expect("columns");
        let event = csv.parse(b"200,a,1700000000.25").expect("an event");
        assert_eq!((event.time_us, &*event.key), (1_700_000_000_250_000, &b"a"[..]));
        assert!(matches!(csv.parse(b"200,a"), Err(BadLine::NoTimeField)));
        assert!(matches!(csv.parse(b"200,,1700000000"), Err(BadLine::NoKey)));
        assert!(matches!(csv.parse(b"1,2,3,4"), Err(BadLine::TooManyFields)));
    }
}
