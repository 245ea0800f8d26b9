//! The header fields themselves.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::names::Names;
use super::prerendered::Joined;
use super::text::{Text, put_integer, put_string, seconds_up};
use super::{Line, Shown};
use crate::{Algorithm, Limit, RetryAfter, Timestamp};

/// The most bytes of `RateLimit-Policy`: gateways refuse responses whose fields
/// exceed some 4 to 8 KiB in all. Limits beyond it are left out, never the one
/// the answer speaks for.
pub const MAX_POLICY_BYTES: usize = 2048;

static RETRY: HeaderName = RETRY_AFTER;
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

/// Where fields are put: into a response, or aside until there is one.
pub(crate) trait Sink {
    fn put(&mut self, name: &'static HeaderName, value: HeaderValue);
}

impl Sink for HeaderMap {
    fn put(&mut self, name: &'static HeaderName, value: HeaderValue) {
        self.insert(name, value);
    }
}

/// When so much time from now has passed, in seconds since 1970, rounded up.
fn unix_seconds(now: Timestamp, wait: Duration) -> u64 {
    seconds_up(Duration::from_micros(now.as_micros()).saturating_add(wait))
}

/// The fields of one response in the making.
pub(super) struct Fields<'a, S> {
    shown: &'a Shown<'a>,
    numbers: Option<Numbers>,
    out: &'a mut S,
    /// The buffer every value is put together in.
    text: Text,
}

impl<'a, S: Sink> Fields<'a, S> {
    pub(super) fn new(shown: &'a Shown<'a>, out: &'a mut S) -> Self {
        Fields { shown, numbers: Numbers::of(shown), out, text: Text::new() }
    }

    /// `Retry-After`, when the request was denied and will pass some day.
    pub(super) fn retry_after(&mut self) {
        let Some(line) = self.shown.speaking() else { return };
        if let (false, RetryAfter::Micros(_), Some(seconds)) =
            (self.shown.allowed, line.retry_after, line.retry_after.as_secs())
        {
            self.put_number(&RETRY, seconds);
        }
    }

    /// `RateLimit: "api";r=50;t=30`, `RateLimit-Policy: "api";q=100;w=60`. The names and the policy
    /// are those of `joined`, if they were rendered before.
    pub(super) fn draft_10(&mut self, joined: Option<Joined<'_>>) {
        if let Some(Joined { begin, policy }) = joined {
            self.text.extend_from_slice(begin.unwrap_or_default());
            self.put_rate_limit();
            self.out.put(&RATELIMIT_POLICY, policy);
            return;
        }
        let names = Names::of(self.shown.lines);
        if let Some(index) = self.shown.speaker {
            put_begin(&mut self.text, names.get(index));
            self.put_rate_limit();
        }
        self.put_policy(|text, index, line| put_limit(text, names.get(index), line.limit));
    }

    /// `RateLimit`, whose text before the numbers is in the buffer. It is left out where they are
    /// not known.
    fn put_rate_limit(&mut self) {
        let Some(numbers) = &self.numbers else { return self.text.clear() };
        put_integer(&mut self.text, numbers.remaining);
        if let Some(wait) = numbers.wait {
            put_parameter(&mut self.text, b";t=", seconds_up(wait));
        }
        self.put(&RATELIMIT);
    }

    /// `RateLimit: limit=100, remaining=50, reset=30`.
    pub(super) fn draft_7(&mut self) {
        let Some(numbers) = &self.numbers else { return };
        put_parameter(&mut self.text, b"limit=", numbers.limit);
        put_parameter(&mut self.text, b", remaining=", numbers.remaining);
        put_parameter(&mut self.text, b", reset=", seconds_up(numbers.reset()));
        self.put(&RATELIMIT);
    }

    /// `RateLimit-Limit: 100`, `RateLimit-Remaining: 50`, `RateLimit-Reset: 30`.
    pub(super) fn draft_6(&mut self) {
        let Some(numbers) = &self.numbers else { return };
        let values = [numbers.limit, numbers.remaining, seconds_up(numbers.reset())];
        DRAFT_6.iter().zip(values).for_each(|(name, value)| self.put_number(name, value));
    }

    /// `X-RateLimit-Limit: 100`, `-Remaining: 50`, `-Reset: 1700000030`.
    pub(super) fn x_rate_limit(&mut self, now: Timestamp) {
        let Some(numbers) = &self.numbers else { return };
        let reset = unix_seconds(now, numbers.reset());
        let values = [numbers.limit, numbers.remaining, reset];
        X_RATELIMIT.iter().zip(values).for_each(|(name, value)| self.put_number(name, value));
    }

    /// `RateLimit-Policy: 10;w=1, 600;w=60`, as the sixth and the seventh draft have it.
    ///
    /// They require a window, so `concurrency` has no place in it. And they forbid
    /// two limits of the same number: of those the one with the longest window is
    /// listed, which implies the others.
    pub(super) fn old_policy(&mut self) {
        let rate = |line: &Line<'_>| {
            let held = line.limit.algorithm() == Algorithm::Concurrency;
            (!held).then(|| (line.limit.count(), window_seconds(line.limit)))
        };
        let lines = self.shown.lines;
        let implied = |index: usize, (count, window): (u64, u64)| {
            lines.iter().enumerate().any(|(other, line)| {
                rate(line).is_some_and(|(c, w)| c == count && (w, index) > (window, other))
            })
        };
        self.put_policy(|text, index, line| {
            if let Some((count, window)) = rate(line).filter(|rate| !implied(index, *rate)) {
                put_integer(text, count);
                put_parameter(text, b";w=", window);
            }
        });
    }

    /// The list of what `item` writes for each line; an item that writes nothing is left out.
    fn put_policy(&mut self, item: impl Fn(&mut Text, usize, &Line<'_>)) {
        let (shown, text) = (self.shown, &mut self.text);
        // The speaker is written at its place, so room for it is kept free until then.
        let mut reserved = 0;
        if let (Some(index), Some(line), 2..) = (shown.speaker, shown.speaking(), shown.lines.len())
        {
            item(text, index, line);
            reserved = text.len() + 2;
            text.clear();
        }
        for (index, line) in shown.lines.iter().enumerate() {
            let before = text.len();
            if before > 0 {
                text.extend_from_slice(b", ");
            }
            let start = text.len();
            item(text, index, line);
            let speaks = shown.speaker == Some(index);
            if speaks {
                reserved = 0;
            }
            let too_much = !speaks && text.len() + reserved > MAX_POLICY_BYTES;
            if too_much || text.len() == start {
                text.truncate(before);
            }
        }
        if !self.text.is_empty() {
            self.put(&RATELIMIT_POLICY);
        }
    }

    fn put_number(&mut self, name: &'static HeaderName, number: u64) {
        put_integer(&mut self.text, number);
        self.put(name);
    }

    /// The buffer as the value of `name`.
    fn put(&mut self, name: &'static HeaderName) {
        // Cannot fail: the text is made of printable ASCII.
        if let Ok(value) = HeaderValue::from_bytes(&self.text) {
            self.out.put(name, value);
        }
        self.text.clear();
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

/// `"api";r=`, which the remaining units follow.
pub(super) fn put_begin(text: &mut Text, name: &[u8]) {
    put_string(text, name);
    text.extend_from_slice(b";r=");
}

/// `"api";q=100;w=60`.
pub(super) fn put_limit(text: &mut Text, name: &[u8], limit: &Limit) {
    put_string(text, name);
    put_parameter(text, b";q=", limit.count());
    match limit.algorithm() {
        Algorithm::Concurrency => text.extend_from_slice(b";qu=\"concurrent-requests\""),
        _ => put_parameter(text, b";w=", window_seconds(limit)),
    }
}

fn put_parameter(text: &mut Text, name: &[u8], value: u64) {
    text.extend_from_slice(name);
    put_integer(text, value);
}
