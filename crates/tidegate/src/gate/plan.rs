//! Plans: the policies that apply to requests, and the checks that follow from them.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Decision, Limit, PermitId, Timestamp};

use super::active_policies::PreparedLimits;
#[cfg(feature = "tower")]
use super::code_policy::Adjustment;
use super::code_policy::CodePolicy;
use super::conflicts::EffectiveCheck;
use super::{ActivePolicies, GateError, GateRequest, GateVerdict, LimitResult, Subject};
use crate::fallback::SharedRequest;
use crate::policy::{
    CostSource, Mode, OnStoreFailure, SelectedPolicy, is_concurrency, replaced_names,
};
use crate::request::Checks;
use crate::stats::{Decided, LimitStats};
use crate::text::InlineBytes;
use crate::{Check, CheckError, MAX_CHECKS, Overflow, Verdict};

/// The keys of a plan. The inline capacity is enough for a typical request.
pub(crate) type KeyBytes = InlineBytes<128>;

/// How `concurrency` limits are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConcurrencyMode {
    /// They are an error, because nothing would hold the permit.
    Reject,
    /// They are checked without being held.
    Peek,
    /// They are held, if there are any.
    HoldIfAny,
    /// They are held, optionally for less than their lease. There must be one.
    RequirePermit(Option<Duration>),
}

/// The checks of one request, or of several that are decided together. It is large, so it is
/// created empty and filled in place.
#[derive(Default)]
pub(crate) struct Plan<'a> {
    pub(super) policies: SmallVec<[PlannedPolicy<'a>; 4]>,
    /// The keys of all planned policies, as the store sees them.
    pub(crate) keys: KeyBytes,
    /// The `concurrency` limits with the requested lease, in order; empty if no lease was
    /// requested.
    pub(super) leased: Vec<Limit>,
    /// The limit and cost of each check, if several requests conflict about one count; otherwise
    /// empty. See `conflicts.rs`.
    pub(super) effective: Vec<EffectiveCheck<'a>>,
    /// The number of enforced quotas and of requests that are quotas with room. If there are
    /// several, one with room is enough.
    pub(super) quotas: usize,
    /// Whether a request is a quota with room, because no enforced limit applies to it.
    pub(super) has_free_quota: bool,
    /// Whether a denial must not consume yet, because another quota may have room.
    pub(super) defers_overflow: bool,
}

/// A policy that applies to a request, or the limits that its caller provides.
pub(super) struct PlannedPolicy<'a> {
    pub(super) policy: Option<&'a str>,
    /// The policy, if it is defined in code. Its name does not identify it, because a loaded policy
    /// may have the same one.
    pub(super) code_policy: Option<&'a CodePolicy>,
    /// The index of the request.
    pub(super) request_index: usize,
    /// Whether it is an enforced quota.
    pub(super) is_enforced_quota: bool,
    /// Whether it is an exhausted quota that is skipped in favour of another one.
    pub(super) skipped: bool,
    /// The names of the policies that it replaces.
    replaces: &'a [Box<str>],
    pub(super) limits: &'a [Limit],
    pub(super) mode: Mode,
    pub(super) cost: Cost,
    pub(super) overflow: Overflow,
    pub(super) on_store_failure: OnStoreFailure,
    pub(super) deny_cache: bool,
    pub(super) lease: bool,
    pub(super) prepared: &'a PreparedLimits,
    pub(super) key: KeyRange,
}

/// The range of a key in [`Plan::keys`], and the offset at which the name of the policy has ended.
#[derive(Clone, Copy)]
pub(super) struct KeyRange {
    pub(super) start: usize,
    pub(super) key_offset: usize,
    pub(super) end: usize,
}

/// A key that is being written.
#[derive(Clone, Copy)]
pub(crate) struct KeyStart {
    pub(crate) start: usize,
    /// The offset of the key after the name of the policy.
    pub(crate) key_offset: usize,
}

/// Enforced limits without any other settings.
#[derive(Clone, Copy)]
pub(super) struct SimpleCheck<'a> {
    /// The name of the policy; `None` for limits that the caller provides.
    pub(super) policy: Option<&'a str>,
    pub(super) limits: &'a [Limit],
    pub(super) cost: Cost,
    pub(super) overflow: Overflow,
    pub(super) prepared: &'a PreparedLimits,
}

/// A check of a policy defined in code.
#[derive(Clone, Copy)]
struct CodeCheck<'a> {
    code_policy: &'a CodePolicy,
    request_index: usize,
    limits: &'a [Limit],
    prepared: &'a PreparedLimits,
    cost: Cost,
    overflow: Overflow,
}

impl<'a> CodeCheck<'a> {
    /// Uses the limits that came with the request or, if there are none, those of the policy.
    #[inline]
    fn new(code_policy: &'a CodePolicy, request_limits: Option<&'a [Limit]>, cost: Cost) -> Self {
        let (limits, prepared) = code_policy.limits_or(request_limits);
        let overflow = code_policy.policy().overflow().unwrap_or_default();
        CodeCheck { code_policy, request_index: 0, limits, prepared, cost, overflow }
    }
}

impl<'a> Plan<'a> {
    /// Plans requests that are decided together.
    pub(super) fn build(
        &mut self,
        active: &'a ActivePolicies,
        requests: &[GateRequest<'a>],
        concurrency: ConcurrencyMode,
    ) -> Result<(), GateError> {
        for (index, request) in requests.iter().enumerate() {
            self.match_policies(active, request, index)?;
            // This is checked for each request, so that a long list of descriptors does not use
            // more memory.
            let count = self.limits().count();
            if count > MAX_CHECKS {
                return Err(GateError::Check(CheckError::TooManyChecks(count)));
            }
        }
        self.finalize(requests, concurrency)
    }

    /// Completes the plan after all requests were added: removes replaced policies, resolves
    /// conflicts and applies the concurrency mode.
    #[inline(always)]
    pub(crate) fn finalize(
        &mut self,
        requests: &[GateRequest<'a>],
        concurrency: ConcurrencyMode,
    ) -> Result<(), GateError> {
        if self.policies.iter().any(|planned| !planned.replaces.is_empty()) {
            self.replace();
        }
        if self.policies.len() > 1 {
            self.resolve_conflicts();
        }
        if self.policies.len() > 1 || requests.len() > 1 {
            self.count_quotas(requests);
        }
        match concurrency {
            ConcurrencyMode::Reject => self.reject_concurrency(requests),
            ConcurrencyMode::Peek | ConcurrencyMode::HoldIfAny => Ok(()),
            ConcurrencyMode::RequirePermit(lease) => self.set_lease(lease),
        }
    }

    /// Adds the policies that apply to a request.
    pub(crate) fn match_policies(
        &mut self,
        active: &'a ActivePolicies,
        request: &GateRequest<'a>,
        index: usize,
    ) -> Result<(), GateError> {
        let policies = active.policies();
        match request.subject {
            Subject::Request(attributes) => {
                for selected in policies.matching(attributes)? {
                    self.push(active, &selected, request, index);
                }
            }
            Subject::Policy { policy, attributes } => {
                if let Some(selected) = policies.select_named(policy, attributes)? {
                    self.push(active, &selected, request, index);
                }
            }
            Subject::Key { policy, key, attributes } => {
                let Some(selected) = policies.with_key(policy, key, attributes) else {
                    return Err(policies.unknown_policy(policy).into());
                };
                if selected.mode != Mode::Off {
                    self.push(active, &selected, request, index);
                }
            }
            Subject::Limits { key, limits } => {
                // No policy has an empty name, so these keys are separate from the keys of
                // policies.
                let key = self.write_key("", key);
                let (cost, overflow) = (request.cost(1), request.overflow);
                let simple = SimpleCheck {
                    policy: None,
                    limits,
                    cost,
                    overflow,
                    prepared: active.caller_limits(),
                };
                let key = self.end_key(key);
                self.policies.push(PlannedPolicy {
                    request_index: index,
                    is_enforced_quota: request.is_quota,
                    ..PlannedPolicy::new(simple, key)
                });
            }
            Subject::CodePolicy { policy: code_policy, key, .. } => {
                let units = match code_policy.policy().cost() {
                    CostSource::Fixed(units) => *units,
                    CostSource::From(_) => 1,
                };
                let check = CodeCheck {
                    request_index: index,
                    overflow: code_policy.policy().overflow().unwrap_or(request.overflow),
                    ..CodeCheck::new(code_policy, None, request.cost(units))
                };
                let key = self.write_key(code_policy.policy().count_name(), key.to_key().as_ref());
                self.push_code_check(check, key);
            }
        }
        Ok(())
    }

    /// Adds enforced limits of a single request, under the key that was written since `key`.
    pub(super) fn push_simple(&mut self, simple: SimpleCheck<'a>, key: KeyStart) {
        let key = self.end_key(key);
        self.policies.push(PlannedPolicy::new(simple, key));
    }

    /// Removes all policies and keys, so that the plan can be used for another request.
    pub(super) fn clear(&mut self) {
        self.policies.clear();
        self.keys.truncate(0);
    }

    /// Adds a policy defined in code, under the key that was written since `key`. Limits that came
    /// with the request replace those of the policy.
    #[inline]
    pub(crate) fn push_code_policy(
        &mut self,
        code_policy: &'a CodePolicy,
        request_limits: Option<&'a [Limit]>,
        key: KeyStart,
        cost: Cost,
    ) {
        self.push_code_check(CodeCheck::new(code_policy, request_limits, cost), key);
    }

    /// Adds the limits that were charged, with the cost of the adjustment. Units that no longer
    /// count are not refunded.
    #[cfg(feature = "tower")]
    pub(super) fn push_adjustment(&mut self, change: &Adjustment<'a>, now: Timestamp) {
        let Adjustment { code_policy, limits, charged, cost, .. } = *change;
        let check = CodeCheck::new(code_policy, limits, cost);
        for limit in change.limits().filter(|limit| !change.is_expired_refund(limit, now)) {
            let key = self.write_key(code_policy.policy().count_name(), charged.key.as_ref());
            self.push_code_check(CodeCheck { limits: std::slice::from_ref(limit), ..check }, key);
        }
    }

    #[inline(always)]
    fn push_code_check(&mut self, check: CodeCheck<'a>, key: KeyStart) {
        let CodeCheck { code_policy, request_index, limits, prepared, cost, overflow } = check;
        let policy = code_policy.policy();
        if policy.mode() == Mode::Off {
            return self.keys.truncate(key.start);
        }
        let key = self.end_key(key);
        let simple = SimpleCheck { policy: Some(policy.name()), limits, cost, overflow, prepared };
        self.policies.push(PlannedPolicy {
            code_policy: Some(code_policy),
            request_index,
            mode: policy.mode(),
            on_store_failure: policy.on_store_failure(),
            deny_cache: policy.caches_denials(),
            // The options of the store decide for policies in code.
            lease: true,
            ..PlannedPolicy::new(simple, key)
        });
    }

    pub(super) fn push(
        &mut self,
        active: &'a ActivePolicies,
        selected: &SelectedPolicy<'a>,
        request: &GateRequest<'a>,
        index: usize,
    ) {
        let key = self.write_key(selected.policy.name(), selected.key.as_ref());
        let key = self.end_key(key);
        let simple = SimpleCheck {
            policy: Some(selected.policy.name()),
            limits: selected.limits,
            cost: request.cost(selected.cost),
            overflow: selected.overflow.unwrap_or(request.overflow),
            prepared: active.prepared(selected),
        };
        self.policies.push(PlannedPolicy {
            request_index: index,
            is_enforced_quota: selected.policy.is_quota() && selected.mode == Mode::Enforce,
            replaces: selected.policy.replaces(),
            mode: selected.mode,
            on_store_failure: selected.on_store_failure,
            deny_cache: selected.policy.caches_denials(),
            lease: selected.policy.leases(),
            ..PlannedPolicy::new(simple, key)
        });
    }

    /// Writes the prefix of a policy's key. The key itself is appended to [`Plan::keys`].
    #[inline]
    pub(crate) fn begin_key(&mut self, policy: &str) -> KeyStart {
        let start = self.keys.len();
        write_policy(policy, |bytes| self.keys.extend_from_slice(bytes));
        KeyStart { start, key_offset: self.keys.len() }
    }

    #[inline]
    fn end_key(&self, KeyStart { start, key_offset }: KeyStart) -> KeyRange {
        KeyRange { start, key_offset, end: self.keys.len() }
    }

    pub(super) fn write_key(&mut self, policy: &str, key: &[u8]) -> KeyStart {
        let started = self.begin_key(policy);
        self.keys.extend_from_slice(key);
        started
    }

    /// Removes the policies that another one replaces, also across requests.
    #[cold]
    fn replace(&mut self) {
        let replaced = replaced_names(self.policies.iter().map(|planned| planned.replaces));
        self.policies.retain(|planned| planned.policy.is_none_or(|name| !replaced.contains(name)));
    }

    /// Removes observed policies with `concurrency` limits, because observing must not make a
    /// request fail. A policy that the request names is not removed, and is an error.
    fn reject_concurrency(&mut self, requests: &[GateRequest<'_>]) -> Result<(), GateError> {
        if !self.policies.iter().any(PlannedPolicy::has_concurrency) {
            return Ok(());
        }
        let by_name = |planned: &PlannedPolicy<'_>| {
            let subject = requests.get(planned.request_index).map(|request| &request.subject);
            !matches!(subject, Some(Subject::Request(_)))
        };
        self.policies.retain(|planned| {
            planned.mode == Mode::Enforce || !planned.has_concurrency() || by_name(planned)
        });
        match self.policies.iter().find(|planned| planned.has_concurrency()) {
            Some(planned) => Err(GateError::NeedsPermit { policy: planned.policy.map(Into::into) }),
            None => Ok(()),
        }
    }
}

/// What a plan says about its checks.
impl<'a> Plan<'a> {
    /// The checks, in the order of the policies and their limits.
    pub(super) fn checks(&self) -> Checks<'_> {
        let mut leased = self.leased.iter();
        let mut checks = SmallVec::new();
        for planned in &self.policies {
            for limit in planned.limits {
                let limit =
                    if is_concurrency(limit) { leased.next().unwrap_or(limit) } else { limit };
                let planned_cost = (limit, planned.cost);
                let (limit, cost) =
                    self.effective.get(checks.len()).copied().unwrap_or(planned_cost);
                let overflow =
                    if self.defers_overflow { Overflow::Refuse } else { planned.overflow };
                let check = Check { overflow, ..Check::new(self.key_of(planned), limit, cost) };
                let observed = planned.mode == Mode::Observe || planned.skipped;
                checks.push(if observed { check.observed() } else { check });
            }
        }
        checks
    }

    /// The checks for a shared store, with the `on_store_failure` of each.
    pub(super) fn shared_request<'s>(
        &'s self,
        id: Option<&'s [u8]>,
        permit: Option<PermitId>,
    ) -> SharedRequest<'s> {
        let on_failure = self.limits().map(|(planned, _)| planned.on_store_failure).collect();
        let denies = self.limits().any(|(planned, _)| {
            planned.on_store_failure == OnStoreFailure::Deny && planned.mode == Mode::Enforce
        });
        SharedRequest { checks: self.checks(), on_failure, denies, id, permit }
    }

    /// Whether an allowed request charges or refunds anything.
    pub(super) fn changes_counts(&self) -> bool {
        let units = |planned: &PlannedPolicy<'_>| match planned.cost {
            Cost::Ask(units) | Cost::Force(units) | Cost::Refund(units) => units,
        };
        self.policies.iter().any(|planned| units(planned) > 0)
    }

    /// Makes denials charge nothing, whatever the policies specify.
    pub(super) fn disable_overflow(&mut self) {
        for planned in &mut self.policies {
            planned.overflow = Overflow::Refuse;
        }
    }

    /// Whether a policy has a `concurrency` limit.
    pub(super) fn has_concurrency(&self) -> bool {
        self.policies.iter().any(PlannedPolicy::has_concurrency)
    }

    /// Whether the request can wait: a limit is enforced, and no enforced policy has a
    /// `concurrency` limit.
    pub(super) fn can_wait(&self) -> bool {
        let mut enforced = self.policies.iter().filter(|planned| planned.mode == Mode::Enforce);
        enforced.clone().any(|planned| !planned.limits.is_empty())
            && !enforced.any(PlannedPolicy::has_concurrency)
    }

    /// Whether no limit applies.
    pub(super) fn is_empty(&self) -> bool {
        self.limits().next().is_none()
    }

    /// The indexes of the requests that matched a policy without limits.
    pub(super) fn unlimited(&self) -> Vec<usize> {
        let unlimited = self.policies.iter().filter(|planned| planned.limits.is_empty());
        unlimited.map(|planned| planned.request_index).collect()
    }

    /// Whether the store may return a cached denial, which every policy must permit. With several
    /// quotas it may not, because a cached denial does not report which of them are exhausted.
    pub(super) fn caches_denials(&self) -> bool {
        self.quotas < 2 && self.policies.iter().all(|planned| planned.deny_cache)
    }

    /// Whether the store may answer from leased units, which every policy must permit.
    pub(super) fn leases(&self) -> bool {
        self.policies.iter().all(|planned| planned.lease)
    }

    pub(super) fn policies(&self) -> &[PlannedPolicy<'a>] {
        &self.policies
    }

    /// The key of a planned policy as the store sees it.
    pub(super) fn key_of(&self, planned: &PlannedPolicy<'_>) -> &[u8] {
        &self.keys[planned.key.start..planned.key.end]
    }

    /// Every limit with its policy, in the order of the checks.
    pub(super) fn limits(&self) -> impl Iterator<Item = (&PlannedPolicy<'a>, &'a Limit)> {
        let limits = self
            .policies
            .iter()
            .flat_map(|planned| planned.limits.iter().map(move |l| (planned, l)));
        let effective = |index: usize| self.effective.get(index).map(|(limit, _)| *limit);
        limits
            .enumerate()
            .map(move |(index, (planned, limit))| (planned, effective(index).unwrap_or(limit)))
    }

    /// Converts the store's verdict on the checks.
    pub(super) fn verdict_of(&self, verdict: &Verdict) -> GateVerdict<'a> {
        let mut combined = GateVerdict::default();
        combined.set(&self.policies, &self.effective, verdict);
        combined
    }

    /// The key of a planned policy, without the name of the policy.
    pub(super) fn key_without_policy(&self, planned: &PlannedPolicy<'_>) -> &[u8] {
        &self.keys[planned.key.key_offset..planned.key.end]
    }
}

impl<'a> PlannedPolicy<'a> {
    /// Plans enforced limits, with the default of every other setting.
    #[inline(always)]
    fn new(simple: SimpleCheck<'a>, key: KeyRange) -> Self {
        PlannedPolicy {
            policy: simple.policy,
            code_policy: None,
            request_index: 0,
            is_enforced_quota: false,
            skipped: false,
            replaces: &[],
            limits: simple.limits,
            mode: Mode::Enforce,
            cost: simple.cost,
            overflow: simple.overflow,
            on_store_failure: OnStoreFailure::default(),
            deny_cache: true,
            // Limits that callers send are not leased.
            lease: false,
            prepared: simple.prepared,
            key,
        }
    }

    pub(super) fn has_concurrency(&self) -> bool {
        self.limits.iter().any(is_concurrency)
    }

    /// The counter of a limit. Limits that callers provide share one counter.
    pub(super) fn stats_at(&self, index: usize) -> Option<&'a Arc<LimitStats>> {
        let stats = &self.prepared.stats;
        stats.get(index).or(stats.last())
    }

    /// The result of one of its limits.
    #[inline]
    pub(super) fn result(
        &self,
        limit: &'a Limit,
        decision: Decision,
        decided: Decided,
    ) -> LimitResult<'a> {
        // If requests conflict, this may be a limit of another policy, which the header text lacks.
        let is_own = self.limits.as_ptr_range().contains(&std::ptr::from_ref(limit));
        let prerendered = self.prepared.prerendered.as_ref().filter(|_| is_own);
        LimitResult {
            policy: self.policy,
            code_policy: self.code_policy,
            request_index: self.request_index,
            limit,
            prerendered,
            mode: self.mode,
            decision,
            decided,
            exceeds_node_share: false,
        }
    }
}

/// Writes the prefix of a policy's keys in the store. Names cannot contain NUL, so two policies
/// never share a count.
#[inline]
pub(super) fn write_policy(policy: &str, mut append: impl FnMut(&[u8])) {
    append(policy.as_bytes());
    append(&[0]);
}
