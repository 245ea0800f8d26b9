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
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bars::Bar;
use crate::measure::CpuWait;
use crate::report::{bar_json, to_text, write_bars};
use crate::subjects::{COUNTER, EPOCH_NS, Governor, OneLimit, WINDOW, version};
use crate::workloads::{WINDOW_NS, write_key};

/// Number of keys that one subject fills before the next subject continues.
const TURN_KEYS: u32 = 1 << 16;

/// Number of steps per power of two of nanoseconds; neighbouring steps are 3 % apart.
const STEPS: u64 = 32;

/// Durations, counted on a logarithmic scale.
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max_ns: u64,
    over_100_us: u64,
    over_1_ms: u64,
}

impl Histogram {
    pub fn new() -> Self {
        Histogram { counts: vec![0; 64 * 32], total: 0, max_ns: 0, over_100_us: 0, over_1_ms: 0 }
    }

    /// Counts one duration.
    pub fn record(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counts[slot(ns)] += 1;
        self.total += 1;
        self.max_ns = self.max_ns.max(ns);
        self.over_100_us += u64::from(ns > 100_000);
        self.over_1_ms += u64::from(ns > 1_000_000);
    }

    /// Returns the time that all but one in `one_in` durations stay below: 100 is the 99th
    /// percentile.
    pub fn all_but_one_in(&self, one_in: u64) -> u64 {
        let below = self.total - self.total / one_in;
        let mut seen = 0;
        for (slot, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= below {
                return upper_ns(slot as u64).min(self.max_ns);
            }
        }
        self.max_ns
    }
}

/// Returns the index of the step that contains a time.
fn slot(ns: u64) -> usize {
    let ns = ns.max(STEPS);
    let power = u64::from(ns.ilog2() - STEPS.ilog2());
    let step = (ns >> power) - STEPS;
    usize::try_from(power * STEPS + step).expect("64 powers of 32 steps")
}

/// Returns the largest time of a step.
fn upper_ns(slot: u64) -> u64 {
    let (power, step) = (slot / STEPS, slot % STEPS);
    ((STEPS + step + 1) << power) - 1
}

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
    let ours = [("tidegate", WINDOW), ("tidegate-counter", COUNTER)]
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
            for (times, (_, subject)) in [&mut *windows, &mut *counters].into_iter().zip(&ours) {
                let decide = |index, key: &String| subject.decide(now_ns(index), key);
                time_each(times, turn.clone(), first, decide);
            }
        }
        eprintln!();
        ours.iter().for_each(|(_, subject)| assert_all_held(subject, keys));
        let names =
            ["nothing", "floor", "governor"].into_iter().chain(ours.each_ref().map(|o| o.0));
        rows.extend(names.zip(times).map(|(subject, times)| Row { subject, phase, times }));
    }
    let overflowed = ours.iter().map(|(_, subject)| subject.stats().overflowed).sum();
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
    write_bars(text, &bars(pauses))
}

/// Compares both algorithms with governor. The thresholds are the values of `sliding-counter` when
/// all other states were kept outside of the table: the larger ratio of two runs on a shared
/// machine. A maximum is a single decision, so one run that misses its threshold says little.
fn bars(pauses: &Pauses) -> Vec<Bar> {
    let of = |phase, subject| {
        let row = pauses.rows.iter().find(|row| (row.phase, row.subject) == (phase, subject));
        row.map(|row| [row.times.all_but_one_in(1_000) as f64, row.times.max_ns as f64])
    };
    let mut bars = Vec::new();
    for subject in ["tidegate", "tidegate-counter"] {
        for (phase, must) in [("fill", [2.8, 0.19]), ("refill", [2.06, 1.89])] {
            let ratio = of(phase, subject).zip(of(phase, "governor"));
            for (at, figure) in ["p99.9", "max"].into_iter().enumerate() {
                let name = format!("{subject} / governor, {phase}, {figure}");
                let measured = ratio.map(|(ours, theirs)| ours[at] / theirs[at]);
                bars.push(Bar::at_most(&name, measured, Some(must[at]), None));
            }
        }
    }
    bars
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
    let bars: Vec<Value> = bars(pauses).iter().map(bar_json).collect();
    json!({ "rows": rows, "bars": bars, "overflowed": pauses.overflowed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_contain_times_up_to_their_upper_end() {
        for ns in [32, 33, 63, 64, 65, 1_000, 123_456, 5_000_000_000] {
            let upper = upper_ns(slot(ns) as u64);
            assert!(upper >= ns && upper - ns <= ns / STEPS, "{ns} fell on a step up to {upper}");
            assert!(slot(upper) == slot(ns) && slot(upper + 1) > slot(ns));
        }
    }

    #[test]
    fn percentiles_include_rare_slow_values() {
        let mut times = Histogram::new();
        (0..9_990).for_each(|_| times.record(Duration::from_nanos(100)));
        (0..10).for_each(|_| times.record(Duration::from_micros(200)));
        assert!((100..104).contains(&times.all_but_one_in(100)));
        assert_eq!(times.all_but_one_in(10_000), 200_000);
        assert_eq!((times.max_ns, times.over_100_us, times.over_1_ms), (200_000, 10, 0));
    }
}
