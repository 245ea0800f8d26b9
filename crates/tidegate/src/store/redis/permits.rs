//! Permits that are held: given back, or renewed, by `permit.lua`.

use redis::Value;
use tidegate_core::{Limit, PermitId, Timestamp};

use super::names::Names;
use super::script::{Call, Script, not_ours, time_arg};
use crate::store::{PermitAct, StoreError};

/// The call that gives a permit back or renews it.
pub fn call(
    names: &Names,
    key: &[u8],
    limit: &Limit,
    act: PermitAct,
    now: Option<Timestamp>,
) -> Call {
    // It may be held under a limit that is only watched.
    at(vec![names.state(key, limit), names.observed(key, limit)], limit, act, now)
}

/// The same for states whose names are known.
pub(super) fn at(
    keys: Vec<Vec<u8>>,
    limit: &Limit,
    act: PermitAct,
    now: Option<Timestamp>,
) -> Call {
    let (PermitId(permit), lease) = match act {
        PermitAct::Release(permit) => (permit, Vec::new()),
        PermitAct::Renew(permit) => (permit, limit.window_us().to_string().into_bytes()),
    };
    let args = vec![time_arg(now), permit.to_string().into_bytes(), lease];
    Call { script: Script::Permit, keys, args }
}

/// Whether the permit was held.
///
/// # Errors
/// When the reply is an error or not one of ours.
pub fn was_held(reply: &Value) -> Result<bool, StoreError> {
    match reply {
        Value::Int(held @ (0 | 1)) => Ok(*held == 1),
        _ => Err(not_ours(reply).into()),
    }
}
