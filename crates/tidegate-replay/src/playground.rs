//! The engine of the playground page: limits and their events, on virtual time.
//!
//! Every limit is decided alone, on a new [`State`] of the core: the same transition as in the
//! stores. Time is that of the events, so a window of a day takes no longer than one of a second.
//! Ratios become floating-point numbers here, after everything is decided, because they are only
//! drawn.

use serde::Serialize;
use tidegate::{Cost, Decision, Limit, Timestamp};
use tidegate_core::{Attempt, CellView, Ratio, State, View};

use crate::block::Row;
use crate::ground_truth::GroundTruth;

/// Limits, and the events that each of them decides.
#[derive(Debug)]
pub struct Scenario {
    /// The limits, each decided alone.
    pub limits: Vec<Limit>,
    /// The events, in order of time.
    pub events: Vec<Event>,
    /// The times at which states are shown, in order.
    pub samples: Vec<Timestamp>,
    /// The cost whose wait is shown at each of those times.
    pub cost: u64,
}

/// A request that arrives.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// When it arrives.
    pub at: Timestamp,
    /// Its cost.
    pub cost: u64,
}

/// The decisions and states of a scenario, as the JSON that the page reads.
#[derive(Serialize)]
pub struct Outcome {
    limits: Vec<LimitView>,
}

impl Scenario {
    /// Decides every event by every limit.
    pub fn play(&self) -> Outcome {
        let view = |limit| LimitView::new(limit, &play(limit, self));
        Outcome { limits: self.limits.iter().map(view).collect() }
    }
}

/// The decisions and states of one limit.
struct Played {
    /// One for each event.
    decisions: Vec<Decision>,
    /// One for each sample time.
    samples: Vec<Sample>,
    /// The most units admitted within any window.
    most_in_window: u64,
}

/// A state at a time, with all events up to that time.
struct Sample {
    at: Timestamp,
    /// The decision on the cost of the scenario, which is not charged.
    decision: Decision,
    view: View,
}

/// Plays a limit.
fn play(limit: &Limit, scenario: &Scenario) -> Played {
    let mut state = State::new(limit);
    let mut decisions = Vec::with_capacity(scenario.events.len());
    let mut samples = Vec::with_capacity(scenario.samples.len());
    let mut events = scenario.events.iter().peekable();
    let mut decide_until = |state: &mut State, until: Option<Timestamp>| {
        while let Some(event) = events.next_if(|event| until.is_none_or(|until| event.at <= until))
        {
            decisions.push(state.decide(limit, &Attempt::new(event.cost, event.at)));
        }
    };
    for at in &scenario.samples {
        decide_until(&mut state, Some(*at));
        samples.push(sample(&state, limit, scenario.cost, *at));
    }
    decide_until(&mut state, None);
    let most_in_window = most_in_window(limit, &scenario.events, &decisions);
    Played { decisions, samples, most_in_window }
}

fn sample(state: &State, limit: &Limit, cost: u64, at: Timestamp) -> Sample {
    let attempt = Attempt::new(Cost::Ask(cost), at);
    let mut copy = state.clone();
    copy.advance_and_check(limit, &attempt);
    // Finished as if another limit had denied the request: decided, but not charged.
    let decision = copy.finish(limit, &attempt, false);
    Sample { at, decision, view: state.view(limit, at) }
}

/// The most units admitted within any window, by the ground truth of replays.
fn most_in_window(limit: &Limit, events: &[Event], decisions: &[Decision]) -> u64 {
    let mut ground_truth = GroundTruth::new(limit.window_us(), limit.count());
    for (event, decision) in events.iter().zip(decisions) {
        let cost = i64::try_from(event.cost).unwrap_or(i64::MAX);
        ground_truth.record_one(&Row::numbered(event.at.as_micros(), cost, 0), decision.allowed);
    }
    ground_truth.largest().count
}

#[derive(Serialize)]
struct LimitView {
    limit: String,
    algorithm: &'static str,
    count: u64,
    window_us: u64,
    admitted: usize,
    denied: usize,
    most_in_window: u64,
    decisions: Vec<DecisionView>,
    samples: Vec<SampleView>,
}

#[derive(Serialize)]
struct DecisionView {
    allowed: bool,
    remaining: u64,
    /// 0 if the request is allowed, null if it can never pass.
    retry_after_us: Option<u64>,
}

#[derive(Serialize)]
struct SampleView {
    at_us: u64,
    #[serde(flatten)]
    decision: DecisionView,
    state: StateView,
}

/// The variant follows from the algorithm of the limit.
#[derive(Serialize)]
#[serde(untagged)]
enum StateView {
    Counter { previous: u64, current: u64, weight: f64, estimate: f64 },
    Window { used: u64, cell_us: u64, pace: u64, cells: Vec<CellJson> },
    Tokens { tokens: f64 },
    Count { count: u64 },
}

#[derive(Serialize)]
struct CellJson {
    start_us: u64,
    last_hit_us: u64,
    units: u64,
    lag: u64,
    expired: u64,
}

impl LimitView {
    fn new(limit: &Limit, played: &Played) -> Self {
        let admitted = played.decisions.iter().filter(|decision| decision.allowed).count();
        LimitView {
            limit: limit.to_string(),
            algorithm: limit.algorithm().name(),
            count: limit.count(),
            window_us: limit.window_us(),
            admitted,
            denied: played.decisions.len() - admitted,
            most_in_window: played.most_in_window,
            decisions: played.decisions.iter().map(DecisionView::new).collect(),
            samples: played.samples.iter().map(SampleView::new).collect(),
        }
    }
}

impl DecisionView {
    fn new(decision: &Decision) -> Self {
        DecisionView {
            allowed: decision.allowed,
            remaining: decision.remaining,
            retry_after_us: decision.retry_after.as_micros(),
        }
    }
}

impl SampleView {
    fn new(sample: &Sample) -> Self {
        SampleView {
            at_us: sample.at.as_micros(),
            decision: DecisionView::new(&sample.decision),
            state: StateView::new(&sample.view),
        }
    }
}

impl StateView {
    fn new(view: &View) -> Self {
        match view {
            View::SlidingCounter { previous, current, weight, estimate } => StateView::Counter {
                previous: *previous,
                current: *current,
                weight: fraction(*weight),
                estimate: fraction(*estimate),
            },
            View::SlidingWindow { used, cell_us, pace, cells } => StateView::Window {
                used: *used,
                cell_us: *cell_us,
                pace: *pace,
                cells: cells.iter().map(CellJson::new).collect(),
            },
            View::TokenBucket { tokens } => StateView::Tokens { tokens: fraction(*tokens) },
            View::SlidingLog { count } | View::FixedWindow { count } => {
                StateView::Count { count: *count }
            }
            View::Concurrency { held } => StateView::Count { count: *held },
        }
    }
}

impl CellJson {
    fn new(cell: &CellView) -> Self {
        CellJson {
            start_us: cell.start.as_micros(),
            last_hit_us: cell.last_hit.as_micros(),
            units: cell.units,
            lag: cell.lag,
            expired: cell.expired,
        }
    }
}

/// Converts a ratio. Both numbers are below 2^54, so the result is within one double of the
/// nearest.
#[expect(clippy::cast_precision_loss, reason = "for eyes alone")]
fn fraction(ratio: Ratio) -> f64 {
    ratio.part as f64 / ratio.whole as f64
}
