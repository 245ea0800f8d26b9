//! Calls of `lease.lua`: operations on states that have units out on nodes, or may have.
//!
//! The script replies with the states from before the operations. The node then applies the same
//! operations to them with the code of the core, which returns what was granted. `lua/lease.lua`
//! documents the format.

use redis::Value;
use tidegate_core::{GiveBack, Grant, LeaseRequest, LeasedState, Limit, Timestamp, bounds};

use super::script::{self, Script, ScriptCall, unexpected_reply};
use super::stored_state;
use crate::Failure;

/// An operation on the units of a state that are out, or may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseOperation {
    /// Grants units to a node.
    Grant(LeaseRequest),
    /// Takes back the units that a node does not keep.
    GiveBack(GiveBack),
    /// Forgets what was counted, whatever the value is. Units that are out stay held. It must be
    /// the only operation of its entry.
    Reset,
}

/// Operations on one state, in order.
#[derive(Clone, Debug)]
pub struct LeaseEntry {
    /// The name of the key in Redis.
    pub key: Vec<u8>,
    /// The limit.
    pub limit: Limit,
    /// The operations.
    pub operations: Vec<LeaseOperation>,
}

/// The result of the operations on one state.
#[derive(Clone, Debug)]
pub struct LeaseReply {
    /// The time of the store.
    pub now: Timestamp,
    /// Whether the state existed before.
    pub existed: bool,
    /// The state after the operations.
    pub state: LeasedState,
    /// The last grant, if there was one.
    pub grant: Option<Grant>,
}

/// Returns the call that applies operations to states, at `now` or, if it is `None`, at the
/// server's time. All keys must be different and in one slot.
pub fn lease_call(entries: &[LeaseEntry], now: Option<Timestamp>) -> ScriptCall {
    let encoded = entries.iter().map(LeaseEntry::encode);
    ScriptCall {
        script: Script::Lease,
        keys: entries.iter().map(|entry| entry.key.clone()).collect(),
        args: std::iter::once(script::time_arg(now)).chain(encoded).collect(),
    }
}

/// Decodes the reply to a [`lease_call`] with these entries: for each of them the result, or why
/// the operations were not applied.
///
/// # Errors
/// If the reply as a whole is an error or has another form.
pub fn decode_lease_reply(
    entries: &[LeaseEntry],
    reply: &Value,
) -> Result<Vec<Result<LeaseReply, Failure>>, Failure> {
    let Value::Array(values) = reply else { return Err(unexpected_reply(reply)) };
    let Some((Value::Int(now), values)) = values.split_first() else {
        return Err(unexpected_reply(&Value::Nil));
    };
    let now = u64::try_from(*now).map_err(|_| unexpected_reply(&Value::Nil))?;
    if values.len() != entries.len() {
        return Err(unexpected_reply(&Value::Nil));
    }
    let now = Timestamp::from_micros(now);
    Ok(entries.iter().zip(values).map(|(entry, value)| entry.decode(now, value)).collect())
}

impl LeaseEntry {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        script::encode_limit(&self.limit, &mut bytes);
        let mut push = |kind: u8, numbers: &[u64]| {
            bytes.push(kind);
            bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        };
        for operation in &self.operations {
            match operation {
                LeaseOperation::Grant(request) => {
                    // Larger numbers change nothing, and are not exact in the doubles of Lua.
                    let exact = |number: u64| number.min(bounds::MAX_COUNT);
                    let LeaseRequest { id, units, duration_us, divisor } = *request;
                    push(0, &[id.0, exact(units), exact(duration_us), exact(divisor.max(1))]);
                }
                LeaseOperation::GiveBack(back) => push(1, &[back.id.0, back.keep]),
                LeaseOperation::Reset => push(2, &[]),
            }
        }
        bytes
    }

    fn decode(&self, now: Timestamp, value: &Value) -> Result<LeaseReply, Failure> {
        let stored = match value {
            Value::BulkString(bytes) => Some(&bytes[..]),
            Value::Nil => None,
            // The key had no grants, and was deleted.
            Value::Int(deleted) => {
                let (existed, state) = (*deleted > 0, LeasedState::new(&self.limit));
                return Ok(LeaseReply { now, existed, state, grant: None });
            }
            other => return Err(unexpected_reply(other)),
        };
        let decoded = stored_state::decode_leased(&self.limit, stored);
        let mut state = decoded.ok_or_else(|| unexpected_reply(&Value::Nil))?;
        let mut granted = None;
        for operation in &self.operations {
            match operation {
                LeaseOperation::Grant(request) => {
                    granted = state.grant(&self.limit, request, now);
                }
                LeaseOperation::GiveBack(back) => {
                    state.give_back(&self.limit, back, now);
                }
                LeaseOperation::Reset => state.reset(&self.limit, now),
            }
        }
        Ok(LeaseReply { now, existed: stored.is_some(), state, grant: granted })
    }
}
