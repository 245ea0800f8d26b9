//! What is answered.

use std::time::Duration;

use reqwest::Response;
use serde::Deserialize;
use serde_json::Value;

use super::error::{self, Error, Problem};
use crate::{Fields, Standing};

/// The answer to a check. A denial is one too.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Answer {
    /// Whether it may happen.
    pub allowed: bool,
    /// The policy spoken for; `None` if none matched.
    pub policy: Option<String>,
    /// The number of the limit spoken for.
    pub limit: Option<u64>,
    /// What is left of it; `None` where nobody knows.
    pub remaining: Option<u64>,
    /// Milliseconds until the same check would pass: 0 when allowed, `None` when it never will.
    pub retry_after_ms: Option<u64>,
    /// Milliseconds until the limit is whole again.
    pub reset_after_ms: Option<u64>,
    /// How it was decided: `exact`, `local`, `failed-open` or `failed-closed`.
    pub decided: String,
    /// Every limit that was asked.
    #[serde(default)]
    pub limits: Vec<LimitAnswer>,
}

/// What one limit says.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct LimitAnswer {
    /// Its policy.
    pub policy: Option<String>,
    /// Its number.
    pub limit: u64,
    /// Its window in milliseconds.
    pub window_ms: u64,
    /// Its algorithm.
    pub algorithm: String,
    /// What is left of it; `None` where nobody knows.
    pub remaining: Option<u64>,
    /// Whether it admits.
    pub allowed: bool,
    /// Milliseconds until it would; `None` if it never will.
    pub retry_after_ms: Option<u64>,
    /// `observe` where the limit is only watched.
    #[serde(default)]
    pub mode: Option<String>,
}

impl Answer {
    /// When the same check would pass: zero when allowed, `None` when it never will.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after_ms.map(Duration::from_millis)
    }

    /// The answer as a response's fields would tell it, for [`Pace`](crate::Pace) and
    /// [`Call`](crate::Call), but in milliseconds.
    pub fn fields(&self) -> Fields {
        let bounded = |ms: u64| Duration::from_millis(ms).min(crate::LONGEST);
        let window = self.limits.iter().find(|line| {
            line.policy == self.policy && Some(line.limit) == self.limit && line.mode.is_none()
        });
        let standing = match (self.limit, self.remaining) {
            (Some(limit), Some(remaining)) if limit > 0 => Some(Standing {
                limit,
                remaining: remaining.min(limit),
                window: window.map(|line| bounded(line.window_ms)),
                reset: self.reset_after_ms.map(bounded),
            }),
            _ => None,
        };
        // What can never pass is too far away to be waited for.
        let wait = self.retry_after_ms.map_or(crate::LONGEST, bounded);
        Fields { wait: (!self.allowed).then_some(wait), pause: None, standing }
    }
}

/// Why a permit was not given.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Denial {
    /// When to ask again; `None` if it never will be given.
    pub retry_after: Option<Duration>,
    /// The limits that denied.
    pub violated: Vec<String>,
    /// In words.
    pub detail: String,
}

/// A denial with a status of its own.
pub(super) async fn denial(response: Response) -> Denial {
    let fields = response.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    // The server sends seconds, never dates: no clock is needed.
    let retry_after = Fields::read(response.status().as_u16(), fields, 0).wait;
    let problem = error::problem(response).await;
    Denial { retry_after, violated: problem.violated, detail: problem.detail }
}

/// An answer, or the problem that stands in its place.
pub(super) fn one_of_batch(value: Value) -> Result<Result<Answer, Problem>, Error> {
    if value.get("allowed").is_some() {
        return serde_json::from_value(value).map(Ok).map_err(error::unreadable);
    }
    serde_json::from_value(value).map(Err).map_err(error::unreadable)
}
