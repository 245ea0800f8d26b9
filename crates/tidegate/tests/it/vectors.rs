//! Golden vectors: worked examples as data, run on every host.
//!
//! A file of `tests/vectors/` is a list of cases. Its rows have the form `at_us  cost -> allowed
//! remaining  retry_after_us  reset_after_us`, where a cost is `3`, `peek`, `force 3`, `refund 2`,
//! or under a `concurrency` limit `1 as a`, `release a`, `renew a` (which yield `held` or `gone`).
//! The numbers were computed from the definitions, independently of the code. Every store
//! implements [`Host`].

use std::collections::HashMap;

use tidegate::{
    Acquired, Algorithm, Check, Cost, Decided, Decision, Limit, Limiter, ManualClock, Permit,
    PermitId, ResetAfter, RetryAfter,
};
use tidegate_core::{Attempt, State};

use crate::common::{at, limit};

const FILES: [(&str, &str); 11] = [
    ("doc-000", include_str!("../vectors/doc-000.txt")),
    ("doc-002", include_str!("../vectors/doc-002.txt")),
    ("doc-003", include_str!("../vectors/doc-003.txt")),
    ("doc-004", include_str!("../vectors/doc-004.txt")),
    ("cloudflare", include_str!("../vectors/cloudflare.txt")),
    ("sliding-log", include_str!("../vectors/sliding-log.txt")),
    ("sliding-window", include_str!("../vectors/sliding-window.txt")),
    ("sliding-counter", include_str!("../vectors/sliding-counter.txt")),
    ("fixed-window", include_str!("../vectors/fixed-window.txt")),
    ("token-bucket", include_str!("../vectors/token-bucket.txt")),
    ("concurrency", include_str!("../vectors/concurrency.txt")),
];

struct Case {
    name: String,
    limit: Limit,
    rows: Vec<Row>,
}

struct Row {
    line: String,
    at_us: u64,
    act: Act,
    expect: Expect,
}

#[derive(Clone, Copy)]
enum Act {
    /// A cost, and the letter that identifies its permit.
    Ask(Cost, char),
    Release(char),
    Renew(char),
}

#[derive(Debug, PartialEq, Eq)]
enum Expect {
    Decision(Decision),
    Held(bool),
}

/// Keeps the state of one key under one limit, and decides.
pub trait Host {
    fn decide_step(&mut self, at_us: u64, cost: Cost, permit: char) -> Decision;
    fn release(&mut self, at_us: u64, permit: char) -> bool;
    fn renew(&mut self, at_us: u64, permit: char) -> bool;
}

struct Core {
    limit: Limit,
    state: State,
}

impl Core {
    fn new(limit: Limit) -> Self {
        Core { limit, state: State::new(&limit) }
    }
}

impl Host for Core {
    fn decide_step(&mut self, at_us: u64, cost: Cost, permit: char) -> Decision {
        let attempt =
            Attempt { permit: PermitId(u64::from(permit)), ..Attempt::new(cost, at(at_us)) };
        self.state.decide(&self.limit, &attempt)
    }

    fn release(&mut self, at_us: u64, permit: char) -> bool {
        // An ended lease is removed when the state is next updated.
        self.state.advance_and_check(&self.limit, &Attempt::new(Cost::PEEK, at(at_us)));
        self.state.release(PermitId(u64::from(permit)))
    }

    fn renew(&mut self, at_us: u64, permit: char) -> bool {
        self.state.renew(&self.limit, PermitId(u64::from(permit)), at(at_us))
    }
}

/// The method of the limiter that runs a vector.
#[derive(Clone, Copy, Debug)]
enum WayIn {
    CheckAt,
    Clock,
    All,
    Batch,
}

/// The memory store, with other keys and limits in use.
struct Memory {
    limit: Limit,
    limiter: Limiter,
    clock: ManualClock,
    way_in: WayIn,
    permits: HashMap<char, Permit>,
}

impl Memory {
    fn new(limit: Limit, way_in: WayIn) -> Self {
        let clock = ManualClock::new(at(0));
        let limiter = Limiter::builder()
            .max_keys(10_000)
            .clock(clock.clock())
            .build()
            .expect("a small store");
        Memory { limit, limiter, clock, way_in, permits: HashMap::new() }
    }

    fn acquire(&mut self, check: &Check<'_>, permit: char) -> Decision {
        let acquired = self.limiter.acquire(&[*check]).expect("a valid request");
        let decision = acquired.verdict().decisions()[0];
        if let Acquired::Permit(held, _) = acquired {
            self.permits.insert(permit, held);
        }
        decision
    }
}

impl Host for Memory {
    fn decide_step(&mut self, at_us: u64, cost: Cost, permit: char) -> Decision {
        let limit = self.limit;
        let check = Check::new("key", &limit, cost);
        self.clock.set(at(at_us));
        if limit.algorithm() == Algorithm::Concurrency {
            return self.acquire(&check, permit);
        }
        let _ = self.limiter.check("another key", &limit, 1).expect("a valid check");
        match self.way_in {
            WayIn::CheckAt => {
                self.limiter.check_at(at(at_us), "key", &limit, cost).expect("a valid check")
            }
            WayIn::Clock => self.limiter.check("key", &limit, cost).expect("a valid check"),
            WayIn::All => self.limiter.check_all(&[check]).expect("a valid request").decisions()[0],
            WayIn::Batch => {
                let mut decisions = Vec::new();
                self.limiter.check_batch(&[check], &mut decisions).expect("a valid check");
                decisions[0]
            }
        }
    }

    /// Dropping a permit returns nothing, so a renewal shows whether it was still held.
    fn release(&mut self, at_us: u64, permit: char) -> bool {
        self.clock.set(at(at_us));
        self.permits.remove(&permit).is_some_and(|permit| permit.renew())
    }

    fn renew(&mut self, at_us: u64, permit: char) -> bool {
        self.clock.set(at(at_us));
        self.permits.get(&permit).is_some_and(Permit::renew)
    }
}

/// Runs every case on a new host.
pub fn run(host_name: &str, host: impl Fn(Limit) -> Box<dyn Host>) {
    let mut rows = 0;
    for (file, text) in FILES {
        for case in parse(text) {
            let mut host = host(case.limit);
            for row in &case.rows {
                let actual = match row.act {
                    Act::Ask(cost, permit) => {
                        Expect::Decision(host.decide_step(row.at_us, cost, permit))
                    }
                    Act::Release(permit) => Expect::Held(host.release(row.at_us, permit)),
                    Act::Renew(permit) => Expect::Held(host.renew(row.at_us, permit)),
                };
                let name = &case.name;
                assert_eq!(actual, row.expect, "{host_name}: {file}: {name}: {}", row.line);
                rows += 1;
            }
        }
    }
    assert!(rows > 400, "only {rows} rows were found");
}

#[test]
fn core_agrees_with_the_vectors() {
    run("core", |limit| Box::new(Core::new(limit)));
}

#[test]
fn every_path_of_the_memory_store_agrees_with_the_vectors() {
    for way_in in [WayIn::CheckAt, WayIn::Clock, WayIn::All, WayIn::Batch] {
        run(&format!("memory, {way_in:?}"), |limit| Box::new(Memory::new(limit, way_in)));
    }
}

fn parse(text: &str) -> Vec<Case> {
    let mut cases = Vec::<Case>::new();
    let mut name = "";
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        } else if let Some(value) = line.strip_prefix("case:") {
            name = value.trim();
        } else if let Some(value) = line.strip_prefix("limit:") {
            let name = name.to_owned();
            cases.push(Case { name, limit: limit(value.trim()), rows: Vec::new() });
        } else {
            let case = cases.last_mut().expect("a limit comes before its rows");
            let row = parse_row(line, &case.limit).unwrap_or_else(|| panic!("not a row: {line}"));
            case.rows.push(row);
        }
    }
    cases
}

fn parse_row(line: &str, limit: &Limit) -> Option<Row> {
    let (input, output) = line.split_once("->")?;
    let mut input = input.split_whitespace();
    let at_us = number(input.next()?)?;
    let act = parse_act(&input.collect::<Vec<_>>())?;
    let output: Vec<&str> = output.split_whitespace().collect();
    let expect = match output[..] {
        ["held"] => Expect::Held(true),
        ["gone"] => Expect::Held(false),
        [allowed @ ("yes" | "no"), remaining, retry_after, reset_after] => {
            Expect::Decision(Decision {
                allowed: allowed == "yes",
                limit: limit.count(),
                remaining: number(remaining)?,
                retry_after: match retry_after {
                    "never" => RetryAfter::Never,
                    wait => RetryAfter::from_micros(number(wait)?),
                },
                reset_after: ResetAfter::from_micros(number(reset_after)?),
                no_room: false,
                decided: Decided::Exact,
            })
        }
        _ => return None,
    };
    Some(Row { line: line.to_owned(), at_us, act, expect })
}

fn parse_act(words: &[&str]) -> Option<Act> {
    Some(match *words {
        ["peek"] => Act::Ask(Cost::PEEK, '-'),
        ["force", units] => Act::Ask(Cost::Force(number(units)?), '-'),
        ["refund", units] => Act::Ask(Cost::Refund(number(units)?), '-'),
        [units] => Act::Ask(Cost::Ask(number(units)?), '-'),
        [units, "as", permit] => Act::Ask(Cost::Ask(number(units)?), permit.chars().next()?),
        ["release", permit] => Act::Release(permit.chars().next()?),
        ["renew", permit] => Act::Renew(permit.chars().next()?),
        _ => return None,
    })
}

fn number(text: &str) -> Option<u64> {
    text.replace('_', "").parse().ok()
}
