//! Bytes that are put together on the stack.

use std::ops::Deref;

/// Bytes that need no allocation while there are at most `N` of them. Appending to a `SmallVec`
/// costs two calls of `memmove`, whatever is appended; here it costs one.
#[derive(Clone, Debug)]
pub(crate) struct Buffer<const N: usize> {
    short: [u8; N],
    /// How many bytes are in `short`.
    len: usize,
    /// All bytes, if there are more than fit.
    long: Vec<u8>,
}

impl<const N: usize> Buffer<N> {
    #[inline]
    pub(crate) const fn new() -> Self {
        Buffer { short: [0; N], len: 0, long: Vec::new() }
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

    /// Drops what is behind the first `len` bytes.
    #[inline]
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.long.truncate(len);
    }
}

impl<const N: usize> Default for Buffer<N> {
    #[inline]
    fn default() -> Self {
        Buffer::new()
    }
}

impl<const N: usize> Deref for Buffer<N> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        if self.long.is_empty() { &self.short[..self.len] } else { &self.long }
    }
}
