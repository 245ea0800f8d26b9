//! What can be asked.

use std::time::Duration;

use tidegate_core::{Cost, Limit};

use super::code_policy::{CodeKey, CodePolicy};
#[cfg(doc)]
use crate::Limiter;
use crate::Overflow;
use crate::attributes::Attributes;

/// One question: may this go ahead?
#[derive(Clone, Copy, Debug)]
pub struct GateRequest<'a> {
    /// Who or what asks.
    pub subject: Subject<'a>,
    /// Units asked for; `None`: what each policy says.
    pub cost: Option<Cost>,
    /// Charge what the policies say without asking. A `cost` that is given says
    /// itself in which spirit it is meant.
    pub force: bool,
    /// An idempotency id: the same question under the same id is charged once. A
    /// question that charges nothing neither uses it up nor minds that it was used.
    pub id: Option<&'a [u8]>,
    /// The default for policies that set no overflow.
    pub overflow: Overflow,
    /// How the caller names the request, for the log.
    pub request_id: Option<&'a str>,
    /// Waits up to this long until the request passes, or denies it immediately if that takes longer;
    /// see [`Limiter::wait`]. A waiting request ignores its idempotency id, and its denial charges
    /// nothing, also under `overflow: allow_overflow`.
    ///
    /// Over a shared store the wait is not known beforehand, nor is it where several quotas apply.
    /// Requests with the same keys and limits then wait in order on each node, and only the first
    /// asks the store. A request whose own wait exceeds `max_wait` is denied immediately, and one
    /// that is not first by then is denied at that time.
    pub max_wait: Option<Duration>,
}

impl<'a> GateRequest<'a> {
    /// A question that costs what the policies say.
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

    /// The cost where a policy says `units`.
    pub(super) fn cost(&self, units: u64) -> Cost {
        match self.cost {
            Some(cost) => cost,
            None if self.force => Cost::Force(units),
            None => Cost::Ask(units),
        }
    }
}

/// Who or what asks.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Subject<'a> {
    /// A request: every policy that matches it applies.
    Request(&'a Attributes<'a>),
    /// A request, under one policy only, whether or not that matches.
    Policy {
        /// Its name.
        policy: &'a str,
        /// What its key is made of.
        attributes: &'a Attributes<'a>,
    },
    /// A key under a policy.
    Key {
        /// Its name.
        policy: &'a str,
        /// Who is counted.
        key: &'a [u8],
        /// What overrides are chosen by.
        attributes: Option<&'a Attributes<'a>>,
    },
    /// A key under limits of the caller's own.
    Limits {
        /// Who is counted, apart from all policies.
        key: &'a [u8],
        /// The limits.
        limits: &'a [Limit],
    },
    /// A key under a policy of the program's own.
    CodePolicy {
        /// The policy.
        policy: &'a CodePolicy,
        /// Who is counted.
        key: CodeKey<'a>,
        /// The path asked for, by which denials are told.
        path: Option<&'a str>,
    },
}

impl<'a> Subject<'a> {
    /// The path asked for.
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
