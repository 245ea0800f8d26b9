//! Servers taking turns at being asked.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::load::{Connection, Counted, LoadArgs, Report, Tally, Target, Turn};
use super::wire::{Budget, Request};
use crate::workloads::Random;

/// A turn that somebody disturbed is made again, so often at most.
const TRIES: usize = 4;

/// Rounds that are not counted, in which connections and caches get warm.
const WARM_ROUNDS: usize = 2;

/// Asks all targets in turns, starting with another one every round.
pub async fn run(args: &LoadArgs) -> io::Result<Report> {
    let mut lanes = Vec::new();
    for &target in &args.targets {
        lanes.push(Lane::open(args, target).await?);
    }
    // On a machine that is never quiet, half the turns are as they come; the report says so.
    let mut patience = args.rounds * lanes.len();
    let mut report = Report { turns: vec![Vec::new(); lanes.len()], disturbed: 0 };
    for round in 0..WARM_ROUNDS + args.rounds {
        for at in 0..lanes.len() {
            let at = (at + round) % lanes.len();
            let (turn, disturbed) = lanes[at].quiet_turn(args, TRIES.min(patience)).await?;
            report.disturbed += disturbed;
            patience -= disturbed;
            if round >= WARM_ROUNDS {
                report.turns[at].push(turn);
            }
        }
    }
    Ok(report)
}

/// The connections to one server.
struct Lane {
    target: Target,
    awake: bool,
    gate: Rc<Gate>,
}

impl Lane {
    async fn open(args: &LoadArgs, target: Target) -> io::Result<Self> {
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
                    if let Err(error) = asker.ask(&gate.tally).await {
                        break error;
                    }
                };
                gate.fail(failed);
            });
        }
        Ok(Lane { target, awake: args.awake, gate })
    }

    /// The first turn that nobody disturbed, or the least disturbed of a few; and how many were.
    async fn quiet_turn(&self, args: &LoadArgs, tries: usize) -> io::Result<(Counted, usize)> {
        let time = Duration::from_millis(args.time_ms);
        let mut best = self.turn(time).await?;
        let mut disturbed = 0;
        while best.queued() > args.max_queued && disturbed < tries {
            disturbed += 1;
            let again = self.turn(time).await?;
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
    async fn stay_awake(&self, time: Duration) {
        if !self.awake {
            return tokio::time::sleep(time).await;
        }
        let start = Instant::now();
        while start.elapsed() < time {
            tokio::task::yield_now().await;
        }
    }

    /// Asks for as long as told, then waits for the answers that are still on their way.
    async fn turn(&self, time: Duration) -> io::Result<Counted> {
        self.gate.closed().await?;
        self.gate.tally.replace(Tally::new());
        let turn = Turn::begin(self.target)?;
        self.gate.open();
        self.stay_awake(time).await;
        self.gate.open.set(false);
        self.gate.closed().await?;
        turn.end(&self.gate.tally.borrow())
    }
}

/// What a lane shares with its connections. All run on one thread.
struct Gate {
    connections: u32,
    open: Cell<bool>,
    opened: Notify,
    waiting: Cell<u32>,
    changed: Notify,
    tally: RefCell<Tally>,
    failure: RefCell<Option<io::Error>>,
}

impl Gate {
    fn new(connections: u32) -> Self {
        Gate {
            connections,
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

    /// A connection waits here until the gate is open.
    async fn pass(&self) {
        while !self.open.get() {
            self.waiting.set(self.waiting.get() + 1);
            if self.waiting.get() == self.connections {
                self.changed.notify_one();
            }
            self.opened.notified().await;
            self.waiting.set(self.waiting.get() - 1);
        }
    }

    /// Waits until every connection does, or one has failed.
    async fn closed(&self) -> io::Result<()> {
        loop {
            if let Some(error) = self.failure.take() {
                return Err(error);
            }
            if self.waiting.get() == self.connections {
                return Ok(());
            }
            self.changed.notified().await;
        }
    }

    fn fail(&self, error: io::Error) {
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
    async fn ask(&mut self, tally: &RefCell<Tally>) -> io::Result<()> {
        self.request.set_key(self.random.below(self.keys));
        let asked = Instant::now();
        let answer = self.connection.ask(&self.request).await?;
        if !answer.allows(self.target.form) {
            let body = String::from_utf8_lossy(answer.body);
            return Err(io::Error::other(format!("not allowed: {}\n{body}", answer.head)));
        }
        tally.borrow().count(true, asked.elapsed());
        Ok(())
    }
}
