//! Resident bytes per key.
//!
//! Memory that an earlier subject freed would hide what a later one takes, so
//! each subject is filled in a process of its own: this binary, run as
//! `rss-of SUBJECT KEYS`. What is counted is all that became resident between
//! creating the limiter and holding the last key: table, keys, state, slack.

use std::process::Command;

use crate::cli::{Mode, RssArgs, name_of};
use crate::measure::Pass;
use crate::subjects::{Kind, fill_log};
use crate::workloads::Workload;

/// Keys whose logs are filled to the brim for the memory bar of `sliding-log`.
const FULL_LOG_KEYS: u32 = 100_000;
/// Entries each of them holds.
pub const FULL_LOG_ENTRIES: u32 = 100;

/// Bytes per key by subject and number of keys.
pub struct Memory {
    measured: Vec<(Kind, u32, f64)>,
}

impl Memory {
    /// Measures every subject at the numbers of keys for which memory is reported.
    pub fn measure(subjects: &[Kind], workloads: &[Workload]) -> Self {
        let mut sizes: Vec<u32> = workloads.iter().filter_map(|&workload| size(workload)).collect();
        sizes.dedup();
        let mut measured = Vec::new();
        for keys in sizes {
            for &kind in subjects.iter().filter(|kind| kind.fits(keys)) {
                eprintln!("memory of {} with {keys} keys", name_of(&kind));
                if let Some(bytes) = in_child(kind, keys, 0) {
                    measured.push((kind, keys, bytes));
                }
            }
        }
        Memory { measured }
    }

    pub fn bytes_per_key(&self, kind: Kind, workload: Workload) -> Option<f64> {
        let keys = size(workload)?;
        let found = self.measured.iter().find(|&&(of, at, _)| of == kind && at == keys);
        found.map(|&(_, _, bytes)| bytes)
    }
}

/// The number of keys at which a workload reports memory: below a million, the
/// process itself would be most of what is seen.
fn size(workload: Workload) -> Option<u32> {
    Some(workload.keys()).filter(|&keys| keys >= 1_000_000)
}

/// Bytes per key of a `sliding-log` that holds [`FULL_LOG_ENTRIES`] entries.
pub fn full_log_bytes() -> Option<f64> {
    eprintln!("memory of full logs with {FULL_LOG_KEYS} keys");
    in_child(Kind::TidegateLog100, FULL_LOG_KEYS, FULL_LOG_ENTRIES)
}

fn in_child(kind: Kind, keys: u32, entries: u32) -> Option<f64> {
    let program = std::env::current_exe().ok()?;
    let output = Command::new(program)
        .args(["rss-of", &name_of(&kind), &keys.to_string(), "--entries", &entries.to_string()])
        .output()
        .ok()?;
    assert!(
        output.status.success(),
        "filling {} failed: {}",
        name_of(&kind),
        String::from_utf8_lossy(&output.stderr)
    );
    let bytes: f64 = String::from_utf8(output.stdout).ok()?.trim().parse().ok()?;
    bytes.is_finite().then_some(bytes)
}

/// Fills one subject in this process and returns its resident bytes per key
/// (not a number where the system does not tell).
pub fn measure_here(args: &RssArgs) -> f64 {
    const CHUNK: u32 = 1 << 16;
    let mut accesses: Vec<u32> = (0..CHUNK).collect();
    let before = resident_bytes();
    if args.entries > 0 {
        assert_eq!(args.subject, Kind::TidegateLog100, "only the log holds entries");
        let limiter = fill_log(args.keys, args.entries);
        let grown = grown_since(before);
        drop(limiter);
        return grown / f64::from(args.keys);
    }
    let mut subject = args.subject.build(args.keys);
    for start in (0..args.keys).step_by(CHUNK as usize) {
        accesses.clear();
        accesses.extend(start..args.keys.min(start.saturating_add(CHUNK)));
        let outcome = subject.pass(&Pass { accesses: &accesses, threads: 1, mode: Mode::Single });
        assert_eq!(outcome.admitted, accesses.len(), "filling admits every key");
    }
    let grown = grown_since(before);
    if let Some(tracked) = subject.tracked_keys() {
        assert_eq!(tracked, u64::from(args.keys), "every key is held");
    }
    grown / f64::from(args.keys)
}

fn grown_since(before: Option<f64>) -> f64 {
    match (before, resident_bytes()) {
        (Some(before), Some(after)) => after - before,
        _ => f64::NAN,
    }
}

fn resident_bytes() -> Option<f64> {
    resident_bytes_of("self")
}

/// What the kernel holds in memory for a process.
pub fn resident_bytes_of(process: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}
