//! The scripts that run inside Redis: their sources, arguments and replies.
//!
//! A decision reads, compares and writes. Only a script does that atomically in one round trip. The
//! sources are in `lua/`. Code that several scripts share is in separate files, which are put in
//! front of the scripts that need them.
//!
//! The arguments of `request.lua` are binary. Numbers are 8 bytes, little-endian. Lua reads them
//! into doubles, which are exact up to 2^53. Larger costs are cut to that, which changes nothing,
//! because counts are capped below it. `entry.rs` encodes the calls of this script and decodes the
//! replies.

use std::sync::OnceLock;

use redis::{Cmd, Value};
use tidegate_core::{Algorithm, Cost, Limit, PermitId, Timestamp, bounds};

use super::key_names::KeyNames;
use super::stored_state::radix;
use crate::Failure;
use crate::store::{PermitOperation, StoreError};

/// A script that runs inside Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Script {
    /// Decides requests: charges all states of each or none.
    Request,
    /// Releases or renews a permit.
    Permit,
    /// Grants units to nodes, takes units back, and resets states.
    Lease,
    /// Records that a node is alive, and lists all nodes.
    Heartbeat,
    /// Checks that the user may run the commands of the other scripts.
    Rights,
}

/// The source of a script that decides on states of any algorithm. The numbers are those of
/// [`algorithm_number`].
macro_rules! with_states {
    ($script:literal) => {
        concat!(
            include_str!("lua/common.lua"),
            include_str!("lua/algorithms.lua"),
            "local function create_state(algorithm, ...)\nif algorithm == 2 then\n",
            include_str!("lua/sliding_counter.lua"),
            "return sliding_counter(...)\nelseif algorithm == 1 then\n",
            include_str!("lua/sliding_window.lua"),
            "return sliding_window(...)\nelseif algorithm == 4 then\n",
            include_str!("lua/token_bucket.lua"),
            "return token_bucket(...)\nelseif algorithm == 0 then\n",
            include_str!("lua/sliding_log.lua"),
            "return sliding_log(...)\nelseif algorithm == 3 then\n",
            include_str!("lua/fixed_window.lua"),
            "return fixed_window(...)\nelseif algorithm == 6 then\n",
            include_str!("lua/leased.lua"),
            "return leased(...)\nend\n",
            include_str!("lua/permits.lua"),
            include_str!("lua/concurrency.lua"),
            "return concurrency(...)\nend\n",
            include_str!($script),
        )
    };
}

impl Script {
    /// All scripts.
    pub const ALL: [Script; 5] =
        [Script::Request, Script::Permit, Script::Lease, Script::Heartbeat, Script::Rights];

    /// Returns the Lua source.
    pub const fn source(self) -> &'static str {
        match self {
            Script::Request => with_states!("lua/request.lua"),
            Script::Lease => with_states!("lua/lease.lua"),
            Script::Permit => concat!(
                include_str!("lua/common.lua"),
                include_str!("lua/permits.lua"),
                include_str!("lua/permit.lua"),
            ),
            Script::Heartbeat => {
                concat!(include_str!("lua/common.lua"), include_str!("lua/heartbeat.lua"))
            }
            Script::Rights => include_str!("lua/rights.lua"),
        }
    }

    /// Returns the SHA-1 digest by which `EVALSHA` identifies the script.
    pub fn sha(self) -> &'static str {
        static SHAS: [OnceLock<String>; Script::ALL.len()] =
            [const { OnceLock::new() }; Script::ALL.len()];
        let digest = || redis::Script::new(self.source()).get_hash().to_owned();
        SHAS[self as usize].get_or_init(digest)
    }
}

/// The permissions that the user of the store needs, as the arguments of `ACL SETUSER tidegate on
/// >password ...`.
///
/// The key pattern must match `key_prefix`. Only a cluster needs `asking` and `cluster|slots`. A
/// database other than 0 also needs `+select`. The user of the Sentinels needs only
/// `+sentinel|get-master-addr-by-name`.
pub const ACL_RULES: &str = "~tg:* -@all +evalsha +script|load +info +asking \
                             +cluster|slots +get +mget +set +setrange +incrby +del +time";

/// A call of a script. All its keys are in one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptCall {
    /// The script.
    pub script: Script,
    /// All keys that the script touches.
    pub keys: Vec<Vec<u8>>,
    /// The other arguments.
    pub args: Vec<Vec<u8>>,
}

impl ScriptCall {
    /// Returns the call as an `EVALSHA` command.
    pub fn cmd(&self) -> Cmd {
        let mut cmd = Cmd::with_capacity(3 + self.keys.len() + self.args.len(), self.bytes());
        cmd.arg("EVALSHA").arg(self.script.sha()).arg(self.keys.len());
        for argument in self.keys.iter().chain(&self.args) {
            cmd.arg(argument.as_slice());
        }
        cmd
    }

    fn bytes(&self) -> usize {
        const COMMAND_BYTES: usize = 64;
        COMMAND_BYTES + self.keys.iter().chain(&self.args).map(Vec::len).sum::<usize>()
    }
}

/// The failure for a reply that is an error, or that no script sends.
pub(super) fn unexpected_reply(reply: &Value) -> Failure {
    Failure::Refused(match reply {
        Value::ServerError(error) => error.to_string().into(),
        _ => "unexpected reply of a script: does a proxy rewrite replies?".into(),
    })
}

/// The time argument of a script. It is empty for the server's time.
pub(super) fn time_arg(now: Option<Timestamp>) -> Vec<u8> {
    now.map_or(Vec::new(), |now| now.as_micros().to_string().into_bytes())
}

/// Returns the call that releases or renews a permit.
pub fn permit_call(
    key_names: &KeyNames,
    key: &[u8],
    limit: &Limit,
    operation: PermitOperation,
    now: Option<Timestamp>,
) -> ScriptCall {
    // The permit may be held in the separate state of an observed check.
    let keys = vec![key_names.state(key, limit), key_names.observed(key, limit)];
    match operation {
        PermitOperation::Release(permit) => release_call(keys, permit, now),
        PermitOperation::Renew(permit) => {
            permit_call_with(keys, permit, limit.window_us().to_string().into_bytes(), now)
        }
    }
}

/// Returns the call that releases a permit from the first of these states that holds it.
pub fn release_call(keys: Vec<Vec<u8>>, permit: PermitId, now: Option<Timestamp>) -> ScriptCall {
    permit_call_with(keys, permit, Vec::new(), now)
}

fn permit_call_with(
    keys: Vec<Vec<u8>>,
    PermitId(permit): PermitId,
    lease: Vec<u8>,
    now: Option<Timestamp>,
) -> ScriptCall {
    let args = vec![time_arg(now), permit.to_string().into_bytes(), lease];
    ScriptCall { script: Script::Permit, keys, args }
}

/// Returns whether the permit was held, from the reply to a [`permit_call`].
///
/// # Errors
/// If the reply is an error or has another form.
pub fn was_held(reply: &Value) -> Result<bool, StoreError> {
    match reply {
        Value::Int(held @ (0 | 1)) => Ok(*held == 1),
        _ => Err(unexpected_reply(reply).into()),
    }
}

/// Encodes a cost exactly. Unlike [`encode_cost`], it does not cut large costs.
pub(super) fn cost_text(cost: Cost) -> [u8; 9] {
    let (kind, units) = kind_and_units(cost);
    let mut text = [kind; 9];
    text[1..].copy_from_slice(&units.to_le_bytes());
    text
}

/// The number of the kind of a cost, and its units, which are exact in the doubles of Lua.
pub(super) fn encode_cost(cost: Cost) -> (u8, [u8; 8]) {
    let (kind, units) = kind_and_units(cost);
    (kind, units.min(bounds::MAX_PRODUCT).to_le_bytes())
}

/// Appends a limit as `request.lua` reads it.
pub(super) fn encode_limit(limit: &Limit, bytes: &mut Vec<u8>) {
    bytes.push(algorithm_number(limit));
    let numbers = [
        limit.window_us(),
        limit.count(),
        limit.capacity(),
        limit.count_cap(),
        limit.tick_us(),
        limit.window_ticks(),
        match limit.algorithm() {
            Algorithm::SlidingCounter => radix(limit),
            _ => 0,
        },
    ];
    bytes.extend(numbers.into_iter().flat_map(u64::to_le_bytes));
}

fn kind_and_units(cost: Cost) -> (u8, u64) {
    match cost {
        Cost::Ask(units) => (0, units),
        Cost::Force(units) => (1, units),
        Cost::Refund(units) => (2, units),
    }
}

/// The number of an algorithm in `request.lua`.
fn algorithm_number(limit: &Limit) -> u8 {
    match limit.algorithm() {
        Algorithm::SlidingLog => 0,
        Algorithm::SlidingWindow => 1,
        Algorithm::SlidingCounter => 2,
        Algorithm::FixedWindow => 3,
        Algorithm::TokenBucket => 4,
        Algorithm::Concurrency => 5,
    }
}
