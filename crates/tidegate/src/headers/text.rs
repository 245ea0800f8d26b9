//! Small texts put together without formatting machinery.

use std::time::Duration;

/// A value in the making.
pub(super) type Text = Vec<u8>;

/// The largest integer of a structured field (RFC 9651, section 3.3.1).
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// An integer, cut off at what structured fields can carry.
pub(super) fn put_integer(text: &mut Text, number: u64) {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    let mut rest = number.min(MAX_INTEGER);
    loop {
        at -= 1;
        digits[at] = b"0123456789"[(rest % 10) as usize];
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    text.extend_from_slice(&digits[at..]);
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

/// Units of time as limits write them, longest first.
const UNITS_US: [(&str, u64); 7] = [
    ("w", 7 * 86_400_000_000),
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

/// A window in the largest unit that divides it: `1m`, not `60s`.
pub(super) fn put_window(text: &mut Text, window_us: u64) {
    let divides = |(_, unit_us): &&(&str, u64)| window_us.is_multiple_of(*unit_us);
    let Some((name, unit_us)) = UNITS_US.iter().find(divides) else { return };
    put_integer(text, window_us / unit_us);
    text.extend_from_slice(name.as_bytes());
}
