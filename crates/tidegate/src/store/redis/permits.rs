//! Permits that are held: given back, or renewed, by `permit.lua`.

use redis::Value;
use tidegate_core::{Limit, PermitId, Timestamp};

use super::key_names::KeyNames;
use super::script::{Call, Script, time_arg, unexpected_reply};
use crate::store::{PermitAct, StoreError};

/// The call that gives a permit back or renews it.
pub fn call(
    key_names: &KeyNames,
    key: &[u8],
    limit: &Limit,
    act: PermitAct,
    now: Option<Timestamp>,
) -> Call {
    // It may be held under a limit that is only watched.
    let keys = vec![key_names.state(key, limit), key_names.observed(key, limit)];
    match act {
        PermitAct::Release(permit) => release(keys, permit, now),
        PermitAct::Renew(permit) => {
            call_with(keys, permit, limit.window_us().to_string().into_bytes(), now)
        }
    }
}

/// The call that releases a permit from the first of these states that holds it.
pub(super) fn release(keys: Vec<Vec<u8>>, permit: PermitId, now: Option<Timestamp>) -> Call {
    call_with(keys, permit, Vec::new(), now)
}

fn call_with(
    keys: Vec<Vec<u8>>,
    PermitId(permit): PermitId,
    lease: Vec<u8>,
    now: Option<Timestamp>,
) -> Call {
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
        _ => Err(unexpected_reply(reply).into()),
    }
}
