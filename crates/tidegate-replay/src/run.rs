//! One pass of all events through one set of limits.

use std::time::{Duration, Instant};

use tidegate::unstable::config::Config;
use tidegate::unstable::policy::Mode;
use tidegate::{Algorithm, Limit, RetryAfter};

use crate::algorithms::{Algorithms, RATE_ALGORITHMS};
use crate::block::Block;
use crate::engine::{Answer, Engine, Memory};
use crate::error::ReplayError;
use crate::policed::{self, Odd, Policed};
use crate::tally::Tally;
use crate::truth::{Largest, Truth};

/// How often, in blocks, it is looked how much memory is held.
const LOOK_EVERY: u32 = 16;

/// What decides, and what is counted about its answers. The two halves can be on two
/// threads: counting the truth takes about as long as deciding.
pub struct Run {
    pub judge: Judge,
    pub counts: Counts,
    /// The answers to the block last taken.
    answers: Vec<Answer>,
}

/// The deciding half.
pub struct Judge {
    /// None for policies, which decide where they are counted.
    engine: Option<Engine>,
    busy: Duration,
    blocks: u32,
    /// The most that was held, as far as anybody looked.
    held: Memory,
}

/// The counting half.
pub struct Counts {
    counted: Counted,
    pub tally: Tally,
    /// Whether each event of a block truly fitted every limit.
    fits: Vec<bool>,
    /// A block's places on the timeline.
    places: Vec<u32>,
    busy: Duration,
}

enum Counted {
    /// The truth about each limit.
    Limits(Vec<Truth>),
    /// Whole policies.
    Policies(Box<Policed>, Option<Algorithm>),
}

/// A limit, and the most one key truly had within its window.
pub struct Lane<'a> {
    pub limit: &'a Limit,
    pub largest: Largest,
    /// Its policy, where it is one's: its name and mode, how often it was asked, and denied.
    pub policy: Option<(&'a str, Mode, u64, u64)>,
}

impl Judge {
    /// Decides a block.
    pub fn decide(&mut self, block: &Block, answers: &mut Vec<Answer>) -> Result<(), ReplayError> {
        let Some(engine) = &mut self.engine else { return Ok(()) };
        let started = Instant::now();
        engine.decide(block, answers)?;
        self.blocks = self.blocks.wrapping_add(1);
        if self.blocks % LOOK_EVERY == 1 {
            self.held = self.held.most(engine.memory());
        }
        self.busy += started.elapsed();
        Ok(())
    }
}

impl Counts {
    /// Counts what came of a block; policies decide it first.
    pub fn take(&mut self, block: &Block, answers: &mut Vec<Answer>) {
        let started = Instant::now();
        match &mut self.counted {
            Counted::Policies(policed, _) => policed.take(block, &mut self.tally, answers),
            Counted::Limits(_) => {
                self.find_truth(block, answers);
                self.count(block, answers);
            }
        }
        self.busy += started.elapsed();
    }

    /// Whether each event truly fitted, and what its key truly had.
    fn find_truth(&mut self, block: &Block, answers: &[Answer]) {
        let Counts { counted, tally, fits, places, .. } = self;
        let Counted::Limits(truths) = counted else { return };
        let timeline = &mut tally.timeline;
        // A bin for every time first: bins move while there are too few.
        let ends = block.rows.iter().map(|row| row.time_us);
        if let (Some(first), Some(last)) = (ends.clone().min(), ends.max()) {
            timeline.place(first);
            timeline.place(last);
        }
        places.clear();
        let place = |time_us| u32::try_from(timeline.place(time_us)).unwrap_or(0);
        places.extend(block.rows.iter().map(|row| row.time_us).map(place));
        fits.clear();
        fits.resize(block.rows.len(), true);
        for (limit, truth) in truths.iter_mut().enumerate() {
            truth.record_all(
                &block.rows,
                |at| answers[at].allowed,
                |at, seen| {
                    fits[at] &= seen.fits;
                    timeline.note(places[at] as usize, limit, seen.count);
                },
            );
        }
    }

    fn count(&mut self, block: &Block, answers: &[Answer]) {
        let Counts { tally, fits, places, .. } = self;
        for (at, answer) in answers.iter().enumerate() {
            // What looks or gives back asks for no room.
            let row = &block.rows[at];
            let fits = if row.cost > 0 { fits[at] } else { answer.allowed };
            tally.count(places[at] as usize, answer.allowed, fits);
            if !answer.allowed {
                tally.keys.denied(row.key, block.key(at));
            } else if answer.near {
                tally.near += 1;
                tally.keys.near(row.key, block.key(at));
            }
        }
    }

    /// Counts answers unlike those of the exact log.
    pub fn compare(&mut self, block: &Block, ours: &[Answer], exact: &[Answer]) {
        for (at, (ours, theirs)) in ours.iter().zip(exact).enumerate() {
            if ours.allowed != theirs.allowed {
                self.tally.differs(block.rows[at].time_us, ours.allowed);
            }
        }
    }
}

impl Run {
    pub fn new(limits: Vec<Limit>) -> Self {
        let truth = |limit: &Limit| Truth::new(limit.window_us(), limit.count());
        let truths: Vec<Truth> = limits.iter().map(truth).collect();
        let lanes = truths.len();
        Run::with(Some(Engine::new(limits)), Counted::Limits(truths), lanes)
    }

    /// For the policies of a config, under another algorithm or their own.
    pub fn of_config(config: &Config, algorithm: Option<Algorithm>) -> Result<Self, ReplayError> {
        let policies = match algorithm {
            None => config.policies.clone(),
            Some(algorithm) => policed::under(&config.policies, algorithm)?,
        };
        let policed = Policed::new(config, policies)?;
        let lanes = policed.lanes().len();
        Ok(Run::with(None, Counted::Policies(Box::new(policed), algorithm), lanes))
    }

    fn with(engine: Option<Engine>, counted: Counted, lanes: usize) -> Self {
        let (busy, held) = (Duration::ZERO, Memory::default());
        let judge = Judge { engine, busy, blocks: 0, held };
        let (fits, places) = (Vec::new(), Vec::new());
        let counts = Counts { counted, tally: Tally::new(lanes), fits, places, busy };
        Run { judge, counts, answers: Vec::new() }
    }

    /// Decides a block and counts what came of it.
    pub fn take(&mut self, block: &Block) -> Result<(), ReplayError> {
        self.judge.decide(block, &mut self.answers)?;
        self.counts.take(block, &mut self.answers);
        Ok(())
    }

    pub fn answers(&self) -> &[Answer] {
        &self.answers
    }

    pub fn tally(&self) -> &Tally {
        &self.counts.tally
    }

    /// How long it was at work.
    pub fn busy(&self) -> Duration {
        self.judge.busy + self.counts.busy
    }

    /// When the event last decided would pass.
    pub fn retry_after(&self) -> RetryAfter {
        self.judge.engine.as_ref().map_or(RetryAfter::Now, Engine::retry_after)
    }

    /// The most that was held, as far as anybody looked.
    pub fn memory(&self) -> Memory {
        let now = match (&self.judge.engine, &self.counts.counted) {
            (Some(engine), _) => engine.memory(),
            (None, Counted::Policies(policed, _)) => policed.memory(),
            (None, Counted::Limits(_)) => Memory::default(),
        };
        self.judge.held.most(now)
    }

    fn limits(&self) -> &[Limit] {
        self.judge.engine.as_ref().map_or(&[], Engine::limits)
    }

    /// Each limit, and what is known about it.
    pub fn lanes(&self) -> Vec<Lane<'_>> {
        match &self.counts.counted {
            Counted::Limits(truths) => {
                let both = self.limits().iter().zip(truths);
                both.map(|(limit, truth)| Lane { limit, largest: truth.largest(), policy: None })
                    .collect()
            }
            Counted::Policies(policed, _) => {
                let lanes = policed.lanes().iter().map(|lane| Lane {
                    limit: &lane.limit,
                    largest: lane.largest(),
                    policy: Some((&*lane.policy, lane.mode, lane.asked, lane.denied)),
                });
                lanes.collect()
            }
        }
    }

    /// What policies did not decide as usual, and how often each of their keys was asked for.
    pub fn policed(&self) -> Option<(&Odd, Vec<u32>)> {
        match &self.counts.counted {
            Counted::Limits(_) => None,
            Counted::Policies(policed, _) => Some((&policed.odd, policed.events_of())),
        }
    }

    /// What the limits are under: an algorithm, or several.
    pub fn name(&self) -> &'static str {
        if let Counted::Policies(_, algorithm) = &self.counts.counted {
            return algorithm.map_or("policies", Algorithm::name);
        }
        let mut algorithms = self.limits().iter().map(Limit::algorithm);
        let first = algorithms.next();
        let same = algorithms.all(|algorithm| Some(algorithm) == first);
        first.filter(|_| same).map_or("mixed", Algorithm::name)
    }
}

/// The exact log of the only limits, if they are not exact themselves.
pub fn exact(plan: &[Vec<Limit>]) -> Option<Vec<Limit>> {
    let [limits] = plan else { return None };
    if limits.iter().all(|limit| limit.algorithm() == Algorithm::SlidingLog) {
        return None;
    }
    self::plan(limits, Some(Algorithms::One(Algorithm::SlidingLog))).ok()?.pop()
}

/// Counts where runs differ from the exact log: the one beside, or else the first.
pub fn compare(block: &Block, runs: &mut [Run], exact: Option<&Run>) {
    let Some((first, others)) = runs.split_first_mut() else { return };
    match exact {
        Some(exact) => first.counts.compare(block, &first.answers, &exact.answers),
        None => {
            for run in others {
                run.counts.compare(block, &run.answers, &first.answers);
            }
        }
    }
}

/// A run for each algorithm a config is to be replayed under.
pub fn plan_config(
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

/// The limits of each run: as given, or under one or all of the algorithms.
pub fn plan(
    limits: &[Limit],
    algorithms: Option<Algorithms>,
) -> Result<Vec<Vec<Limit>>, ReplayError> {
    if let Some(&limit) = limits.iter().find(|limit| limit.algorithm() == Algorithm::Concurrency) {
        return Err(ReplayError::Concurrency { limit: Box::new(limit) });
    }
    let under = |algorithm| limits.iter().map(move |limit| change(limit, algorithm)).collect();
    let runs: Vec<Vec<Limit>> = match algorithms {
        None => vec![limits.to_vec()],
        Some(Algorithms::One(algorithm)) => vec![under(algorithm)],
        Some(Algorithms::All) => RATE_ALGORITHMS.into_iter().map(under).collect(),
    };
    runs.iter().try_for_each(|limits| refuse_shared_state(limits))?;
    Ok(runs)
}

/// The limit under another algorithm; under its own it keeps its burst.
pub fn change(limit: &Limit, algorithm: Algorithm) -> Limit {
    // Permits are no rate.
    if limit.algorithm() == algorithm || limit.algorithm() == Algorithm::Concurrency {
        return *limit;
    }
    let window = Duration::from_micros(limit.window_us());
    // The count and window were within bounds, and those hold for every algorithm.
    Limit::new(limit.count(), window, algorithm).unwrap_or(*limit)
}

fn refuse_shared_state(limits: &[Limit]) -> Result<(), ReplayError> {
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
        let runs = plan(&limits, algorithms).map_err(|error| error.to_string())?;
        Ok(runs.iter().map(|run| run.iter().map(Limit::to_string).collect()).collect())
    }

    #[test]
    fn algorithms_replace_those_of_the_limits() {
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
    fn limits_that_would_count_together_are_refused() {
        let twice = ["5 per 1s sliding-log", "7 per 1s sliding-counter"];
        assert!(planned(&twice, None).is_ok());
        let same = Some(Algorithms::One(Algorithm::FixedWindow));
        assert!(planned(&twice, same).expect_err("one state").contains("in one state"));
        assert!(planned(&["5 per 1s", "5 per 1s"], None).is_err());
        let permits = planned(&["5 concurrent"], None).expect_err("no end times");
        assert!(permits.contains("cannot be replayed"), "{permits}");
    }
}
