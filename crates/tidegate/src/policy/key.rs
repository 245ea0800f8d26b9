//! The text of who is counted.
//!
//! Naive idea: put the values into the template and be done. It breaks at once:
//! `{header:a}:{header:b}` makes `x:y:z` of both (`x`, `y:z`) and (`x:y`, `z`);
//! a header can spell an address; a missing header and an empty one are alike.
//! Whoever controls a value could then spend, or share, another's limit. So:
//!
//! - a single part is its plain value: `{client_ip}` gives `192.0.2.1`;
//! - several parts carry their lengths: `5#alice:6#/login`;
//! - where there is a choice, the value says what it is: `client_ip=192.0.2.1`,
//!   so a header cannot pass for an address;
//! - a missing part is a NUL; a value that begins with a NUL gets one more;
//! - a key over [`MAX_KEY_BYTES`] is cut, and a SHA-256 of all of it takes the
//!   place of the rest, behind a NUL and `#`, which begins no other key.

use std::fmt::{self, Write as _};

use sha2::{Digest, Sha256};
use smallvec::SmallVec;

/// The longest a key is: longer ones are cut and carry a digest of the whole.
/// Real keys are far shorter; what is longer is somebody trying.
pub const MAX_KEY_BYTES: usize = 1024;

/// Stands for a part the request does not have.
pub(super) const MISSING: u8 = 0;

/// Behind a NUL: what follows is a cut key and its digest.
const CUT: u8 = b'#';

/// Who is counted, within a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(SmallVec<[u8; 64]>);

impl Key {
    /// A key a caller gives as it is. A leading NUL is doubled, as in any value,
    /// so that it names no missing part.
    pub fn literal(key: &[u8]) -> Self {
        let mut writer = KeyWriter::default();
        writer.value(key);
        writer.finish()
    }

    /// A key that was made before, byte for byte.
    pub(crate) fn from_rendered(key: &[u8]) -> Self {
        Key(SmallVec::from_slice(key))
    }

    /// The key of requests that do not say whose they are: no value makes the same.
    pub fn missing() -> Self {
        Key(SmallVec::from_slice(&[MISSING]))
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Control characters, quotes' kin and what is not UTF-8 are shown as `\xNN`:
/// a key can hold anything, and a log or terminal must not obey it.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_escaped(&self.0, f)
    }
}

/// Writes bytes as text without a control character in it.
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

/// Whether a character reorders or hides the text around it, so that it must not be shown as it is.
pub fn is_invisible(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Builds a key.
#[derive(Default)]
pub(super) struct KeyWriter(SmallVec<[u8; 64]>);

impl KeyWriter {
    pub(super) fn literal(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    /// A value that stands alone.
    pub(super) fn value(&mut self, value: &[u8]) {
        if value.first() == Some(&MISSING) {
            self.0.push(MISSING);
        }
        self.0.extend_from_slice(value);
    }

    /// A value that says what it is.
    pub(super) fn tagged(&mut self, tag: &str, value: &[u8]) {
        self.literal(tag);
        self.0.extend_from_slice(value);
    }

    pub(super) fn missing(&mut self) {
        self.0.push(MISSING);
    }

    /// The length of what comes next.
    pub(super) fn length(&mut self, bytes: usize) {
        // Writing to memory cannot fail.
        let _ = write!(self, "{bytes}#");
    }

    pub(super) fn finish(self) -> Key {
        if self.0.len() > MAX_KEY_BYTES {
            return cut(&self.0);
        }
        Key(self.0)
    }
}

impl fmt::Write for KeyWriter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.literal(text);
        Ok(())
    }
}

/// How long a value is once it stands in a key.
pub(super) fn value_length(value: &[u8]) -> usize {
    value.len() + usize::from(value.first() == Some(&MISSING))
}

#[cold]
fn cut(whole: &[u8]) -> Key {
    let mut writer = KeyWriter(SmallVec::from_slice(&[MISSING, CUT]));
    let digest_chars = 2 * <Sha256 as Digest>::output_size();
    writer.0.extend_from_slice(&whole[..MAX_KEY_BYTES - 3 - digest_chars]);
    writer.literal("#");
    for byte in Sha256::digest(whole) {
        let _ = write!(writer, "{byte:02x}");
    }
    Key(writer.0)
}
