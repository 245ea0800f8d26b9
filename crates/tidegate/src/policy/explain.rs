//! Explains for every policy whether it applies to a request, and why.
//!
//! It evaluates the same conditions as `select.rs`, so the two cannot disagree.

use std::fmt;

use super::definition::{Policy, is_concurrency};
use super::key::Key;
use super::normalized_request::NormalizedRequest;
use super::path::AMBIGUOUS;
use super::{Mode, OnStoreFailure};
use crate::Overflow;

/// The results of all policies for one request.
#[derive(Clone, Debug)]
pub struct Explanation<'p> {
    /// One result per policy, in order.
    pub policies: Vec<Explained<'p>>,
}

/// The result of one policy.
#[derive(Clone, Debug)]
pub struct Explained<'p> {
    /// The policy.
    pub policy: &'p Policy,
    /// The result.
    pub outcome: PolicyOutcome,
}

/// Whether and how a policy applies to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyOutcome {
    /// The policy does not match.
    NoMatch {
        /// The first condition that does not hold.
        condition: String,
        /// The value that the request has.
        found: String,
    },
    /// The policy exempts the request.
    Exempt {
        /// The condition that holds.
        condition: String,
    },
    /// Another policy that applies to the request replaces it.
    Replaced {
        /// The name of the other policy.
        by: String,
    },
    /// The policy applies, or would if it were not off.
    Applies {
        /// The key that identifies who is counted.
        key: Key,
        /// The fields of the key that the request does not have.
        missing: Vec<String>,
        /// The index in [`Policy::variants`].
        variant: usize,
        /// The cost in units, or an excerpt of the value that is not a valid cost.
        cost: Result<u64, String>,
    },
}

pub(super) fn explain<'p>(
    policies: &'p [Policy],
    request: &NormalizedRequest<'_>,
) -> Explanation<'p> {
    let explained =
        policies.iter().map(|policy| Explained { policy, outcome: outcome(policy, request) });
    let mut explained: Vec<Explained<'_>> = explained.collect();
    let matched_policies = explained.iter().filter(|one| one.is_selected()).map(|one| one.policy);
    let replacing: Vec<&Policy> =
        matched_policies.filter(|policy| !policy.replaces().is_empty()).collect();
    for one in explained.iter_mut().filter(|one| one.is_selected()) {
        let name = one.policy.name();
        let by = replacing.iter().find(|policy| policy.replaces().iter().any(|n| **n == *name));
        if let Some(by) = by {
            one.outcome = PolicyOutcome::Replaced { by: by.name().into() };
        }
    }
    Explanation { policies: explained }
}

fn outcome(policy: &Policy, request: &NormalizedRequest<'_>) -> PolicyOutcome {
    if let Some(failed) = policy.matching().first_failing(request) {
        return PolicyOutcome::NoMatch {
            condition: failed.to_string(),
            found: failed.describe_found(request),
        };
    }
    if let Some(condition) = policy.exempt().first_exempting(request) {
        return PolicyOutcome::Exempt { condition: condition.to_string() };
    }
    let variant = policy.variant_for(request);
    PolicyOutcome::Applies {
        key: policy.key_template().render(request),
        missing: policy.key_template().missing(request),
        variant,
        cost: policy.variants()[variant].cost().units(request),
    }
}

impl Explained<'_> {
    /// Returns whether the policy is selected for this request: it applies and is not off.
    pub fn is_selected(&self) -> bool {
        self.mode().is_some_and(|mode| mode != Mode::Off)
    }

    /// Returns whether checks reject the request because of it: it enforces a `concurrency` limit,
    /// which requires a permit.
    pub fn needs_permit(&self) -> bool {
        let PolicyOutcome::Applies { variant, .. } = self.outcome else { return false };
        let chosen = &self.policy.variants()[variant];
        chosen.mode() == Mode::Enforce && chosen.limits().iter().any(is_concurrency)
    }

    /// Returns the mode in which it applies; `None` if it does not apply.
    pub fn mode(&self) -> Option<Mode> {
        match self.outcome {
            PolicyOutcome::Applies { variant, .. } => Some(self.policy.variants()[variant].mode()),
            _ => None,
        }
    }

    fn write_applied(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PolicyOutcome::Applies { key, missing, variant, cost } = &self.outcome else {
            return Ok(());
        };
        let chosen = &self.policy.variants()[*variant];
        let is_on = chosen.mode() != Mode::Off;
        writeln!(f, "  key     {} -> {key}", self.policy.key_template())?;
        if key.to_string().contains(AMBIGUOUS) {
            let why = "servers disagree about the `;` or `\\` in this path";
            writeln!(f, "          {why}: all such paths share `{AMBIGUOUS}`")?;
        }
        for field in missing {
            writeln!(f, "          the request has no {field}: all such requests share this key")?;
        }
        if *variant > 0 {
            writeln!(f, "  because override {variant} holds: {}", chosen.when())?;
        }
        for limit in chosen.limits() {
            writeln!(f, "  limit   {limit}")?;
            let held = match chosen.mode() {
                Mode::Enforce => "checks reject this request; acquire a permit",
                Mode::Observe => "checks leave this policy out",
                Mode::Off => continue,
            };
            if is_concurrency(limit) {
                writeln!(f, "          needs a permit: {held}")?;
            }
        }
        match cost {
            Ok(1) => {}
            Ok(units) => writeln!(f, "  cost    {units}")?,
            Err(found) => {
                let consequence = if chosen.mode() == Mode::Observe { "1" } else { "bad input" };
                writeln!(f, "  cost    {} holds `{found}`: {consequence}", chosen.cost())?;
            }
        }
        if let Ok(units) = cost
            && is_on
        {
            for limit in chosen.limits_below(*units) {
                let units = (*units).max(1);
                writeln!(f, "          a cost of {units} can never pass `{limit}`")?;
            }
        }
        match chosen.overflow() {
            None => {}
            Some(Overflow::Refuse) => writeln!(f, "  overflow refuse: a denial charges nothing")?,
            Some(Overflow::Consume) => {
                writeln!(f, "  overflow consume: a denied cost above 1 uses up what is left")?;
            }
        }
        if self.policy.is_quota() {
            writeln!(f, "  a quota: if several apply to a request, one with room is enough")?;
        }
        if !self.policy.caches_denials() {
            writeln!(f, "  denials are never answered from memory")?;
        }
        match chosen.on_store_failure() {
            OnStoreFailure::Local => writeln!(f, "  store down: decided locally"),
            OnStoreFailure::Allow => writeln!(f, "  store down: allowed"),
            OnStoreFailure::Deny => writeln!(f, "  store down: denied"),
        }
    }
}

impl fmt::Display for Explained<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.policy.name();
        match &self.outcome {
            PolicyOutcome::NoMatch { condition, found } => {
                writeln!(f, "{name}: does not match")?;
                writeln!(
                    f,
                    "  because the policy requires {condition}, and the request has {found}"
                )
            }
            PolicyOutcome::Exempt { condition } => {
                writeln!(f, "{name}: exempt")?;
                writeln!(f, "  because {condition}")
            }
            PolicyOutcome::Replaced { by } => {
                writeln!(f, "{name}: replaced")?;
                writeln!(f, "  because the request also matches {by}, which replaces it")
            }
            PolicyOutcome::Applies { .. } => {
                match self.mode() {
                    Some(Mode::Observe) => writeln!(f, "{name}: observes, never denies")?,
                    Some(Mode::Off) => writeln!(f, "{name}: off")?,
                    _ if self.policy.is_unlimited() => writeln!(f, "{name}: unlimited")?,
                    _ => writeln!(f, "{name}: limits")?,
                }
                self.write_applied(f)
            }
        }
    }
}

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, explained) in self.policies.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            explained.fmt(f)?;
        }
        Ok(())
    }
}
