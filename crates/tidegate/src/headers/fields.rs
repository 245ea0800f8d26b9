//! The values of the header fields.
//!
//! The names, counts and windows of limits change only with the policy, so their text is rendered
//! once, when the policy is loaded ([`PrerenderedHeaders`]). A response then adds two numbers.

use std::ops::Range;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::text::{
    LimitNames, MAX_NUMERALS, ValueBuf, numerals, put_integer, put_policy_name, put_string,
};
use super::{Form, Forms, LimitView, ResponseView};
use crate::{Algorithm, Limit, RetryAfter, Timestamp};

/// The maximum length of `RateLimit-Policy`, because gateways reject responses whose header exceeds
/// about 4 to 8 KiB. Limits beyond it are omitted, but never the reported one.
pub const MAX_POLICY_BYTES: usize = 2048;

// Constants and not statics, because a map takes names by value and would clone a static.
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// The names for the limit, the remaining units and the reset.
const DRAFT_6: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
const X_RATELIMIT: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// The numbers of the reported limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReportedLimit {
    /// Whether the request may proceed.
    pub(crate) allowed: bool,
    /// The remaining units; `None` if no limit is reported, or if they are unknown because the
    /// store failed.
    pub(crate) remaining: Option<u64>,
    /// The time until the request passes if it was denied, otherwise the time until all units are
    /// available. `None` if the request can never pass.
    pub(crate) wait_us: Option<u64>,
    pub(crate) reset_after_us: u64,
    /// The time of the decision. Only `X-RateLimit-Reset` needs it.
    pub(crate) now: Timestamp,
}

impl ReportedLimit {
    pub(super) fn of(response: &ResponseView<'_>, now: Timestamp) -> Self {
        let mut reported =
            ReportedLimit { allowed: response.allowed, now, ..ReportedLimit::default() };
        if let Some(view) = response.reported_limit() {
            let reset_after_us = view.reset_after.as_nanos().div_ceil(1_000);
            reported.remaining = view.remaining;
            reported.reset_after_us = u64::try_from(reset_after_us).unwrap_or(u64::MAX);
            reported.set_wait(view.retry_after);
        }
        reported
    }

    /// Sets the wait. All other fields must be set.
    #[inline]
    pub(crate) fn set_wait(&mut self, retry_after: RetryAfter) {
        self.wait_us =
            if self.allowed { Some(self.reset_after_us) } else { retry_after.as_micros() };
    }

    /// The wait for the forms that require one. For a request that can never pass, this is the time
    /// until all units are available.
    fn reset(&self) -> Duration {
        Duration::from_micros(self.wait_us.unwrap_or(self.reset_after_us))
    }

    /// [`ReportedLimit::reset`] as a point in time, in seconds since 1970, rounded up.
    fn reset_at(&self) -> u64 {
        seconds_up(Duration::from_micros(self.now.as_micros()).saturating_add(self.reset()))
    }
}

/// The list of limits in a response.
#[derive(Debug, Default)]
pub(crate) struct LimitList {
    /// `RateLimit-Policy`; `None` if none of the forms has it.
    pub(super) policy: Option<HeaderValue>,
    /// The range in it of the reported limit's name, with its quotes, in the form of the newest
    /// draft.
    pub(super) name: (u16, u16),
}

/// The header fields of a response, before their values are rendered. They are kept until the
/// response is ready, so they are plain numbers as far as possible.
#[derive(Debug)]
pub(crate) struct Fields {
    pub(crate) forms: Forms,
    pub(crate) reported: ReportedLimit,
    /// The count of the reported limit, if a form states it.
    pub(crate) limit: Option<HeaderValue>,
    pub(crate) limit_list: LimitList,
}

impl Fields {
    /// No fields.
    pub(crate) const EMPTY: Self = Fields {
        forms: Forms::NONE,
        reported: ReportedLimit {
            allowed: false,
            remaining: None,
            wait_us: None,
            reset_after_us: 0,
            now: Timestamp::from_micros(0),
        },
        limit: None,
        limit_list: LimitList { policy: None, name: (0, 0) },
    };

    /// Whether a field with this name is sent.
    #[cfg(feature = "tower")]
    #[inline]
    pub(crate) fn has(&self, name: &HeaderName) -> bool {
        let [newest, seventh, sixth, x] = Form::ALL.map(|form| self.forms.contains(form));
        // A constant would be copied and dropped for each comparison.
        static NAMES: ([HeaderName; 2], [HeaderName; 3], [HeaderName; 3]) =
            ([RATELIMIT, RATELIMIT_POLICY], DRAFT_6, X_RATELIMIT);
        let ([numbers, limit_list], draft_6, x_ratelimit) = &NAMES;
        let has_numbers = || {
            (newest || seventh) && name == numbers
                || sixth && draft_6.contains(name)
                || x && x_ratelimit.contains(name)
        };
        self.limit_list.policy.is_some() && name == limit_list
            || self.reported.remaining.is_some() && has_numbers()
    }

    /// Writes the fields to a response. They replace existing fields with their names.
    #[inline]
    pub(crate) fn write(&mut self, out: &mut HeaderMap) {
        let [newest, seventh, sixth, x] = Form::ALL.map(|form| self.forms.contains(form));
        // `Retry-After`, if the request was denied and can pass later.
        if let (false, Some(wait_us @ 1..)) = (self.reported.allowed, self.reported.wait_us) {
            out.insert(RETRY_AFTER, number(seconds_up(Duration::from_micros(wait_us))));
        }
        // Two forms that use the same field name cannot both be sent: as one list they would be
        // malformed in either form. The newest is sent.
        let remaining = self.reported.remaining;
        match remaining {
            Some(remaining) if newest => drop(out.insert(RATELIMIT, self.draft_10(remaining))),
            Some(remaining) if seventh => drop(out.insert(RATELIMIT, self.draft_7(remaining))),
            _ => {}
        }
        if let Some(policy) = self.limit_list.policy.take() {
            out.insert(RATELIMIT_POLICY, policy);
        }
        let Some(remaining) = remaining else { return };
        let mut put = |[of_limit, of_remaining, of_reset]: [HeaderName; 3], limit, reset| {
            if let Some(limit) = limit {
                out.insert(of_limit, limit);
            }
            out.insert(of_remaining, number(remaining));
            out.insert(of_reset, number(reset));
        };
        if sixth {
            // `RateLimit-Limit: 100`, `RateLimit-Remaining: 50`, `RateLimit-Reset: 30`.
            let limit = if x { self.limit.clone() } else { self.limit.take() };
            put(DRAFT_6, limit, seconds_up(self.reported.reset()));
        }
        if x {
            // `X-RateLimit-Limit: 100`, `-Remaining: 50`, `-Reset: 1700000030`.
            put(X_RATELIMIT, self.limit.take(), self.reported.reset_at());
        }
    }

    /// `RateLimit: "api";r=50;t=30`.
    fn draft_10(&self, remaining: u64) -> HeaderValue {
        let mut bytes = [0; MAX_NUMERALS];
        let numerals = numerals(&mut bytes, |numerals| {
            if let Some(wait_us) = self.reported.wait_us {
                numerals.put_integer(seconds_up(Duration::from_micros(wait_us)));
                numerals.put(b";t=");
            }
            numerals.put_integer(remaining);
            numerals.put(b";r=");
        });
        let LimitList { policy, name: (start, end) } = &self.limit_list;
        let policy = policy.as_ref().map_or(&[][..], HeaderValue::as_bytes);
        let name = policy.get(usize::from(*start)..usize::from(*end)).unwrap_or(&[]);
        value([name, numerals].concat())
    }

    /// `RateLimit: limit=100, remaining=50, reset=30`.
    fn draft_7(&self, remaining: u64) -> HeaderValue {
        let mut text = ValueBuf::new();
        text.extend_from_slice(b"limit=");
        text.extend_from_slice(self.limit.as_ref().map_or(&[][..], HeaderValue::as_bytes));
        put_parameter(&mut text, b", remaining=", remaining);
        put_parameter(&mut text, b", reset=", seconds_up(self.reported.reset()));
        value(&*text)
    }
}

impl LimitList {
    /// Lists the limits in the newest of the forms that have a list.
    pub(crate) fn of(forms: Forms, response: &ResponseView<'_>) -> Self {
        match Form::ALL.map(|form| forms.contains(form)) {
            [true, ..] => {
                let names = LimitNames::of(response.limits);
                let item = |text: &mut ValueBuf, index, view: &LimitView<'_>| {
                    put_limit(text, names.get(index), view.limit)
                };
                Self::of_items(response, item)
            }
            [false, false, false, _] => LimitList::default(),
            _ => Self::of_rates(response),
        }
    }

    /// `RateLimit-Policy: 10;w=1, 600;w=60`, as in drafts 6 and 7.
    ///
    /// These drafts require a window, so `concurrency` limits are omitted. They also forbid two
    /// limits with the same count. Of these, the one with the longest window is listed, because it
    /// implies the others.
    fn of_rates(response: &ResponseView<'_>) -> Self {
        let rate = |view: &LimitView<'_>| {
            let concurrent = view.limit.algorithm() == Algorithm::Concurrency;
            (!concurrent).then(|| (view.limit.count(), window_seconds(view.limit)))
        };
        let views = response.limits;
        let implied = |index: usize, (count, window): (u64, u64)| {
            views.iter().enumerate().any(|(other, view)| {
                rate(view).is_some_and(|(c, w)| c == count && (w, index) > (window, other))
            })
        };
        Self::of_items(response, |text, index, view| {
            if let Some((count, window)) = rate(view).filter(|rate| !implied(index, *rate)) {
                put_integer(text, count);
                put_parameter(text, b";w=", window);
            }
            0..0
        })
    }

    /// Lists the items that `item` writes for each limit, except empty ones. `item` returns the
    /// range of the limit's name.
    fn of_items(
        response: &ResponseView<'_>,
        item: impl Fn(&mut ValueBuf, usize, &LimitView<'_>) -> Range<usize>,
    ) -> Self {
        let (text, mut name) = (&mut ValueBuf::new(), 0..0);
        // The reported limit is written in its order, so its length is reserved until then.
        let mut reserved = 0;
        if let (Some(index), Some(view), 2..) =
            (response.reported, response.reported_limit(), response.limits.len())
        {
            item(text, index, view);
            reserved = text.len() + 2;
            text.truncate(0);
        }
        for (index, view) in response.limits.iter().enumerate() {
            let before = text.len();
            if before > 0 {
                text.extend_from_slice(b", ");
            }
            let start = text.len();
            let named = item(text, index, view);
            let is_reported = response.reported == Some(index);
            if is_reported {
                (reserved, name) = (0, named);
            }
            let too_much = !is_reported && text.len() + reserved > MAX_POLICY_BYTES;
            if too_much || text.len() == start {
                text.truncate(before);
            }
        }
        let name = [name.start, name.end].map(|at| u16::try_from(at).unwrap_or_default());
        LimitList { policy: (!text.is_empty()).then(|| value(&**text)), name: name.into() }
    }
}

/// A header value of printable ASCII.
fn value<T>(text: T) -> HeaderValue
where
    HeaderValue: TryFrom<T>,
{
    HeaderValue::try_from(text).unwrap_or(const { HeaderValue::from_static("") })
}

/// A header value that is an integer.
pub(crate) fn number(number: u64) -> HeaderValue {
    value(numerals(&mut [0; MAX_NUMERALS], |numerals| numerals.put_integer(number)))
}

/// Converts to whole seconds, rounded up.
pub fn seconds_up(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// The window in whole seconds, at least 1, because the fields are integers.
fn window_seconds(limit: &Limit) -> u64 {
    seconds_up(Duration::from_micros(limit.window_us()))
}

/// Appends `"api";q=100;w=60`. Returns the range of the name.
pub(super) fn put_limit(text: &mut ValueBuf, name: &[u8], limit: &Limit) -> Range<usize> {
    let start = text.len();
    put_string(text, name);
    let name = start..text.len();
    put_parameter(text, b";q=", limit.count());
    match limit.algorithm() {
        Algorithm::Concurrency => text.extend_from_slice(b";qu=\"concurrent-requests\""),
        _ => put_parameter(text, b";w=", window_seconds(limit)),
    }
    name
}

fn put_parameter(text: &mut ValueBuf, name: &[u8], value: u64) {
    text.extend_from_slice(name);
    put_integer(text, value);
}

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
