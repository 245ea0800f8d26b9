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

use super::LimitView;
use super::text::{Text, put_integer};
use crate::Algorithm;

/// The name of each line, printable ASCII, no two alike.
pub(super) struct LimitNames {
    text: Text,
    spans: SmallVec<[Range<usize>; 4]>,
}

impl LimitNames {
    pub(super) fn of(views: &[LimitView<'_>]) -> Self {
        let mut names = LimitNames { text: Text::new(), spans: smallvec![0..0; views.len()] };
        // A policy keeps its own name, so those are given first.
        for (index, view) in views.iter().enumerate() {
            if is_alone(views, index) {
                names.assign(index, view, 1, false);
            }
        }
        for (index, view) in views.iter().enumerate() {
            if !is_alone(views, index) {
                let same_named =
                    views[..index].iter().filter(|other| has_same_base(view, other)).count();
                names.assign(index, view, same_named + 1, true);
            }
        }
        names
    }

    /// The name of the line at `index`.
    pub(super) fn get(&self, index: usize) -> &[u8] {
        self.spans.get(index).map_or(&[], |span| &self.text[span.clone()])
    }

    /// The first of `api-1s`, `api-1s-2`, ... from the `nth` on that nobody has.
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

    /// Whether the name that begins at `start` has been given before.
    fn is_taken(&self, start: usize) -> bool {
        let name = &self.text[start..];
        // A span that is empty belongs to a line that has no name yet.
        self.spans.iter().any(|span| !span.is_empty() && self.text[span.clone()] == *name)
    }
}

fn is_alone(views: &[LimitView<'_>], index: usize) -> bool {
    let policy = views[index].policy;
    let same = |other: Option<&LimitView<'_>>| other.is_some_and(|other| other.policy == policy);
    let before = index.checked_sub(1).and_then(|before| views.get(before));
    !policy.is_empty() && !same(before) && !same(views.get(index + 1))
}

/// Whether the two would be called the same.
fn has_same_base(a: &LimitView<'_>, b: &LimitView<'_>) -> bool {
    let concurrent = |view: &LimitView<'_>| view.limit.algorithm() == Algorithm::Concurrency;
    let window = a.limit.window_us() == b.limit.window_us();
    a.policy == b.policy && concurrent(a) == concurrent(b) && (window || concurrent(a))
}

/// Puts the name of a policy, in printable ASCII.
pub(super) fn put_policy_name(text: &mut Text, policy: &str) {
    let printable = |byte: u8| if matches!(byte, b' '..=b'~') { byte } else { b'?' };
    policy.bytes().for_each(|byte| text.push(printable(byte)));
}

fn put_base(text: &mut Text, view: &LimitView<'_>, with_window: bool) {
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
