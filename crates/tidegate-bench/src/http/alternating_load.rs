//! Alternating load: loads several servers one after the other, in short turns.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::sync::Notify;

use super::load::{Connection, LoadArgs, LoadReport, Target, TurnCounter, TurnResult, TurnTimer};
use super::wire::{Budget, Request};
use crate::workloads::Random;

/// Maximum number of repetitions of a turn that was disturbed by other programs.
const MAX_RETRIES: usize = 4;

/// Minimum number of uncounted rounds, which warm up connections and caches.
const WARM_ROUNDS: usize = 2;

/// Arguments for turns.
#[derive(Args, Clone, Debug)]
pub struct TurnArgs {
    /// Duration of a turn.
    #[arg(long, default_value_t = 0)]
    pub time_ms: u64,
    /// Number of turns of each server.
    #[arg(long, default_value_t = 1)]
    pub rounds: usize,
    /// Minimum time before turns are counted.
    #[arg(long, default_value_t = 0)]
    pub warm_ms: u64,
    /// Repeat a turn in which server and load waited for a processor for more than this fraction.
    #[arg(long, default_value_t = f64::MAX)]
    pub max_queued: f64,
    /// Never sleep during a turn.
    #[arg(long)]
    pub awake: bool,
}

/// Loads all targets in turns.
pub async fn run(args: &LoadArgs) -> io::Result<LoadReport> {
    let mut groups = Vec::new();
    for &target in &args.targets {
        groups.push(open(args, target).await?);
    }
    take_turns(&groups, &args.turn_args).await
}

/// Runs the turns of all servers. Each round starts with another server.
pub async fn take_turns(groups: &[WorkerGroup], turn_args: &TurnArgs) -> io::Result<LoadReport> {
    // Bounds the run on a machine that is never idle: then half the turns are kept although they
    // were disturbed, and the report says so.
    let mut retries_left = turn_args.rounds * groups.len();
    let mut report = LoadReport { turns: vec![Vec::new(); groups.len()], disturbed: 0 };
    let start = Instant::now();
    let warm = Duration::from_millis(turn_args.warm_ms);
    let mut warmed = 0;
    while warmed < WARM_ROUNDS || start.elapsed() < warm {
        for group in groups {
            group.turn(turn_args).await?;
        }
        warmed += 1;
    }
    for round in 0..turn_args.rounds {
        for at in 0..groups.len() {
            let at = (at + round) % groups.len();
            let (turn, disturbed) =
                groups[at].undisturbed_turn(turn_args, MAX_RETRIES.min(retries_left)).await?;
            report.disturbed += disturbed;
            retries_left -= disturbed;
            report.turns[at].push(turn);
        }
    }
    Ok(report)
}

/// The workers that load one server.
pub struct WorkerGroup {
    /// The server's process id.
    pub process: u32,
    pub gate: Rc<TurnGate>,
}

async fn open(args: &LoadArgs, target: Target) -> io::Result<WorkerGroup> {
    let gate = Rc::new(TurnGate::new(args.connections));
    for seed in 0..args.connections {
        let mut worker = Worker {
            connection: Connection::open(target.address).await?,
            target,
            request: Request::render(target.kind, Budget::Loose, target.address),
            random: Random(u64::from(seed)),
            keys: args.keys,
        };
        let gate = Rc::clone(&gate);
        tokio::task::spawn_local(async move {
            let failed = loop {
                gate.wait_open().await;
                if let Err(error) = worker.send(&gate).await {
                    break error;
                }
            };
            gate.fail(failed);
        });
    }
    Ok(WorkerGroup { process: target.process, gate })
}

impl WorkerGroup {
    /// Returns the first undisturbed turn, or the least disturbed one of a few, and the number of
    /// disturbed turns.
    async fn undisturbed_turn(
        &self,
        turn_args: &TurnArgs,
        retries: usize,
    ) -> io::Result<(TurnResult, usize)> {
        let mut best = self.turn(turn_args).await?;
        let mut disturbed = 0;
        while best.queued() > turn_args.max_queued && disturbed < retries {
            disturbed += 1;
            let again = self.turn(turn_args).await?;
            if again.queued() < best.queued() {
                best = again;
            }
        }
        Ok((best, disturbed))
    }

    /// Waits for the duration of a turn. With a dedicated processor, the thread never sleeps.
    ///
    /// On loopback the server wakes a sleeping load, which costs it more than a decision; and the
    /// slower the server, the more often the load sleeps. Over a network no server pays for that.
    async fn wait_turn(turn_args: &TurnArgs) {
        let time = Duration::from_millis(turn_args.time_ms);
        if !turn_args.awake {
            return tokio::time::sleep(time).await;
        }
        let start = Instant::now();
        while start.elapsed() < time {
            tokio::task::yield_now().await;
        }
    }

    /// Sends requests for the duration of a turn, then waits for the outstanding answers.
    async fn turn(&self, turn_args: &TurnArgs) -> io::Result<TurnResult> {
        self.gate.wait_idle().await?;
        self.gate.counter.replace(TurnCounter::new());
        let timer = TurnTimer::start(self.process)?;
        self.gate.open();
        Self::wait_turn(turn_args).await;
        self.gate.open.set(false);
        self.gate.wait_idle().await?;
        timer.finish(&self.gate.counter.borrow())
    }
}

/// State that a group shares with its workers. All of them run on one thread.
pub struct TurnGate {
    workers: u32,
    open: Cell<bool>,
    opened: Notify,
    waiting: Cell<u32>,
    changed: Notify,
    counter: RefCell<TurnCounter>,
    failure: RefCell<Option<io::Error>>,
}

impl TurnGate {
    pub fn new(workers: u32) -> Self {
        TurnGate {
            workers,
            open: Cell::new(false),
            opened: Notify::new(),
            waiting: Cell::new(0),
            changed: Notify::new(),
            counter: RefCell::new(TurnCounter::new()),
            failure: RefCell::new(None),
        }
    }

    fn open(&self) {
        self.open.set(true);
        self.opened.notify_waiters();
    }

    /// Waits until the gate is open.
    pub async fn wait_open(&self) {
        while !self.open.get() {
            self.waiting.set(self.waiting.get() + 1);
            if self.waiting.get() == self.workers {
                self.changed.notify_one();
            }
            self.opened.notified().await;
            self.waiting.set(self.waiting.get() - 1);
        }
    }

    /// Counts an answer that allows the request.
    pub fn count(&self, took: Duration) {
        self.counter.borrow().count(true, took);
    }

    /// Waits until all workers wait at the gate, or returns the error of one that failed.
    async fn wait_idle(&self) -> io::Result<()> {
        loop {
            if let Some(error) = self.failure.take() {
                return Err(error);
            }
            if self.waiting.get() == self.workers {
                return Ok(());
            }
            self.changed.notified().await;
        }
    }

    pub fn fail(&self, error: io::Error) {
        self.failure.replace(Some(error));
        self.changed.notify_one();
    }
}

struct Worker {
    connection: Connection,
    target: Target,
    request: Request,
    random: Random,
    keys: u32,
}

impl Worker {
    async fn send(&mut self, gate: &TurnGate) -> io::Result<()> {
        self.request.set_key(self.random.below(self.keys));
        let sent = Instant::now();
        let response = self.connection.send_request(&self.request).await?;
        if !response.allows(self.target.kind) {
            let body = String::from_utf8_lossy(response.body);
            return Err(io::Error::other(format!("not allowed: {}\n{body}", response.head)));
        }
        gate.count(sent.elapsed());
        Ok(())
    }
}
