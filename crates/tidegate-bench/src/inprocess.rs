//! Fills every subject, ages it, checks the set-up, then interleaves the timed passes.
//!
//! Deciding on a freshly filled table is cheaper than on one in use, because nothing in it is due
//! to expire. So untimed decisions are made until more than a window of virtual time has passed
//! and keys hold cells of several ages. Virtual time continues at the same rate while decisions
//! are timed. Each subject has its own virtual time, which advances with its decisions. A fast
//! subject therefore makes no more decisions per window than a slow one, and both admit the same
//! fraction.
//!
//! One repeat times every subject once on the same accesses, and each repeat starts with another
//! subject, so that disturbances of the machine affect all of them. A row is the median over the
//! repeats.

use clap::ValueEnum;

use crate::cli::{InprocessArgs, Mode, name_of};
use crate::measure::{Outcome, Pass, Schedule};
use crate::rss::{self, Memory};
use crate::subjects::{EPOCH_NS, Subject, SubjectKind};
use crate::workloads::{Accesses, WINDOW_NS, Workload};

/// Virtual time that passes before a subject is timed: one and a quarter windows.
const AGEING_NS: u64 = WINDOW_NS / 4 * 5;

/// Maximum difference of the admitted fractions of subjects with the same limit.
const MAX_ADMIT_DIFFERENCE: f64 = 0.03;

/// One row of the table.
pub struct Row {
    pub workload: Workload,
    pub threads: u8,
    pub mode: Mode,
    pub subject: SubjectKind,
    /// Processor time per decision, median over the repeats.
    pub ns_per_decision: f64,
    /// (largest - smallest) / median over the repeats.
    pub spread: f64,
    /// Decisions per second of all threads together, median over the repeats.
    pub per_second: f64,
    pub bytes_per_key: Option<f64>,
    /// Fraction of the decisions that were admitted.
    pub admitted: f64,
    /// Fraction of the time spent waiting for a processor; it is not in the figures above.
    pub queued: f64,
}

/// Results of a run.
pub struct Results {
    pub rows: Vec<Row>,
    /// Bytes per key of full logs, if measured.
    pub full_log_bytes: Option<f64>,
    pub subjects: Vec<SubjectKind>,
    pub repeats: usize,
    pub decisions: usize,
    pub load_before: String,
    pub load_after: String,
}

/// The selection from the command line, with the defaults filled in.
struct Plan {
    workloads: Vec<Workload>,
    subjects: Vec<SubjectKind>,
    cells: Vec<(u8, Mode)>,
    repeats: usize,
    decisions: usize,
}

impl Plan {
    fn new(args: &InprocessArgs) -> Self {
        let threads = if args.threads.is_empty() { vec![1, 2] } else { args.threads.clone() };
        let modes = selected_or_all(&args.mode);
        let cells = modes
            .iter()
            .flat_map(|&mode| threads.iter().map(move |&threads| (threads, mode)))
            .collect();
        Plan {
            workloads: selected_or_all(&args.workload),
            subjects: selected_or_all(&args.subject),
            cells,
            repeats: if args.quick { 3 } else { 5 },
            decisions: if args.quick { 1 << 19 } else { 1 << 21 },
        }
    }
}

/// Returns the chosen values in their declared order, or all values if none is chosen.
pub fn selected_or_all<T: ValueEnum + Copy + PartialEq>(chosen: &[T]) -> Vec<T> {
    let all = T::value_variants().iter().copied();
    all.filter(|value| chosen.is_empty() || chosen.contains(value)).collect()
}

/// Runs the selected workloads and subjects.
pub fn run(args: &InprocessArgs) -> Results {
    let plan = Plan::new(args);
    let load_before = load_average();
    let memory = Memory::measure(&plan.subjects, &plan.workloads);
    let full_log_bytes =
        plan.subjects.contains(&SubjectKind::TidegateLog100).then(rss::full_log_bytes).flatten();
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
        load_after: load_average(),
    }
}

/// A subject of a run with its virtual time.
struct TimedSubject {
    kind: SubjectKind,
    limiter: Box<dyn Subject>,
    schedule: Schedule,
}

impl TimedSubject {
    fn new(kind: SubjectKind, workload: Workload) -> Self {
        let step_ns = kind.limit().map_or(0, |limit| workload.step_ns(limit));
        let schedule = Schedule { start_ns: EPOCH_NS, step_ns };
        let mut subject = TimedSubject { kind, limiter: kind.build(workload.keys()), schedule };
        subject.fill(workload.keys());
        subject
    }

    /// Charges every key once and asserts that each key was new and is held.
    fn fill(&mut self, keys: u32) {
        const CHUNK: usize = 1 << 16;
        let mut numbers = 0..keys;
        loop {
            let accesses: Vec<u32> = numbers.by_ref().take(CHUNK).collect();
            if accesses.is_empty() {
                break;
            }
            let outcome = self.pass(&accesses, 1, Mode::Single);
            assert_eq!(
                outcome.admitted,
                accesses.len(),
                "{} denied a new key",
                name_of(&self.kind)
            );
        }
        self.assert_tracked(keys, keys);
    }

    /// Returns whether less than [`AGEING_NS`] of virtual time has passed. Subjects without
    /// virtual time are not aged.
    fn needs_ageing(&self) -> bool {
        self.schedule.step_ns > 0 && self.schedule.start_ns < EPOCH_NS + AGEING_NS
    }

    /// Decides every access and advances virtual time.
    fn pass(&mut self, accesses: &[u32], threads: u8, mode: Mode) -> Outcome {
        let pass = Pass { accesses, threads: usize::from(threads), mode, schedule: self.schedule };
        let outcome = self.limiter.pass(&pass);
        self.schedule.start_ns += accesses.len() as u64 * self.schedule.step_ns;
        outcome
    }

    fn assert_tracked(&self, least: u32, most: u32) {
        if let Some(tracked) = self.limiter.tracked_keys() {
            let name = name_of(&self.kind);
            let expected = u64::from(least)..=u64::from(most);
            assert!(expected.contains(&tracked), "{name} holds {tracked} of {most} keys");
        }
    }
}

/// Measurements of one subject in one table cell, one value per repeat.
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
    eprintln!("{name}: filling and ageing");
    let kinds = plan.subjects.iter().copied();
    let kinds =
        kinds.filter(|kind| plan.cells.iter().any(|&(_, mode)| kind.takes_part(workload, mode)));
    let mut subjects: Vec<_> = kinds.map(|kind| TimedSubject::new(kind, workload)).collect();
    let mut accesses = Accesses::new(workload);
    while subjects.iter().any(TimedSubject::needs_ageing) {
        let accesses = accesses.draw(plan.decisions);
        for subject in subjects.iter_mut().filter(|subject| subject.needs_ageing()) {
            subject.pass(accesses, 1, Mode::Single);
        }
    }
    let samples = measure(plan, workload, &mut subjects, &mut accesses);
    for subject in &subjects {
        // Keys without a decision in the last window may have expired.
        subject.assert_tracked(workload.keys() / 2, workload.keys());
    }

    let mut rows = Vec::new();
    for (&(threads, mode), samples) in plan.cells.iter().zip(&samples) {
        for (subject, samples) in subjects.iter().zip(samples) {
            if subject.kind.takes_part(workload, mode) {
                let bytes_per_key = memory.bytes_per_key(subject.kind, workload);
                rows.push(row(workload, (threads, mode), subject.kind, samples, bytes_per_key));
            }
        }
    }
    assert_equal_admit_ratios(&rows);
    rows
}

/// Times all subjects on the same accesses, one cell and one repeat at a time.
fn measure(
    plan: &Plan,
    workload: Workload,
    subjects: &mut [TimedSubject],
    accesses: &mut Accesses,
) -> Vec<Vec<Samples>> {
    let count = subjects.len();
    let mut samples: Vec<Vec<Samples>> = Vec::new();
    samples.resize_with(plan.cells.len(), || (0..count).map(|_| Samples::default()).collect());
    for repeat in 0..plan.repeats {
        eprintln!("{}: repeat {} of {}", name_of(&workload), repeat + 1, plan.repeats);
        for (&(threads, mode), samples) in plan.cells.iter().zip(&mut samples) {
            let accesses = accesses.draw(plan.decisions);
            for at in (0..count).map(|at| (at + repeat) % count) {
                let subject = &mut subjects[at];
                if subject.kind.takes_part(workload, mode) {
                    let accesses = &accesses[..accesses.len() / subject.kind.decisions_divisor()];
                    samples[at].push(subject.pass(accesses, threads, mode));
                }
            }
        }
    }
    samples
}

/// Asserts that subjects with the same limit admit the same fraction, and that subjects without
/// virtual time admit everything.
fn assert_equal_admit_ratios(rows: &[Row]) {
    for row in rows {
        let limit = row.subject.limit();
        let same = |other: &&Row| other.threads == row.threads && other.subject.limit() == limit;
        let expected = match limit {
            Some(_) => rows.iter().find(same).map_or(row.admitted, |other| other.admitted),
            None => 1.0,
        };
        let name = name_of(&row.subject);
        assert!(
            (row.admitted - expected).abs() <= MAX_ADMIT_DIFFERENCE,
            "{name} admitted {:.3} where {expected:.3} was expected",
            row.admitted
        );
    }
}

fn row(
    workload: Workload,
    (threads, mode): (u8, Mode),
    subject: SubjectKind,
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

/// Returns the median.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// Returns the load averages of the machine. Other work shows here and in the spread.
pub fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_value() {
        assert_eq!(median(&[9.0, 1.0, 5.0]), 5.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), 3.0);
    }

    #[test]
    #[should_panic(expected = "governor holds 3 of 2 keys")]
    fn detects_unexpected_number_of_keys() {
        let mut subject = TimedSubject::new(SubjectKind::Governor, Workload::Hot);
        subject.pass(&[1, 2], 1, Mode::Single);
        subject.assert_tracked(2, 2);
    }

    #[test]
    fn every_subject_admits_an_aged_key_at_half_its_limit() {
        for &kind in SubjectKind::value_variants() {
            let mut subject = TimedSubject::new(kind, Workload::Hot);
            for (threads, mode) in [(1, Mode::Single), (2, Mode::Single), (1, Mode::Batch32)] {
                if kind.takes_part(Workload::Hot, mode) {
                    let admitted = subject.pass(&[0; 2_048], threads, mode).admitted;
                    // A thread that is preempted just after reading the time decides late.
                    let least = if threads == 1 { 2_048 } else { 2_000 };
                    assert!(admitted >= least, "{kind:?} admitted {admitted} on {threads}");
                }
            }
            assert!(!subject.needs_ageing(), "{kind:?}");
        }
    }

    #[test]
    #[should_panic(expected = "tidegate admitted 0.500 where 1.000 was expected")]
    fn detects_different_admit_ratios() {
        let row = |subject, admitted| Row {
            workload: Workload::Hot,
            threads: 1,
            mode: Mode::Single,
            subject,
            ns_per_decision: 1.0,
            spread: 0.0,
            per_second: 1.0,
            bytes_per_key: None,
            admitted,
            queued: 0.0,
        };
        assert_equal_admit_ratios(&[
            row(SubjectKind::Governor, 1.0),
            row(SubjectKind::Tidegate, 0.5),
        ]);
    }
}
