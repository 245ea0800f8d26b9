//! Servers taking turns at being asked.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::sync::Notify;

use super::load::{Connection, Counted, LoadArgs, Report, Tally, Target, Turn};
use super::wire::{Budget, Request};
use crate::workloads::Random;

/// A turn that somebody disturbed is made again, so often at most.
const TRIES: usize = 4;

/// Rounds that are not counted, in which connections and caches get warm; there may be more.
const WARM_ROUNDS: usize = 2;

/// How turns are made.
#[derive(Args, Clone, Debug)]
pub struct Pace {
    /// How long a turn is.
    #[arg(long, default_value_t = 0)]
    pub time_ms: u64,
    /// Turns of each server.
    #[arg(long, default_value_t = 1)]
    pub rounds: usize,
    /// Turns are not counted before so much time has passed.
    #[arg(long, default_value_t = 0)]
    pub warm_ms: u64,
    /// A turn in which somebody stood in line for longer than this part of it is made again.
    #[arg(long, default_value_t = f64::MAX)]
    pub max_queued: f64,
    /// Never sleep during a turn.
    #[arg(long)]
    pub awake: bool,
}

/// Asks all targets in turns.
pub async fn run(args: &LoadArgs) -> io::Result<Report> {
    let mut lanes = Vec::new();
    for &target in &args.targets {
        lanes.push(open(args, target).await?);
    }
    take_turns(&lanes, &args.pace).await
}

/// Lets all servers be asked in turns, starting with another one every round.
pub async fn take_turns(lanes: &[Lane], pace: &Pace) -> io::Result<Report> {
    // On a machine that is never quiet, half the turns are as they come; the report says so.
    let mut patience = pace.rounds * lanes.len();
    let mut report = Report { turns: vec![Vec::new(); lanes.len()], disturbed: 0 };
    let start = Instant::now();
    let warm = Duration::from_millis(pace.warm_ms);
    let mut warmed = 0;
    while warmed < WARM_ROUNDS || start.elapsed() < warm {
        for lane in lanes {
            lane.turn(pace).await?;
        }
        warmed += 1;
    }
    for round in 0..pace.rounds {
        for at in 0..lanes.len() {
            let at = (at + round) % lanes.len();
            let (turn, disturbed) = lanes[at].quiet_turn(pace, TRIES.min(patience)).await?;
            report.disturbed += disturbed;
            patience -= disturbed;
            report.turns[at].push(turn);
        }
    }
    Ok(report)
}

/// Those who ask one server.
pub struct Lane {
    /// The server's process.
    pub process: u32,
    pub gate: Rc<Gate>,
}

async fn open(args: &LoadArgs, target: Target) -> io::Result<Lane> {
    let gate = Rc::new(Gate::new(args.connections));
    for seed in 0..args.connections {
        let mut asker = Asker {
            connection: Connection::open(target.address).await?,
            target,
            request: Request::render(target.form, Budget::Loose, target.address),
            random: Random(u64::from(seed)),
            keys: args.keys,
        };
        let gate = Rc::clone(&gate);
        tokio::task::spawn_local(async move {
            let failed = loop {
                gate.pass().await;
                if let Err(error) = asker.ask(&gate).await {
                    break error;
                }
            };
            gate.fail(failed);
        });
    }
    Ok(Lane { process: target.process, gate })
}

impl Lane {
    /// The first turn that nobody disturbed, or the least disturbed of a few; and how many were.
    async fn quiet_turn(&self, pace: &Pace, tries: usize) -> io::Result<(Counted, usize)> {
        let mut best = self.turn(pace).await?;
        let mut disturbed = 0;
        while best.queued() > pace.max_queued && disturbed < tries {
            disturbed += 1;
            let again = self.turn(pace).await?;
            if again.queued() < best.queued() {
                best = again;
            }
        }
        Ok((best, disturbed))
    }

    /// Waits without ever letting the thread sleep, where it has a processor of its own.
    ///
    /// On loopback it is the server that wakes a sleeping load, which costs it more than a decision
    /// does; and the slower the server, the more often the load sleeps. Over a network no
    /// server pays for that.
    async fn stay_awake(pace: &Pace) {
        let time = Duration::from_millis(pace.time_ms);
        if !pace.awake {
            return tokio::time::sleep(time).await;
        }
        let start = Instant::now();
        while start.elapsed() < time {
            tokio::task::yield_now().await;
        }
    }

    /// Asks for as long as told, then waits for the answers that are still on their way.
    async fn turn(&self, pace: &Pace) -> io::Result<Counted> {
        self.gate.closed().await?;
        self.gate.tally.replace(Tally::new());
        let turn = Turn::begin(self.process)?;
        self.gate.open();
        Self::stay_awake(pace).await;
        self.gate.open.set(false);
        self.gate.closed().await?;
        turn.end(&self.gate.tally.borrow())
    }
}

/// What a lane shares with its askers. All run on one thread.
pub struct Gate {
    askers: u32,
    open: Cell<bool>,
    opened: Notify,
    waiting: Cell<u32>,
    changed: Notify,
    tally: RefCell<Tally>,
    failure: RefCell<Option<io::Error>>,
}

impl Gate {
    pub fn new(askers: u32) -> Self {
        Gate {
            askers,
            open: Cell::new(false),
            opened: Notify::new(),
            waiting: Cell::new(0),
            changed: Notify::new(),
            tally: RefCell::new(Tally::new()),
            failure: RefCell::new(None),
        }
    }

    fn open(&self) {
        self.open.set(true);
        self.opened.notify_waiters();
    }

    /// An asker waits here until the gate is open.
    pub async fn pass(&self) {
        while !self.open.get() {
            self.waiting.set(self.waiting.get() + 1);
            if self.waiting.get() == self.askers {
                self.changed.notify_one();
            }
            self.opened.notified().await;
            self.waiting.set(self.waiting.get() - 1);
        }
    }

    /// Counts an answer that allows.
    pub fn count(&self, took: Duration) {
        self.tally.borrow().count(true, took);
    }

    /// Waits until every asker does, or one has failed.
    async fn closed(&self) -> io::Result<()> {
        loop {
            if let Some(error) = self.failure.take() {
                return Err(error);
            }
            if self.waiting.get() == self.askers {
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

struct Asker {
    connection: Connection,
    target: Target,
    request: Request,
    random: Random,
    keys: u32,
}

impl Asker {
    async fn ask(&mut self, gate: &Gate) -> io::Result<()> {
        self.request.set_key(self.random.below(self.keys));
        let asked = Instant::now();
        let answer = self.connection.ask(&self.request).await?;
        if !answer.allows(self.target.form) {
            let body = String::from_utf8_lossy(answer.body);
            return Err(io::Error::other(format!("not allowed: {}\n{body}", answer.head)));
        }
        gate.count(asked.elapsed());
        Ok(())
    }
}
