//! Permits that are held: given back, or renewed, by `permit.lua`.

use redis::Value;
use tidegate_core::{Limit, Timestamp};

use super::names::Names;
use super::script::{Call, Script, not_ours};
use crate::store::{PermitAct, StoreError};

/// The call that gives a permit back or renews it.
pub fn call(
    names: &Names,
    key: &[u8],
    limit: &Limit,
    act: PermitAct,
    now: Option<Timestamp>,
) -> Call {
    let _ = (act, now);
    // It may be held under a limit that is only watched.
    let keys = vec![names.state(key, limit), names.observed(key, limit)];
    Call { script: Script::Permit, keys, args: Vec::new() }
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
