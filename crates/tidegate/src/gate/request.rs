//! Requests to the gate.

use std::time::Duration;

use tidegate_core::{Cost, Limit};

use super::code_policy::{CodeKey, CodePolicy};
#[cfg(doc)]
use crate::Limiter;
use crate::Overflow;
use crate::policy::attributes::Attributes;

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
