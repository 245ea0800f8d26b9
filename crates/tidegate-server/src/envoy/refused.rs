//! Questions that get no decision, and why.

use std::borrow::Cow;
use std::fmt;

use tidegate::gate::GateError;
use tidegate::{CheckError, MAX_CHECKS};

/// A status of gRPC: those that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The client went away.
    Cancelled = 1,
    /// The question makes no sense.
    InvalidArgument = 3,
    /// It took too long to arrive.
    DeadlineExceeded = 4,
    /// There is no such thing.
    NotFound = 5,
    /// A browser asks for a site that is not of this machine.
    PermissionDenied = 7,
    /// The message is too large.
    ResourceExhausted = 8,
    /// The configuration does not allow for the question.
    FailedPrecondition = 9,
    /// There is no such method, or it was asked in a way that is not supported.
    Unimplemented = 12,
    /// A fault of ours.
    Internal = 13,
    /// The store failed, and a policy denies then; or the server is about to end.
    Unavailable = 14,
    /// None of the secrets was shown.
    Unauthenticated = 16,
}

/// Why there is no decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its kind.
    pub code: Code,
    /// What is wrong, and what would be right.
    pub message: Cow<'static, str>,
}

impl Refused {
    /// A refusal of this kind.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Refused { code, message: message.into() }
    }

    /// A question without sense.
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Refused::new(Code::InvalidArgument, message)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refused {}

impl From<GateError> for Refused {
    fn from(error: GateError) -> Self {
        match error {
            GateError::Check(CheckError::TooManyChecks(count)) => Refused::invalid(format!(
                "descriptors: {count} limits hold for them, and at most {MAX_CHECKS} can be decided at \
                 once: send fewer descriptors, or narrow the `match` of some policies"
            )),
            GateError::NeedsPermit { .. } => {
                Refused::new(Code::FailedPrecondition, format!("{error} with POST /v1/permits"))
            }
            GateError::Store(_) => Refused::new(Code::Unavailable, error.to_string()),
            GateError::Shared => Refused::new(Code::Internal, error.to_string()),
            _ => Refused::invalid(format!("descriptors: {error}")),
        }
    }
}
