//! Policies that a program has in code, beside those that were loaded.
//!
//! A reload swaps the [`Rules`] whole. What is written in code must outlive that, and
//! whoever wrote it holds it: so such a policy is not looked up by its name, it is handed
//! over with the question. Its match, exemptions and overrides have no part in that:
//! code decides for itself when to ask.

use smallvec::SmallVec;
use tidegate_core::Cost;

use super::fallback::Asking;
use super::plan::{Plan, Taking, write_key};
use super::rules::Compiled;
use super::{Answer, Gate, GateError, Line, Rules};
use crate::attributes::Attributes;
use crate::policy::{Key, MAX_LIMITS, Policy, Template};
use crate::stats::Decided;

/// A policy of the program's own, with its counters; from [`Gate::own`].
#[derive(Debug)]
pub struct OwnPolicy {
    policy: Policy,
    compiled: Compiled,
}

impl OwnPolicy {
    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(super) fn compiled(&self) -> &Compiled {
        &self.compiled
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
    pub(crate) fn of(own: &OwnPolicy, key: Key, answer: &Answer<'_>) -> Self {
        let mut charged = Charged { key, limits: 0, locally: false };
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

    pub(super) fn limits(&self) -> impl Iterator<Item = usize> {
        let limits = self.limits;
        (0..u16::BITS as usize).filter(move |index| limits & (1 << index) != 0)
    }
}

impl Gate {
    /// A policy of the program's own, to be asked with [`Subject::Own`].
    pub fn own(&self, policy: Policy) -> OwnPolicy {
        let compiled = Compiled::new(&policy, policy.limits(), policy.mode(), &self.stats);
        OwnPolicy { policy, compiled }
    }

    /// What a key has left of the limits of a policy of the program's own, without touching
    /// them.
    ///
    /// # Errors
    /// [`GateError::Store`] if the store failed.
    pub async fn peek_own<'a>(
        &'a self,
        own: &'a OwnPolicy,
        key: OwnKey<'_>,
    ) -> Result<Answer<'a>, GateError> {
        let mut plan = Plan::default();
        plan.push_own(own, &key.to_key(), Cost::PEEK);
        plan.settle(&[], Taking::Look)?;
        match &self.shared {
            Some(shared) => self.peek_shared(shared, &plan).await,
            None => {
                let acquired = self.limiter.acquire(&plan.checks())?;
                Ok(plan.answer(acquired.verdict()))
            }
        }
    }

    /// Forgets what a key has used of the limits of a policy of the program's own.
    ///
    /// # Errors
    /// [`GateError::Store`] if the store failed: some may have been reset then.
    pub async fn reset_own(&self, own: &OwnPolicy, key: OwnKey<'_>) -> Result<bool, GateError> {
        let mut name = SmallVec::<[u8; 128]>::new();
        write_key(own.policy.name(), key.to_key().as_ref(), &mut name);
        let mut any = false;
        for limit in own.policy.limits() {
            any |= self.limiter.reset(&name, limit);
            if let Some(shared) = &self.shared {
                any |= shared.store().reset(&name, limit).await?;
            }
        }
        Ok(any)
    }

    /// Charges or gives back what turned out to be due after all.
    ///
    /// # Errors
    /// As [`Gate::check`].
    pub(crate) fn settle(
        &self,
        own: &OwnPolicy,
        charged: &Charged,
        cost: Cost,
    ) -> Result<(), GateError> {
        self.in_memory()?;
        let plan = settling(own, charged, cost);
        let checks = plan.checks();
        if !checks.is_empty() {
            self.limiter.check_all(&checks)?;
        }
        Ok(())
    }

    /// The same over any store. What was decided here while the store was away is settled
    /// here: the store knows nothing of it.
    ///
    /// # Errors
    /// As [`Gate::check`].
    pub(crate) async fn settle_async(
        &self,
        own: &OwnPolicy,
        charged: &Charged,
        cost: Cost,
    ) -> Result<(), GateError> {
        let Some(shared) = &self.shared else { return self.settle(own, charged, cost) };
        let mut plan = settling(own, charged, cost);
        if charged.locally {
            self.answer_alone(&plan, shared.outage(), Asking::CHECK)?;
        } else {
            self.decide_shared(shared, &mut plan, None).await?;
        }
        Ok(())
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

fn settling<'a>(own: &'a OwnPolicy, charged: &Charged, cost: Cost) -> Plan<'a> {
    let mut plan = Plan::default();
    for index in charged.limits() {
        plan.push_own_limit(own, charged.key.as_ref(), index, cost);
    }
    plan
}

impl Rules {
    /// The key that a template makes of a request, with addresses grouped as these rules
    /// have it.
    pub fn key(&self, template: &Template, attributes: &Attributes<'_>) -> Key {
        self.policies().render(template, attributes)
    }
}
