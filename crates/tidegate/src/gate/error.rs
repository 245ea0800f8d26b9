//! Questions that make no sense.

use std::fmt;
use std::time::Duration;

use crate::policy::SelectError;
use crate::text::excerpt;
use crate::{CheckError, Failure, StoreError};

/// A question that makes no sense. A denial is not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GateError {
    /// There is no policy of this name.
    UnknownPolicy {
        /// The name asked for.
        name: String,
    },
    /// The policies cannot be held against the request.
    Select(SelectError),
    /// A plain value that several keys in use hold.
    AmbiguousKey {
        /// The keys.
        forms: Vec<String>,
    },
    /// A key was named by a masked form that stands for none this process remembers.
    UnknownMask {
        /// The form.
        form: String,
    },
    /// A policy with a `concurrency` limit was asked without taking a permit.
    NeedsPermit {
        /// Its name; `None` for a limit of the caller's own.
        policy: Option<String>,
    },
    /// A permit was asked for, and there is no `concurrency` limit to hold.
    NoConcurrencyLimit {
        /// The policy asked; `None` if several or none.
        policy: Option<String>,
    },
    /// A permit was to be held for longer than a limit's lease, or than any can last.
    LeaseTooLong {
        /// The longest it can be held.
        max_lease: Duration,
    },
    /// The limiter refused the checks.
    Check(CheckError),
    /// The answer has to be awaited: the store is shared, or the question has a `max_wait`.
    MustAwait,
    /// The shared store failed, and it was asked for something no policy can stand in for.
    Store(Failure),
}

impl GateError {
    /// For a name that is no policy's: not all of it if it is long, and nothing that
    /// a terminal would obey.
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
                "this server knows no key that is masked as `{form}`: it knows those of its top keys and \
                 latest denials. Ask the server whose log shows it, or give the key itself; in a URL, write `#` as `%23`"
            ),
            GateError::NeedsPermit { policy: Some(policy) } => {
                write!(
                    f,
                    "policy `{policy}` has a concurrency limit, which is held, not checked: take a permit"
                )
            }
            GateError::NeedsPermit { policy: None } => {
                f.write_str("a concurrency limit is held, not checked: take a permit")
            }
            GateError::NoConcurrencyLimit { policy: Some(policy) } => {
                write!(f, "policy `{policy}` has no concurrency limit to hold: check it instead")
            }
            GateError::NoConcurrencyLimit { policy: None } => {
                f.write_str("there is no concurrency limit to hold: check instead")
            }
            GateError::LeaseTooLong { max_lease } => {
                write!(
                    f,
                    "a permit lasts at most {} ms here: hold it for that, and renew",
                    max_lease.as_millis()
                )
            }
            GateError::Check(error) => error.fmt(f),
            GateError::MustAwait => f.write_str(
                "the answer must be awaited: the store is shared, or the question waits for its turn",
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
