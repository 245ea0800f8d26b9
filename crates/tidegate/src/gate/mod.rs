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
//! A question is planned, decided by the store and answered. Where nodes share a store
//! ([`Gate::over`]), the limiter is this node's own memory, which decides where a policy wants that
//! when the store fails. Without one, nothing has to be awaited: [`Gate::sync`] polls once.
//!
//! - `ask.rs`: questions; `plan.rs`: their checks; `agree.rs`: questions with different limits for
//!   one count; `quotas.rs`: requests that need room in one of several quotas;
//! - `decide.rs`: calls of the store; `shared_store.rs`: a store that nodes share; `fallback.rs`:
//!   answers while it fails;
//! - `answer.rs`, `held.rs`: answers and permits; `rules.rs`: policies with their counters;
//! - `enter.rs`: admission of a request that is served here; `own.rs`: policies in code;
//!   `plain.rs`: batches of plain questions; `keys.rs`: peek and reset;
//! - `waiting.rs`: waiting requests.

mod agree;
mod answer;
mod ask;
mod decide;
mod enter;
mod error;
mod fallback;
mod held;
mod keys;
mod own;
mod plain;
mod plan;
mod quotas;
mod rules;
mod shared_store;
mod waiting;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};
use smallvec::SmallVec;

pub use self::answer::{Answer, DenialReason, Line};
pub use self::ask::{Question, Subject};
pub use self::enter::Entered;
pub use self::error::GateError;
pub use self::held::{Held, HeldPermit, SharedPermit};
pub use self::keys::{Found, PolicyKeys};
#[cfg(feature = "tower")]
pub(crate) use self::own::{Change, Charged};
pub use self::own::{OwnKey, OwnPolicy};
pub use self::rules::Rules;
pub(crate) use self::shared_store::ErasedStore;

use self::decide::Asking;
#[cfg(feature = "tower")]
pub(crate) use self::plan::KeyBytes;
pub(crate) use self::plan::{Plan, Taking};
use self::shared_store::Shared;
use crate::asker::Asker;
use crate::block_on::poll_once;
pub use crate::join::MAX_TOGETHER;
use crate::policy::Policies;
use crate::stats::{self, Counting, Seen, Stats, is_near, is_timed};
use crate::wait::Queues;
use crate::{Limiter, Store, Timestamp};

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

    /// Keeps counts in a store that `nodes` gates share: `tidegate::redis::RedisStore` for many
    /// machines, or a [`MemoryStore`](crate::MemoryStore) for several gates of one process. The
    /// limiter then is this node's own memory, for policies that say `on_store_failure: local`.
    #[must_use]
    pub fn over<S: Store>(self, store: Arc<S>, nodes: u32) -> Self {
        self.over_erased(store, nodes)
    }

    pub(crate) fn over_erased(self, store: Arc<dyn ErasedStore>, nodes: u32) -> Self {
        Gate { shared: Some(Shared::new(store, nodes)), ..self }
    }

    /// Whether it shares its store with others, so that answers must be awaited.
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

    /// The rules now in force, for as long as one question takes. Clone the `Arc` to keep them for
    /// longer.
    pub fn rules(&self) -> Guard<Arc<Rules>> {
        self.rules.load()
    }

    /// The limiter behind it: where counts are kept, or this node's own memory.
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// What it has counted.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// Polls a future of this gate once. Where counts are kept in memory it is ready then, unless the
    /// question has a `max_wait`.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tidegate::Limiter;
    /// use tidegate::unstable::gate::{Gate, Question, Subject};
    /// use tidegate::unstable::identity::Identity;
    /// use tidegate::unstable::policy::Policies;
    /// use tidegate::unstable::stats::Stats;
    ///
    /// let policies = Policies::new(Vec::new(), Identity::default())?;
    /// let gate = Gate::new(Limiter::new(), policies, Arc::new(Stats::default()));
    /// let rules = gate.rules();
    /// let limits = ["10 per 1m".parse()?];
    /// let question = Question::new(Subject::Limits { key: b"alice", limits: &limits });
    /// let answer = gate.sync(gate.check(&rules, &[question]))?;
    /// assert!(answer.allowed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`GateError::MustAwait`] over a shared store, without asking it, and for a question that
    /// waits; else those of the future.
    #[inline]
    pub fn sync<T>(
        &self,
        future: impl Future<Output = Result<T, GateError>>,
    ) -> Result<T, GateError> {
        if self.is_shared() {
            return Err(GateError::MustAwait);
        }
        poll_once(future).unwrap_or(Err(GateError::MustAwait))
    }

    /// Answers one or several questions as one request: all are charged or none. Each has its own
    /// subject and cost; what one of them meets may replace what another meets. Where two are
    /// counted in one place, the strictest of their limits holds for both, and what one gives
    /// back is set off against what the other asks for. Of idempotency ids, request ids, paths and
    /// waits the first that is given holds for all.
    ///
    /// A store that fails is not an error: the policies say what is answered then, and
    /// [`Answer::decided`] says that it was so.
    ///
    /// # Errors
    /// When a question makes no sense; see [`GateError`]. A denial is not an error.
    pub async fn check<'a>(
        &self,
        rules: &'a Rules,
        questions: &[Question<'a>],
    ) -> Result<Answer<'a>, GateError> {
        let mut plan = Plan::default();
        self.check_in(&mut plan, rules, questions).await?;
        Ok(plan.answer)
    }

    /// Answers questions as [`Gate::check`] does. The plan, which was empty, keeps the answer.
    async fn check_in<'a>(
        &self,
        plan: &mut Plan<'a>,
        rules: &'a Rules,
        questions: &[Question<'a>],
    ) -> Result<(), GateError> {
        plan.fill(rules, questions, Taking::Nothing)?;
        let route = || route_of(questions);
        let named = Named::of(questions, &route);
        let (timing, asker) = (Timing::begin(self), &Asker::default());
        match named.max_wait {
            None => self.decide(asker, plan, Asking { id: named.id, ..Asking::CHECK }).await?,
            Some(max_wait) => Box::pin(self.wait_planned(asker, plan, max_wait)).await?,
        }
        plan.answer.unlimited = plan.unlimited();
        self.record(plan, &named, timing.elapsed(named.max_wait));
        Ok(())
    }

    /// Decides a plan in this process's memory, and counts what was decided.
    #[inline]
    fn check_here(
        &self,
        plan: &mut Plan<'_>,
        named: &Named<'_>,
        asking: Asking<'_>,
    ) -> Result<Timing, GateError> {
        let timing = Timing::begin(self);
        self.decide_here(plan, asking)?;
        self.record(plan, named, timing.elapsed(None));
        Ok(timing)
    }

    /// Takes a permit: `concurrency` limits are held until it is dropped or its lease
    /// ends, rate limits are charged. The lease is the shortest of the limits'
    /// own, or `lease` if that is given and no longer than any. A permit of a shared store is not
    /// given back on drop: see [`SharedPermit::release`].
    ///
    /// # Errors
    /// As [`Gate::check`]; and when there is no `concurrency` limit to hold, or
    /// the lease is too long.
    pub async fn acquire<'a>(
        &self,
        rules: &'a Rules,
        question: &Question<'a>,
        lease: Option<Duration>,
    ) -> Result<Held<'a>, GateError> {
        let questions = std::slice::from_ref(question);
        let mut plan = Plan::default();
        plan.fill(rules, questions, Taking::Permit(lease))?;
        let timing = Timing::begin(self);
        self.decide(&Asker::default(), &mut plan, Asking { lease, ..Asking::PERMIT }).await?;
        let route = || route_of(questions);
        self.record(&plan, &Named::of(questions, &route), timing.elapsed(None));
        let (lease, most) = held::leases(&plan, lease);
        Ok(Held { permit: plan.permit, answer: plan.answer, lease, most })
    }

    /// The keys of a policy, to look them up, peek at them and reset them.
    ///
    /// # Errors
    /// [`GateError::UnknownPolicy`].
    pub fn keys<'a>(&'a self, rules: &'a Rules, policy: &str) -> Result<PolicyKeys<'a>, GateError> {
        Ok(PolicyKeys::new(self, rules, rules.policies().find(policy)?))
    }

    /// Counts what was decided, under its path and request id. Peeks, refunds and forced charges are
    /// not counted.
    fn record(&self, plan: &Plan<'_>, named: &Named<'_>, elapsed: Option<Duration>) {
        let mut counting = Counting::new(plan.answer.allowed);
        plan.for_each_counted(|_, line, stats| {
            let near = is_near(line.limit, line.remaining());
            counting.add(stats, line.decision.allowed, near, line.decided);
        });
        if counting.has_lines && self.stats.add(counting, elapsed) {
            self.note(plan, named, elapsed);
        }
    }

    #[cold]
    fn note(&self, plan: &Plan<'_>, named: &Named<'_>, elapsed: Option<Duration>) {
        let mut lines = SmallVec::<[stats::Line<'_>; 4]>::new();
        plan.for_each_counted(|part, line, stats| {
            lines.push(stats::Line {
                stats,
                limit: line.limit,
                key: plan.bare_key(part),
                allowed: line.decision.allowed,
                remaining: line.remaining(),
                retry_after: line.decision.retry_after,
                decided: line.decided,
            });
        });
        let (allowed, route) = (plan.answer.allowed, (named.route)());
        let request_id = named.request_id;
        self.stats.note(&Seen { lines: &lines, allowed, route, request_id, elapsed });
    }
}

/// Settings that the questions of a request share: the first question that has one sets it.
#[derive(Clone, Copy)]
pub(crate) struct Named<'q> {
    /// An idempotency id.
    pub(crate) id: Option<&'q [u8]>,
    /// Returns the path. It is called only if the key of the request is noted.
    pub(crate) route: &'q (dyn Fn() -> Option<&'q str> + Sync),
    pub(crate) request_id: Option<&'q str>,
    /// The longest wait; see [`Question::max_wait`].
    pub(crate) max_wait: Option<Duration>,
}

impl<'q> Named<'q> {
    fn of(questions: &[Question<'q>], route: &'q (dyn Fn() -> Option<&'q str> + Sync)) -> Self {
        Named {
            id: questions.iter().find_map(|question| question.id),
            route,
            request_id: questions.iter().find_map(|question| question.request_id),
            max_wait: questions.iter().find_map(|question| question.max_wait),
        }
    }
}

/// The path that the first question with one asks for.
fn route_of<'q>(questions: &[Question<'q>]) -> Option<&'q str> {
    questions.iter().find_map(|question| question.subject.route())
}

/// When a decision began, and whether it is among those that are timed.
#[derive(Clone, Copy)]
struct Timing {
    begun: Option<Instant>,
    is_timed: bool,
}

impl Timing {
    /// One decision in some is timed, and every one over a shared store: beside its round trip, the
    /// clock costs nothing.
    fn begin(gate: &Gate) -> Self {
        let is_timed = is_timed();
        Timing { begun: (is_timed || gate.is_shared()).then(Instant::now), is_timed }
    }

    /// How long the decision took. A request that waited did not take long to decide.
    fn elapsed(self, max_wait: Option<Duration>) -> Option<Duration> {
        self.begun.filter(|_| max_wait.is_none()).map(|begun| begun.elapsed())
    }
}
