//! Commands that get no decision, and why.

use std::fmt;

use tidegate::CheckError;
use tidegate::gate::GateError;

/// An error reply, its code first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(String);

impl Refusal {
    /// With Redis's general code.
    pub fn new(text: impl fmt::Display) -> Self {
        Refusal(format!("ERR {text}"))
    }

    /// With a code of its own, or none.
    pub fn coded(text: impl Into<String>) -> Self {
        Refusal(text.into())
    }

    /// One argument is to blame.
    pub fn field(field: &str, detail: impl fmt::Display) -> Self {
        Refusal::new(format_args!("{field}: {detail}"))
    }

    /// So many arguments are too many or too few.
    pub fn arity(name: &str) -> Self {
        Refusal::new(format_args!("wrong number of arguments for '{name}' command"))
    }

    /// The store failed, and nothing could be decided: the one error worth trying again.
    pub fn store_failed(detail: impl fmt::Display) -> Self {
        Refusal(format!("STOREDOWN {detail}"))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<GateError> for Refusal {
    fn from(error: GateError) -> Self {
        let detail = error.to_string();
        match error {
            GateError::UnknownPolicy { .. } => Refusal::field("policy", detail),
            GateError::UnknownMask { .. } | GateError::AmbiguousKey { .. } => {
                Refusal::field("key", detail)
            }
            GateError::NeedsPermit { policy } => {
                let field = if policy.is_some() { "policy" } else { "limit" };
                Refusal::field(field, format_args!("{detail} with POST /v1/permits"))
            }
            GateError::Check(CheckError::IdReused) => Refusal::field("ID", detail),
            GateError::Check(_) => Refusal::field("limit", detail),
            GateError::Store(_) => Refusal::store_failed(format_args!("{detail}: try again")),
            _ => Refusal::new(detail),
        }
    }
}

/// What a client sent, as it may be shown: not all of it if it is long. Control bytes are
/// left to [`Replies::error`](super::encode::Replies::error).
pub fn shown(bytes: &[u8]) -> String {
    const MAX_SHOWN_BYTES: usize = 128;
    String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_SHOWN_BYTES)]).into_owned()
}
