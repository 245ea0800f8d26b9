//! The gate: policies in front of a limiter.
//!
//! ```text
//!   Question -> select (policies, keys, limits) -> Limiter -> Answer
//!                                                     \-> Stats
//! ```
//!
//! Every front asks here and nowhere else, so that what is counted, observed or
//! refused does not depend on the protocol. A front reads the [`Rules`] once per
//! request and passes them in: an answer borrows names and limits from them, and
//! a reload in between changes nothing for requests on their way.
//!
//! Where nodes share a store ([`Gate::over`]), the questions are the same and the
//! methods end in `_async`; the limiter then is this node's own memory, which decides
//! where a policy wants that when the store fails.
//!
//! - `ask.rs`: what can be asked; `plan.rs`: the checks that come of it; `together.rs`:
//!   several questions as one request; `agree.rs`: those that differ about one count;
//!   `plain.rs`: many plain ones, one by one; `enter.rs`: letting in a request that is served
//!   here; `own.rs`: policies that are code;
//! - `answer.rs`, `held.rs`: what is answered; `rules.rs`: policies with their counters;
//! - `shared.rs`: a store that nodes share; `remote.rs`: asking it; `fallback.rs`: what
//!   is answered when it fails;
//! - `lookup.rs`: peek and reset, and which key a text names;
//! - `waiting.rs`, `turns.rs`: waiting in order; `quotas.rs`: of several one is enough.

mod agree;
mod answer;
mod ask;
mod enter;
mod error;
mod fallback;
mod held;
mod lookup;
mod own;
mod plain;
mod plan;
mod quotas;
mod remote;
mod rules;
mod shared;
mod together;
mod turns;
mod waiting;
mod warm;

use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};

pub use self::answer::{Answer, Line};
pub use self::ask::{Question, Subject};
pub use self::enter::Entered;
pub use self::error::GateError;
pub use self::held::{Held, HeldPermit, SharedPermit};
pub use self::lookup::Found;
#[cfg(feature = "tower")]
pub(crate) use self::own::Charged;
pub use self::own::{OwnKey, OwnPolicy};
pub use self::rules::Rules;
pub use self::shared::{Asked, MAX_TOGETHER, SharedStore};
pub use self::together::Together;

pub(crate) use self::plan::{Plan, Taking};
use self::shared::Shared;
use crate::asker::Asker;
use crate::policy::Policies;
use crate::stats::{Decided, Seen, Stats, is_timed};
use crate::wait::Queues;
use crate::{Limiter, Request, Timestamp};

/// Policies in front of a limiter. Shared by reference.
#[derive(Debug)]
pub struct Gate {
    limiter: Limiter,
    /// Where counts are kept, if not in the limiter.
    shared: Option<Shared>,
    rules: ArcSwap<Rules>,
    /// Who waits where that cannot be played through, by what they wait for.
    queues: Queues,
    stats: Arc<Stats>,
}

impl Gate {
    /// The time on the limiter's clock.
    pub fn now(&self) -> Timestamp {
        self.limiter.store().clock().now()
    }

    /// These policies in front of this limiter.
    pub fn new(limiter: Limiter, policies: Policies, stats: Arc<Stats>) -> Self {
        let rules = ArcSwap::from_pointee(Rules::new(policies, &stats));
        let queues = Queues::default();
        Gate { limiter, shared: None, rules, queues, stats }
    }

    /// The same over a store that `nodes` gates share. The limiter then is this node's own
    /// memory, for policies that say `on_store_failure: local`.
    #[must_use]
    pub fn over(mut self, store: Arc<dyn SharedStore>, nodes: u32) -> Self {
        self.shared = Some(Shared::new(store, nodes));
        self
    }

    /// Whether it shares its store with others, and must be asked by the `_async` methods.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// How many share the limits, from now on.
    pub fn set_nodes(&self, nodes: u32) {
        if let Some(shared) = &self.shared {
            shared.set_nodes(nodes);
        }
    }

    /// Other policies from now on. What was counted stays: a limit finds its
    /// counts by its policy's name, the key, its algorithm and its window.
    pub fn reload(&self, policies: Policies) {
        self.rules.store(Arc::new(Rules::new(policies, &self.stats)));
    }

    /// The rules now in force, for as long as one question takes.
    pub fn rules(&self) -> Guard<Arc<Rules>> {
        self.rules.load()
    }

    /// The rules now in force, for longer.
    pub fn rules_owned(&self) -> Arc<Rules> {
        self.rules.load_full()
    }

    /// The limiter behind it: where counts are kept, or this node's own memory.
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// What it has counted.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// Answers a question.
    ///
    /// # Errors
    /// When the question makes no sense; see [`GateError`]. A denial is not an error.
    pub fn check<'a>(
        &'a self,
        rules: &'a Rules,
        question: &Question<'a>,
    ) -> Result<Answer<'a>, GateError> {
        self.in_memory()?;
        let begun = is_timed().then(Instant::now);
        let mut plan = Plan::default();
        plan.fill(rules, question, Taking::Nothing)?;
        let answer = self.answer_here(&mut plan, question.id)?;
        let elapsed = begun.map(|begun| begun.elapsed());
        self.record(&plan, &answer, Named::of(slice::from_ref(question)), elapsed);
        Ok(answer)
    }

    /// What this process's memory decides.
    #[inline]
    fn answer_here<'a>(
        &self,
        plan: &mut Plan<'a>,
        id: Option<&[u8]>,
    ) -> Result<Answer<'a>, GateError> {
        loop {
            let answer = self.answer_once(plan, id)?;
            if !plan.ask_again(&answer) {
                return Ok(answer);
            }
        }
    }

    #[inline]
    fn answer_once<'a>(&self, plan: &Plan<'a>, id: Option<&[u8]>) -> Result<Answer<'a>, GateError> {
        match plan.single().filter(|(.., check)| id.is_none() && check.overflowing() == 0) {
            // The usual case by far: nothing to combine, and nothing to consume.
            Some((part, limit, check)) => {
                let told = self.limiter.check_told(check.key, limit, check.cost)?;
                let line = part.line(limit, told.decision, Decided::Exact);
                Ok(Answer { no_room: told.no_room, ..Answer::of_one(line) })
            }
            None => {
                let checks = plan.checks();
                // What charges nothing may be asked again and again, before and after.
                let id = id.filter(|_| plan.charges());
                let request = Request { id, ..Request::new(&checks) };
                Ok(plan.answer(&self.limiter.decide(&request)?))
            }
        }
    }

    /// Answers a question, over any store. A store that fails is no error: the policies
    /// say what is answered then, and [`Answer::decided`] says that it was so.
    ///
    /// # Errors
    /// As [`Gate::check`].
    pub async fn check_async<'a>(
        &'a self,
        rules: &'a Rules,
        question: &Question<'a>,
    ) -> Result<Answer<'a>, GateError> {
        match &self.shared {
            Some(shared) => self.check_shared(shared, rules, question).await,
            None => self.check(rules, question),
        }
    }

    /// Whether a question makes sense, without asking it.
    ///
    /// # Errors
    /// As [`Gate::check`], but for what only shows when it is charged.
    pub fn understand<'a>(
        &'a self,
        rules: &'a Rules,
        question: &Question<'a>,
    ) -> Result<(), GateError> {
        Plan::default().fill(rules, question, Taking::Nothing)
    }

    /// Answers a question at the earliest moment it passes, or at once if that would
    /// take longer than `max_wait`; see [`Limiter::wait`]. Idempotency ids have no
    /// part in it, and a denial charges nothing, also under `overflow: consume`.
    ///
    /// Over a shared store nobody can say beforehand how long those waiting on all nodes
    /// will take; nor, where a request meets several quotas, which will have room. Those with
    /// the same keys and limits wait in order on each node, and only the first of them asks;
    /// who would wait for longer than `max_wait` even if alone is denied at once, and so is
    /// who is not first by then.
    ///
    /// # Errors
    /// As [`Gate::check`].
    pub async fn wait<'a>(
        &'a self,
        rules: &'a Rules,
        question: &Question<'a>,
        max_wait: Duration,
    ) -> Result<Answer<'a>, GateError> {
        let mut plan = Plan::default();
        plan.fill(rules, question, Taking::Nothing)?;
        let answer = self.wait_planned(&Asker::default(), &mut plan, max_wait).await?;
        self.record(&plan, &answer, Named::of(slice::from_ref(question)), None);
        Ok(answer)
    }

    /// Takes a permit: `concurrency` limits are held until it is dropped or its lease
    /// ends, rate limits are charged. The lease is the shortest of the limits'
    /// own, or `lease` if that is given and no longer than any.
    ///
    /// # Errors
    /// As [`Gate::check`]; and when there is no `concurrency` limit to hold, or
    /// the lease is too long.
    pub fn acquire<'a>(
        &'a self,
        rules: &'a Rules,
        question: &Question<'a>,
        lease: Option<Duration>,
    ) -> Result<Held<'a>, GateError> {
        self.in_memory()?;
        let mut plan = Plan::default();
        plan.fill(rules, question, Taking::Permit(lease))?;
        let (answer, permit) = self.hold_here(&mut plan)?;
        self.record(&plan, &answer, Named::of(slice::from_ref(question)), None);
        let (lease, most) = held::leases(&plan, lease);
        Ok(Held { permit, answer, lease, most })
    }

    /// Takes places in this process's memory; again where a quota was used up and another
    /// has room.
    fn hold_here<'a>(
        &self,
        plan: &mut Plan<'a>,
    ) -> Result<(Answer<'a>, Option<HeldPermit>), GateError> {
        loop {
            let acquired = self.limiter.acquire(&plan.checks())?;
            let answer = plan.answer(acquired.verdict());
            if !plan.ask_again(&answer) {
                return Ok((answer, acquired.permit().map(HeldPermit::Here)));
            }
        }
    }

    /// Takes a permit, over any store. One of a shared store is not given back on drop:
    /// see [`Gate::release`] and [`Gate::renew`].
    ///
    /// # Errors
    /// As [`Gate::acquire`].
    pub async fn acquire_async<'a>(
        &'a self,
        rules: &'a Rules,
        question: &Question<'a>,
        lease: Option<Duration>,
    ) -> Result<Held<'a>, GateError> {
        match &self.shared {
            Some(shared) => self.acquire_shared(shared, rules, question, lease).await,
            None => self.acquire(rules, question, lease),
        }
    }

    /// That counts are kept here, where they can be had without waiting.
    #[inline]
    fn in_memory(&self) -> Result<(), GateError> {
        if self.shared.is_some() { Err(GateError::Shared) } else { Ok(()) }
    }

    /// Counts what was decided, under its path and request id. Looks, refunds and forced
    /// charges are none of that.
    fn record(
        &self,
        plan: &Plan<'_>,
        answer: &Answer<'_>,
        Named { route, request_id, .. }: Named<'_>,
        elapsed: Option<Duration>,
    ) {
        let lines = plan.seen(answer);
        if lines.is_empty() {
            return;
        }
        self.stats.record(&Seen {
            lines: &lines,
            allowed: answer.allowed,
            route,
            request_id,
            elapsed,
        });
    }
}

/// What a request is called: of several questions the first that has a name gives it to all.
#[derive(Clone, Copy, Default)]
pub(crate) struct Named<'q> {
    /// An idempotency id.
    pub(crate) id: Option<&'q [u8]>,
    /// The path asked for.
    pub(crate) route: Option<&'q str>,
    pub(crate) request_id: Option<&'q str>,
}

impl<'q> Named<'q> {
    fn of(questions: &[Question<'q>]) -> Self {
        Named {
            id: questions.iter().find_map(|question| question.id),
            route: questions.iter().find_map(|question| question.subject.route()),
            request_id: questions.iter().find_map(|question| question.request_id),
        }
    }
}
