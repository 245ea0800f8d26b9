//! The RESP front: decisions for Redis clients, over RESP2 or RESP3.
//!
//! ```text
//!   bytes -> codec.rs -> session.rs -> query.rs -> the gate -> query.rs (replies), codec.rs -> bytes
//!                          |  arguments.rs: TG.CHECK, TG.PEEK, TG.RESET, TG.LIMIT, CL.THROTTLE,
//!                          |    THROTTLE, and a cache of the limits in them
//!                          |  transaction.rs: MULTI, EXEC, DISCARD
//!                          \- introspection.rs: HELLO, INFO, CONFIG, COMMAND; commands.rs: the table
//! ```
//!
//! `connection.rs` reads all commands that have arrived, answers them (`pipeline.rs`) and writes
//! once. Connections share buffers, so that idle ones need none.

mod arguments;
mod codec;
mod commands;
mod connection;
mod introspection;
mod pipeline;
mod query;
mod session;
#[cfg(test)]
mod tests;
mod transaction;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tidegate::unstable::gate::{Gate, GateError};

use crate::authentication::Access;
use crate::error::RequestError;
use crate::server_state::ServerState;

/// The RESP front.
#[derive(Debug)]
pub struct RespFront {
    gate: Arc<Gate>,
    server_state: Arc<ServerState>,
    access: Access,
    /// The id of the next connection.
    next_id: AtomicU64,
}

impl RespFront {
    /// Creates a front over this gate. Only callers with `access` are accepted.
    pub fn new(gate: Arc<Gate>, server_state: Arc<ServerState>, access: Access) -> Self {
        RespFront { gate, server_state, access, next_id: AtomicU64::new(1) }
    }

    /// Whether a connection must authenticate first.
    fn requires_secret(&self) -> bool {
        matches!(self.access, Access::Secrets(_))
    }

    /// Logs that a connection has sent no secret, or a wrong one.
    fn log_rejection(&self) {
        self.access.log_rejection();
    }

    /// Whether this is one of the secrets, or none is required.
    fn accepts_secret(&self, secret: &[u8]) -> bool {
        self.access.accepts_secret(secret)
    }
}

/// The error of a command with the wrong number of arguments. For commands that Redis does not
/// have, it has their usage.
pub fn wrong_arity(name: &str) -> RequestError {
    let usage = match name {
        "tg.check" => ": use TG.CHECK policy key [COST n] [ID id] [FORCE]",
        "tg.limit" => ": use TG.LIMIT limits key [COST n] [ID id] [FORCE]",
        "tg.peek" => ": use TG.PEEK policy key",
        "tg.reset" => ": use TG.RESET policy key",
        "throttle" => ": use THROTTLE key max_burst count_per_period period [quantity]",
        _ => "",
    };
    RequestError::invalid(format!("wrong number of arguments for '{name}' command{usage}"))
}

/// Converts an error of the gate, with fields named after the arguments of commands.
pub fn gate_error(error: GateError) -> RequestError {
    let error = RequestError::from(error);
    let field = match error.field.as_deref() {
        Some("limits") => Some("limit".into()),
        Some("id") => Some("ID".into()),
        // Commands name a policy or a limit, never attributes.
        Some("attributes") => None,
        _ => error.field,
    };
    RequestError { field, ..error }
}

/// Quotes the beginning of what a client sent, for an error. [`Replies::error`] replaces control
/// characters.
///
/// [`Replies::error`]: codec::Replies::error
pub fn excerpt(bytes: &[u8]) -> String {
    const MAX_SHOWN_BYTES: usize = 128;
    String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_SHOWN_BYTES)]).into_owned()
}
