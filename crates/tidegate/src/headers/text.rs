//! Small texts put together without formatting machinery.

use crate::buffer::Buffer;

/// A value in the making. Most fit, so that nothing is allocated for it.
pub(super) type Text = Buffer<128>;

/// The largest integer of a structured field (RFC 9651, section 3.3.1).
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// An integer, cut off at what structured fields can carry.
pub(super) fn put_integer(text: &mut Text, number: u64) {
    text.extend_from_slice(numerals(&mut [0; MAX_NUMERALS], |numerals| {
        numerals.put_integer(number)
    }));
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
pub(super) const MAX_NUMERALS: usize = 40;

/// Writes a text of a few numbers.
#[inline(always)]
pub(super) fn numerals(
    bytes: &mut [u8; MAX_NUMERALS],
    write: impl FnOnce(&mut Numerals<'_>),
) -> &[u8] {
    let mut numerals = Numerals { room: bytes };
    write(&mut numerals);
    let start = numerals.room.len();
    &bytes[start..]
}

/// A text of a few numbers that is written from its end to its beginning: digits come in that
/// order.
pub(super) struct Numerals<'b> {
    /// The bytes before what there is.
    room: &'b mut [u8],
}

impl Numerals<'_> {
    /// Puts `text` before what there is.
    #[inline(always)]
    pub(super) fn put<const N: usize>(&mut self, text: &[u8; N]) {
        if let Some((room, last)) = std::mem::take(&mut self.room).split_last_chunk_mut() {
            *last = *text;
            self.room = room;
        }
    }

    /// Puts an integer before what there is, cut off at what structured fields can carry.
    #[inline(always)]
    pub(super) fn put_integer(&mut self, number: u64) {
        let mut rest = number.min(MAX_INTEGER);
        while rest >= 100 {
            self.put(&PAIRS[(rest % 100) as usize]);
            rest /= 100;
        }
        match PAIRS[(rest % 100) as usize] {
            [b'0', digit] => self.put(&[digit]),
            pair => self.put(&pair),
        }
    }
}
