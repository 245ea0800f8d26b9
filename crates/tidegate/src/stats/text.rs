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
    bytes: Vec<u8>,
    cut: bool,
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
        self.bytes.clear();
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(MAX_TEXT_BYTES)]);
    }

    /// The bytes that were kept.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether there was more than was kept; two such texts may look the same
    /// and still stand for different names.
    pub fn is_cut(&self) -> bool {
        self.cut
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_escaped(&self.bytes, f)?;
        if self.cut { f.write_str("...") } else { Ok(()) }
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}
