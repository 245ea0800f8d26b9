//! Small texts put together without formatting machinery.

use crate::buffer::Buffer;

/// A value in the making. Most fit, so that nothing is allocated for it.
pub(super) type Text = Buffer<128>;

/// The largest integer of a structured field (RFC 9651, section 3.3.1).
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// An integer, cut off at what structured fields can carry.
pub(super) fn put_integer(text: &mut Text, number: u64) {
    let mut numerals = Numerals::new();
    numerals.put_integer(number);
    text.extend_from_slice(numerals.as_bytes());
}

/// A structured field's string. `plain` has printable ASCII only.
pub(super) fn put_string(text: &mut Text, plain: &[u8]) {
    text.push(b'"');
    let mut rest = plain;
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\')) {
        text.extend_from_slice(&rest[..at]);
        text.extend_from_slice(&[b'\\', rest[at]]);
        rest = &rest[at + 1..];
    }
    text.extend_from_slice(rest);
    text.push(b'"');
}

/// A text of a few numbers that is written from its end to its beginning: digits come in that
/// order.
pub(super) struct Numerals {
    bytes: [u8; MAX_NUMERALS],
    start: usize,
}

/// The numbers below 100 in two digits.
static PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0_u8;
    while number < 100 {
        pairs[number as usize] = [b'0' + number / 10, b'0' + number % 10];
        number += 1;
    }
    pairs
};

/// Two integers of 15 digits and what stands between them.
const MAX_NUMERALS: usize = 40;

impl Numerals {
    #[inline]
    pub(super) fn new() -> Self {
        Numerals { bytes: [0; MAX_NUMERALS], start: MAX_NUMERALS }
    }

    /// Puts `text` before what there is.
    #[inline]
    pub(super) fn put<const N: usize>(&mut self, text: &[u8; N]) {
        self.start -= N;
        self.bytes[self.start..][..N].copy_from_slice(text);
    }

    /// Puts an integer before what there is, cut off at what structured fields can carry.
    #[inline]
    pub(super) fn put_integer(&mut self, number: u64) {
        let mut rest = number.min(MAX_INTEGER);
        while rest >= 10 {
            self.put(&PAIRS[(rest % 100) as usize]);
            rest /= 100;
        }
        if rest > 0 || number == 0 {
            self.put(&[PAIRS[(rest % 100) as usize][1]]);
        }
    }

    #[inline]
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}
