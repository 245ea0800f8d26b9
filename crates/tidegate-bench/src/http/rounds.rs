//! The servers in turns, and what their turns say about each other.
//!
//! A round is a turn of every subject. Ratios are taken within a round and their median over the
//! rounds is reported, with the interval that holds the true median 19 times in 20:
//! what disturbs the machine for some seconds disturbs both sides of a ratio.

use std::io;
use std::time::Duration;

use clap::ValueEnum;

use super::load::{Counted, Job};
use super::programs;
use super::server::{Program, Server};
use super::setup::{self, Asking, Directory, Places};
use super::wire::{AGE, Form, LOOSE};
use crate::cli::{HttpArgs, name_of};
use crate::inprocess::{load, median, or_all};

/// Long enough that beginning and ending do not show, short enough that a machine does not
/// change much between one server's turn and the next one's.
const TURN_MS: u64 = 50;

/// Starts of each server, of which the median is reported.
const STARTS: usize = 20;

/// Distinct keys unless told otherwise.
const KEYS: u32 = 100_000;

/// What is asked of which server, in the order of the table.
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
    fn form(self) -> Form {
        match self {
            Subject::TidegateCheck | Subject::Axum => Form::Check,
            Subject::TidegateAttributes | Subject::AttributesTwoLimits => Form::Attributes,
            Subject::TidegateForwardAuth
            | Subject::ForwardAuthTwoLimits
            | Subject::AxumForwardAuth => Form::ForwardAuth,
            Subject::Throttlecrab => Form::Throttle,
        }
    }

    fn is_tidegate(self) -> bool {
        matches!(self.host(), Host::Tidegate | Host::TidegateTwoLimits)
    }

    fn host(self) -> Host {
        match self {
            Subject::TidegateCheck | Subject::TidegateAttributes | Subject::TidegateForwardAuth => {
                Host::Tidegate
            }
            Subject::AttributesTwoLimits | Subject::ForwardAuthTwoLimits => Host::TidegateTwoLimits,
            Subject::Axum | Subject::AxumForwardAuth => Host::Axum,
            Subject::Throttlecrab => Host::Throttlecrab,
        }
    }

    /// One line on what it is.
    pub fn describe(self) -> String {
        let version = crate::subjects::version;
        match self {
            Subject::TidegateCheck => {
                format!("POST /v1/check with policy and key; {}", LOOSE[0])
            }
            Subject::TidegateAttributes => {
                "POST /v1/check with attributes, one of six policies matches".to_owned()
            }
            Subject::TidegateForwardAuth => {
                "GET /v1/forward-auth as a gateway sends it, one of six policies matches".to_owned()
            }
            Subject::AttributesTwoLimits | Subject::ForwardAuthTwoLimits => {
                format!("the same with two limits: {} beside it", LOOSE[1])
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

/// The servers that subjects live in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    Tidegate,
    TidegateTwoLimits,
    Axum,
    Throttlecrab,
}

impl Host {
    pub fn name(self) -> &'static str {
        match self {
            Host::Tidegate => "tidegate",
            Host::TidegateTwoLimits => "tidegate, two limits",
            Host::Axum => "axum",
            Host::Throttlecrab => "throttlecrab",
        }
    }
}

/// All that a run found.
pub struct Results {
    pub rows: Vec<Row>,
    pub starts: Vec<(Host, Duration)>,
    /// Turns that were made again, because somebody else used the processors.
    pub disturbed: usize,
    pub asking: Asking,
    pub load_before: String,
    pub load_after: String,
}

/// One subject's turns.
pub struct Row {
    pub subject: Subject,
    pub turns: Vec<Counted>,
}

/// A median over the rounds. The true one lies in `low..=high` 19 times in 20.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Figure {
    /// The interval is that of the sign test: how many of n values fall below their median
    /// is like n coins, whatever the values' distribution.
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len() - 1;
        // 1.96 standard deviations of n coins, each 1/2.
        let reach = (0.98 * (sorted.len() as f64).sqrt()).ceil();
        let middle = last as f64 / 2.0;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let at = |index: f64| sorted[index.clamp(0.0, last as f64) as usize];
        Figure {
            median: median(values),
            low: at((middle - reach).floor()),
            high: at((middle + reach).ceil()),
        }
    }
}

/// What is measured of a turn.
type Measure = fn(&Counted) -> f64;

impl Figure {
    /// The median of what `measure` says of each turn.
    pub fn over(turns: &[Counted], measure: Measure) -> Self {
        Figure::of(&turns.iter().map(measure).collect::<Vec<_>>())
    }

    /// The median of the ratios to another subject in the same rounds.
    pub fn ratio(ours: &[Counted], theirs: &[Counted], measure: Measure) -> Self {
        let pairs = ours.iter().zip(theirs);
        Figure::of(&pairs.map(|(ours, theirs)| measure(ours) / measure(theirs)).collect::<Vec<_>>())
    }
}

impl Row {
    pub fn figure(&self, measure: Measure) -> Figure {
        Figure::over(&self.turns, measure)
    }

    pub fn ratio(&self, other: &Row, measure: Measure) -> Figure {
        Figure::ratio(&self.turns, &other.turns, measure)
    }
}

impl Results {
    pub fn row(&self, subject: Subject) -> Option<&Row> {
        self.rows.iter().find(|row| row.subject == subject)
    }
}

pub fn per_second(pass: &Counted) -> f64 {
    pass.answers as f64 * 1e9 / pass.elapsed_ns as f64
}

/// Microseconds of the server's processor time per answer.
pub fn server_us(pass: &Counted) -> f64 {
    pass.server_ran_ns as f64 / 1e3 / pass.answers as f64
}

/// Microseconds of the load's processor time per answer.
pub fn load_us(pass: &Counted) -> f64 {
    pass.load_ran_ns as f64 / 1e3 / pass.answers as f64
}

/// Processors the server kept busy.
pub fn server_busy(pass: &Counted) -> f64 {
    pass.server_ran_ns as f64 / pass.elapsed_ns as f64
}

pub fn p50_us(pass: &Counted) -> f64 {
    pass.p50_ns as f64 / 1e3
}

pub fn p99_us(pass: &Counted) -> f64 {
    pass.p99_ns as f64 / 1e3
}

/// Runs what the arguments select.
pub fn run(args: &HttpArgs) -> io::Result<Results> {
    let subjects: Vec<Subject> = or_all(&args.subject);
    let asking = Asking {
        connections: args.connections,
        keys: args.keys.unwrap_or(KEYS),
        time_ms: TURN_MS,
        rounds: if args.quick { 25 } else { 120 },
        // Only tidegate's states age.
        warm: if subjects.iter().any(|subject| subject.is_tidegate()) {
            AGE
        } else {
            Duration::ZERO
        },
        places: Places::choose(args.unbound),
    };
    let directory = Directory::create()?;
    let programs = programs_of(args, &subjects, &directory)?;
    let load_before = load();
    let starts = programs
        .iter()
        .map(|(host, program)| Ok((*host, start_time(program, &directory)?)))
        .collect::<io::Result<Vec<_>>>()?;
    let servers = start_all(&programs, asking.places, &directory)?;
    for subject in &subjects {
        if subject.host() != Host::Axum {
            setup::prove(server_of(&servers, *subject)?, subject.form(), &asking)?;
        }
    }
    let asked = subjects.iter().map(|&subject| Ok((server_of(&servers, subject)?, subject.form())));
    eprintln!("{} rounds", asking.rounds);
    let report = asking.load(Job::Turns, &asked.collect::<io::Result<Vec<_>>>()?)?;
    let pairs = subjects.iter().zip(report.turns);
    let rows: Vec<Row> = pairs.map(|(&subject, turns)| Row { subject, turns }).collect();
    rows.iter().try_for_each(check)?;
    Ok(Results {
        rows,
        starts,
        disturbed: report.disturbed,
        asking,
        load_before,
        load_after: load(),
    })
}

/// Every turn was answered, and everything was admitted.
fn check(row: &Row) -> io::Result<()> {
    let admits_all = |turn: &Counted| turn.answers > 0 && turn.allowed == turn.answers;
    if row.turns.is_empty() || !row.turns.iter().all(admits_all) {
        return Err(io::Error::other(format!("{} should admit all", name_of(&row.subject))));
    }
    Ok(())
}

type Programs = Vec<(Host, Program)>;
type Servers = Vec<(Host, Server)>;

fn programs_of(
    args: &HttpArgs,
    subjects: &[Subject],
    directory: &Directory,
) -> io::Result<Programs> {
    let wanted = |host| subjects.iter().any(|subject| subject.host() == host);
    let mut all = Vec::new();
    for (host, limits) in [(Host::Tidegate, 1), (Host::TidegateTwoLimits, 2)] {
        if wanted(host) {
            all.push((host, setup::tidegate(args, &LOOSE[..limits], directory.path())?));
        }
    }
    if wanted(Host::Axum) {
        // Its answers are those of a real server, which is asked and ended again.
        let like = all.first().map(|(_, program)| Server::start(program, None, directory.path()));
        all.push((Host::Axum, setup::axum(like.transpose()?.as_ref(), directory.path())?));
    }
    if wanted(Host::Throttlecrab) {
        all.push((
            Host::Throttlecrab,
            Program::Throttlecrab { program: programs::throttlecrab()? },
        ));
    }
    Ok(all)
}

/// From starting the process to its first answer, on any processor, as a user would start it.
fn start_time(program: &Program, directory: &Directory) -> io::Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..STARTS {
        times.push(Server::start(program, None, directory.path())?.first_answer);
    }
    times.sort();
    Ok(times[STARTS / 2])
}

fn start_all(programs: &Programs, places: Places, directory: &Directory) -> io::Result<Servers> {
    let start = |(host, program): &(Host, Program)| {
        Ok((*host, Server::start(program, places.server, directory.path())?))
    };
    programs.iter().map(start).collect()
}

fn server_of(servers: &Servers, subject: Subject) -> io::Result<&Server> {
    let found = servers.iter().find(|(host, _)| *host == subject.host());
    found.map(|(_, server)| server).ok_or_else(|| io::Error::other("a server is missing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_rounds() {
        let row = |answers: [u64; 3]| Row {
            subject: Subject::Axum,
            turns: answers
                .map(|answers| Counted { answers, elapsed_ns: 1_000_000_000, ..Counted::default() })
                .into(),
        };
        // The machine was slow in the second round, for both.
        let (ours, theirs) = (row([100, 10, 90]), row([200, 20, 200]));
        let ratio = ours.ratio(&theirs, per_second);
        assert_eq!(ratio, Figure { median: 0.5, low: 0.45, high: 0.5 });
        assert_eq!(ours.figure(per_second).median, 90.0);
    }

    #[test]
    fn the_interval_leaves_out_as_many_as_coins_would() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        // 100 coins: 50 +- 9.8.
        assert_eq!(Figure::of(&values), Figure { median: 50.5, low: 40.0, high: 61.0 });
        assert_eq!(Figure::of(&[7.0]), Figure { median: 7.0, low: 7.0, high: 7.0 });
    }
}
