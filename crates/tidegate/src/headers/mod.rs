//! What a response says about its limits: header fields and problem documents.
//!
//! There are four forms of the same facts (see [`Form`]), all written from one
//! [`ResponseView`]. The numbers come from the limit the verdict speaks for: on a
//! denial the one that denied, because a client told about a limit that passed
//! would wait for the wrong thing; otherwise the one with the least remaining.
//! `RateLimit-Policy` lists every enforced limit.
//!
//! Fields are written for every request that a front answers. Values are put together on the stack,
//! without formatting machinery, and each is copied out once. The text that depends on the policies
//! alone is rendered when they are loaded (`prerendered.rs`). Everything else is kept as plain
//! numbers until there is a response to write it into (`fields.rs`).

mod fields;
mod forms;
mod prerendered;
mod problem;
mod text;

use std::time::Duration;

use http::HeaderMap;

pub use fields::MAX_POLICY_BYTES;
pub use forms::{Form, Forms, FormsError};
pub use problem::{PROBLEM_JSON, Problem, write_problem, write_problem_as};

use crate::{Limit, RetryAfter, Timestamp};
pub(crate) use fields::{Fields, LimitList, ReportedLimit, number};
pub(crate) use prerendered::PrerenderedHeaders;

/// What one enforced limit answered.
#[derive(Clone, Copy, Debug)]
pub struct LimitView<'a> {
    /// The name of its policy; empty for a limit that has none.
    pub policy: &'a str,
    /// The limit.
    pub limit: &'a Limit,
    /// What is left after the request; `None` if that is not known, because the
    /// store failed and the policy allows (or denies) meanwhile.
    pub remaining: Option<u64>,
    /// When the request would pass this limit.
    pub retry_after: RetryAfter,
    /// When everything is available again.
    pub reset_after: Duration,
}

/// The answer to a request, as far as the client is told.
#[derive(Clone, Copy, Debug)]
pub struct ResponseView<'a> {
    /// Whether the request may go ahead.
    pub allowed: bool,
    /// The enforced limits in the config's order, those of a policy together.
    pub limits: &'a [LimitView<'a>],
    /// Which of them the answer speaks for.
    pub reported: Option<usize>,
}

impl<'a> ResponseView<'a> {
    /// The line the answer speaks for.
    pub(crate) fn reported_limit(&self) -> Option<&'a LimitView<'a>> {
        self.limits.get(self.reported?)
    }

    /// The lines that denied the request.
    pub(crate) fn violated(&self) -> impl Iterator<Item = usize> {
        let denies = |(index, view): (usize, &LimitView<'_>)| {
            let denied = self.reported == Some(index) || view.retry_after != RetryAfter::Now;
            (!self.allowed && denied).then_some(index)
        };
        self.limits.iter().enumerate().filter_map(denies)
    }
}

/// Writes the fields of `forms` into `out`, and on a denial `Retry-After`.
///
/// Times are whole seconds, rounded up: whoever obeys them is not early. A cost
/// that can never pass has no `Retry-After` and no `t`. `now` is the time on the
/// limiter's clock, as [`Gate::now`](crate::gate::Gate::now) returns it; `X-RateLimit-Reset`
/// needs it, the one field that is a point in time.
///
/// Where `remaining` is not known only `RateLimit-Policy` is sent.
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
