//! One pass of all events through one set of limits.

use std::time::{Duration, Instant};

use tidegate::{Algorithm, Limit};

use super::engine::Engine;
use super::error::ReplayError;
use super::feed::Block;
use super::truth::Truth;
use crate::cli::{Algorithms, RATE_ALGORITHMS};

/// An engine with what is counted about its answers.
pub struct Run {
    engine: Engine,
    /// One for each limit.
    truths: Vec<Truth>,
    /// By key number, whether it was ever denied.
    denied_keys: Vec<bool>,
    /// The answers to the block last decided.
    answers: Vec<bool>,
    pub admitted: u64,
    pub denied: u64,
    pub keys_denied: u64,
    /// Answers unlike those of the first run, for comparisons.
    pub unlike_first: u64,
    pub busy: Duration,
}

impl Run {
    pub fn new(limits: Vec<Limit>) -> Self {
        let truths = limits.iter().map(|limit| Truth::new(limit.window_us())).collect();
        Run {
            engine: Engine::new(limits),
            truths,
            denied_keys: Vec::new(),
            answers: Vec::new(),
            admitted: 0,
            denied: 0,
            keys_denied: 0,
            unlike_first: 0,
            busy: Duration::ZERO,
        }
    }

    /// Decides a block and counts what came of it.
    pub fn take(&mut self, block: &Block) -> Result<(), ReplayError> {
        let started = Instant::now();
        self.engine.decide(block, &mut self.answers)?;
        for truth in &mut self.truths {
            truth.record_all(&block.rows, &self.answers);
        }
        self.count(block);
        self.busy += started.elapsed();
        Ok(())
    }

    fn count(&mut self, block: &Block) {
        let admitted = self.answers.iter().filter(|&&admitted| admitted).count() as u64;
        let denied = self.answers.len() as u64 - admitted;
        self.admitted += admitted;
        self.denied += denied;
        if denied == 0 {
            return;
        }
        for (row, &admitted) in block.rows.iter().zip(&self.answers) {
            if admitted {
                continue;
            }
            let key = row.key as usize;
            if key >= self.denied_keys.len() {
                self.denied_keys.resize(key + 1, false);
            }
            let known = std::mem::replace(&mut self.denied_keys[key], true);
            self.keys_denied += u64::from(!known);
        }
    }

    pub fn compare(&mut self, first_answers: &[bool]) {
        let both = self.answers.iter().zip(first_answers);
        self.unlike_first += both.filter(|(ours, theirs)| ours != theirs).count() as u64;
    }

    pub fn answers(&self) -> &[bool] {
        &self.answers
    }

    /// Each limit, and the most one key truly had within its window.
    pub fn limits(&self) -> impl Iterator<Item = (&Limit, u64)> {
        self.engine.limits().iter().zip(self.truths.iter().map(Truth::largest))
    }

    /// The algorithm of the limits; `None` if they differ.
    pub fn algorithm(&self) -> Option<Algorithm> {
        let mut algorithms = self.engine.limits().iter().map(Limit::algorithm);
        let first = algorithms.next()?;
        algorithms.all(|algorithm| algorithm == first).then_some(first)
    }
}

/// The limits of each run: as given, or under one or all of the algorithms.
pub fn plan(
    limits: &[Limit],
    algorithms: Option<Algorithms>,
) -> Result<Vec<Vec<Limit>>, ReplayError> {
    if let Some(&limit) = limits.iter().find(|limit| limit.algorithm() == Algorithm::Concurrency) {
        return Err(ReplayError::Concurrency { limit });
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

/// The limit under another algorithm; under its own it keeps its buckets or burst.
fn change(limit: &Limit, algorithm: Algorithm) -> Limit {
    if limit.algorithm() == algorithm {
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
            [["5 per 1s token-bucket burst 9", "7 per 1m sliding-counter"]]
        );
        let all = planned(&limits, Some(Algorithms::All)).expect("a plan");
        assert_eq!(
            all,
            [
                ["5 per 1s sliding-log", "7 per 1m sliding-log"],
                ["5 per 1s sliding-buckets buckets 10", "7 per 1m sliding-buckets buckets 10"],
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
