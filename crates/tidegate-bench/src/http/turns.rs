//! Servers taking turns at being asked.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::load::{Connection, Counted, LoadArgs, Report, Tally, Target, Turn};
use super::wire::{Budget, Request};
use crate::workloads::Random;

/// For every round that counts, at most so many are disturbed: on a machine that is never
/// quiet the rest is taken as it comes, and the report shows it.
const MAX_DISTURBED_PER_ROUND: usize = 2;

/// Rounds that are not counted, in which connections and caches get warm.
const WARM_ROUNDS: usize = 2;

/// Asks all targets in turns.
pub async fn run(args: &LoadArgs) -> io::Result<Report> {
    let mut lanes = Vec::new();
    for &target in &args.targets {
        lanes.push(Lane::open(args, target).await?);
    }
    let mut report = Report { turns: vec![Vec::new(); lanes.len()], disturbed: 0 };
    let mut warm = WARM_ROUNDS;
    while report.turns[0].len() < args.rounds {
        let round = round(args, &lanes, report.turns[0].len()).await?;
        if warm > 0 {
            warm -= 1;
            continue;
        }
        let disturbed = round.iter().any(|turn| turn.queued() > args.max_queued);
        if disturbed && report.disturbed < args.rounds * MAX_DISTURBED_PER_ROUND {
            report.disturbed += 1;
            continue;
        }
        report.turns.iter_mut().zip(round).for_each(|(turns, turn)| turns.push(turn));
    }
    Ok(report)
}

/// One turn each, starting with another lane every time.
async fn round(args: &LoadArgs, lanes: &[Lane], number: usize) -> io::Result<Vec<Counted>> {
    let mut counted = vec![Counted::default(); lanes.len()];
    for at in 0..lanes.len() {
        let at = (at + number) % lanes.len();
        counted[at] = lanes[at].turn(Duration::from_millis(args.time_ms)).await?;
    }
    Ok(counted)
}

/// The connections to one server.
struct Lane {
    target: Target,
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
        Ok(Lane { target, gate })
    }

    /// Asks for as long as told, then waits for the answers that are still on their way.
    async fn turn(&self, time: Duration) -> io::Result<Counted> {
        self.gate.closed().await?;
        self.gate.tally.replace(Tally::new());
        let turn = Turn::begin(self.target)?;
        self.gate.open();
        tokio::time::sleep(time).await;
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
