//! Escapes keys and paths for display: they can contain anything, and must not control the
//! terminal.

use std::fmt::Write as _;
use std::path::Path;

use tidegate::unstable::policy::is_invisible;

/// The maximum number of characters of a key that are shown.
const MAX_SHOWN_CHARS: usize = 80;

/// Converts a key to text. Control characters, invisible characters and invalid UTF-8 become
/// `\xNN`.
pub fn escape_key(key: &[u8]) -> String {
    escape(key, MAX_SHOWN_CHARS)
}

/// Converts a path to text. It is not truncated.
pub fn escape_path(path: &Path) -> String {
    escape(path.as_os_str().as_encoded_bytes(), usize::MAX)
}

fn escape(bytes: &[u8], max_chars: usize) -> String {
    let mut text = String::new();
    let mut left = max_chars;
    for chunk in bytes.utf8_chunks() {
        let chars = chunk.valid().chars().map(Ok);
        for one in chars.chain(chunk.invalid().iter().map(|&byte| Err(byte))) {
            if left == 0 {
                text.push('\u{2026}');
                return text;
            }
            left -= 1;
            match one {
                Ok('\\') => text.push_str("\\\\"),
                Ok(c) if c.is_control() || is_invisible(c) => {
                    c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| push_hex(byte, &mut text));
                }
                Ok(c) => text.push(c),
                Err(byte) => push_hex(byte, &mut text),
            }
        }
    }
    text
}

fn push_hex(byte: u8, text: &mut String) {
    // Writing to memory cannot fail.
    let _ = write!(text, "\\x{byte:02x}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_control_characters_in_keys() {
        for (key, text) in [
            (&b"192.0.2.1"[..], "192.0.2.1"),
            (b"\x1b[31mred\n", "\\x1b[31mred\\x0a"),
            (b"\xff\\", "\\xff\\\\"),
            ("\u{202e}evil \u{e9}".as_bytes(), "\\xe2\\x80\\xaeevil \u{e9}"),
            ("\u{61c}a".as_bytes(), "\\xd8\\x9ca"),
            (b"<script>", "<script>"),
        ] {
            assert_eq!(escape_key(key), text);
        }
        assert_eq!(escape_key(&[b'x'; 100]).chars().count(), MAX_SHOWN_CHARS + 1);
        // Invalid bytes count as characters too: each takes four.
        assert_eq!(escape_key(&[0xff; 100]).chars().count(), 4 * MAX_SHOWN_CHARS + 1);
    }
}
