//! Resident bytes per key.
//!
//! Memory that an earlier subject freed would hide the memory that a later one takes. So each
//! subject is filled in a separate process: this binary, run as `rss-of SUBJECT KEYS`. The figure
//! includes everything that became resident between creating the limiter and holding the last
//! key: table, keys, state and slack.
//!
//! Tables grow in steps, so a single number of keys may favour one of them. The figure for a
//! million keys is the mean of three numbers of keys, each with capacity for the largest.

use std::process::Command;

use crate::cli::{Mode, RssArgs, name_of};
use crate::measure::{Pass, Schedule};
use crate::subjects::{EPOCH_NS, SubjectKind, fill_log};
use crate::workloads::Workload;

/// Number of keys with completely filled logs, for the memory of a full `sliding-log`.
const FULL_LOG_KEYS: u32 = 100_000;
/// Entries of each full log.
pub const FULL_LOG_ENTRIES: u32 = 100;

/// Bytes per key by subject and workload.
pub struct Memory {
    measured: Vec<(SubjectKind, &'static [u32], f64)>,
}

impl Memory {
    /// Measures every subject at all numbers of keys for which memory is reported.
    pub fn measure(subjects: &[SubjectKind], workloads: &[Workload]) -> Self {
        let mut sizes: Vec<_> = workloads.iter().map(|&workload| sizes(workload)).collect();
        sizes.retain(|sizes| !sizes.is_empty());
        sizes.dedup();
        let mut measured = Vec::new();
        for sizes in sizes {
            for &kind in subjects.iter().filter(|kind| sizes.iter().all(|&keys| kind.fits(keys))) {
                eprintln!("measuring the memory of {} with {sizes:?} keys", name_of(&kind));
                let max_keys = sizes.iter().copied().max().unwrap_or_default();
                let bytes: Option<Vec<f64>> =
                    sizes.iter().map(|&keys| measure_in_child(kind, keys, max_keys, 0)).collect();
                if let Some(bytes) = bytes {
                    measured.push((kind, sizes, bytes.iter().sum::<f64>() / bytes.len() as f64));
                }
            }
        }
        Memory { measured }
    }

    pub fn bytes_per_key(&self, kind: SubjectKind, workload: Workload) -> Option<f64> {
        let found = self.measured.iter().find(|&&(of, at, _)| (of, at) == (kind, sizes(workload)));
        found.map(|&(_, _, bytes)| bytes)
    }
}

/// Returns the numbers of keys at which a workload reports memory. Below a million keys the
/// process itself would dominate the figure.
fn sizes(workload: Workload) -> &'static [u32] {
    match workload {
        Workload::Hot | Workload::TenThousand => &[],
        Workload::MillionUniform | Workload::MillionZipf => &[700_000, 1_000_000, 1_400_000],
        Workload::TenMillionUniform => &[10_000_000],
    }
}

/// Measures the bytes per key of a `sliding-log` that holds [`FULL_LOG_ENTRIES`] entries.
pub fn full_log_bytes() -> Option<f64> {
    eprintln!("measuring the memory of full logs with {FULL_LOG_KEYS} keys");
    measure_in_child(SubjectKind::TidegateLog100, FULL_LOG_KEYS, FULL_LOG_KEYS, FULL_LOG_ENTRIES)
}

fn measure_in_child(kind: SubjectKind, keys: u32, max_keys: u32, entries: u32) -> Option<f64> {
    let program = std::env::current_exe().ok()?;
    let output = Command::new(program)
        .args(["rss-of", &name_of(&kind), &keys.to_string()])
        .args(["--max-keys", &max_keys.to_string(), "--entries", &entries.to_string()])
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
/// (NaN where the system does not report resident memory).
pub fn measure_here(args: &RssArgs) -> f64 {
    const CHUNK: u32 = 1 << 16;
    let mut accesses: Vec<u32> = (0..CHUNK).collect();
    let before = resident_bytes();
    if args.entries > 0 {
        assert_eq!(
            args.subject,
            SubjectKind::TidegateLog100,
            "only the sliding-log subject holds entries"
        );
        let subject = fill_log(args.keys, args.entries);
        let grown = grown_since(before);
        drop(subject);
        return grown / f64::from(args.keys);
    }
    let mut subject = args.subject.build(args.max_keys.unwrap_or(args.keys));
    for start in (0..args.keys).step_by(CHUNK as usize) {
        accesses.clear();
        accesses.extend(start..args.keys.min(start.saturating_add(CHUNK)));
        let schedule = Schedule { start_ns: EPOCH_NS, step_ns: 0 };
        let pass = Pass { accesses: &accesses, threads: 1, mode: Mode::Single, schedule };
        let outcome = subject.pass(&pass);
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

/// Returns the resident bytes of a process, given its id or `self`.
pub fn resident_bytes_of(process: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}
