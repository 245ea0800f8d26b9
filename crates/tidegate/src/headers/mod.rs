//! Header fields and problem documents, which describe the limits in a response.
//!
//! There are four forms of the header fields (see [`Form`]), all written from one [`ResponseView`].
//! The numbers are those of the reported limit. For a denial this is a limit that denied, because a
//! client that waits for another limit would wait for the wrong time; otherwise it is the limit
//! with the least remaining. `RateLimit-Policy` lists every enforced limit.
//!
//! Fields are written for every response of a front. Values are built on the stack, without
//! `std::fmt`, and each is copied once. The text that depends only on the policies is rendered when
//! they are loaded ([`PrerenderedHeaders`]). Everything else is kept as plain numbers until the
//! response is written (`fields.rs`).

mod fields;
mod forms;
mod problem;
mod text;

use std::time::Duration;

use http::HeaderMap;

pub use fields::{MAX_POLICY_BYTES, seconds_up};
pub use forms::{Form, Forms, FormsError};
pub use problem::{PROBLEM_JSON, Problem, write_problem, write_problem_as};

use crate::{Limit, RetryAfter, Timestamp};
pub(crate) use fields::{Fields, LimitList, PrerenderedHeaders, ReportedLimit, number};

/// The result of one enforced limit.
#[derive(Clone, Copy, Debug)]
pub struct LimitView<'a> {
    /// The name of the policy; empty for a limit without a policy.
    pub policy: &'a str,
    /// The limit.
    pub limit: &'a Limit,
    /// The remaining units after the request; `None` if they are unknown because the store failed
    /// and the policy fails open or closed.
    pub remaining: Option<u64>,
    /// The time after which the request would pass this limit.
    pub retry_after: RetryAfter,
    /// The time until all units are available again.
    pub reset_after: Duration,
}

/// The verdict on a request, as far as it is reported to the client.
#[derive(Clone, Copy, Debug)]
pub struct ResponseView<'a> {
    /// Whether the request may proceed.
    pub allowed: bool,
    /// The enforced limits in the order of the configuration. The limits of a policy are adjacent.
    pub limits: &'a [LimitView<'a>],
    /// The index of the reported limit.
    pub reported: Option<usize>,
}

impl<'a> ResponseView<'a> {
    /// The limit that is reported.
    pub(crate) fn reported_limit(&self) -> Option<&'a LimitView<'a>> {
        self.limits.get(self.reported?)
    }

    /// The indexes of the limits that denied the request.
    pub(crate) fn violated(&self) -> impl Iterator<Item = usize> {
        let denies = |(index, view): (usize, &LimitView<'_>)| {
            let denied = self.reported == Some(index) || view.retry_after != RetryAfter::Now;
            (!self.allowed && denied).then_some(index)
        };
        self.limits.iter().enumerate().filter_map(denies)
    }
}

/// Writes the header fields of `forms` to `out`, and `Retry-After` for a denial.
///
/// Times are in whole seconds, rounded up, so that a client that waits this long is not early. A
/// cost that can never pass has neither `Retry-After` nor `t`. `now` is the time on the limiter's
/// clock, as [`Gate::now`](crate::gate::Gate::now) returns it. Only `X-RateLimit-Reset` uses it,
/// because that field is a point in time.
///
/// If `remaining` is unknown, only `RateLimit-Policy` is written.
///
/// ```
/// use std::time::Duration;
/// use tidegate::unstable::headers::{Forms, LimitView, ResponseView, render};
/// use tidegate::{Limit, RetryAfter, Timestamp};
///
/// let limit: Limit = "5 per 1m".parse()?;
/// let login = LimitView {
///     policy: "login",
///     limit: &limit,
///     remaining: Some(0),
///     retry_after: RetryAfter::Micros(4_200_000),
///     reset_after: Duration::from_secs(60),
/// };
/// let response = ResponseView { allowed: false, limits: &[login], reported: Some(0) };
/// let mut out = http::HeaderMap::new();
/// render(Forms::default(), &response, Timestamp::from_micros(1_000_000), &mut out);
/// assert_eq!(out["retry-after"], "5");
/// assert_eq!(out["ratelimit"], "\"login\";r=0;t=5");
/// assert_eq!(out["ratelimit-policy"], "\"login\";q=5;w=60");
/// # Ok::<(), tidegate::LimitError>(())
/// ```
pub fn render(forms: Forms, response: &ResponseView<'_>, now: Timestamp, out: &mut HeaderMap) {
    if !response.limits.is_empty() {
        let (reported, limit_list) =
            (ReportedLimit::of(response, now), LimitList::of(forms, response));
        let reported_view = response.reported_limit().filter(|_| forms.states_limit());
        let limit = reported_view.map(|view| number(view.limit.count()));
        Fields { forms, reported, limit, limit_list }.write(out);
    }
}
