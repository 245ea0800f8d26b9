//! The slowest single decisions while a table fills, expires and fills again.
//!
//! Every decision is timed alone. A pair of clock reads with nothing between them is timed in the
//! same way and in the same run. Its largest values are caused by the machine (interrupts, the
//! hypervisor) and not by a limiter. Time spent waiting for a processor used by others is
//! subtracted, as in `measure.rs`. Subjects alternate every [`TURN_KEYS`] keys, so that
//! disturbances affect all of them.

use std::fmt::Write;
use std::hash::RandomState;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::{Value, json};

use crate::histogram::Histogram;
use crate::measure::CpuWait;
use crate::report::{threshold_json, to_text, write_thresholds};
use crate::subjects::{COUNTER, EPOCH_NS, Governor, OneLimit, WINDOW, version};
use crate::thresholds::Threshold;
use crate::workloads::{WINDOW_NS, write_key};

/// Number of keys that one subject fills before the next subject continues.
const TURN_KEYS: u32 = 1 << 16;

/// One row: a subject in one phase.
pub struct Row {
    subject: &'static str,
    phase: &'static str,
    times: Histogram,
}

/// Results of a run.
pub struct Pauses {
    rows: Vec<Row>,
    /// Decisions for which tidegate found no free slot although keys had expired: it probes a
    /// few slots and not the whole table.
    overflowed: u64,
}

/// Virtual time between two decisions: ten million of them fit well within a window.
const STEP_NS: u64 = 1_000;

/// Fills `keys` keys, lets them expire and fills as many new ones.
pub fn run(keys: u32) -> Pauses {
    let floor: Vec<AtomicU64> = (0..keys).map(|_| AtomicU64::new(0)).collect();
    let governor = Governor::with_default_hasher();
    let tidegate = [("tidegate", WINDOW), ("tidegate-counter", COUNTER)]
        .map(|(name, limit)| (name, OneLimit::new(limit, keys)));
    let mut rows = Vec::new();
    let mut phase_ns = EPOCH_NS;
    for (phase, first) in [("fill", 0), ("refill", keys)] {
        if first > 0 {
            // A counter expires after two windows.
            phase_ns += u64::from(keys) * STEP_NS + 3 * WINDOW_NS;
            rows.push(time_governor_sweep(&governor, phase_ns));
        }
        let now_ns = |index| phase_ns + u64::from(index) * STEP_NS;
        let mut times: [Histogram; 5] = std::array::from_fn(|_| Histogram::new());
        let [empty, floors, governors, windows, counters] = &mut times;
        for start in (0..keys).step_by(TURN_KEYS as usize) {
            let turn = start..keys.min(start.saturating_add(TURN_KEYS));
            eprint!("\r{phase}: {start} of {keys} keys ");
            time_each(empty, turn.clone(), first, |_, _| true);
            time_each(floors, turn.clone(), first, |index, _| {
                black_box(floor[index as usize].fetch_add(1, Ordering::Relaxed)) < 2
            });
            time_each(governors, turn.clone(), first, |index, key| {
                governor.decide(now_ns(index), key)
            });
            for (times, (_, subject)) in [&mut *windows, &mut *counters].into_iter().zip(&tidegate)
            {
                let decide = |index, key: &String| subject.decide(now_ns(index), key);
                time_each(times, turn.clone(), first, decide);
            }
        }
        eprintln!();
        tidegate.iter().for_each(|(_, subject)| assert_all_held(subject, keys));
        let names =
            ["nothing", "floor", "governor"].into_iter().chain(tidegate.each_ref().map(|o| o.0));
        rows.extend(names.zip(times).map(|(subject, times)| Row { subject, phase, times }));
    }
    let overflowed = tidegate.iter().map(|(_, subject)| subject.stats().overflowed).sum();
    Pauses { rows, overflowed }
}

/// Asserts that every key of the phase is tracked or was counted as overflowed.
fn assert_all_held(subject: &OneLimit, keys: u32) {
    let stats = subject.stats();
    let (tracked, overflowed) = (stats.tracked_keys, stats.overflowed);
    assert!(
        tracked + overflowed >= u64::from(keys),
        "{tracked} keys held and {overflowed} overflowed of {keys}"
    );
}

/// Times the only way to drop expired keys from governor: all of them in one call.
fn time_governor_sweep(governor: &Governor<RandomState>, now_ns: u64) -> Row {
    let mut times = Histogram::new();
    let start = Instant::now();
    governor.sweep(now_ns);
    times.record(start.elapsed());
    Row { subject: "governor", phase: "retain_recent", times }
}

fn time_each<F>(times: &mut Histogram, turn: std::ops::Range<u32>, first: u32, mut decide: F)
where
    F: FnMut(u32, &String) -> bool,
{
    let mut key = String::new();
    let mut denied = 0;
    let mut cpu_wait = CpuWait::new();
    for index in turn {
        if index % 64 == 0 {
            cpu_wait.reset();
        }
        let staging = Instant::now();
        write_key(&mut key, first + index);
        cpu_wait.exclude_wait(staging.elapsed());
        let start = Instant::now();
        let allowed = decide(index, &key);
        times.record(cpu_wait.exclude_wait(start.elapsed()));
        denied += u32::from(!allowed);
    }
    assert_eq!(denied, 0, "the first request for a key was denied");
}

/// The reported percentiles, each with the N of "all but one in N".
const TAILS: [(&str, u64); 4] = [("p50", 2), ("p99", 100), ("p99.9", 1_000), ("p99.99", 10_000)];

/// Renders the readable report.
pub fn table(pauses: &Pauses) -> String {
    to_text(|text| write_table(text, pauses))
}

fn write_table(text: &mut String, pauses: &Pauses) -> std::fmt::Result {
    let governor = version("governor");
    writeln!(
        text,
        "ns of single decisions, each on a new key; governor {governor}; `nothing` is two clock reads"
    )?;
    write!(text, "{:<15}{:<17}{:>10}", "phase", "subject", "decisions")?;
    TAILS.iter().try_for_each(|(name, _)| write!(text, "{name:>12}"))?;
    writeln!(text, "{:>13}{:>9}{:>8}", "max", ">100us", ">1ms")?;
    for Row { subject, phase, times } in &pauses.rows {
        write!(text, "{phase:<15}{subject:<17}{:>10}", times.total)?;
        TAILS
            .iter()
            .try_for_each(|&(_, one_in)| write!(text, "{:>12}", times.all_but_one_in(one_in)))?;
        writeln!(text, "{:>13}{:>9}{:>8}", times.max_ns, times.over_100_us, times.over_1_ms)?;
    }
    writeln!(text, "tidegate found no room for {} of its decisions", pauses.overflowed)?;
    write_thresholds(text, &thresholds(pauses))
}

/// Compares both algorithms with governor. The thresholds are the values of `sliding-counter` when
/// all other states were kept outside of the table: the larger ratio of two runs on a shared
/// machine. A maximum is a single decision, so one run that misses its threshold says little.
fn thresholds(pauses: &Pauses) -> Vec<Threshold> {
    let of = |phase, subject| {
        let row = pauses.rows.iter().find(|row| (row.phase, row.subject) == (phase, subject));
        row.map(|row| [row.times.all_but_one_in(1_000) as f64, row.times.max_ns as f64])
    };
    let mut thresholds = Vec::new();
    for subject in ["tidegate", "tidegate-counter"] {
        for (phase, must) in [("fill", [2.8, 0.19]), ("refill", [2.06, 1.89])] {
            let ratio = of(phase, subject).zip(of(phase, "governor"));
            for (at, figure) in ["p99.9", "max"].into_iter().enumerate() {
                let name = format!("{subject} / governor, {phase}, {figure}");
                let measured = ratio.map(|(tidegate, peer)| tidegate[at] / peer[at]);
                thresholds.push(Threshold::at_most(&name, measured, Some(must[at]), None));
            }
        }
    }
    thresholds
}

/// Renders the report as JSON.
pub fn json(pauses: &Pauses) -> Value {
    let rows: Vec<Value> = pauses
        .rows
        .iter()
        .map(|Row { subject, phase, times }| {
            json!({
                "phase": phase,
                "subject": subject,
                "decisions": times.total,
                "p50_ns": times.all_but_one_in(2),
                "p99_ns": times.all_but_one_in(100),
                "p99_9_ns": times.all_but_one_in(1_000),
                "p99_99_ns": times.all_but_one_in(10_000),
                "max_ns": times.max_ns,
                "over_100_us": times.over_100_us,
                "over_1_ms": times.over_1_ms,
            })
        })
        .collect();
    let thresholds: Vec<Value> = thresholds(pauses).iter().map(threshold_json).collect();
    json!({ "rows": rows, "bars": thresholds, "overflowed": pauses.overflowed })
}
