//! The fields of one limit in the usual forms, as far as they can be written beforehand.
//!
//! A service with one limit says nearly the same on every response: two numbers differ. So
//! the rest is rendered once, by what renders the fields anyway, and the numbers are put in.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::fields::{RATELIMIT, RATELIMIT_POLICY, X_RATELIMIT, put_parameter, unix_seconds};
use super::text::{Text, seconds_up};
use super::{Form, Forms, Line, Shown, render};
use crate::short::Short;
use crate::{Limit, RetryAfter, Timestamp};

/// Longer names are rare.
const SHORT_BEGIN: usize = 40;
/// Behind that two numbers and `;t=`, 8 bytes each.
const SHORT_FIELD: usize = SHORT_BEGIN + 3 * 8;

/// What is said of one limit whenever it admits.
#[derive(Debug)]
pub(crate) enum Said {
    /// In the newest draft's form.
    Draft10 {
        /// `"api";r=`.
        begin: Box<[u8]>,
        /// The same, if it is not long.
        short: Option<Short<SHORT_BEGIN>>,
        /// `"api";q=100;w=60`.
        policy: HeaderValue,
    },
    /// As `X-RateLimit-*`.
    XRateLimit { limit: HeaderValue },
}

impl Said {
    /// `None` if other forms are to be sent.
    pub(crate) fn new(forms: Forms, policy: &str, limit: &Limit) -> Option<Self> {
        let line = Line {
            policy,
            limit,
            remaining: Some(0),
            retry_after: RetryAfter::Now,
            reset_after: Duration::ZERO,
        };
        let shown = Shown { allowed: true, lines: &[line], speaker: Some(0) };
        let mut fields = HeaderMap::new();
        render(forms, &shown, Timestamp::from_micros(0), &mut fields);
        if forms == Forms::NONE.with(Form::Draft10) {
            let policy = fields.remove(&RATELIMIT_POLICY)?;
            let begin = fields.get(&RATELIMIT)?.as_bytes().strip_suffix(b"0;t=0")?;
            return Some(Said::Draft10 { short: Short::new(begin), begin: begin.into(), policy });
        }
        let is_x = forms == Forms::NONE.with(Form::XRateLimit);
        let limit = fields.remove(&X_RATELIMIT[0]).filter(|_| is_x)?;
        Some(Said::XRateLimit { limit })
    }

    /// The fields of a response that was admitted with so much left. One that says something of
    /// limits already says it of those that are nearer to what was done, and is left alone.
    #[inline]
    pub(crate) fn put(
        &self,
        remaining: u64,
        reset_after: Duration,
        now: impl FnOnce() -> Timestamp,
        out: &mut HeaderMap,
    ) {
        match self {
            Said::Draft10 { begin, short, policy } => {
                if has(out, &RATELIMIT) {
                    return;
                }
                let reset = seconds_up(reset_after);
                let value = match short.as_ref().and_then(|begin| draft_10(begin, remaining, reset))
                {
                    Some(text) => HeaderValue::from_bytes(text.as_bytes()),
                    None => {
                        let mut text = Text::new();
                        put_parameter(&mut text, begin, remaining);
                        put_parameter(&mut text, b";t=", reset);
                        HeaderValue::from_bytes(&text)
                    }
                };
                // Cannot fail: the text is made of printable ASCII.
                if let Ok(value) = value {
                    out.insert(&RATELIMIT, value);
                    out.insert(&RATELIMIT_POLICY, policy.clone());
                }
            }
            Said::XRateLimit { limit } => {
                let [limit_name, remaining_name, reset_name] = &X_RATELIMIT;
                if has(out, limit_name) {
                    return;
                }
                out.insert(limit_name, limit.clone());
                out.insert(remaining_name, HeaderValue::from(remaining));
                let reset = unix_seconds(now(), reset_after);
                out.insert(reset_name, HeaderValue::from(reset));
            }
        }
    }
}

/// `"api";r=50;t=30` for numbers that are not long.
#[inline(always)]
fn draft_10(begin: &Short<SHORT_BEGIN>, remaining: u64, reset: u64) -> Option<Short<SHORT_FIELD>> {
    const RESET: Option<Short<8>> = Short::new(b";t=");
    let mut text = Short::EMPTY;
    text.put(begin)?;
    text.put(&Short::number(remaining)?)?;
    text.put(&RESET?)?;
    text.put(&Short::number(reset)?)?;
    Some(text)
}

/// Whether a response has a field. Most have none at all here.
#[inline]
fn has(fields: &HeaderMap, name: &HeaderName) -> bool {
    !fields.is_empty() && fields.contains_key(name)
}
