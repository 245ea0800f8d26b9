//! The way to one server: a queue, a connection, and somebody who sends.
//!
//! ```text
//!   callers --> queue --> batch --> one write --> server
//!                 ^                    |
//!                 |   gathers while    v
//!                 +--- batches are in flight
//! ```
//!
//! Natural batching: a lane with nothing in flight sends at once, so an idle node
//! pays nothing; what arrives while a batch is in flight goes together in the next.
//! Where a round trip takes longer than [`SPACING`] the next does not wait for it
//! that long, so nobody waits for two of them. A caller that gives up just drops its end: what
//! it had queued is not sent, what was sent is answered to nobody, and no other
//! caller of the batch notices.
//!
//! Nothing is queued while disconnected. Only a lane that was just made, and has
//! not failed yet, lets callers wait for its first connection.

use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;
use redis::{Cmd, Value};
use smallvec::SmallVec;
use tidegate_core::{Decision, Timestamp};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::batch::Batch;
use super::breaker::{Health, Outcome, Rests};
use super::connection::{Connection, DialError, Dialer};
use super::counter::Quick;
use super::error::ConnectError;
use super::facts::Facts;
use super::stats::Tally;
use super::topology::Sentinels;
use super::url::{Address, Kind};
use crate::Failure;

/// Callers that may wait for the next batch. A server does a few hundred thousand
/// decisions a second: more than this would not be answered before the deadline.
const QUEUE: usize = 8192;
/// Requests that go in one write.
const MAX_BATCH: usize = 1024;
/// How long a batch in flight keeps the next one back. On a machine or rack nearby
/// it has come back by then, and few large batches cost a server least.
const SPACING: Duration = Duration::from_millis(1);
/// Batches in flight at once.
const MAX_IN_FLIGHT: usize = 16;
/// A connection that lasted so long is worth making again at once.
const PROVEN: Duration = Duration::from_secs(1);

/// What is to be done.
#[derive(Debug)]
pub(super) enum Work {
    /// An ask the counter script can take, together with others.
    Count(Quick, Option<Timestamp>),
    /// A separate command, and the hashes of the keys it touches.
    Send(Cmd, Touched),
}

/// Hashes of key names. Commands that touch the same key keep their order.
pub(super) type Touched = SmallVec<[u64; 4]>;

/// The hash of a key's name. Names that collide only keep an order they do not need.
pub(super) fn key_hash(name: &[u8]) -> u64 {
    FixedState::default().hash_one(name)
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Answer {
    Counted(Decision),
    /// The counter script cannot take it after all, and has changed nothing.
    NotCounted,
    Value(Value),
}

/// Why nothing came of it.
#[derive(Clone, Debug)]
pub(super) enum Trouble {
    Failed(Failure),
    /// Not carried out: the slot is with another server, for good.
    Moved(Address),
    /// Not carried out: this once, ask another server.
    Ask(Address),
    /// Not carried out: a slot is moving.
    TryAgain,
}

pub(super) type Reply = oneshot::Sender<Result<Answer, Trouble>>;

/// How work is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// Together with what fits.
    Together,
    /// Not in one call with other keys: when a slot moves, keys of it are in two places.
    Alone,
    /// Alone, to a server that is only being given the slot.
    Asking,
}

/// Work in the queue.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) work: Work,
    pub(super) manner: Manner,
    pub(super) reply: Reply,
}

/// Whether a server can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Not known yet.
    Starting,
    Up,
    /// It answers, and does nothing: it is full, say. It is asked again all the same, because
    /// only that shows when it is over.
    Refusing,
    Down,
}

impl State {
    /// Whether there is a connection.
    pub(super) fn is_connected(self) -> bool {
        matches!(self, State::Up | State::Refusing)
    }

    /// Takes note of what became of a batch; says whether that changed anything.
    fn note(&mut self, outcome: Outcome) -> bool {
        let after = match (*self, outcome) {
            (State::Up, Outcome::Refused) => State::Refusing,
            (State::Refusing, Outcome::Answered) => State::Up,
            (before, _) => before,
        };
        std::mem::replace(self, after) != after
    }
}

/// Where a lane leads.
#[derive(Clone)]
pub(super) enum Target {
    Fixed(Address),
    /// Wherever the Sentinels say.
    Sentinel(Arc<Sentinels>),
}

/// The caller's end. When it is dropped, the lane and its connection end.
pub(super) struct Lane {
    jobs: mpsc::Sender<Job>,
    state: watch::Receiver<State>,
    first: watch::Receiver<Option<ConnectError>>,
}

impl Lane {
    /// `on_down` is told when the server is given up.
    pub(super) fn start(
        target: Target,
        dialer: Arc<Dialer>,
        tally: Arc<Tally>,
        on_down: Option<Arc<Notify>>,
    ) -> Self {
        let (jobs, queue) = mpsc::channel(QUEUE);
        let (state, state_seen) = watch::channel(State::Starting);
        let (first, first_seen) = watch::channel(None);
        tokio::spawn(Runner { target, dialer, tally, on_down, queue, state, first }.run());
        Lane { jobs, state: state_seen, first: first_seen }
    }

    /// Puts work into the queue.
    pub(super) fn submit(
        &self,
        work: Work,
        manner: Manner,
    ) -> Result<oneshot::Receiver<Result<Answer, Trouble>>, Failure> {
        if self.state() == State::Down {
            return Err(Failure::Down);
        }
        let (reply, answer) = oneshot::channel();
        match self.jobs.try_send(Job { work, manner, reply }) {
            Ok(()) => Ok(answer),
            Err(_) => Err(Failure::Down),
        }
    }

    pub(super) fn state(&self) -> State {
        *self.state.borrow()
    }

    /// Waits until the first attempt to connect has come to something; an error only
    /// if the server is there and will not do.
    pub(super) async fn started(&self) -> Result<(), ConnectError> {
        let mut state = self.state.clone();
        // The lane lives as long as `self`: there is always somebody to say so.
        let _ = state.wait_for(|state| *state != State::Starting).await;
        let first = self.first.borrow().clone();
        first.map_or(Ok(()), Err)
    }
}

/// The lane's own end.
struct Runner {
    target: Target,
    dialer: Arc<Dialer>,
    tally: Arc<Tally>,
    on_down: Option<Arc<Notify>>,
    queue: mpsc::Receiver<Job>,
    state: watch::Sender<State>,
    first: watch::Sender<Option<ConnectError>>,
}

/// Why a lane stopped serving.
enum End {
    /// Nobody can ask any more.
    Dropped,
    /// The connection is gone or of no use.
    Broken,
}

impl Runner {
    async fn run(mut self) {
        let mut rests = Rests::new();
        loop {
            let refused = match self.dial().await {
                None => return,
                Some(Ok((connection, facts))) => {
                    self.tally.warn(facts.warning());
                    self.tally.set_last_error(None);
                    self.tally.connections.fetch_add(1, Relaxed);
                    self.state.send_replace(State::Up);
                    let since = Instant::now();
                    if let End::Dropped = self.serve(connection).await {
                        return;
                    }
                    self.tally.breaker_openings.fetch_add(1, Relaxed);
                    if since.elapsed() > PROVEN {
                        // The first attempt to come back is made at once.
                        rests.reset();
                        self.fail_queued();
                        continue;
                    }
                    false
                }
                Some(Err(error)) => self.note(error),
            };
            self.fail_queued();
            if self.or_dropped(tokio::time::sleep(rests.next(refused))).await.is_none() {
                return;
            }
        }
    }

    /// Connects; `None` when nobody can ask any more.
    async fn dial(&mut self) -> Option<Result<(Connection, Facts), DialError>> {
        let (target, dialer) = (self.target.clone(), Arc::clone(&self.dialer));
        let dialing = async move {
            match &target {
                Target::Fixed(address) => dialer.dial(address).await,
                Target::Sentinel(sentinels) => sentinels.dial(&dialer).await,
            }
        };
        if *self.state.borrow() == State::Starting {
            // Bounded by the dialer's own time; callers may wait meanwhile.
            return Some(dialing.await);
        }
        self.or_dropped(dialing).await
    }

    /// Notes why there is no connection; says whether it is enough to try now and then.
    fn note(&self, error: DialError) -> bool {
        let starting = *self.state.borrow() == State::Starting;
        match error {
            DialError::Unreachable(text) => {
                self.tally.set_last_error(Some(format!("the store is not there: {text}")));
                false
            }
            DialError::Refused(error) => {
                self.tally.set_last_error(Some(error.to_string()));
                // A replica soon is none, or the name leads elsewhere; all else
                // somebody must change.
                let slowly = error != ConnectError::IsReplica;
                if starting {
                    self.first.send_replace(Some(error));
                }
                slowly
            }
        }
    }

    /// Does something while the store is down: callers get an answer at once.
    async fn or_dropped<T>(&mut self, doing: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(doing);
        loop {
            tokio::select! {
                done = &mut doing => return Some(done),
                job = self.queue.recv() => job?.fail(Failure::Down),
            }
        }
    }

    /// From now on nobody queues; whoever has is told.
    fn fail_queued(&mut self) {
        self.state.send_replace(State::Down);
        if let Some(on_down) = &self.on_down {
            on_down.notify_one();
        }
        while let Ok(job) = self.queue.try_recv() {
            job.fail(Failure::Down);
        }
    }

    async fn serve(&mut self, connection: Connection) -> End {
        let health = Arc::new(Health::default());
        let mut jobs = Vec::new();
        let closed = connection.closed();
        tokio::pin!(closed);
        // The nodes of a cluster redirect callers themselves.
        let mut watched = connection.clone();
        let is_cluster = self.dialer.kind == Kind::Cluster;
        let demoted = async move {
            if is_cluster { std::future::pending().await } else { watched.demoted().await }
        };
        tokio::pin!(demoted);
        let mut last_sent = None;
        loop {
            let ready = next_batch(&health, last_sent, &mut self.queue, &mut jobs);
            let count = tokio::select! {
                biased;
                () = &mut closed => None,
                () = &mut demoted => None,
                count = ready => count,
            };
            match count {
                Some(0) => return End::Dropped,
                Some(_) => {}
                None => {
                    // They were gathered, and not sent.
                    jobs.into_iter().for_each(|job| job.fail(Failure::Down));
                    return End::Broken;
                }
            }
            let batch = self.gather(&mut jobs);
            last_sent = Some((Instant::now(), batch.asks()));
            self.send(batch, connection.clone(), Arc::clone(&health));
        }
    }

    fn gather(&self, jobs: &mut Vec<Job>) -> Batch {
        let own = match &self.target {
            Target::Fixed(address) => Some(address.clone()),
            Target::Sentinel(_) => None,
        };
        let batch = Batch::gather(jobs.drain(..), self.dialer.kind, own);
        Tally::add(&self.tally.calls, batch.calls());
        Tally::add(&self.tally.coalesced, batch.coalesced());
        batch
    }

    fn send(&self, batch: Batch, mut connection: Connection, health: Arc<Health>) {
        if batch.calls() == 0 {
            return;
        }
        if connection.is_closed() {
            return batch.fail(&Failure::Down);
        }
        self.tally.batches.fetch_add(1, Relaxed);
        let (tally, timeout) = (Arc::clone(&self.tally), self.dialer.timeout);
        let state = self.state.clone();
        health.sent();
        tokio::spawn(async move {
            let sent = Instant::now();
            let outcome = batch.run(&mut connection, timeout, &tally).await;
            if state.send_if_modified(|state| state.note(outcome)) && outcome == Outcome::Answered {
                tally.set_last_error(None);
            }
            health.over(sent, outcome);
        });
    }
}

/// Gathers the next batch, and says how large it is; `None` once the server is given up.
async fn next_batch(
    health: &Health,
    last_sent: Option<(Instant, usize)>,
    queue: &mut mpsc::Receiver<Job>,
    jobs: &mut Vec<Job>,
) -> Option<usize> {
    if let Some((sent, _)) = last_sent {
        let spaced = tokio::time::sleep_until((sent + SPACING).into());
        tokio::pin!(spaced);
        let mut is_spaced = false;
        while health.in_flight() > 0 && (!is_spaced || health.in_flight() >= MAX_IN_FLIGHT) {
            tokio::select! {
                () = health.changed() => {}
                () = &mut spaced, if !is_spaced => is_spaced = true,
            }
            if health.is_given_up() {
                return None;
            }
        }
    }
    let count = loop {
        tokio::select! {
            biased;
            () = health.changed() => if health.is_given_up() { return None },
            count = queue.recv_many(jobs, MAX_BATCH) => break count,
        }
    };
    // Those who were just answered are about to ask again: let them come along.
    if last_sent.is_some_and(|(_, asks)| asks > 1) && count > 0 {
        tokio::task::yield_now().await;
        while jobs.len() < MAX_BATCH
            && let Ok(job) = queue.try_recv()
        {
            jobs.push(job);
        }
    }
    Some(jobs.len())
}

impl Job {
    fn fail(self, failure: Failure) {
        // Nobody may be left to hear it.
        let _ = self.reply.send(Err(Trouble::Failed(failure)));
    }
}
