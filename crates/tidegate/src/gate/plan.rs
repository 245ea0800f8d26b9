//! From a question to checks, and from their verdict back to an answer.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Decision, Limit, Timestamp, bounds};

use super::active_policies::Compiled;
#[cfg(feature = "tower")]
use super::code_policy::Adjustment;
use super::code_policy::CodePolicy;
use super::conflicts::EffectiveCheck;
use super::permits::AnyPermit;
use super::{ActivePolicies, GateError, GateRequest, GateVerdict, LimitResult, Subject};
use crate::buffer::Buffer;
use crate::policy::{CostSource, Mode, OnStoreFailure, Selected, is_concurrency};
use crate::request::overflowing;
use crate::stats::{Decided, LimitStats, Outcome, ServiceTimer};
use crate::{Check, CheckError, Limiter, MAX_CHECKS, Overflow, Verdict};

/// Room for the keys of a usual request without asking for memory.
pub(crate) type KeyBytes = Buffer<128>;

/// What is done with `concurrency` limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConcurrencyMode {
    /// Refused: they cannot be held.
    Reject,
    /// Looked at.
    Peek,
    /// Held, where there are any.
    Acquire,
    /// Held, perhaps for less than their lease.
    AcquirePermit(Option<Duration>),
}

/// The checks of one question, or of several that are decided together. Made empty and filled
/// where it lies: it is large.
#[derive(Default)]
pub(crate) struct Plan<'a> {
    pub(super) policies: SmallVec<[PlannedPolicy<'a>; 4]>,
    /// The keys of all parts as the store sees them.
    pub(crate) keys: KeyBytes,
    /// `concurrency` limits with the lease that was asked for, in order.
    leased: Vec<Limit>,
    /// What the checks are decided under where several questions differ about one count;
    /// empty if none do.
    effective: Vec<EffectiveCheck<'a>>,
    /// How many quotas there are, of which one is enough.
    pub(super) quotas: usize,
    /// Whether a denial must not consume yet: another quota may have room.
    pub(super) defers_overflow: bool,
    /// The answer to the last attempt. It is large, so it is filled in place and moved at most once.
    pub(crate) verdict: GateVerdict<'a>,
    /// The permit that was taken, if one was.
    pub(crate) permit: Option<AnyPermit>,
    /// A timer for the service of a request that was let in, if that is timed.
    pub(crate) timer: Option<ServiceTimer>,
}

/// One policy, or the caller's own limits.
pub(super) struct PlannedPolicy<'a> {
    pub(super) policy: Option<&'a str>,
    /// The policy itself, if it is the program's own: one that was loaded may have its name.
    code_policy: Option<&'a CodePolicy>,
    /// Which question it belongs to.
    request: usize,
    /// Whether it is a quota that has a say.
    pub(super) quota: bool,
    /// Whether it is a quota that is used up, and is passed over for another.
    pub(super) skipped: bool,
    /// Whose place it takes.
    replaces: &'a [Box<str>],
    pub(super) limits: &'a [Limit],
    pub(super) mode: Mode,
    pub(super) cost: Cost,
    pub(super) overflow: Overflow,
    pub(super) on_store_failure: OnStoreFailure,
    deny_cache: bool,
    compiled: &'a Compiled,
    key: KeyRange,
}

/// Where the key of a part lies, and where in that the part behind the policy's name.
#[derive(Clone, Copy)]
struct KeyRange {
    start: usize,
    key_offset: usize,
    end: usize,
}

/// A key that is being written.
#[derive(Clone, Copy)]
pub(crate) struct KeyStart {
    pub(crate) start: usize,
    /// Where the part behind the policy's name begins.
    pub(crate) key_offset: usize,
}

/// Limits that are enforced, with nothing else to know about them.
#[derive(Clone, Copy)]
pub(super) struct SimpleCheck<'a> {
    /// The policy they belong to; `None` for the caller's own.
    pub(super) policy: Option<&'a str>,
    pub(super) limits: &'a [Limit],
    pub(super) cost: Cost,
    pub(super) overflow: Overflow,
    pub(super) compiled: &'a Compiled,
}

/// A check of a policy in code.
#[derive(Clone, Copy)]
struct CodeCheck<'a> {
    code_policy: &'a CodePolicy,
    request: usize,
    limits: &'a [Limit],
    compiled: &'a Compiled,
    cost: Cost,
    overflow: Overflow,
}

impl<'a> CodeCheck<'a> {
    /// Under the limits that came with the request, or the policy's.
    #[inline]
    fn new(code_policy: &'a CodePolicy, given: Option<&'a [Limit]>, cost: Cost) -> Self {
        let (limits, compiled) = code_policy.limits_or(given);
        let overflow = code_policy.policy().overflow().unwrap_or_default();
        CodeCheck { code_policy, request: 0, limits, compiled, cost, overflow }
    }
}

impl<'a> Plan<'a> {
    /// Plans questions that are decided together.
    pub(super) fn build(
        &mut self,
        active: &'a ActivePolicies,
        requests: &[GateRequest<'a>],
        concurrency: ConcurrencyMode,
    ) -> Result<(), GateError> {
        for (index, request) in requests.iter().enumerate() {
            self.match_policies(active, request, index)?;
            // Found here, before a long list of descriptors has taken its memory.
            let count = self.limits().count();
            if count > MAX_CHECKS {
                return Err(GateError::Check(CheckError::TooManyChecks(count)));
            }
        }
        self.finalize(requests, concurrency)
    }

    /// Leaves out what is replaced or cannot be had, once all questions are in.
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
            self.quotas = self.policies.iter().filter(|planned| planned.quota).count();
            self.defers_overflow = self.has_choice();
        }
        match concurrency {
            ConcurrencyMode::Reject => self.reject_concurrency(requests),
            ConcurrencyMode::Peek | ConcurrencyMode::Acquire => Ok(()),
            ConcurrencyMode::AcquirePermit(lease) => self.lease(lease),
        }
    }

    /// Adds what a question meets.
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
                    return Err(GateError::unknown_policy(policy));
                };
                if selected.mode != Mode::Off {
                    self.push(active, &selected, request, index);
                }
            }
            Subject::Limits { key, limits } => {
                // No policy has an empty name, so callers' own limits stand apart.
                let key = self.write_key("", key);
                let (cost, overflow) = (request.cost(1), request.overflow);
                let simple =
                    SimpleCheck { policy: None, limits, cost, overflow, compiled: active.caller() };
                self.push_simple(simple, key, index);
            }
            Subject::CodePolicy { policy: code_policy, key, .. } => {
                let units = match code_policy.policy().cost() {
                    CostSource::Fixed(units) => *units,
                    CostSource::From(_) => 1,
                };
                let ask = CodeCheck {
                    request: index,
                    ..CodeCheck::new(code_policy, None, request.cost(units))
                };
                let overflow = code_policy.policy().overflow().unwrap_or(request.overflow);
                let key = self.write_key(code_policy.policy().count_name(), key.to_key().as_ref());
                self.push_code_check(CodeCheck { overflow, ..ask }, key);
            }
        }
        Ok(())
    }

    /// Adds limits that are enforced, under the key that was begun and written.
    pub(super) fn push_simple(&mut self, simple: SimpleCheck<'a>, key: KeyStart, request: usize) {
        let key = self.end_key(key);
        self.policies.push(PlannedPolicy {
            policy: simple.policy,
            code_policy: None,
            request,
            quota: false,
            skipped: false,
            replaces: &[],
            limits: simple.limits,
            mode: Mode::Enforce,
            cost: simple.cost,
            overflow: simple.overflow,
            on_store_failure: OnStoreFailure::default(),
            deny_cache: true,
            compiled: simple.compiled,
            key,
        });
    }

    /// Drops all parts and keys, for another question.
    pub(super) fn clear(&mut self) {
        self.policies.clear();
        self.keys.truncate(0);
    }

    /// Adds a policy of the program's own, under the key that was begun and written. Limits that
    /// came with the request take the place of the policy's.
    #[inline]
    pub(crate) fn push_code_policy(
        &mut self,
        code_policy: &'a CodePolicy,
        given: Option<&'a [Limit]>,
        key: KeyStart,
        cost: Cost,
    ) {
        self.push_code_check(CodeCheck::new(code_policy, given, cost), key);
    }

    /// Adds the limits that were charged, at another cost. Units that no longer count are not given
    /// back.
    #[cfg(feature = "tower")]
    pub(super) fn push_adjustment(&mut self, change: &Adjustment<'a>, now: Timestamp) {
        let Adjustment { code_policy, limits, charged, cost } = *change;
        let ask = CodeCheck::new(code_policy, limits, cost);
        for index in charged.limits() {
            if let Some(limits @ [limit]) = ask.limits.get(index..=index)
                && !charged.is_expired_refund(cost, limit, now)
            {
                let key = self.write_key(code_policy.policy().count_name(), charged.key.as_ref());
                self.push_code_check(CodeCheck { limits, ..ask }, key);
            }
        }
    }

    #[inline(always)]
    fn push_code_check(&mut self, ask: CodeCheck<'a>, key: KeyStart) {
        let CodeCheck { code_policy, request, limits, compiled, cost, overflow } = ask;
        let policy = code_policy.policy();
        if policy.mode() == Mode::Off {
            return self.keys.truncate(key.start);
        }
        let key = self.end_key(key);
        self.policies.push(PlannedPolicy {
            policy: Some(policy.name()),
            code_policy: Some(code_policy),
            request,
            quota: false,
            skipped: false,
            replaces: &[],
            limits,
            mode: policy.mode(),
            cost,
            overflow,
            on_store_failure: policy.on_store_failure(),
            deny_cache: policy.deny_cache(),
            compiled,
            key,
        });
    }

    pub(super) fn push(
        &mut self,
        active: &'a ActivePolicies,
        selected: &Selected<'a>,
        request: &GateRequest<'a>,
        index: usize,
    ) {
        let key = self.write_key(selected.policy.name(), selected.key.as_ref());
        let key = self.end_key(key);
        self.policies.push(PlannedPolicy {
            policy: Some(selected.policy.name()),
            code_policy: None,
            request: index,
            quota: selected.policy.quota() && selected.mode == Mode::Enforce,
            skipped: false,
            replaces: selected.policy.replaces(),
            limits: selected.limits,
            mode: selected.mode,
            cost: request.cost(selected.cost),
            overflow: selected.overflow.unwrap_or(request.overflow),
            on_store_failure: selected.on_store_failure,
            deny_cache: selected.policy.deny_cache(),
            compiled: active.compiled(selected),
            key,
        });
    }

    /// Writes the prefix of a policy's key. The key itself is appended to [`Plan::keys`].
    #[inline]
    pub(crate) fn begin_key(&mut self, policy: &str) -> KeyStart {
        let start = self.keys.len();
        write_policy(policy, &mut self.keys);
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

    /// Leaves out policies whose place another takes, whichever question it was for.
    #[cold]
    fn replace(&mut self) {
        let replaced: HashSet<&str> = self
            .policies
            .iter()
            .flat_map(|planned| planned.replaces.iter().map(|name| &**name))
            .collect();
        self.policies.retain(|planned| planned.policy.is_none_or(|name| !replaced.contains(name)));
    }

    /// A policy that only watches must not make requests fail, so it is left out;
    /// unless it was asked for by name.
    fn reject_concurrency(&mut self, requests: &[GateRequest<'_>]) -> Result<(), GateError> {
        if !self.policies.iter().any(PlannedPolicy::is_concurrency) {
            return Ok(());
        }
        let by_name = |planned: &PlannedPolicy<'_>| {
            let subject = requests.get(planned.request).map(|request| &request.subject);
            !matches!(subject, Some(Subject::Request(_)))
        };
        self.policies.retain(|planned| {
            planned.mode == Mode::Enforce || !planned.is_concurrency() || by_name(planned)
        });
        match self.policies.iter().find(|planned| planned.is_concurrency()) {
            Some(planned) => Err(GateError::NeedsPermit { policy: planned.policy.map(Into::into) }),
            None => Ok(()),
        }
    }

    /// Gives `concurrency` limits the lease that was asked for.
    fn lease(&mut self, lease: Option<Duration>) -> Result<(), GateError> {
        let concurrency_limits = || {
            self.policies.iter().flat_map(|planned| planned.limits).filter(|l| is_concurrency(l))
        };
        if concurrency_limits().next().is_none() && !self.policies.is_empty() {
            let policy = match &self.policies[..] {
                [only] => only.policy.map(Into::into),
                _ => None,
            };
            return Err(GateError::NoConcurrencyLimit { policy });
        }
        let Some(lease) = lease else { return Ok(()) };
        let leased: Option<Vec<Limit>> = concurrency_limits()
            .map(|limit| {
                let fits = lease <= Duration::from_micros(limit.window_us());
                fits.then(|| Limit::concurrent(limit.count(), lease).ok()).flatten()
            })
            .collect();
        let max_lease = Duration::from_micros(self.max_lease_us());
        self.leased =
            leased.filter(|_| lease <= max_lease).ok_or(GateError::LeaseTooLong { max_lease })?;
        Ok(())
    }

    /// The longest lease that can be asked for: the shortest of the limits' own, or
    /// any there can be where nothing is held.
    pub(super) fn max_lease_us(&self) -> u64 {
        let limits = self.policies.iter().flat_map(|planned| planned.limits);
        let leases = limits.filter(|limit| is_concurrency(limit)).map(Limit::window_us);
        leases.min().unwrap_or(bounds::MAX_WINDOW_US)
    }

    /// The shortest lease among the limits that are held.
    pub(super) fn lease_us(&self) -> Option<u64> {
        let checks = self.checks();
        checks
            .iter()
            .filter(|check| is_concurrency(check.limit))
            .map(|check| check.limit.window_us())
            .min()
    }

    pub(super) fn checks(&self) -> SmallVec<[Check<'_>; 4]> {
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

    /// Decides the only check, if there is one, it is enforced and a denial of it charges nothing.
    /// `None` otherwise.
    pub(super) fn decide_single(&mut self, limiter: &Limiter) -> Option<Result<(), CheckError>> {
        let [planned] = &self.policies[..] else { return None };
        let (&PlannedPolicy { mode, cost, overflow, .. }, [limit]) = (planned, planned.limits)
        else {
            return None;
        };
        if mode != Mode::Enforce || overflowing(overflow, limit, cost) > 0 {
            return None;
        }
        let check = Check::new(&self.keys[planned.key.start..planned.key.end], limit, cost);
        let result = planned.result(limit, Decision::default(), Decided::Exact);
        Some(self.verdict.decide_one(result, limiter, &check))
    }

    /// Whether anything would be charged or given back, were it allowed.
    pub(super) fn charges(&self) -> bool {
        let units = |planned: &PlannedPolicy<'_>| match planned.cost {
            Cost::Ask(units) | Cost::Force(units) | Cost::Refund(units) => units,
        };
        self.policies.iter().any(|planned| units(planned) > 0)
    }

    /// Charges nothing on a denial, whatever the policies say.
    pub(super) fn disable_overflow(&mut self) {
        for planned in &mut self.policies {
            planned.overflow = Overflow::Refuse;
        }
    }

    /// Whether there is a place to hold.
    pub(super) fn is_concurrency(&self) -> bool {
        self.policies.iter().any(PlannedPolicy::is_concurrency)
    }

    /// Whether there is something to wait for: a limit that has a say, and no place that must
    /// be had.
    pub(super) fn can_wait(&self) -> bool {
        let mut enforced = self.policies.iter().filter(|planned| planned.mode == Mode::Enforce);
        enforced.clone().any(|planned| !planned.limits.is_empty())
            && !enforced.any(PlannedPolicy::is_concurrency)
    }

    /// Takes out the policies that are only observed and have places, as a plan of their own.
    pub(super) fn split_off_observed(&mut self) -> Plan<'a> {
        let mut split = Plan::default();
        let is_observed =
            |planned: &PlannedPolicy<'_>| planned.mode == Mode::Observe && planned.is_concurrency();
        if !self.policies.iter().any(is_observed) {
            return split;
        }
        // Where a part's key lies stays true.
        split.keys.clone_from(&self.keys);
        let (observed, rest) = self.policies.drain(..).partition(is_observed);
        (split.policies, self.policies) = (observed, rest);
        self.resolve_conflicts();
        split.resolve_conflicts();
        split
    }

    /// Takes back what was set aside, its answer and its permit, behind everything else.
    pub(super) fn rejoin(&mut self, split: Plan<'a>) {
        self.permit = split.permit;
        self.policies.extend(split.policies);
        self.verdict.results.extend(split.verdict.results);
        self.resolve_conflicts();
    }

    /// What came of each policy: where it is counted, and how.
    pub(super) fn outcomes(&self) -> impl Iterator<Item = (&LimitStats, Outcome)> {
        let mut results = self.verdict.results.iter();
        self.policies.iter().filter_map(move |planned| {
            let results = results.by_ref().take(planned.limits.len());
            let denied = results.filter(|result| !result.decision.allowed).count() > 0;
            let outcome = if denied { Outcome::WouldDeny } else { Outcome::Allowed };
            Some((&**planned.compiled.stats.first()?, outcome))
        })
    }

    /// Whether no limit holds.
    pub(super) fn is_empty(&self) -> bool {
        self.limits().next().is_none()
    }

    /// The questions that met a policy without limits.
    pub(super) fn unlimited(&self) -> Vec<usize> {
        let unlimited = self.policies.iter().filter(|planned| planned.limits.is_empty());
        unlimited.map(|planned| planned.request).collect()
    }

    /// Whether every policy lets a denial be answered from memory. Of several quotas we must
    /// know which are used up, and memory knows only that it was denied.
    pub(super) fn caches_denials(&self) -> bool {
        self.quotas < 2 && self.policies.iter().all(|planned| planned.deny_cache)
    }

    /// Sees to it that questions which differ about one count can be decided.
    pub(super) fn resolve_conflicts(&mut self) {
        self.effective.clear();
        if self.policies.len() > 1 {
            self.effective = self.effective_checks();
        }
    }

    pub(super) fn policies(&self) -> &[PlannedPolicy<'a>] {
        &self.policies
    }

    /// A part's key as the store sees it.
    pub(super) fn key_of(&self, planned: &PlannedPolicy<'_>) -> &[u8] {
        &self.keys[planned.key.start..planned.key.end]
    }

    /// Every limit with its part, in the order of the checks.
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

    /// The answer that a verdict on the checks gives.
    pub(super) fn verdict_of(&self, verdict: &Verdict) -> GateVerdict<'a> {
        let mut combined = GateVerdict::default();
        combined.set(&self.policies, &self.effective, verdict);
        combined
    }

    /// Keeps the answer that a verdict on the checks gives.
    pub(super) fn set_verdict(&mut self, verdict: &Verdict) {
        self.verdict.set(&self.policies, &self.effective, verdict);
    }

    /// Where what this limit decides is counted.
    fn stats_of(&self, limit: &Limit) -> Option<&'a Arc<LimitStats>> {
        self.policies.iter().find_map(|planned| {
            let index = planned.limits.iter().position(|other| std::ptr::eq(other, limit))?;
            planned.stats_at(index)
        })
    }

    /// Passes every line that is counted in the statistics to `visit`, with its part and its counters.
    /// Peeks, refunds and forced charges are not counted.
    #[inline]
    pub(super) fn for_each_counted<'s>(
        &'s self,
        mut visit: impl FnMut(&'s PlannedPolicy<'a>, &'s LimitResult<'a>, &'s LimitStats),
    ) {
        let mut results = self.verdict.results.iter();
        for planned in &self.policies {
            let is_charged = matches!(planned.cost, Cost::Ask(1..));
            for (index, result) in results.by_ref().take(planned.limits.len()).enumerate() {
                if !is_charged {
                    continue;
                }
                // Where others have a stricter limit, that is the one which has decided.
                let decisive =
                    if self.effective.is_empty() { None } else { self.stats_of(result.limit) };
                if let Some(stats) = decisive.or_else(|| planned.stats_at(index)) {
                    visit(planned, result, stats);
                }
            }
        }
    }

    /// The key of a part, without its policy's name.
    pub(super) fn key_without_policy(&self, planned: &PlannedPolicy<'_>) -> &[u8] {
        &self.keys[planned.key.key_offset..planned.key.end]
    }
}

impl<'a> PlannedPolicy<'a> {
    fn is_concurrency(&self) -> bool {
        self.limits.iter().any(is_concurrency)
    }

    /// Where one of its limits is counted; those of the caller's own share one counter.
    fn stats_at(&self, index: usize) -> Option<&'a Arc<LimitStats>> {
        let stats = &self.compiled.stats;
        stats.get(index).or(stats.last())
    }

    /// What one of its limits has answered.
    #[inline]
    pub(super) fn result(
        &self,
        limit: &'a Limit,
        decision: Decision,
        decided: Decided,
    ) -> LimitResult<'a> {
        // Where questions differ about one count, another policy's limit may have decided.
        let is_own = self.limits.as_ptr_range().contains(&std::ptr::from_ref(limit));
        let fields = self.compiled.fields.as_ref().filter(|_| is_own);
        LimitResult {
            policy: self.policy,
            code_policy: self.code_policy,
            request: self.request,
            limit,
            fields,
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
pub(super) fn write_policy<const N: usize>(policy: &str, out: &mut Buffer<N>) {
    out.extend_from_slice(policy.as_bytes());
    out.extend_from_slice(&[0]);
}
