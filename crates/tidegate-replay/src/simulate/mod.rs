//! `tidegate simulate`: generated traffic through the real engine on virtual time.
//!
//! ```text
//! rng -> traffic (clients) -> blocks of events -> run (engine, ground truth, tally) -> report
//!                  ^----------------- answers -------------/      retry storms only
//! ```
//!
//! Everything after the blocks is shared with `tidegate replay`.

mod accuracy;
mod rng;
mod table;
mod traffic;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Args;
use tidegate::{Algorithm, Limit};

use crate::algorithms::{Algorithms, algorithms};
use crate::args::{limit, whole_number};
use crate::block::Block;
use crate::error::ReplayError;
use crate::largest_burst::LargestBurst;
use crate::progress::Progress;
use crate::report::{KeyTotals, ReportArgs, ReportWriter, Summary, SummaryOptions, TrafficSummary};
use crate::run::{self, Run};
use traffic::{Traffic, TrafficGenerator, TrafficSpec};

/// The maximum number of requests: they take an hour, and no plot shows more.
const MAX_EVENTS: f64 = 1e9;

/// The maximum length of a simulation: 200 years. With the start time added, times stay below 2^53
/// us, so they are also exact as floating-point numbers. The default of 100 of the longest windows
/// fits.
const MAX_LENGTH_US: u64 = 200 * 366 * 86_400_000_000;

/// The maximum number of clients. Each is kept in memory with the time of its next request.
const MAX_CLIENTS: u32 = 10_000_000;

/// Send generated traffic through the rate limiter and see what it does
///
/// The traffic is scaled to the first limit: with a load of 1 a client sends, on average, as much
/// as the limit admits. The same seed generates the same traffic on every machine.
#[derive(Debug, Args)]
#[command(after_long_help = SIMULATE_HELP)]
pub struct SimulateArgs {
    /// A limit on each key, e.g. "10 per 10s"
    #[arg(
        long = "limit",
        value_name = "LIMIT",
        required_unless_present = "accuracy",
        allow_hyphen_values = true,
        value_parser = limit::<Limit>
    )]
    limits: Vec<Limit>,

    /// The kind of traffic; `all` with --table
    #[arg(
        long,
        value_name = "NAME|all",
        value_parser = traffic_choice,
        required_unless_present = "accuracy"
    )]
    traffic: Option<TrafficChoice>,

    /// The algorithm to use instead of those of the limits, or `all` to compare them
    #[arg(long, value_name = "NAME|all", value_parser = algorithms)]
    algorithm: Option<Algorithms>,

    /// The number of clients; the default depends on the traffic
    #[arg(long, value_name = "N", value_parser = |text: &str| whole_number(text, 1..=MAX_CLIENTS))]
    clients: Option<u32>,

    /// The requests of a client per window, as a multiple of the limit
    #[arg(long, value_name = "X", default_value = "1", value_parser = load, allow_negative_numbers = true)]
    load: f64,

    /// The length of the simulation in windows
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = |text: &str| whole_number(text, 1..=u32::MAX))]
    windows: u32,

    /// The seed; another seed generates other traffic of the same kind
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = |text: &str| whole_number(text, 0..=u64::MAX), allow_negative_numbers = true)]
    seed: u64,

    /// Print one table of every algorithm on each selected traffic, as Markdown
    #[arg(long, group = "tables", conflicts_with_all = ["json", "html"])]
    table: bool,

    /// Print how close each algorithm comes to the exact log, as Markdown. --limit replaces the
    /// default limits
    #[arg(
        long,
        group = "tables",
        conflicts_with_all = ["traffic", "algorithm", "clients", "load", "windows", "json", "html"]
    )]
    accuracy: bool,

    /// With --table or --accuracy: replay this file too, as one more traffic
    #[arg(long = "trace", value_name = "FILE", requires = "tables")]
    traces: Vec<PathBuf>,

    #[command(flatten)]
    report: ReportArgs,
}

const SIMULATE_HELP: &str = "\
Traffics:
  poisson             clients at random times
  bursts              bursts of up to the limit, with pauses between them
  boundary            attackers that know the window boundaries
  diurnal             from calm to twice as busy and back
  retry-storm         clients of one key that retry exactly at retry_after
  retry-storm-jitter  clients of one key that retry after up to twice retry_after
  zipf                many clients, a few of them busy
  hot-tenant          one tenant that sends half of all requests

Examples:
  tidegate simulate --limit \"10 per 10s\" --traffic boundary --algorithm all
  tidegate simulate --limit \"100 per 1m\" --traffic retry-storm --html storm.html
  tidegate simulate --limit \"10 per 10s\" --traffic all --table
  tidegate simulate --accuracy --trace access.log";

/// The kinds of traffic to generate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TrafficChoice {
    One(Traffic),
    All,
}

fn traffic_choice(name: &str) -> Result<TrafficChoice, String> {
    if name == "all" {
        return Ok(TrafficChoice::All);
    }
    let known = Traffic::ALL.into_iter().find(|traffic| traffic.name() == name);
    known.map(TrafficChoice::One).ok_or_else(|| {
        let names: Vec<&str> = Traffic::ALL.iter().map(|traffic| traffic.name()).collect();
        format!("use {} or all", names.join(", "))
    })
}

fn load(text: &str) -> Result<f64, &'static str> {
    let load = text.parse().ok().filter(|load| (0.001..=1_000.0).contains(load));
    load.ok_or("write a number from 0.001 to 1000")
}

/// Generates traffic, decides it and prints the report.
pub fn run(args: &SimulateArgs) -> Result<(), ReplayError> {
    if args.accuracy {
        return accuracy::print(args);
    }
    let plan = run::limits_per_run(&args.limits, args.algorithm)?;
    let specs = args.specs()?;
    if args.table {
        return table::print(args, &specs);
    }
    let [spec] = &specs[..] else { return Err(ReplayError::TableOfAll) };
    let report = ReportWriter::create(&args.report, &[])?;
    let first = args.limits.first();
    let page = match args.report.html {
        Some(_) => PageCounts {
            exact: run::exact_log(&plan).map(Run::new),
            burst: first.map(LargestBurst::new),
            ..PageCounts::default()
        },
        None => PageCounts::default(),
    };
    let page = PageCounts { over_time: args.report.has_timeline(), ..page };
    let started = Instant::now();
    let simulated = SimulationRun::new(spec, plan, page)?;
    let (elapsed, compared) = (started.elapsed(), simulated.compared);
    let options = SummaryOptions { elapsed, top: args.report.top, compared };
    let asked = first.map_or_else(Algorithm::default, Limit::algorithm);
    report.print(&simulated.summary(spec, options).with_main(asked), false)
}

impl SimulateArgs {
    fn specs(&self) -> Result<Vec<TrafficSpec>, ReplayError> {
        let traffic_choice = match self.traffic {
            Some(TrafficChoice::One(traffic)) => vec![traffic],
            Some(TrafficChoice::All) => Traffic::ALL.to_vec(),
            None => Vec::new(),
        };
        // The default load may be given explicitly.
        if self.traffic == Some(TrafficChoice::One(Traffic::Boundary))
            && (self.load - 1.0).abs() > 0.0
        {
            return Err(ReplayError::LoadOfBoundary);
        }
        let Some(limit) = self.limits.first() else { return Ok(Vec::new()) };
        let spec = |traffic: Traffic| TrafficSpec {
            traffic,
            clients: self.clients.unwrap_or(traffic.usual_clients()),
            load: self.load,
            windows: self.windows,
            limit: limit.count(),
            window_us: limit.window_us(),
            spread_us: 0,
            seed: self.seed,
        };
        if limit.window_us().saturating_mul(self.windows.into()) > MAX_LENGTH_US {
            return Err(ReplayError::TooLongTraffic {
                windows: self.windows,
                limit: Box::new(*limit),
            });
        }
        let specs: Vec<TrafficSpec> = traffic_choice.into_iter().map(spec).collect();
        match specs.iter().find(|spec| spec.requests() > MAX_EVENTS) {
            Some(spec) => Err(ReplayError::TooMuchTraffic { name: spec.traffic.name() }),
            None => Ok(specs),
        }
    }
}

/// Counts that only the page and the timeline show.
#[derive(Default)]
struct PageCounts {
    /// The exact log that a single inexact run is compared with.
    exact: Option<Run>,
    burst: Option<LargestBurst>,
    /// Whether to keep the largest counts between requests.
    over_time: bool,
}

/// Generated and decided traffic.
struct SimulationRun {
    runs: Vec<Run>,
    /// The number of requests of each key: one list for each run of clients that react to answers,
    /// and a single list if all runs received the same requests.
    events_of: Vec<Vec<u32>>,
    /// Counts the largest burst. `None` if it is not shown, or if it differs between runs.
    burst: Option<LargestBurst>,
    compared: bool,
}

impl SimulationRun {
    fn new(
        spec: &TrafficSpec,
        plan: Vec<Vec<Limit>>,
        mut page: PageCounts,
    ) -> Result<Self, ReplayError> {
        let over_time = |run: Run| if page.over_time { run.keep_held() } else { run };
        let mut runs: Vec<Run> = plan.into_iter().map(Run::new).map(over_time).collect();
        if spec.traffic.reacts_to_answers() {
            let events_of = runs.iter_mut().map(|run| run_reactive(spec, run));
            let events_of = events_of.collect::<Result<_, _>>()?;
            runs.iter_mut().for_each(Run::finish);
            return Ok(SimulationRun { runs, events_of, burst: None, compared: false });
        }
        let compared = runs.len() > 1 || page.exact.is_some();
        let events_of = vec![run_open_loop(spec, &mut runs, &mut page)?];
        runs.iter_mut().for_each(Run::finish);
        Ok(SimulationRun { runs, events_of, burst: page.burst, compared })
    }

    fn summary(&self, spec: &TrafficSpec, options: SummaryOptions) -> Summary {
        let keys = self.events_of.iter().map(|events_of| KeyTotals {
            count: events_of.iter().filter(|&&events| events > 0).count() as u64,
            events_of,
            top: options.keys_listed(),
            of_policies: false,
        });
        // A single list applies to all runs.
        let runs = self.runs.iter().zip(keys.cycle());
        let traffic = TrafficSummary {
            name: spec.traffic.name().into(),
            about: spec.about(),
            seed: spec.seed,
        };
        let span = (spec.start_us(), spec.end_us());
        let summary = Summary::of_traffic(traffic, runs, span, options);
        summary.with_burst(self.burst.as_ref())
    }
}

/// Runs traffic that does not depend on the outcomes: all runs receive the same blocks.
fn run_open_loop(
    spec: &TrafficSpec,
    runs: &mut [Run],
    page: &mut PageCounts,
) -> Result<Vec<u32>, ReplayError> {
    let mut generator = TrafficGenerator::new(*spec);
    let mut shown = SimulationProgress::new(spec);
    let mut events_of = vec![0; spec.clients as usize];
    let mut block = Block::default();
    loop {
        let next = generator.next();
        if let Some((time_us, client)) = next {
            generator.push(&mut block, time_us, client);
            count(&mut events_of, generator.key_number(client));
            generator.record_answer(client, true, tidegate::RetryAfter::Now);
        }
        if block.is_full() || next.is_none() {
            for run in page.exact.iter_mut().chain(runs.iter_mut()) {
                run.take(&block)?;
            }
            run::compare(&block, runs, page.exact.as_ref());
            if let Some(burst) = &mut page.burst {
                burst.take(&block);
            }
            shown.at(&block);
            block.clear();
        }
        if next.is_none() {
            return Ok(events_of);
        }
    }
}

/// Runs traffic that depends on the outcomes: each request follows the outcome of the one before.
fn run_reactive(spec: &TrafficSpec, run: &mut Run) -> Result<Vec<u32>, ReplayError> {
    let mut generator = TrafficGenerator::new(*spec);
    let mut shown = SimulationProgress::new(spec);
    let mut events_of = vec![0; 1];
    let mut block = Block::default();
    while let Some((time_us, client)) = generator.next() {
        block.clear();
        generator.push(&mut block, time_us, client);
        run.take(&block)?;
        shown.at(&block);
        count(&mut events_of, generator.key_number(client));
        let allowed = run.answers().first().is_some_and(|answer| answer.allowed);
        generator.record_answer(client, allowed, run.retry_after());
    }
    Ok(events_of)
}

/// Shows on a terminal how far the time of a simulation has advanced.
struct SimulationProgress {
    progress: Progress,
    passed_us: Arc<AtomicU64>,
    start_us: u64,
    events: u64,
}

impl SimulationProgress {
    fn new(spec: &TrafficSpec) -> Self {
        let passed_us = Arc::new(AtomicU64::new(0));
        let total_us = spec.end_us() - spec.start_us();
        let progress = Progress::new(Some(total_us), Arc::clone(&passed_us));
        SimulationProgress { progress, passed_us, start_us: spec.start_us(), events: 0 }
    }

    fn at(&mut self, block: &Block) {
        let Some(last) = block.rows.last() else { return };
        self.events += block.rows.len() as u64;
        self.passed_us.store(last.time_us - self.start_us, Ordering::Relaxed);
        self.progress.show(self.events);
    }
}

fn count(events_of: &mut [u32], key: u32) {
    if let Some(events) = events_of.get_mut(key as usize) {
        *events = events.saturating_add(1);
    }
}
