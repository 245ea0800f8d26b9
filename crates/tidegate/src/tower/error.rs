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
    /// A rule's key template cannot be read.
    Template { rule: String, error: TemplateError },
    /// Two rules or plans have one name, or a rule has that of a policy of the gate.
    SameName { name: String },
    /// A rule has a `concurrency` limit, and a cost or an outcome that settles it.
    CostWithConcurrency { rule: String },
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
            LayerFault::PlansWithoutPlanOf { rule } => write!(
                f,
                "rule `{rule}` has plans, and nobody has one: say with `plan_of` which plan a request has"
            ),
            LayerFault::PlanOfWithoutPlans { rule } => write!(
                f,
                "rule `{rule}` tells plans apart, and has none: add them with `plan`, or leave out `plan_of`"
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
pub struct KeyError(pub(super) GateError);

impl KeyError {
    /// Returns why the shared store failed, if it did.
    pub fn failure(&self) -> Option<&Failure> {
        match &self.0 {
            GateError::Store(failure) => Some(failure),
            _ => None,
        }
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for KeyError {}

/// A request that a rule cannot be applied to: a mistake of the service, not of the client.
#[derive(Debug)]
pub(super) enum RuleFault<'r> {
    /// The client's address is needed, and it is not known.
    NoAddress,
    /// The request has a plan that the rule does not have.
    UnknownPlan { rule: &'r str, plan: String },
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
