//! A rule of the layer, with its policies and their counters.

use tidegate_core::bounds;

use super::error::LayerError;
use super::head::Head;
use super::rule::{CostOf, KeyFrom, Keyless, PlanOf, Rule, When};
use crate::Limit;
use crate::gate::{Gate, KeyBytes, OwnPolicy, Rules};
use crate::policy::{Key, Mode, Part, Policy, Template, holds, write_group};

pub(super) struct CompiledRule {
    own: OwnPolicy,
    /// By name, in order.
    plans: Vec<(Box<str>, OwnPolicy)>,
    key: KeyFrom,
    /// Whether there is no key without the client's address, and the rule is enforced.
    needs_address: bool,
    plan: Option<Box<PlanOf>>,
    cost: Option<Box<CostOf>>,
    reserves: bool,
    when: Option<Box<When>>,
    keyless: Keyless,
}

/// The client's address is needed, and nobody knows it.
pub(super) struct NoAddress;

impl CompiledRule {
    pub(super) fn new(gate: &Gate, rule: Rule) -> Result<Self, LayerError> {
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
            Ok(OwnPolicy::new(policy, gate.stats()))
        };
        let own = policy(&rule.name, &rule.limits)?;
        let mut plans = Vec::with_capacity(rule.plans.len());
        for (plan, limits) in &rule.plans {
            let own = policy(&format!("{}.{plan}", rule.name), limits)?;
            plans.push((plan.as_str().into(), own));
        }
        plans.sort_by(|(a, _): &(Box<str>, OwnPolicy), (b, _)| a.cmp(b));
        let has_address = match &rule.key {
            KeyFrom::Address => true,
            KeyFrom::Template(template) => uses_address(template),
            KeyFrom::Closure(_) => false,
        };
        // What only watches must not make requests fail.
        let needs_address = has_address && rule.mode == Mode::Enforce;
        let Rule { key, plan, cost, reserves, when, keyless, .. } = rule;
        Ok(CompiledRule { own, plans, key, needs_address, plan, cost, reserves, when, keyless })
    }

    /// Its own policy and those of its plans.
    pub(super) fn policies(&self) -> impl Iterator<Item = &OwnPolicy> {
        let plans = self.plans.iter().map(|(_, policy)| policy);
        std::iter::once(&self.own).chain(plans)
    }

    /// One of its policies: 0 for its own, then the plans'.
    pub(super) fn policy(&self, index: usize) -> &OwnPolicy {
        let plan = index.checked_sub(1).and_then(|index| self.plans.get(index));
        plan.map_or(&self.own, |(_, policy)| policy)
    }

    /// Whether an estimate is charged, and the true cost is known later.
    pub(super) fn reserves(&self) -> bool {
        self.reserves
    }

    /// Whether the rule applies to a request, if that has a key.
    #[inline]
    pub(super) fn applies(&self, head: &Head<'_>) -> bool {
        self.when.as_ref().is_none_or(|when| when(head))
    }

    /// The cost of a request.
    #[inline]
    pub(super) fn units(&self, head: &Head<'_>) -> u64 {
        // A cost that no limit can count is capped: it never passes.
        self.cost.as_ref().map_or(1, |cost| cost(head).min(bounds::MAX_COUNT))
    }

    /// Appends the key of a request to `out`, if it has one.
    #[inline]
    pub(super) fn write_key(
        &self,
        rules: &Rules,
        head: &Head<'_>,
        out: &mut KeyBytes,
    ) -> Result<bool, NoAddress> {
        match (&self.key, head.client_ip()) {
            (_, None) if self.needs_address => return Err(NoAddress),
            (KeyFrom::Address, Some(ip)) => {
                let group = rules.policies().identity().group(ip);
                write_group(group, |piece| out.extend_from_slice(piece));
            }
            _ => match self.made_key(rules, head) {
                Some(key) => out.extend_from_slice(key.as_ref()),
                None => return Ok(false),
            },
        }
        Ok(true)
    }

    fn made_key(&self, rules: &Rules, head: &Head<'_>) -> Option<Key> {
        match &self.key {
            KeyFrom::Address => Some(Key::missing()),
            KeyFrom::Template(template) => {
                let attributes = head.attributes();
                let skips = self.keyless == Keyless::Skip;
                let has_key = !skips || rules.policies().has_key(template, &attributes);
                has_key.then(|| rules.key(template, &attributes))
            }
            KeyFrom::Closure(of) => match (of(head), self.keyless) {
                (Some(given), _) => Some(Key::given(given.as_bytes())),
                (None, Keyless::Share) => Some(Key::missing()),
                (None, Keyless::Skip) => None,
            },
        }
    }

    /// The index of the policy that the request is counted under.
    #[inline]
    pub(super) fn policy_for(&self, head: &Head<'_>) -> usize {
        let Some(plan) = &self.plan else { return 0 };
        let found = plan(head)
            .and_then(|plan| self.plans.binary_search_by(|(name, _)| (**name).cmp(&plan)).ok());
        found.map_or(0, |index| index + 1)
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
