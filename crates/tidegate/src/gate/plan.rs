//! From a question to checks, and from their verdict back to an answer.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Decision, Limit, Timestamp, bounds};

use super::agree::Agreed;
use super::held::HeldPermit;
#[cfg(feature = "tower")]
use super::own::Change;
use super::own::OwnPolicy;
use super::rules::Compiled;
use super::{Answer, GateError, Line, Question, Rules, Subject};
use crate::buffer::Buffer;
use crate::check::overflowing;
use crate::policy::{Charge, Mode, OnStoreFailure, Selected, holds};
use crate::stats::{Decided, LimitStats, Outcome, ServiceTimer};
use crate::{Check, CheckError, Limiter, MAX_CHECKS, Overflow, Verdict};

/// Room for the keys of a usual request without asking for memory.
pub(crate) type KeyBytes = Buffer<128>;

/// What is done with `concurrency` limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taking {
    /// Refused: they cannot be held.
    Nothing,
    /// Looked at.
    Look,
    /// Held, where there are any.
    Places,
    /// Held, perhaps for less than their lease.
    Permit(Option<Duration>),
}

/// The checks of one question, or of several that are decided together. Made empty and filled
/// where it lies: it is large.
#[derive(Default)]
pub(crate) struct Plan<'a> {
    pub(super) parts: SmallVec<[Part<'a>; 4]>,
    /// The keys of all parts as the store sees them.
    pub(crate) keys: KeyBytes,
    /// `concurrency` limits with the lease that was asked for, in order.
    leased: Vec<Limit>,
    /// What the checks are decided under where several questions differ about one count;
    /// empty if none do.
    agreed: Vec<Agreed<'a>>,
    /// How many quotas there are, of which one is enough.
    pub(super) quotas: usize,
    /// Whether a denial must not consume yet: another quota may have room.
    pub(super) withholds: bool,
    /// The answer to the last attempt. It is large, so it is filled in place and moved at most once.
    pub(crate) answer: Answer<'a>,
    /// The permit that was taken, if one was.
    pub(crate) permit: Option<HeldPermit>,
    /// A timer for the service of a request that was let in, if that is timed.
    pub(crate) timer: Option<ServiceTimer>,
}

/// One policy, or the caller's own limits.
pub(super) struct Part<'a> {
    pub(super) policy: Option<&'a str>,
    /// The policy itself, if it is the program's own: one that was loaded may have its name.
    own: Option<&'a OwnPolicy>,
    /// Which question it belongs to.
    question: usize,
    /// Whether it is a quota that has a say.
    pub(super) quota: bool,
    /// Whether it is a quota that is used up, and is passed over for another.
    pub(super) spent: bool,
    /// Whose place it takes.
    replaces: &'a [Box<str>],
    pub(super) limits: &'a [Limit],
    pub(super) mode: Mode,
    pub(super) cost: Cost,
    pub(super) overflow: Overflow,
    pub(super) on_store_failure: OnStoreFailure,
    deny_cache: bool,
    compiled: &'a Compiled,
    key: PartKey,
}

/// Where the key of a part lies, and where in that the part behind the policy's name.
#[derive(Clone, Copy)]
struct PartKey {
    start: usize,
    bare: usize,
    end: usize,
}

/// A key that is being written.
#[derive(Clone, Copy)]
pub(crate) struct KeyStart {
    pub(crate) start: usize,
    /// Where the part behind the policy's name begins.
    pub(crate) bare: usize,
}

/// Limits that are enforced, with nothing else to know about them.
#[derive(Clone, Copy)]
pub(super) struct Plain<'a> {
    /// The policy they belong to; `None` for the caller's own.
    pub(super) policy: Option<&'a str>,
    pub(super) limits: &'a [Limit],
    pub(super) cost: Cost,
    pub(super) overflow: Overflow,
    pub(super) compiled: &'a Compiled,
}

/// A check of a policy in code.
#[derive(Clone, Copy)]
struct OwnAsk<'a> {
    own: &'a OwnPolicy,
    question: usize,
    limits: &'a [Limit],
    compiled: &'a Compiled,
    cost: Cost,
    overflow: Overflow,
}

impl<'a> OwnAsk<'a> {
    /// Under the limits that came with the request, or the policy's.
    #[inline]
    fn new(own: &'a OwnPolicy, given: Option<&'a [Limit]>, cost: Cost) -> Self {
        let (limits, compiled) = own.limits_or(given);
        let overflow = own.policy().overflow().unwrap_or_default();
        OwnAsk { own, question: 0, limits, compiled, cost, overflow }
    }
}

impl<'a> Plan<'a> {
    /// Plans questions that are decided together.
    pub(super) fn fill(
        &mut self,
        rules: &'a Rules,
        questions: &[Question<'a>],
        taking: Taking,
    ) -> Result<(), GateError> {
        for (index, question) in questions.iter().enumerate() {
            self.meet(rules, question, index)?;
            // Found here, before a long list of descriptors has taken its memory.
            let count = self.each().count();
            if count > MAX_CHECKS {
                return Err(GateError::Check(CheckError::TooManyChecks(count)));
            }
        }
        self.settle(questions, taking)
    }

    /// Leaves out what is replaced or cannot be had, once all questions are in.
    #[inline(always)]
    pub(crate) fn settle(
        &mut self,
        questions: &[Question<'a>],
        taking: Taking,
    ) -> Result<(), GateError> {
        if self.parts.iter().any(|part| !part.replaces.is_empty()) {
            self.replace();
        }
        if self.parts.len() > 1 {
            self.agree();
            self.quotas = self.parts.iter().filter(|part| part.quota).count();
            self.withholds = self.has_choice();
        }
        match taking {
            Taking::Nothing => self.refuse_concurrency(questions),
            Taking::Look | Taking::Places => Ok(()),
            Taking::Permit(lease) => self.lease(lease),
        }
    }

    /// Adds what a question meets.
    pub(crate) fn meet(
        &mut self,
        rules: &'a Rules,
        question: &Question<'a>,
        index: usize,
    ) -> Result<(), GateError> {
        let policies = rules.policies();
        match question.subject {
            Subject::Request(attributes) => {
                for selected in policies.meet(attributes)? {
                    self.push(rules, &selected, question, index);
                }
            }
            Subject::Policy { policy, attributes } => {
                if let Some(selected) = policies.select_named(policy, attributes)? {
                    self.push(rules, &selected, question, index);
                }
            }
            Subject::Key { policy, key, attributes } => {
                let Some(selected) = policies.named(policy, key, attributes) else {
                    return Err(GateError::unknown_policy(policy));
                };
                if selected.mode != Mode::Off {
                    self.push(rules, &selected, question, index);
                }
            }
            Subject::Limits { key, limits } => {
                // No policy has an empty name, so callers' own limits stand apart.
                let key = self.write_key("", key);
                let (cost, overflow) = (question.cost(1), question.overflow);
                let plain =
                    Plain { policy: None, limits, cost, overflow, compiled: rules.caller() };
                self.push_plain(plain, key, index);
            }
            Subject::Own { policy: own, key, .. } => {
                let units = match own.policy().cost() {
                    Charge::Fixed(units) => *units,
                    Charge::From(_) => 1,
                };
                let ask =
                    OwnAsk { question: index, ..OwnAsk::new(own, None, question.cost(units)) };
                let overflow = own.policy().overflow().unwrap_or(question.overflow);
                let key = self.write_key(own.policy().count_name(), key.to_key().as_ref());
                self.push_own_ask(OwnAsk { overflow, ..ask }, key);
            }
        }
        Ok(())
    }

    /// Adds limits that are enforced, under the key that was begun and written.
    pub(super) fn push_plain(&mut self, plain: Plain<'a>, key: KeyStart, question: usize) {
        let key = self.end_key(key);
        self.parts.push(Part {
            policy: plain.policy,
            own: None,
            question,
            quota: false,
            spent: false,
            replaces: &[],
            limits: plain.limits,
            mode: Mode::Enforce,
            cost: plain.cost,
            overflow: plain.overflow,
            on_store_failure: OnStoreFailure::default(),
            deny_cache: true,
            compiled: plain.compiled,
            key,
        });
    }

    /// Drops all parts and keys, for another question.
    pub(super) fn clear(&mut self) {
        self.parts.clear();
        self.keys.truncate(0);
    }

    /// Adds a policy of the program's own, under the key that was begun and written. Limits that
    /// came with the request take the place of the policy's.
    #[inline]
    pub(crate) fn push_own(
        &mut self,
        own: &'a OwnPolicy,
        given: Option<&'a [Limit]>,
        key: KeyStart,
        cost: Cost,
    ) {
        self.push_own_ask(OwnAsk::new(own, given, cost), key);
    }

    /// Adds the limits that were charged, at another cost. Units that no longer count are not given
    /// back.
    #[cfg(feature = "tower")]
    pub(super) fn push_change(&mut self, change: &Change<'a>, now: Timestamp) {
        let Change { own, limits, charged, cost } = *change;
        let ask = OwnAsk::new(own, limits, cost);
        for index in charged.limits() {
            if let Some(limits @ [limit]) = ask.limits.get(index..=index)
                && !charged.is_too_late(cost, limit, now)
            {
                let key = self.write_key(own.policy().count_name(), charged.key.as_ref());
                self.push_own_ask(OwnAsk { limits, ..ask }, key);
            }
        }
    }

    #[inline(always)]
    fn push_own_ask(&mut self, ask: OwnAsk<'a>, key: KeyStart) {
        let OwnAsk { own, question, limits, compiled, cost, overflow } = ask;
        let policy = own.policy();
        if policy.mode() == Mode::Off {
            return self.keys.truncate(key.start);
        }
        let key = self.end_key(key);
        self.parts.push(Part {
            policy: Some(policy.name()),
            own: Some(own),
            question,
            quota: false,
            spent: false,
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
        rules: &'a Rules,
        selected: &Selected<'a>,
        question: &Question<'a>,
        index: usize,
    ) {
        let key = self.write_key(selected.policy.name(), selected.key.as_ref());
        let key = self.end_key(key);
        self.parts.push(Part {
            policy: Some(selected.policy.name()),
            own: None,
            question: index,
            quota: selected.policy.quota() && selected.mode == Mode::Enforce,
            spent: false,
            replaces: selected.policy.replaces(),
            limits: selected.limits,
            mode: selected.mode,
            cost: question.cost(selected.cost),
            overflow: selected.overflow.unwrap_or(question.overflow),
            on_store_failure: selected.on_store_failure,
            deny_cache: selected.policy.deny_cache(),
            compiled: rules.compiled(selected),
            key,
        });
    }

    /// Writes the prefix of a policy's key. The key itself is appended to [`Plan::keys`].
    #[inline]
    pub(crate) fn begin_key(&mut self, policy: &str) -> KeyStart {
        let start = self.keys.len();
        write_policy(policy, &mut self.keys);
        KeyStart { start, bare: self.keys.len() }
    }

    #[inline]
    fn end_key(&self, KeyStart { start, bare }: KeyStart) -> PartKey {
        PartKey { start, bare, end: self.keys.len() }
    }

    pub(super) fn write_key(&mut self, policy: &str, key: &[u8]) -> KeyStart {
        let begun = self.begin_key(policy);
        self.keys.extend_from_slice(key);
        begun
    }

    /// Leaves out policies whose place another takes, whichever question it was for.
    #[cold]
    fn replace(&mut self) {
        let replaced: HashSet<&str> =
            self.parts.iter().flat_map(|part| part.replaces.iter().map(|name| &**name)).collect();
        self.parts.retain(|part| part.policy.is_none_or(|name| !replaced.contains(name)));
    }

    /// A policy that only watches must not make requests fail, so it is left out;
    /// unless it was asked for by name.
    fn refuse_concurrency(&mut self, questions: &[Question<'_>]) -> Result<(), GateError> {
        if !self.parts.iter().any(Part::holds) {
            return Ok(());
        }
        let by_name = |part: &Part<'_>| {
            let subject = questions.get(part.question).map(|question| &question.subject);
            !matches!(subject, Some(Subject::Request(_)))
        };
        self.parts.retain(|part| part.mode == Mode::Enforce || !part.holds() || by_name(part));
        match self.parts.iter().find(|part| part.holds()) {
            Some(part) => Err(GateError::NeedsPermit { policy: part.policy.map(Into::into) }),
            None => Ok(()),
        }
    }

    /// Gives `concurrency` limits the lease that was asked for.
    fn lease(&mut self, lease: Option<Duration>) -> Result<(), GateError> {
        let holding = || self.parts.iter().flat_map(|part| part.limits).filter(|l| holds(l));
        if holding().next().is_none() && !self.parts.is_empty() {
            let policy = match &self.parts[..] {
                [only] => only.policy.map(Into::into),
                _ => None,
            };
            return Err(GateError::NothingToHold { policy });
        }
        let Some(lease) = lease else { return Ok(()) };
        let leased: Option<Vec<Limit>> = holding()
            .map(|limit| {
                let fits = lease <= Duration::from_micros(limit.window_us());
                fits.then(|| Limit::concurrent(limit.count(), lease).ok()).flatten()
            })
            .collect();
        let most = Duration::from_micros(self.longest_us());
        self.leased = leased.filter(|_| lease <= most).ok_or(GateError::LeaseTooLong { most })?;
        Ok(())
    }

    /// The longest lease that can be asked for: the shortest of the limits' own, or
    /// any there can be where nothing is held.
    pub(super) fn longest_us(&self) -> u64 {
        let limits = self.parts.iter().flat_map(|part| part.limits);
        let leases = limits.filter(|limit| holds(limit)).map(Limit::window_us);
        leases.min().unwrap_or(bounds::MAX_WINDOW_US)
    }

    /// The shortest lease among the limits that are held.
    pub(super) fn lease_us(&self) -> Option<u64> {
        let checks = self.checks();
        checks.iter().filter(|check| holds(check.limit)).map(|check| check.limit.window_us()).min()
    }

    pub(super) fn checks(&self) -> SmallVec<[Check<'_>; 4]> {
        let mut leased = self.leased.iter();
        let mut checks = SmallVec::new();
        for part in &self.parts {
            for limit in part.limits {
                let limit = if holds(limit) { leased.next().unwrap_or(limit) } else { limit };
                let own = (limit, part.cost);
                let (limit, cost) = self.agreed.get(checks.len()).copied().unwrap_or(own);
                let overflow = if self.withholds { Overflow::Refuse } else { part.overflow };
                let check = Check { overflow, ..Check::new(self.key_of(part), limit, cost) };
                let observed = part.mode == Mode::Observe || part.spent;
                checks.push(if observed { check.observed() } else { check });
            }
        }
        checks
    }

    /// Decides the only check, if there is one, it is enforced and a denial of it charges nothing.
    /// `None` otherwise.
    pub(super) fn decide_single(&mut self, limiter: &Limiter) -> Option<Result<(), CheckError>> {
        let [part] = &self.parts[..] else { return None };
        let (&Part { mode, cost, overflow, .. }, [limit]) = (part, part.limits) else {
            return None;
        };
        if mode != Mode::Enforce || overflowing(overflow, limit, cost) > 0 {
            return None;
        }
        let check = Check::new(&self.keys[part.key.start..part.key.end], limit, cost);
        let line = part.line(limit, Decision::default(), Decided::Exact);
        Some(self.answer.decide_one(line, limiter, &check))
    }

    /// Whether anything would be charged or given back, were it allowed.
    pub(super) fn charges(&self) -> bool {
        let units = |part: &Part<'_>| match part.cost {
            Cost::Ask(units) | Cost::Force(units) | Cost::Refund(units) => units,
        };
        self.parts.iter().any(|part| units(part) > 0)
    }

    /// Charges nothing on a denial, whatever the policies say.
    pub(super) fn refuse_overflow(&mut self) {
        for part in &mut self.parts {
            part.overflow = Overflow::Refuse;
        }
    }

    /// Whether there is a place to hold.
    pub(super) fn holds(&self) -> bool {
        self.parts.iter().any(Part::holds)
    }

    /// Whether there is something to wait for: a limit that has a say, and no place that must
    /// be had.
    pub(super) fn can_wait(&self) -> bool {
        let mut enforced = self.parts.iter().filter(|part| part.mode == Mode::Enforce);
        enforced.clone().any(|part| !part.limits.is_empty()) && !enforced.any(Part::holds)
    }

    /// Takes out the policies that are only observed and have places, as a plan of their own.
    pub(super) fn set_aside_places(&mut self) -> Plan<'a> {
        let mut aside = Plan::default();
        let is_watched = |part: &Part<'_>| part.mode == Mode::Observe && part.holds();
        if !self.parts.iter().any(is_watched) {
            return aside;
        }
        // Where a part's key lies stays true.
        aside.keys.clone_from(&self.keys);
        let (watched, rest) = self.parts.drain(..).partition(is_watched);
        (aside.parts, self.parts) = (watched, rest);
        self.agree();
        aside.agree();
        aside
    }

    /// Takes back what was set aside, its answer and its permit, behind everything else.
    pub(super) fn rejoin(&mut self, aside: Plan<'a>) {
        self.permit = aside.permit;
        self.parts.extend(aside.parts);
        self.answer.lines.extend(aside.answer.lines);
        self.agree();
    }

    /// What came of each policy: where it is counted, and how.
    pub(super) fn outcomes(&self) -> impl Iterator<Item = (&LimitStats, Outcome)> {
        let mut lines = self.answer.lines.iter();
        self.parts.iter().filter_map(move |part| {
            let own = lines.by_ref().take(part.limits.len());
            let denied = own.filter(|line| !line.decision.allowed).count() > 0;
            let outcome = if denied { Outcome::WouldDeny } else { Outcome::Allowed };
            Some((&**part.compiled.stats.first()?, outcome))
        })
    }

    /// Whether no limit holds.
    pub(super) fn is_empty(&self) -> bool {
        self.each().next().is_none()
    }

    /// The questions that met a policy without limits.
    pub(super) fn unlimited(&self) -> Vec<usize> {
        let unlimited = self.parts.iter().filter(|part| part.limits.is_empty());
        unlimited.map(|part| part.question).collect()
    }

    /// Whether every policy lets a denial be answered from memory. Of several quotas we must
    /// know which are used up, and memory knows only that it was denied.
    pub(super) fn caches_denials(&self) -> bool {
        self.quotas < 2 && self.parts.iter().all(|part| part.deny_cache)
    }

    /// Sees to it that questions which differ about one count can be decided.
    pub(super) fn agree(&mut self) {
        self.agreed.clear();
        if self.parts.len() > 1 {
            self.agreed = self.agreement();
        }
    }

    pub(super) fn parts(&self) -> &[Part<'a>] {
        &self.parts
    }

    /// A part's key as the store sees it.
    pub(super) fn key_of(&self, part: &Part<'_>) -> &[u8] {
        &self.keys[part.key.start..part.key.end]
    }

    /// Every limit with its part, in the order of the checks.
    pub(super) fn each(&self) -> impl Iterator<Item = (&Part<'a>, &'a Limit)> {
        let each = self.parts.iter().flat_map(|part| part.limits.iter().map(move |l| (part, l)));
        let agreed = |index: usize| self.agreed.get(index).map(|(limit, _)| *limit);
        each.enumerate().map(move |(index, (part, own))| (part, agreed(index).unwrap_or(own)))
    }

    /// The answer that a verdict on the checks gives.
    pub(super) fn answer_of(&self, verdict: &Verdict) -> Answer<'a> {
        let mut answer = Answer::default();
        answer.set(&self.parts, &self.agreed, verdict);
        answer
    }

    /// Keeps the answer that a verdict on the checks gives.
    pub(super) fn set_answer(&mut self, verdict: &Verdict) {
        self.answer.set(&self.parts, &self.agreed, verdict);
    }

    /// Where what this limit decides is counted.
    fn stats_of(&self, limit: &Limit) -> Option<&'a Arc<LimitStats>> {
        self.parts.iter().find_map(|part| {
            let index = part.limits.iter().position(|own| std::ptr::eq(own, limit))?;
            part.stats_at(index)
        })
    }

    /// Passes every line that is counted in the statistics to `see`, with its part and its counters.
    /// Peeks, refunds and forced charges are not counted.
    #[inline]
    pub(super) fn for_each_counted<'s>(
        &'s self,
        mut see: impl FnMut(&'s Part<'a>, &'s Line<'a>, &'s LimitStats),
    ) {
        let mut lines = self.answer.lines.iter();
        for part in &self.parts {
            let in_earnest = matches!(part.cost, Cost::Ask(1..));
            for (index, line) in lines.by_ref().take(part.limits.len()).enumerate() {
                if !in_earnest {
                    continue;
                }
                // Where others have a stricter limit, that is the one which has decided.
                let decisive =
                    if self.agreed.is_empty() { None } else { self.stats_of(line.limit) };
                if let Some(stats) = decisive.or_else(|| part.stats_at(index)) {
                    see(part, line, stats);
                }
            }
        }
    }

    /// The key of a part, without its policy's name.
    pub(super) fn bare_key(&self, part: &Part<'_>) -> &[u8] {
        &self.keys[part.key.bare..part.key.end]
    }
}

impl<'a> Part<'a> {
    fn holds(&self) -> bool {
        self.limits.iter().any(holds)
    }

    /// Where one of its limits is counted; those of the caller's own share one counter.
    fn stats_at(&self, index: usize) -> Option<&'a Arc<LimitStats>> {
        let stats = &self.compiled.stats;
        stats.get(index).or(stats.last())
    }

    /// What one of its limits has answered.
    #[inline]
    pub(super) fn line(&self, limit: &'a Limit, decision: Decision, decided: Decided) -> Line<'a> {
        // Where questions differ about one count, another policy's limit may have decided.
        let is_own = self.limits.as_ptr_range().contains(&std::ptr::from_ref(limit));
        let fields = self.compiled.fields.as_ref().filter(|_| is_own);
        Line {
            policy: self.policy,
            own: self.own,
            question: self.question,
            limit,
            fields,
            mode: self.mode,
            decision,
            decided,
            beyond_share: false,
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
