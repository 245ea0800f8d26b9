//! Runs all events through one set of limits and counts the outcomes.

use std::time::{Duration, Instant};

use tidegate::unstable::config::Config;
use tidegate::unstable::policy::Mode;
use tidegate::{Algorithm, Limit, RetryAfter};

use crate::algorithms::{Algorithms, RATE_ALGORITHMS};
use crate::block::Block;
use crate::engine::{Engine, EventOutcome, Memory};
use crate::error::ReplayError;
use crate::ground_truth::{GroundTruth, MaxCount};
use crate::policy_replay::{self, PolicyReplay, UndecidedCounts};
use crate::tally::Tally;

/// The number of blocks between two measurements of the memory held.
const MEMORY_CHECK_INTERVAL: u32 = 16;

/// Decides events and counts the outcomes. The two halves can run on two threads: counting the
/// ground truth takes about as long as deciding.
pub struct Run {
    pub decider: Decider,
    pub counts: OutcomeCounter,
    /// The outcomes of the block taken last.
    answers: Vec<EventOutcome>,
}

/// The deciding half.
pub struct Decider {
    /// `None` for policies, which decide in the counting half.
    engine: Option<Engine>,
    busy: Duration,
    blocks: u32,
    /// The most memory that was held at any measurement.
    max_held: Memory,
}

/// The counting half.
pub struct OutcomeCounter {
    limit_set: LimitSet,
    pub tally: Tally,
    /// Whether each event of a block fitted every limit, by the ground truth.
    fits: Vec<bool>,
    /// The timeline bins of the events of a block.
    bins: Vec<u32>,
    busy: Duration,
}

enum LimitSet {
    /// The ground truth of each limit.
    Limits(Vec<GroundTruth>),
    /// Whole policies.
    Policies(Box<PolicyReplay>, Option<Algorithm>),
}

/// A limit, and the largest true count of one key within its window.
pub struct LimitResult<'a> {
    pub limit: &'a Limit,
    pub largest: MaxCount,
    /// For a limit of a policy: the name and mode of the policy, and how often the limit was
    /// applied and denied.
    pub policy: Option<(&'a str, Mode, u64, u64)>,
}

impl Decider {
    /// Decides a block. Policies are decided in [`OutcomeCounter::take`] instead.
    pub fn decide(
        &mut self,
        block: &Block,
        answers: &mut Vec<EventOutcome>,
    ) -> Result<(), ReplayError> {
        let Some(engine) = &mut self.engine else { return Ok(()) };
        let started = Instant::now();
        engine.decide(block, answers)?;
        self.blocks = self.blocks.wrapping_add(1);
        if self.blocks % MEMORY_CHECK_INTERVAL == 1 {
            self.max_held = self.max_held.max(engine.memory());
        }
        self.busy += started.elapsed();
        Ok(())
    }
}

impl OutcomeCounter {
    /// Counts the outcomes of a block. Policies decide the block first.
    pub fn take(&mut self, block: &Block, answers: &mut Vec<EventOutcome>) {
        let started = Instant::now();
        match &mut self.limit_set {
            LimitSet::Policies(policies, _) => policies.take(block, &mut self.tally, answers),
            LimitSet::Limits(_) => {
                self.count_ground_truth(block, answers);
                self.count(block, answers);
            }
        }
        self.busy += started.elapsed();
    }

    /// Computes whether each event truly fitted, and the true count of its key.
    fn count_ground_truth(&mut self, block: &Block, answers: &[EventOutcome]) {
        let OutcomeCounter { limit_set, tally, fits, bins, .. } = self;
        let LimitSet::Limits(ground_truths) = limit_set else { return };
        let timeline = &mut tally.timeline;
        // Adds bins for the earliest and the latest time first, because adding bins later would
        // change the indices.
        let ends = block.rows.iter().map(|row| row.time_us);
        if let (Some(first), Some(last)) = (ends.clone().min(), ends.max()) {
            timeline.bin_index(first);
            timeline.bin_index(last);
        }
        bins.clear();
        let place = |time_us| u32::try_from(timeline.bin_index(time_us)).unwrap_or(0);
        bins.extend(block.rows.iter().map(|row| row.time_us).map(place));
        fits.clear();
        fits.resize(block.rows.len(), true);
        for (limit, ground_truth) in ground_truths.iter_mut().enumerate() {
            ground_truth.record_all(
                &block.rows,
                |at| answers[at].allowed,
                |at, true_count| {
                    fits[at] &= true_count.fits;
                    timeline.record_max(bins[at] as usize, limit, true_count.count);
                },
            );
            timeline.record_held(limit, ground_truth.take_held());
        }
    }

    fn count(&mut self, block: &Block, answers: &[EventOutcome]) {
        let OutcomeCounter { tally, fits, bins, .. } = self;
        for (at, answer) in answers.iter().enumerate() {
            // Peeks and refunds need no capacity.
            let row = &block.rows[at];
            let fits = if row.cost > 0 { fits[at] } else { answer.allowed };
            tally.count(bins[at] as usize, answer.allowed, fits);
            if !answer.allowed {
                tally.keys.denied(row.key, block.key(at));
            } else if answer.near {
                tally.near += 1;
                tally.keys.near(row.key, block.key(at));
            }
        }
    }

    /// Counts outcomes that differ from those of the exact log.
    pub fn compare(&mut self, block: &Block, ours: &[EventOutcome], exact_log: &[EventOutcome]) {
        for (at, (ours, theirs)) in ours.iter().zip(exact_log).enumerate() {
            if ours.allowed != theirs.allowed {
                self.tally.differs(block.rows[at].time_us, ours.allowed);
            }
        }
    }
}

impl Run {
    pub fn new(limits: Vec<Limit>) -> Self {
        let ground_truth = |limit: &Limit| GroundTruth::new(limit.window_us(), limit.count());
        let ground_truths: Vec<GroundTruth> = limits.iter().map(ground_truth).collect();
        let limit_count = ground_truths.len();
        Run::with(Some(Engine::new(limits)), LimitSet::Limits(ground_truths), limit_count)
    }

    /// Creates a run of the policies of a config, under another algorithm or the configured ones.
    pub fn of_config(config: &Config, algorithm: Option<Algorithm>) -> Result<Self, ReplayError> {
        let policies = match algorithm {
            None => config.policies.clone(),
            Some(algorithm) => policy_replay::with_algorithm(&config.policies, algorithm)?,
        };
        let policies = PolicyReplay::new(config, policies)?;
        let limit_count = policies.limits().len();
        Ok(Run::with(None, LimitSet::Policies(Box::new(policies), algorithm), limit_count))
    }

    fn with(engine: Option<Engine>, limit_set: LimitSet, limit_count: usize) -> Self {
        let (busy, max_held) = (Duration::ZERO, Memory::default());
        let decider = Decider { engine, busy, blocks: 0, max_held };
        let (fits, bins) = (Vec::new(), Vec::new());
        let counts = OutcomeCounter { limit_set, tally: Tally::new(limit_count), fits, bins, busy };
        Run { decider, counts, answers: Vec::new() }
    }

    /// Keeps the largest counts between requests too, for a plot or a list over time.
    pub fn keep_held(mut self) -> Self {
        match &mut self.counts.limit_set {
            LimitSet::Limits(all) => all.iter_mut().for_each(GroundTruth::keep_held),
            LimitSet::Policies(policies, _) => {
                policies.keep_held();
            }
        }
        self
    }

    /// Ends the counts of all keys. Call it after the last block.
    pub fn finish(&mut self) {
        let OutcomeCounter { limit_set, tally: Tally { timeline, .. }, .. } = &mut self.counts;
        timeline.finish();
        match limit_set {
            LimitSet::Limits(ground_truths) => {
                for (limit, ground_truth) in ground_truths.iter_mut().enumerate() {
                    let end_us = timeline.end_us();
                    ground_truth.finish(end_us, |_, held| timeline.record_held(limit, [held]));
                }
            }
            LimitSet::Policies(policies, _) => policies.finish(timeline),
        }
    }

    /// Decides a block and counts the outcomes.
    pub fn take(&mut self, block: &Block) -> Result<(), ReplayError> {
        self.decider.decide(block, &mut self.answers)?;
        self.counts.take(block, &mut self.answers);
        Ok(())
    }

    pub fn answers(&self) -> &[EventOutcome] {
        &self.answers
    }

    pub fn tally(&self) -> &Tally {
        &self.counts.tally
    }

    /// Returns the time spent deciding and counting.
    pub fn busy(&self) -> Duration {
        self.decider.busy + self.counts.busy
    }

    /// Returns the time after which the last decided event would pass.
    pub fn retry_after(&self) -> RetryAfter {
        self.decider.engine.as_ref().map_or(RetryAfter::Now, Engine::retry_after)
    }

    /// Returns the most memory that was held at any measurement.
    pub fn memory(&self) -> Memory {
        let now = match (&self.decider.engine, &self.counts.limit_set) {
            (Some(engine), _) => engine.memory(),
            (None, LimitSet::Policies(policies, _)) => policies.memory(),
            (None, LimitSet::Limits(_)) => Memory::default(),
        };
        self.decider.max_held.max(now)
    }

    fn limits(&self) -> &[Limit] {
        self.decider.engine.as_ref().map_or(&[], Engine::limits)
    }

    /// Returns each limit with its counts.
    pub fn limit_results(&self) -> Vec<LimitResult<'_>> {
        match &self.counts.limit_set {
            LimitSet::Limits(ground_truths) => {
                let both = self.limits().iter().zip(ground_truths);
                both.map(|(limit, ground_truth)| LimitResult {
                    limit,
                    largest: ground_truth.largest(),
                    policy: None,
                })
                .collect()
            }
            LimitSet::Policies(policies, _) => {
                let limits = policies.limits().iter().map(|limit| LimitResult {
                    limit: &limit.limit,
                    largest: limit.largest,
                    policy: Some((&*limit.policy, limit.mode, limit.asked, limit.denied)),
                });
                limits.collect()
            }
        }
    }

    /// Returns the limit with the shortest window. The lease of a concurrency limit is not a
    /// window.
    pub fn shortest_limit(&self) -> Option<&Limit> {
        let limits = self.limit_results().into_iter().map(|result| result.limit);
        let rates = limits.filter(|limit| limit.algorithm() != Algorithm::Concurrency);
        rates.min_by_key(|limit| limit.window_us())
    }

    /// For policies, returns the requests that were not decided as usual, and how often each key
    /// was used.
    pub fn undecided(&self) -> Option<(&UndecidedCounts, Vec<u32>)> {
        match &self.counts.limit_set {
            LimitSet::Limits(_) => None,
            LimitSet::Policies(policies, _) => Some((&policies.undecided, policies.events_of())),
        }
    }

    /// For policies, returns the number of requests that were neither admitted nor denied.
    pub fn not_replayed(&self) -> Option<u64> {
        match &self.counts.limit_set {
            LimitSet::Limits(_) => None,
            LimitSet::Policies(policies, _) => Some(policies.undecided.not_replayed),
        }
    }

    /// Returns the algorithm of the limits, `mixed` for several algorithms, or `policies` for the
    /// configured ones.
    pub fn name(&self) -> &'static str {
        if let LimitSet::Policies(_, algorithm) = &self.counts.limit_set {
            return algorithm.map_or("policies", Algorithm::name);
        }
        let mut algorithms = self.limits().iter().map(Limit::algorithm);
        let first = algorithms.next();
        let same = algorithms.all(|algorithm| Some(algorithm) == first);
        first.filter(|_| same).map_or("mixed", Algorithm::name)
    }
}

/// Returns the limits of a single run under `sliding-log`, unless they already are.
pub fn exact_log(limits_per_run: &[Vec<Limit>]) -> Option<Vec<Limit>> {
    let [limits] = limits_per_run else { return None };
    if limits.iter().all(|limit| limit.algorithm() == Algorithm::SlidingLog) {
        return None;
    }
    self::limits_per_run(limits, Some(Algorithms::One(Algorithm::SlidingLog))).ok()?.pop()
}

/// Counts where runs differ from the exact log: from `exact_log`, or else from the first run.
pub fn compare(block: &Block, runs: &mut [Run], exact_log: Option<&Run>) {
    let Some((first, others)) = runs.split_first_mut() else { return };
    match exact_log {
        Some(exact_log) => first.counts.compare(block, &first.answers, &exact_log.answers),
        None => {
            for run in others {
                run.counts.compare(block, &run.answers, &first.answers);
            }
        }
    }
}

/// Creates a run of a config for each of the algorithms.
pub fn runs_of_config(
    config: &Config,
    algorithms: Option<Algorithms>,
) -> Result<Vec<Run>, ReplayError> {
    match algorithms {
        None => Ok(vec![Run::of_config(config, None)?]),
        Some(Algorithms::One(algorithm)) => Ok(vec![Run::of_config(config, Some(algorithm))?]),
        Some(Algorithms::All) => {
            RATE_ALGORITHMS.into_iter().map(|one| Run::of_config(config, Some(one))).collect()
        }
    }
}

/// Returns the limits of each run: as given, or under one or all of the algorithms.
pub fn limits_per_run(
    limits: &[Limit],
    algorithms: Option<Algorithms>,
) -> Result<Vec<Vec<Limit>>, ReplayError> {
    if let Some(&limit) = limits.iter().find(|limit| limit.algorithm() == Algorithm::Concurrency) {
        return Err(ReplayError::Concurrency { limit: Box::new(limit) });
    }
    let with_algorithm = |algorithm| {
        limits.iter().map(move |limit| with_limit_algorithm(limit, algorithm)).collect()
    };
    let runs: Vec<Vec<Limit>> = match algorithms {
        None => vec![limits.to_vec()],
        Some(Algorithms::One(algorithm)) => vec![with_algorithm(algorithm)],
        Some(Algorithms::All) => RATE_ALGORITHMS.into_iter().map(with_algorithm).collect(),
    };
    runs.iter().try_for_each(|limits| check_distinct_states(limits))?;
    Ok(runs)
}

/// Returns the limit under another algorithm. Under its own algorithm it keeps its burst.
pub fn with_limit_algorithm(limit: &Limit, algorithm: Algorithm) -> Limit {
    // A concurrency limit is not a rate, and is kept.
    if limit.algorithm() == algorithm || limit.algorithm() == Algorithm::Concurrency {
        return *limit;
    }
    let window = Duration::from_micros(limit.window_us());
    // The count and window are within bounds that are the same for every algorithm.
    Limit::new(limit.count(), window, algorithm).unwrap_or(*limit)
}

fn check_distinct_states(limits: &[Limit]) -> Result<(), ReplayError> {
    for (index, second) in limits.iter().enumerate() {
        if let Some(&first) = limits[..index].iter().find(|first| first.id() == second.id()) {
            return Err(ReplayError::SharedState(Box::new([first, *second])));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(
        limits: &[&str],
        algorithms: Option<Algorithms>,
    ) -> Result<Vec<Vec<String>>, String> {
        let limits: Vec<Limit> = limits.iter().map(|text| text.parse().expect(text)).collect();
        let runs = limits_per_run(&limits, algorithms).map_err(|error| error.to_string())?;
        Ok(runs.iter().map(|run| run.iter().map(Limit::to_string).collect()).collect())
    }

    #[test]
    fn algorithm_option_replaces_algorithms() {
        let limits = ["5 per 1s token-bucket burst 9", "7 per 1m"];
        assert_eq!(
            planned(&limits, None).expect("a plan"),
            [["5 per 1s token-bucket burst 9", "7 per 1m sliding-window"]]
        );
        let all = planned(&limits, Some(Algorithms::All)).expect("a plan");
        assert_eq!(
            all,
            [
                ["5 per 1s sliding-log", "7 per 1m sliding-log"],
                ["5 per 1s sliding-window", "7 per 1m sliding-window"],
                ["5 per 1s sliding-counter", "7 per 1m sliding-counter"],
                ["5 per 1s fixed-window", "7 per 1m fixed-window"],
                ["5 per 1s token-bucket burst 9", "7 per 1m token-bucket"],
            ]
        );
    }

    #[test]
    fn rejects_limits_that_share_a_state() {
        let twice = ["5 per 1s sliding-log", "7 per 1s sliding-counter"];
        assert!(planned(&twice, None).is_ok());
        let same = Some(Algorithms::One(Algorithm::FixedWindow));
        assert!(planned(&twice, same).expect_err("one state").contains("in one state"));
        assert!(planned(&["5 per 1s", "5 per 1s"], None).is_err());
        let permits = planned(&["5 concurrent"], None).expect_err("no end times");
        assert!(permits.contains("cannot be replayed"), "{permits}");
    }
}
