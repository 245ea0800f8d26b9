//! Errors of commands.

use tidegate::unstable::gate::GateError;

use crate::error::RequestError;

/// The error of a command with too many or too few arguments.
pub fn wrong_arity(name: &str) -> RequestError {
    RequestError::invalid(format!("wrong number of arguments for '{name}' command"))
}

/// The error of the gate, with fields named as the arguments of commands are.
pub fn rejected(error: GateError) -> RequestError {
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

/// The beginning of what a client sent, for an error. Control bytes are replaced by
/// [`Replies::error`](super::encode::Replies::error).
pub fn shown(bytes: &[u8]) -> String {
    const MAX_SHOWN_BYTES: usize = 128;
    String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_SHOWN_BYTES)]).into_owned()
}
