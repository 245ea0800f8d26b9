//! A rule made ready: its policies with their counters, and what it asks about a request.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate_core::{Cost, bounds};

use super::error::LayerError;
use super::head::Head;
use super::rule::{CostOf, KeyFrom, Keyless, PlanOf, Rule, When};
use crate::Limit;
use crate::gate::{Gate, OwnKey, OwnPolicy, Question, Rules, Subject, is_as_it_comes};
use crate::headers::{Forms, Said};
use crate::policy::{Key, Mode, Part, Policy, Template, holds};

pub(super) struct Ready {
    own: Counted,
    /// By name, in order.
    plans: Vec<(Box<str>, Counted)>,
    key: KeyFrom,
    /// Whether there is no key without the client's address, and the rule is enforced.
    needs_address: bool,
    plan: Option<Box<PlanOf>>,
    cost: Option<Box<CostOf>>,
    reserves: bool,
    when: Option<Box<When>>,
    keyless: Keyless,
    /// Whether requests may take the quick way.
    is_quick: bool,
}

/// A policy, and what is said when it admits, if it has one limit.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) own: OwnPolicy,
    pub(super) said: Option<Said>,
}

/// A key as the store sees it. Most fit, so that nothing is allocated for it.
pub(super) type Name = SmallVec<[u8; 128]>;

/// What a rule asks about one request.
pub(super) struct Ask<'a> {
    pub(super) policy: &'a OwnPolicy,
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
        check_plans(&rule)?;
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
            let policy = policy.with_overflow(rule.overflow);
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
        let has_address = match &rule.key {
            KeyFrom::Address => true,
            KeyFrom::Template(template) => uses_address(template),
            KeyFrom::Closure(_) => false,
        };
        // What only watches must not make requests fail.
        let needs_address = has_address && rule.mode == Mode::Enforce;
        let Rule { key, plan, cost, reserves, when, keyless, .. } = rule;
        let is_quick = |counted: &Counted| {
            counted.own.is_plain() && (counted.said.is_some() || forms == Forms::NONE)
        };
        let mut all = std::iter::once(&own).chain(plans.iter().map(|(_, counted)| counted));
        let is_quick = !reserves && all.all(is_quick);
        Ok(Ready { own, plans, key, needs_address, plan, cost, reserves, when, keyless, is_quick })
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
        let of = || *head;
        if !self.holds_for(of) {
            return Ok(None);
        }
        let Some(key) = self.key_of(rules, head, made)? else { return Ok(None) };
        let units = self.units(of);
        let counted = self.counted(self.policy_for(of));
        Ok(Some(Ask {
            policy: &counted.own,
            key,
            cost: units.map(Cost::Ask),
            estimate: units.filter(|_| self.reserves),
        }))
    }

    /// Whether somebody is asked about a request: if it holds, its plan, its cost.
    #[inline(always)]
    pub(super) fn has_closures(&self) -> bool {
        self.when.is_some() || self.plan.is_some() || self.cost.is_some()
    }

    /// The policy under which a request is counted, and its cost; `None` if it is not.
    #[inline(never)]
    pub(super) fn ask_closures(&self, head: &Head<'_>) -> Option<(usize, u64)> {
        let of = || *head;
        self.holds_for(of).then(|| (self.policy_for(of), self.units(of).unwrap_or(1)))
    }

    /// Whether the rule holds for this request.
    #[inline]
    pub(super) fn holds_for<'a>(&self, head: impl Fn() -> Head<'a>) -> bool {
        self.when.as_ref().is_none_or(|when| when(&head()))
    }

    /// What the request costs, if anybody says. What no limit can count costs as much as can be
    /// counted: it never passes.
    #[inline]
    pub(super) fn units<'a>(&self, head: impl Fn() -> Head<'a>) -> Option<u64> {
        self.cost.as_ref().map(|cost| cost(&head()).min(bounds::MAX_COUNT))
    }

    /// Whether requests may take the quick way.
    pub(super) fn is_quick(&self) -> bool {
        self.is_quick
    }

    /// Whether requests are counted by their address alone.
    pub(super) fn is_by_address(&self) -> bool {
        matches!(self.key, KeyFrom::Address)
    }

    /// Writes the key behind what is there; says whether there is one.
    pub(super) fn write_key(
        &self,
        rules: &Rules,
        head: &Head<'_>,
        out: &mut Name,
    ) -> Result<bool, NoAddress> {
        let mut made = Key::default();
        let Some(key) = self.key_of(rules, head, &mut made)? else { return Ok(false) };
        match &key {
            AskKey::Given(text) if is_as_it_comes(text.as_bytes()) => {
                out.extend_from_slice(text.as_bytes());
            }
            AskKey::Given(text) => out.extend_from_slice(Key::given(text.as_bytes()).as_ref()),
            AskKey::Made => out.extend_from_slice(made.as_ref()),
        }
        Ok(true)
    }

    /// Who is counted; `None` if nobody is.
    #[inline(always)]
    fn key_of<'a>(
        &'a self,
        rules: &Rules,
        head: &Head<'a>,
        made: &mut Key,
    ) -> Result<Option<AskKey<'a>>, NoAddress> {
        if self.needs_address && head.client_ip().is_none() {
            return Err(NoAddress);
        }
        match &self.key {
            KeyFrom::Address => match head.client_ip() {
                Some(ip) => made.set_address(rules.policies().identity().group(ip)),
                None => *made = Key::missing(),
            },
            KeyFrom::Template(template) => {
                let attributes = head.attributes();
                let skips = self.keyless == Keyless::Skip;
                if skips && !rules.policies().has_key(template, &attributes) {
                    return Ok(None);
                }
                *made = rules.key(template, &attributes);
            }
            KeyFrom::Closure(key) => match (key(head), self.keyless) {
                (Some(key), _) => return Ok(Some(AskKey::Given(key))),
                (None, Keyless::Share) => *made = Key::missing(),
                (None, Keyless::Skip) => return Ok(None),
            },
        }
        Ok(Some(AskKey::Made))
    }

    /// Which of its policies the request is counted under: 0 for its own, then the plans'.
    #[inline]
    pub(super) fn policy_for<'a>(&self, head: impl Fn() -> Head<'a>) -> usize {
        let Some(plan) = &self.plan else { return 0 };
        let found = plan(&head())
            .and_then(|plan| self.plans.binary_search_by(|(name, _)| (**name).cmp(&plan)).ok());
        found.map_or(0, |index| index + 1)
    }

    #[inline]
    pub(super) fn counted(&self, policy: usize) -> &Counted {
        let plan = policy.checked_sub(1).and_then(|index| self.plans.get(index));
        plan.map_or(&self.own, |(_, counted)| counted)
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

/// That plans can be told apart, and that there are any where they are told apart.
fn check_plans(rule: &Rule) -> Result<(), LayerError> {
    let name = || rule.name.clone();
    match (rule.plans.is_empty(), &rule.plan) {
        (false, None) => Err(LayerError::PlansWithoutPlanOf { rule: name() }),
        (true, Some(_)) => Err(LayerError::PlanOfWithoutPlans { rule: name() }),
        _ => Ok(()),
    }
}

/// Whether a template has the client's address in it. Where nobody knows that, somebody has
/// forgotten to say where it is; better found out at the first request than when
/// one comes that has nothing else.
pub(super) fn uses_address(template: &Template) -> bool {
    template.parts().any(|part| *part == Part::ClientIp)
}
