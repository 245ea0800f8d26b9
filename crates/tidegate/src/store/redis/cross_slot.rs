//! A request whose keys are in different slots of a cluster.
//!
//! No script can decide it whole. Its parts, one a slot, are charged in the order
//! of the checks; as soon as one denies, what the parts before it were charged is
//! given back, and the rest is only asked what it would have said. So it never
//! admits more than the limits allow. Where a denial consumes what is left, the denying part
//! does so in its own call. The other parts do so in a second call, after their charges were
//! refunded. What a concurrent caller can see: for the time of a
//! round trip, units that are about to be given back; it may be denied for them.
//! When a server fails midway, what was charged before is given back if that is
//! possible, and counts until it expires if not; permits are released later (`deferred_release.rs`).

use std::sync::Arc;
use std::time::Instant;

use tidegate_core::Timestamp;
use tokio::sync::oneshot;

use super::Inner;
use super::plan::{Mode, Plan, PlanReply, SlotPart};
use crate::{Failure, StoreError};

/// Decides the parts of `plan`; goes on giving back after the caller has gone.
pub(super) async fn decide(
    inner: &Arc<Inner>,
    plan: Plan,
    parts: Vec<SlotPart>,
    at: Option<Timestamp>,
) -> Result<PlanReply, StoreError> {
    let (reply, answer) = oneshot::channel();
    let until = Instant::now() + inner.timeout;
    let cross_slot = CrossSlotRequest { inner: Arc::clone(inner), plan, parts, at, until };
    let (read, is_read) = oneshot::channel();
    inner.io_thread.runtime().spawn(cross_slot.run(reply, is_read));
    // The task can only have been dropped with the runtime.
    let decided = answer.await.unwrap_or(Err(StoreError::Failed(Failure::Lost)));
    // A caller that leaves between the answer and this line has not read it.
    let _ = read.send(());
    decided
}

struct CrossSlotRequest {
    inner: Arc<Inner>,
    plan: Plan,
    parts: Vec<SlotPart>,
    at: Option<Timestamp>,
    /// When the caller stops waiting: from then on nothing more is charged.
    until: Instant,
}

impl CrossSlotRequest {
    async fn run(
        self,
        reply: oneshot::Sender<Result<PlanReply, StoreError>>,
        is_read: oneshot::Receiver<()>,
    ) {
        let mut charged = Vec::with_capacity(self.parts.len());
        let decided = self.decide(&mut charged).await;
        let admitted = decided.as_ref().is_ok_and(|answers| answers.admitted);
        // Nobody uses what was admitted too late.
        drop(reply.send(decided));
        if admitted && is_read.await.is_err() {
            self.refund(&charged).await;
        }
    }

    async fn decide(&self, charged: &mut Vec<PlanReply>) -> Result<PlanReply, StoreError> {
        for part in &self.parts {
            let decided = if Instant::now() < self.until {
                self.decide_part(part, Mode::Decide).await
            } else {
                Err(StoreError::Failed(Failure::TimedOut))
            };
            match decided {
                Ok(answers) if answers.admitted => charged.push(answers),
                Ok(denied) => {
                    self.refund(charged).await;
                    return self.denied(charged.len(), denied).await;
                }
                Err(error) => {
                    self.refund(charged).await;
                    return Err(error);
                }
            }
        }
        Ok(self.plan.combine(self.parts.iter().zip(&*charged)))
    }

    /// What all parts say now that `parts[index]` has denied. Each part consumes what is left
    /// where the request says so, unless nobody waits for the answer any more.
    async fn denied(&self, index: usize, denied: PlanReply) -> Result<PlanReply, StoreError> {
        let consumes = self.plan.consumes() && Instant::now() < self.until;
        let mode = if consumes { Mode::Consume } else { Mode::Dry };
        let mut answers = Vec::with_capacity(self.parts.len());
        for (other, part) in self.parts.iter().enumerate() {
            answers.push(match other == index {
                true => denied.clone(),
                false => self.decide_part(part, mode).await?,
            });
        }
        Ok(self.plan.combine(self.parts.iter().zip(&answers)))
    }

    async fn decide_part(&self, part: &SlotPart, mode: Mode) -> Result<PlanReply, StoreError> {
        self.inner.decide_part(&part.plan, mode, self.at).await
    }

    async fn refund(&self, charged: &[PlanReply]) {
        for (part, answers) in self.parts.iter().zip(charged) {
            let mut is_undone = true;
            for call in part.plan.undo(answers, self.at) {
                is_undone &= self.inner.call(&call).await.is_ok();
            }
            // Units count until they expire; permits are released when that is possible.
            if !is_undone && let Some(pending_permit) = self.inner.pending_permit(&part.plan) {
                pending_permit.release_later();
            }
        }
    }
}
