//! The commands of tidegate: `TG.CHECK`, `TG.LIMIT`, `TG.PEEK` and `TG.RESET`.

use tidegate::Cost;

use super::codec::{Args, whole_number};
use super::excerpt;
use super::limit_cache::LimitCache;
use super::query::{BorrowedQuery, QueryKind};
use crate::error::RequestError;
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
