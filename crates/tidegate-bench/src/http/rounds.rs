//! Rounds of all subjects, and the ratios between subjects.
//!
//! A round is one turn of every subject. Ratios are taken within a round, because a disturbance of
//! some seconds affects both sides of a ratio. The report contains their median over the rounds
//! with its 95 % confidence interval.

use std::io;
use std::time::Duration;

use clap::ValueEnum;
use tempfile::TempDir;

use super::load::{Job, TurnResult};
use super::programs;
use super::server::{Program, Server};
use super::setup::{self, CpuPlacement, LoadSettings, temp_directory};
use super::wire::{AGEING_TIME, LOOSE_LIMITS, RequestKind};
use crate::cli::{HttpArgs, name_of};
use crate::inprocess::{load_average, median, selected_or_all};

/// Duration of a turn. Long enough that its start and end are negligible, short enough that the
/// machine does not change much between the turns of two servers.
const TURN_MS: u64 = 50;

/// Number of starts of each server; the median time is reported.
const STARTS: usize = 20;

/// Default number of distinct keys.
const KEYS: u32 = 100_000;

/// The measured requests and servers, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Subject {
    #[value(name = "tidegate-check")]
    TidegateCheck,
    #[value(name = "tidegate-attributes")]
    TidegateAttributes,
    #[value(name = "tidegate-forward-auth")]
    TidegateForwardAuth,
    #[value(name = "tidegate-attributes-2limits")]
    AttributesTwoLimits,
    #[value(name = "tidegate-forward-auth-2limits")]
    ForwardAuthTwoLimits,
    #[value(name = "axum")]
    Axum,
    #[value(name = "axum-forward-auth")]
    AxumForwardAuth,
    #[value(name = "throttlecrab")]
    Throttlecrab,
}

impl Subject {
    fn kind(self) -> RequestKind {
        match self {
            Subject::TidegateCheck | Subject::Axum => RequestKind::Check,
            Subject::TidegateAttributes | Subject::AttributesTwoLimits => RequestKind::Attributes,
            Subject::TidegateForwardAuth
            | Subject::ForwardAuthTwoLimits
            | Subject::AxumForwardAuth => RequestKind::ForwardAuth,
            Subject::Throttlecrab => RequestKind::Throttle,
        }
    }

    fn is_tidegate(self) -> bool {
        matches!(self.server_kind(), ServerKind::Tidegate | ServerKind::TidegateTwoLimits)
    }

    fn server_kind(self) -> ServerKind {
        match self {
            Subject::TidegateCheck | Subject::TidegateAttributes | Subject::TidegateForwardAuth => {
                ServerKind::Tidegate
            }
            Subject::AttributesTwoLimits | Subject::ForwardAuthTwoLimits => {
                ServerKind::TidegateTwoLimits
            }
            Subject::Axum | Subject::AxumForwardAuth => ServerKind::Axum,
            Subject::Throttlecrab => ServerKind::Throttlecrab,
        }
    }

    /// Describes the subject in one line.
    pub fn describe(self) -> String {
        let version = crate::subjects::version;
        match self {
            Subject::TidegateCheck => {
                format!("POST /v1/check with policy and key; {}", LOOSE_LIMITS[0])
            }
            Subject::TidegateAttributes => {
                "POST /v1/check with attributes, one of six policies matches".to_owned()
            }
            Subject::TidegateForwardAuth => {
                "GET /v1/forward-auth as a gateway sends it, one of six policies matches".to_owned()
            }
            Subject::AttributesTwoLimits | Subject::ForwardAuthTwoLimits => {
                format!("the same with two limits: {} beside it", LOOSE_LIMITS[1])
            }
            Subject::Axum => format!(
                "axum {}: a POST handler that reads the body and answers constant JSON of our size",
                version("axum")
            ),
            Subject::AxumForwardAuth => format!(
                "axum {}: a handler that answers a constant copy of our forward-auth answer",
                version("axum")
            ),
            Subject::Throttlecrab => format!(
                "throttlecrab-server {}: POST /throttle, built with our release profile",
                version("throttlecrab")
            ),
        }
    }
}

/// The servers that answer the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    Tidegate,
    TidegateTwoLimits,
    Axum,
    Throttlecrab,
}

impl ServerKind {
    pub fn name(self) -> &'static str {
        match self {
            ServerKind::Tidegate => "tidegate",
            ServerKind::TidegateTwoLimits => "tidegate, two limits",
            ServerKind::Axum => "axum",
            ServerKind::Throttlecrab => "throttlecrab",
        }
    }
}

/// Results of a run.
pub struct Results {
    pub rows: Vec<Row>,
    pub starts: Vec<(ServerKind, Duration)>,
    /// Number of turns that were repeated because other programs used the processors.
    pub disturbed: usize,
    pub settings: LoadSettings,
    pub load_before: String,
    pub load_after: String,
}

/// The turns of one subject.
pub struct Row {
    pub subject: Subject,
    pub turns: Vec<TurnResult>,
}

/// A median over the rounds. The true median is in `low..=high` with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Estimate {
    /// Computes the median and its interval by the sign test: the number of n values below their
    /// true median is distributed like n coin tosses, whatever the distribution of the values.
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len() - 1;
        // 1.96 standard deviations of n coin tosses, each of which is 1/2.
        let reach = (0.98 * (sorted.len() as f64).sqrt()).ceil();
        let middle = last as f64 / 2.0;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let at = |index: f64| sorted[index.clamp(0.0, last as f64) as usize];
        Estimate {
            median: median(values),
            low: at((middle - reach).floor()),
            high: at((middle + reach).ceil()),
        }
    }
}

/// A figure computed from one turn.
type Metric = fn(&TurnResult) -> f64;

impl Estimate {
    /// Computes the median of `metric` over the turns.
    pub fn over(turns: &[TurnResult], metric: Metric) -> Self {
        Estimate::of(&turns.iter().map(metric).collect::<Vec<_>>())
    }

    /// Computes the median of the ratios to another subject in the same rounds.
    pub fn ratio(measured: &[TurnResult], baseline: &[TurnResult], metric: Metric) -> Self {
        let pairs = measured.iter().zip(baseline);
        Estimate::of(
            &pairs
                .map(|(measured, baseline)| metric(measured) / metric(baseline))
                .collect::<Vec<_>>(),
        )
    }
}

impl Row {
    pub fn estimate(&self, metric: Metric) -> Estimate {
        Estimate::over(&self.turns, metric)
    }

    pub fn ratio(&self, other: &Row, metric: Metric) -> Estimate {
        Estimate::ratio(&self.turns, &other.turns, metric)
    }
}

impl Results {
    pub fn row(&self, subject: Subject) -> Option<&Row> {
        self.rows.iter().find(|row| row.subject == subject)
    }
}

pub fn per_second(turn: &TurnResult) -> f64 {
    turn.answers as f64 * 1e9 / turn.elapsed_ns as f64
}

/// Returns the server's processor time per answer in microseconds.
pub fn server_us(turn: &TurnResult) -> f64 {
    turn.server_ran_ns as f64 / 1e3 / turn.answers as f64
}

/// Returns the load's processor time per answer in microseconds.
pub fn load_us(turn: &TurnResult) -> f64 {
    turn.load_ran_ns as f64 / 1e3 / turn.answers as f64
}

/// Returns the number of processors that the server kept busy.
pub fn server_busy(turn: &TurnResult) -> f64 {
    turn.server_ran_ns as f64 / turn.elapsed_ns as f64
}

pub fn p50_us(turn: &TurnResult) -> f64 {
    turn.p50_ns as f64 / 1e3
}

pub fn p99_us(turn: &TurnResult) -> f64 {
    turn.p99_ns as f64 / 1e3
}

/// Runs the selected subjects.
pub fn run(args: &HttpArgs) -> io::Result<Results> {
    let subjects: Vec<Subject> = selected_or_all(&args.subject);
    let settings = LoadSettings {
        connections: args.connections,
        keys: args.keys.unwrap_or(KEYS),
        time_ms: TURN_MS,
        rounds: if args.quick { 25 } else { 120 },
        // Only the states of tidegate need ageing.
        warm: if subjects.iter().any(|subject| subject.is_tidegate()) {
            AGEING_TIME
        } else {
            Duration::ZERO
        },
        placement: CpuPlacement::choose(args.unbound),
    };
    let directory = temp_directory()?;
    let programs = programs_of(args, &subjects, &directory)?;
    let load_before = load_average();
    let starts = programs
        .iter()
        .map(|(server_kind, program)| Ok((*server_kind, start_time(program, &directory)?)))
        .collect::<io::Result<Vec<_>>>()?;
    let servers = start_all(&programs, settings.placement, &directory)?;
    for subject in &subjects {
        if subject.server_kind() != ServerKind::Axum {
            setup::verify(server_of(&servers, *subject)?, subject.kind(), &settings)?;
        }
    }
    let targets =
        subjects.iter().map(|&subject| Ok((server_of(&servers, subject)?, subject.kind())));
    eprintln!("{} rounds", settings.rounds);
    let report = settings.load(Job::Turns, &targets.collect::<io::Result<Vec<_>>>()?)?;
    let pairs = subjects.iter().zip(report.turns);
    let rows: Vec<Row> = pairs.map(|(&subject, turns)| Row { subject, turns }).collect();
    rows.iter().try_for_each(verify_all_admitted)?;
    Ok(Results {
        rows,
        starts,
        disturbed: report.disturbed,
        settings,
        load_before,
        load_after: load_average(),
    })
}

/// Checks that every turn has answers and all requests were admitted.
fn verify_all_admitted(row: &Row) -> io::Result<()> {
    let admits_all = |turn: &TurnResult| turn.answers > 0 && turn.allowed == turn.answers;
    if row.turns.is_empty() || !row.turns.iter().all(admits_all) {
        return Err(io::Error::other(format!(
            "{} did not admit all requests",
            name_of(&row.subject)
        )));
    }
    Ok(())
}

type Programs = Vec<(ServerKind, Program)>;
type Servers = Vec<(ServerKind, Server)>;

fn programs_of(args: &HttpArgs, subjects: &[Subject], directory: &TempDir) -> io::Result<Programs> {
    let is_selected =
        |server_kind| subjects.iter().any(|subject| subject.server_kind() == server_kind);
    let mut all = Vec::new();
    for (server_kind, limits) in [(ServerKind::Tidegate, 1), (ServerKind::TidegateTwoLimits, 2)] {
        if is_selected(server_kind) {
            all.push((
                server_kind,
                setup::tidegate(args, &LOOSE_LIMITS[..limits], directory.path())?,
            ));
        }
    }
    if is_selected(ServerKind::Axum) {
        // The handlers copy answers of a real server, which is stopped afterwards.
        let like = all.first().map(|(_, program)| Server::start(program, None, directory.path()));
        all.push((ServerKind::Axum, setup::axum(like.transpose()?.as_ref(), directory.path())?));
    }
    if is_selected(ServerKind::Throttlecrab) {
        all.push((
            ServerKind::Throttlecrab,
            Program::Throttlecrab { program: programs::throttlecrab()? },
        ));
    }
    Ok(all)
}

/// Returns the median time from starting the process to its first answer, without pinning, as a
/// user would start it.
fn start_time(program: &Program, directory: &TempDir) -> io::Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..STARTS {
        times.push(Server::start(program, None, directory.path())?.first_answer);
    }
    times.sort();
    Ok(times[STARTS / 2])
}

fn start_all(
    programs: &Programs,
    placement: CpuPlacement,
    directory: &TempDir,
) -> io::Result<Servers> {
    let start = |(server_kind, program): &(ServerKind, Program)| {
        Ok((*server_kind, Server::start(program, placement.server, directory.path())?))
    };
    programs.iter().map(start).collect()
}

fn server_of(servers: &Servers, subject: Subject) -> io::Result<&Server> {
    let found = servers.iter().find(|(server_kind, _)| *server_kind == subject.server_kind());
    found
        .map(|(_, server)| server)
        .ok_or_else(|| io::Error::other("the server of a subject was not started"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_rounds() {
        let row = |answers: [u64; 3]| Row {
            subject: Subject::Axum,
            turns: answers
                .map(|answers| TurnResult {
                    answers,
                    elapsed_ns: 1_000_000_000,
                    ..TurnResult::default()
                })
                .into(),
        };
        // The machine was slow in the second round, for both subjects.
        let (measured, baseline) = (row([100, 10, 90]), row([200, 20, 200]));
        let ratio = measured.ratio(&baseline, per_second);
        assert_eq!(ratio, Estimate { median: 0.5, low: 0.45, high: 0.5 });
        assert_eq!(measured.estimate(per_second).median, 90.0);
    }

    #[test]
    fn interval_follows_the_sign_test() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        // 100 coin tosses: 50 +- 9.8.
        assert_eq!(Estimate::of(&values), Estimate { median: 50.5, low: 40.0, high: 61.0 });
        assert_eq!(Estimate::of(&[7.0]), Estimate { median: 7.0, low: 7.0, high: 7.0 });
    }
}
