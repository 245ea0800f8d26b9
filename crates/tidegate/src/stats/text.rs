//! Names as people may see them: short and without control bytes.

use std::fmt;

use crate::policy::write_escaped;

/// The most bytes of a key or route that are kept: enough for a composed key and
/// most paths, little enough that thousands of them do not matter.
pub const MAX_TEXT_BYTES: usize = 128;

/// The beginning of a key or route. Anybody may have chosen its bytes, so it is
/// shown as a [`Key`](crate::policy::Key) is: what is not plain text is escaped.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Text {
    pub(super) bytes: Vec<u8>,
    pub(super) cut: bool,
    pub(super) masked: bool,
}

impl Text {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let mut text = Text::default();
        text.set(bytes);
        text
    }

    /// Another text in the same memory.
    pub(super) fn set(&mut self, bytes: &[u8]) {
        self.cut = bytes.len() > MAX_TEXT_BYTES;
        self.masked = false;
        self.bytes.clear();
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(MAX_TEXT_BYTES)]);
    }

    /// The bytes that were kept.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether there was more than was kept; two such texts may look the same
    /// and still stand for different names, unless they are masked.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Whether it is the masked form of a key. [`Stats::unmask`](super::Stats::unmask) takes it
    /// as it is displayed.
    pub fn is_masked(&self) -> bool {
        self.masked
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.masked {
            // Escaped when it was masked, and a hash stands for what was cut.
            return self.bytes.utf8_chunks().try_for_each(|chunk| f.write_str(chunk.valid()));
        }
        write_escaped(&self.bytes, f)?;
        if self.cut { f.write_str("...") } else { Ok(()) }
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}
