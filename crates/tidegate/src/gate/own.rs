//! Policies that a program has in code, beside those that were loaded.
//!
//! A reload swaps the [`Rules`] whole. What is written in code must outlive that, and
//! whoever wrote it holds it: so such a policy is not looked up by its name, it is handed
//! over with the question. Its match, exemptions and overrides have no part in that:
//! code decides for itself when to ask.

use tidegate_core::{Cost, Limit, Timestamp};

#[cfg(feature = "tower")]
use super::Named;
#[cfg(feature = "tower")]
use super::decide::Asking;
use super::plan::{Plan, Taking};
use super::rules::Compiled;
use super::{Answer, Gate, GateError, Line, Rules};
#[cfg(feature = "tower")]
use crate::asker::Asker;
use crate::attributes::Attributes;
use crate::policy::{Key, MAX_LIMITS, Policy, Template};
use crate::stats::{Decided, Stats};

/// A policy of the program's own, with its counters.
#[derive(Debug)]
pub struct OwnPolicy {
    policy: Policy,
    compiled: Compiled,
    /// For limits that come with a request, if there can be any.
    request_limits: Option<Compiled>,
}

impl OwnPolicy {
    /// A policy for [`Subject::Own`](super::Subject::Own), whose decisions are counted in `stats`.
    pub fn new(policy: Policy, stats: &Stats) -> Self {
        let compiled = Compiled::new(&policy, policy.limits(), policy.mode(), stats);
        OwnPolicy { policy, compiled, request_limits: None }
    }

    /// Prepares for limits that come with a request.
    #[cfg(feature = "tower")]
    pub(crate) fn with_request_limits(mut self, stats: &Stats) -> Self {
        self.request_limits = Some(Compiled::for_request_limits(&self.policy, stats));
        self
    }

    /// Returns the remaining units of a key under the policy's limits, without charging.
    ///
    /// # Errors
    /// [`GateError::Store`] if the store failed.
    pub async fn peek(&self, gate: &Gate, key: OwnKey<'_>) -> Result<Answer<'_>, GateError> {
        let mut plan = Plan::default();
        let key = plan.write_key(self.policy.count_name(), key.to_key().as_ref());
        plan.push_own(self, None, key, Cost::PEEK);
        plan.settle(&[], Taking::Look)?;
        let verdict = gate.peek_checks(&plan.checks()).await?;
        Ok(plan.answer_of(&verdict))
    }

    /// Forgets what a key has used of the policy's limits; says whether there was anything.
    ///
    /// # Errors
    /// [`GateError::Store`] if the store failed: some may have been reset then.
    pub async fn reset(&self, gate: &Gate, key: OwnKey<'_>) -> Result<bool, GateError> {
        gate.reset_key(&self.policy, &key.to_key()).await
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The limits of a check, and where they are counted: those that came with the request, or the
    /// policy's.
    #[inline]
    pub(super) fn limits_or<'a>(
        &'a self,
        given: Option<&'a [Limit]>,
    ) -> (&'a [Limit], &'a Compiled) {
        match (given, &self.request_limits) {
            (Some(limits), Some(compiled)) => (limits, compiled),
            _ => (self.policy.limits(), &self.compiled),
        }
    }
}

/// Who is counted under a policy of the program's own.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum OwnKey<'a> {
    /// Bytes as they come.
    Given(&'a [u8]),
    /// A key that was made before.
    Key(&'a Key),
}

/// What was charged under a policy of the program's own, for settling it later.
#[derive(Clone, Debug)]
pub(crate) struct Charged {
    pub(crate) key: Key,
    /// When it was charged.
    at: Timestamp,
    /// Which of the policy's limits were charged, one bit each.
    limits: u16,
    /// Whether that was in this node's memory, because the store failed.
    locally: bool,
}

// A bit for every limit a policy can have.
const _: () = assert!(MAX_LIMITS <= u16::BITS as usize);

impl Charged {
    /// What an admitted answer has charged. Not what is only observed and would have
    /// denied, and not what nobody counted because the store failed. Its lines are known by
    /// the policy itself: a reload may have brought in another of its name.
    pub(crate) fn of(own: &OwnPolicy, key: Key, at: Timestamp, answer: &Answer<'_>) -> Self {
        let mut charged = Charged { key, at, limits: 0, locally: false };
        let is_own = |line: &&Line<'_>| line.own.is_some_and(|one| std::ptr::eq(one, own));
        for (index, line) in (0_u32..).zip(answer.lines.iter().filter(is_own)) {
            let counted = matches!(line.decided, Decided::Exact | Decided::Local);
            if answer.allowed && line.decision.allowed && counted {
                charged.limits |= 1_u16.checked_shl(index).unwrap_or(0);
                charged.locally |= line.decided == Decided::Local;
            }
        }
        charged
    }

    /// Whether an admitted answer has charged all limits of a policy. A limit that is only observed
    /// and would have denied is not charged.
    #[cfg(feature = "tower")]
    pub(crate) fn is_all_of(own: &OwnPolicy, answer: &Answer<'_>) -> bool {
        let is_own = |line: &&Line<'_>| line.own.is_some_and(|one| std::ptr::eq(one, own));
        answer.lines.iter().filter(is_own).all(|line| line.decision.allowed)
    }

    /// Whether it was charged in this node's memory, because the store failed.
    #[cfg(feature = "tower")]
    pub(crate) fn is_local(&self) -> bool {
        self.locally
    }

    /// Whether a cost is a refund of units that no longer count under a limit.
    #[cfg(feature = "tower")]
    pub(super) fn is_too_late(&self, cost: Cost, limit: &Limit, now: Timestamp) -> bool {
        matches!(cost, Cost::Refund(_)) && !limit.may_refund(self.at, now)
    }

    pub(super) fn limits(&self) -> impl Iterator<Item = usize> {
        let limits = self.limits;
        (0..u16::BITS as usize).filter(move |index| limits & (1 << index) != 0)
    }
}

/// A change to what was charged under one policy.
#[cfg(feature = "tower")]
#[derive(Clone, Copy)]
pub(crate) struct Change<'a> {
    pub(crate) own: &'a OwnPolicy,
    /// The limits that came with the request, if they did.
    pub(crate) limits: Option<&'a [Limit]>,
    pub(crate) charged: &'a Charged,
    pub(crate) cost: Cost,
}

#[cfg(feature = "tower")]
impl Gate {
    /// Charges or gives back what turned out to be due after all.
    pub(crate) async fn settle(&self, change: Change<'_>) -> Result<(), GateError> {
        self.change(&mut Plan::default(), &[change]).await
    }

    /// Asks for more under what was charged before: all changes or none.
    pub(crate) async fn ask_more<'a>(
        &self,
        changes: &[Change<'a>],
    ) -> Result<Answer<'a>, GateError> {
        let mut plan = Plan::default();
        self.change(&mut plan, changes).await?;
        let route = || None;
        let named = Named { id: None, route: &route, request_id: None, max_wait: None };
        self.record(&plan, &named, None);
        Ok(plan.answer)
    }

    /// Decides changes. Charges that this node made while the store was away are changed here,
    /// because the store did not see them.
    async fn change<'a>(
        &self,
        plan: &mut Plan<'a>,
        changes: &[Change<'a>],
    ) -> Result<(), GateError> {
        let now = self.now();
        for change in changes {
            plan.push_change(change, now);
        }
        // A denial charges nothing: the whole reservation is given back then.
        plan.refuse_overflow();
        match &self.shared {
            Some(shared) if changes.iter().any(|change| change.charged.is_local()) => {
                self.answer_alone(plan, shared.outage(), Asking::CHECK)
            }
            _ => self.decide(&Asker::default(), plan, Asking::CHECK).await,
        }
    }
}

impl OwnKey<'_> {
    pub(super) fn to_key(self) -> Key {
        match self {
            OwnKey::Given(bytes) => Key::given(bytes),
            OwnKey::Key(key) => key.clone(),
        }
    }
}

impl Rules {
    /// The key that a template makes of a request, with addresses grouped as these rules
    /// have it.
    pub fn key(&self, template: &Template, attributes: &Attributes<'_>) -> Key {
        self.policies().render(template, attributes)
    }
}
