//! Errors of a config, each with its position and how to fix it.
//!
//! All errors are reported together, so that they can be fixed in one edit. An error has a file,
//! line, column and field, shows the line with a caret under the invalid text, and says what to
//! write instead.

use std::fmt;
use std::ops::Range;

use crate::text::floor_char_boundary;

/// The largest number of errors shown. Beyond it, fixing the first ones helps more than reading the
/// rest.
const MAX_SHOWN: usize = 20;

/// The largest number of characters shown of a line, so that a pasted file does not fill the
/// screen.
const MAX_LINE_CHARS: usize = 100;

/// All errors of a config file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    file: String,
    errors: Vec<ConfigError>,
}

/// One error of a config file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    location: Option<SourceLocation>,
    field: String,
    message: String,
    help: String,
}

/// A warning: a part of a config file that is valid, but may not have the intended effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigWarning {
    file: String,
    about: ConfigError,
}

/// A position in the file, with the line to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SourceLocation {
    line: usize,
    column: usize,
    /// The line, shortened, without control characters.
    snippet: String,
    /// The characters of `snippet` under which carets are shown.
    caret: Range<usize>,
}

impl ConfigWarning {
    pub(super) fn new(file: &str, about: ConfigError) -> Self {
        ConfigWarning { file: printable(file), about }
    }

    /// Returns the name of the file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the position, the field, the message and what to do about it.
    pub fn about(&self) -> &ConfigError {
        &self.about
    }
}

/// Writes the warning in the form of an error, without the word `warning`.
impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.about.write(&self.file, f)
    }
}

impl ConfigErrors {
    /// Returns the warnings of one file as errors; `None` if there are none.
    pub fn from_warnings(warnings: &[ConfigWarning]) -> Option<Self> {
        let file = warnings.first()?.file.clone();
        let errors = warnings.iter().map(|warning| warning.about.clone()).collect();
        Some(ConfigErrors { file, errors })
    }

    /// Creates the errors of `file`, which are in its order.
    pub(super) fn new(file: &str, errors: Vec<ConfigError>) -> Self {
        ConfigErrors { file: printable(file), errors }
    }

    /// Creates a single error about the file as a whole.
    #[cfg(feature = "tower")]
    pub(crate) fn whole(file: &str, message: &str, help: &str) -> Self {
        ConfigErrors::new(file, vec![*ConfigError::whole(message, help)])
    }

    /// Returns the name of the file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the errors in the order of the file. There is at least one.
    pub fn iter(&self) -> std::slice::Iter<'_, ConfigError> {
        self.errors.iter()
    }
}

impl ConfigError {
    /// Creates an error about the file as a whole.
    pub(super) fn whole(message: impl Into<String>, help: impl Into<String>) -> Box<Self> {
        let (message, help) = (message.into(), help.into());
        Box::new(ConfigError { location: None, field: String::new(), message, help })
    }

    /// Creates an error about a byte range of the source.
    pub(super) fn at(source: &str, unlocated: UnlocatedError) -> Self {
        let location = SourceLocation::new(source, unlocated.span);
        let UnlocatedError { span: _, field, message, help } = unlocated;
        ConfigError { location: Some(location), field, message, help }
    }

    /// Creates an error about a field; `location` is its position, if it is known.
    pub(super) fn about_field(
        field: &str,
        location: Option<SourceLocation>,
        message: String,
        help: String,
    ) -> Self {
        ConfigError { location, field: field.into(), message, help }
    }

    /// Creates an error about a field of a value that is not in a file.
    pub(super) fn of_field(unlocated: UnlocatedError) -> Self {
        let UnlocatedError { span: _, field, message, help } = unlocated;
        ConfigError { location: None, field, message, help }
    }

    /// Returns the line, from 1; `None` if the error is about the whole file.
    pub fn line(&self) -> Option<usize> {
        self.location.as_ref().map(|location| location.line)
    }

    /// Returns the column in characters, from 1; `None` if the error is about the whole file.
    pub fn column(&self) -> Option<usize> {
        self.location.as_ref().map(|location| location.column)
    }

    /// Returns the field, such as `policies[1].limits[0]`; empty if the error is not about a field.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// Returns the description of the error.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns how to fix it.
    pub fn help(&self) -> &str {
        &self.help
    }

    pub(super) fn write(&self, file: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.message)?;
        match &self.location {
            None => writeln!(f, " --> {file}")?,
            Some(location) => location.write(file, f)?,
        }
        if !self.field.is_empty() {
            writeln!(f, "  field: {}", self.field)?;
        }
        write!(f, "  help: {}", self.help)
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().take(MAX_SHOWN).enumerate() {
            if index > 0 {
                f.write_str("\n\nerror: ")?;
            }
            error.write(&self.file, f)?;
        }
        match self.errors.len().saturating_sub(MAX_SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n\nand {more} more"),
        }
    }
}

impl std::error::Error for ConfigErrors {}

/// An error with a byte range, before its line and column are computed.
#[derive(Debug)]
pub(super) struct UnlocatedError {
    pub(super) span: Range<usize>,
    pub(super) field: String,
    pub(super) message: String,
    pub(super) help: String,
}

impl SourceLocation {
    pub(super) fn new(source: &str, span: Range<usize>) -> Self {
        let start = floor_char_boundary(source, span.start);
        let before = &source[..start];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = &source[line_start..];
        let line = line.split(['\n', '\r']).next().unwrap_or_default();
        let line_end = line_start + line.len();
        let column = source[line_start..start].chars().count();
        let end = floor_char_boundary(source, span.end.clamp(start, line_end.max(start)));
        let width = source[start..end].trim_end().chars().count().max(1);
        let (snippet, shift) = shorten(&without_password(line), column);
        let visible = snippet.chars().count().max(column - shift + 1);
        let caret = column - shift..(column - shift + width).min(visible);
        SourceLocation {
            line: before.matches('\n').count() + 1,
            column: column + 1,
            snippet,
            caret,
        }
    }

    fn write(&self, file: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.line.to_string();
        let gap = number.len();
        writeln!(f, "{:gap$}--> {file}:{}:{}", "", self.line, self.column)?;
        writeln!(f, "{:gap$} |", "")?;
        writeln!(f, "{number} | {}", self.snippet.trim_end())?;
        let (before, under) = (self.caret.start, self.caret.len());
        writeln!(f, "{:gap$} | {:before$}{:^<under$}", "", "", "")
    }
}

/// Replaces each character of a secret in a line with `*`, because errors end up in logs. Secrets
/// are the value of `mask_secret` and the part of a URL before its last `@` (a password may hold an
/// `@`).
fn without_password(line: &str) -> String {
    if let Some((name, value)) = line.split_once("mask_secret") {
        let star = |c: char| if c.is_whitespace() || ":'\"".contains(c) { c } else { '*' };
        return format!("{name}mask_secret{}", value.chars().map(star).collect::<String>());
    }
    let Some((before, rest)) = line.split_once("://") else { return line.into() };
    let Some((secret, after)) = rest.rsplit_once('@') else { return line.into() };
    format!("{before}://{}@{after}", "*".repeat(secret.chars().count()))
}

/// Returns the part of a line around a column, and the number of characters omitted before it.
fn shorten(line: &str, column: usize) -> (String, usize) {
    let count = line.chars().count();
    let shift = match count > MAX_LINE_CHARS && column >= MAX_LINE_CHARS * 3 / 4 {
        true => column - MAX_LINE_CHARS / 2,
        false => 0,
    };
    let shown: String = line.chars().skip(shift).take(MAX_LINE_CHARS).collect();
    (printable(&shown), shift)
}

/// Replaces each control or invisible character with one other character. They would shift the
/// caret or control the terminal.
pub(super) fn printable(text: &str) -> String {
    let seen = |c: char| match c {
        '\t' => ' ',
        c if c.is_control() || crate::text::is_invisible(c) => '\u{fffd}',
        c => c,
    };
    text.chars().map(seen).collect()
}
