//! Errors of building a layer, of looking up a key, and of applying a rule to a request.

use std::fmt;

use super::rule::MAX_PLANS;
use crate::gate::GateError;
use crate::policy::{PoliciesError, PolicyError, TemplateError};
use crate::text::excerpt;
use crate::{Failure, OutOfMemory};

/// An error of [`LayerBuilder::build`](super::LayerBuilder::build). Its text explains how to
/// correct it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerError(pub(super) LayerFault);

impl fmt::Display for LayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for LayerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

/// A mistake in the settings of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LayerFault {
    /// A rule or one of its plans is not a valid policy.
    Policy { name: String, error: PolicyError },
    /// A rule or one of its plans is without limits.
    NoLimits { name: String },
    /// The key template of a rule is invalid.
    Template { rule: String, error: TemplateError },
    /// Two rules or plans have the same name, or a rule has the name of a policy of the gate.
    SameName { name: String },
    /// A rule has a `concurrency` limit, and a cost, an estimate or `settle_when`.
    CostWithConcurrency { rule: String },
    /// A rule has both a cost and an estimate.
    CostAndReserve { rule: String },
    /// A plan of a rule has an empty name.
    UnnamedPlan { rule: String },
    /// A rule has `on_unknown_plan` without plans.
    OnUnknownPlanWithoutPlans { rule: String },
    /// A rule has plans without `plan_of`.
    PlansWithoutPlanOf { rule: String },
    /// A rule has `plan_of` without plans.
    PlanOfWithoutPlans { rule: String },
    /// A rule has more than [`MAX_PLANS`] plans.
    TooManyPlans { rule: String },
    /// The layer has neither a rule nor a file nor a gate.
    NoRules,
    /// The rules have more limits than one request may check.
    TooManyRules,
    /// A setting that belongs to the gate was set on the builder of a layer from a gate.
    ConflictsWithGate { setting: &'static str },
    /// A setting that belongs to the config file was set together with one.
    ConflictsWithFile { setting: &'static str },
    /// The policies conflict.
    Policies(PoliciesError),
    /// The memory for the limiter's keys is unavailable.
    OutOfMemory(OutOfMemory),
}

impl fmt::Display for LayerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LayerFault::Policy { name, error } => write!(f, "rule `{name}`: {error}"),
            LayerFault::NoLimits { name } => write!(
                f,
                "rule `{name}` has no limit: give it one, for example `Limit::per_minute(100)`"
            ),
            LayerFault::Template { rule, error } => {
                write!(f, "rule `{rule}`: its key template: {error}")
            }
            LayerFault::SameName { name } => {
                write!(f, "two policies are called `{name}`: give each rule a different name")
            }
            LayerFault::CostWithConcurrency { rule } => write!(
                f,
                "rule `{rule}` has a cost or `settle_when`, and a concurrency limit, which takes \
                 one permit per request: put the concurrency limit into a separate rule"
            ),
            LayerFault::CostAndReserve { rule } => write!(
                f,
                "rule `{rule}` has both `cost` and `reserve`: keep `reserve` if the handler settles \
                 the cost, and `cost` if it is known before"
            ),
            LayerFault::UnnamedPlan { rule } => {
                write!(f, "rule `{rule}` has a plan with an empty name: give it a name")
            }
            LayerFault::OnUnknownPlanWithoutPlans { rule } => write!(
                f,
                "rule `{rule}` has `on_unknown_plan` but no plans: add them with `plan` and \
                 `plan_of`, or leave out `on_unknown_plan`"
            ),
            LayerFault::PlansWithoutPlanOf { rule } => write!(
                f,
                "rule `{rule}` defines plans but no `plan_of`: add one to choose a plan per request"
            ),
            LayerFault::PlanOfWithoutPlans { rule } => write!(
                f,
                "rule `{rule}` has `plan_of` but no plans: add them with `plan`, or leave out `plan_of`"
            ),
            LayerFault::TooManyPlans { rule } => write!(
                f,
                "rule `{rule}` has more than {MAX_PLANS} plans: give each request its limits with `limits_of`"
            ),
            LayerFault::NoRules => {
                f.write_str("there is nothing to limit: add a rule with `rule`")
            }
            LayerFault::TooManyRules => f.write_str(
                "there are more limits than can be decided at once: use fewer rules, or a policies file",
            ),
            LayerFault::ConflictsWithGate { setting } => {
                write!(f, "a gate has its own {setting}: leave `{setting}` out, or make the gate with it")
            }
            LayerFault::ConflictsWithFile { setting } => write!(
                f,
                "a config file has its own {setting}: leave `{setting}` out, and set it in the file"
            ),
            LayerFault::Policies(error) => error.fmt(f),
            LayerFault::OutOfMemory(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LayerFault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LayerFault::Policy { error, .. } => Some(error),
            LayerFault::Template { error, .. } => Some(error),
            // The text of these errors is theirs, so the source is the next error in their chain.
            LayerFault::Policies(error) => error.source(),
            LayerFault::OutOfMemory(error) => error.source(),
            _ => None,
        }
    }
}

impl From<PoliciesError> for LayerFault {
    fn from(error: PoliciesError) -> Self {
        LayerFault::Policies(error)
    }
}

impl From<OutOfMemory> for LayerFault {
    fn from(error: OutOfMemory) -> Self {
        LayerFault::OutOfMemory(error)
    }
}

/// An error of [`RateLimitLayer::peek`] and [`RateLimitLayer::reset`]: an unknown rule, a text that
/// is not one key, or a failure of the shared store.
///
/// [`RateLimitLayer::peek`]: super::RateLimitLayer::peek
/// [`RateLimitLayer::reset`]: super::RateLimitLayer::reset
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyError(pub(super) KeyFault);

/// Why a key cannot be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyFault {
    Gate(GateError),
    /// The template of the rule cannot make such a key.
    NotAKey {
        rule: String,
        text: String,
    },
}

impl KeyError {
    pub(super) fn not_a_key(rule: &str, text: &str) -> Self {
        KeyError(KeyFault::NotAKey { rule: rule.to_owned(), text: excerpt(text) })
    }

    /// Returns why the shared store failed, if it did.
    pub fn failure(&self) -> Option<&Failure> {
        match &self.0 {
            KeyFault::Gate(GateError::Store(failure)) => Some(failure),
            _ => None,
        }
    }
}

impl From<GateError> for KeyError {
    fn from(error: GateError) -> Self {
        KeyError(KeyFault::Gate(error))
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            KeyFault::Gate(error) => error.fmt(f),
            KeyFault::NotAKey { rule, text } => write!(
                f,
                "`{text}` is not a key of rule `{rule}`: give an address where the key is one, and \
                 a key of several parts with the length of each, as `5#alice:3#eu1`"
            ),
        }
    }
}

impl std::error::Error for KeyError {}

/// A request that a rule cannot be applied to. The mistake is in the service, not in the request.
#[derive(Debug)]
pub(super) enum RuleFault<'r> {
    /// The rule needs the client's address, which is unknown.
    NoAddress,
    /// The request is without a key, and the rule has `Keyless::Reject`.
    NoKey { rule: &'r str },
    /// The request has a plan that was not added to the rule.
    UnknownPlan { rule: &'r str, plan: String },
    /// The list of limits of the request is empty.
    NoLimits { rule: &'r str },
    /// The limits of the request conflict, or are too many.
    Limits { rule: &'r str, error: PolicyError },
    /// The request has a `concurrency` limit, and the rule a cost.
    CostWithConcurrency { rule: &'r str },
}

impl fmt::Display for RuleFault<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleFault::NoAddress => f.write_str(
                "the client's address is not known: serve the app with \
                 `into_make_service_with_connect_info::<SocketAddr>()` (and tidegate's feature \
                 `axum`), or set it with `peer(..)`",
            ),
            RuleFault::NoKey { rule } => write!(
                f,
                "the request has no key under rule `{rule}`: add the layer that provides it after \
                 this one, so that it sees the request first"
            ),
            RuleFault::NoLimits { rule } => write!(
                f,
                "`limits_of` gave rule `{rule}` an empty list: return `None` for the rule's own limits"
            ),
            RuleFault::UnknownPlan { rule, plan } => {
                write!(f, "rule `{rule}` has no plan `{}`: add it with `plan`", excerpt(plan))
            }
            RuleFault::Limits { rule, error } => {
                write!(f, "the limits that `limits_of` gave rule `{rule}`: {error}")
            }
            RuleFault::CostWithConcurrency { rule } => write!(
                f,
                "`limits_of` gave rule `{rule}`, which has a cost, a concurrency limit: put that \
                 into a separate rule"
            ),
        }
    }
}
