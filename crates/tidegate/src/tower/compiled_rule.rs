//! A rule of the layer, with its policies and their counters.

use std::net::IpAddr;

use http::Response;
use tidegate_core::bounds;

use super::error::{LayerFault, RuleFault};
use super::request::Head;
use super::rule::Limits;
use super::rule::{
    CostOf, KeyFrom, Keyless, LimitsOf, MAX_PLANS, OnUnknownPlan, PlanOf, Rule, SettleWhen,
    UnknownPlan, When,
};
use crate::Limit;
use crate::gate::{ActivePolicies, CodePolicy, Gate, KeyBytes};
use crate::policy::{
    Key, Mode, Policy, RequestField, Template, check_limits, is_concurrency, write_group,
    write_ipv4,
};

pub(super) struct CompiledRule {
    code_policy: CodePolicy,
    /// The plans, sorted by name.
    plans: Vec<(Box<str>, CodePolicy)>,
    key: KeyFrom,
    /// Whether a request without a client address is an error.
    needs_address: bool,
    /// Whether a request without a key is an error.
    needs_key: bool,
    plan: Option<Box<PlanOf>>,
    on_unknown_plan: Option<Box<OnUnknownPlan>>,
    limits_of: Option<Box<LimitsOf>>,
    cost: Option<Box<CostOf>>,
    reserves: bool,
    settle_when: Option<Box<SettleWhen>>,
    /// Whether the rule has a cost or `settle_when`, which `concurrency` limits do not support: a
    /// permit is always one unit and is held, not refunded.
    has_cost: bool,
    when: Option<Box<When>>,
    keyless: Keyless,
}

/// Why a request lacks a key that the rule needs.
pub(super) enum NoKey {
    /// The client's address is unknown.
    Address,
    /// The closure or the template returned none.
    Other,
}

impl CompiledRule {
    pub(super) fn new(gate: &Gate, rule: Rule) -> Result<Self, LayerFault> {
        check_plans(&rule)?;
        let key = match rule.key {
            Ok(key) => key,
            Err(error) => return Err(LayerFault::Template { rule: rule.name, error }),
        };
        let reserves = rule.estimate.is_some();
        let cost = match (rule.cost, rule.estimate) {
            (Some(_), Some(_)) => return Err(LayerFault::CostAndReserve { rule: rule.name }),
            (cost, estimate) => cost.or(estimate),
        };
        let has_cost = cost.is_some() || rule.settle_when.is_some();
        let policy = |name: &str, limits: &[Limit]| {
            if limits.is_empty() {
                return Err(LayerFault::NoLimits { name: name.to_owned() });
            }
            let failed = |error| LayerFault::Policy { name: name.to_owned(), error };
            // A permit is one unit, whatever the cost.
            if has_cost && limits.iter().any(is_concurrency) {
                return Err(LayerFault::CostWithConcurrency { rule: rule.name.clone() });
            }
            let template = match &key {
                KeyFrom::Template(template) => template.clone(),
                KeyFrom::Address | KeyFrom::Closure(_) => Template::client_ip(),
            };
            let policy = Policy::new(name, template, limits.to_vec()).map_err(failed)?;
            let policy = policy.with_mode(rule.mode).with_on_store_failure(rule.on_store_failure);
            // The plans share the counts of the rule, so a client that changes plan keeps its use.
            let policy = policy.with_overflow(rule.overflow).with_count_name(&rule.name);
            Ok(CodePolicy::new(policy, gate.stats()))
        };
        let mut code_policy = policy(&rule.name, &rule.limits)?;
        if rule.limits_of.is_some() {
            code_policy = code_policy.with_request_limits(gate.stats());
        }
        let mut plans = Vec::with_capacity(rule.plans.len());
        for (plan, limits) in &rule.plans {
            let code_policy = policy(&format!("{}.{plan}", rule.name), limits)?;
            plans.push((plan.as_str().into(), code_policy));
        }
        plans.sort_by(|(a, _): &(Box<str>, CodePolicy), (b, _)| a.cmp(b));
        let has_address = match &key {
            KeyFrom::Address => true,
            KeyFrom::Template(template) => uses_address(template),
            KeyFrom::Closure(_) => false,
        };
        // An observed rule must not make requests fail.
        let is_enforced = rule.mode == Mode::Enforce;
        let is_required = is_enforced && rule.keyless != Keyless::Skip;
        let Rule { plan, on_unknown_plan, limits_of, settle_when, when, keyless, .. } = rule;
        Ok(CompiledRule {
            code_policy,
            plans,
            key,
            needs_address: has_address && is_required,
            needs_key: is_enforced && keyless == Keyless::Reject,
            plan,
            on_unknown_plan,
            limits_of,
            cost,
            reserves,
            settle_when,
            has_cost,
            when,
            keyless,
        })
    }

    pub(super) fn name(&self) -> &str {
        self.code_policy.policy().name()
    }

    /// Whether the template of the rule can make this key. A closure can make any.
    pub(super) fn may_have_key(&self, active: &ActivePolicies, key: &Key) -> bool {
        match &self.key {
            KeyFrom::Address => active.policies().may_be_key(&Template::client_ip(), key),
            KeyFrom::Template(template) => active.policies().may_be_key(template, key),
            KeyFrom::Closure(_) => true,
        }
    }

    /// The rule's own policy, then the policies of its plans.
    pub(super) fn policies(&self) -> impl Iterator<Item = &CodePolicy> {
        let plans = self.plans.iter().map(|(_, policy)| policy);
        std::iter::once(&self.code_policy).chain(plans)
    }

    /// One of the rule's policies: index 0 is its own, the plans follow.
    pub(super) fn policy(&self, index: usize) -> &CodePolicy {
        let plan = index.checked_sub(1).and_then(|index| self.plans.get(index));
        plan.map_or(&self.code_policy, |(_, policy)| policy)
    }

    /// Whether the rule charges an estimate that the handler settles later.
    pub(super) fn reserves(&self) -> bool {
        self.reserves
    }

    /// Whether the charge depends on the handler or the response.
    #[inline]
    pub(super) fn is_settled_later(&self) -> bool {
        self.reserves || self.settle_when.is_some()
    }

    /// Whether the charge is kept after this response.
    pub(super) fn keeps_charge_after(&self, response: &Response<()>) -> bool {
        match &self.settle_when {
            Some(settle_when) => settle_when(response),
            None => !response.status().is_server_error(),
        }
    }

    /// Whether the condition of the rule holds for a request. A request without a key may still be
    /// skipped.
    #[inline]
    pub(super) fn applies(&self, head: &Head<'_>) -> bool {
        self.when.as_ref().is_none_or(|when| when(head))
    }

    /// Whether the limits may come with the request.
    #[inline]
    pub(super) fn takes_limits(&self) -> bool {
        self.limits_of.is_some()
    }

    /// Returns the limits that come with a request, if any, after checking them.
    pub(super) fn limits_of(&self, head: &Head<'_>) -> Result<Option<Limits>, RuleFault<'_>> {
        let Some(limits) = self.limits_of.as_ref().and_then(|limits_of| limits_of(head)) else {
            return Ok(None);
        };
        let rule = self.name();
        if limits.is_empty() {
            return Err(RuleFault::NoLimits { rule });
        }
        check_limits(&limits).map_err(|error| RuleFault::Limits { rule, error })?;
        if self.has_cost && limits.iter().any(is_concurrency) {
            return Err(RuleFault::CostWithConcurrency { rule });
        }
        Ok(Some(limits))
    }

    /// The cost of a request.
    #[inline]
    pub(super) fn units(&self, head: &Head<'_>) -> u64 {
        // A cost above the largest limit never passes, so it can be capped.
        self.cost.as_ref().map_or(1, |cost| cost(head).min(bounds::MAX_COUNT))
    }

    /// Appends the key of a request to `out`, if it has one.
    #[inline]
    pub(super) fn write_key(
        &self,
        active: &ActivePolicies,
        head: &Head<'_>,
        out: &mut KeyBytes,
    ) -> Result<bool, NoKey> {
        match (&self.key, head.client_ip()) {
            (_, None) if self.needs_address => return Err(NoKey::Address),
            // Reading the sixteen bytes of a group right after writing these four would stall.
            (KeyFrom::Address, Some(IpAddr::V4(address))) => {
                out.extend_with(|text| write_ipv4(address, text));
            }
            (KeyFrom::Address, Some(ip)) => {
                let group = active.policies().identity().group(ip);
                write_group(group, |piece| out.extend_from_slice(piece));
            }
            _ => match self.made_key(active, head) {
                Some(key) => out.extend_from_slice(key.as_ref()),
                None if self.needs_key => return Err(NoKey::Other),
                None => return Ok(false),
            },
        }
        Ok(true)
    }

    /// Whether a request without a key is counted under the key that all such requests share.
    fn shares_key(&self) -> bool {
        self.keyless != Keyless::Skip && !self.needs_key
    }

    fn made_key(&self, active: &ActivePolicies, head: &Head<'_>) -> Option<Key> {
        match &self.key {
            KeyFrom::Address => self.shares_key().then(Key::missing),
            KeyFrom::Template(template) => {
                let attributes = head.attributes();
                let has_key = self.shares_key() || active.policies().has_key(template, &attributes);
                has_key.then(|| active.key(template, &attributes))
            }
            KeyFrom::Closure(key_of) => match key_of(head) {
                Some(key) => Some(Key::literal(key.as_bytes())),
                None => self.shares_key().then(Key::missing),
            },
        }
    }

    /// Returns the index of the policy under which the request is counted.
    #[inline]
    pub(super) fn policy_for(&self, head: &Head<'_>) -> Result<usize, Box<RuleFault<'_>>> {
        let Some(plan) = self.plan.as_ref().and_then(|plan_of| plan_of(head)) else {
            return Ok(0);
        };
        match self.plans.binary_search_by(|(name, _)| (**name).cmp(&plan)) {
            Ok(index) => Ok(index + 1),
            Err(_) => self.unknown_plan(&plan),
        }
    }

    #[cold]
    fn unknown_plan(&self, plan: &str) -> Result<usize, Box<RuleFault<'_>>> {
        let unknown = self.on_unknown_plan.as_ref().map(|on_unknown_plan| on_unknown_plan(plan));
        match unknown.unwrap_or_default() {
            UnknownPlan::Base => Ok(0),
            UnknownPlan::Reject => {
                let rule = self.name();
                Err(Box::new(RuleFault::UnknownPlan { rule, plan: plan.to_owned() }))
            }
        }
    }
}

/// Checks that the plans have names, and that `plan`, `plan_of` and `on_unknown_plan` are set
/// together.
fn check_plans(rule: &Rule) -> Result<(), LayerFault> {
    let name = || rule.name.clone();
    if rule.plans.len() > MAX_PLANS {
        return Err(LayerFault::TooManyPlans { rule: name() });
    }
    if rule.plans.iter().any(|(plan, _)| plan.is_empty()) {
        return Err(LayerFault::UnnamedPlan { rule: name() });
    }
    if rule.on_unknown_plan.is_some() && rule.plans.is_empty() && rule.plan.is_none() {
        return Err(LayerFault::OnUnknownPlanWithoutPlans { rule: name() });
    }
    match (rule.plans.is_empty(), &rule.plan) {
        (false, None) => Err(LayerFault::PlansWithoutPlanOf { rule: name() }),
        (true, Some(_)) => Err(LayerFault::PlanOfWithoutPlans { rule: name() }),
        _ => Ok(()),
    }
}

/// Whether a template uses the client's address, also as an alternative. An unknown address then is
/// a mistake in the setup of the server, which should be noticed at the first request and not only
/// at one without the other alternatives.
pub(super) fn uses_address(template: &Template) -> bool {
    template.fields().any(|field| *field == RequestField::ClientIp)
}
