//! What the limits of a response are called.
//!
//! `RateLimit`, `RateLimit-Policy` and a problem's `violated-policies` refer to
//! each other by name, so every limit needs one of its own. A policy with one
//! limit lends it its name. The limits of a policy with several add their
//! window, `api-1s` and `api-1m`, which stays the same from response to
//! response. Where that is taken (a policy may itself be called `api-1s`, and
//! two limits may have one window) a number follows: `api-1s-2`.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::Line;
use super::text::{Text, put_integer};
use crate::Algorithm;

/// The name of each line, printable ASCII, no two alike.
pub(super) struct Names {
    text: Text,
    spans: SmallVec<[Range<usize>; 4]>,
}

impl Names {
    pub(super) fn of(lines: &[Line<'_>]) -> Self {
        let mut names = Names { text: Text::new(), spans: smallvec![0..0; lines.len()] };
        // A policy keeps its own name, so those are given first.
        for (index, line) in lines.iter().enumerate() {
            if is_alone(lines, index) {
                names.give(index, line, 1, false);
            }
        }
        for (index, line) in lines.iter().enumerate() {
            if !is_alone(lines, index) {
                let twins = lines[..index].iter().filter(|other| is_twin(line, other)).count();
                names.give(index, line, twins + 1, true);
            }
        }
        names
    }

    /// The name of the line at `index`.
    pub(super) fn get(&self, index: usize) -> &[u8] {
        self.spans.get(index).map_or(&[], |span| &self.text[span.clone()])
    }

    /// The first of `api-1s`, `api-1s-2`, ... from the `nth` on that nobody has.
    fn give(&mut self, index: usize, line: &Line<'_>, mut nth: usize, with_window: bool) {
        let start = self.text.len();
        put_base(&mut self.text, line, with_window);
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

    /// Whether the name that begins at `start` has been given before.
    fn is_taken(&self, start: usize) -> bool {
        let name = &self.text[start..];
        // A span that is empty belongs to a line that has no name yet.
        self.spans.iter().any(|span| !span.is_empty() && self.text[span.clone()] == *name)
    }
}

fn is_alone(lines: &[Line<'_>], index: usize) -> bool {
    let policy = lines[index].policy;
    let same = |other: Option<&Line<'_>>| other.is_some_and(|other| other.policy == policy);
    let before = index.checked_sub(1).and_then(|before| lines.get(before));
    !policy.is_empty() && !same(before) && !same(lines.get(index + 1))
}

/// Whether the two would be called the same.
fn is_twin(a: &Line<'_>, b: &Line<'_>) -> bool {
    let held = |line: &Line<'_>| line.limit.algorithm() == Algorithm::Concurrency;
    let window = a.limit.window_us() == b.limit.window_us();
    a.policy == b.policy && held(a) == held(b) && (window || held(a))
}

/// Puts the name of a policy, in printable ASCII.
pub(super) fn put_policy_name(text: &mut Text, policy: &str) {
    let printable = |byte: u8| if matches!(byte, b' '..=b'~') { byte } else { b'?' };
    policy.bytes().for_each(|byte| text.push(printable(byte)));
}

fn put_base(text: &mut Text, line: &Line<'_>, with_window: bool) {
    put_policy_name(text, line.policy);
    if !with_window {
        return;
    }
    if !line.policy.is_empty() {
        text.push(b'-');
    }
    match line.limit.algorithm() {
        Algorithm::Concurrency => text.extend_from_slice(b"concurrent"),
        _ => {
            let (count, unit) = line.limit.window_in_units();
            put_integer(text, count);
            text.extend_from_slice(unit.as_bytes());
        }
    }
}
