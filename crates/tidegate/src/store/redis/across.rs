//! A request whose keys are in different slots of a cluster.
//!
//! No script can decide it whole. Its parts, one a slot, are charged in the order
//! of the checks; as soon as one denies, what the parts before it were charged is
//! given back, and the rest is only asked what it would have said. So it never
//! admits more than the limits allow. What a concurrent caller can see: for the time of a
//! round trip, units that are about to be given back; it may be denied for them.
//! When a server fails midway, what was charged before is given back if that is
//! possible, and counts until it expires if not.

use std::sync::Arc;

use tidegate_core::Timestamp;

use super::Inner;
use super::plan::{Answers, Mode, Part, Plan};
use crate::{Failure, StoreError};

/// Decides the parts of `plan`; goes on giving back after the caller has gone.
pub(super) async fn decide(
    inner: &Arc<Inner>,
    plan: Plan,
    parts: Vec<Part>,
    at: Option<Timestamp>,
) -> Result<Answers, StoreError> {
    let across = Across { inner: Arc::clone(inner), at };
    let deciding = tokio::spawn(async move { across.decide(&plan, &parts).await });
    // The task can only have been dropped with the runtime.
    deciding.await.unwrap_or(Err(StoreError::Failed(Failure::Lost)))
}

struct Across {
    inner: Arc<Inner>,
    at: Option<Timestamp>,
}

impl Across {
    async fn decide(&self, plan: &Plan, parts: &[Part]) -> Result<Answers, StoreError> {
        let mut asked = Vec::with_capacity(parts.len());
        for part in parts {
            match self.ask(part, Mode::Decide).await {
                Ok(answers) if answers.admitted => asked.push(answers),
                Ok(denied) => {
                    self.give_back(&parts[..asked.len()], &asked).await;
                    return self.denied(plan, parts, asked.len(), denied).await;
                }
                Err(error) => {
                    self.give_back(&parts[..asked.len()], &asked).await;
                    return Err(error);
                }
            }
        }
        Ok(plan.gather(parts.iter().zip(&asked)))
    }

    /// What all parts say now that `parts[index]` has denied.
    async fn denied(
        &self,
        plan: &Plan,
        parts: &[Part],
        index: usize,
        denied: Answers,
    ) -> Result<Answers, StoreError> {
        let mut answers = Vec::with_capacity(parts.len());
        for (other, part) in parts.iter().enumerate() {
            answers.push(match other == index {
                true => denied.clone(),
                false => self.ask(part, Mode::Dry).await?,
            });
        }
        Ok(plan.gather(parts.iter().zip(&answers)))
    }

    async fn ask(&self, part: &Part, mode: Mode) -> Result<Answers, StoreError> {
        let call = part.plan.call(mode, self.at);
        let value = self.inner.call(&call).await?;
        part.plan.answers(&value)
    }

    async fn give_back(&self, parts: &[Part], asked: &[Answers]) {
        for (part, answers) in parts.iter().zip(asked) {
            for call in part.plan.undo(answers, self.at) {
                // As far as that is possible: there is nothing else to be done.
                let _ = self.inner.call(&call).await;
            }
        }
    }
}
