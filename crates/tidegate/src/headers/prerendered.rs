//! The part of a policy's header fields that is the same in every response.
//!
//! Names, counts and windows of limits change only with the policy, so their text is written once,
//! when the policy is loaded. A response then adds two numbers.

use std::time::Duration;

use http::HeaderValue;
use smallvec::SmallVec;

use super::fields::{put_begin, put_limit};
use super::names::Names;
use super::text::Text;
use super::{Line, MAX_POLICY_BYTES};
use crate::{Limit, RetryAfter};

/// The header text of one policy, in the form of the newest draft.
#[derive(Debug)]
pub(crate) struct Prerendered {
    /// `"api-1s";r=` for each limit.
    begins: Box<[Box<[u8]>]>,
    /// `"api-1s";q=10;w=1, "api-1m";q=600;w=60`.
    policy: HeaderValue,
}

/// The header text of a response to which one or several policies apply.
pub(crate) struct Joined<'p> {
    /// `"api-1s";r=` for the limit that the response reports.
    pub(super) begin: Option<&'p [u8]>,
    /// `RateLimit-Policy`.
    pub(super) policy: HeaderValue,
}

impl Prerendered {
    /// `None` if the text is longer than a field may be.
    pub(crate) fn new(policy: &str, limits: &[Limit]) -> Option<Self> {
        let line = |limit| Line {
            policy,
            limit,
            remaining: None,
            retry_after: RetryAfter::Now,
            reset_after: Duration::ZERO,
        };
        let lines: Vec<Line<'_>> = limits.iter().map(line).collect();
        let names = Names::of(&lines);
        let (mut begins, mut text) = (Vec::with_capacity(limits.len()), Text::new());
        for (index, limit) in limits.iter().enumerate() {
            let mut begin = Text::new();
            put_begin(&mut begin, names.get(index));
            begins.push(begin.as_slice().into());
            if index > 0 {
                text.extend_from_slice(b", ");
            }
            put_limit(&mut text, names.get(index), limit);
        }
        if text.len() > MAX_POLICY_BYTES {
            return None;
        }
        let policy = HeaderValue::from_bytes(&text).ok()?;
        // The first clone of a value allocates; later ones share what it allocated.
        let _ = policy.clone();
        Some(Prerendered { begins: begins.into(), policy })
    }

    /// The number of its limits.
    pub(crate) fn len(&self) -> usize {
        self.begins.len()
    }

    /// The text of these policies together, of which the limit at `reported` is reported. `None`
    /// if limits of two policies have the same name, or the field would be too long: then their
    /// names depend on each other.
    pub(crate) fn join<'p>(
        policies: &[&'p Prerendered],
        reported: Option<usize>,
    ) -> Option<Joined<'p>> {
        if let [only] = policies {
            let begin = reported.and_then(|index| only.begins.get(index)).map(|begin| &**begin);
            return Some(Joined { begin, policy: only.policy.clone() });
        }
        let begins = policies.iter().flat_map(|policy| &policy.begins);
        let begins: SmallVec<[&[u8]; 8]> = begins.map(|begin| &**begin).collect();
        let is_taken = |(index, begin)| begins[..index].contains(begin);
        if begins.iter().enumerate().any(is_taken) {
            return None;
        }
        let begin = reported.and_then(|index| begins.get(index).copied());
        let mut text = Text::new();
        for (index, policy) in policies.iter().enumerate() {
            if index > 0 {
                text.extend_from_slice(b", ");
            }
            text.extend_from_slice(policy.policy.as_bytes());
        }
        let policy =
            HeaderValue::from_bytes(&text).ok().filter(|_| text.len() <= MAX_POLICY_BYTES)?;
        Some(Joined { begin, policy })
    }
}
