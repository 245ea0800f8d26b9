//! What the playground answers, as JSON.
//!
//! Here ratios become fractions: for eyes alone, after everything is decided.

use serde::Serialize;
use tidegate::{Decision, Limit};
use tidegate_core::{CellView, Ratio, View};

use super::play::{Played, Sample, play};
use super::question::Question;

/// The answer to a question: its limits, each played alone.
#[derive(Serialize)]
pub struct Answer {
    limits: Vec<LimitView>,
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
    /// 0 when it is allowed, null when it can never pass.
    retry_after_us: Option<u64>,
}

#[derive(Serialize)]
struct SampleView {
    at_us: u64,
    #[serde(flatten)]
    decision: DecisionView,
    state: StateView,
}

/// Told apart by the limit's algorithm.
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

impl Answer {
    /// Plays every limit of a question.
    pub fn new(question: &Question) -> Self {
        let each = |limit| LimitView::new(limit, &play(limit, question));
        Answer { limits: question.limits.iter().map(each).collect() }
    }
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

/// Both numbers are below 2^54, so it is the nearest double or the one beside it.
#[expect(clippy::cast_precision_loss, reason = "for eyes alone")]
fn fraction(ratio: Ratio) -> f64 {
    ratio.part as f64 / ratio.whole as f64
}
