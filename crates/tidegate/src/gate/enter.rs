//! Letting a request in: everything that holds for it, asked at once, and what is kept
//! while it is being served.
//!
//! [`Gate::check`] answers a question and is done. Who serves the request itself wants
//! more: places under `concurrency` limits for as long as that takes, and afterwards to say
//! how long it took. Both come with the answer here.

use std::time::{Duration, Instant};

use tidegate_core::Decision;

use super::held::HeldPermit;
use super::plan::{Plan, Taking};
use super::together::{first_id, named_first};
use super::{Answer, Gate, GateError, OwnPolicy, Question, Rules};
use crate::asker::Asker;
use crate::stats::{self, ServiceTimer, is_timed};
#[cfg(feature = "tower")]
use crate::store::Words;
use crate::store::{Missed, Told};

/// What came of asking to be let in.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "a permit that is dropped is given back"]
pub struct Entered<'a> {
    /// The answer.
    pub answer: Answer<'a>,
    /// The places it holds, if it was admitted and there are any to hold. One of a shared
    /// store is not given back on drop: see [`Gate::release`].
    pub permit: Option<HeldPermit>,
    /// For telling how long it took to serve, if this request is one of those that are timed.
    pub timer: Option<ServiceTimer>,
}

impl Gate {
    /// Lets a request in, if every limit admits it: rate limits are charged, `concurrency` limits
    /// are held. Several questions are one request, as in [`Gate::check_together`].
    ///
    /// # Errors
    /// As [`Gate::check_together`]; but `concurrency` limits are welcome.
    pub fn enter<'a>(
        &'a self,
        rules: &'a Rules,
        questions: &[Question<'a>],
    ) -> Result<Entered<'a>, GateError> {
        self.in_memory()?;
        let begun = is_timed().then(Instant::now);
        let mut plan = Plan::default();
        plan.fill_together(self, rules, questions, Taking::Places)?;
        let (answer, permit) = self.enter_here(&mut plan, questions)?;
        let elapsed = begun.map(|begun| begun.elapsed());
        let timing = Timing { elapsed, serving: begun.is_some() };
        Ok(self.entered(&plan, questions, (answer, permit), timing))
    }

    /// The same over any store; and with `max_wait` at the earliest moment it passes, or at
    /// once if that would take longer, as in [`Gate::wait`]. Places are not waited for: a
    /// request that must have one is decided at once. One that is only observed is taken when
    /// the wait is over.
    ///
    /// If the future is dropped while a shared store decides, charges stay. Permits end with
    /// their lease, unless the store releases them, as `RedisStore` does.
    ///
    /// # Errors
    /// As [`Gate::enter`].
    pub async fn enter_async<'a>(
        &'a self,
        rules: &'a Rules,
        questions: &[Question<'a>],
        max_wait: Option<Duration>,
    ) -> Result<Entered<'a>, GateError> {
        self.enter_for(&Asker::default(), rules, questions, max_wait).await
    }

    /// The same for somebody who may be gone before the store has answered.
    pub(crate) async fn enter_for<'a>(
        &'a self,
        asker: &Asker,
        rules: &'a Rules,
        questions: &[Question<'a>],
        max_wait: Option<Duration>,
    ) -> Result<Entered<'a>, GateError> {
        let begun = Instant::now();
        let mut plan = Plan::default();
        plan.fill_together(self, rules, questions, Taking::Places)?;
        let max_wait = max_wait.filter(|_| plan.can_wait());
        let outcome = match (&self.shared, max_wait) {
            (_, Some(max_wait)) => self.enter_in_turn(asker, &mut plan, max_wait).await?,
            (None, None) => self.enter_here(&mut plan, questions)?,
            (Some(shared), None) if plan.holds() => {
                asker.asks(self.hold_shared(shared, &mut plan, None)).await?
            }
            (Some(shared), None) => {
                let id = first_id(questions).filter(|_| plan.charges());
                (asker.asks(self.decide_shared(shared, &mut plan, id)).await?, None)
            }
        };
        // Who waited did not take long to decide.
        let elapsed = max_wait.is_none().then(|| begun.elapsed());
        let timing = Timing { elapsed, serving: is_timed() };
        Ok(self.entered(&plan, questions, outcome, timing))
    }

    /// What this process's memory says.
    fn enter_here<'a>(
        &self,
        plan: &mut Plan<'a>,
        questions: &[Question<'a>],
    ) -> Result<(Answer<'a>, Option<HeldPermit>), GateError> {
        if !plan.holds() {
            return Ok((self.answer_here(plan, first_id(questions))?, None));
        }
        self.hold_here(plan)
    }

    fn entered<'a>(
        &self,
        plan: &Plan<'a>,
        questions: &[Question<'a>],
        (answer, permit): (Answer<'a>, Option<HeldPermit>),
        timing: Timing,
    ) -> Entered<'a> {
        self.record(plan, &answer, named_first(questions), timing.elapsed);
        let timer = service_timer(plan, &answer, timing.serving);
        Entered { answer, permit, timer }
    }

    /// What [`Gate::enter`] does for a request under one policy of the program's own that
    /// [is plain](OwnPolicy::is_plain), in memory, without a plan. Only if the store
    /// [admits](crate::store::MemoryStore::admit) it at once, as it does nearly all;
    /// else go on with [`Gate::enter_slowly`].
    #[cfg(feature = "tower")]
    #[inline(always)]
    pub(crate) fn enter_own<'q>(
        &self,
        own: &OwnPolicy,
        key: &Words,
        units: u64,
        route: impl FnOnce() -> &'q str,
    ) -> Result<Decision, Missed> {
        let decision = self.limiter.store().admit(key, own.only_limit(), units)?;
        let name = key.text();
        let entering = OwnEntering { own, name: name.as_bytes(), units, begun: None };
        self.record_own(&entering, &decision, route);
        Ok(decision)
    }

    /// The same for any, with what the store has missed at once if it was asked.
    ///
    /// # Errors
    /// As [`Gate::check`].
    pub(crate) fn enter_slowly<'q>(
        &self,
        entering: &OwnEntering<'_>,
        missed: Option<Missed>,
        route: impl FnOnce() -> &'q str,
    ) -> Result<Told, GateError> {
        let OwnEntering { own, name, units, .. } = *entering;
        let (store, limit) = (self.limiter.store(), own.only_limit());
        let told = match missed {
            Some(missed) => store.ask_rarely(missed, limit, units)?,
            None => store.ask(name, limit, units)?,
        };
        if units > 0 {
            self.record_own(entering, &told.decision, route);
        }
        Ok(told)
    }

    #[inline(always)]
    fn record_own<'q>(
        &self,
        entering: &OwnEntering<'_>,
        decision: &Decision,
        route: impl FnOnce() -> &'q str,
    ) {
        let OwnEntering { own, name, begun, .. } = *entering;
        let key = &name[own.prefix().len()..];
        let line = stats::Line::exact(&own.stats()[0], own.only_limit(), key, decision);
        let elapsed = begun.map(|begun| begun.elapsed());
        self.stats.record_one(line, elapsed, || (Some(route()), None));
    }
}

/// What is timed of a request.
struct Timing {
    /// How long it took to decide, if somebody looked.
    elapsed: Option<Duration>,
    /// Whether it is its turn to have its service timed.
    serving: bool,
}

/// A request under one policy of the program's own that [is plain](OwnPolicy::is_plain).
#[derive(Clone, Copy)]
pub(crate) struct OwnEntering<'a> {
    pub(crate) own: &'a OwnPolicy,
    /// The key as the store sees it, behind the policy's prefix.
    pub(crate) name: &'a [u8],
    pub(crate) units: u64,
    /// When it was asked, if that is timed.
    pub(crate) begun: Option<Instant>,
}

/// A timer for one request in some; and for every one that an observed policy would
/// have denied: those are few, and what they cost is why one observes.
fn service_timer(plan: &Plan<'_>, answer: &Answer<'_>, timed: bool) -> Option<ServiceTimer> {
    if !answer.allowed || answer.lines.is_empty() {
        return None;
    }
    let would_deny = answer.lines.iter().any(|line| !line.decision.allowed);
    // What charges nothing was only asked about.
    let timed = would_deny || (timed && plan.charges());
    timed.then(|| ServiceTimer::new(plan.outcomes(answer)))
}
