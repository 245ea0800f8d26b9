//! The limiters that are measured, one adapter each.
//!
//! All are set up alike: 10^6 units per hour for each key, so that nothing is
//! denied and nothing expires while it is measured (`tidegate-log100` excepted,
//! whose limit is 100). All read their own default clock on every decision and
//! hand back all that their API answers.

mod floor;
mod governor;
mod limitador;
mod ours;
mod ratelimit;
mod throttlecrab;

pub use governor::Expiring as ExpiringGovernor;
pub use ours::{Expiring as ExpiringTidegate, fill_log};

use clap::ValueEnum;

use crate::cli::Mode;
use crate::measure::{Outcome, Pass};
use crate::workloads::Workload;

/// Units each key may take per [`PERIOD_SECS`]: the largest limit the bars allow.
const LIMIT: u32 = 1_000_000;

/// Longer than a run, so that no key expires between being filled and being timed.
const PERIOD_SECS: u32 = 3_600;

/// A limiter under measurement.
pub trait Subject {
    /// Decides and times every access of the pass.
    fn pass(&mut self, pass: &Pass<'_>) -> Outcome;

    /// How many keys it holds, if it can tell.
    fn tracked_keys(&self) -> Option<u64>;
}

/// Which limiter, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    #[value(name = "tidegate")]
    Tidegate,
    #[value(name = "tidegate-2limits")]
    TidegateTwoLimits,
    #[value(name = "tidegate-log100")]
    TidegateLog100,
    #[value(name = "tidegate-window")]
    TidegateWindow,
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

impl Kind {
    /// A fresh limiter with room for `keys` keys.
    pub fn build(self, keys: u32) -> Box<dyn Subject> {
        match self {
            Kind::Tidegate => Box::new(ours::counter(keys)),
            Kind::TidegateTwoLimits => Box::new(ours::two_limits(keys)),
            Kind::TidegateLog100 => Box::new(ours::log(keys)),
            Kind::TidegateWindow => Box::new(ours::window(keys)),
            Kind::Governor => Box::new(governor::as_users_get_it()),
            Kind::GovernorFoldhash => Box::new(governor::with_foldhash()),
            Kind::Throttlecrab => Box::new(throttlecrab::Throttlecrab::new()),
            Kind::Limitador => Box::new(limitador::Limitador::new(keys)),
            Kind::Ratelimit => Box::new(ratelimit::KeyedRatelimit::default()),
            Kind::Floor => Box::new(floor::Floor::new(keys)),
        }
    }

    /// Whether it takes part: only ours has a batch call for one limit a key,
    /// and limitador would need some 11 GB for ten million keys.
    pub fn takes_part(self, workload: Workload, mode: Mode) -> bool {
        let batches = matches!(self, Kind::Tidegate | Kind::TidegateLog100 | Kind::TidegateWindow);
        (mode == Mode::Single || batches) && self.fits(workload.keys())
    }

    /// Whether that many keys fit into an ordinary machine.
    pub fn fits(self, keys: u32) -> bool {
        self != Kind::Limitador || keys <= 1_000_000
    }

    /// The slowest subject gets this fraction of the decisions, or a run would
    /// mostly wait for it.
    pub fn share(self) -> usize {
        if self == Kind::Limitador { 32 } else { 1 }
    }

    /// How often a key is admitted before it is denied, where that is below what
    /// a run asks for.
    pub fn admits_per_key(self) -> Option<u8> {
        (self == Kind::TidegateLog100).then_some(ours::LOG_LIMIT)
    }

    /// What is measured, in one line.
    pub fn describe(self) -> String {
        match self {
            Kind::Tidegate => format!("check(): {}; {}", ours::COUNTER, ours::clock_name()),
            Kind::TidegateTwoLimits => {
                format!("check_all(): {} and {}, all or nothing", ours::COUNTER, ours::SECOND)
            }
            Kind::TidegateLog100 => {
                format!("check(): {}; denies a key's 101st ask, see admitted", ours::LOG)
            }
            Kind::TidegateWindow => format!("check(): {}", ours::WINDOW),
            Kind::Governor => {
                peer("governor", "RateLimiter::keyed: DashMap, SipHash, quanta clock")
            }
            Kind::GovernorFoldhash => peer("governor", "the same with foldhash for SipHash"),
            Kind::Throttlecrab => peer(
                "throttlecrab",
                "PeriodicStore, SystemTime::now(); takes &mut self: two threads share a Mutex",
            ),
            Kind::Limitador => peer(
                "limitador",
                "in memory, one variable; 1/32 of the decisions; sits out 10M (11 GB)",
            ),
            Kind::Ratelimit => {
                peer("ratelimit", "not keyed: a DashMap<String, Ratelimiter> as a user would")
            }
            Kind::Floor => {
                "a preallocated [AtomicU64] indexed by key number: no hash, clock or limit"
                    .to_owned()
            }
        }
    }
}

fn peer(name: &str, what: &str) -> String {
    format!("{name} {}: {what}", version(name))
}

/// The version of a dependency as the lock file has it: what was built.
pub fn version(name: &str) -> &'static str {
    const LOCK: &str = include_str!("../../../../Cargo.lock");
    let package = format!("\nname = \"{name}\"\nversion = \"");
    let after = LOCK.split_once(&package).map_or("", |(_, after)| after);
    after.split('"').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_versions_come_from_the_lock_file() {
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
        for &kind in Kind::value_variants() {
            for threads in [1, 2] {
                let mut subject = kind.build(500);
                let pass = Pass { accesses: &accesses, threads, mode: Mode::Single };
                let outcome = subject.pass(&pass);
                assert_eq!((outcome.decisions, outcome.admitted), (1_000, 1_000), "{kind:?}");
                let tracked = subject.tracked_keys().unwrap_or(500);
                assert_eq!(tracked, 500, "{kind:?} tracks {tracked} keys");
            }
        }
    }
}
