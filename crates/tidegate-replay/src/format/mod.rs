//! Parsers that convert lines to events, one module per format.
//!
//! A parser is created for one file from its first lines, which determine the columns and the unit
//! of numeric times. A line that is not an event yields the reason; the caller decides whether that
//! is an error.

mod bad_line;
mod clf;
mod columns;
mod csv;
mod field_map;
mod jsonl;
mod line_attributes;
mod log_columns;
mod roles;
mod time;

use std::borrow::Cow;

use tidegate::unstable::policy::RequestField;

pub use self::bad_line::BadLine;
pub use self::line_attributes::LineAttributes;
pub use self::roles::{KeyChoice, KeySource, Role, RoleField};
pub use self::time::{Unit, UnitChoice, Zone};

use self::clf::ClfParser;
use self::columns::{ColumnParser, Columns, Splitter};
use self::field_map::MissingField;
use self::jsonl::JsonlParser;

/// The maximum time, in the year 2255. Above 2^53 a double cannot represent every microsecond, so
/// stores would no longer agree.
pub const MAX_TIME_US: u64 = 1 << 53;

/// One event of a trace.
#[derive(Debug, PartialEq, Eq)]
pub struct Event<'a> {
    pub time_us: u64,
    /// The key that is limited, or the packed attributes of the request.
    pub key: Cow<'a, [u8]>,
    /// A cost of 0 is a peek, and a negative cost is a refund.
    pub cost: i64,
}

/// The options of all parsers.
#[derive(Clone, Debug)]
pub struct ParseOptions {
    pub key: KeySource,
    pub fields: Vec<RoleField>,
    pub unit: Option<Unit>,
    pub zone: Zone,
}

impl Default for ParseOptions {
    fn default() -> Self {
        ParseOptions {
            key: KeySource::Usual,
            fields: Vec::new(),
            unit: None,
            zone: Zone::default(),
        }
    }
}

impl ParseOptions {
    /// Returns the option that gives this role to the field of this name.
    fn option_of(&self, role: &Role, name: &str) -> String {
        match (role, &self.key) {
            (Role::Key, KeySource::Field(_)) => format!("--key {name}"),
            _ => format!("--field {role}={name}"),
        }
    }

    /// Returns the part of a template that has the name of the key field.
    fn key_as_part(&self) -> Option<RequestField> {
        match &self.key {
            KeySource::Field(name) => name.parse().ok(),
            _ => None,
        }
    }
}

/// The formats of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Csv,
    Jsonl,
    Clf,
    Combined,
    Envoy,
    Alb,
    W3c,
}

impl Format {
    /// All formats, in the order in which they win ties of detection.
    pub const ALL: [Format; 7] = [
        Format::Combined,
        Format::Clf,
        Format::Envoy,
        Format::Alb,
        Format::W3c,
        Format::Csv,
        Format::Jsonl,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Format::Csv => "csv",
            Format::Jsonl => "jsonl",
            Format::Clf => "clf",
            Format::Combined => "combined",
            Format::Envoy => "envoy",
            Format::Alb => "alb",
            Format::W3c => "w3c",
        }
    }

    /// Returns whether lines of this format may contain a field of a request. Columns and JSON
    /// lines may contain any field except the domain.
    pub fn may_contain(self, field: &RequestField) -> bool {
        match self {
            Format::Clf | Format::Combined => clf::may_contain(field),
            _ => *field != RequestField::Domain,
        }
    }

    /// Returns the format of most of these lines. A line in the combined format is also one in the
    /// common format, so the combined format wins ties. Any text with a comma can be csv, so logs
    /// win ties with it.
    pub fn detect<'a>(
        lines: impl Iterator<Item = &'a [u8]> + Clone,
        unit: Option<Unit>,
    ) -> Option<Format> {
        let options = ParseOptions { unit, ..ParseOptions::default() };
        let votes = Format::ALL.map(|format| {
            let mut parser = Parser::new(format, &options, lines.clone()).ok();
            let fits = |line: &&[u8]| match format {
                // The roles of the fields are determined later.
                Format::Jsonl => jsonl::is_object(line),
                Format::Csv if csv::header(line).is_some() => true,
                Format::Envoy | Format::Alb if !log_columns::begins_as(format, line) => false,
                _ => parser.as_mut().is_some_and(|parser| parser.parse(line).is_ok()),
            };
            // After a header with unusual names all lines are read as columns.
            let named = match format {
                Format::Csv => has_columns(lines.clone()),
                Format::W3c => lines.clone().any(|line| log_columns::begins_as(format, line)),
                _ => false,
            };
            if named { lines.clone().count() } else { lines.clone().filter(fits).count() }
        });
        let most = votes.into_iter().max().filter(|&most| most > 0)?;
        Format::ALL
            .into_iter()
            .zip(votes)
            .find(|&(_, votes)| votes == most)
            .map(|(format, _)| format)
    }
}

/// Returns the error of a line that begins like JSON, and `None` for other lines.
pub fn broken_json(line: &[u8]) -> Option<BadLine> {
    let begins = line.trim_ascii_start().first() == Some(&b'{');
    let read = begins.then(|| serde_json::from_slice::<serde::de::IgnoredAny>(line))?;
    read.err().map(BadLine::Json)
}

/// Returns whether the lines are a header and rows of at least as many fields, which is not the
/// case for other formats.
fn has_columns<'a>(mut lines: impl Iterator<Item = &'a [u8]>) -> bool {
    let Some(columns) = lines.next().and_then(csv::header) else { return false };
    let Splitter::Csv(separator) = columns.splitter else { return false };
    let least = columns.names.len() - 1;
    lines.all(|line| memchr::memchr_iter(separator, line).count() >= least)
}

/// Parses the lines of one file.
#[derive(Clone, Debug)]
pub enum Parser {
    /// `time_us,key[,cost]` and nothing else.
    PlainCsv,
    Columns(Box<ColumnParser>),
    Jsonl(JsonlParser),
    Log(Box<ClfParser>),
}

/// The reason that no parser can be created for a file.
#[derive(Debug)]
pub enum ParserError {
    /// No field has the time. Contains the names of all fields.
    Time(Vec<String>),
    /// No field has the key. Contains the names of all fields.
    Key(Vec<String>),
    /// No field has the name that an option gives.
    Named {
        option: String,
        /// The names of all fields.
        names: Vec<String>,
        /// The part of a template that has the name, if the fields provide it.
        part: Option<RequestField>,
    },
    /// A W3C log does not name its fields.
    NoDirective,
}

impl ParserError {
    fn new(missing: MissingField, names: Vec<String>, options: &ParseOptions) -> Self {
        match missing {
            MissingField::Time => ParserError::Time(names),
            MissingField::Key => ParserError::Key(names),
            MissingField::Named(option) => {
                let part = options.key_as_part().filter(|part| {
                    option.starts_with("--key ") && field_map::provide(options, &names, part)
                });
                ParserError::Named { option, names, part }
            }
        }
    }
}

impl Parser {
    /// Creates a parser for a file in this format that begins with these lines.
    pub fn new<'a>(
        format: Format,
        options: &ParseOptions,
        mut lines: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Result<Self, ParserError> {
        match format {
            Format::Clf => Self::log(options, clf::Variant::Common, lines),
            Format::Combined => Self::log(options, clf::Variant::Combined, lines),
            Format::Jsonl => JsonlParser::new(options, lines.clone())
                .map(Parser::Jsonl)
                .map_err(|missing| ParserError::new(missing, jsonl::names(lines), options)),
            Format::Csv => {
                let columns = csv::columns(lines.next().unwrap_or_default());
                match csv::is_plain(options, &columns) {
                    true => Ok(Parser::PlainCsv),
                    false => Self::of_columns(options, columns),
                }
            }
            Format::Envoy | Format::Alb | Format::W3c => {
                let columns = log_columns::columns(format, lines);
                Self::of_columns(options, columns.ok_or(ParserError::NoDirective)?)
            }
        }
    }

    fn log<'a>(
        options: &ParseOptions,
        variant: clf::Variant,
        lines: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Self, ParserError> {
        let parser = ClfParser::new(options, variant, lines);
        parser.map(|log| Parser::Log(Box::new(log))).map_err(|names| match &options.key {
            KeySource::Field(key) => {
                let has_headers = variant == clf::Variant::Combined;
                let is_provided = |part: &RequestField| {
                    clf::may_contain(part)
                        && (has_headers || !matches!(part, RequestField::Header(_)))
                };
                let part = options.key_as_part().filter(is_provided);
                ParserError::Named { option: format!("--key {key}"), names, part }
            }
            _ => ParserError::Key(names),
        })
    }

    fn of_columns(options: &ParseOptions, columns: Columns) -> Result<Self, ParserError> {
        match ColumnParser::new(options, &columns) {
            Ok(parser) => Ok(Parser::Columns(Box::new(parser))),
            Err(missing) => Err(ParserError::new(missing, columns.names, options)),
        }
    }

    #[inline]
    pub fn parse<'a>(&mut self, line: &'a [u8]) -> Result<Event<'a>, BadLine> {
        let event = match self {
            Parser::PlainCsv => csv::parse(line)?,
            Parser::Jsonl(jsonl) => jsonl.parse(line)?,
            Parser::Log(log) => log.parse(line)?,
            Parser::Columns(columns) => columns.parse(line)?,
        };
        if event.time_us > MAX_TIME_US {
            return Err(BadLine::TimeTooLate);
        }
        if event.key.is_empty() {
            return Err(BadLine::NoKey);
        }
        Ok(event)
    }

    /// Returns whether a line is a header and not an event. A csv file has its header in its first
    /// line; a W3C log can name its fields again.
    #[inline]
    pub fn take_header(
        &mut self,
        line: &[u8],
        is_first: bool,
        options: &ParseOptions,
    ) -> Result<bool, ParserError> {
        let splitter = match self {
            Parser::PlainCsv => Splitter::Csv(b','),
            Parser::Columns(columns) => columns.splitter(),
            _ => return Ok(false),
        };
        match splitter {
            Splitter::Csv(_) => Ok(is_first && csv::header(line).is_some()),
            Splitter::W3c if log_columns::is_directive(line) => {
                if let Some(columns) = log_columns::fields_directive(line) {
                    *self = Self::of_columns(options, columns)?;
                }
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Returns the names of the fields that the first JSON lines have; none for other formats.
    pub fn into_json_names(self) -> Vec<String> {
        match self {
            Parser::Jsonl(jsonl) => jsonl.names,
            _ => Vec::new(),
        }
    }

    /// Returns the unit of numeric times, and whether it was guessed.
    pub fn unit(&self) -> Option<(Unit, bool)> {
        match self {
            Parser::PlainCsv => Some((Unit::Micros, false)),
            _ => self.times().and_then(|times| Some((times.unit()?, times.is_guessed()))),
        }
    }

    /// Returns the number of times whose zone is not known. The times of W3C logs are UTC.
    pub fn zoneless(&self) -> u64 {
        let is_w3c = |columns: &ColumnParser| columns.splitter() == Splitter::W3c;
        if matches!(self, Parser::Columns(columns) if is_w3c(columns)) {
            return 0;
        }
        self.times().map_or(0, |times| times.zoneless)
    }

    /// Returns whether the first field of log lines is taken as the client, although it may not be
    /// it.
    pub fn is_host_guessed(&self) -> bool {
        matches!(self, Parser::Log(log) if log.is_host_guessed())
    }

    /// Returns whether any time was a number.
    pub fn has_numbers(&self) -> bool {
        self.times().is_none_or(|times| times.has_numbers)
    }

    fn times(&self) -> Option<&time::Times> {
        match self {
            Parser::PlainCsv => None,
            Parser::Columns(columns) => Some(&columns.field_map.times),
            Parser::Jsonl(jsonl) => Some(&jsonl.field_map.times),
            Parser::Log(log) => Some(&log.times),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_format_by_majority() {
        let detect = |text: &'static str| Format::detect(text.lines().map(str::as_bytes), None);
        let common = "h - - [01/Aug/1995:00:00:01 -0400] \"GET / HTTP/1.0\" 200 5";
        let combined =
            "h - - [01/Aug/1995:00:00:01 -0400] \"GET / HTTP/1.0\" 200 5 \"-\" \"curl/8, x\"";
        assert_eq!(Format::detect([common.as_bytes()].into_iter(), None), Some(Format::Clf));
        assert_eq!(Format::detect([combined.as_bytes()].into_iter(), None), Some(Format::Combined));
        // The common format matches both kinds of lines, so a mixture is read as common.
        let mixture = [combined.as_bytes(), common.as_bytes()];
        assert_eq!(Format::detect(mixture.into_iter(), None), Some(Format::Clf));
        assert_eq!(detect("time_us,key"), Some(Format::Csv));
        assert_eq!(detect("a,b\n1,2\n3,4"), Some(Format::Csv));
        assert_eq!(detect("garbage\n5,a\n6,b"), Some(Format::Csv));
        assert_eq!(detect("{\"time_us\":5,\"key\":\"a\"}"), Some(Format::Jsonl));
        assert_eq!(detect("{\"planet\":5}"), Some(Format::Jsonl));
        assert_eq!(detect("nothing\nof the sort"), None);
        assert_eq!(detect(""), None);
        let seconds = [&b"1700000000.5,a"[..]];
        assert_eq!(Format::detect(seconds.into_iter(), None), None);
        let detected = Format::detect(seconds.into_iter(), Some(Unit::Seconds));
        assert_eq!(detected, Some(Format::Csv));
    }

    #[test]
    fn rejects_times_above_two_to_the_53() {
        let mut csv = Parser::PlainCsv;
        assert_eq!(csv.parse(b"9007199254740992,k").expect("an event").time_us, MAX_TIME_US);
        assert!(matches!(csv.parse(b"9007199254740993,k"), Err(BadLine::TimeTooLate)));
    }

    #[test]
    fn parsers_accept_any_bytes() {
        let seeds: [&[u8]; 9] = [
            b"[2016-04-15T20:17:00.310Z] \"GET /a HTTP/2\" 204 - 1 0 2 1 \"10.0.0.1\" \"a\" \"i\" \"h\" \"u\"",
            b"h2 2018-07-02T22:23:00.186641Z app/x [::1]:1 - -1 -1 -1 502 - 3 6 \"GET /\" \"a\"",
            b"#Fields: date time c-ip cs(Host)",
            b"1700000000000000,\"a,b\",2",
            b"ts,client_ip,path",
            b"x:443 h - u [01/Aug/1995:00:00:01.5 -0400] \"GET http://h/a?b HTTP/1.0\" 200 5 \"r\" \"a\" \"f\" 1",
            b"h - - [2023-11-14T22:13:20+01:00] \"-\" - - \"\\\"\" \"\"",
            b"{\"ts\":1700000000.5,\"request\":{\"remote_ip\":\"::1\",\"uri\":\"/a?b\",\"headers\":{\"X\":[\"y\"]}}}",
            b"{\"time\":\"2023-11-14T22:13:20.5Z\",\"key\":[[1]],\"cost\":-9223372036854775808}",
        ];
        let mut state = 3_u64;
        let mut below = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(state >> 33).expect("31 bits") % bound
        };
        let template = "{header:x | client_ip}:{path}:{query:b}".parse().expect("a template");
        let options = [KeySource::Usual, KeySource::Attributes, KeySource::new(Some(&template))]
            .map(|key| ParseOptions { key, ..ParseOptions::default() });
        let mut events = 0;
        for round in 0..6_000 {
            let mut line = seeds[round % seeds.len()].to_vec();
            for _ in 0..below(4) {
                let at = below(line.len());
                match below(3) {
                    0 => line.truncate(at.max(1)),
                    1 => line[at] = b"\"\\,{}[]: -0\xff\0"[below(13)],
                    _ => line.extend_from_within(at..),
                }
            }
            let lines = || [&line[..]].into_iter();
            Format::detect(lines(), None);
            for format in Format::ALL {
                for options in &options {
                    let parsed = Parser::new(format, options, lines());
                    events += u32::from(parsed.is_ok_and(|mut parser| parser.parse(&line).is_ok()));
                }
            }
        }
        assert!(events > 1_000, "{events}");
    }
}
