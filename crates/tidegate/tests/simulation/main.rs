//! A deterministic simulation of nodes that share a store, on virtual time.
//!
//! Each node has the real code of the library: the limiter, the leases, the deny cache, batches,
//! the breaker and the client. The server runs the real scripts in the Lua interpreter of Redis.
//! Simulated are the network, the clocks, the commands that scripts call, and random numbers. So a
//! run depends on its seed alone, and a seed that fails can be repeated.
//!
//! - `scenario.rs`: what a seed decides: limits, traffic, faults, clocks;
//! - `network.rs`: virtual time, connections, delays;
//! - `server.rs`, `scripts.rs`: the server, and the interpreter of its scripts;
//! - `fleet.rs`: a run: nodes, callers and faults;
//! - `oracle.rs`: judges all answers, without code of the engine.
//!
//! `TIDEGATE_SIMULATION_SEEDS=100000 cargo test --release -p tidegate --features redis --test
//! simulation` runs many seeds, and `TIDEGATE_SIMULATION_SEED=7` runs them from that seed on.

#![allow(clippy::cast_possible_truncation, reason = "the numbers of a run are small")]

mod fleet;
mod network;
mod oracle;
mod scenario;
mod scripts;
mod server;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use fleet::{Run, Totals};
use scenario::Plan;
use scripts::{Interpreter, Mistake};

/// The number of seeds of an ordinary test run: half a minute without optimisation.
const SEEDS: u64 = 2_000;
/// The number of threads, each of which runs one seed after another.
const THREADS: u64 = 2;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs seeds. Returns the totals, and what is wrong in which seeds.
fn run_seeds(
    first: u64,
    seeds: u64,
    plan: impl Fn(u64) -> Plan + Sync,
    mistake: Option<Mistake>,
) -> (Totals, Vec<(u64, String)>) {
    let next = AtomicU64::new(first);
    let work = || {
        let interpreter = Interpreter::new(mistake);
        let (mut totals, mut problems) = (Totals::default(), Vec::new());
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= first + seeds {
                return (totals, problems);
            }
            match Run::run(&interpreter, plan(seed)) {
                Ok(done) => totals.add(&done),
                Err(problem) => problems.push((seed, problem)),
            }
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        let (mut totals, mut problems) = (Totals::default(), Vec::new());
        for thread in threads {
            let (done, found) = thread.join().expect("no run panics");
            totals.add(&done);
            problems.extend(found);
        }
        (totals, problems)
    })
}

#[test]
fn nodes_admit_at_most_the_documented_bounds() {
    let first = setting("TIDEGATE_SIMULATION_SEED").unwrap_or(0);
    let seeds = setting("TIDEGATE_SIMULATION_SEEDS").unwrap_or(SEEDS);
    let (totals, problems) = run_seeds(first, seeds, Plan::new, None);
    println!("{totals:?}");
    for (seed, problem) in &problems {
        println!("seed {seed}: {problem}");
    }
    assert!(problems.is_empty(), "{} seeds failed", problems.len());
    assert!(totals.leased > 0 && totals.deny_cached > 0 && totals.failed > 0, "all code is used");
}

/// A run depends on its seed alone.
#[test]
fn seeds_replay() {
    let (once, _) = run_seeds(0, 20, Plan::new, None);
    let (again, _) = run_seeds(0, 20, Plan::new, None);
    assert_eq!(once, again);
}

/// The oracle finds losses that it does not know of.
#[test]
fn undeclared_losses_are_found() {
    let plan = |seed| Plan { is_declared: false, ..Plan::new(seed) };
    let (_, problems) = run_seeds(0, 100, plan, None);
    assert!(!problems.is_empty());
}

/// The oracle finds mistakes in the scripts.
#[test]
fn mistakes_in_the_scripts_are_found() {
    let mistakes = [
        // Units of a lease are forgotten when it ends.
        ("past.charge(grant.units)", ""),
        // A lease ends for the store before it ends for the node.
        ("local deadline = now + duration", "local deadline = now + 1000"),
        // A run of equal requests is charged once.
        ("states[i].charge(times * asked[i])", "states[i].charge(asked[i])"),
    ];
    for mistake in mistakes {
        let is_found = |round: u64| {
            let (_, problems) = run_seeds(round * 100, 100, Plan::new, Some(mistake));
            !problems.is_empty()
        };
        assert!((0..10).any(is_found), "{mistake:?}");
    }
}
