//! The limiters that are measured: tidegate in `tidegate.rs`, the others in `peers.rs`.
//!
//! `tidegate` is a `sliding-window` of 600 per minute; governor and throttlecrab have the same
//! limit. They decide in virtual time, see `measure.rs`. limitador and ratelimit read the time
//! themselves, so they have a limit that a run does not reach. All of them return everything that
//! their API provides.

mod peers;
mod tidegate;

pub use peers::Governor;
pub use tidegate::{COUNTER, OneLimit, WINDOW, fill_log};

use clap::ValueEnum;

use crate::cli::Mode;
use crate::measure::{Outcome, Pass};
use crate::workloads::Workload;

/// Units per key and minute.
const LIMIT: u32 = 600;

/// Units per hour under limits that are not reached: more than the decisions of a run.
const UNREACHED_LIMIT: u32 = 1_000_000_000;
const UNREACHED_PERIOD_SECS: u64 = 3_600;

/// Start of virtual time, an arbitrary value.
pub const EPOCH_NS: u64 = 1_800_000_000_000_000_000;

/// A limiter under measurement.
pub trait Subject {
    /// Decides and times every access of the pass.
    fn pass(&mut self, pass: &Pass<'_>) -> Outcome;

    /// Returns the number of keys it holds, if it can report it.
    fn tracked_keys(&self) -> Option<u64>;
}

/// The limiters, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SubjectKind {
    #[value(name = "tidegate")]
    Tidegate,
    #[value(name = "tidegate-small")]
    TidegateSmall,
    #[value(name = "tidegate-counter")]
    TidegateCounter,
    #[value(name = "tidegate-2limits")]
    TidegateTwoLimits,
    #[value(name = "tidegate-4limits")]
    TidegateFourLimits,
    #[value(name = "tidegate-log100")]
    TidegateLog100,
    #[value(name = "governor")]
    Governor,
    #[value(name = "governor-foldhash")]
    GovernorFoldhash,
    #[value(name = "throttlecrab")]
    Throttlecrab,
    #[value(name = "limitador")]
    Limitador,
    #[value(name = "ratelimit")]
    Ratelimit,
    #[value(name = "floor")]
    Floor,
}

impl SubjectKind {
    /// Creates a limiter with capacity for `keys` keys.
    pub fn build(self, keys: u32) -> Box<dyn Subject> {
        match self {
            SubjectKind::Tidegate => Box::new(OneLimit::new(tidegate::WINDOW, keys)),
            SubjectKind::TidegateSmall => Box::new(OneLimit::new(tidegate::SMALL, keys)),
            SubjectKind::TidegateCounter => Box::new(OneLimit::new(tidegate::COUNTER, keys)),
            SubjectKind::TidegateTwoLimits => Box::new(tidegate::two_limits(keys)),
            SubjectKind::TidegateFourLimits => Box::new(tidegate::four_limits(keys)),
            SubjectKind::TidegateLog100 => Box::new(OneLimit::new(tidegate::LOG, keys)),
            SubjectKind::Governor => Box::new(Governor::with_default_hasher()),
            SubjectKind::GovernorFoldhash => Box::new(Governor::with_foldhash()),
            SubjectKind::Throttlecrab => Box::new(peers::Throttlecrab::new()),
            SubjectKind::Limitador => Box::new(peers::Limitador::new(keys)),
            SubjectKind::Ratelimit => Box::new(peers::KeyedRatelimit::default()),
            SubjectKind::Floor => Box::new(peers::Floor::new(keys)),
        }
    }

    /// Returns whether it is measured in this combination. Only tidegate has a batch call, and only
    /// for one limit per key.
    pub fn takes_part(self, workload: Workload, mode: Mode) -> bool {
        let batches = matches!(
            self,
            SubjectKind::Tidegate
                | SubjectKind::TidegateSmall
                | SubjectKind::TidegateCounter
                | SubjectKind::TidegateLog100
        );
        (mode == Mode::Single || batches) && self.fits(workload.keys())
    }

    /// Returns whether it is measured with this many keys. With ten million keys limitador would
    /// need some 11 GB, and the variants of tidegate would make a long run longer.
    pub fn fits(self, keys: u32) -> bool {
        let only_up_to_a_million = matches!(
            self,
            SubjectKind::TidegateSmall
                | SubjectKind::TidegateTwoLimits
                | SubjectKind::TidegateFourLimits
                | SubjectKind::TidegateLog100
                | SubjectKind::Limitador
        );
        keys < 10_000_000 || !only_up_to_a_million
    }

    /// Divisor of the number of decisions. The slowest subject makes fewer decisions; otherwise a
    /// run would mostly wait for it.
    pub fn decisions_divisor(self) -> usize {
        if self == SubjectKind::Limitador { 32 } else { 1 }
    }

    /// Returns the units per key and minute of virtual time, or `None` for subjects without virtual
    /// time, which admit everything.
    pub fn limit(self) -> Option<u32> {
        match self {
            SubjectKind::TidegateSmall => Some(20),
            SubjectKind::TidegateLog100 => Some(100),
            SubjectKind::Limitador | SubjectKind::Ratelimit | SubjectKind::Floor => None,
            _ => Some(LIMIT),
        }
    }

    /// Describes the subject in one line.
    pub fn describe(self) -> String {
        match self {
            SubjectKind::Tidegate => {
                format!("check: {}; {}", tidegate::WINDOW, tidegate::clock_name())
            }
            SubjectKind::TidegateSmall => format!("check: {}", tidegate::SMALL),
            SubjectKind::TidegateCounter => format!("check: {}", tidegate::COUNTER),
            SubjectKind::TidegateTwoLimits => {
                format!("check_all: {} and {}, all or nothing", tidegate::WINDOW, tidegate::BURST)
            }
            SubjectKind::TidegateFourLimits => {
                let [first, second] = tidegate::ORGANISATION;
                format!("these two on the user, and {first} and {second} on the organisation")
            }
            SubjectKind::TidegateLog100 => format!("check: {}", tidegate::LOG),
            SubjectKind::Governor => {
                peer("governor", "600 per minute; DashMap, SipHash, quanta clock")
            }
            SubjectKind::GovernorFoldhash => peer("governor", "the same with foldhash for SipHash"),
            SubjectKind::Throttlecrab => peer(
                "throttlecrab",
                "600 per minute; PeriodicStore, SystemTime::now(); two threads share a Mutex",
            ),
            SubjectKind::Limitador => peer(
                "limitador",
                "in memory, one variable, real time; 1/32 of the decisions; not with 10M",
            ),
            SubjectKind::Ratelimit => {
                peer("ratelimit", "not keyed: a DashMap<String, Ratelimiter>; real time")
            }
            SubjectKind::Floor => {
                "a preallocated [AtomicU64] indexed by key number: no hash, clock or limit"
                    .to_owned()
            }
        }
    }
}

fn peer(name: &str, detail: &str) -> String {
    format!("{name} {}: {detail}", version(name))
}

/// Returns the version of a dependency from the lock file, which is the version that was built.
pub fn version(name: &str) -> &'static str {
    const LOCK: &str = include_str!("../../../../Cargo.lock");
    let package = format!("\nname = \"{name}\"\nversion = \"");
    let after = LOCK.split_once(&package).map_or("", |(_, after)| after);
    after.split('"').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Schedule;

    #[test]
    fn reads_peer_versions_from_the_lock_file() {
        for (name, series) in [
            ("governor", "0.10."),
            ("throttlecrab", "0.4."),
            ("limitador", "0.14."),
            ("ratelimit", "2.0."),
        ] {
            assert!(version(name).starts_with(series), "{name} is {}", version(name));
        }
    }

    #[test]
    fn every_subject_admits_and_counts_its_keys() {
        let accesses: Vec<u32> = (0..1_000).map(|i| i % 500).collect();
        for &kind in SubjectKind::value_variants() {
            for threads in [1, 2] {
                let mut subject = kind.build(500);
                let schedule = Schedule { start_ns: EPOCH_NS, step_ns: 1_000 };
                let pass = Pass { accesses: &accesses, threads, mode: Mode::Single, schedule };
                let outcome = subject.pass(&pass);
                assert_eq!((outcome.decisions, outcome.admitted), (1_000, 1_000), "{kind:?}");
                let tracked = subject.tracked_keys().unwrap_or(500);
                assert_eq!(tracked, 500, "{kind:?} tracks {tracked} keys");
            }
        }
    }
}
