//! Answers of the server.

use std::time::Duration;

use reqwest::{Response, Url};
use serde::Deserialize;
use serde_json::Value;

use super::error::{self, Error, Problem};
use crate::{Fields, Usage};

/// The answer to a check: an admission or a denial.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Answer {
    /// Whether the check was admitted.
    pub allowed: bool,
    /// The policy of the reported limit; `None` if no policy matched.
    pub policy: Option<String>,
    /// The number of units of the reported limit: the one that denied with the longest wait, or
    /// the one with the least remaining.
    pub limit: Option<u64>,
    /// The units left; `None` if that is unknown, because the store failed.
    pub remaining: Option<u64>,
    /// Milliseconds until the same check would pass: 0 if allowed, `None` if it never will.
    pub retry_after_ms: Option<u64>,
    /// Milliseconds until the whole limit is available again.
    pub reset_after_ms: Option<u64>,
    /// How it was decided: `exact`, `local`, `failed-open` or `failed-closed`.
    pub decided: String,
    /// Every limit that was checked.
    #[serde(default)]
    pub limits: Vec<LimitAnswer>,
}

/// The answer of one limit.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct LimitAnswer {
    /// The policy's name.
    pub policy: Option<String>,
    /// The limit's number of units.
    pub limit: u64,
    /// The window in milliseconds.
    pub window_ms: u64,
    /// The algorithm's name.
    pub algorithm: String,
    /// The units left; `None` if that is unknown, because the store failed.
    pub remaining: Option<u64>,
    /// Whether the limit admits the check.
    pub allowed: bool,
    /// Milliseconds until the limit would admit it; `None` if it never will.
    pub retry_after_ms: Option<u64>,
    /// `observe` if the limit is not enforced.
    #[serde(default)]
    pub mode: Option<String>,
}

impl Answer {
    /// Returns the time until the same check would pass: zero if allowed, `None` if it never will.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after_ms.map(Duration::from_millis)
    }

    /// Returns the answer as header fields, for [`Pace`](crate::Pace) and
    /// [`Call`](crate::Call), with a precision of milliseconds.
    pub fn fields(&self) -> Fields {
        let bounded = |ms: u64| Duration::from_millis(ms).min(crate::LONGEST);
        let window = self.limits.iter().find(|limit_answer| {
            limit_answer.policy == self.policy
                && Some(limit_answer.limit) == self.limit
                && limit_answer.mode.is_none()
        });
        let usage = match (self.limit, self.remaining) {
            (Some(limit), Some(remaining)) if limit > 0 => Some(Usage {
                limit,
                remaining: remaining.min(limit),
                window: window.map(|limit_answer| bounded(limit_answer.window_ms)),
                reset: self.reset_after_ms.map(bounded),
            }),
            _ => None,
        };
        // A check that can never pass gets a wait that no client accepts.
        let wait = self.retry_after_ms.map_or(crate::LONGEST, bounded);
        Fields { wait: (!self.allowed).then_some(wait), pause: None, usage }
    }
}

/// Why a permit was denied.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Denial {
    /// The time until a retry can succeed; `None` if it never will.
    pub retry_after: Option<Duration>,
    /// The names of the limits that denied it.
    pub violated: Vec<String>,
    /// The reason as text.
    pub detail: String,
}

/// Reads a denial from a response with status 429.
pub(super) async fn denial(response: Response) -> Denial {
    let fields = response.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    // The server sends seconds, not dates, so no clock is needed.
    let retry_after = Fields::read(response.status().as_u16(), fields, 0).wait;
    let problem = error::problem(response).await;
    Denial { retry_after, violated: problem.violated, detail: problem.detail }
}

/// Reads one entry of a batch: an answer or a problem.
pub(super) fn one_of_batch(url: &Url, value: Value) -> Result<Result<Answer, Problem>, Error> {
    let read = match value.get("allowed") {
        Some(_) => serde_json::from_value(value).map(Ok),
        None => serde_json::from_value(value).map(Err),
    };
    read.map_err(|error| error::unreadable(url, error))
}
