//! The text of a policy's header fields that is the same in every response.
//!
//! The names, counts and windows of limits change only with the policy, so their text is rendered
//! once, when the policy is loaded. A response then adds two numbers.

use std::time::Duration;

use http::HeaderValue;

use super::fields::{LimitList, number, put_limit};
use super::text::ValueBuf;
use super::text::{LimitNames, put_policy_name};
use super::{LimitView, MAX_POLICY_BYTES};
use crate::{Limit, RetryAfter};

/// The header text of one policy, in the form of the newest draft.
#[derive(Debug)]
pub(crate) struct PrerenderedHeaders {
    /// The name of the policy, as it begins the names of its limits.
    name: Box<[u8]>,
    /// `"api-1s";q=10;w=1, "api-1m";q=600;w=60`.
    policy: HeaderValue,
    /// The ranges in it of the names of the limits, with their quotes.
    names: Box<[(u16, u16)]>,
    /// The count of each limit, as a number and as a header value.
    counts: Box<[(u64, HeaderValue)]>,
}

impl PrerenderedHeaders {
    /// Renders the text. Returns `None` if it is longer than a field may be.
    pub(crate) fn new(policy_name: &str, limits: &[Limit]) -> Option<Self> {
        let view = |limit| LimitView {
            policy: policy_name,
            limit,
            remaining: None,
            retry_after: RetryAfter::Now,
            reset_after: Duration::ZERO,
        };
        let views: Vec<LimitView<'_>> = limits.iter().map(view).collect();
        let names = LimitNames::of(&views);
        let (mut ranges, mut text) = (Vec::with_capacity(limits.len()), ValueBuf::new());
        for (index, limit) in limits.iter().enumerate() {
            if index > 0 {
                text.extend_from_slice(b", ");
            }
            let range = put_limit(&mut text, names.get(index), limit);
            ranges.push((u16::try_from(range.start).ok()?, u16::try_from(range.end).ok()?));
        }
        if text.len() > MAX_POLICY_BYTES {
            return None;
        }
        let policy = HeaderValue::from_bytes(&text).ok()?;
        let count = |limit: &Limit| (limit.count(), number(limit.count()));
        let counts: Box<[(u64, HeaderValue)]> = limits.iter().map(count).collect();
        // The first clone of a value allocates; later ones share what it allocated.
        let _ = (policy.clone(), counts.clone());
        let mut name = ValueBuf::new();
        put_policy_name(&mut name, policy_name);
        Some(PrerenderedHeaders { name: (*name).into(), policy, names: ranges.into(), counts })
    }

    /// The number of limits.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// The count of one of its limits as a header value.
    pub(crate) fn count(&self, count: u64) -> Option<HeaderValue> {
        let mut counts = self.counts.iter();
        counts.find(|(number, _)| *number == count).map(|(_, value)| value.clone())
    }

    /// Lists this policy only, with the limit at `reported` as the reported one.
    #[inline]
    pub(crate) fn list(&self, reported: usize, limit_list: &mut LimitList) -> Option<()> {
        limit_list.name = *self.names.get(reported)?;
        limit_list.policy = Some(self.policy.clone());
        Some(())
    }

    /// Lists several policies, with the limit at `reported` as the reported one. Returns `None` if
    /// limits of two policies have the same name, or if the field would be too long. The list then
    /// depends on all of the policies and has to be rendered.
    pub(crate) fn join(
        policies: &[&PrerenderedHeaders],
        mut reported: usize,
        limit_list: &mut LimitList,
    ) -> Option<()> {
        let (mut text, mut name) = (ValueBuf::new(), None);
        for (index, policy) in policies.iter().enumerate() {
            if policies[..index].iter().any(|other| policy.may_share_names(other)) {
                return None;
            }
            if index > 0 {
                text.extend_from_slice(b", ");
            }
            let before = u16::try_from(text.len()).ok()?;
            let range =
                policy.names.get(reported).map(|(start, end)| (before + start, before + end));
            name = name.or(range);
            reported = reported.wrapping_sub(policy.len());
            text.extend_from_slice(policy.policy.as_bytes());
            if text.len() > MAX_POLICY_BYTES {
                return None;
            }
        }
        *limit_list = LimitList { policy: HeaderValue::from_bytes(&text).ok(), name: name? };
        Some(())
    }

    /// Whether two limits of these policies may have the same name. Names begin with that of the
    /// policy.
    fn may_share_names(&self, other: &PrerenderedHeaders) -> bool {
        let (own, others) = (&*self.name, &*other.name);
        (own.starts_with(others) || others.starts_with(own))
            && (own == others || self.names().any(|name| other.names().any(|taken| taken == name)))
    }

    fn names(&self) -> impl Iterator<Item = &[u8]> {
        let policy = self.policy.as_bytes();
        self.names.iter().map(|&(start, end)| &policy[usize::from(start)..usize::from(end)])
    }
}
