//! Keys as they may be shown: a key can hold anything, and a terminal must not obey it.

use std::fmt::Write as _;

use tidegate::unstable::policy::is_invisible;

/// Characters shown of a key.
const MAX_SHOWN_CHARS: usize = 80;

/// A key as text: control characters, what reorders text and what is not UTF-8 as `\xNN`.
pub fn escape_key(key: &[u8]) -> String {
    let mut text = String::new();
    let mut left = MAX_SHOWN_CHARS;
    for chunk in key.utf8_chunks() {
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
        // Bytes that are no text count as well: each takes four.
        assert_eq!(escape_key(&[0xff; 100]).chars().count(), 4 * MAX_SHOWN_CHARS + 1);
    }
}
