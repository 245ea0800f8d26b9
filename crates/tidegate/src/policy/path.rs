//! Paths in one spelling.
//!
//! `/login`, `/%6Cogin`, `//login` and `/a/../login` reach the same handler in
//! most servers. If they were four paths to us, a policy on `/login` would be
//! three spellings short and a `{path}` key would be a key per spelling. So
//! every path is brought to one form before it is matched or counted:
//!
//! - `%XX` of a character that may stand in a path as it is, is that character;
//!   what may not stand there is `%XX` in capitals; a stray `%` is `%25`;
//! - empty and `.` segments go, `..` takes one away, the root stays the root;
//! - a trailing `/` stays: `/login/` is another path than `/login`.
//!
//! `%2F` stays as it is (it is not a separator), and so does `%25`: decoding
//! happens once, and doing it again changes nothing.
//!
//! # Variants
//!
//! Servers disagree about two characters. Java servers drop path parameters
//! (`/login;jsessionid=1` is `/login`, and `/a/..;/login` is too), and some
//! servers take `\` for `/`. Any single reading is wrong for somebody:
//!
//! ```text
//!   request           literal reading     merged reading
//!   /login;x          /login;x            /login      a Java server runs /login
//!   /api/..;/x        /api/..;/x          /x          other servers run /api/*
//! ```
//!
//! So with [`PathVariants::Merge`] a path that holds `;` or `\`, encoded or not,
//! has several readings: parameters dropped or kept, `\` as a separator or not, each with
//! or without the encoded ones.
//! A path condition of `match` or `when` holds if it holds for any reading, one of
//! `exempt` only if it holds for all, and `{path}` is the merged reading, so that
//! variants do not make fresh keys. Paths on which the servers that merge disagree share
//! one `{path}`. Dropping comes before resolving
//! `..`, as in the servers that do it. Other paths have one reading and cost one scan.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use super::ParseEnumError;

/// Whether path parameters (`/login;x=1`) and backslashes (`/a\..\login`) are resolved for
/// matching and in `{path}` keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PathVariants {
    /// Both readings count: `/login;x=1` matches `/login` as well as `/login;x=1`.
    #[default]
    Merge,
    /// `;` and `\` are ordinary characters.
    Keep,
}

impl PathVariants {
    /// Every setting.
    pub const ALL: [PathVariants; 2] = [PathVariants::Merge, PathVariants::Keep];

    /// The name used in the config.
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

/// The normalised readings of a path.
pub(super) struct Readings<'p> {
    /// The reading that `{path}` keys are made of.
    pub(super) merged: Cow<'p, str>,
    /// The readings that differ from it; empty for nearly every path.
    pub(super) others: Vec<String>,
}

/// Every reading of a path.
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

/// Where a server gives `;` or `\` a meaning beyond that of an ordinary character.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Interpretation {
    Nowhere,
    /// Where it is not percent-encoded: the server looks before it decodes.
    Unescaped,
    Everywhere,
}

impl Interpretation {
    const ALL: [Interpretation; 3] =
        [Interpretation::Everywhere, Interpretation::Unescaped, Interpretation::Nowhere];
}

/// A path as a server reads it that drops path parameters and splits at backslashes there.
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

/// The `{path}` of all paths without a single merged reading. If each had a key, a client could
/// make up as many as it likes for one resource.
const AMBIGUOUS: &str = "/(ambiguous)";

/// Whether servers that drop parameters and split at backslashes disagree: a backslash is inside
/// a parameter, or one of the characters is there both plain and percent-encoded.
fn is_ambiguous(path: &str, normalized: &str) -> bool {
    let is_inside = |segment: &str| {
        segment.split_once(';').is_some_and(|(_, parameter)| parameter.contains(BACKSLASH))
    };
    let lower = path.to_ascii_lowercase();
    normalized.split('/').any(is_inside)
        || path.contains(';') && lower.contains("%3b")
        || path.contains('\\') && lower.contains("%5c")
}

/// `\` as [`normalize_escapes`] writes it.
const BACKSLASH: &str = "%5C";

/// Every segment up to its first `;`.
fn without_parameters(path: &str) -> String {
    let segments = path.split('/').map(|segment| segment.split(';').next().unwrap_or_default());
    segments.collect::<Vec<&str>>().join("/")
}

/// Whether a byte may stand in a path as it is: RFC 3986's `pchar`.
#[inline]
pub(super) fn is_path_char(byte: u8) -> bool {
    PATH_CHARS[usize::from(byte)]
}

/// Looked up once per byte of every path.
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

/// Writes a byte that may not stand for itself.
pub(super) fn escape(byte: u8, out: &mut String) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    out.push('%');
    out.push(char::from(HEX[usize::from(byte >> 4)]));
    out.push(char::from(HEX[usize::from(byte & 15)]));
}

/// The byte that `%XX` at the start of `bytes` stands for.
pub(crate) fn unescape(bytes: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = *bytes else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(high)? << 4 | digit(low)?)
}

/// Bytes of a path that has one reading: [`PATH_CHARS`] without `;`.
const UNAMBIGUOUS_PATH_CHARS: [bool; 256] = {
    let mut table = PATH_CHARS;
    table[b';' as usize] = false;
    table
};

/// Whether nothing needs doing, which is so for nearly every path.
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

/// Whether an empty, `.` or `..` segment begins here. The empty one at the very
/// end is a trailing slash, which stays.
fn is_segment_to_drop(rest: &[u8]) -> bool {
    matches!(rest, [b'/', ..] | [b'.'] | [b'.', b'/', ..] | [b'.', b'.'] | [b'.', b'.', b'/', ..])
}

/// Every character in its one spelling.
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

/// Empty and dot segments resolved.
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
