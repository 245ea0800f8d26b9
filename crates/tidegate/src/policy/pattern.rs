//! Globs over paths and hosts.
//!
//! A path pattern is brought to the same spelling as the paths it is held
//! against (see `path.rs`), so `/café` and `/caf%C3%A9` are one pattern. What can never
//! match a normalised path, such as `//` or `..`, is refused rather than left to be puzzled over.
//!
//! Most patterns are a text, or all below one (`/v1/**`), or all that end in one
//! (`*.example.com`): those are compared as they are, in a few nanoseconds. The
//! rest, of all policies, are compiled into one set per kind: a request's path
//! runs through one automaton, whatever the number of policies.

use std::fmt;
use std::sync::OnceLock;

use globset::{Glob, GlobBuilder, GlobMatcher, GlobSet, GlobSetBuilder};
use smallvec::SmallVec;

use super::path;

/// Longest pattern. A path longer than this has no business in a config.
pub(crate) const MAX_PATTERN_BYTES: usize = 1024;

/// A glob: `*` within a segment, `**` across, `?`, `{a,b}`, `[a-z]`.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: Box<str>,
    glob: Glob,
    shape: PatternKind,
    /// Compiled alone, for comparing policies with one another; never for a request.
    matcher: OnceLock<Box<GlobMatcher>>,
}

/// What a pattern comes down to.
#[derive(Clone, Debug)]
enum PatternKind {
    /// The one text it matches.
    Exact(Box<str>),
    /// Everything that begins so.
    Prefix(Box<str>),
    /// Everything that ends so.
    Suffix(Box<str>),
    /// Something only an automaton can tell.
    Glob,
}

/// What is wrong with a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PatternError {
    /// Longer than `MAX_PATTERN_BYTES`.
    TooLong,
    /// Empty.
    Empty,
    /// A path that does not begin with `/` or `**`.
    NotRooted,
    /// A path with an empty, `.` or `..` segment.
    NotNormal,
    /// `**` beside something else within a segment.
    DoubleStar,
    /// A path with a `?x=y`, which looks like a query.
    Query,
    /// A host with a scheme, a path or a port.
    NotAHost,
    /// Brackets, braces or backslashes that make no glob.
    Syntax(Box<str>),
}

impl PatternError {
    /// What is wrong, in a few words.
    pub fn problem(&self) -> String {
        match self {
            PatternError::TooLong => "the pattern is too long".into(),
            PatternError::Empty => "the pattern is empty".into(),
            PatternError::NotRooted => "a path begins with `/`".into(),
            PatternError::NotNormal => {
                "this can never match: paths have no empty, `.` or `..` segments left".into()
            }
            PatternError::DoubleStar => "`**` must be a whole segment".into(),
            PatternError::Query => "a path pattern has no query".into(),
            PatternError::NotAHost => "this is not a host".into(),
            PatternError::Syntax(what) => format!("this is not a glob: {what}"),
        }
    }

    /// What to write instead.
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
    /// A pattern over normalised paths.
    ///
    /// # Errors
    /// When it is no glob, or can never match a path.
    pub fn path(text: &str) -> Result<Self, PatternError> {
        check_path(text)?;
        let normalized = normalize_pattern(text)?;
        // Dots may have been spelt `%2E`.
        check_segments(&normalized.replace('\\', ""))?;
        let glob = build(&normalized, true)?;
        // Without a wildcard every `\\` left is an escape.
        let plain = |text: &str| text.replace('\\', "").into();
        let shape = match (text, text.strip_suffix("/**")) {
            ("**", _) => PatternKind::Prefix("/".into()),
            (text, _) if !text.contains(WILD) => PatternKind::Exact(plain(&normalized)),
            (_, Some(parent)) if !parent.contains(WILD) => {
                PatternKind::Prefix(plain(normalized.trim_end_matches("**")))
            }
            _ => PatternKind::Glob,
        };
        Ok(Pattern { text: text.into(), glob, shape, matcher: OnceLock::new() })
    }

    /// A pattern over host names; `*` matches dots too.
    ///
    /// # Errors
    /// When it is no glob, or can never match a host.
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
        let blank = |c: char| c == '/' || c.is_whitespace() || c.is_control();
        if text.contains(blank) || (port && !text.ends_with(']') && !text.contains("::")) {
            return Err(PatternError::NotAHost);
        }
        let lower = text.to_ascii_lowercase();
        // An IPv6 literal's brackets are no character class.
        let is_v6 = lower.starts_with('[') && lower.ends_with(']') && lower.contains(':');
        let shape = match lower.strip_prefix('*') {
            _ if is_v6 || !lower.contains(WILD) => PatternKind::Exact(lower.clone().into()),
            Some(end) if !end.contains(WILD) => PatternKind::Suffix(end.into()),
            _ => PatternKind::Glob,
        };
        let normalized = if is_v6 { globset::escape(&lower) } else { lower };
        let glob = build(&normalized, false)?;
        Ok(Pattern { text: text.into(), glob, shape, matcher: OnceLock::new() })
    }

    /// The pattern as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn literal(&self) -> Option<&str> {
        match &self.shape {
            PatternKind::Exact(text) => Some(text),
            _ => None,
        }
    }

    /// Whether only the automaton can tell what it matches.
    pub(super) fn needs_glob_set(&self) -> bool {
        matches!(self.shape, PatternKind::Glob)
    }

    /// Whether it matches a text, as far as comparing tells.
    #[inline]
    pub(super) fn matches_directly(&self, text: &str) -> bool {
        match &self.shape {
            PatternKind::Exact(whole) => **whole == *text,
            PatternKind::Prefix(start) => text.starts_with(&**start),
            PatternKind::Suffix(end) => text.ends_with(&**end),
            PatternKind::Glob => false,
        }
    }

    pub(super) fn matches(&self, text: &str) -> bool {
        match self.shape {
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

/// What makes a pattern more than a text.
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
    // Braces may hold slashes, so a `**` beside them may be a segment all the same.
    let is_bad = |segment: &str| {
        segment.contains("**") && segment != "**" && !segment.contains(['{', '}', ','])
    };
    if text.split('/').any(is_bad) { Err(PatternError::DoubleStar) } else { Ok(()) }
}

/// Refuses what no normalised path has.
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

/// A path pattern in the spelling of normalised paths.
fn normalize_pattern(text: &str) -> Result<String, PatternError> {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(bytes.len() + 8);
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let (byte, width, meant) = match (path::unescape(&bytes[at..]), byte) {
            (Some(byte), _) => (byte, 3, byte != b'/'),
            (None, b'\\') => match bytes.get(at + 1) {
                Some(&next) => (next, 2, true),
                None => return Err(PatternError::Syntax("it ends in `\\`".into())),
            },
            (None, byte) => (byte, 1, false),
        };
        at += width;
        match (byte, meant) {
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

/// Every pattern of one kind, compiled together.
#[derive(Clone, Debug, Default)]
pub(super) struct PatternSet {
    set: GlobSet,
    size: usize,
}

/// Which patterns of a set match a text, in ascending order.
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
            // The set wants a vector to write to; one per thread is grown once.
            static FOUND: std::cell::RefCell<Vec<usize>> = const { std::cell::RefCell::new(Vec::new()) };
        }
        FOUND.with_borrow_mut(|found| {
            self.set.matches_into(text, found);
            Matched::from_slice(found)
        })
    }
}
