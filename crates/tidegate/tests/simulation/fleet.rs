//! A run: nodes with the code of the library, their callers, and the server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::redis::{ConnectError, RedisOptions, RedisStore};
use tidegate::unstable::redis::{Boxed, SimulatedMachine, SimulatedSocket};
use tidegate::{Check, Cost, Decided, Limit, Limiter, OnStoreFailure, Request};
use tidegate_core::Timestamp;
use tidegate_testkit::Random;
use tokio::runtime::Builder;

use super::network::{self, EPOCH_US, Event, Network, SharedNetwork, lock};
use super::oracle::{Answer, History, Loss, Refund};
use super::scenario::{Fault, Plan, Scenario};
use super::scripts::Interpreter;
use super::server::Server;

/// The time that passes when a node waits in a loop.
const MOMENT: Duration = Duration::from_micros(15);
/// The timers of tokio are rounded up to milliseconds.
const TIMER_US: u64 = 1_000;
/// The longest time that a caller waits: the deadline of the store, and the delays of timers.
const LONGEST_WAIT_US: u64 = 25_000 + 4 * TIMER_US;

/// The totals of some runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub runs: u64,
    pub requests: u64,
    pub admitted: u64,
    /// Requests that were answered from leases and from the deny cache, and those that failed.
    pub leased: u64,
    pub deny_cached: u64,
    pub failed: u64,
    /// The scripts that the server has run.
    pub scripts: u64,
    /// Changes with every answer.
    pub digest: u64,
}

impl Totals {
    pub fn add(&mut self, other: &Totals) {
        self.runs += other.runs;
        self.requests += other.requests;
        self.admitted += other.admitted;
        self.leased += other.leased;
        self.deny_cached += other.deny_cached;
        self.failed += other.failed;
        self.scripts += other.scripts;
        self.digest ^= other.digest;
    }
}

/// The machine of a node, from one start of it to the next.
struct NodeMachine {
    network: SharedNetwork,
    node: usize,
    slow_ppm: i64,
    state: Mutex<MachineState>,
}

struct MachineState {
    random: Random,
    /// The step of the wall clock.
    wall_step_us: i64,
    has_crashed: bool,
    /// The time of the last decision of the store that no caller has taken.
    decided: Option<Timestamp>,
}

impl SimulatedMachine for NodeMachine {
    fn connect(&self) -> Boxed<std::io::Result<Box<dyn SimulatedSocket>>> {
        if lock(&self.state).has_crashed {
            return Box::pin(std::future::pending());
        }
        Box::pin(network::connect(Arc::clone(&self.network), self.node))
    }

    fn clocks(&self) -> (u64, u64) {
        let passed = i64::try_from(lock(&self.network).now()).expect("a short run");
        let shown = passed - (passed * self.slow_ppm).div_euclid(1_000_000);
        let shown = u64::try_from(shown).expect("a time after the start");
        let step = lock(&self.state).wall_step_us;
        (shown, (EPOCH_US + shown).saturating_add_signed(step))
    }

    fn random(&self) -> u64 {
        let mut state = lock(&self.state);
        state.random.below(1 << 31) << 33 | state.random.below(1 << 31) << 2
    }

    fn pass_time(&self) -> Boxed<()> {
        Box::pin(tokio::time::advance(MOMENT))
    }

    fn decided(&self, at: Timestamp) {
        lock(&self.state).decided = Some(at);
    }
}

/// A node that runs.
#[derive(Clone)]
struct Node {
    machine: Arc<NodeMachine>,
    limiter: Arc<Limiter<RedisStore>>,
}

impl Node {
    async fn start(machine: Arc<NodeMachine>) -> Result<Self, ConnectError> {
        let options = RedisOptions { leases: true, ..RedisOptions::new("redis://server") };
        let simulated: Arc<dyn SimulatedMachine> = Arc::<NodeMachine>::clone(&machine);
        let store = RedisStore::connect_simulated(simulated, options).await?;
        let builder = Limiter::builder().on_store_failure(OnStoreFailure::Deny);
        let limiter = builder.build_with_store(store).expect("memory");
        Ok(Node { machine, limiter: Arc::new(limiter) })
    }

    /// Sends a request, and records the answer.
    async fn send(self, call: Call, fleet: Arc<Fleet>) {
        let names = ["first", "second"];
        let checks: Vec<Check<'_>> = call
            .keys
            .iter()
            .map(|key| Check::new(names[*key], &call.limits[*key], call.cost))
            .collect();
        let sent_us = fleet.server_clock();
        let sent_at = lock(&fleet.network).now();
        let verdict = self.limiter.decide_async(&Request::new(&checks)).await;
        let verdict = verdict.expect("a verdict");
        let (decided, has_crashed) = {
            let mut state = lock(&self.machine.state);
            (state.decided.take(), state.has_crashed)
        };
        let mut records = lock(&fleet.records);
        records.totals.requests += 1;
        records.longest_wait_us = records.longest_wait_us.max(lock(&fleet.network).now() - sent_at);
        let totals = &mut records.totals;
        totals.failed += u64::from(verdict.decided != Decided::Exact);
        totals.admitted += u64::from(verdict.allowed);
        let is_local = decided.is_none() && verdict.decided == Decided::Exact;
        totals.leased += u64::from(is_local && verdict.allowed);
        totals.deny_cached += u64::from(is_local && !verdict.allowed);
        let clock_us = decided.map_or_else(|| fleet.server_clock(), |at| at.as_micros());
        let words =
            [clock_us, u64::from(verdict.allowed), verdict.decision().map_or(0, |it| it.remaining)];
        for word in words {
            totals.digest =
                (totals.digest.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
        for (index, &key) in call.keys.iter().enumerate() {
            match call.cost {
                // The refund takes effect whatever the answer is, or may have.
                Cost::Refund(units) => {
                    records.history.refunds.push(Refund { sent_us, key, units });
                }
                Cost::Ask(units) | Cost::Force(units) if !has_crashed => {
                    let answer = Answer {
                        clock_us,
                        at: fleet.true_time(clock_us),
                        key,
                        units,
                        is_allowed: verdict.allowed,
                        is_leased: is_local,
                        remaining: verdict.decisions()[index].remaining,
                    };
                    records.history.answers.push(answer);
                }
                // Nobody gets the answers of a node that has crashed.
                Cost::Ask(_) | Cost::Force(_) => {}
            }
        }
    }
}

/// A request of a caller.
struct Call {
    keys: Vec<usize>,
    limits: Arc<[Limit]>,
    cost: Cost,
}

/// What all tasks of a run share.
struct Fleet {
    network: SharedNetwork,
    records: Mutex<Records>,
    /// The step of the server's clock, and the true time of it.
    clock_step: Mutex<(u64, i64)>,
}

#[derive(Default)]
struct Records {
    history: History,
    totals: Totals,
    longest_wait_us: u64,
    /// Why a node did not start. A server that cannot be reached is not a reason.
    start_error: Option<ConnectError>,
}

impl Fleet {
    /// The clock of the server now.
    fn server_clock(&self) -> u64 {
        let (_, step) = *lock(&self.clock_step);
        (EPOCH_US + lock(&self.network).now()).saturating_add_signed(step)
    }

    /// The true time at which the clock of the server last showed a time.
    fn true_time(&self, clock_us: u64) -> u64 {
        let now = lock(&self.network).now();
        let (stepped_at, step) = *lock(&self.clock_step);
        let after = clock_us.saturating_add_signed(-step).saturating_sub(EPOCH_US);
        let before = clock_us.saturating_sub(EPOCH_US);
        if step == 0 || (stepped_at..=now).contains(&after) { after } else { before }
    }
}

/// A run with one seed.
pub struct Run<'i> {
    plan: Plan,
    server: Server<'i>,
    fleet: Arc<Fleet>,
    /// The nodes; `None` while one starts.
    nodes: Vec<Arc<Mutex<Option<Node>>>>,
    limits: [Arc<[Limit]>; 2],
    sent: u64,
}

impl<'i> Run<'i> {
    /// Runs a seed. Returns the totals, or what is wrong.
    pub fn run(interpreter: &'i Interpreter, plan: Plan) -> Result<Totals, String> {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime");
        runtime.block_on(async {
            let mut run = Run::new(interpreter, plan);
            run.drive().await;
            run.judge()
        })
    }

    fn new(interpreter: &'i Interpreter, mut plan: Plan) -> Self {
        let random = Random(plan.random.below(1 << 31));
        let network = Network::new(random, plan.latency, plan.slow_ppm.len());
        let network = Arc::new(Mutex::new(network));
        let parse = |text: &str| text.parse::<Limit>().expect("a limit");
        let before = plan.limits.iter().map(|limit| parse(&limit.text)).collect();
        let after =
            plan.limits.iter().map(|limit| parse(limit.changed.as_ref().unwrap_or(&limit.text)));
        let after = after.collect();
        Run {
            server: Server::new(interpreter, plan.replication_us),
            fleet: Arc::new(Fleet {
                network,
                records: Mutex::default(),
                clock_step: Mutex::default(),
            }),
            nodes: plan.slow_ppm.iter().map(|_| Arc::default()).collect(),
            limits: [before, after],
            sent: 0,
            plan,
        }
    }

    async fn drive(&mut self) {
        for node in 0..self.nodes.len() {
            self.start_node(node);
        }
        self.schedule_plan();
        let changed = lock(&self.fleet.network).changed();
        loop {
            let (now, next) = {
                let network = lock(&self.fleet.network);
                (network.now(), network.next_at().map_or(self.plan.end, |at| at.min(self.plan.end)))
            };
            if now >= self.plan.end {
                return;
            }
            if next <= now {
                let due = lock(&self.fleet.network).take_due();
                due.into_iter().for_each(|event| self.happen(event));
            } else if next - now > 2 * TIMER_US {
                // The paused clock moves to the next timer of any task when no task is ready.
                let sleep = tokio::time::sleep(Duration::from_micros(next - now - TIMER_US));
                tokio::select! {
                    biased;
                    () = changed.notified() => {}
                    () = sleep => {}
                }
            } else {
                // Tasks that are ready run first, and may schedule an earlier event.
                for _ in 0..3 {
                    tokio::task::yield_now().await;
                }
                let next = lock(&self.fleet.network).next_at().unwrap_or(next);
                let now = lock(&self.fleet.network).now();
                if next > now {
                    tokio::time::advance(Duration::from_micros(next - now)).await;
                }
            }
        }
    }

    fn schedule_plan(&mut self) {
        let mut network = lock(&self.fleet.network);
        for burst in &self.plan.bursts {
            for node in 0..self.nodes.len() {
                let mut at = burst.begin + network.random.below(5_000);
                for _ in 0..burst.requests {
                    network.schedule(at, Event::Request(node));
                    at += 1 + network.random.below(burst.gap_us);
                }
            }
        }
        for (index, (at, _)) in self.plan.faults.iter().enumerate() {
            network.schedule(*at, Event::Fault(index));
        }
    }

    /// Starts a node in the background: it can be used when its store is connected.
    fn start_node(&mut self, node: usize) {
        let random = Random(lock(&self.fleet.network).random.below(1 << 31));
        let state = MachineState { random, wall_step_us: 0, has_crashed: false, decided: None };
        let machine = Arc::new(NodeMachine {
            network: Arc::clone(&self.fleet.network),
            node,
            slow_ppm: self.plan.slow_ppm[node],
            state: Mutex::new(state),
        });
        let slot = Arc::clone(&self.nodes[node]);
        let fleet = Arc::clone(&self.fleet);
        tokio::spawn(async move {
            match Node::start(machine).await {
                Ok(started) => *lock(&slot) = Some(started),
                Err(error) => lock(&fleet.records).start_error = Some(error),
            }
        });
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive(connection, bytes) => {
                let clock_us = self.fleet.server_clock();
                let mut network = lock(&self.fleet.network);
                let now = network.now();
                let Some(received) = network.arrived(connection, bytes) else { return };
                let replies = self.server.execute(received, now, clock_us);
                network.reply(connection, replies);
            }
            Event::Deliver(connection, bytes) => {
                lock(&self.fleet.network).deliver(connection, bytes);
            }
            Event::Request(node) => self.request(node),
            Event::Fault(index) => self.inject(self.plan.faults[index].1),
        }
    }

    fn request(&mut self, node: usize) {
        let Some(node) = lock(&self.nodes[node]).clone() else { return };
        let random = &mut self.plan.random;
        let key = random.below(self.plan.limits.len() as u64) as usize;
        let keys =
            if random.below(6) == 0 { (0..self.plan.limits.len()).collect() } else { vec![key] };
        let units = if random.below(8) == 0 { 1 + random.below(4) } else { 1 };
        let is_refund = self.plan.refund_one_in > 0 && random.below(self.plan.refund_one_in) == 0;
        let cost = if is_refund { Cost::Refund(1) } else { Cost::Ask(units) };
        // Nodes read a changed configuration at different times.
        let jitter = node.machine.node as u64 * 3_000;
        let is_changed = lock(&self.fleet.network).now() > self.plan.change_at + jitter;
        let limits = Arc::clone(&self.limits[usize::from(is_changed)]);
        self.sent += 1;
        tokio::spawn(node.send(Call { keys, limits, cost }, Arc::clone(&self.fleet)));
    }

    fn inject(&mut self, fault: Fault) {
        let now = lock(&self.fleet.network).now();
        let lose = |loss: Loss| {
            let losses = &mut lock(&self.fleet.records).history.losses;
            losses.extend(Some(loss).filter(|_| self.plan.is_declared));
        };
        match fault {
            Fault::Break(node) => lock(&self.fleet.network).break_connections(node),
            Fault::CutOff(node, lasts_us) => lock(&self.fleet.network).cut_off(node, lasts_us),
            Fault::Crash(node) => {
                // A node that still starts does not crash.
                let Some(crashed) = lock(&self.nodes[node]).take() else { return };
                lock(&crashed.machine.state).has_crashed = true;
                lock(&self.fleet.network).break_connections(node);
                self.start_node(node);
            }
            Fault::Restart(node) => {
                let Some(stopped) = lock(&self.nodes[node]).take() else { return };
                tokio::spawn(async move { stopped.limiter.store().give_back_leases().await });
                self.start_node(node);
            }
            Fault::SetNodeClock(node, by_us) => {
                if let Some(node) = &*lock(&self.nodes[node]) {
                    lock(&node.machine.state).wall_step_us += by_us;
                }
            }
            Fault::FlushScripts => self.server.flush_scripts(),
            Fault::FlushKeys => {
                lose(Loss::Everything { at: now });
                self.server.flush_keys();
            }
            Fault::FailOver => {
                lose(Loss::Writes { at: now, of_last_us: self.plan.replication_us });
                self.server.fail_over(now);
                lock(&self.fleet.network).break_all();
            }
            Fault::SetServerClock(by_us) => {
                lose(Loss::ClockStep { at: now, is_back: by_us < 0 });
                *lock(&self.fleet.clock_step) = (now, by_us);
            }
        }
    }

    fn judge(&self) -> Result<Totals, String> {
        let Records { history, totals, longest_wait_us, start_error } = &*lock(&self.fleet.records);
        if let Some(error) = start_error {
            return Err(format!("a node did not start: {error}"));
        }
        for (key, limit) in self.plan.limits.iter().enumerate() {
            let judged = history.judge(key, &limit.definition).and_then(|()| {
                let is_plain = self.plan.scenario == Scenario::Sound
                    && self.plan.refund_one_in == 0
                    && limit.changed.is_none();
                if is_plain { history.judge_remaining(key, &limit.definition) } else { Ok(()) }
            });
            judged.map_err(|violation| {
                let Plan { scenario, faults, .. } = &self.plan;
                format!("{violation}; {scenario:?}, {limit:?}, {faults:?}")
            })?;
        }
        if totals.requests != self.sent {
            return Err(format!("{} of {} callers were answered", totals.requests, self.sent));
        }
        if *longest_wait_us > LONGEST_WAIT_US {
            return Err(format!("a caller waited for {longest_wait_us} us"));
        }
        Ok(Totals { runs: 1, scripts: self.server.scripts_run, ..*totals })
    }
}
