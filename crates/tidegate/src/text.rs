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

/// The last character boundary of `text` at or before `index`. The standard library has this as
/// `str::floor_char_boundary` from Rust 1.91 on, which is newer than this crate requires.
pub(crate) fn floor_char_boundary(text: &str, index: usize) -> usize {
    let index = index.min(text.len());
    (0..=index).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::floor_char_boundary;

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
