//! Layers that cannot be.

use std::fmt;

use super::rule::MAX_PLANS;
use crate::gate::GateError;
use crate::policy::{PoliciesError, PolicyError, TemplateError};
use crate::text::excerpt;
use crate::{Failure, OutOfMemory};

/// An error of [`LayerBuilder::build`](super::LayerBuilder::build). Its text says what to write
/// instead.
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
    /// A rule, or one of its plans, makes no policy.
    Policy { name: String, error: PolicyError },
    /// A rule, or one of its plans, has no limit.
    NoLimits { name: String },
    /// A rule's key template cannot be read.
    Template { rule: String, error: TemplateError },
    /// Two rules or plans have one name, or a rule has that of a policy of the gate.
    SameName { name: String },
    /// A rule has a `concurrency` limit, and a cost or an outcome that settles it.
    CostWithConcurrency { rule: String },
    /// A rule has both a cost and an estimate.
    CostAndReserve { rule: String },
    /// A plan of a rule has an empty name.
    UnnamedPlan { rule: String },
    /// A rule says what happens to unknown plans, and has none.
    OnUnknownPlanWithoutPlans { rule: String },
    /// A rule has plans, and does not say who has which.
    PlansWithoutPlanOf { rule: String },
    /// A rule says who has which plan, and has none.
    PlanOfWithoutPlans { rule: String },
    /// A rule has more plans than are kept ready.
    TooManyPlans { rule: String },
    /// There is nothing to ask: no rule, no file and no gate.
    NoRules,
    /// More rules than can be asked about one request.
    TooManyRules,
    /// A setting that a gate brings along was given beside one.
    ConflictsWithGate { setting: &'static str },
    /// A setting that a config file has was given beside one.
    ConflictsWithFile { setting: &'static str },
    /// The policies cannot stand together.
    Policies(PoliciesError),
    /// There cannot be memory for so many keys.
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
                write!(f, "two policies are called `{name}`: give each rule a name of its own")
            }
            LayerFault::CostWithConcurrency { rule } => write!(
                f,
                "rule `{rule}` has a cost or `settle_when`, and a concurrency limit, whose places are one \
                 per request: put the concurrency limit into a rule of its own"
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
            // Shown as they are, so that what is behind them comes next.
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
/// does not name one key, or a failure of the shared store.
///
/// [`RateLimitLayer::peek`]: super::RateLimitLayer::peek
/// [`RateLimitLayer::reset`]: super::RateLimitLayer::reset
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyError(pub(super) KeyFault);

/// Why a key cannot be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyFault {
    Gate(GateError),
    /// The rule makes no such key.
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

/// A request that a rule cannot be applied to: a mistake of the service, not of the client.
#[derive(Debug)]
pub(super) enum RuleFault<'r> {
    /// The client's address is needed, and it is not known.
    NoAddress,
    /// The request has no key, and the rule rejects such requests.
    NoKey { rule: &'r str },
    /// The request has a plan that the rule does not have.
    UnknownPlan { rule: &'r str, plan: String },
    /// The list of limits of the request is empty.
    NoLimits { rule: &'r str },
    /// The limits of the request cannot stand together.
    Limits { rule: &'r str, error: PolicyError },
    /// The limits of the request hold places, and the rule has a cost.
    CostWithConcurrency { rule: &'r str },
}

impl fmt::Display for RuleFault<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleFault::NoAddress => f.write_str(
                "the client's address is not known: serve the app with \
                 `into_make_service_with_connect_info::<SocketAddr>()` (and tidegate's feature \
                 `axum`), or tell the layer where it is with `peer(..)`",
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
                 into a rule of its own"
            ),
        }
    }
}
