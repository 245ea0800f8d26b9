//! Text of header fields: integers, strings, and the names of limits.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::LimitView;
use crate::Algorithm;
use crate::text::InlineBytes;

/// A header value that is being written. Most values fit without an allocation.
pub(super) type ValueBuf = InlineBytes<128>;

/// The largest integer of a structured field (RFC 9651, section 3.3.1).
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Appends an integer, capped at the largest of a structured field.
pub(super) fn put_integer(text: &mut ValueBuf, number: u64) {
    text.extend_from_slice(numerals(&mut [0; MAX_NUMERALS], |numerals| {
        numerals.put_integer(number)
    }));
}

/// Appends a string of a structured field. `plain` is printable ASCII.
pub(super) fn put_string(text: &mut ValueBuf, plain: &[u8]) {
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

/// The numbers below 100 as two digits.
static PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0_u8;
    while number < 100 {
        pairs[number as usize] = [b'0' + number / 10, b'0' + number % 10];
        number += 1;
    }
    pairs
};

/// The longest text of [`Numerals`]: two integers of 15 digits and the text around them.
pub(super) const MAX_NUMERALS: usize = 40;

/// Writes a short text of integers.
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

/// A short text of integers, written from its end to its beginning, which is the order in which
/// digits are computed.
pub(super) struct Numerals<'b> {
    /// The unused bytes before the text.
    room: &'b mut [u8],
}

impl Numerals<'_> {
    /// Prepends `text`.
    #[inline(always)]
    pub(super) fn put<const N: usize>(&mut self, text: &[u8; N]) {
        if let Some((room, last)) = std::mem::take(&mut self.room).split_last_chunk_mut() {
            *last = *text;
            self.room = room;
        }
    }

    /// Prepends an integer, capped at the largest of a structured field.
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

/// The name of each limit in printable ASCII. Names are unique.
pub(super) struct LimitNames {
    text: ValueBuf,
    spans: SmallVec<[Range<usize>; 4]>,
}

impl LimitNames {
    pub(super) fn of(views: &[LimitView<'_>]) -> Self {
        let mut names = LimitNames { text: ValueBuf::new(), spans: smallvec![0..0; views.len()] };
        // A limit that is the only one of its policy gets the name of the policy, so these are
        // assigned first.
        for (index, view) in views.iter().enumerate() {
            if is_only_limit(views, index) {
                names.assign(index, view, 1, false);
            }
        }
        for (index, view) in views.iter().enumerate() {
            if !is_only_limit(views, index) {
                let same_named =
                    views[..index].iter().filter(|other| has_same_base(view, other)).count();
                names.assign(index, view, same_named + 1, true);
            }
        }
        names
    }

    /// The name of the limit at `index`.
    pub(super) fn get(&self, index: usize) -> &[u8] {
        self.spans.get(index).map_or(&[], |span| &self.text[span.clone()])
    }

    /// Assigns the first unused name of `api-1s`, `api-1s-2` and so on, starting with the `nth`.
    fn assign(&mut self, index: usize, view: &LimitView<'_>, mut nth: usize, with_window: bool) {
        let start = self.text.len();
        put_base(&mut self.text, view, with_window);
        let base = self.text.len();
        loop {
            if nth > 1 {
                self.text.push(b'-');
                put_integer(&mut self.text, nth as u64);
            }
            if !self.is_taken(start) {
                break;
            }
            self.text.truncate(base);
            nth += 1;
        }
        self.spans[index] = start..self.text.len();
    }

    /// Whether the name that begins at `start` is already assigned.
    fn is_taken(&self, start: usize) -> bool {
        let name = &self.text[start..];
        // An empty span belongs to a limit that is not named yet.
        self.spans.iter().any(|span| !span.is_empty() && self.text[span.clone()] == *name)
    }
}

fn is_only_limit(views: &[LimitView<'_>], index: usize) -> bool {
    let policy = views[index].policy;
    let same = |other: Option<&LimitView<'_>>| other.is_some_and(|other| other.policy == policy);
    let before = index.checked_sub(1).and_then(|before| views.get(before));
    !policy.is_empty() && !same(before) && !same(views.get(index + 1))
}

/// Whether two limits have the same name before a number is added.
fn has_same_base(a: &LimitView<'_>, b: &LimitView<'_>) -> bool {
    let concurrent = |view: &LimitView<'_>| view.limit.algorithm() == Algorithm::Concurrency;
    let window = a.limit.window_us() == b.limit.window_us();
    a.policy == b.policy && concurrent(a) == concurrent(b) && (window || concurrent(a))
}

/// Appends the name of a policy in printable ASCII.
pub(super) fn put_policy_name(text: &mut ValueBuf, policy: &str) {
    let printable = |byte: u8| if matches!(byte, b' '..=b'~') { byte } else { b'?' };
    policy.bytes().for_each(|byte| text.push(printable(byte)));
}

fn put_base(text: &mut ValueBuf, view: &LimitView<'_>, with_window: bool) {
    put_policy_name(text, view.policy);
    if !with_window {
        return;
    }
    if !view.policy.is_empty() {
        text.push(b'-');
    }
    match view.limit.algorithm() {
        Algorithm::Concurrency => text.extend_from_slice(b"concurrent"),
        _ => {
            let (count, unit) = view.limit.window_in_units();
            put_integer(text, count);
            text.extend_from_slice(unit.as_bytes());
        }
    }
}
