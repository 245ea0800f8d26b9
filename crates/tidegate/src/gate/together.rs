//! Several questions decided as one request.
//!
//! A gateway may ask about several descriptors at once: "by this address, and by this
//! user, and by this route". Each is a question of its own, with policies, a key and a cost
//! of its own, but there is one answer: all are charged or none. So they become one
//! [`Plan`], and one call of the store.

use std::time::Instant;

use smallvec::SmallVec;

use super::plan::{Plan, Taking};
use super::{Answer, Gate, GateError, Named, Question, Rules, is_timed};
#[cfg(doc)]
use crate::{CheckError, MAX_CHECKS};

/// The answer to several questions.
#[derive(Clone, Debug)]
pub struct Together<'a> {
    /// The answer to all of them: allowed if every limit that has a say allows it.
    pub answer: Answer<'a>,
    /// Which question each line of the answer belongs to.
    pub question_of: SmallVec<[usize; 4]>,
    /// The questions that met a policy without limits, in order.
    pub unlimited: SmallVec<[usize; 4]>,
}

impl Gate {
    /// Answers several questions as one request: all are charged or none. Each has its own
    /// subject and cost; what one of them meets may replace what another meets. Where two are
    /// counted in one place, the strictest of their limits holds for both, and what one gives
    /// back is set off against what the other asks for. Of idempotency ids, request ids and
    /// paths the first that is given holds for all.
    ///
    /// # Errors
    /// As [`Gate::check`]; and [`CheckError::TooManyChecks`] when more than [`MAX_CHECKS`]
    /// limits hold for them together.
    pub fn check_together<'a>(
        &'a self,
        rules: &'a Rules,
        questions: &[Question<'a>],
    ) -> Result<Together<'a>, GateError> {
        self.in_memory()?;
        let begun = is_timed().then(Instant::now);
        let mut plan = Plan::default();
        plan.fill_together(rules, questions, Taking::Nothing)?;
        let answer = self.answer_here(&mut plan, Named::of(questions).id)?;
        let elapsed = begun.map(|begun| begun.elapsed());
        Ok(self.told_together(&plan, answer, questions, elapsed))
    }

    /// Answers several questions as one request, over any store; see [`Gate::check_async`].
    ///
    /// # Errors
    /// As [`Gate::check_together`].
    pub async fn check_together_async<'a>(
        &'a self,
        rules: &'a Rules,
        questions: &[Question<'a>],
    ) -> Result<Together<'a>, GateError> {
        let Some(shared) = &self.shared else { return self.check_together(rules, questions) };
        let begun = Instant::now();
        let mut plan = Plan::default();
        plan.fill_together(rules, questions, Taking::Nothing)?;
        let id = Named::of(questions).id.filter(|_| plan.charges());
        let answer = self.decide_shared(shared, &mut plan, id).await?;
        Ok(self.told_together(&plan, answer, questions, Some(begun.elapsed())))
    }

    fn told_together<'a>(
        &self,
        plan: &Plan<'a>,
        answer: Answer<'a>,
        questions: &[Question<'a>],
        elapsed: Option<std::time::Duration>,
    ) -> Together<'a> {
        self.record(plan, &answer, Named::of(questions), elapsed);
        let question_of = plan.each().map(|(part, _)| part.question).collect();
        Together { answer, question_of, unlimited: plan.unlimited() }
    }
}
