//! The rate limit fields of a response, in every form.
//!
//! Responses come from old servers, through proxies that add fields, and from servers that are
//! broken or hostile. So reading never fails: a malformed field is ignored, and every time is
//! bounded by [`LONGEST`]. Forms are tried from the newest to the oldest and never mixed,
//! because their numbers may belong to different limits.
//!
//! - `structured.rs`: lists and dictionaries of RFC 9651;
//! - `date.rs`: the three forms of an HTTP date;
//! - `number.rs`: seconds and integers as text.

mod date;
mod number;
mod structured;

use std::time::Duration;

use sfv::Item;
use structured::parameter;

/// The longest time that is read, a day. Longer times are read as this one, which no client
/// should wait for.
pub const LONGEST: Duration = Duration::from_secs(86_400);

/// The longest field that is read. Longer ones are malformed.
const MAX_FIELD_BYTES: usize = 8192;

/// A limit is running out when at most this part of it remains: a tenth.
const RUNS_OUT: u64 = 10;

/// The usage of one limit, as a response reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The units that the limit admits in a window; at least 1.
    pub limit: u64,
    /// The units left after this request.
    pub remaining: u64,
    /// The window, if it is reported.
    pub window: Option<Duration>,
    /// The time until more is available, if it is reported.
    pub reset: Option<Duration>,
}

/// The wait, the pause and the usage that the rate limit fields of a response report.
///
/// ```
/// use std::time::Duration;
/// use tidegate_client::Fields;
///
/// let fields = [("Retry-After", "2"), ("RateLimit", r#""api";r=0;t=2"#)];
/// let fields = fields.map(|(name, value)| (name, value.as_bytes()));
/// let read = Fields::read(429, fields, 1_700_000_000_000);
/// assert_eq!(read.wait, Some(Duration::from_secs(2)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// The least time before the same request is sent again. `None` if the response does not report
    /// one.
    pub wait: Option<Duration>,
    /// After a success, the pause before the next request that spreads the remaining units over
    /// the time until the reset. `None` if no pause is needed.
    pub pause: Option<Duration>,
    /// The limit with the smallest part left.
    pub usage: Option<Usage>,
}

impl Fields {
    /// Reads the fields of a response. `fields` are pairs of name, in any case, and value, in the
    /// order sent. `now_ms` is the current time in milliseconds since 1970. It is used if the
    /// `Date` of the response is missing or invalid.
    pub fn read<'a>(
        status: u16,
        fields: impl IntoIterator<Item = (&'a str, &'a [u8])>,
        now_ms: u64,
    ) -> Self {
        let raw = Raw::gather(fields);
        let now_ms =
            raw.get(Name::Date).and_then(|text| date::parse(text, now_ms)).unwrap_or(now_ms);
        let forms = raw.forms(now_ms);
        let wait = (status >= 400).then(|| raw.retry_after(now_ms).or_else(|| used_up(&forms)));
        let newest = forms.iter().find(|items| !items.is_empty()).map_or(&[][..], Vec::as_slice);
        Fields {
            wait: wait.flatten(),
            pause: if status < 400 {
                newest.iter().filter_map(LimitReport::pause).max()
            } else {
                None
            },
            usage: newest
                .iter()
                .filter_map(LimitReport::usage)
                .min_by(|one, other| fraction_left(one).total_cmp(&fraction_left(other))),
        }
    }
}

/// Returns the part of a limit that is left.
#[expect(clippy::cast_precision_loss, reason = "a part needs no 53 bits")]
pub(crate) fn fraction_left(usage: &Usage) -> f64 {
    (usage.remaining as f64 / usage.limit.max(1) as f64).min(1.0)
}

/// Returns the longest reset of the used-up limits, in the newest form that has one.
fn used_up(forms: &[Vec<LimitReport>]) -> Option<Duration> {
    let longest = |items: &Vec<LimitReport>| {
        items.iter().filter(|one| one.remaining == 0).filter_map(|one| one.reset).max()
    };
    forms.iter().find_map(longest)
}

/// One limit, as one form reports it.
#[derive(Clone, Copy, Debug)]
struct LimitReport {
    limit: Option<u64>,
    remaining: u64,
    window: Option<Duration>,
    reset: Option<Duration>,
}

impl LimitReport {
    fn pause(&self) -> Option<Duration> {
        let runs_out = match self.limit {
            Some(limit) => self.remaining.saturating_mul(RUNS_OUT) <= limit,
            None => self.remaining == 0,
        };
        let ms = u64::try_from(self.reset.filter(|_| runs_out)?.as_millis()).ok()?;
        Some(Duration::from_millis(ms.div_ceil(self.remaining.saturating_add(1))))
    }

    fn usage(&self) -> Option<Usage> {
        let &LimitReport { limit, remaining, window, reset } = self;
        let limit = limit.filter(|limit| *limit > 0)?;
        Some(Usage { limit, remaining: remaining.min(limit), window, reset })
    }
}

/// The fields that are read.
#[derive(Clone, Copy, Debug)]
enum Name {
    Date,
    RetryAfter,
    RateLimit,
    Policy,
    Limit,
    Remaining,
    Reset,
    XLimit,
    XRemaining,
    XReset,
}

const NAMES: [&str; 10] = [
    "date",
    "retry-after",
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
];

/// The field values as received, with repeated fields joined.
#[derive(Debug, Default)]
struct Raw {
    values: [Option<Vec<u8>>; NAMES.len()],
}

impl Raw {
    fn gather<'a>(fields: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        let mut raw = Raw::default();
        for (name, value) in fields {
            let Some(at) = NAMES.iter().position(|known| known.eq_ignore_ascii_case(name)) else {
                continue;
            };
            match &mut raw.values[at] {
                // A value that is too long already does not grow.
                Some(joined) if joined.len() > MAX_FIELD_BYTES => {}
                Some(joined) => {
                    joined.extend_from_slice(b", ");
                    joined.extend_from_slice(value);
                }
                none => *none = Some(value.to_vec()),
            }
        }
        raw
    }

    fn get(&self, name: Name) -> Option<&str> {
        let value = self.values[name as usize].as_deref()?;
        let text = std::str::from_utf8(value).ok().filter(|_| value.len() <= MAX_FIELD_BYTES)?;
        Some(text.trim_matches([' ', '\t'])).filter(|text| !text.is_empty())
    }

    fn retry_after(&self, now_ms: u64) -> Option<Duration> {
        let text = self.get(Name::RetryAfter)?;
        match number::seconds_ms(text) {
            Some(ms) => Some(bounded(ms)),
            None => Some(bounded(date::parse(text, now_ms)?.saturating_sub(now_ms))),
        }
    }

    /// Returns the limits of each form, the newest form first.
    fn forms(&self, now_ms: u64) -> [Vec<LimitReport>; 4] {
        let text = self.get(Name::RateLimit);
        let is_list = text.is_some_and(|text| text.starts_with('"'));
        [
            text.filter(|_| is_list).map_or_else(Vec::new, |text| self.draft_10(text)),
            text.filter(|_| !is_list)
                .and_then(|text| self.draft_7(text, now_ms))
                .into_iter()
                .collect(),
            self.separate([Name::Limit, Name::Remaining, Name::Reset], now_ms),
            self.separate([Name::XLimit, Name::XRemaining, Name::XReset], now_ms),
        ]
    }

    fn draft_10(&self, text: &str) -> Vec<LimitReport> {
        let policies = self.get(Name::Policy).map(structured::list).unwrap_or_default();
        let limit_of = |item: &Item| {
            item.bare_item.as_string()?;
            let policy = policies.iter().find(|policy| policy.bare_item == item.bare_item);
            let of_policy = |key| policy.and_then(|policy| parameter(policy, key));
            Some(LimitReport {
                limit: of_policy("q"),
                remaining: parameter(item, "r")?,
                window: of_policy("w").and_then(window),
                reset: parameter(item, "t").map(seconds),
            })
        };
        structured::list(text).iter().filter_map(limit_of).collect()
    }

    fn draft_7(&self, text: &str, now_ms: u64) -> Option<LimitReport> {
        let members = structured::dictionary(text);
        let integer = |key| structured::member(&members, key);
        let limit = integer("limit");
        Some(LimitReport {
            limit,
            remaining: integer("remaining")?,
            window: self.window_of(limit),
            reset: integer("reset").map(|reset| until(reset, reset.saturating_mul(1000), now_ms)),
        })
    }

    fn separate(&self, [limit, remaining, reset]: [Name; 3], now_ms: u64) -> Vec<LimitReport> {
        let Some(remaining) = self.get(remaining).and_then(number::integer) else {
            return Vec::new();
        };
        let own = matches!(limit, Name::Limit);
        let limit = self.get(limit).and_then(number::leading_integer);
        let reset = self.get(reset).and_then(|text| {
            Some(until(number::whole_seconds(text)?, number::seconds_ms(text)?, now_ms))
        });
        let window = if own { self.window_of(limit) } else { None };
        vec![LimitReport { limit, remaining, window, reset }]
    }

    /// Returns the window of a limit in the older form of `RateLimit-Policy`, `100;w=60`.
    fn window_of(&self, limit: Option<u64>) -> Option<Duration> {
        let is_of_limit = |policy: &&Item| structured::integer(&policy.bare_item) == limit;
        let policies = structured::list(self.get(Name::Policy)?);
        parameter(policies.iter().find(is_of_limit)?, "w").and_then(window)
    }
}

/// Returns the time until a reset of the older forms: a number of seconds, a Unix time in seconds,
/// or one in milliseconds. Servers send all three. Numbers from 10^9 (31 years) on are Unix times,
/// from 10^12 on in milliseconds.
fn until(number: u64, number_ms: u64, now_ms: u64) -> Duration {
    match number {
        0..1_000_000_000 => bounded(number_ms),
        1_000_000_000..1_000_000_000_000 => bounded(number_ms.saturating_sub(now_ms)),
        _ => bounded(number.saturating_sub(now_ms)),
    }
}

fn seconds(number: u64) -> Duration {
    bounded(number.saturating_mul(1000))
}

/// Returns a window, unless it is zero.
fn window(number: u64) -> Option<Duration> {
    (number > 0).then(|| seconds(number))
}

fn bounded(ms: u64) -> Duration {
    Duration::from_millis(ms).min(LONGEST)
}
