//! A simulation of nodes that lease one key, on virtual time and with the real code of a node.
//!
//! Messages are delayed and lost, replies come too late, nodes crash, and their clocks drift within
//! the allowance. An oracle that does not use the algorithms judges every admission. A failing seed
//! is printed, and replays.
//!
//! `TIDEGATE_LEASE_SIMULATIONS=1000 cargo test --release --lib simulation` runs more seeds.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use tidegate_core::{Algorithm, Attempt, Cost, GrantId, LeasedState, Limit, Timestamp};

use super::super::lease_call::{LeaseOperation, LeaseReply};
use super::super::machine::NodeTime;
use super::key_leases::{EndedUnits, KeyLeases};

const NODES: usize = 3;
/// The virtual time at which a run begins.
const START_US: u64 = 1_700_000_000_000_000;
/// The virtual duration of a run: several windows.
const RUN_US: u64 = 3_500_000;
const TICK_US: u64 = 5_000;
/// The time after which a node no longer waits for a reply.
const TIMEOUT_US: u64 = 25_000;
/// The rate of the demand at which a node starts to lease.
const HOT_RATE: u64 = 320;

/// A small generator of random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, number: u64) -> bool {
        self.below(number) == 0
    }
}

/// An event, in the order of its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A request arrives at a node.
    Request(usize),
    /// A node looks at its leases.
    Tick(usize),
    /// A request, or the operations of a call, arrive at the store.
    StoreDecides(u64),
    StoreApplies(u64),
    /// The reply to a call arrives at its node, or is given up.
    Reply(u64),
    GiveUp(u64),
    Crash(usize),
}

/// A call of a node.
struct Call {
    node: usize,
    /// The number of times that the node had crashed when it sent the call.
    life: u32,
    operations: Vec<LeaseOperation>,
    reply: Option<LeaseReply>,
    /// Whether the node no longer waits for the reply.
    is_given_up: bool,
}

struct SimulatedNode {
    leases: KeyLeases,
    /// The clock of the node shows `1 - slow/10,000` of the time that passes.
    slow: u64,
    life: u32,
}

struct Simulation {
    random: Random,
    limit: Limit,
    now: u64,
    store: LeasedState,
    nodes: Vec<SimulatedNode>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    calls: HashMap<u64, Call>,
    ids: u64,
    oracle: Oracle,
    from_leases: u64,
    ended: EndedUnits,
}

impl Simulation {
    /// Creates a simulation. The clocks of the nodes are slow by up to `slow` parts in 10,000.
    fn new(text: &str, seed: u64, slow: u64) -> Self {
        let limit: Limit = text.parse().expect("a limit");
        let mut simulation = Simulation {
            random: Random(seed),
            limit,
            now: START_US,
            store: LeasedState::new(&limit),
            nodes: Vec::new(),
            events: BinaryHeap::new(),
            calls: HashMap::new(),
            ids: 0,
            oracle: Oracle::new(&limit),
            from_leases: 0,
            ended: EndedUnits::default(),
        };
        for node in 0..NODES {
            // The first clock is as slow as it may be.
            let slow = if node == 0 { slow } else { simulation.random.below(slow + 1) };
            let now = node_time(START_US, slow);
            let leases = KeyLeases::new(&limit, HOT_RATE, now);
            simulation.nodes.push(SimulatedNode { leases, slow, life: 0 });
            simulation.schedule(1, Event::Request(node));
            simulation.schedule(1, Event::Tick(node));
            if simulation.random.one_in(2) {
                let after = simulation.random.below(RUN_US);
                simulation.schedule(after, Event::Crash(node));
            }
        }
        simulation
    }

    fn schedule(&mut self, after_us: u64, event: Event) {
        self.events.push(Reverse((self.now + after_us, event)));
    }

    /// Runs to the end, or to the first window that holds too much. Returns the units that were
    /// admitted.
    fn run(&mut self) -> Result<u64, String> {
        while let Some(Reverse((at, event))) = self.events.pop() {
            if at > START_US + RUN_US {
                break;
            }
            self.now = at;
            match event {
                Event::Request(node) => self.request(node)?,
                Event::Tick(node) => {
                    self.send_operations(node);
                    self.schedule(TICK_US, Event::Tick(node));
                }
                Event::StoreDecides(units) => {
                    let attempt = Attempt::new(Cost::Ask(units), Timestamp::from_micros(self.now));
                    if self.store.decide(&self.limit, &attempt).allowed {
                        self.oracle.admit(units, self.now)?;
                    }
                }
                Event::StoreApplies(call) => self.apply(call),
                Event::Reply(call) => {
                    let Some(call) = self.calls.remove(&call) else { continue };
                    let (now, node) = self.node(call.node);
                    let is_awaited = node.life == call.life && !call.is_given_up;
                    if let Some(reply) = call.reply.filter(|_| is_awaited) {
                        node.leases.received(&reply, now, &mut EndedUnits::default());
                    }
                }
                Event::GiveUp(call) => {
                    let Some(call) = self.calls.get_mut(&call) else { continue };
                    call.is_given_up = true;
                    let (node, life) = (call.node, call.life);
                    let (now, node) = self.node(node);
                    if node.life == life {
                        node.leases.failed(now);
                    }
                }
                Event::Crash(node) => {
                    let limit = self.limit;
                    let (now, node) = self.node(node);
                    node.leases = KeyLeases::new(&limit, HOT_RATE, now);
                    node.life += 1;
                }
            }
        }
        Ok(self.oracle.total)
    }

    fn node(&mut self, node: usize) -> (NodeTime, &mut SimulatedNode) {
        let node = &mut self.nodes[node];
        (node_time(self.now, node.slow), node)
    }

    /// A request arrives at a node, and the next one is scheduled. Demand changes over time.
    fn request(&mut self, index: usize) -> Result<(), String> {
        let units = if self.random.one_in(8) { 1 + self.random.below(4) } else { 1 };
        let (now, node) = self.node(index);
        let (answer, is_due) = node.leases.apply(Cost::Ask(units), now);
        match answer {
            Some(_) => {
                self.from_leases += units;
                self.oracle.admit(units, self.now)?;
            }
            None => {
                let delay = self.delay();
                self.schedule(delay, Event::StoreDecides(units));
            }
        }
        if is_due {
            self.send_operations(index);
        }
        let phase = (self.now / 400_000 + index as u64) % 4;
        let gap = if phase == 0 { 4_000 } else { 600 };
        let next = 1 + self.random.below(gap);
        self.schedule(next, Event::Request(index));
        Ok(())
    }

    fn send_operations(&mut self, index: usize) {
        let id = GrantId(self.ids + 1);
        let now = node_time(self.now, self.nodes[index].slow);
        let node = &mut self.nodes[index];
        let operations = node.leases.operations(now, || id, &mut self.ended);
        if operations.is_empty() {
            return;
        }
        self.ids += 1;
        let call = Call {
            node: index,
            life: node.life,
            operations: operations.into_vec(),
            reply: None,
            is_given_up: false,
        };
        self.calls.insert(id.0, call);
        if !self.random.one_in(20) {
            let delay = self.delay();
            self.schedule(delay, Event::StoreApplies(id.0));
        }
        self.schedule(TIMEOUT_US, Event::GiveUp(id.0));
    }

    /// The store carries out a call, also one that was given up.
    fn apply(&mut self, id: u64) {
        let now = Timestamp::from_micros(self.now);
        let is_lost = self.random.one_in(20);
        let delay = self.delay();
        let Some(call) = self.calls.get_mut(&id) else { return };
        let mut grant = None;
        for operation in &call.operations {
            match operation {
                LeaseOperation::Grant(request) => {
                    grant = self.store.grant(&self.limit, request, now);
                }
                LeaseOperation::GiveBack(back) => {
                    self.store.give_back(&self.limit, back, now);
                }
                LeaseOperation::Reset => unreachable!("nodes do not send it"),
            }
        }
        let state = self.store.clone();
        call.reply = Some(LeaseReply { now, existed: true, state, grant });
        if !is_lost {
            self.schedule(delay, Event::Reply(id));
        }
    }

    /// The delay of a message: mostly short, sometimes longer than the timeout.
    fn delay(&mut self) -> u64 {
        match self.random.below(20) {
            0 => 1 + self.random.below(40_000),
            1 | 2 => 1 + self.random.below(5_000),
            _ => 1 + self.random.below(400),
        }
    }
}

/// The time on a node whose clocks are slow. All of them are, so that the wall clock does not end a
/// lease earlier.
fn node_time(now: u64, slow: u64) -> NodeTime {
    let passed = now - START_US;
    let shown = Timestamp::from_micros(passed - passed * slow / 10_000);
    NodeTime { monotonic: shown, wall: shown }
}

/// Judges admissions by the definition of each limit.
struct Oracle {
    limit: Limit,
    total: u64,
    /// The admissions of the last window, and their sum.
    rolling: VecDeque<(u64, u64)>,
    rolling_sum: u64,
    /// The index of the aligned window, and the sums of the one before and of this one.
    index: u64,
    previous: u64,
    current: u64,
    /// The debt of a token bucket in units of a window, and the time of it.
    debt: u128,
    at: u64,
}

impl Oracle {
    fn new(limit: &Limit) -> Self {
        Oracle {
            limit: *limit,
            total: 0,
            rolling: VecDeque::new(),
            rolling_sum: 0,
            index: 0,
            previous: 0,
            current: 0,
            debt: 0,
            at: START_US,
        }
    }

    fn admit(&mut self, units: u64, now: u64) -> Result<(), String> {
        let (window, count) = (self.limit.window_us(), self.limit.count());
        self.total += units;
        self.rolling.push_back((now, units));
        self.rolling_sum += units;
        while let Some(&(at, units)) = self.rolling.front()
            && at + window <= now
        {
            self.rolling.pop_front();
            self.rolling_sum -= units;
        }
        let index = now / window;
        if index > self.index {
            self.previous = if index == self.index + 1 { self.current } else { 0 };
            (self.index, self.current) = (index, 0);
        }
        self.current += units;
        let counted = match self.limit.algorithm() {
            Algorithm::FixedWindow => self.current,
            Algorithm::SlidingCounter => {
                self.current + self.previous * (window - now % window) / window
            }
            Algorithm::TokenBucket => return self.admit_to_bucket(units, now),
            _ => self.rolling_sum,
        };
        if counted <= count {
            return Ok(());
        }
        Err(format!("{counted} of {count} at {}", now - START_US))
    }

    fn admit_to_bucket(&mut self, units: u64, now: u64) -> Result<(), String> {
        let (window, count) = (u128::from(self.limit.window_us()), u128::from(self.limit.count()));
        let repaid = u128::from(now - self.at) * count;
        self.debt = self.debt.saturating_sub(repaid) + u128::from(units) * window;
        self.at = now;
        let most = u128::from(self.limit.capacity()) * window;
        // The store measures in whole microseconds, so at most one of them is repaid early.
        if self.debt <= most + count {
            return Ok(());
        }
        Err(format!("a debt of {} of {most}", self.debt))
    }
}

fn seeds() -> u64 {
    std::env::var("TIDEGATE_LEASE_SIMULATIONS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(10)
}

/// Limits below, at and above the demand of all nodes, which is about 8,000 in a second.
const LIMITS: [&str; 8] = [
    "3000 per 1s",
    "9000 per 1s",
    "2500 per 1s fixed-window",
    "2500 per 1s sliding-counter",
    "5000 per 1s token-bucket",
    "4000 per 1s token-bucket burst 400",
    "900 per 1s sliding-log",
    "20000 per 2s",
];

#[test]
fn nodes_never_admit_more_than_the_limit() {
    for text in LIMITS {
        let mut from_leases = 0;
        for seed in 0..seeds() {
            // A clock may be slow by one part in a thousand.
            let mut simulation = Simulation::new(text, seed, 10);
            if let Err(problem) = simulation.run() {
                panic!("{text}, seed {seed}: {problem}");
            }
            from_leases += simulation.from_leases;
        }
        assert!(from_leases > 0, "{text}: leases were used");
    }
}

/// The oracle finds clocks that are slower than the allowance.
#[test]
fn clocks_beyond_the_allowance_are_found() {
    let finds = |text: &str| (0..40).any(|seed| Simulation::new(text, seed, 5_000).run().is_err());
    assert!(LIMITS.iter().any(|text| finds(text)));
}
