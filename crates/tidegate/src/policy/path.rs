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

use std::borrow::Cow;

/// The one spelling of a path.
pub(crate) fn normalise(path: &str) -> Cow<'_, str> {
    if is_normal(path.as_bytes()) {
        return Cow::Borrowed(path);
    }
    Cow::Owned(resolve(&respell(path.as_bytes())))
}

/// Whether a byte may stand in a path as it is: RFC 3986's `pchar`.
#[inline]
pub(super) fn stands(byte: u8) -> bool {
    STANDS[usize::from(byte)]
}

/// Looked up once per byte of every path.
const STANDS: [bool; 256] = {
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

/// Whether nothing needs doing, which is so for nearly every path.
fn is_normal(path: &[u8]) -> bool {
    if path.first() != Some(&b'/') {
        return false;
    }
    let mut at = 0;
    while let Some(&byte) = path.get(at) {
        at += match byte {
            b'/' if is_segment_to_drop(&path[at + 1..]) => return false,
            b'%' => match unescape(&path[at..]) {
                Some(byte) if !stands(byte) && is_in_capitals(&path[at + 1..at + 3]) => 3,
                _ => return false,
            },
            b'/' => 1,
            byte if stands(byte) => 1,
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
fn respell(path: &[u8]) -> String {
    let mut out = String::with_capacity(path.len() + 8);
    let mut at = 0;
    while let Some(&byte) = path.get(at) {
        let (byte, width, escaped) = match unescape(&path[at..]) {
            Some(byte) => (byte, 3, true),
            None => (byte, 1, false),
        };
        if stands(byte) || (byte == b'/' && !escaped) {
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
