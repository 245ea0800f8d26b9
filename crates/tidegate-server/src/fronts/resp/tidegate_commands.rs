//! tidegate's own commands.

use tidegate::Cost;
use tidegate::unstable::bounds;
use tidegate::unstable::policy::MAX_KEY_BYTES;

use super::decode::{Args, whole_number};
use super::limit_cache::Limits;
use super::query::{Ask, What};
use super::shown;
use crate::error::RequestError;

/// The longest idempotency id: two UUIDs with room to spare.
const MAX_ID_BYTES: usize = 256;

/// The largest cost either way: no limit is larger.
#[expect(clippy::cast_possible_wrap, reason = "10^12 is far below 2^63")]
const MAX_COST: i64 = bounds::MAX_COUNT as i64;

/// `TG.CHECK policy key [COST n] [ID id] [FORCE]`.
///
/// # Errors
/// When an argument makes no sense.
#[inline]
pub fn check<'a>(args: &Args<'a>) -> Result<Ask<'a>, RequestError> {
    let ask = named(What::Check, args[1], args[2])?;
    if args.len() == 3 { Ok(ask) } else { with_options(ask, "TG.CHECK", &args[3..]) }
}

/// `TG.LIMIT limits key [COST n] [ID id] [FORCE]`.
///
/// # Errors
/// When an argument makes no sense.
pub fn limit<'a>(args: &Args<'a>, limits: &mut Limits) -> Result<Ask<'a>, RequestError> {
    let limits = Some(limits.text(args[1])?);
    let ask = Ask { limits, ..Ask::new(What::Check, checked_key(args[2])?) };
    with_options(ask, "TG.LIMIT", &args[3..])
}

/// `TG.PEEK policy key` and `TG.RESET policy key`.
///
/// # Errors
/// When an argument makes no sense.
pub fn named<'a>(what: What, policy: &'a [u8], key: &'a [u8]) -> Result<Ask<'a>, RequestError> {
    let policy = std::str::from_utf8(policy)
        .map_err(|_| RequestError::field("policy", "it is not text, and names of policies are"))?;
    Ok(Ask { policy: Some(policy), ..Ask::new(what, checked_key(key)?) })
}

/// A key that names somebody.
///
/// # Errors
/// When it is empty or too long.
#[inline]
pub fn checked_key(key: &[u8]) -> Result<&[u8], RequestError> {
    match key.len() {
        0 => Err(RequestError::field("key", "it is empty: name who is counted")),
        1..=MAX_KEY_BYTES => Ok(key),
        _ => {
            let detail = format!("it is longer than {MAX_KEY_BYTES} bytes: send a hash of it");
            Err(RequestError::field("key", detail))
        }
    }
}

fn with_options<'a>(
    mut ask: Ask<'a>,
    command: &str,
    mut options: &[&'a [u8]],
) -> Result<Ask<'a>, RequestError> {
    let mut cost = None;
    while let [option, rest @ ..] = options {
        let twice =
            || RequestError::invalid(format!("syntax error: {} is there twice", shown(option)));
        options = if option.eq_ignore_ascii_case(b"COST") {
            let [number, rest @ ..] = rest else { return Err(without_value(option)) };
            if cost.replace(checked_cost(number)?).is_some() {
                return Err(twice());
            }
            rest
        } else if option.eq_ignore_ascii_case(b"ID") {
            let [id, rest @ ..] = rest else { return Err(without_value(option)) };
            if ask.id.replace(checked_id(id)?).is_some() {
                return Err(twice());
            }
            rest
        } else if option.eq_ignore_ascii_case(b"FORCE") {
            ask.force = true;
            rest
        } else {
            return Err(RequestError::invalid(format!(
                "syntax error: `{}` is no option of {command}: use COST n, ID id or FORCE",
                shown(option)
            )));
        };
    }
    ask.cost = match cost {
        Some(cost) if ask.force && cost < 0 => {
            let detail = "a negative COST gives back, FORCE charges: leave out one of them";
            return Err(RequestError::field("FORCE", detail));
        }
        Some(cost) if ask.force => Some(Cost::Force(cost.unsigned_abs())),
        cost => cost.map(Cost::from_signed),
    };
    Ok(ask)
}

fn without_value(option: &[u8]) -> RequestError {
    RequestError::invalid(format!("syntax error: {} has no value behind it", shown(option)))
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

fn checked_id(id: &[u8]) -> Result<&[u8], RequestError> {
    match id.len() {
        0 => Err(RequestError::field("ID", "it is empty: leave it out, or send one per request")),
        1..=MAX_ID_BYTES => Ok(id),
        _ => {
            let detail = format!("it is longer than {MAX_ID_BYTES} bytes: shorten it");
            Err(RequestError::field("ID", detail))
        }
    }
}
