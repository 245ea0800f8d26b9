//! Short byte strings on the stack, and escaping of untrusted text.

use std::fmt;
use std::ops::Deref;

/// A byte string that does not allocate up to `N` bytes. Appending to a `SmallVec` takes two calls
/// of `memmove`, whatever its length; appending to this takes one.
#[derive(Clone, Debug)]
pub(crate) struct InlineBytes<const N: usize> {
    short: [u8; N],
    /// The number of bytes in `short`.
    len: usize,
    /// All bytes, if they do not fit in `short`.
    long: Vec<u8>,
}

impl<const N: usize> InlineBytes<N> {
    #[inline]
    pub(crate) const fn new() -> Self {
        InlineBytes { short: [0; N], len: 0, long: Vec::new() }
    }

    #[inline]
    pub(crate) fn extend_from_slice(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        match self.short.get_mut(self.len..end).filter(|_| self.long.is_empty()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.len = end;
            }
            None => self.spill(bytes),
        }
    }

    /// Appends what `write` puts at the start of an array. It returns the number of bytes.
    #[cfg(feature = "tower")]
    #[inline]
    pub(crate) fn extend_with<const M: usize>(
        &mut self,
        write: impl FnOnce(&mut [u8; M]) -> usize,
    ) {
        let room = self.short[self.len..].first_chunk_mut().filter(|_| self.long.is_empty());
        match room {
            Some(room) => self.len += write(room),
            None => {
                let mut bytes = [0; M];
                let len = write(&mut bytes);
                self.extend_from_slice(&bytes[..len]);
            }
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, byte: u8) {
        self.extend_from_slice(&[byte]);
    }

    #[cold]
    fn spill(&mut self, bytes: &[u8]) {
        if self.long.is_empty() {
            self.long.extend_from_slice(&self.short[..self.len]);
        }
        self.long.extend_from_slice(bytes);
    }

    /// Truncates to the first `len` bytes.
    #[inline]
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.long.truncate(len);
    }
}

impl<const N: usize> Default for InlineBytes<N> {
    #[inline]
    fn default() -> Self {
        InlineBytes::new()
    }
}

impl<const N: usize> Deref for InlineBytes<N> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        if self.long.is_empty() { &self.short[..self.len] } else { &self.long }
    }
}

/// Writes bytes as text, with control characters and invisible characters escaped.
pub(crate) fn write_escaped(bytes: &[u8], f: &mut impl fmt::Write) -> fmt::Result {
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || is_invisible(c) {
                let mut utf8 = [0; 4];
                c.encode_utf8(&mut utf8).bytes().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
            } else if c == '\\' {
                f.write_str("\\\\")?;
            } else {
                f.write_char(c)?;
            }
        }
        chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
    }
    Ok(())
}

/// Returns the bytes that [`write_escaped`] writes as this text, or `None` if the text has no
/// escapes, or invalid ones.
pub(crate) fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let hex = |digit: u8| u8::try_from(char::from(digit).to_digit(16)?).ok();
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let (byte, after) = match (first, after) {
            (b'\\', [b'\\', after @ ..]) => (b'\\', after),
            (b'\\', [b'x', high, low, after @ ..]) => ((hex(*high)? << 4) | hex(*low)?, after),
            (b'\\', _) => return None,
            (byte, after) => (*byte, after),
        };
        bytes.push(byte);
        rest = after;
    }
    (bytes.len() < text.len()).then_some(bytes)
}

/// Whether a character reorders or hides the text around it, so that it must be escaped.
pub fn is_invisible(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// The maximum length of an excerpt, which is that of the name of a policy.
const MAX_EXCERPT_BYTES: usize = crate::policy::MAX_NAME_BYTES;

/// Escapes and truncates a name for an error message. `...` marks a truncated name.
pub(crate) fn excerpt(name: &str) -> String {
    let mut out = String::new();
    let end = floor_char_boundary(name, MAX_EXCERPT_BYTES);
    // Writing to a `String` cannot fail.
    let _ = write_escaped(&name.as_bytes()[..end], &mut out);
    if end < name.len() {
        out.push_str("...");
    }
    out
}

/// Whether two names differ by at most one character: added, missing, wrong, or swapped with the
/// next one. Upper and lower case are the same, and so are `-` and `_`. The time is linear, because
/// clients send such names.
pub(crate) fn is_one_typo_apart(one: &str, other: &str) -> bool {
    /// Most of the shortest names differ by one character.
    const MIN_BYTES: usize = 3;
    let same = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    let is_same = |(one, other): &(&u8, &u8)| same(**one) == same(**other);
    let (mut one, mut other) = (one.as_bytes(), other.as_bytes());
    if one.len().min(other.len()) < MIN_BYTES || one.len().abs_diff(other.len()) > 1 {
        return false;
    }
    let start = one.iter().zip(other).take_while(is_same).count();
    (one, other) = (&one[start..], &other[start..]);
    let end = one.iter().rev().zip(other.iter().rev()).take_while(is_same).count();
    (one, other) = (&one[..one.len() - end], &other[..other.len() - end]);
    match (one, other) {
        ([] | [_], [] | [_]) => true,
        ([a, b], [c, d]) => is_same(&(a, d)) && is_same(&(b, c)),
        _ => false,
    }
}

/// The last character boundary of `text` at or before `index`. The standard library has this as
/// `str::floor_char_boundary` from Rust 1.91 on, which is newer than this crate requires.
pub(crate) fn floor_char_boundary(text: &str, index: usize) -> usize {
    let index = index.min(text.len());
    (0..=index).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{floor_char_boundary, is_one_typo_apart, unescape, write_escaped};

    #[test]
    fn unescape_reverses_write_escaped() {
        let rows: [&[u8]; 5] = [b"\0", b"a\\b\xff", b"\\\\", b"\x1b[m", "\u{200b}é".as_bytes()];
        for bytes in rows {
            let mut text = String::new();
            write_escaped(bytes, &mut text).expect("a text");
            assert_eq!(unescape(text.as_bytes()).as_deref(), Some(bytes), "{text}");
        }
        for text in ["", "plain", "a\\", "\\x0", "\\x+f", "\\n"] {
            assert_eq!(unescape(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn recognizes_names_with_one_typo() {
        for (one, other, expected) in [
            ("login", "login", true),
            ("login", "logn", true),
            ("login", "logiin", true),
            ("login", "lagin", true),
            ("login", "lgoin", true),
            ("Log_In", "log-in", true),
            ("aaa", "aaaa", true),
            ("login", "lgion", false),
            ("login", "logout", false),
            ("login", "log", false),
            ("ab", "abc", false),
            ("", "", false),
        ] {
            assert_eq!(is_one_typo_apart(one, other), expected, "{one} and {other}");
            assert_eq!(is_one_typo_apart(other, one), expected, "{other} and {one}");
        }
    }

    #[test]
    fn never_cuts_inside_a_character() {
        let text = "aé€😀";
        let expected = [0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10];
        for (index, boundary) in expected.into_iter().enumerate() {
            assert_eq!(floor_char_boundary(text, index), boundary, "at {index}");
        }
        assert_eq!(floor_char_boundary(text, usize::MAX), text.len());
        assert_eq!(floor_char_boundary("", 1), 0);
    }
}
