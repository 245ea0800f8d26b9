//! Waiting requests.
//!
//! In local memory the wait of a new request is computed in advance (`wait_queue.rs`). There are
//! two cases in which that is impossible: a shared store, which other nodes use too, and several
//! quotas, because it is not known which of them will have room first. In these cases the first
//! request of the queue is decided, sleeps for the time that the denial reports, and is decided
//! again. The others wait until they are first.

use std::time::Duration;

use tidegate_core::{RetryAfter, Timestamp};

use super::decide::{DecideOptions, GateCall};
use super::plan::{Plan, PlannedPolicy};
use super::shared_store::SharedStore;
use super::{DenialReason, Gate, GateError, GateVerdict};
use crate::fallback::StoreContext;
use crate::futures::CallTracker;
use crate::policy::Mode;
use crate::request::{deny_all, dry_run_checks};
use crate::wait_queue::{Ticket, sleep};
use crate::{Clock, Request, StoreError};

impl Gate {
    pub(super) async fn wait_planned(
        &self,
        tracker: &CallTracker,
        call: &mut GateCall<'_>,
        max_wait: Duration,
    ) -> Result<(), GateError> {
        // Attempts to pass do not report usage, so none of them consumes.
        call.plan.disable_overflow();
        if self.shared.is_none() && !call.plan.has_choice() {
            let verdict = self.limiter.wait(&call.plan.checks(), max_wait).await?;
            call.set_verdict(&verdict);
            return Ok(());
        }
        let max_wait_us = u64::try_from(max_wait.as_micros()).unwrap_or(u64::MAX);
        let until = self.limiter.store().clock().now().plus_micros(max_wait_us);
        let (queue_id, _) = self.limiter.store().queue_id(&call.plan.checks())?;
        match Ticket::new(&self.queues, queue_id) {
            Some(ticket) => self.wait_in_queue(tracker, call, (&ticket, until)).await,
            None => self.deny_queued(call).await,
        }
    }

    /// Waits as [`Gate::wait_planned`] does, and then acquires the permits of observed policies.
    /// These are not waited for. A denied request would not acquire any, so the verdict of a denial
    /// does not include them.
    pub(super) async fn admit_after_wait(
        &self,
        tracker: &CallTracker,
        call: &mut GateCall<'_>,
        max_wait: Duration,
    ) -> Result<(), GateError> {
        let mut observed = call.split_off_observed();
        self.wait_planned(tracker, call, max_wait).await?;
        if !call.verdict.allowed || observed.plan.is_empty() {
            return Ok(());
        }
        self.decide(tracker, &mut observed, DecideOptions::PERMIT).await?;
        call.rejoin(observed);
        Ok(())
    }

    async fn wait_in_queue(
        &self,
        tracker: &CallTracker,
        call: &mut GateCall<'_>,
        (ticket, until): (&Ticket<'_>, Timestamp),
    ) -> Result<(), GateError> {
        let clock = self.limiter.store().clock();
        if !ticket.is_first() {
            let outcome = self.dry_run(&call.plan).await?;
            let hopeless =
                |verdict: &GateVerdict<'_>| !passes_before(&call.plan, verdict, clock, until);
            // Its own wait, without the queue, is already too long.
            if let Some(mut verdict) = outcome.filter(hopeless) {
                call.plan.report_awaited(&mut verdict);
                call.verdict = verdict;
                return Ok(());
            }
            if !ticket.until_first(clock, until).await {
                return self.deny_queued(call).await;
            }
        }
        loop {
            call.plan.reset_skips();
            self.decide(tracker, call, DecideOptions::CHECK).await?;
            let verdict = &call.verdict;
            if verdict.allowed
                || tracker.is_cancelled()
                || !passes_before(&call.plan, verdict, clock, until)
            {
                return Ok(());
            }
            let wait_us = call.plan.retry_after(verdict).as_micros().unwrap_or_default();
            sleep(clock, clock.now().plus_micros(wait_us)).await;
        }
    }

    /// Denies a request that did not become first in time, or whose queue is full.
    async fn deny_queued(&self, call: &mut GateCall<'_>) -> Result<(), GateError> {
        let Some(mut verdict) = self.dry_run(&call.plan).await? else {
            // The queue is not used while the store fails.
            let store_context =
                self.shared.as_ref().map_or(StoreContext::MEMORY, SharedStore::store_context);
            return self.decide_by_fallback(call, store_context, DecideOptions::CHECK);
        };
        call.plan.report_awaited(&mut verdict);
        let is_free = call.plan.retry_after(&verdict) == RetryAfter::Now;
        call.verdict = if is_free { verdict.into_queued_denial() } else { verdict };
        Ok(())
    }

    /// The verdict that the request would get, without charging it. Returns `None` if the store
    /// fails.
    async fn dry_run<'a>(&self, plan: &Plan<'a>) -> Result<Option<GateVerdict<'a>>, GateError> {
        let (checks, deny_all) = (plan.checks(), deny_all());
        let dry_run = dry_run_checks(&checks, &deny_all);
        let request = Request { deny_cache: false, ..Request::new(&dry_run) };
        match self.send_to_store(&request).await {
            Ok(mut verdict) => {
                verdict.decisions.drain(..dry_run.len() - checks.len());
                Ok(Some(GateVerdict::from_results(plan.verdict_of(&verdict).results)))
            }
            Err(StoreError::Check(error)) => Err(error.into()),
            Err(StoreError::Failed(_)) => Ok(None),
        }
    }
}

impl<'a> GateCall<'a> {
    /// Moves the observed policies with `concurrency` limits to a separate call.
    fn split_off_observed(&mut self) -> GateCall<'a> {
        let mut split = GateCall::default();
        let is_observed = |planned: &PlannedPolicy<'_>| {
            planned.mode == Mode::Observe && planned.has_concurrency()
        };
        if !self.plan.policies.iter().any(is_observed) {
            return split;
        }
        // All keys are copied, so that the key ranges stay valid.
        split.plan.keys.clone_from(&self.plan.keys);
        let (observed, rest) = self.plan.policies.drain(..).partition(is_observed);
        (split.plan.policies, self.plan.policies) = (observed, rest);
        self.plan.resolve_conflicts();
        split.plan.resolve_conflicts();
        split
    }

    /// Appends the policies, results and permit of a call that was split off.
    fn rejoin(&mut self, split: GateCall<'a>) {
        self.permit = split.permit;
        self.plan.policies.extend(split.plan.policies);
        self.verdict.results.extend(split.verdict.results);
        self.plan.resolve_conflicts();
    }
}

/// Whether a request with this verdict would pass before `until`. It would not if the store failed.
fn passes_before(
    plan: &Plan<'_>,
    verdict: &GateVerdict<'_>,
    clock: &Clock,
    until: Timestamp,
) -> bool {
    let remaining_us = until.as_micros().saturating_sub(clock.now().as_micros());
    let wait_us = plan.retry_after(verdict).as_micros();
    let has_failed = verdict.denial_reason() == Some(DenialReason::StoreFailed);
    !has_failed && wait_us.is_some_and(|us| us <= remaining_us)
}
