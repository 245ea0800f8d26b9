//! `tidegate simulate --accuracy`: how close each algorithm comes to the exact log.
//!
//! Every row is a kind of traffic, measured under several limits. Every column is an algorithm:
//! what it admits, in percent of what `sliding-log` admits on the same requests, and the share of
//! all requests that it admitted although the true rolling count had no room. A cell shows the
//! lowest and the highest value over the limits and loads of its row.
//!
//! `sliding-window` and `sliding-counter` are decided by the limiter. The third column is a fixed
//! grid of ten buckets, which is not an algorithm of tidegate: it shows what counting by buckets
//! costs without measuring how the units of a bucket arrived.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use tidegate::{Algorithm, Limit};

use super::traffic::{Traffic, TrafficGenerator, TrafficSpec};
use super::{MAX_EVENTS, MAX_LENGTH_US, SimulateArgs, table};
use crate::block::{Block, Row};
use crate::engine::{Engine, EventOutcome};
use crate::error::ReplayError;
use crate::ground_truth::GroundTruth;
use crate::replay;
use crate::run;

/// The limits of the rows of simulated traffic. `sliding-window` keeps 10 as a log. 21 is the
/// smallest limit that it counts in cells, and the hardest: the pace brings one or two units per
/// cell.
const LIMITS: [&str; 5] = ["10 per 1m", "21 per 1m", "100 per 1m", "1000 per 1m", "5000 per 1m"];

/// The limits of the rows of recorded traffic: from seconds to an hour.
const TRACE_LIMITS: [&str; 4] = ["10 per 10s", "60 per 1m", "100 per 1m", "3000 per 1h"];

/// The minimum number of requests of one measurement at a load of 1: enough that another seed
/// changes little, few enough that a debug build prints the table in seconds.
const REQUESTS: u64 = 12_000;

/// The number of clients of one measurement. Each begins at another time of the window, because the
/// algorithms divide time at fixed points.
const CLIENTS: u32 = 3;

/// A row of simulated traffic.
struct SimulatedRow {
    name: &'static str,
    traffic: Traffic,
    loads: &'static [f64],
    /// The minimum number of windows that are counted for each client. The first window is not
    /// counted: in it a client fills its limit, which every algorithm admits. Whole windows are
    /// counted from the client's first request, so that algorithms that admit early in a window and
    /// those that admit late are treated alike.
    least_windows: u64,
}

const ROWS: [SimulatedRow; 4] = [
    SimulatedRow {
        name: "steady client at 95 % of the limit",
        traffic: Traffic::Steady,
        loads: &[0.95],
        least_windows: 4,
    },
    SimulatedRow {
        name: "steady client at 100 % of the limit",
        traffic: Traffic::Steady,
        loads: &[1.0],
        least_windows: 4,
    },
    SimulatedRow {
        name: "Poisson, 1 to 3 times the limit",
        traffic: Traffic::Poisson,
        loads: &[1.0, 1.5, 2.0, 3.0],
        least_windows: 4,
    },
    // A window contains about two bursts.
    SimulatedRow { name: "bursts", traffic: Traffic::Bursts, loads: &[1.0], least_windows: 16 },
];

const HEADS: [&str; 4] = [
    "% of what the exact log admits (above the limit, % of requests)",
    "sliding-window",
    "sliding-counter",
    "ten buckets",
];

/// The number of columns besides the name of the row.
const COLUMNS: usize = 3;

/// Measures every row and prints the table.
pub fn print(args: &SimulateArgs) -> Result<(), ReplayError> {
    let simulated = limits(args, &LIMITS)?;
    let recorded = limits(args, &TRACE_LIMITS)?;
    refuse_too_many_requests(&simulated)?;
    // Traces are measured first, so that a file that cannot be read does not leave half a table.
    let measure = |path: &PathBuf| measure_file(path, &recorded);
    let traces = args.traces.iter().map(measure).collect::<Result<Vec<_>, _>>()?;
    let mut out = std::io::stdout().lock();
    let mut line =
        |cells: &[String]| writeln!(out, "| {} |", cells.join(" | ")).map_err(ReplayError::Output);
    line(&HEADS.map(String::from))?;
    line(&HEADS.map(|_| "---".into()))?;
    for made_row in &ROWS {
        let mut ranges = [Range::default(); COLUMNS];
        for limit in &simulated {
            for &load in made_row.loads {
                let spec = TrafficSpec { seed: args.seed, ..made_row.spec(limit, load) };
                widen(&mut ranges, &measure_simulated(&spec, limit)?);
            }
        }
        line(&row(made_row.name, &ranges))?;
    }
    for (path, ranges) in args.traces.iter().zip(&traces) {
        line(&row(&table::name(path), ranges))?;
    }
    Ok(())
}

/// Returns the limits given on the command line, or else the default ones.
fn limits(args: &SimulateArgs, usual: &[&str]) -> Result<Vec<Limit>, ReplayError> {
    if args.limits.is_empty() {
        return Ok(usual.iter().filter_map(|text| text.parse().ok()).collect());
    }
    // Each limit is measured separately, so several may have the same window.
    for limit in &args.limits {
        run::limits_per_run(std::slice::from_ref(limit), None)?;
    }
    Ok(args.limits.clone())
}

fn refuse_too_many_requests(limits: &[Limit]) -> Result<(), ReplayError> {
    for row in &ROWS {
        for limit in limits {
            let too_many = |&load: &f64| row.spec(limit, load).requests() > MAX_EVENTS;
            if row.loads.iter().any(too_many) {
                return Err(ReplayError::TooMuchTraffic { name: row.traffic.name() });
            }
        }
    }
    Ok(())
}

impl SimulatedRow {
    /// Returns the traffic of a few clients under one limit.
    fn spec(&self, limit: &Limit, load: f64) -> TrafficSpec {
        let counted = REQUESTS / u64::from(CLIENTS) / limit.count().max(1);
        // One window in which the clients begin, and one that is not counted. Even the longest
        // window fits 200 times.
        let windows = (2 + counted.max(self.least_windows)).min(MAX_LENGTH_US / limit.window_us());
        TrafficSpec {
            traffic: self.traffic,
            clients: CLIENTS,
            load,
            windows: u32::try_from(windows).unwrap_or(u32::MAX),
            limit: limit.count(),
            window_us: limit.window_us(),
            spread_us: limit.window_us(),
            seed: 1,
        }
    }
}

fn measure_simulated(spec: &TrafficSpec, limit: &Limit) -> Result<[Share; COLUMNS], ReplayError> {
    let mut measured = Measured::new(limit);
    let mut generator = TrafficGenerator::new(*spec);
    let mut begins_us = vec![None; spec.clients as usize];
    let mut block = Block::default();
    let mut counted = Vec::new();
    let windows = u64::from(spec.windows) - 1;
    while let Some((time_us, client)) = generator.next() {
        generator.record_answer(client, true, tidegate::RetryAfter::Now);
        let begin_us = *begins_us[client as usize].get_or_insert(time_us);
        let passed = (time_us - begin_us) / spec.window_us;
        if passed < windows {
            generator.push(&mut block, time_us, client);
            counted.push(passed > 0);
        }
        if block.is_full() {
            measured.take(&block, |at| counted[at])?;
            block.clear();
            counted.clear();
        }
    }
    measured.take(&block, |at| counted[at])?;
    Ok(measured.shares())
}

/// Measures a trace under every limit. The trace is read once, because it may be standard input.
fn measure_file(path: &Path, limits: &[Limit]) -> Result<[Range; COLUMNS], ReplayError> {
    let mut measured: Vec<Measured> = limits.iter().map(Measured::new).collect();
    replay::read_blocks(path, None, |block| {
        measured.iter_mut().try_for_each(|measured| measured.take(block, |_| true))
    })?;
    let mut ranges = [Range::default(); COLUMNS];
    measured.iter().for_each(|measured| widen(&mut ranges, &measured.shares()));
    Ok(ranges)
}

/// All algorithms that decide the same requests.
struct Measured {
    log: Column,
    columns: [Column; COLUMNS],
}

impl Measured {
    fn new(limit: &Limit) -> Self {
        let engine = |algorithm| {
            ColumnDecider::Engine(Engine::new(vec![run::with_limit_algorithm(limit, algorithm)]))
        };
        let column = |decider| Column::new(decider, limit);
        Measured {
            log: column(engine(Algorithm::SlidingLog)),
            columns: [
                column(engine(Algorithm::SlidingWindow)),
                column(engine(Algorithm::SlidingCounter)),
                column(ColumnDecider::TenBuckets(TenBuckets::new(
                    limit.count(),
                    limit.window_us(),
                ))),
            ],
        }
    }

    /// Decides a block, and counts the requests for whose index `counts` returns true.
    fn take(&mut self, block: &Block, counts: impl Fn(usize) -> bool) -> Result<(), ReplayError> {
        self.log.take(block, &counts)?;
        self.columns.iter_mut().try_for_each(|column| column.take(block, &counts))
    }

    fn shares(&self) -> [Share; COLUMNS] {
        self.columns.each_ref().map(|column| Share {
            admitted: column.admitted,
            log_admitted: self.log.admitted,
            over: column.over,
            requests: column.requests,
        })
    }
}

enum ColumnDecider {
    Engine(Engine),
    TenBuckets(TenBuckets),
}

/// One algorithm, and the ground truth of its decisions.
struct Column {
    decider: ColumnDecider,
    truth: GroundTruth,
    answers: Vec<EventOutcome>,
    requests: u64,
    admitted: u64,
    /// Requests admitted although the true rolling count had no capacity.
    over: u64,
}

impl Column {
    fn new(decider: ColumnDecider, limit: &Limit) -> Self {
        let truth = GroundTruth::new(limit.window_us(), limit.count());
        Column { decider, truth, answers: Vec::new(), requests: 0, admitted: 0, over: 0 }
    }

    fn take(&mut self, block: &Block, counts: impl Fn(usize) -> bool) -> Result<(), ReplayError> {
        let Column { decider, truth, answers, requests, admitted, over } = self;
        match decider {
            ColumnDecider::Engine(engine) => engine.decide(block, answers)?,
            ColumnDecider::TenBuckets(buckets) => {
                answers.clear();
                let answer = |row| EventOutcome { allowed: buckets.decide(row), near: false };
                answers.extend(block.rows.iter().map(answer));
            }
        }
        truth.record_all(
            &block.rows,
            |at| answers[at].allowed,
            |at, seen| {
                // Peeks and refunds are not requests for units.
                if block.rows[at].cost > 0 && counts(at) {
                    *requests += 1;
                    *admitted += u64::from(answers[at].allowed);
                    *over += u64::from(answers[at].allowed && !seen.fits);
                }
            },
        );
        Ok(())
    }
}

/// The counts of one column in one measurement.
#[derive(Clone, Copy, Debug)]
struct Share {
    admitted: u64,
    log_admitted: u64,
    over: u64,
    requests: u64,
}

/// The lowest and the highest value of a column, in tenths of a percent.
#[derive(Clone, Copy, Debug, Default)]
struct Range {
    admitted: Option<(u64, u64)>,
    over: Option<(u64, u64)>,
    /// Whether any request was admitted above the limit, even if the share rounds to 0.
    is_over: bool,
}

fn widen(ranges: &mut [Range; COLUMNS], shares: &[Share; COLUMNS]) {
    for (range, share) in ranges.iter_mut().zip(shares) {
        // Under a limit of 0 the log admits nothing, so there is no ratio.
        if share.log_admitted > 0 {
            include(&mut range.admitted, tenths(share.admitted, share.log_admitted));
            include(&mut range.over, tenths(share.over, share.requests));
        }
        range.is_over |= share.over > 0;
    }
}

fn include(range: &mut Option<(u64, u64)>, value: u64) {
    let (lowest, highest) = range.unwrap_or((value, value));
    *range = Some((lowest.min(value), highest.max(value)));
}

/// Returns a share in tenths of a percent, rounded to the nearest.
fn tenths(part: u64, of: u64) -> u64 {
    let (part, of) = (u128::from(part), u128::from(of.max(1)));
    u64::try_from((part * 2_000 + of) / (of * 2)).unwrap_or(u64::MAX)
}

fn row(name: &str, ranges: &[Range; COLUMNS]) -> Vec<String> {
    std::iter::once(name.to_owned()).chain(ranges.iter().map(shown)).collect()
}

fn shown(range: &Range) -> String {
    let Some(admitted) = range.admitted else { return "-".into() };
    let over = match range.over {
        Some((_, 0)) | None if range.is_over => "< 0.1".into(),
        Some((_, 0)) | None => "0".into(),
        Some(over) => from_to(over),
    };
    format!("{} ({over})", from_to(admitted))
}

fn from_to((lowest, highest): (u64, u64)) -> String {
    let percent = |tenths: u64| format!("{}.{}", tenths / 10, tenths % 10);
    if lowest == highest {
        return percent(lowest);
    }
    format!("{} to {}", percent(lowest), percent(highest))
}

/// A fixed grid of ten buckets per window. A whole bucket is counted until its last hit is a window
/// old. Like `sliding-window`, it takes constant memory and never exceeds the limit; the difference
/// between the two is the gain of measuring the lag.
struct TenBuckets {
    limit: u64,
    window_us: u64,
    bucket_us: u64,
    /// By key number.
    keys: Vec<Vec<Bucket>>,
}

/// The units that arrived in one bucket of the grid.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    last_us: u64,
    units: u64,
}

impl TenBuckets {
    fn new(limit: u64, window_us: u64) -> Self {
        TenBuckets { limit, window_us, bucket_us: window_us.div_ceil(10), keys: Vec::new() }
    }

    fn decide(&mut self, row: &Row) -> bool {
        let TenBuckets { limit, window_us, bucket_us, .. } = *self;
        let (key, now_us) = (row.key as usize, row.time_us);
        if key >= self.keys.len() {
            self.keys.resize_with(key + 1, Vec::new);
        }
        let buckets = &mut self.keys[key];
        // After a clock step back, later times are moved to the current time.
        buckets.iter_mut().for_each(|bucket| bucket.last_us = bucket.last_us.min(now_us));
        buckets.retain(|bucket| bucket.last_us + window_us > now_us);
        let cost = row.cost.unsigned_abs();
        if row.cost < 0 {
            refund(buckets, cost);
            return true;
        }
        let used: u64 = buckets.iter().map(|bucket| bucket.units).sum();
        if used.saturating_add(cost.max(1)) > limit {
            return false;
        }
        match buckets.last_mut() {
            _ if cost == 0 => {}
            Some(last) if last.last_us / bucket_us == now_us / bucket_us => {
                *last = Bucket { last_us: now_us, units: last.units + cost };
            }
            _ => buckets.push(Bucket { last_us: now_us, units: cost }),
        }
        true
    }
}

/// Refunds units, newest first.
fn refund(buckets: &mut Vec<Bucket>, mut units: u64) {
    while units > 0
        && let Some(newest) = buckets.last_mut()
    {
        let taken = units.min(newest.units);
        newest.units -= taken;
        units -= taken;
        if newest.units == 0 {
            buckets.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rng::Rng;
    use super::*;

    /// The definition, computed from the admitted requests alone: a whole bucket counts while any
    /// of its requests is less than a window old.
    fn admits(admitted: &[u64], now_us: u64, limit: u64, window_us: u64) -> bool {
        let bucket = |at_us: u64| at_us / window_us.div_ceil(10);
        let is_live = |at_us: u64| {
            let mut same = admitted.iter().filter(|&&other| bucket(other) == bucket(at_us));
            same.any(|other| now_us - other < window_us)
        };
        (admitted.iter().filter(|&&at_us| is_live(at_us)).count() as u64) < limit
    }

    #[test]
    fn ten_buckets_match_definition() {
        // A window that is not divisible by ten, and gaps from none to several buckets.
        for (limit, window_us, gap_us) in
            [(1, 1_003, 300), (5, 1_003, 200), (30, 1_003, 40), (100, 60_000, 400)]
        {
            let mut rng = Rng::new(limit);
            let mut buckets = TenBuckets::new(limit, window_us);
            let (mut now_us, mut admitted, mut denied) = (1_000_000, Vec::new(), 0);
            for _ in 0..2_000 {
                now_us += rng.below(gap_us);
                let expected = admits(&admitted, now_us, limit, window_us);
                let row = Row::numbered(now_us, 1, 0);
                assert_eq!(buckets.decide(&row), expected, "{limit} per {window_us} at {now_us}");
                if expected {
                    admitted.push(now_us);
                } else {
                    denied += 1;
                }
                // Requests older than two windows never count.
                admitted.retain(|at_us| now_us - at_us < 2 * window_us);
            }
            assert!((100..1_900).contains(&denied), "{limit} per {window_us}: {denied} denied");
        }
    }

    #[test]
    fn ten_buckets_handle_refunds_and_clock_steps() {
        let mut buckets = TenBuckets::new(3, 1_000);
        for (at_us, cost, allowed) in [
            (5_000, 2, true),
            (5_150, 2, false),
            (5_150, 0, true),
            (5_150, 1, true),
            (5_150, 0, false),
            (5_160, -2, true),
            (5_170, 2, true),
            // After a step back everything counts from the new time.
            (2_000, 1, false),
            (2_999, 1, false),
            (3_000, 3, true),
        ] {
            assert_eq!(buckets.decide(&Row::numbered(at_us, cost, 0)), allowed, "{at_us} {cost}");
            assert!(buckets.decide(&Row::numbered(at_us, 0, 1)), "keys are independent");
        }
    }

    #[test]
    fn ranges_show_the_smallest_and_largest_share() {
        let share = |admitted, over| Share { admitted, log_admitted: 1_000, over, requests: 2_000 };
        for (shares, text) in [
            (vec![share(983, 0), share(1_000, 0)], "98.3 to 100.0 (0)"),
            (vec![share(1_000, 0)], "100.0 (0)"),
            (vec![share(1_050, 24), share(990, 400)], "99.0 to 105.0 (1.2 to 20.0)"),
            (vec![share(1_000, 1), share(1_000, 0)], "100.0 (0.0 to 0.1)"),
        ] {
            let mut ranges = [Range::default(); COLUMNS];
            shares.iter().for_each(|&share| super::widen(&mut ranges, &[share; COLUMNS]));
            assert_eq!(shown(&ranges[0]), text);
        }
        let few = Share { admitted: 9, log_admitted: 9, over: 1, requests: 1_000_000 };
        let mut ranges = [Range::default(); COLUMNS];
        super::widen(&mut ranges, &[few; COLUMNS]);
        assert_eq!(shown(&ranges[0]), "100.0 (< 0.1)");
        assert_eq!(shown(&Range::default()), "-");
    }
}
