//! From a question to checks, and from their verdict back to an answer.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Decision, Limit, Timestamp};

use super::active_policies::Compiled;
#[cfg(feature = "tower")]
use super::code_policy::Adjustment;
use super::code_policy::CodePolicy;
use super::conflicts::EffectiveCheck;
use super::permits::AnyPermit;
use super::{ActivePolicies, GateError, GateRequest, GateVerdict, LimitResult, Subject};
use crate::policy::{CostSource, Mode, OnStoreFailure, Selected, is_concurrency};
use crate::stats::{Decided, LimitStats, ServiceTimer};
use crate::text::InlineBytes;
use crate::{CheckError, MAX_CHECKS, Overflow};

/// Room for the keys of a usual request without asking for memory.
pub(crate) type KeyBytes = InlineBytes<128>;

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
    pub(super) leased: Vec<Limit>,
    /// What the checks are decided under where several questions differ about one count;
    /// empty if none do.
    pub(super) effective: Vec<EffectiveCheck<'a>>,
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
    pub(super) code_policy: Option<&'a CodePolicy>,
    /// Which question it belongs to.
    pub(super) request: usize,
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
    pub(super) deny_cache: bool,
    pub(super) compiled: &'a Compiled,
    pub(super) key: KeyRange,
}

/// Where the key of a part lies, and where in that the part behind the policy's name.
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
                let check = CodeCheck {
                    request: index,
                    ..CodeCheck::new(code_policy, None, request.cost(units))
                };
                let overflow = code_policy.policy().overflow().unwrap_or(request.overflow);
                let key = self.write_key(code_policy.policy().count_name(), key.to_key().as_ref());
                self.push_code_check(CodeCheck { overflow, ..check }, key);
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
        let Adjustment { code_policy, limits, charged, cost, .. } = *change;
        let check = CodeCheck::new(code_policy, limits, cost);
        for index in charged.limits() {
            if let Some(limits @ [limit]) = check.limits.get(index..=index)
                && !change.is_expired_refund(limit, now)
            {
                let key = self.write_key(code_policy.policy().count_name(), charged.key.as_ref());
                self.push_code_check(CodeCheck { limits, ..check }, key);
            }
        }
    }

    #[inline(always)]
    fn push_code_check(&mut self, check: CodeCheck<'a>, key: KeyStart) {
        let CodeCheck { code_policy, request, limits, compiled, cost, overflow } = check;
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
        if !self.policies.iter().any(PlannedPolicy::has_concurrency) {
            return Ok(());
        }
        let by_name = |planned: &PlannedPolicy<'_>| {
            let subject = requests.get(planned.request).map(|request| &request.subject);
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

impl<'a> PlannedPolicy<'a> {
    pub(super) fn has_concurrency(&self) -> bool {
        self.limits.iter().any(is_concurrency)
    }

    /// Where one of its limits is counted; those of the caller's own share one counter.
    pub(super) fn stats_at(&self, index: usize) -> Option<&'a Arc<LimitStats>> {
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
pub(super) fn write_policy<const N: usize>(policy: &str, out: &mut InlineBytes<N>) {
    out.extend_from_slice(policy.as_bytes());
    out.extend_from_slice(&[0]);
}
