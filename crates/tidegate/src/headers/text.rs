//! Small texts put together without formatting machinery.

use std::time::Duration;

use smallvec::SmallVec;

/// A value in the making. Most fit, so that nothing is allocated for it.
pub(super) type Text = SmallVec<[u8; 256]>;

/// The largest integer of a structured field (RFC 9651, section 3.3.1).
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// An integer, cut off at what structured fields can carry.
pub(super) fn put_integer(text: &mut Text, number: u64) {
    let mut digits = itoa::Buffer::new();
    text.extend_from_slice(digits.format(number.min(MAX_INTEGER)).as_bytes());
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

/// Whole seconds, rounded up.
pub(super) fn seconds_up(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}
