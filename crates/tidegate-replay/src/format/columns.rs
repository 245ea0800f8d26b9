//! Lines of fields in a fixed order: csv with column names, W3C logs, and logs whose order of
//! fields is known.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use memchr::memchr;
use smallvec::SmallVec;

use super::field_map::{FieldMap, MissingField, Values};
use super::roles::Role;
use super::{BadLine, Event, ParseOptions, csv};

/// The fields of a line.
pub type FieldValues<'a> = SmallVec<[Cow<'a, [u8]>; 8]>;

/// The maximum number of columns. Lines with more are not traffic.
const MAX_COLUMNS: usize = 256;

/// How a line is split into fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Splitter {
    /// Fields end at this byte. A field that contains it is quoted, with its quotes doubled.
    Csv(u8),
    /// Fields end at a tab or, in a line without tabs, at a space. A missing value is a dash.
    W3c,
    /// Fields end at a space. A field with spaces is in quotes or brackets. A missing value is a
    /// dash.
    Words,
}

impl Splitter {
    pub fn split(self, line: &[u8]) -> Result<FieldValues<'_>, BadLine> {
        let tab = || memchr(b'\t', line).map_or(b' ', |_| b'\t');
        let w3c = if self == Splitter::W3c { tab() } else { 0 };
        let mut fields = SmallVec::new();
        let mut rest = Some(line);
        while let Some(text) = rest {
            let (field, after) = match self {
                Splitter::Csv(separator) => csv::first_field(text, separator)?,
                Splitter::W3c => {
                    let (field, after) = cut(text, w3c);
                    (Cow::Borrowed(field), after)
                }
                Splitter::Words => {
                    let (field, after) = first_word(text)?;
                    (Cow::Borrowed(field), after)
                }
            };
            fields.push(field);
            if fields.len() > MAX_COLUMNS {
                return Err(BadLine::TooManyFields);
            }
            rest = after;
        }
        Ok(fields)
    }

    /// Returns whether this field stands for a missing value.
    fn is_missing(self, field: &[u8]) -> bool {
        field.is_empty() || (field == b"-" && !matches!(self, Splitter::Csv(_)))
    }
}

/// Returns the text before a separator, and the text after it, if any.
#[inline]
pub fn cut(text: &[u8], separator: u8) -> (&[u8], Option<&[u8]>) {
    match memchr(separator, text) {
        None => (text, None),
        Some(at) => (&text[..at], Some(&text[at + 1..])),
    }
}

/// Returns the word at the start of `text`, without its quotes or brackets, and the text after it.
fn first_word(text: &[u8]) -> Result<(&[u8], Option<&[u8]>), BadLine> {
    let ends_at = |at: usize| text.get(at + 1).is_none_or(|&byte| byte == b' ');
    let end = match text.first() {
        // Not every server escapes quotes within a field, so the field ends where a space follows.
        Some(b'"') => {
            let is_end = |at: &usize| {
                let escapes = text[..*at].iter().rev().take_while(|&&byte| byte == b'\\').count();
                *at > 0 && escapes % 2 == 0 && ends_at(*at)
            };
            memchr::memchr_iter(b'"', text).find(is_end).ok_or(BadLine::OpenQuote)?
        }
        // An address with a port, such as [::1]:443, is a word.
        Some(b'[') => match memchr(b']', text).ok_or(BadLine::OpenQuote)? {
            end if ends_at(end) => end,
            _ => return Ok(cut(text, b' ')),
        },
        _ => return Ok(cut(text, b' ')),
    };
    Ok((&text[1..end], text.get(end + 2..)))
}

/// The columns of a file.
#[derive(Clone, Debug)]
pub struct Columns {
    pub names: Vec<String>,
    pub splitter: Splitter,
    /// The number of fields that a line can have.
    pub width: RangeInclusive<usize>,
}

/// Parses lines with known columns.
#[derive(Clone, Debug)]
pub struct ColumnParser {
    pub field_map: FieldMap,
    splitter: Splitter,
    width: RangeInclusive<usize>,
    /// The column of each field that is needed.
    needed: Vec<usize>,
}

impl ColumnParser {
    pub fn new(options: &ParseOptions, columns: &Columns) -> Result<Self, MissingField> {
        let Columns { names, splitter, width } = columns;
        let field_map = FieldMap::new(options, names)?;
        let column = |(role, name): (&Role, &str)| {
            let column = names.iter().position(|known| known == name);
            column.ok_or_else(|| MissingField::Named(options.option_of(role, name)))
        };
        let needed = field_map.fields().map(column).collect::<Result<_, _>>()?;
        Ok(ColumnParser { field_map, splitter: *splitter, width: width.clone(), needed })
    }

    pub fn parse<'a>(&mut self, line: &'a [u8]) -> Result<Event<'a>, BadLine> {
        let fields = self.splitter.split(line)?;
        if fields.len() > *self.width.end() {
            return Err(BadLine::TooManyFields);
        }
        if fields.len() < *self.width.start() {
            return Err(BadLine::TooFewFields { found: fields.len(), least: *self.width.start() });
        }
        let field = |&column: &usize| {
            fields.get(column).filter(|field| !self.splitter.is_missing(field)).cloned()
        };
        let mut values: Values<'a> = self.needed.iter().map(field).collect();
        self.field_map.event(&mut values)
    }

    pub fn splitter(&self) -> Splitter {
        self.splitter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_outside_quotes_and_brackets() {
        for (splitter, line, expected) in [
            (Splitter::Csv(b','), "a,\"b,\"\"c\",", &["a", "b,\"c", ""][..]),
            (Splitter::Csv(b';'), "a,b;c", &["a,b", "c"]),
            (Splitter::W3c, "a b\tc\t\"", &["a b", "c", "\""]),
            (Splitter::W3c, "a \"b c", &["a", "\"b", "c"]),
            (Splitter::Words, "[a b] \"c \\\" d\" - \"\" e", &["a b", "c \\\" d", "-", "", "e"]),
            (Splitter::Words, "\"a \"b\" c\"", &["a \"b", "c\""]),
            (Splitter::Words, "\"a\"b\" c", &["a\"b", "c"]),
            (Splitter::Words, "[::1]:443 [a] b", &["[::1]:443", "a", "b"]),
        ] {
            let fields = splitter.split(line.as_bytes()).expect(line);
            let fields: Vec<_> =
                fields.iter().map(|field| String::from_utf8_lossy(field)).collect();
            assert_eq!(fields, expected, "{line}");
        }
        for line in ["[a b", "a \"b", "\"", "["] {
            assert!(Splitter::Words.split(line.as_bytes()).is_err(), "{line}");
        }
        let wide = " ".repeat(MAX_COLUMNS);
        assert!(matches!(Splitter::Words.split(wide.as_bytes()), Err(BadLine::TooManyFields)));
    }
}
