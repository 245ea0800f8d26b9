//! Answers without the store, while it fails.
//!
//! Each policy says what it wants: to allow, to deny, or to decide here, with its
//! limits divided by the number of nodes. For the last kind this node's memory is kept
//! warm (`warm.rs`). A cost that the whole limit allows, but this node's share does not, is
//! denied because the store failed, not for ever.
//!
//! A denial charges nothing, here as anywhere, or what is left where a policy says
//! `overflow: consume`. If one policy denies because the store failed, nothing is charged: what
//! the others would have said is only looked at.

use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Cost, Decision, Limit, RetryAfter};

use super::decide::Asking;
use super::held::HeldPermit;
use super::plan::Plan;
use super::{Answer, Gate, GateError, Line};
use crate::policy::{Mode, OnStoreFailure};
use crate::stats::Decided;
use crate::{Acquired, Check, MAX_CHECKS, Overflow, Permit, Request};

/// The limits of a request, divided by the nodes: one per check.
type Shares = SmallVec<[Limit; 4]>;

/// When to ask again at the earliest after a denial because the store failed: by then it was
/// tried several times.
const MIN_RETRY: Duration = Duration::from_secs(1);

/// The gate's knowledge of an outage of the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outage {
    /// How many nodes share the limits.
    pub(super) nodes: u32,
    /// How long until the store is tried again.
    pub(super) next_attempt: Duration,
}

impl Outage {
    /// A gate without a shared store.
    pub(super) const MEMORY: Self = Outage { nodes: 1, next_attempt: Duration::ZERO };

    /// When a denial because the store failed may be over.
    pub(super) fn retry_after(self) -> RetryAfter {
        let wait = self.next_attempt.max(MIN_RETRY);
        RetryAfter::from_micros(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX))
    }
}

impl Gate {
    /// Answers as the policies say for when the store fails. The plan keeps the answer and the
    /// permit.
    pub(super) fn answer_alone(
        &self,
        plan: &mut Plan<'_>,
        outage: Outage,
        asking: Asking<'_>,
    ) -> Result<(), GateError> {
        let (answer, permit) = self.fallback_answer(plan, outage, asking)?;
        plan.answer = answer;
        plan.permit = permit.map(HeldPermit::Here);
        Ok(())
    }

    fn fallback_answer<'a>(
        &self,
        plan: &Plan<'a>,
        outage: Outage,
        asking: Asking<'_>,
    ) -> Result<(Answer<'a>, Option<Permit>), GateError> {
        let all = plan.checks();
        let shares = shares(&all, outage.nodes);
        let checks = local(plan, &all, &shares);
        let denies = plan.each().any(|(part, _)| {
            part.on_store_failure == OnStoreFailure::Deny && part.mode == Mode::Enforce
        });
        let (decisions, no_room, permit) = if denies {
            (self.look_here(&checks)?, false, None)
        } else if asking.permit {
            match self.limiter.acquire(&checks)? {
                Acquired::Permit(permit, verdict) => {
                    (verdict.decisions, verdict.no_room, Some(permit))
                }
                Acquired::Denied(verdict) => (verdict.decisions, verdict.no_room, None),
            }
        } else {
            let verdict =
                self.limiter.decide(&Request { id: asking.id, ..Request::new(&checks) })?;
            (verdict.decisions, verdict.no_room, None)
        };
        let mut decisions = decisions.into_iter();
        let each = plan.each().zip(&all);
        let lines = each.map(|((part, limit), check)| match part.on_store_failure {
            OnStoreFailure::Allow => Line::failed(part, limit, true, outage),
            OnStoreFailure::Deny => Line::failed(part, limit, false, outage),
            OnStoreFailure::Local => match decisions.next() {
                Some(decision) => {
                    let line = part.line(limit, decision, Decided::Local);
                    let is_never = decision.retry_after == RetryAfter::Never;
                    if is_never && fits(check, &all) { line.beyond_share(outage) } else { line }
                }
                // There is one for every local check.
                None => Line::failed(part, limit, false, outage),
            },
        });
        Ok((Answer { no_room, ..Answer::of_lines(lines.collect()) }, permit))
    }

    /// What checks would be answered here, without charging any.
    pub(super) fn look_here(
        &self,
        checks: &[Check<'_>],
    ) -> Result<SmallVec<[Decision; 4]>, GateError> {
        if checks.is_empty() {
            return Ok(SmallVec::new());
        }
        let permit = Some(self.limiter.store().new_permit());
        let never = never();
        let looks = looking(checks, &never);
        let mut decisions =
            self.limiter.decide(&Request { permit, ..Request::new(&looks) })?.decisions;
        decisions.drain(..looks.len() - checks.len());
        Ok(decisions)
    }
}

/// Whether a denial charges this check what is left.
pub(super) fn consumes(check: &Check<'_>) -> bool {
    check.overflow == Overflow::Consume && !check.observed
}

/// The limit nothing passes.
pub(super) fn never() -> Option<Limit> {
    Limit::new(0, Duration::from_millis(1), Algorithm::FixedWindow).ok()
}

/// Checks that are answered as they stand and charge nothing: one that never passes goes
/// before them, and a request is charged whole or not at all. It has the first
/// one's key, so that it is found in the same place. Where there is no room for one more
/// they peek, and are answered as a cost of 1.
pub(super) fn looking<'c>(
    checks: &[Check<'c>],
    never: &'c Option<Limit>,
) -> SmallVec<[Check<'c>; 4]> {
    match (never, checks) {
        (Some(never), [first, ..]) if checks.len() < MAX_CHECKS => {
            let before = Check::new(first.key, never, 1);
            let looks = checks.iter().map(|check| Check { overflow: Overflow::Refuse, ..*check });
            std::iter::once(before).chain(looks).collect()
        }
        _ => checks.iter().map(|check| Check { cost: Cost::PEEK, ..*check }).collect(),
    }
}

pub(super) fn shares(checks: &[Check<'_>], nodes: u32) -> Shares {
    checks.iter().map(|check| share(check.limit, nodes)).collect()
}

/// This node's part of a limit: rounded down, but not to nothing.
pub(super) fn share(limit: &Limit, nodes: u32) -> Limit {
    if nodes <= 1 || limit.count() == 0 {
        return *limit;
    }
    let part = |count: u64| (count / u64::from(nodes)).max(1);
    let shared = limit.with_count(part(limit.count())).and_then(|shared| match limit.algorithm() {
        Algorithm::TokenBucket => shared.with_burst(part(limit.burst())),
        _ => Ok(shared),
    });
    // A smaller count is never out of range.
    shared.unwrap_or(*limit)
}

/// Whether the whole limit of a check can ever admit the cost of a request.
fn fits(check: &Check<'_>, all: &[Check<'_>]) -> bool {
    let sharing = all.iter().filter(|other| check.shares_state(other));
    let units = sharing.fold(0_u64, |sum, other| match other.cost {
        Cost::Ask(units) => sum.saturating_add(units),
        Cost::Force(_) | Cost::Refund(_) => sum,
    });
    units.max(1) <= check.limit.capacity()
}

/// The checks that are decided here, under their shares.
pub(super) fn local<'s>(
    plan: &Plan<'_>,
    checks: &[Check<'s>],
    shares: &'s [Limit],
) -> SmallVec<[Check<'s>; 4]> {
    let each = plan.each().zip(checks.iter().zip(shares));
    let local = each.filter(|((part, _), _)| part.on_store_failure == OnStoreFailure::Local);
    local.map(|(_, (check, limit))| Check { limit, ..*check }).collect()
}
