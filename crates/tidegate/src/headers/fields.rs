//! The header fields themselves.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::names::Names;
use super::text::{Text, put_integer, put_string, seconds_up};
use super::{Line, Shown};
use crate::{Algorithm, Limit, RetryAfter};

/// The most bytes of `RateLimit-Policy`: gateways refuse responses whose fields
/// exceed some 4 to 8 KiB in all. Limits beyond it are left out, never the one
/// the answer speaks for.
pub const MAX_POLICY_BYTES: usize = 2048;

static RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
static RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// Limit, remaining, reset.
static DRAFT_6: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
static X_RATELIMIT: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// `Retry-After`, when the request was denied and will pass some day.
pub(super) fn retry_after(shown: &Shown<'_>, out: &mut HeaderMap) {
    let Some(line) = shown.speaking() else { return };
    if let (false, RetryAfter::Micros(_), Some(seconds)) =
        (shown.allowed, line.retry_after, line.retry_after.as_secs())
    {
        put_number(out, &RETRY_AFTER, seconds);
    }
}

/// `RateLimit: "api";r=50;t=30`, `RateLimit-Policy: "api";q=100;w=60`.
pub(super) fn draft_10(shown: &Shown<'_>, out: &mut HeaderMap) {
    let names = Names::of(shown.lines);
    if let (Some(index), Some(numbers)) = (shown.speaker, Numbers::of(shown)) {
        let mut text = Text::new();
        put_string(&mut text, names.get(index));
        put_parameter(&mut text, b";r=", numbers.remaining);
        if let Some(wait) = numbers.wait {
            put_parameter(&mut text, b";t=", seconds_up(wait));
        }
        put(out, &RATELIMIT, &text);
    }
    put_policy(shown, out, |text, index, line| {
        put_string(text, names.get(index));
        put_parameter(text, b";q=", line.limit.count());
        match line.limit.algorithm() {
            Algorithm::Concurrency => text.extend_from_slice(b";qu=\"concurrent-requests\""),
            _ => put_parameter(text, b";w=", window_seconds(line.limit)),
        }
    });
}

/// `RateLimit: limit=100, remaining=50, reset=30`.
pub(super) fn draft_7(shown: &Shown<'_>, out: &mut HeaderMap) {
    let Some(numbers) = Numbers::of(shown) else { return };
    let mut text = Text::new();
    put_parameter(&mut text, b"limit=", numbers.limit);
    put_parameter(&mut text, b", remaining=", numbers.remaining);
    put_parameter(&mut text, b", reset=", seconds_up(numbers.reset()));
    put(out, &RATELIMIT, &text);
}

/// `RateLimit-Limit: 100`, `RateLimit-Remaining: 50`, `RateLimit-Reset: 30`.
pub(super) fn draft_6(shown: &Shown<'_>, out: &mut HeaderMap) {
    let Some(numbers) = Numbers::of(shown) else { return };
    let values = [numbers.limit, numbers.remaining, seconds_up(numbers.reset())];
    DRAFT_6.iter().zip(values).for_each(|(name, value)| put_number(out, name, value));
}

/// `X-RateLimit-Limit: 100`, `-Remaining: 50`, `-Reset: 1700000030`.
pub(super) fn x_rate_limit(shown: &Shown<'_>, now: SystemTime, out: &mut HeaderMap) {
    let Some(numbers) = Numbers::of(shown) else { return };
    let since_1970 = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let reset = seconds_up(since_1970.saturating_add(numbers.reset()));
    let values = [numbers.limit, numbers.remaining, reset];
    X_RATELIMIT.iter().zip(values).for_each(|(name, value)| put_number(out, name, value));
}

/// `RateLimit-Policy: 10;w=1, 600;w=60`, as the sixth and the seventh draft have it.
///
/// They require a window, so `concurrency` has no place in it. And they forbid
/// two limits of the same number: of those the one with the longest window is
/// listed, which implies the others.
pub(super) fn old_policy(shown: &Shown<'_>, out: &mut HeaderMap) {
    let rate = |line: &Line<'_>| {
        let held = line.limit.algorithm() == Algorithm::Concurrency;
        (!held).then(|| (line.limit.count(), window_seconds(line.limit)))
    };
    let implied = |index: usize, (count, window): (u64, u64)| {
        shown.lines.iter().enumerate().any(|(other, line)| {
            rate(line).is_some_and(|(c, w)| c == count && (w, index) > (window, other))
        })
    };
    put_policy(shown, out, |text, index, line| {
        if let Some((count, window)) = rate(line).filter(|rate| !implied(index, *rate)) {
            put_integer(text, count);
            put_parameter(text, b";w=", window);
        }
    });
}

/// The list of what `item` writes for each line; an item that writes nothing is left out.
fn put_policy(shown: &Shown<'_>, out: &mut HeaderMap, item: impl Fn(&mut Text, usize, &Line<'_>)) {
    let mut text = Text::new();
    // The speaker is written at its place, so room for it is kept free until then.
    let mut reserved = 0;
    if let (Some(index), Some(line), 2..) = (shown.speaker, shown.speaking(), shown.lines.len()) {
        item(&mut text, index, line);
        reserved = text.len() + 2;
        text.clear();
    }
    for (index, line) in shown.lines.iter().enumerate() {
        let before = text.len();
        if before > 0 {
            text.extend_from_slice(b", ");
        }
        let start = text.len();
        item(&mut text, index, line);
        let speaks = shown.speaker == Some(index);
        if speaks {
            reserved = 0;
        }
        let too_much = !speaks && text.len() + reserved > MAX_POLICY_BYTES;
        if too_much || text.len() == start {
            text.truncate(before);
        }
    }
    if !text.is_empty() {
        put(out, &RATELIMIT_POLICY, &text);
    }
}

/// What the limit that speaks has to say.
struct Numbers {
    limit: u64,
    remaining: u64,
    /// When there is more: on a denial the time at which the request passes, else
    /// the time at which all is available. `None`: the request can never pass.
    wait: Option<Duration>,
    reset_after: Duration,
}

impl Numbers {
    /// `None` if nothing is known: nobody speaks, or the store failed.
    fn of(shown: &Shown<'_>) -> Option<Self> {
        let line = shown.speaking()?;
        let wait = match line.retry_after {
            _ if shown.allowed => Some(line.reset_after),
            retry_after => retry_after.as_duration(),
        };
        Some(Numbers {
            limit: line.limit.count(),
            remaining: line.remaining?,
            wait,
            reset_after: line.reset_after,
        })
    }

    /// For the forms that require a time: where there is none, when all is available.
    fn reset(&self) -> Duration {
        self.wait.unwrap_or(self.reset_after)
    }
}

/// At least 1: the fields know no part of a second.
fn window_seconds(limit: &Limit) -> u64 {
    limit.window_us().div_ceil(1_000_000)
}

fn put_parameter(text: &mut Text, name: &[u8], value: u64) {
    text.extend_from_slice(name);
    put_integer(text, value);
}

fn put_number(out: &mut HeaderMap, name: &HeaderName, number: u64) {
    let mut text = Text::new();
    put_integer(&mut text, number);
    put(out, name, &text);
}

fn put(out: &mut HeaderMap, name: &HeaderName, text: &[u8]) {
    // Cannot fail: the text is made of printable ASCII.
    if let Ok(value) = HeaderValue::from_bytes(text) {
        out.insert(name.clone(), value);
    }
}
