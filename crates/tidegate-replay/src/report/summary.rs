//! The contents of a report.

use std::time::Duration;

use serde::Serialize;
use tidegate::Algorithm;

use super::escape::{escape_key, escape_path};
use crate::error::ReplayError;
use crate::largest_burst::LargestBurst;
use crate::policy_replay::split_key;
use crate::problems::{Problem, Problems};
use crate::reader_thread::ReadReport;
use crate::run::{LimitResult, Run};
use crate::suggest::{SearchResult, Suggestion};
use crate::tally::{KeyCount, RankBy};
use crate::timeline::Timeline;

/// The contents of a report, serialized as they are.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// The generated traffic, if the events do not come from files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic: Option<TrafficSummary>,
    /// The events of the requested algorithm, if they differ between algorithms.
    pub events: u64,
    pub keys: u64,
    pub lines: u64,
    /// The earliest and the latest time. `span_us` is their difference.
    pub from_us: u64,
    pub to_us: u64,
    pub span_us: u64,
    pub elapsed_us: u64,
    /// Measured from the first byte read to the last decision written.
    pub events_per_second: u64,
    pub files: Vec<FileSummary>,
    /// Lines that are not events and were skipped.
    pub skipped: ProblemsSummary,
    /// Events earlier than the one before in their file. They are decided nevertheless.
    pub out_of_order: ProblemsSummary,
    /// Lines that are equal to the line before.
    pub duplicates: ProblemsSummary,
    /// Compressed files that are truncated or corrupt.
    pub damaged: ProblemsSummary,
    /// Hints about input that looks wrong, with a remedy.
    pub hints: Vec<String>,
    pub algorithms: Vec<AlgorithmSummary>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub suggestions: Vec<SuggestionSummary>,
    /// The index of the requested algorithm, which the report begins with.
    #[serde(skip)]
    pub main: usize,
    /// The largest burst of one key, if it was counted.
    #[serde(skip)]
    pub burst: Option<Burst>,
    /// The hint for input that is not sorted by time. It is one of `hints` too.
    #[serde(skip)]
    pub disorder: Option<String>,
    /// The number of keys that the text lists.
    #[serde(skip)]
    pub keys_in_text: usize,
}

/// The most units that one key requested within the window of the first limit.
#[derive(Clone, Debug)]
pub struct Burst {
    pub count: u64,
    pub key: String,
    pub at_us: u64,
}

/// Generated traffic.
#[derive(Clone, Debug, Serialize)]
pub struct TrafficSummary {
    pub name: String,
    pub about: String,
    pub seed: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct FileSummary {
    pub path: String,
    pub format: Option<&'static str>,
    pub gzip: bool,
    pub compression: Option<&'static str>,
    /// The unit of times, if they are numbers.
    pub time_unit: Option<&'static str>,
    pub lines: u64,
    pub events: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct ProblemsSummary {
    pub count: u64,
    /// The first problems, with their positions.
    pub first: Vec<ProblemSummary>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ProblemSummary {
    pub file: String,
    pub line: u64,
    pub problem: String,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct AlgorithmSummary {
    /// `mixed` if the limits have different algorithms.
    pub algorithm: String,
    pub events: u64,
    pub admitted: u64,
    pub denied: u64,
    /// Requests of policies that were neither admitted nor denied, because they need a permit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_replayed: Option<u64>,
    pub keys: u64,
    pub keys_denied: u64,
    /// The number of keys with near misses.
    #[serde(skip)]
    pub keys_near: u64,
    /// The count of the first limit; `limits` has all of them.
    pub largest_rolling_count: u64,
    /// Requests admitted with at most a twentieth of a limit left.
    pub near_misses: u64,
    /// Requests admitted although the true rolling count had no capacity.
    pub over_admitted: u64,
    /// Requests denied although the true rolling count had capacity.
    pub false_denials: u64,
    /// The number of outcomes that differ from those of the exact log, if it was run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub differ: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub differ_by: Option<Differences>,
    /// The number of requests that the exact log admitted, if it was run. Clients that react to
    /// denials sent it other requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sliding_log_admitted: Option<u64>,
    /// Measured while this algorithm was deciding and counting, without the reading.
    pub decisions_per_second: u64,
    /// The most that was held at any measurement.
    pub states_held: u64,
    pub entries_held: u64,
    pub about_bytes_held: u64,
    pub limits: Vec<LimitSummary>,
    pub most_denied: Vec<KeySummary>,
    pub nearest: Vec<KeySummary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<TimelineSummary>,
}

/// Outcomes that differ from those of the exact log.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Differences {
    /// Requests that were admitted, but denied by the exact log.
    pub admitted: u64,
    /// Requests that were denied, but admitted by the exact log.
    pub denied: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct LimitSummary {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<&'static str>,
    pub limit: String,
    pub count: u64,
    pub window_us: u64,
    /// The largest number of units admitted for one key within any half-open window, counted
    /// independently of the engine.
    pub largest_rolling_count: u64,
    /// When the largest count was first reached.
    pub largest_at_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest_key: Option<String>,
    /// The number of decisions of this limit, if the limits do not all see the same events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct KeySummary {
    pub key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    pub events: u64,
    pub denied: u64,
    pub near_misses: u64,
}

/// Counts over time, in consecutive bins of equal width.
#[derive(Clone, Debug, Serialize)]
pub struct TimelineSummary {
    pub start_us: u64,
    pub width_us: u64,
    pub admitted: Vec<u64>,
    pub denied: Vec<u64>,
    pub over_admitted: Vec<u64>,
    pub false_denials: Vec<u64>,
    pub differ: Vec<u64>,
    /// For each limit, the largest true rolling count of any key.
    pub most: Vec<Vec<u64>>,
}

#[derive(Clone, Debug, Serialize)]
pub struct SuggestionSummary {
    /// The share of requests that should pass, e.g. `99.9 %`.
    pub pass: String,
    /// `None` if no limit would have been enough.
    pub limit: Option<String>,
    /// The number of requests that this limit passes, or else the highest possible limit.
    pub passed: u64,
    pub asked: u64,
    pub headroom: String,
    /// `None` if the limit plus the headroom is not a valid limit.
    pub with_headroom: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_nothing: Option<String>,
}

/// Parameters of a summary besides the counts.
#[derive(Clone, Copy, Debug)]
pub struct SummaryOptions {
    pub elapsed: Duration,
    /// The number of keys to list, if it was given.
    pub top: Option<u16>,
    /// Whether outcomes were compared with those of the exact log.
    pub compared: bool,
}

impl SummaryOptions {
    /// Returns the number of keys that JSON and the page list.
    pub fn keys_listed(&self) -> u16 {
        self.top.unwrap_or(10)
    }

    /// Returns the number of keys that the text lists. The default is smaller, to fit a terminal.
    fn keys_in_text(&self) -> usize {
        self.top.unwrap_or(5).into()
    }
}

impl Summary {
    pub fn of_replay(report: &ReadReport, runs: &[Run], options: SummaryOptions) -> Self {
        let events = report.events();
        let (from_us, to_us) = report.span().unwrap_or_default();
        let files = report.files.iter().map(|file| FileSummary {
            path: escape_path(&file.path),
            format: file.format.map(|format| format.name()),
            gzip: file.compression.is_some_and(|compression| compression.name() == "gzip"),
            compression: file.compression.map(|compression| compression.name()),
            time_unit: file.unit.map(|(unit, _)| unit.name()),
            lines: file.lines,
            events: file.events,
        });
        let top = options.keys_listed();
        let summed = |run: &Run| {
            let compared = options.compared;
            let keys = KeyTotals {
                count: report.keys,
                events_of: &report.events_of,
                top,
                of_policies: false,
            };
            match run.undecided() {
                None => AlgorithmSummary::new(run, &keys, compared),
                Some((_, events_of)) => {
                    let count = events_of.len() as u64;
                    let keys =
                        KeyTotals { count, events_of: &events_of, of_policies: true, ..keys };
                    AlgorithmSummary::new(run, &keys, compared)
                }
            }
        };
        let algorithms: Vec<_> = runs.iter().map(summed).collect();
        let shortest = runs.first().and_then(Run::shortest_limit);
        let undecided = runs.first().and_then(Run::undecided);
        let undecided = undecided.map(|(undecided, _)| undecided.hints(&report.files));
        Summary {
            events,
            keys: algorithms.first().map_or(report.keys, |run| run.keys),
            lines: report.lines(),
            from_us,
            to_us,
            span_us: to_us - from_us,
            elapsed_us: u64::try_from(options.elapsed.as_micros()).unwrap_or(u64::MAX),
            events_per_second: per_second(events, options.elapsed),
            files: files.collect(),
            skipped: ProblemsSummary::new(&report.problems.malformed),
            out_of_order: ProblemsSummary::new(&report.problems.out_of_order),
            duplicates: ProblemsSummary::new(&report.problems.duplicates),
            damaged: ProblemsSummary::new(&report.problems.damaged),
            disorder: report.disorder(shortest),
            hints: report
                .hints(shortest)
                .into_iter()
                .chain(undecided.unwrap_or_default())
                .collect(),
            algorithms,
            keys_in_text: options.keys_in_text(),
            ..Summary::default()
        }
    }

    /// Summarizes generated traffic. Each run has the totals of its own requests, because clients
    /// may react to the answers of the run.
    pub fn of_traffic<'r>(
        traffic: TrafficSummary,
        runs: impl Iterator<Item = (&'r Run, KeyTotals<'r>)>,
        (from_us, to_us): (u64, u64),
        options: SummaryOptions,
    ) -> Self {
        let summed = runs.map(|(run, keys)| AlgorithmSummary::new(run, &keys, options.compared));
        let mut algorithms: Vec<_> = summed.collect();
        // Runs on different requests are not compared request by request.
        let exact = algorithms.iter().find(|run| run.is_sliding_log()).map(|run| run.admitted);
        if algorithms.len() > 1 {
            algorithms.iter_mut().for_each(|run| run.sliding_log_admitted = exact);
        }
        let (events, keys) = algorithms.first().map_or((0, 0), |run| (run.events, run.keys));
        let all = algorithms.iter().map(|run| run.events).sum();
        Summary {
            traffic: Some(traffic),
            events,
            keys,
            from_us,
            to_us,
            span_us: to_us - from_us,
            elapsed_us: u64::try_from(options.elapsed.as_micros()).unwrap_or(u64::MAX),
            events_per_second: per_second(all, options.elapsed),
            algorithms,
            keys_in_text: options.keys_in_text(),
            ..Summary::default()
        }
    }

    /// Begins the report with the algorithm of this name, if it is one of several.
    pub fn with_main(mut self, algorithm: Algorithm) -> Self {
        let named = |run: &AlgorithmSummary| run.algorithm == algorithm.name();
        self.main = self.algorithms.iter().position(named).unwrap_or(0);
        if self.has_different_requests()
            && let Some(main) = self.algorithms.get(self.main)
        {
            self.events = main.events;
        }
        self
    }

    /// Whether the algorithms received different requests, because clients react to denials.
    pub fn has_different_requests(&self) -> bool {
        let mut events = self.algorithms.iter().map(|run| run.events);
        let first = events.next();
        events.any(|events| Some(events) != first)
    }

    pub fn with_burst(mut self, burst: Option<&LargestBurst>) -> Self {
        self.burst = burst.and_then(LargestBurst::largest).map(|(largest, key)| Burst {
            count: largest.count,
            key: escape_key(key),
            at_us: largest.time_us,
        });
        self
    }

    pub fn with_suggestions(mut self, suggestions: &[Suggestion]) -> Self {
        self.suggestions = suggestions.iter().map(SuggestionSummary::new).collect();
        self
    }

    pub fn json(&self, timeline: bool) -> Result<String, ReplayError> {
        let mut printed = self.clone();
        if !timeline {
            printed.algorithms.iter_mut().for_each(|run| run.timeline = None);
        }
        let mut text = serde_json::to_string_pretty(&printed)
            .map_err(|error| ReplayError::Output(error.into()))?;
        text.push('\n');
        Ok(text)
    }
}

/// The totals of all keys.
#[derive(Clone, Copy, Debug)]
pub struct KeyTotals<'a> {
    pub count: u64,
    /// Indexed by key number.
    pub events_of: &'a [u32],
    pub top: u16,
    /// Whether the texts of keys begin with the name of a policy.
    pub of_policies: bool,
}

impl AlgorithmSummary {
    pub fn new(run: &Run, keys: &KeyTotals<'_>, compared: bool) -> Self {
        let tally = run.tally();
        let not_replayed = run.not_replayed();
        let events = tally.admitted + tally.denied + not_replayed.unwrap_or(0);
        let results = run.limit_results();
        let limits: Vec<_> = results.iter().map(|result| LimitSummary::new(result, run)).collect();
        let differ = Differences { admitted: tally.only_admitted, denied: tally.only_denied };
        let memory = run.memory();
        let top = |by| tally.keys.top(by, keys.top.into()).into_iter();
        AlgorithmSummary {
            algorithm: run.name().into(),
            events,
            admitted: tally.admitted,
            denied: tally.denied,
            not_replayed,
            keys: keys.count,
            keys_denied: tally.keys.denied_keys,
            keys_near: tally.keys.near_keys(),
            largest_rolling_count: limits.first().map_or(0, |limit| limit.largest_rolling_count),
            near_misses: tally.near,
            over_admitted: tally.over_admitted,
            false_denials: tally.false_denials,
            differ: compared.then_some(differ.admitted + differ.denied),
            differ_by: compared.then_some(differ),
            sliding_log_admitted: compared
                .then(|| (tally.admitted + differ.denied).saturating_sub(differ.admitted)),
            decisions_per_second: per_second(events, run.busy()),
            states_held: memory.states,
            entries_held: memory.entries,
            about_bytes_held: memory.approx_bytes(results.iter().map(|result| result.limit)),
            timeline: Some(TimelineSummary::new(&tally.timeline, limits.len())),
            limits,
            most_denied: top(RankBy::Denied).map(|one| KeySummary::new(&one, keys)).collect(),
            nearest: top(RankBy::Near).map(|one| KeySummary::new(&one, keys)).collect(),
        }
    }
}

impl SuggestionSummary {
    fn new(one: &Suggestion) -> Self {
        let (limit, passed, with_headroom) = match one.found {
            SearchResult::Enough { limit, passed, with_headroom } => {
                (Some(limit), passed, with_headroom)
            }
            SearchResult::NotFound { passed, .. } => (None, passed, None),
        };
        SuggestionSummary {
            pass: one.goal.share.to_string(),
            limit: limit.map(|limit| limit.to_string()),
            passed,
            asked: one.asked,
            headroom: one.goal.headroom.to_string(),
            with_headroom: with_headroom.map(|limit| limit.to_string()),
            why_nothing: one.found.why_nothing(),
        }
    }
}

impl LimitSummary {
    fn new(result: &LimitResult<'_>, run: &Run) -> Self {
        let LimitResult { limit, largest, policy } = result;
        // Each limit of a policy numbers its keys separately, so the name is unknown here.
        let largest_key =
            run.tally().keys.name(largest.key).filter(|_| policy.is_none()).map(escape_key);
        LimitSummary {
            policy: policy.map(|(name, ..)| name.into()),
            mode: policy.map(|(_, mode, ..)| mode.name()),
            limit: limit.to_string(),
            count: limit.count(),
            window_us: limit.window_us(),
            largest_rolling_count: largest.count,
            largest_at_us: largest.time_us,
            largest_key,
            asked: policy.map(|(_, _, asked, _)| asked),
            denied: policy.map(|(.., denied)| denied),
        }
    }
}

impl KeySummary {
    fn new(one: &KeyCount, keys: &KeyTotals<'_>) -> Self {
        let name = one.name.as_deref().map(|name| match keys.of_policies {
            true => split_key(name),
            false => (None, name),
        });
        let (policy, name) = name.unzip();
        KeySummary {
            key: name.map_or_else(|| format!("key number {}", one.key + 1), escape_key),
            policy: policy.flatten().map(Into::into),
            events: keys.events_of.get(one.key as usize).copied().unwrap_or(0).into(),
            denied: one.denied,
            near_misses: one.near,
        }
    }
}

impl TimelineSummary {
    fn new(timeline: &Timeline, limits: usize) -> Self {
        let series = |of: fn(&crate::timeline::Bin) -> u64| {
            timeline.bins().iter().map(of).collect::<Vec<_>>()
        };
        TimelineSummary {
            start_us: timeline.start_us(),
            width_us: timeline.width_us(),
            admitted: series(|bin| bin.admitted),
            denied: series(|bin| bin.denied),
            over_admitted: series(|bin| bin.over_admitted),
            false_denials: series(|bin| bin.false_denials),
            differ: series(|bin| bin.differ),
            most: (0..limits).map(|limit| timeline.most(limit).collect()).collect(),
        }
    }
}

impl ProblemsSummary {
    fn new(problems: &Problems) -> Self {
        let first = problems.first.iter().map(|Problem { path, line, what }| ProblemSummary {
            file: escape_path(path),
            line: *line,
            problem: what.to_string(),
        });
        ProblemsSummary { count: problems.count, first: first.collect() }
    }
}

pub fn per_second(events: u64, elapsed: Duration) -> u64 {
    let nanos = elapsed.as_nanos().max(1);
    u64::try_from(u128::from(events) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_handle_zero_duration() {
        assert_eq!(per_second(3_000_000, Duration::from_secs(2)), 1_500_000);
        assert_eq!(per_second(0, Duration::ZERO), 0);
    }
}
