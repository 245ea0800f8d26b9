//! The arguments of the commands that decide.
//!
//! `TG.CHECK`, `TG.LIMIT`, `TG.PEEK` and `TG.RESET` are those of tidegate. `CL.THROTTLE` of
//! redis-cell and `THROTTLE` of throttlecrab implement the generic cell rate algorithm (GCRA),
//! described as a bucket: `count` tokens are returned per `period` seconds, up to the capacity.
//! That is the `token-bucket` of tidegate, which stores the debt instead of a theoretical arrival
//! time: that time is `owed / count` ahead, so both admit the same requests. redis-cell and
//! throttlecrab round the time between tokens down to nanoseconds; nothing is rounded here.
//!
//! A client of redis-cell sends the same few numbers with every command, and creating a [`Limit`]
//! from them takes several divisions, which is longer than a decision. So limits are cached by the
//! arguments that were sent ([`LimitCache`]). Each slot holds the last limit that mapped to it, so
//! the cache never grows, and a client that always sends new limits only pays for creating them.

use std::sync::Arc;

use tidegate::unstable::bounds;
use tidegate::unstable::policy::{MAX_LIMITS, check_counts};
use tidegate::{Algorithm, Cost, Limit, LimitError};

use super::codec::{Args, whole_number};
use super::query::{BorrowedQuery, QueryKind, Throttle};
use super::{excerpt, wrong_arity};
use crate::error::{ErrorKind, RequestError};
use crate::fronts::{MAX_COST, checked_id, checked_key};

/// `TG.CHECK policy key [COST n] [ID id] [FORCE]`.
///
/// # Errors
/// When an argument is invalid.
#[inline]
pub fn check<'a>(args: &Args<'a>) -> Result<BorrowedQuery<'a>, RequestError> {
    let query = named(QueryKind::Check, args[1], args[2])?;
    if args.len() == 3 { Ok(query) } else { with_options(query, "TG.CHECK", &args[3..]) }
}

/// `TG.LIMIT limits key [COST n] [ID id] [FORCE]`.
///
/// # Errors
/// When an argument is invalid.
pub fn limit<'a>(
    args: &Args<'a>,
    limits: &mut LimitCache,
) -> Result<BorrowedQuery<'a>, RequestError> {
    let limits = limits.text(args[1]).map_err(|error| in_quotes(args).unwrap_or(error))?;
    let limits = Some(limits);
    let query =
        BorrowedQuery { limits, ..BorrowedQuery::new(QueryKind::Check, checked_key(args[2])?) };
    with_options(query, "TG.LIMIT", &args[3..])
}

/// Returns the error of a limit that was sent as several arguments, as in `TG.LIMIT 5 per 1m
/// alice`.
#[cold]
fn in_quotes(args: &Args<'_>) -> Option<RequestError> {
    let split = args.get(1..4).filter(|split| split[1].eq_ignore_ascii_case(b"per"))?;
    let text = String::from_utf8(split.join(&b' ')).ok()?;
    text.parse::<Limit>().ok()?;
    let detail = format!("put the whole limit in quotes: TG.LIMIT \"{text}\" KEY");
    Some(RequestError::field("limit", detail))
}

/// `TG.PEEK policy key` and `TG.RESET policy key`.
///
/// # Errors
/// When an argument is invalid.
pub fn named<'a>(
    kind: QueryKind,
    policy: &'a [u8],
    key: &'a [u8],
) -> Result<BorrowedQuery<'a>, RequestError> {
    let policy = std::str::from_utf8(policy)
        .map_err(|_| RequestError::field("policy", "not valid UTF-8"))?;
    Ok(BorrowedQuery { policy: Some(policy), ..BorrowedQuery::new(kind, checked_key(key)?) })
}

fn with_options<'a>(
    mut query: BorrowedQuery<'a>,
    command: &str,
    mut options: &[&'a [u8]],
) -> Result<BorrowedQuery<'a>, RequestError> {
    let mut cost = None;
    while let [option, rest @ ..] = options {
        let twice =
            || RequestError::invalid(format!("syntax error: {} is given twice", excerpt(option)));
        options = if option.eq_ignore_ascii_case(b"COST") {
            let [number, rest @ ..] = rest else { return Err(without_value(option)) };
            if cost.replace(checked_cost(number)?).is_some() {
                return Err(twice());
            }
            rest
        } else if option.eq_ignore_ascii_case(b"ID") {
            let [id, rest @ ..] = rest else { return Err(without_value(option)) };
            if query.id.replace(checked_id("ID", id)?).is_some() {
                return Err(twice());
            }
            rest
        } else if option.eq_ignore_ascii_case(b"FORCE") {
            query.force = true;
            rest
        } else {
            return Err(RequestError::invalid(format!(
                "syntax error: `{}` is not an option of {command}: use COST n, ID id or FORCE",
                excerpt(option)
            )));
        };
    }
    query.cost = match cost {
        Some(cost) if query.force && cost < 0 => {
            let detail = "cannot be combined with a negative COST, which is a refund";
            return Err(RequestError::field("FORCE", detail));
        }
        Some(cost) if query.force => Some(Cost::Force(cost.unsigned_abs())),
        cost => cost.map(Cost::from_signed),
    };
    Ok(query)
}

fn without_value(option: &[u8]) -> RequestError {
    RequestError::invalid(format!("syntax error: {} needs a value", excerpt(option)))
}

fn checked_cost(number: &[u8]) -> Result<i64, RequestError> {
    let cost = whole_number(number).filter(|cost| (-MAX_COST..=MAX_COST).contains(cost));
    cost.ok_or_else(|| {
        let detail = format!(
            "value is not an integer or out of range: use a whole number from -{MAX_COST} to {MAX_COST}"
        );
        RequestError::field("COST", detail)
    })
}

/// `CL.THROTTLE key max_burst count period [quantity]`.
///
/// # Errors
/// The errors of redis-cell, and parameters that are not a valid limit here.
#[inline]
pub fn cell<'a>(
    args: &Args<'a>,
    limits: &mut LimitCache,
) -> Result<BorrowedQuery<'a>, RequestError> {
    let (key, numbers, quantity) = match args[..] {
        [_, key, burst, count, period] => (key, [burst, count, period], None),
        [_, key, burst, count, period, quantity] => (key, [burst, count, period], Some(quantity)),
        _ => {
            return Err(RequestError::new(
                ErrorKind::RedisCell,
                "Usage: cl.throttle <key> <max_burst> <count per period> <period> \
                 [<quantity>]",
            ));
        }
    };
    let read = |text: &[u8]| {
        integer(text).ok_or_else(|| {
            RequestError::new(
                ErrorKind::RedisCell,
                format!("Couldn't parse as integer: {}", excerpt(text)),
            )
        })
    };
    let [max_burst, count, period_s] = [read(numbers[0])?, read(numbers[1])?, read(numbers[2])?];
    let quantity = quantity.map_or(Ok(1), read)?;
    if count == 0 || period_s == 0 {
        return Err(RequestError::new(ErrorKind::RedisCell, "Zero rates are not supported"));
    }
    for (field, number) in [("count", count), ("period", period_s)] {
        if number < 0 {
            return Err(RequestError::field(field, "it is negative: use a whole number from 1"));
        }
    }
    let burst = max_burst.saturating_add(1);
    let limits = Some(limits.bucket(Bucket { burst, count, period_s })?);
    let form = Throttle { limit: burst, is_peek: quantity == 0 };
    let cost = Some(Cost::from_signed(quantity));
    Ok(BorrowedQuery {
        limits,
        cost,
        ..BorrowedQuery::new(QueryKind::RedisCell(form), bounded_key(key)?)
    })
}

/// `THROTTLE key max_burst count_per_period period [quantity]`.
///
/// # Errors
/// Errors that begin with the words of throttlecrab, and parameters that are not a valid limit.
pub fn crab<'a>(
    args: &Args<'a>,
    limits: &mut LimitCache,
) -> Result<BorrowedQuery<'a>, RequestError> {
    if !(5..=6).contains(&args.len()) {
        return Err(wrong_arity("throttle"));
    }
    let read = |index: usize, field: &str| {
        let text = args.get(index).copied().unwrap_or(b"1");
        integer(text)
            .ok_or_else(|| RequestError::invalid(format!("invalid {field}: use a whole number")))
    };
    let burst = read(2, "max_burst")?;
    let count = read(3, "count_per_period")?;
    let period_s = read(4, "period")?;
    let quantity = read(5, "quantity")?;
    if quantity < 0 {
        let detail = format!("negative quantity: {quantity}: use a whole number from 0");
        return Err(RequestError::invalid(detail));
    }
    let numbers = [("max_burst", burst), ("count_per_period", count), ("period", period_s)];
    if let Some((name, _)) = numbers.into_iter().find(|(_, number)| *number <= 0) {
        let detail = format!("invalid rate limit parameters: {name}: use a whole number from 1");
        return Err(RequestError::invalid(detail));
    }
    let limits = Some(limits.bucket(Bucket { burst, count, period_s })?);
    let form = Throttle { limit: burst, is_peek: quantity == 0 };
    let cost = Some(Cost::from_signed(quantity));
    Ok(BorrowedQuery {
        limits,
        cost,
        ..BorrowedQuery::new(QueryKind::Throttlecrab(form), bounded_key(args[1])?)
    })
}

/// Checks the length of a key. As in redis-cell, an empty key is valid.
fn bounded_key(key: &[u8]) -> Result<&[u8], RequestError> {
    if key.is_empty() { Ok(key) } else { checked_key(key) }
}

/// Parses an integer as Rust does, because redis-cell and throttlecrab are written in Rust.
#[inline]
fn integer(text: &[u8]) -> Option<i64> {
    // Nearly all numbers have few digits.
    if let [b'0'..=b'9', rest @ ..] = text
        && rest.len() < 9
        && rest.iter().all(u8::is_ascii_digit)
    {
        return Some(text.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0')));
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The number of slots per kind: more than the number of limits that an application has.
const SLOTS: usize = 64;

/// The maximum length of a cached text. Longer ones are parsed each time.
const MAX_TEXT_BYTES: usize = 64;

/// A token bucket with the parameters of redis-cell and throttlecrab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The capacity.
    pub burst: i64,
    pub count: i64,
    pub period_s: i64,
}

/// Limits that were created recently.
#[derive(Debug)]
pub struct LimitCache {
    buckets: Vec<Option<(Bucket, Arc<[Limit]>)>>,
    texts: Vec<Option<(Box<[u8]>, Arc<[Limit]>)>>,
}

impl Default for LimitCache {
    fn default() -> Self {
        LimitCache { buckets: vec![None; SLOTS], texts: vec![None; SLOTS] }
    }
}

impl LimitCache {
    /// Returns the limit of a bucket.
    ///
    /// # Errors
    /// When the parameters are not a valid limit.
    #[inline]
    pub fn bucket(&mut self, bucket: Bucket) -> Result<Arc<[Limit]>, RequestError> {
        let mixed = (bucket.burst ^ bucket.count.rotate_left(21) ^ bucket.period_s.rotate_left(42))
            .cast_unsigned();
        let slot = &mut self.buckets[slot(mixed)];
        match slot {
            Some((kept, limits)) if *kept == bucket => Ok(Arc::clone(limits)),
            _ => {
                let limits = Arc::from([bucket.limit()?]);
                *slot = Some((bucket, Arc::clone(&limits)));
                Ok(limits)
            }
        }
    }

    /// Returns the limits of a text: one, or several separated by commas.
    ///
    /// # Errors
    /// When the text is not a valid list of limits.
    pub fn text(&mut self, text: &[u8]) -> Result<Arc<[Limit]>, RequestError> {
        if text.len() > MAX_TEXT_BYTES {
            return Ok(read_limits(text)?.into());
        }
        let mixed = text.iter().fold(text.len() as u64, |mixed, byte| {
            (mixed ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let slot = &mut self.texts[slot(mixed)];
        match slot {
            Some((kept, limits)) if **kept == *text => Ok(Arc::clone(limits)),
            _ => {
                let limits = Arc::from(read_limits(text)?);
                *slot = Some((text.into(), Arc::clone(&limits)));
                Ok(limits)
            }
        }
    }
}

/// The slot for a key with this hash.
#[inline]
fn slot(mixed: u64) -> usize {
    let spread = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    usize::try_from(spread >> (64 - SLOTS.trailing_zeros())).unwrap_or_default()
}

fn read_limits(text: &[u8]) -> Result<Vec<Limit>, RequestError> {
    let refuse = |detail: String| RequestError::field("limit", detail);
    let text = std::str::from_utf8(text).map_err(|_| {
        refuse("not valid UTF-8: write a limit such as `5 per 1m sliding-log`".into())
    })?;
    let each = text.split(',').map(str::trim);
    let each = each.map(|one| one.parse().map_err(|error| refuse(on_one_line(one, &error))));
    let limits = each.collect::<Result<Vec<Limit>, RequestError>>()?;
    if limits.len() > MAX_LIMITS {
        return Err(refuse(format!("there are more than {MAX_LIMITS}: give fewer")));
    }
    check_counts(&limits).map_err(|error| refuse(error.to_string()))?;
    Ok(limits)
}

/// Formats the error of a text on one line, without the excerpt and caret.
fn on_one_line(text: &str, error: &LimitError) -> String {
    let word = error.span().and_then(|span| text.get(span)).unwrap_or_default();
    let word = if word.is_empty() { text } else { word };
    format!("`{}`: {}: {}", excerpt(word.as_bytes()), error.problem(), error.help())
}

impl Bucket {
    /// Converts the bucket to a `token-bucket` limit. A bucket without capacity becomes a limit of
    /// 0, which admits nothing.
    fn limit(self) -> Result<Limit, RequestError> {
        let out_of_range = |field, most| {
            RequestError::field(
                field,
                format!("it is out of range: use a whole number up to {most}"),
            )
        };
        let period_s = u64::try_from(self.period_s).unwrap_or_default();
        let longest_s = bounds::MAX_WINDOW_US / 1_000_000;
        if period_s > longest_s {
            return Err(out_of_range("period", longest_s));
        }
        let count = u64::try_from(self.count).unwrap_or_default();
        if count > bounds::MAX_COUNT {
            return Err(out_of_range("count", bounds::MAX_COUNT));
        }
        let burst = u64::try_from(self.burst).unwrap_or_default();
        if burst > bounds::MAX_COUNT {
            return Err(out_of_range("max_burst", bounds::MAX_COUNT - 1));
        }
        let window = std::time::Duration::from_secs(period_s);
        let count = if burst == 0 { 0 } else { count };
        let limit = Limit::new(count, window, Algorithm::TokenBucket);
        let limit =
            limit.and_then(|limit| if burst == 0 { Ok(limit) } else { limit.with_burst(burst) });
        limit.map_err(|error| RequestError::field("limit", error.to_string()))
    }
}
