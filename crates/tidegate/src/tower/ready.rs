//! A rule made ready: its policies with their counters, and what it asks about a request.

use std::borrow::Cow;

use tidegate_core::{Cost, bounds};

use super::error::LayerError;
use super::head::Head;
use super::rule::{CostOf, KeyFrom, Keyless, PlanOf, Rule, When};
use crate::Limit;
use crate::gate::{Gate, OwnKey, OwnPolicy, Question, Rules, Subject};
use crate::headers::{Forms, Said};
use crate::policy::{Key, Part, Policy, Template, holds};

pub(super) struct Ready {
    own: Counted,
    /// By name, in order.
    plans: Vec<(Box<str>, Counted)>,
    key: KeyFrom,
    /// Whether there is no key without the client's address.
    needs_address: bool,
    plan: Option<Box<PlanOf>>,
    cost: Option<Box<CostOf>>,
    reserves: bool,
    when: Option<Box<When>>,
    keyless: Keyless,
}

/// A policy, and what is said when it admits, if it has one limit.
struct Counted {
    own: OwnPolicy,
    said: Option<Said>,
}

/// What a rule asks about one request.
pub(super) struct Ask<'a> {
    pub(super) policy: &'a OwnPolicy,
    /// What is said if it is admitted and nothing else holds for it.
    pub(super) said: Option<&'a Said>,
    key: AskKey<'a>,
    cost: Option<Cost>,
    /// What is reserved, if the true cost comes later.
    pub(super) estimate: Option<u64>,
}

enum AskKey<'a> {
    Given(Cow<'a, str>),
    /// It was written beside it.
    Made,
}

/// The client's address is needed, and nobody knows it.
pub(super) struct NoAddress;

impl Ready {
    pub(super) fn new(gate: &Gate, forms: Forms, rule: Rule) -> Result<Self, LayerError> {
        let weighs = rule.cost.is_some();
        let policy = |name: &str, limits: &[Limit]| {
            let failed = |error| LayerError::Policy { name: name.to_owned(), error };
            // Cost is counted in units, and a place is one whatever it costs.
            if weighs && limits.iter().any(holds) {
                return Err(LayerError::CostOfAPlace { rule: rule.name.clone() });
            }
            let template = match &rule.key {
                KeyFrom::Template(template) => template.clone(),
                KeyFrom::Address | KeyFrom::Closure(_) => Template::client_ip(),
            };
            let policy = Policy::new(name, template, limits.to_vec()).map_err(failed)?;
            let policy = policy.with_mode(rule.mode).with_on_store_failure(rule.on_store_failure);
            let said = match policy.limits() {
                [only] => Said::new(forms, policy.name(), only),
                _ => None,
            };
            Ok(Counted { own: gate.own(policy), said })
        };
        let own = policy(&rule.name, &rule.limits)?;
        let mut plans = Vec::with_capacity(rule.plans.len());
        for (plan, limits) in &rule.plans {
            let own = policy(&format!("{}.{plan}", rule.name), limits)?;
            plans.push((plan.as_str().into(), own));
        }
        plans.sort_by(|(a, _): &(Box<str>, Counted), (b, _)| a.cmp(b));
        let needs_address = match &rule.key {
            KeyFrom::Address => true,
            KeyFrom::Template(template) => uses_address(template),
            KeyFrom::Closure(_) => false,
        };
        let Rule { key, plan, cost, reserves, when, keyless, .. } = rule;
        Ok(Ready { own, plans, key, needs_address, plan, cost, reserves, when, keyless })
    }

    /// Its own policy and those of its plans.
    pub(super) fn policies(&self) -> impl Iterator<Item = &OwnPolicy> {
        let plans = self.plans.iter().map(|(_, counted)| &counted.own);
        std::iter::once(&self.own.own).chain(plans)
    }

    /// What it asks; `None` if it does not hold for this request. A key that must be made is
    /// written into `made`, and goes with what is asked.
    #[inline(always)]
    pub(super) fn ask<'a>(
        &'a self,
        rules: &Rules,
        head: &Head<'a>,
        made: &mut Key,
    ) -> Result<Option<Ask<'a>>, NoAddress> {
        if self.when.as_ref().is_some_and(|when| !when(head)) {
            return Ok(None);
        }
        if self.needs_address && head.client_ip().is_none() {
            return Err(NoAddress);
        }
        let Some(key) = self.key_of(rules, head, made) else { return Ok(None) };
        // What no limit can count costs as much as can be counted: it never passes.
        let units = self.cost.as_ref().map(|cost| cost(head).min(bounds::MAX_COUNT));
        let counted = self.counted_for(head);
        Ok(Some(Ask {
            policy: &counted.own,
            said: counted.said.as_ref(),
            key,
            cost: units.map(Cost::Ask),
            estimate: units.filter(|_| self.reserves),
        }))
    }

    #[inline(always)]
    fn key_of<'a>(&'a self, rules: &Rules, head: &Head<'a>, made: &mut Key) -> Option<AskKey<'a>> {
        match &self.key {
            KeyFrom::Address => {
                made.set_address(rules.policies().identity().group(head.client_ip()?));
            }
            KeyFrom::Template(template) => *made = rules.key(template, &head.attributes()),
            KeyFrom::Closure(key) => match (key(head), self.keyless) {
                (Some(key), _) => return Some(AskKey::Given(key)),
                (None, Keyless::Share) => *made = Key::missing(),
                (None, Keyless::Skip) => return None,
            },
        }
        Some(AskKey::Made)
    }

    #[inline]
    fn counted_for(&self, head: &Head<'_>) -> &Counted {
        let plan = self.plan.as_ref().and_then(|plan| plan(head));
        let found =
            plan.and_then(|plan| self.plans.binary_search_by(|(name, _)| (**name).cmp(&plan)).ok());
        found.map_or(&self.own, |index| &self.plans[index].1)
    }
}

impl Ask<'_> {
    #[inline(always)]
    pub(super) fn question<'q>(&'q self, made: &'q Key, path: &'q str) -> Question<'q> {
        let key = match &self.key {
            AskKey::Given(text) => OwnKey::Given(text.as_bytes()),
            AskKey::Made => OwnKey::Key(made),
        };
        let subject = Subject::Own { policy: self.policy, key, path: Some(path) };
        Question { cost: self.cost, ..Question::new(subject) }
    }

    /// Its key, to be kept.
    pub(super) fn key(&self, made: &Key) -> Key {
        match &self.key {
            AskKey::Given(text) => Key::given(text.as_bytes()),
            AskKey::Made => made.clone(),
        }
    }
}

/// Whether a template has the client's address in it. Where nobody knows that, somebody has
/// forgotten to say where it is; better found out at the first request than when
/// one comes that has nothing else.
pub(super) fn uses_address(template: &Template) -> bool {
    template.parts().any(|part| *part == Part::ClientIp)
}
