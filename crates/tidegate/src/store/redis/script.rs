//! The scripts that run inside Redis, and a call of one.
//!
//! A decision reads, compares and writes: only a script does that in one round
//! trip without anybody in between. The sources are under `lua/`. What several
//! scripts share is a file of its own, put in front of those that need it.

use std::sync::OnceLock;

use redis::{Cmd, Value};
use tidegate_core::{Limit, PermitId, Timestamp};

use super::key_names::KeyNames;
use crate::Failure;
use crate::store::{PermitOperation, StoreError};

/// A job that is done inside Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Script {
    /// Asks of `sliding-counter`s under one limit, each on its own: the hot path.
    Counter,
    /// Any request, all or nothing.
    Request,
    /// Gives a permit back, or renews it.
    Permit,
    /// Whether the user may do what the others do.
    Rights,
}

impl Script {
    /// All there are.
    pub const ALL: [Script; 4] = [Script::Counter, Script::Request, Script::Permit, Script::Rights];

    /// Its Lua.
    pub const fn source(self) -> &'static str {
        match self {
            Script::Counter => include_str!("lua/counter.lua"),
            // States of more than a few numbers: their functions are made when they are needed.
            Script::Request => concat!(
                include_str!("lua/common.lua"),
                include_str!("lua/sliding_counter.lua"),
                include_str!("lua/fixed_window.lua"),
                include_str!("lua/token_bucket.lua"),
                include_str!("lua/log.lua"),
                "local function open_large(algorithm, raw, want)\n",
                include_str!("lua/entries.lua"),
                include_str!("lua/sliding_log.lua"),
                include_str!("lua/sliding_window.lua"),
                include_str!("lua/permits.lua"),
                include_str!("lua/concurrency.lua"),
                include_str!("lua/large.lua"),
                "end\n",
                include_str!("lua/request.lua"),
            ),
            Script::Permit => concat!(
                include_str!("lua/common.lua"),
                include_str!("lua/permits.lua"),
                include_str!("lua/permit.lua"),
            ),
            Script::Rights => include_str!("lua/rights.lua"),
        }
    }

    /// What `EVALSHA` knows it by.
    pub fn sha(self) -> &'static str {
        static SHAS: [OnceLock<String>; Script::ALL.len()] =
            [const { OnceLock::new() }; Script::ALL.len()];
        let digest = || redis::Script::new(self.source()).get_hash().to_owned();
        SHAS[self as usize].get_or_init(digest)
    }
}

/// A script with its keys and arguments. All keys are in one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which.
    pub script: Script,
    /// All keys it touches.
    pub keys: Vec<Vec<u8>>,
    /// What else it is told.
    pub args: Vec<Vec<u8>>,
}

impl Call {
    /// As a command.
    pub fn cmd(&self) -> Cmd {
        let mut cmd = Cmd::with_capacity(3 + self.keys.len() + self.args.len(), self.bytes());
        cmd.arg("EVALSHA").arg(self.script.sha()).arg(self.keys.len());
        for part in self.keys.iter().chain(&self.args) {
            cmd.arg(part.as_slice());
        }
        cmd
    }

    fn bytes(&self) -> usize {
        const COMMAND_BYTES: usize = 64;
        COMMAND_BYTES + self.keys.iter().chain(&self.args).map(Vec::len).sum::<usize>()
    }
}

/// What to say of a reply that is none of ours.
pub(super) fn unexpected_reply(reply: &Value) -> Failure {
    Failure::Refused(match reply {
        Value::ServerError(error) => error.to_string().into(),
        _ => "a script's reply has another form: is something rewriting replies on the way?".into(),
    })
}

/// The time a script is told: none is the server's own.
pub(super) fn time_arg(now: Option<Timestamp>) -> Vec<u8> {
    now.map_or(Vec::new(), |now| now.as_micros().to_string().into_bytes())
}

/// The call that gives a permit back or renews it.
pub fn permit_call(
    key_names: &KeyNames,
    key: &[u8],
    limit: &Limit,
    operation: PermitOperation,
    now: Option<Timestamp>,
) -> Call {
    // It may be held under a limit that is only watched.
    let keys = vec![key_names.state(key, limit), key_names.observed(key, limit)];
    match operation {
        PermitOperation::Release(permit) => release_call(keys, permit, now),
        PermitOperation::Renew(permit) => {
            permit_call_with(keys, permit, limit.window_us().to_string().into_bytes(), now)
        }
    }
}

/// The call that releases a permit from the first of these states that holds it.
pub(super) fn release_call(keys: Vec<Vec<u8>>, permit: PermitId, now: Option<Timestamp>) -> Call {
    permit_call_with(keys, permit, Vec::new(), now)
}

fn permit_call_with(
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
