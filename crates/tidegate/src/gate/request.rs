//! Requests to the gate, and why they could not be decided.

use std::fmt;
use std::time::Duration;

use tidegate_core::{Cost, Limit};

use super::code_policy::{CodeKey, CodePolicy};
#[cfg(doc)]
use crate::Limiter;
use crate::attributes::Attributes;
use crate::policy::{SelectError, write_unknown_policy};
use crate::{CheckError, Failure, Overflow, StoreError};

/// A request to the gate: who is counted, and at what cost.
#[derive(Clone, Copy, Debug)]
pub struct GateRequest<'a> {
    /// The attributes or the key that the request is about.
    pub subject: Subject<'a>,
    /// The cost; `None` for the cost of each policy.
    pub cost: Option<Cost>,
    /// Charges the cost of each policy without checking the limits. It is ignored if `cost` is set,
    /// because a [`Cost`] includes whether it is forced.
    pub force: bool,
    /// An idempotency id: a repeated request with the same id is charged once. A request that
    /// charges nothing neither uses up the id nor is affected by it.
    pub id: Option<&'a [u8]>,
    /// The overflow of policies that do not set one.
    pub overflow: Overflow,
    /// Whether the request is a quota: of several, one with room is enough. Limits that the caller
    /// provides are that quota. A request to which no enforced limit applies has room, unless a
    /// policy without limits matches it. Policies are quotas only if they are defined as such.
    pub is_quota: bool,
    /// The caller's name for the request, for the log.
    pub request_id: Option<&'a str>,
    /// Waits up to this long until the request passes, or denies it immediately if that takes
    /// longer; see [`Limiter::wait`]. A waiting request ignores its idempotency id, and its denial
    /// charges nothing, even with `overflow: consume`.
    ///
    /// Over a shared store, or if several quotas apply, the wait is not known in advance. Requests
    /// with the same keys and limits then wait in order on each node, and only the first of them
    /// tries to pass. A request whose own wait exceeds `max_wait` is denied immediately. A request
    /// that has not become the first after `max_wait` is denied then.
    pub max_wait: Option<Duration>,
}

impl<'a> GateRequest<'a> {
    /// Creates a request with the cost of each policy.
    pub fn new(subject: Subject<'a>) -> Self {
        GateRequest {
            subject,
            cost: None,
            force: false,
            id: None,
            overflow: Overflow::Refuse,
            is_quota: false,
            request_id: None,
            max_wait: None,
        }
    }

    /// The cost under a policy whose cost is `units`.
    pub(super) fn cost(&self, units: u64) -> Cost {
        match self.cost {
            Some(cost) => cost,
            None if self.force => Cost::Force(units),
            None => Cost::Ask(units),
        }
    }
}

/// The attributes or the key that a request is about, and the policies or limits to apply.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Subject<'a> {
    /// The attributes of a request: every policy that matches them applies.
    Request(&'a Attributes<'a>),
    /// The attributes of a request under a single policy, whether or not that policy matches.
    Policy {
        /// The name of the policy.
        policy: &'a str,
        /// The attributes from which the key is rendered.
        attributes: &'a Attributes<'a>,
    },
    /// A key under a loaded policy.
    Key {
        /// The name of the policy.
        policy: &'a str,
        /// The key that is counted.
        key: &'a [u8],
        /// The attributes by which an override is chosen.
        attributes: Option<&'a Attributes<'a>>,
    },
    /// A key under limits that the caller provides.
    Limits {
        /// The key that is counted. It is separate from the keys of all policies.
        key: &'a [u8],
        /// The limits.
        limits: &'a [Limit],
    },
    /// A key under a policy defined in code.
    CodePolicy {
        /// The policy.
        policy: &'a CodePolicy,
        /// The key that is counted.
        key: CodeKey<'a>,
        /// The path of the request, for the events of denials.
        path: Option<&'a str>,
    },
}

impl<'a> Subject<'a> {
    /// The path of the request.
    pub(super) fn route(&self) -> Option<&'a str> {
        match *self {
            Subject::Request(attributes)
            | Subject::Policy { attributes, .. }
            | Subject::Key { attributes: Some(attributes), .. } => attributes.path,
            Subject::CodePolicy { path, .. } => path,
            Subject::Key { attributes: None, .. } | Subject::Limits { .. } => None,
        }
    }
}

/// Why a request could not be decided. A denial is not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GateError {
    /// The policy does not exist.
    UnknownPolicy {
        /// The name.
        name: String,
        /// The name that was probably meant.
        near: Option<String>,
    },
    /// The policies could not be evaluated for the request.
    Select(SelectError),
    /// Several keys in use have this plain value.
    AmbiguousKey {
        /// The keys.
        forms: Vec<String>,
    },
    /// A masked key that does not match any of the top keys and latest denials.
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

impl fmt::Display for GateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GateError::UnknownPolicy { name, near } => {
                write_unknown_policy(name, near.as_deref(), f)
            }
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
            SelectError::UnknownPolicy { name, near } => GateError::UnknownPolicy { name, near },
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
