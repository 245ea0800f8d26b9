//! Errors of the gate.

use std::fmt;
use std::time::Duration;

use crate::policy::SelectError;
use crate::text::excerpt;
use crate::{CheckError, Failure, StoreError};

/// Why a request could not be decided. A denial is not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GateError {
    /// The policy does not exist.
    UnknownPolicy {
        /// The name.
        name: String,
    },
    /// The policies could not be evaluated for the request.
    Select(SelectError),
    /// Several keys in use have this plain value.
    AmbiguousKey {
        /// The keys.
        forms: Vec<String>,
    },
    /// A masked key that does not match any key that this process remembers.
    UnknownMask {
        /// The masked key.
        form: String,
    },
    /// A policy with a `concurrency` limit was checked without acquiring a permit.
    NeedsPermit {
        /// The name of the policy; `None` for a limit that the caller provides.
        policy: Option<String>,
    },
    /// A permit was requested, but no `concurrency` limit applies.
    NoConcurrencyLimit {
        /// The policy; `None` if there are several, or if the caller provides the limits.
        policy: Option<String>,
    },
    /// The requested lease exceeds that of a limit, or the longest lease that any limit can have.
    LeaseTooLong {
        /// The longest lease that is allowed.
        max_lease: Duration,
    },
    /// The limiter rejected the checks.
    Check(CheckError),
    /// The future must be awaited: the store is shared, or the request has a `max_wait`.
    MustAwait,
    /// The shared store failed, and `on_store_failure` does not apply to the operation.
    Store(Failure),
}

impl GateError {
    /// An unknown policy. The name is truncated if it is long, and escaped, so that it is safe to
    /// print in a terminal.
    pub(crate) fn unknown_policy(name: &str) -> Self {
        GateError::UnknownPolicy { name: excerpt(name) }
    }
}

impl fmt::Display for GateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GateError::UnknownPolicy { name } => write!(f, "there is no policy `{name}`"),
            GateError::Select(error) => error.fmt(f),
            GateError::AmbiguousKey { forms } => {
                write!(f, "several keys hold this value: name one of `{}`", forms.join("`, `"))
            }
            GateError::UnknownMask { form } => write!(
                f,
                "no key with the masked form `{form}` is known here: a server knows those of its \
                 top keys and latest denials. Use the server whose log shows it, or the key \
                 itself; in a URL, write `#` as `%23`"
            ),
            GateError::NeedsPermit { policy: Some(policy) } => {
                write!(
                    f,
                    "policy `{policy}` has a concurrency limit, which needs a permit: acquire one"
                )
            }
            GateError::NeedsPermit { policy: None } => {
                f.write_str("a concurrency limit needs a permit: acquire one")
            }
            GateError::NoConcurrencyLimit { policy: Some(policy) } => {
                write!(f, "policy `{policy}` has no concurrency limit: check it instead")
            }
            GateError::NoConcurrencyLimit { policy: None } => {
                f.write_str("there is no concurrency limit: check instead")
            }
            GateError::LeaseTooLong { max_lease } => {
                write!(
                    f,
                    "a lease is at most {} ms here: use that, and renew the permit",
                    max_lease.as_millis()
                )
            }
            GateError::Check(error) => error.fmt(f),
            GateError::MustAwait => f.write_str(
                "the call must be awaited: the store is shared, or the request has a `max_wait`",
            ),
            GateError::Store(failure) => failure.fmt(f),
        }
    }
}

impl std::error::Error for GateError {}

impl From<SelectError> for GateError {
    fn from(error: SelectError) -> Self {
        match error {
            SelectError::UnknownPolicy { name } => GateError::UnknownPolicy { name },
            error => GateError::Select(error),
        }
    }
}

impl From<CheckError> for GateError {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::NeedsPermit => GateError::NeedsPermit { policy: None },
            error => GateError::Check(error),
        }
    }
}

impl From<StoreError> for GateError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Check(error) => error.into(),
            StoreError::Failed(failure) => GateError::Store(failure),
        }
    }
}
