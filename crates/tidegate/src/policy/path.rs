//! Normalises paths.
//!
//! `/login`, `/%6Cogin`, `//login` and `/a/../login` reach the same handler in most servers.
//! Without normalisation, a policy on `/login` would miss three of the four spellings, and a
//! `{path}` key would count each spelling separately. So every path is normalised before it is
//! matched or counted:
//!
//! - `%XX` of a character that is allowed in a path is decoded; every other character is written as
//!   `%XX` in capitals; a `%` that is not followed by two hexadecimal digits becomes `%25`;
//! - empty and `.` segments are removed, and `..` removes the segment before it, if any;
//! - a trailing `/` is kept: `/login/` and `/login` are different paths.
//!
//! `%2F` is kept, because it is not a separator. So is `%25`, so that a path is decoded only once
//! and normalising it again changes nothing.
//!
//! # Variants
//!
//! Servers disagree about two characters. Java servers drop path parameters (`/login;jsessionid=1`
//! is `/login`, and so is `/a/..;/login`), and some servers treat `\` as `/`. Any single reading is
//! wrong for some server:
//!
//! ```text
//!   request           literal reading     merged reading
//!   /login;x          /login;x            /login      a Java server runs /login
//!   /api/..;/x        /api/..;/x          /x          other servers run /api/*
//! ```
//!
//! So with [`PathVariants::Merge`] a path that contains `;` or `\`, encoded or not, has several
//! readings: parameters are dropped or kept, and `\` is a separator or not, each for all
//! occurrences or only for those that are not percent-encoded.
//!
//! A path condition of `match` holds if it holds for any reading, one of `exempt` only if it holds
//! for all. One of `when` must hold for any reading if its override enforces limits, and for all if
//! it observes or is off. `{path}` is the merged reading, in which parameters are dropped and `\`
//! is a separator, so that spelling variants do not create new keys. Paths for which merging
//! servers disagree share one `{path}`. Parameters are dropped before `..` is resolved, as in the
//! servers that drop them. All other paths have one reading, which costs one scan.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use super::ParseEnumError;

/// Whether path parameters (`/login;x=1`) and backslashes (`/a\..\login`) are resolved, for
/// matching and in `{path}` keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PathVariants {
    /// All readings are matched: `/login;x=1` matches `/login` as well as `/login;x=1`.
    #[default]
    Merge,
    /// `;` and `\` are ordinary characters.
    Keep,
}

impl PathVariants {
    /// All settings.
    pub const ALL: [PathVariants; 2] = [PathVariants::Merge, PathVariants::Keep];

    /// Returns the name used in the config.
    pub const fn name(self) -> &'static str {
        match self {
            PathVariants::Merge => "merge",
            PathVariants::Keep => "keep",
        }
    }
}

impl fmt::Display for PathVariants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PathVariants {
    type Err = ParseEnumError;

    fn from_str(name: &str) -> Result<Self, ParseEnumError> {
        let found = PathVariants::ALL.into_iter().find(|variants| variants.name() == name);
        found.ok_or(ParseEnumError("merge or keep"))
    }
}

/// All normalised readings of a path.
pub(super) struct Readings<'p> {
    /// The reading that `{path}` keys use.
    pub(super) merged: Cow<'p, str>,
    /// The other readings that differ from it; empty for nearly every path.
    pub(super) others: Vec<String>,
}

/// Returns all readings of a path.
pub(super) fn readings(path: &str, variants: PathVariants) -> Readings<'_> {
    if is_normal(path.as_bytes(), variants) {
        return Readings { merged: Cow::Borrowed(path), others: Vec::new() };
    }
    let normalized = normalize_escapes(path.as_bytes());
    let (parameters, backslash) = (normalized.contains(';'), normalized.contains(BACKSLASH));
    if variants == PathVariants::Keep || !(parameters || backslash) {
        return Readings { merged: Cow::Owned(resolve(&normalized)), others: Vec::new() };
    }
    let merged = match is_ambiguous(path, &normalized) {
        true => AMBIGUOUS.to_owned(),
        false => read(path, Interpretation::Everywhere, Interpretation::Everywhere),
    };
    let mut others: Vec<String> = Vec::new();
    for parameters in Interpretation::ALL {
        for backslash in Interpretation::ALL {
            let other = read(path, parameters, backslash);
            if other != merged && !others.contains(&other) {
                others.push(other);
            }
        }
    }
    Readings { merged: Cow::Owned(merged), others }
}

/// Returns a path as logs and rankings show it: normalised, so that its spellings are one route,
/// and without parameters, which may contain session ids. `\` is an ordinary character.
pub(crate) fn shown(path: &str) -> Cow<'_, str> {
    match is_normal(path.as_bytes(), PathVariants::Merge) {
        true => Cow::Borrowed(path),
        false => Cow::Owned(read(path, Interpretation::Everywhere, Interpretation::Nowhere)),
    }
}

/// The occurrences of `;` or `\` that a server does not treat as an ordinary character.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Interpretation {
    Nowhere,
    /// Those that are not percent-encoded: the server splits the path before it decodes it.
    Unescaped,
    Everywhere,
}

impl Interpretation {
    const ALL: [Interpretation; 3] =
        [Interpretation::Everywhere, Interpretation::Unescaped, Interpretation::Nowhere];
}

/// Normalises a path like a server that drops parameters at these occurrences of `;`, and splits at
/// these occurrences of `\`.
fn read(path: &str, parameters: Interpretation, backslash: Interpretation) -> String {
    let mut raw = Cow::Borrowed(path);
    if backslash == Interpretation::Unescaped {
        raw = Cow::Owned(raw.replace('\\', "/"));
    }
    if parameters == Interpretation::Unescaped {
        raw = Cow::Owned(without_parameters(&raw));
    }
    let mut normalized = normalize_escapes(raw.as_bytes());
    if backslash == Interpretation::Everywhere {
        normalized = normalized.replace(BACKSLASH, "/");
    }
    if parameters == Interpretation::Everywhere {
        normalized = without_parameters(&normalized);
    }
    resolve(&normalized)
}

/// The `{path}` of all paths without a single merged reading. If each had its own key, a client
/// could create any number of keys for one resource.
pub(super) const AMBIGUOUS: &str = "/(ambiguous)";

/// Returns whether servers that drop parameters and split at backslashes disagree about a path: a
/// backslash is inside a parameter, or one of the characters occurs both plain and percent-encoded.
fn is_ambiguous(path: &str, normalized: &str) -> bool {
    let is_inside = |segment: &str| {
        segment.split_once(';').is_some_and(|(_, parameter)| parameter.contains(BACKSLASH))
    };
    let lower = path.to_ascii_lowercase();
    normalized.split('/').any(is_inside)
        || path.contains(';') && lower.contains("%3b")
        || path.contains('\\') && lower.contains("%5c")
}

/// The form in which [`normalize_escapes`] writes `\`.
const BACKSLASH: &str = "%5C";

/// Cuts every segment at its first `;`.
fn without_parameters(path: &str) -> String {
    let segments = path.split('/').map(|segment| segment.split(';').next().unwrap_or_default());
    segments.collect::<Vec<&str>>().join("/")
}

/// Returns whether a byte is allowed in a path segment without encoding: `pchar` of RFC 3986.
#[inline]
pub(super) fn is_path_char(byte: u8) -> bool {
    PATH_CHARS[usize::from(byte)]
}

/// The table behind [`is_path_char`]. It is read for every byte of every path.
const PATH_CHARS: [bool; 256] = {
    let marks = b"-._~!$&'()*+,;=:@";
    let mut table = [false; 256];
    let mut byte = 0u8;
    while byte < 128 {
        table[byte as usize] = byte.is_ascii_alphanumeric();
        byte += 1;
    }
    let mut at = 0;
    while at < marks.len() {
        table[marks[at] as usize] = true;
        at += 1;
    }
    table
};

/// Writes a byte as `%XX`.
pub(super) fn escape(byte: u8, out: &mut String) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    out.push('%');
    out.push(char::from(HEX[usize::from(byte >> 4)]));
    out.push(char::from(HEX[usize::from(byte & 15)]));
}

/// Decodes `%XX` at the start of `bytes`.
pub(crate) fn unescape(bytes: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = *bytes else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(high)? << 4 | digit(low)?)
}

/// The bytes of paths with a single reading: [`PATH_CHARS`] without `;`.
const UNAMBIGUOUS_PATH_CHARS: [bool; 256] = {
    let mut table = PATH_CHARS;
    table[b';' as usize] = false;
    table
};

/// Returns whether a path is normal and has a single reading, as nearly every path does.
fn is_normal(path: &[u8], variants: PathVariants) -> bool {
    if path.first() != Some(&b'/') {
        return false;
    }
    let (plain, merges) = match variants {
        PathVariants::Merge => (&UNAMBIGUOUS_PATH_CHARS, true),
        PathVariants::Keep => (&PATH_CHARS, false),
    };
    let mut at = 0;
    while let Some(&byte) = path.get(at) {
        at += match byte {
            b'/' if is_segment_to_drop(&path[at + 1..]) => return false,
            b'%' => match unescape(&path[at..]) {
                Some(b'\\') if merges => return false,
                Some(byte) if !is_path_char(byte) && is_in_capitals(&path[at + 1..at + 3]) => 3,
                _ => return false,
            },
            b'/' => 1,
            byte if plain[usize::from(byte)] => 1,
            _ => return false,
        };
    }
    true
}

fn is_in_capitals(digits: &[u8]) -> bool {
    !digits.iter().any(u8::is_ascii_lowercase)
}

/// Returns whether an empty, `.` or `..` segment begins here. An empty segment at the end of the
/// path is a trailing slash, which is kept.
fn is_segment_to_drop(rest: &[u8]) -> bool {
    matches!(rest, [b'/', ..] | [b'.'] | [b'.', b'/', ..] | [b'.', b'.'] | [b'.', b'.', b'/', ..])
}

/// Normalises the percent-encoding of every character.
fn normalize_escapes(path: &[u8]) -> String {
    let mut out = String::with_capacity(path.len() + 8);
    let mut at = 0;
    while let Some(&byte) = path.get(at) {
        let (byte, width, escaped) = match unescape(&path[at..]) {
            Some(byte) => (byte, 3, true),
            None => (byte, 1, false),
        };
        if is_path_char(byte) || (byte == b'/' && !escaped) {
            out.push(char::from(byte));
        } else {
            escape(byte, &mut out);
        }
        at += width;
    }
    out
}

/// Removes empty segments, and resolves `.` and `..`.
fn resolve(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut trailing = false;
    for segment in path.split('/') {
        trailing = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            name => kept.push(name),
        }
    }
    let mut out = String::with_capacity(path.len() + 1);
    for segment in &kept {
        out.push('/');
        out.push_str(segment);
    }
    if trailing || kept.is_empty() {
        out.push('/');
    }
    out
}
