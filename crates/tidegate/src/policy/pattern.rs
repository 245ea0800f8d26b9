//! Globs over paths and hosts.
//!
//! A path pattern is normalised like the paths it is compared with (see `path.rs`), so `/café` and
//! `/caf%C3%A9` are the same pattern. A pattern that can never match a normalised path, such as one
//! with `//` or `..`, is rejected.
//!
//! Most patterns are exact texts, prefixes (`/v1/**`) or suffixes (`*.example.com`). They are
//! compared directly, in a few nanoseconds. All others, of all policies, are compiled into one set
//! for paths and one for hosts, so that a request's path runs through one automaton, whatever the
//! number of policies.

use std::fmt;
use std::sync::OnceLock;

use globset::{Glob, GlobBuilder, GlobMatcher, GlobSet, GlobSetBuilder};
use smallvec::SmallVec;

use super::path;

/// The longest pattern, far longer than any path that a config has to name.
pub(crate) const MAX_PATTERN_BYTES: usize = 1024;

/// A glob: `*` within a segment, `**` across segments, `?`, `{a,b}`, `[a-z]`.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: Box<str>,
    glob: Glob,
    kind: PatternKind,
    /// The glob compiled on its own, to compare policies with each other. Requests do not use it.
    matcher: OnceLock<Box<GlobMatcher>>,
}

/// The way in which a pattern is matched.
#[derive(Clone, Debug)]
enum PatternKind {
    /// By equality with this text.
    Exact(Box<str>),
    /// By this prefix.
    Prefix(Box<str>),
    /// By this suffix.
    Suffix(Box<str>),
    /// By an automaton.
    Glob,
}

/// The error of an invalid pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PatternError {
    /// The pattern is longer than `MAX_PATTERN_BYTES`.
    TooLong,
    /// The pattern is empty.
    Empty,
    /// A path pattern does not begin with `/` or `**`.
    NotRooted,
    /// A path pattern has an empty, `.` or `..` segment.
    NotNormal,
    /// A segment has `**` and other characters.
    DoubleStar,
    /// A path pattern has `?x=y`, which looks like a query.
    Query,
    /// A host pattern has a scheme, a path or a port.
    NotAHost,
    /// Brackets, braces or backslashes are not valid in a glob.
    Syntax(Box<str>),
}

impl PatternError {
    /// Returns a short description of the error.
    pub fn problem(&self) -> String {
        match self {
            PatternError::TooLong => "the pattern is too long".into(),
            PatternError::Empty => "the pattern is empty".into(),
            PatternError::NotRooted => "a path begins with `/` or `**/`".into(),
            PatternError::NotNormal => {
                "this can never match: paths have no empty, `.` or `..` segments left".into()
            }
            PatternError::DoubleStar => "`**` must be a whole segment".into(),
            PatternError::Query => "a path pattern has no query".into(),
            PatternError::NotAHost => "this is not a host".into(),
            PatternError::Syntax(problem) => format!("this is not a glob: {problem}"),
        }
    }

    /// Returns how to fix it.
    pub const fn help(&self) -> &'static str {
        match self {
            PatternError::TooLong => "use at most 1024 bytes",
            PatternError::Empty => "leave it out to match everything",
            PatternError::NotRooted => "write for example `/login`, `/v1/**` or `**/health`",
            PatternError::NotNormal => {
                "write the path as it looks once resolved, for example `/login`"
            }
            PatternError::DoubleStar => "write `/v1/**` for all below, or `*` within a segment",
            PatternError::Query => {
                "write the path alone and a condition such as `query:x: y`; `?` is any one character"
            }
            PatternError::NotAHost => {
                "write the name alone, without scheme, port or path, for example `*.example.com`"
            }
            PatternError::Syntax(_) => {
                "use `*`, `**`, `?`, `{a,b}` and `[a-z]`, and `\\` before one that is meant as it is"
            }
        }
    }
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.problem(), self.help())
    }
}

impl std::error::Error for PatternError {}

impl Pattern {
    /// Creates a pattern over normalised paths.
    ///
    /// # Errors
    /// Returns an error if it is not a valid glob, or can never match a path.
    pub fn path(text: &str) -> Result<Self, PatternError> {
        check_path(text)?;
        let normalized = normalize_pattern(text)?;
        // Dots may have been written as `%2E`.
        check_segments(&normalized.replace('\\', ""))?;
        let glob = build(&normalized, true)?;
        // Without a wildcard, every `\` that is left is an escape.
        let plain = |text: &str| text.replace('\\', "").into();
        let kind = match (text, text.strip_suffix("/**")) {
            ("**", _) => PatternKind::Prefix("/".into()),
            (text, _) if !text.contains(WILD) => PatternKind::Exact(plain(&normalized)),
            (_, Some(parent)) if !parent.contains(WILD) => {
                PatternKind::Prefix(plain(normalized.trim_end_matches("**")))
            }
            _ => PatternKind::Glob,
        };
        Ok(Pattern { text: text.into(), glob, kind, matcher: OnceLock::new() })
    }

    /// Creates a pattern over host names, in which `*` also matches dots.
    ///
    /// # Errors
    /// Returns an error if it is not a valid glob, or can never match a host.
    pub fn host(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        if text.len() > MAX_PATTERN_BYTES {
            return Err(PatternError::TooLong);
        }
        let port = text.rsplit_once(':').is_some_and(|(_, port)| {
            !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit() || b == b'*')
        });
        let is_invalid = |c: char| c == '/' || c.is_whitespace() || c.is_control();
        if text.contains(is_invalid) || (port && !text.ends_with(']') && !text.contains("::")) {
            return Err(PatternError::NotAHost);
        }
        let lower = text.to_ascii_lowercase();
        // The brackets of an IPv6 literal are not a character class.
        let is_v6 = lower.starts_with('[') && lower.ends_with(']') && lower.contains(':');
        let kind = match lower.strip_prefix('*') {
            _ if is_v6 || !lower.contains(WILD) => PatternKind::Exact(lower.clone().into()),
            Some(end) if !end.contains(WILD) => PatternKind::Suffix(end.into()),
            _ => PatternKind::Glob,
        };
        let normalized = if is_v6 { globset::escape(&lower) } else { lower };
        let glob = build(&normalized, false)?;
        Ok(Pattern { text: text.into(), glob, kind, matcher: OnceLock::new() })
    }

    /// Returns the pattern as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it matches every text, or every path.
    pub(super) fn matches_all(&self) -> bool {
        matches!(&*self.text, "**" | "/**")
    }

    pub(super) fn literal(&self) -> Option<&str> {
        match &self.kind {
            PatternKind::Exact(text) => Some(text),
            _ => None,
        }
    }

    /// Returns a text that it matches; `None` for a glob that is matched by the automaton.
    #[cfg(feature = "config")]
    pub(super) fn example(&self) -> Option<String> {
        match &self.kind {
            PatternKind::Exact(text) => Some(text.to_string()),
            PatternKind::Prefix(start) => Some(format!("{start}example")),
            PatternKind::Suffix(end) => Some(format!("www{end}")),
            PatternKind::Glob => None,
        }
    }

    /// Returns whether it has to be matched by the automaton.
    pub(super) fn needs_glob_set(&self) -> bool {
        matches!(self.kind, PatternKind::Glob)
    }

    /// Returns whether it matches a text, by comparison only; always `false` for globs.
    #[inline]
    pub(super) fn matches_directly(&self, text: &str) -> bool {
        match &self.kind {
            PatternKind::Exact(whole) => **whole == *text,
            PatternKind::Prefix(start) => text.starts_with(&**start),
            PatternKind::Suffix(end) => text.ends_with(&**end),
            PatternKind::Glob => false,
        }
    }

    pub(super) fn matches(&self, text: &str) -> bool {
        match self.kind {
            PatternKind::Glob => {
                self.matcher.get_or_init(|| self.glob.compile_matcher().into()).is_match(text)
            }
            _ => self.matches_directly(text),
        }
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.glob.glob() == other.glob.glob()
    }
}

impl Eq for Pattern {}

/// The characters that make a pattern more than an exact text.
const WILD: [char; 5] = ['*', '?', '[', '{', '\\'];

fn check_path(text: &str) -> Result<(), PatternError> {
    if text.is_empty() {
        return Err(PatternError::Empty);
    }
    if text.len() > MAX_PATTERN_BYTES {
        return Err(PatternError::TooLong);
    }
    if !text.starts_with('/') && text != "**" && !text.starts_with("**/") {
        return Err(PatternError::NotRooted);
    }
    if text.split_once('?').is_some_and(|(_, after)| after.contains('=')) {
        return Err(PatternError::Query);
    }
    // Braces may contain slashes, so a `**` next to them may still be a whole segment.
    let is_bad = |segment: &str| {
        segment.contains("**") && segment != "**" && !segment.contains(['{', '}', ','])
    };
    if text.split('/').any(is_bad) { Err(PatternError::DoubleStar) } else { Ok(()) }
}

/// Rejects segments that no normalised path has.
fn check_segments(text: &str) -> Result<(), PatternError> {
    let mut segments = text.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        if matches!(segment, "." | "..") || (segment.is_empty() && !is_last) {
            return Err(PatternError::NotNormal);
        }
    }
    Ok(())
}

/// Normalises the percent-encoding of a path pattern like that of paths.
fn normalize_pattern(text: &str) -> Result<String, PatternError> {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(bytes.len() + 8);
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let (byte, width, is_escaped) = match (path::unescape(&bytes[at..]), byte) {
            (Some(byte), _) => (byte, 3, byte != b'/'),
            (None, b'\\') => match bytes.get(at + 1) {
                Some(&next) => (next, 2, true),
                None => return Err(PatternError::Syntax("it ends in `\\`".into())),
            },
            (None, byte) => (byte, 1, false),
        };
        at += width;
        match (byte, is_escaped) {
            (b'/', _) if width == 3 => path::escape(byte, &mut out),
            (b'/' | b'[' | b']' | b'{' | b'}' | b'?' | b'*' | b'^', false) => {
                out.push(char::from(byte))
            }
            (byte, true) if path::is_path_char(byte) && !byte.is_ascii_alphanumeric() => {
                out.push('\\');
                out.push(char::from(byte));
            }
            (byte, _) if path::is_path_char(byte) => out.push(char::from(byte)),
            (byte, _) => path::escape(byte, &mut out),
        }
    }
    Ok(out)
}

fn build(normalized: &str, is_path: bool) -> Result<Glob, PatternError> {
    let mut builder = GlobBuilder::new(normalized);
    builder.literal_separator(is_path).backslash_escape(true).empty_alternates(true);
    builder.build().map_err(|error| PatternError::Syntax(error.kind().to_string().into()))
}

/// The patterns of all paths or of all hosts that need an automaton, compiled together.
#[derive(Clone, Debug, Default)]
pub(super) struct PatternSet {
    set: GlobSet,
    size: usize,
}

/// The indices of the patterns of a set that match a text, ascending.
pub(super) type Matched = SmallVec<[usize; 8]>;

impl PatternSet {
    pub(super) fn new<'p>(
        patterns: impl Iterator<Item = &'p Pattern>,
    ) -> Result<Self, PatternError> {
        let mut builder = GlobSetBuilder::new();
        let mut size = 0;
        for pattern in patterns {
            builder.add(pattern.glob.clone());
            size += 1;
        }
        let set = builder.build();
        let set = set.map_err(|error| PatternError::Syntax(error.kind().to_string().into()))?;
        Ok(PatternSet { set, size })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.size == 0
    }

    pub(super) fn matched(&self, text: &str) -> Matched {
        thread_local! {
            // The set writes to a vector. Each thread reuses one.
            static FOUND: std::cell::RefCell<Vec<usize>> = const { std::cell::RefCell::new(Vec::new()) };
        }
        FOUND.with_borrow_mut(|found| {
            self.set.matches_into(text, found);
            Matched::from_slice(found)
        })
    }
}
