//! The arguments of the commands that decide.
//!
//! `TG.CHECK`, `TG.LIMIT`, `TG.PEEK` and `TG.RESET` are those of tidegate. `CL.THROTTLE` of
//! redis-cell and `THROTTLE` of throttlecrab implement the generic cell rate algorithm (GCRA),
//! described as a bucket: `count` tokens are returned per `period` seconds, up to the capacity. That
//! is the `token-bucket` of tidegate, which stores the debt instead of a theoretical arrival time:
//! that time is `owed / count` ahead, so both admit the same requests. redis-cell and throttlecrab
//! round the time between tokens down to nanoseconds; nothing is rounded here.

use tidegate::Cost;

use super::codec::{Args, whole_number};
use super::limit_cache::{Bucket, LimitCache};
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
    let limits = Some(limits.text(args[1])?);
    let query =
        BorrowedQuery { limits, ..BorrowedQuery::new(QueryKind::Check, checked_key(args[2])?) };
    with_options(query, "TG.LIMIT", &args[3..])
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
/// The errors of throttlecrab, and parameters that are not a valid limit here.
pub fn crab<'a>(
    args: &Args<'a>,
    limits: &mut LimitCache,
) -> Result<BorrowedQuery<'a>, RequestError> {
    if !(5..=6).contains(&args.len()) {
        return Err(wrong_arity("throttle"));
    }
    let read = |index: usize, field: &str| {
        let text = args.get(index).copied().unwrap_or(b"1");
        integer(text).ok_or_else(|| RequestError::invalid(format!("invalid {field}")))
    };
    let burst = read(2, "max_burst")?;
    let count = read(3, "count_per_period")?;
    let period_s = read(4, "period")?;
    let quantity = read(5, "quantity")?;
    if quantity < 0 {
        return Err(RequestError::invalid(format!("negative quantity: {quantity}")));
    }
    if burst <= 0 || count <= 0 || period_s <= 0 {
        return Err(RequestError::invalid("invalid rate limit parameters"));
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
