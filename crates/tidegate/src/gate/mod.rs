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
//! - `ask.rs`: what can be asked; `plan.rs`: the checks that come of it;
//! - `answer.rs`: what is answered; `rules.rs`: policies with their counters.

mod answer;
mod ask;
mod error;
mod plan;
mod rules;

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};
use tidegate_core::{Cost, bounds};

pub use self::answer::{Answer, Line};
pub use self::ask::{Question, Subject};
pub use self::error::GateError;
pub use self::rules::Rules;

use self::plan::{Plan, Taking};
use crate::policy::{Mode, Policies};
use crate::stats::{LimitStats, Seen, Stats};
use crate::{Limiter, Permit, Request};

/// One decision in this many is timed: reading the clock twice would be a good
/// part of what a decision costs.
const TIMED_EVERY: u8 = 16;

/// Policies in front of a limiter. Shared by reference.
#[derive(Debug)]
pub struct Gate {
    limiter: Limiter,
    rules: ArcSwap<Rules>,
    stats: Arc<Stats>,
    /// Where limits given by callers are counted.
    caller: [Arc<LimitStats>; 1],
}

/// What came of asking for a permit.
#[derive(Debug)]
#[must_use = "a permit that is dropped is given back"]
pub struct Held<'a> {
    /// The permit, if it was granted.
    pub permit: Option<Permit>,
    /// The answer either way.
    pub answer: Answer<'a>,
    /// How long it is held unless renewed.
    pub lease: Duration,
    /// The longest it can be held without being renewed: the shortest lease of its limits,
    /// or what a lease can be at all where it holds none.
    pub most: Duration,
}

impl Gate {
    /// These policies in front of this limiter.
    pub fn new(limiter: Limiter, policies: Policies, stats: Arc<Stats>) -> Self {
        let rules = ArcSwap::from_pointee(Rules::new(policies, &stats));
        Gate { limiter, rules, caller: [stats.caller()], stats }
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

    /// The limiter behind it.
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
        let begun = is_timed().then(Instant::now);
        let mut plan = Plan::default();
        plan.fill(self, rules, question, Taking::Nothing)?;
        let answer = match plan.single().filter(|_| question.id.is_none()) {
            // The usual case by far: nothing to combine.
            Some((policy, limit, check)) => {
                let told = self.limiter.check_told(check.key, limit, check.cost)?;
                let decision = told.decision;
                let line = Line { policy, limit, mode: Mode::Enforce, decision };
                Answer { no_room: told.no_room, ..Answer::of_one(line) }
            }
            None => {
                let checks = plan.checks();
                // What charges nothing may be asked again and again, before and after.
                let id = question.id.filter(|_| plan.charges());
                let request = Request { id, ..Request::new(&checks) };
                plan.answer(&self.limiter.decide(&request)?)
            }
        };
        let elapsed = begun.map(|begun| begun.elapsed());
        self.record(&plan, &answer, question, elapsed);
        Ok(answer)
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
        Plan::default().fill(self, rules, question, Taking::Nothing)
    }

    /// Answers a question at the earliest moment it passes, or at once if that would
    /// take longer than `max_wait`; see [`Limiter::wait`]. Idempotency ids have no
    /// part in it.
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
        plan.fill(self, rules, question, Taking::Nothing)?;
        let checks = plan.checks();
        let verdict = self.limiter.wait(&checks, max_wait).await?;
        let answer = plan.answer(&verdict);
        self.record(&plan, &answer, question, None);
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
        let mut plan = Plan::default();
        plan.fill(self, rules, question, Taking::Permit(lease))?;
        let acquired = self.limiter.acquire(&plan.checks())?;
        let answer = plan.answer(acquired.verdict());
        self.record(&plan, &answer, question, None);
        // Where nothing is held, no limit says how long.
        let free = lease.unwrap_or(Duration::from_micros(bounds::DEFAULT_LEASE_US));
        let lease = plan.lease_us().map_or(free, Duration::from_micros);
        let most = Duration::from_micros(plan.longest_us());
        Ok(Held { permit: acquired.permit(), answer, lease, most })
    }

    /// What a key has left of a policy's limits, without touching them.
    ///
    /// # Errors
    /// [`GateError::UnknownPolicy`].
    pub fn peek<'a>(
        &'a self,
        rules: &'a Rules,
        policy: &'a str,
        key: &'a [u8],
    ) -> Result<Answer<'a>, GateError> {
        let subject = Subject::Key { policy, key, attributes: None };
        let question = Question { cost: Some(Cost::PEEK), ..Question::new(subject) };
        let mut plan = Plan::default();
        plan.fill(self, rules, &question, Taking::Look)?;
        // A permit of cost 0 holds nothing: this looks at concurrency limits too.
        let acquired = self.limiter.acquire(&plan.checks())?;
        Ok(plan.answer(acquired.verdict()))
    }

    /// Forgets what a key has used of a policy's limits, those of its overrides
    /// too; says whether there was anything.
    ///
    /// # Errors
    /// [`GateError::UnknownPolicy`].
    pub fn reset(&self, rules: &Rules, policy: &str, key: &[u8]) -> Result<bool, GateError> {
        let Some(selected) = rules.policies().named(policy, key, None) else {
            return Err(GateError::unknown_policy(policy));
        };
        let mut name = plan::KeyBytes::new();
        plan::write_key(policy, selected.key.as_ref(), &mut name);
        let limits = selected.policy.variants().iter().flat_map(|variant| variant.limits());
        Ok(limits.fold(false, |any, limit| self.limiter.reset(&name, limit) | any))
    }

    /// Counts what was decided. Looks, refunds and forced charges are none of that.
    fn record(
        &self,
        plan: &Plan<'_>,
        answer: &Answer<'_>,
        question: &Question<'_>,
        elapsed: Option<Duration>,
    ) {
        let lines = plan.seen(answer);
        if lines.is_empty() {
            return;
        }
        self.stats.record(&Seen {
            lines: &lines,
            allowed: answer.allowed,
            route: question.subject.route(),
            request_id: question.request_id,
            elapsed,
        });
    }
}

/// Whether it is this decision's turn to be timed.
fn is_timed() -> bool {
    thread_local! {
        static COUNT: Cell<u8> = const { Cell::new(0) };
    }
    COUNT.with(|count| {
        count.set((count.get() + 1) % TIMED_EVERY);
        count.get() == 0
    })
}
