//! Fills every subject, proves the set-up, then interleaves the timed passes.
//!
//! One repeat times every subject once on the same accesses, starting with
//! another subject each time; what disturbs the machine disturbs them all. The
//! row is the median over the repeats.

use clap::ValueEnum;

use crate::cli::{InprocessArgs, Mode, name_of};
use crate::measure::{Outcome, Pass};
use crate::rss::{self, Memory};
use crate::subjects::{Kind, Subject};
use crate::workloads::{Accesses, Workload};

/// One line of the table.
pub struct Row {
    pub workload: Workload,
    pub threads: u8,
    pub mode: Mode,
    pub subject: Kind,
    /// Processor time a decision takes, median over the repeats.
    pub ns_per_decision: f64,
    /// (largest - smallest) / median over the repeats.
    pub spread: f64,
    /// Decisions per second of all threads together, median over the repeats.
    pub per_second: f64,
    pub bytes_per_key: Option<f64>,
    /// The part of the decisions that was admitted.
    pub admitted: f64,
    /// The part of the time that was spent waiting for a processor, and taken out.
    pub queued: f64,
}

/// All that a run found.
pub struct Results {
    pub rows: Vec<Row>,
    /// Bytes per key of logs that are full, if measured.
    pub full_log_bytes: Option<f64>,
    pub subjects: Vec<Kind>,
    pub repeats: usize,
    pub decisions: usize,
    pub load_before: String,
    pub load_after: String,
}

/// What was asked for on the command line, with the defaults filled in.
struct Plan {
    workloads: Vec<Workload>,
    subjects: Vec<Kind>,
    cells: Vec<(u8, Mode)>,
    repeats: usize,
    decisions: usize,
}

impl Plan {
    fn new(args: &InprocessArgs) -> Self {
        let threads = if args.threads.is_empty() { vec![1, 2] } else { args.threads.clone() };
        let modes = or_all(&args.mode);
        let cells = modes
            .iter()
            .flat_map(|&mode| threads.iter().map(move |&threads| (threads, mode)))
            .collect();
        Plan {
            workloads: or_all(&args.workload),
            subjects: or_all(&args.subject),
            cells,
            repeats: if args.quick { 3 } else { 5 },
            decisions: if args.quick { 1 << 19 } else { 1 << 21 },
        }
    }
}

/// The chosen values in their declared order, or all of them.
pub fn or_all<T: ValueEnum + Copy + PartialEq>(chosen: &[T]) -> Vec<T> {
    let all = T::value_variants().iter().copied();
    all.filter(|value| chosen.is_empty() || chosen.contains(value)).collect()
}

/// Runs what the arguments select.
pub fn run(args: &InprocessArgs) -> Results {
    let plan = Plan::new(args);
    let load_before = load();
    let memory = Memory::measure(&plan.subjects, &plan.workloads);
    let full_log_bytes =
        plan.subjects.contains(&Kind::TidegateLog100).then(rss::full_log_bytes).flatten();
    let rows = plan
        .workloads
        .iter()
        .flat_map(|&workload| run_workload(&plan, workload, &memory))
        .collect();
    Results {
        rows,
        full_log_bytes,
        subjects: plan.subjects,
        repeats: plan.repeats,
        decisions: plan.decisions,
        load_before,
        load_after: load(),
    }
}

/// A subject in a run, with what is needed to tell what it should admit.
struct Contestant {
    kind: Kind,
    subject: Box<dyn Subject>,
    /// For a subject that denies in the course of a run: what each key was admitted.
    used: Option<Vec<u8>>,
}

impl Contestant {
    fn new(kind: Kind, workload: Workload) -> Self {
        let used = kind.admits_per_key().map(|_| vec![0; workload.pool() as usize]);
        let mut contestant = Contestant { kind, subject: kind.build(workload.pool()), used };
        contestant.fill(workload.keys());
        contestant
    }

    /// Charges every key once and asserts that each was new and is held.
    fn fill(&mut self, keys: u32) {
        const CHUNK: usize = 1 << 16;
        let mut numbers = 0..keys;
        loop {
            let accesses: Vec<u32> = numbers.by_ref().take(CHUNK).collect();
            if accesses.is_empty() {
                break;
            }
            self.pass(&Pass { accesses: &accesses, threads: 1, mode: Mode::Single });
        }
        self.assert_tracked(keys);
    }

    /// Times a pass and asserts that exactly what should be admitted was.
    fn pass(&mut self, pass: &Pass<'_>) -> Outcome {
        let expected = self.expected(pass.accesses);
        let outcome = self.subject.pass(pass);
        assert_eq!(
            outcome.admitted,
            expected,
            "{} should admit {expected} of {} decisions",
            name_of(&self.kind),
            outcome.decisions
        );
        outcome
    }

    fn expected(&mut self, accesses: &[u32]) -> usize {
        let (Some(used), Some(cap)) = (&mut self.used, self.kind.admits_per_key()) else {
            return accesses.len();
        };
        let mut admits = 0;
        for &number in accesses {
            let used = &mut used[number as usize];
            if *used < cap {
                *used += 1;
                admits += 1;
            }
        }
        admits
    }

    fn assert_tracked(&self, keys: u32) {
        if let Some(tracked) = self.subject.tracked_keys() {
            let name = name_of(&self.kind);
            assert_eq!(tracked, u64::from(keys), "{name} should hold {keys} keys");
        }
    }
}

/// What one subject took in one cell, repeat by repeat.
#[derive(Default)]
struct Samples {
    ns: Vec<f64>,
    per_second: Vec<f64>,
    total: Outcome,
}

impl Samples {
    fn push(&mut self, outcome: Outcome) {
        let decisions = outcome.decisions as f64;
        self.ns.push(outcome.busy.as_secs_f64() * 1e9 / decisions);
        self.per_second.push(decisions / outcome.wall.as_secs_f64());
        self.total = self.total.then(outcome);
    }
}

fn run_workload(plan: &Plan, workload: Workload, memory: &Memory) -> Vec<Row> {
    let name = name_of(&workload);
    let mut accesses = Accesses::draw(workload, plan.decisions);
    eprintln!("{name}: {} distinct keys a round; filling", accesses.distinct());
    let kinds = plan.subjects.iter().copied();
    let kinds =
        kinds.filter(|kind| plan.cells.iter().any(|&(_, mode)| kind.takes_part(workload, mode)));
    let mut contestants: Vec<_> = kinds.map(|kind| Contestant::new(kind, workload)).collect();
    let count = contestants.len();
    let rounds = plan.decisions / workload.round(plan.decisions);
    let mut samples: Vec<Vec<Samples>> = Vec::new();
    samples.resize_with(plan.cells.len(), || (0..count).map(|_| Samples::default()).collect());
    let mut round = 0;

    for repeat in 0..plan.repeats {
        eprintln!("{name}: repeat {} of {}", repeat + 1, plan.repeats);
        for (&(threads, mode), samples) in plan.cells.iter().zip(&mut samples) {
            let mut outcomes = vec![Outcome::default(); count];
            for _ in 0..rounds {
                let accesses = accesses.of_round(round);
                round += 1;
                for at in (0..count).map(|at| (at + repeat) % count) {
                    let contestant = &mut contestants[at];
                    if contestant.kind.takes_part(workload, mode) {
                        let accesses = &accesses[..accesses.len() / contestant.kind.share()];
                        let pass = Pass { accesses, threads: usize::from(threads), mode };
                        outcomes[at] = outcomes[at].then(contestant.pass(&pass));
                    }
                }
            }
            for (samples, outcome) in samples.iter_mut().zip(outcomes) {
                samples.push(outcome);
            }
        }
    }
    assert_still_tracked(workload, &contestants);

    let mut rows = Vec::new();
    for (&(threads, mode), samples) in plan.cells.iter().zip(&samples) {
        for (contestant, samples) in contestants.iter().zip(samples) {
            if contestant.kind.takes_part(workload, mode) {
                let bytes_per_key = memory.bytes_per_key(contestant.kind, workload);
                rows.push(row(workload, (threads, mode), contestant.kind, samples, bytes_per_key));
            }
        }
    }
    rows
}

/// Nothing was lost or expired on the way (hot keys come and go by design).
fn assert_still_tracked(workload: Workload, contestants: &[Contestant]) {
    if workload != Workload::Hot {
        contestants.iter().for_each(|contestant| contestant.assert_tracked(workload.keys()));
    }
}

fn row(
    workload: Workload,
    (threads, mode): (u8, Mode),
    subject: Kind,
    samples: &Samples,
    bytes_per_key: Option<f64>,
) -> Row {
    let ns_per_decision = median(&samples.ns);
    let queued = samples.total.queued.as_secs_f64();
    let largest = samples.ns.iter().copied().fold(f64::MIN, f64::max);
    let smallest = samples.ns.iter().copied().fold(f64::MAX, f64::min);
    Row {
        workload,
        threads,
        mode,
        subject,
        ns_per_decision,
        spread: (largest - smallest) / ns_per_decision,
        per_second: median(&samples.per_second),
        bytes_per_key,
        admitted: samples.total.admitted as f64 / samples.total.decisions as f64,
        queued: queued / (queued + samples.total.busy.as_secs_f64()),
    }
}

/// The one in the middle.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// The machine's load averages: other work shows here and in the spread.
pub fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[9.0, 1.0, 5.0]), 5.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), 3.0);
    }

    #[test]
    #[should_panic(expected = "should hold 2 keys")]
    fn a_subject_that_loses_keys_is_caught() {
        let mut contestant = Contestant::new(Kind::Governor, Workload::Hot);
        contestant.pass(&Pass { accesses: &[1, 2], threads: 1, mode: Mode::Single });
        contestant.assert_tracked(2);
    }

    #[test]
    fn a_log_is_expected_to_deny_what_exceeds_it() {
        let mut contestant = Contestant::new(Kind::TidegateLog100, Workload::Hot);
        let accesses = [1; 160];
        let pass = Pass { accesses: &accesses, threads: 1, mode: Mode::Single };
        assert_eq!(contestant.pass(&pass).admitted, 100);
        assert_eq!(contestant.pass(&pass).admitted, 0);
    }
}
