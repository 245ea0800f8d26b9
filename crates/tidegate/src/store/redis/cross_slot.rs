//! Decides a request whose keys are in different slots of a cluster.
//!
//! No single script can decide such a request. Its parts, one per slot, are decided and charged in
//! the order of the checks. When a part denies, the charges of the parts before it are refunded,
//! and all other parts are decided in a dry run, for their decisions. So the request never admits
//! more than the limits allow. If a denial consumes the units that are left, the denying part does
//! so in its own call, and the other parts in a second call, after their charges were refunded.
//!
//! For the time of a round trip, concurrent callers see units that are about to be refunded, and
//! may be denied because of them. If a server fails midway, the earlier charges are refunded if
//! that is possible, and otherwise count until they expire. Permits are released later
//! (`deferred_release.rs`).

use std::sync::Arc;
use std::time::Instant;

use tidegate_core::Timestamp;
use tokio::sync::oneshot;

use super::Inner;
use super::plan::{ScriptMode, ScriptPlan, ScriptReply, SlotPart};
use crate::{Failure, StoreError};

/// Decides the parts of `plan`. Refunds continue after the caller has dropped the future.
pub(super) async fn decide(
    inner: &Arc<Inner>,
    plan: ScriptPlan,
    parts: Vec<SlotPart>,
    at: Option<Timestamp>,
) -> Result<ScriptReply, StoreError> {
    let (sender, receiver) = oneshot::channel();
    let until = Instant::now() + inner.timeout;
    let cross_slot = CrossSlotRequest { inner: Arc::clone(inner), plan, parts, at, until };
    let (read, is_read) = oneshot::channel();
    inner.io_thread.runtime().spawn(cross_slot.run(sender, is_read));
    // The task is dropped only together with the runtime.
    let decided = receiver.await.unwrap_or(Err(StoreError::Failed(Failure::Lost)));
    // If the caller drops the future before this line, the answer counts as not received.
    let _ = read.send(());
    decided
}

struct CrossSlotRequest {
    inner: Arc<Inner>,
    plan: ScriptPlan,
    parts: Vec<SlotPart>,
    at: Option<Timestamp>,
    /// When the caller stops waiting. From then on nothing more is charged.
    until: Instant,
}

impl CrossSlotRequest {
    async fn run(
        self,
        sender: oneshot::Sender<Result<ScriptReply, StoreError>>,
        is_read: oneshot::Receiver<()>,
    ) {
        let mut charged = Vec::with_capacity(self.parts.len());
        let decided = self.decide(&mut charged).await;
        let admitted = decided.as_ref().is_ok_and(|script_reply| script_reply.admitted);
        // An admission that the caller does not receive is refunded.
        drop(sender.send(decided));
        if admitted && is_read.await.is_err() {
            self.refund(&charged).await;
        }
    }

    async fn decide(&self, charged: &mut Vec<ScriptReply>) -> Result<ScriptReply, StoreError> {
        for part in &self.parts {
            let decided = if Instant::now() < self.until {
                self.call_plan(part, ScriptMode::Decide).await
            } else {
                Err(StoreError::Failed(Failure::TimedOut))
            };
            match decided {
                Ok(script_reply) if script_reply.admitted => charged.push(script_reply),
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

    /// The decisions of all parts after `parts[index]` has denied. The other parts consume the
    /// units that are left, if the request does so and the deadline has not passed.
    async fn denied(&self, index: usize, denied: ScriptReply) -> Result<ScriptReply, StoreError> {
        let consumes = self.plan.consumes() && Instant::now() < self.until;
        let mode = if consumes { ScriptMode::Consume } else { ScriptMode::Dry };
        let mut script_reply = Vec::with_capacity(self.parts.len());
        for (other, part) in self.parts.iter().enumerate() {
            script_reply.push(match other == index {
                true => denied.clone(),
                false => self.call_plan(part, mode).await?,
            });
        }
        Ok(self.plan.combine(self.parts.iter().zip(&script_reply)))
    }

    async fn call_plan(
        &self,
        part: &SlotPart,
        mode: ScriptMode,
    ) -> Result<ScriptReply, StoreError> {
        self.inner.call_plan(&part.plan, mode, self.at).await
    }

    async fn refund(&self, charged: &[ScriptReply]) {
        for (part, script_reply) in self.parts.iter().zip(charged) {
            let mut is_undone = true;
            for call in part.plan.undo(script_reply, self.at) {
                is_undone &= self.inner.call(&call).await.is_ok();
            }
            // Units that could not be refunded count until they expire. Permits are released as
            // soon as that is possible.
            if !is_undone && let Some(pending_permit) = self.inner.pending_permit(&part.plan) {
                pending_permit.release_later();
            }
        }
    }
}
