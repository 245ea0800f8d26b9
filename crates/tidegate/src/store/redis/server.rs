//! The client of one Redis server: a queue, a connection, and a task that sends.
//!
//! ```text
//!   callers --> queue --> batch --> one write --> server
//!      ^          ^                                 |
//!      |          +--- gathers while writes are     |
//!      |               in flight                    v
//!      +------------------- each reply as it arrives
//! ```
//!
//! Batching adds no delay to an idle client: with nothing in flight, a job is sent immediately, and
//! jobs that arrive while a write is in flight share the next write. The next write waits for the
//! one in flight for at most [`BATCH_INTERVAL`], so no caller waits for two long round trips. Under
//! load, a write also waits for callers that were just answered, for at most [`GATHER_TIME`].
//!
//! A caller that gives up drops its receiver. Its job is then not sent if it is still queued, and
//! the reply is discarded if it was sent; other callers of the write are not affected. The permits
//! of an acquire that was sent are released (`deferred_release.rs`).
//!
//! Nothing is queued while disconnected. The exception is a new client whose first attempt to
//! connect is still in progress.

use std::hash::{BuildHasher as _, Hash as _, Hasher as _};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use foldhash::fast::FixedState;
use redis::{Cmd, Value};
use smallvec::SmallVec;
use tidegate_core::Timestamp;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::batch::Batch;
use super::breaker::{ConnectionHealth, ReconnectBackoff, WriteOutcome};
use super::connection::{Connection, DialError, Dialer};
use super::deferred_release::{PendingPermit, ReplyReceiver, ReplySender, channel};
use super::error::ConnectError;
use super::plan::{ScriptMode, ScriptPlan, ScriptReply};
use super::queue::{Caller, FlowControl, Queue, SelectedJob};
use super::server_info::{DataMarks, ServerInfo};
use super::stats::{RedisServer, StoreCounters};
use super::topology::Sentinels;
use super::url::{Address, Deployment};
use crate::{CheckError, Failure};

/// The time for which a write in flight delays the next one. A server in the same rack has replied
/// by then, and few large writes cost a server the least.
const BATCH_INTERVAL: Duration = Duration::from_millis(1);
/// The longest time for which a write waits for callers that were just answered. Under load they
/// usually have a next job.
const GATHER_TIME: Duration = Duration::from_micros(200);
/// The time without a new job after which such a write is sent.
const GATHER_PAUSE: Duration = Duration::from_micros(40);
/// The maximum number of writes in flight.
const MAX_WRITES: usize = 16;
/// The part of the deadline, in tenths, after which a queued job is shed. Its reply would be late,
/// and the error reports that nothing was charged.
const MAX_WAIT_TENTHS: u32 = 9;
/// The interval of role checks. Until a demoted primary is noticed, it decides denials on old data,
/// because only writes fail on a replica.
const ROLE_EVERY: Duration = Duration::from_secs(1);
/// The number of role checks between two looks at the data of the server.
const ROLE_CHECKS_PER_LOOK: u32 = 5;
/// A connection that lasted longer than this is replaced immediately, without a backoff.
const STABLE_AFTER: Duration = Duration::from_secs(1);

/// The content of a job.
#[derive(Debug)]
pub(super) enum Work {
    /// A request, at a given time or at the server's, and the permits that it may acquire.
    Decide(Box<ScriptPlan>, ScriptMode, Option<Timestamp>, Option<Arc<PendingPermit>>),
    /// A separate command, and the hashes of the keys it touches.
    Send(Cmd, KeyHashes),
}

impl Work {
    /// The hashes of the keys it touches.
    fn keys(&self) -> KeyHashes {
        match self {
            Work::Decide(plan, ..) => {
                let states = plan.states().iter().map(|state| &state.key);
                states.chain(plan.id().map(|id| &id.key)).map(|key| key_hash(key)).collect()
            }
            Work::Send(_, keys) => keys.clone(),
        }
    }

    /// A hash of requests that can share an entry: those on the same states have an equal hash.
    fn entry_hash(&self) -> Option<u64> {
        let Work::Decide(plan, mode, at, _) = self else { return None };
        if plan.id().is_some() {
            return None;
        }
        let mut hasher = FixedState::default().build_hasher();
        (mode, at).hash(&mut hasher);
        for state in plan.states() {
            (&state.key, state.limit.count(), state.limit.burst()).hash(&mut hasher);
        }
        Some(hasher.finish())
    }
}

/// Hashes of key names. Commands that touch the same key keep their order.
pub(super) type KeyHashes = SmallVec<[u64; 4]>;

/// The hash of a key's name. A collision only keeps two commands in an order they do not need.
pub(super) fn key_hash(name: &[u8]) -> u64 {
    FixedState::default().hash_one(name)
}

/// The reply to a job.
#[derive(Debug)]
pub(super) enum CallReply {
    Decided(Box<ScriptReply>),
    Value(Value),
}

/// The failure of a job.
#[derive(Clone, Debug)]
pub(super) enum CallError {
    Failed(Failure),
    /// Not carried out: the request is invalid.
    Invalid(CheckError),
    /// Not carried out: the slot has moved to another server (`MOVED`).
    Moved(Address),
    /// Not carried out: this call, but not later ones, must be sent to another server (`ASK`).
    Ask(Address),
    /// Not carried out: the slot is being migrated, and the keys are on two servers (`TRYAGAIN`).
    TryAgain,
}

/// How a job is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendMode {
    /// In one call with other jobs, where possible.
    Batched,
    /// Not in one call with other keys, because the keys of a slot that is being migrated are on
    /// two servers.
    Single,
    /// In a separate call after `ASKING`, to the server to which the slot is being migrated.
    Asking,
}

/// A job in the queue.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) work: Work,
    pub(super) send_mode: SendMode,
    pub(super) reply: ReplySender,
    pub(super) caller: Caller,
    /// The hashes of the keys it touches.
    pub(super) keys: KeyHashes,
    /// A hash of requests that can share an entry.
    pub(super) entry_hash: Option<u64>,
    pub(super) queued: Instant,
}

/// The availability of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerStatus {
    /// The first attempt to connect is in progress.
    Starting,
    Up,
    /// It answers every call with an error: its memory is full, for example. Calls are still sent,
    /// because only they show when this has ended. Holds the number of the last refused write.
    Refusing(u64),
    Down,
}

impl ServerStatus {
    /// Whether there is a connection.
    pub(super) fn is_connected(self) -> bool {
        matches!(self, ServerStatus::Up | ServerStatus::Refusing(_))
    }

    /// Records the outcome of a write. Returns whether the server came up or stopped being up. A
    /// reply to a write that was sent before the refused one does not end the refusal.
    fn note_outcome(&mut self, outcome: WriteOutcome, write: u64) -> bool {
        let after = match (*self, outcome) {
            (ServerStatus::Up, WriteOutcome::Refused) => ServerStatus::Refusing(write),
            (ServerStatus::Refusing(last), WriteOutcome::Refused) => {
                ServerStatus::Refusing(last.max(write))
            }
            (ServerStatus::Refusing(last), WriteOutcome::Answered) if write > last => {
                ServerStatus::Up
            }
            (before, _) => before,
        };
        let before = std::mem::replace(self, after);
        (before == ServerStatus::Up) != (after == ServerStatus::Up)
    }
}

/// The server that a client connects to.
#[derive(Clone)]
pub(super) enum ServerTarget {
    Fixed(Address),
    /// The primary that the Sentinels name.
    Sentinel(Arc<Sentinels>),
}

impl ServerTarget {
    /// The address of the server; `None` while no Sentinel has named it.
    fn address(&self) -> Option<Address> {
        match self {
            ServerTarget::Fixed(address) => Some(address.clone()),
            ServerTarget::Sentinel(sentinels) => sentinels.last_primary(),
        }
    }
}

/// The callers' handle to a server. When it is dropped, its task stops and closes the connection.
pub(super) struct ServerClient {
    target: ServerTarget,
    queue: Arc<Queue>,
    state: watch::Receiver<ServerStatus>,
    first_error: watch::Receiver<Option<ConnectError>>,
}

impl ServerClient {
    /// Starts the task of a client. `on_down` is notified whenever the server goes down.
    pub(super) fn start(
        target: ServerTarget,
        dialer: Arc<Dialer>,
        counters: Arc<StoreCounters>,
        on_down: Option<Arc<Notify>>,
    ) -> Self {
        let queue = Arc::new(Queue::default());
        let (state, state_seen) = watch::channel(ServerStatus::Starting);
        let (first_error, first_error_seen) = watch::channel(None);
        let runtime = dialer.runtime.clone();
        let runner = Runner {
            target: target.clone(),
            dialer,
            counters,
            on_down,
            queue: Arc::clone(&queue),
            state,
            first_error,
            data_marks: Mutex::default(),
        };
        runtime.spawn(runner.run());
        ServerClient { target, queue, state: state_seen, first_error: first_error_seen }
    }

    /// Queues a job.
    pub(super) fn submit(&self, work: Work, send_mode: SendMode) -> Result<ReplyReceiver, Failure> {
        if self.state() == ServerStatus::Down {
            return Err(Failure::Down);
        }
        let pending_permit = match &work {
            Work::Decide(_, _, _, pending_permit) => pending_permit.clone(),
            Work::Send(..) => None,
        };
        let (reply, receiver) = channel(pending_permit);
        let (keys, entry_hash) = (work.keys(), work.entry_hash());
        let (caller, queued) = (tokio::task::try_id(), Instant::now());
        self.queue.push(Job { work, send_mode, reply, caller, keys, entry_hash, queued })?;
        Ok(receiver)
    }

    pub(super) fn state(&self) -> ServerStatus {
        *self.state.borrow()
    }

    /// The number of jobs that wait to be sent.
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// The address and the health of the server; `None` while no Sentinel has named it.
    pub(super) fn describe(&self) -> Option<RedisServer> {
        let address = self.target.address()?.to_string();
        Some(RedisServer { address, up: self.state() == ServerStatus::Up })
    }

    /// Waits for the end of the first attempt to connect. Returns an error only if the server was
    /// reached and cannot be used.
    pub(super) async fn started(&self) -> Result<(), ConnectError> {
        let mut state = self.state.clone();
        // The task runs as long as `self` exists, so the sender is not dropped.
        let _ = state.wait_for(|state| *state != ServerStatus::Starting).await;
        let first_error = self.first_error.borrow().clone();
        first_error.map_or(Ok(()), Err)
    }
}

impl Drop for ServerClient {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// The task of a client.
struct Runner {
    target: ServerTarget,
    dialer: Arc<Dialer>,
    counters: Arc<StoreCounters>,
    on_down: Option<Arc<Notify>>,
    queue: Arc<Queue>,
    state: watch::Sender<ServerStatus>,
    first_error: watch::Sender<Option<ConnectError>>,
    /// The last report of the server about its data, on this connection or an earlier one, and when
    /// it was received.
    data_marks: Mutex<Option<(DataMarks, Instant)>>,
}

/// Why a connection is no longer served.
enum End {
    /// The handle was dropped.
    Dropped,
    /// The connection is closed or unusable.
    Broken,
}

impl Runner {
    async fn run(mut self) {
        let mut backoff = ReconnectBackoff::new(self.dialer.machine.random());
        loop {
            let refused = match self.dial().await {
                None => return,
                Some(Ok((connection, server_info))) => {
                    self.counters.warn(server_info.warning());
                    self.counters.set_last_error(None);
                    self.counters.connections.fetch_add(1, Relaxed);
                    self.state.send_replace(ServerStatus::Up);
                    let since = Instant::now();
                    if let End::Dropped = self.serve(connection).await {
                        return;
                    }
                    self.counters.breaker_openings.fetch_add(1, Relaxed);
                    if since.elapsed() > STABLE_AFTER {
                        // The first attempt to reconnect is made without a pause.
                        backoff.reset();
                        self.fail_queued();
                        continue;
                    }
                    false
                }
                Some(Err(error)) => self.note_dial_error(error),
            };
            let next_attempt = Instant::now() + backoff.next(refused);
            self.counters.set_next_attempt(next_attempt);
            self.fail_queued();
            if self.or_dropped(tokio::time::sleep_until(next_attempt)).await.is_none() {
                return;
            }
        }
    }

    /// Connects; `None` if the handle was dropped.
    async fn dial(&mut self) -> Option<Result<(Connection, ServerInfo), DialError>> {
        let (target, dialer) = (self.target.clone(), Arc::clone(&self.dialer));
        let dialing = async move {
            match &target {
                ServerTarget::Fixed(address) => dialer.dial(address).await,
                ServerTarget::Sentinel(sentinels) => sentinels.dial(&dialer).await,
            }
        };
        if *self.state.borrow() == ServerStatus::Starting {
            // The dialer has a timeout. Until then, callers wait in the queue.
            return Some(dialing.await);
        }
        self.or_dropped(dialing).await
    }

    /// Records why connecting failed. Returns whether retrying less often is enough.
    fn note_dial_error(&self, error: DialError) -> bool {
        let starting = *self.state.borrow() == ServerStatus::Starting;
        match error {
            DialError::Unreachable(text) => {
                self.counters.set_last_error(Some(format!("the store is unavailable: {text}")));
                false
            }
            DialError::Refused(error) => {
                self.counters.set_last_error(Some(error.to_string()));
                // A replica may soon be promoted, or the host name may soon resolve to another
                // server. All other errors require a change by an operator.
                let slowly = error != ConnectError::IsReplica;
                if starting {
                    self.first_error.send_replace(Some(error));
                }
                slowly
            }
        }
    }

    /// Runs a future while the server is down, and fails all jobs that arrive meanwhile. Returns
    /// `None` if the handle was dropped.
    async fn or_dropped<T>(&mut self, doing: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(doing);
        while !self.queue.is_closed() {
            tokio::select! {
                biased;
                done = &mut doing => return Some(done),
                () = self.queue.arrived() => self.queue.fail_all(&Failure::Down),
            }
        }
        None
    }

    /// Marks the server as down, so that no job is queued any more, and fails the queued jobs.
    fn fail_queued(&mut self) {
        self.state.send_replace(ServerStatus::Down);
        if let Some(on_down) = &self.on_down {
            on_down.notify_one();
        }
        self.queue.fail_all(&Failure::Down);
    }

    async fn serve(&self, connection: Connection) -> End {
        let (health, flow) =
            (Arc::new(ConnectionHealth::default()), Arc::new(FlowControl::default()));
        let (closed, silent) = (connection.closed(), health.silent(self.dialer.timeout));
        tokio::pin!(closed, silent);
        let demoted = self.demoted(connection.clone());
        tokio::pin!(demoted);
        let (mut selected, mut last) = (Vec::new(), None);
        loop {
            let ready = self.next_write(&health, &flow, last, &mut selected);
            let is_over = tokio::select! {
                biased;
                () = &mut closed => true,
                () = &mut demoted => true,
                () = &mut silent => true,
                () = health.unusable() => true,
                () = ready => false,
            };
            if is_over {
                // The selected jobs were not sent.
                selected
                    .into_iter()
                    .for_each(|selected: SelectedJob| selected.job.fail(Failure::Down));
                return End::Broken;
            }
            if selected.is_empty() {
                return End::Dropped;
            }
            let batch = Batch::gather(selected.drain(..), self.dialer.deployment);
            last = Some(PreviousWrite { sent: Instant::now(), requests: batch.requests() });
            self.send(batch, &connection, &health, &flow).await;
        }
    }

    /// Looks at the data of the server now and then. Returns when the server reports that it is a
    /// replica, except in a cluster, whose servers redirect callers themselves. A server that does
    /// not answer is detected by [`ConnectionHealth`].
    async fn demoted(&self, mut connection: Connection) {
        let is_cluster = self.dialer.deployment == Deployment::Cluster;
        loop {
            self.look_at_data(&mut connection).await;
            for _ in 0..ROLE_CHECKS_PER_LOOK {
                tokio::time::sleep(ROLE_EVERY).await;
                if !is_cluster && connection.is_replica().await {
                    return;
                }
            }
        }
    }

    /// Counts data that the server has lost since the last look.
    async fn look_at_data(&self, connection: &mut Connection) {
        let Ok(marks) = connection.data_marks(self.dialer.db).await else { return };
        let now = Instant::now();
        let mut last = self.data_marks.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = last.as_ref().and_then(|(before, at)| marks.lost_since(before, now - *at));
        if let Some((loss, text)) = lost {
            let address = self.target.address().map_or_else(String::new, |it| it.to_string());
            self.counters.lost_data(&address, loss, &text);
        }
        *last = Some((marks, now));
    }

    /// Collects the jobs of the next write; none if the handle was dropped.
    async fn next_write(
        &self,
        health: &ConnectionHealth,
        flow: &Arc<FlowControl>,
        last: Option<PreviousWrite>,
        selected: &mut Vec<SelectedJob>,
    ) {
        let max_queue_time = self.dialer.timeout * MAX_WAIT_TENTHS / 10;
        let mut was_idle = false;
        loop {
            StoreCounters::add(&self.counters.queue_timeouts, self.queue.shed(max_queue_time));
            let next_at = last.map_or_else(Instant::now, |last| last.sent + BATCH_INTERVAL);
            let is_spaced = Instant::now() >= next_at;
            let writes = health.writes();
            let may_send = writes == 0 || is_spaced && writes < MAX_WRITES;
            if may_send {
                self.queue.take(flow, selected);
                if !selected.is_empty() || self.queue.is_closed() {
                    break;
                }
            }
            // Jobs that wait for their share are considered again soon, together with those that
            // arrive until then.
            let again_at = if is_spaced { Instant::now() + BATCH_INTERVAL } else { next_at };
            let is_idle = may_send && self.queue.is_empty();
            was_idle |= is_idle;
            tokio::select! {
                biased;
                () = health.answered() => {}
                () = self.queue.arrived(), if is_idle => {}
                () = tokio::time::sleep_until(again_at), if !is_idle => {}
            }
        }
        if let Some(last) = last
            && last.requests > 1
            && !selected.is_empty()
        {
            let queued = if was_idle { 0 } else { selected.len() };
            self.gather(flow, queued + last.requests, selected).await;
        }
    }

    /// Adds the jobs of callers that were just answered, which are about to submit them on other
    /// threads, until there are `expected` jobs. So that a few large writes are sent instead of
    /// many small ones, it waits a little as long as jobs arrive.
    async fn gather(
        &self,
        flow: &Arc<FlowControl>,
        expected: usize,
        selected: &mut Vec<SelectedJob>,
    ) {
        let start = Instant::now();
        let mut last_arrival = start;
        while selected.len() < expected {
            self.dialer.machine.yield_now().await;
            let (before, now) = (selected.len(), Instant::now());
            self.queue.take(flow, selected);
            if selected.len() > before {
                last_arrival = now;
            }
            if now > start + GATHER_TIME || now > last_arrival + GATHER_PAUSE {
                return;
            }
        }
    }

    async fn send(
        &self,
        batch: Batch,
        connection: &Connection,
        health: &Arc<ConnectionHealth>,
        flow: &Arc<FlowControl>,
    ) {
        let queried = match &self.target {
            ServerTarget::Fixed(address) => Some(address.clone()),
            ServerTarget::Sentinel(_) => None,
        };
        StoreCounters::add(&self.counters.coalesced, batch.coalesced());
        StoreCounters::add(&self.counters.sent, batch.requests());
        let calls = batch.calls();
        StoreCounters::add(&self.counters.calls, calls);
        StoreCounters::add(&self.counters.calls_in_flight, calls);
        let write_number = self.counters.batches.fetch_add(1, Relaxed);
        let (counters, state, health) =
            (Arc::clone(&self.counters), self.state.clone(), Arc::clone(health));
        let (flow, timeout) = (Arc::clone(flow), self.dialer.timeout);
        health.write_started();
        let write = batch.send(connection.sender(), &health).await;
        let sent = Instant::now();
        tokio::spawn(async move {
            let note = |outcome: WriteOutcome| {
                let changed =
                    state.send_if_modified(|state| state.note_outcome(outcome, write_number));
                if changed && outcome == WriteOutcome::Answered {
                    counters.set_last_error(None);
                }
                if outcome == WriteOutcome::Unusable {
                    health.mark_unusable();
                }
            };
            let outcome = write.settle(queried, &health, &counters, note).await;
            note(outcome);
            counters.calls_in_flight.fetch_sub(calls as u64, Relaxed);
            flow.answered(sent, timeout);
            health.write_finished();
        });
    }
}

/// The previous write.
#[derive(Clone, Copy)]
struct PreviousWrite {
    sent: Instant,
    requests: usize,
}

impl Job {
    pub(super) fn fail(self, failure: Failure) {
        // The caller may have given up.
        let _ = self.reply.send(Err(CallError::Failed(failure)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the reply to the first write was recorded after the refusal of the second, and
    /// the store then counted as up.
    #[test]
    fn older_reply_does_not_end_a_refusal() {
        let mut state = ServerStatus::Up;
        assert!(state.note_outcome(WriteOutcome::Refused, 2));
        assert!(!state.note_outcome(WriteOutcome::Answered, 1));
        assert_eq!(state, ServerStatus::Refusing(2));
        assert!(!state.note_outcome(WriteOutcome::Refused, 4));
        assert!(!state.note_outcome(WriteOutcome::Answered, 3));
        assert!(state.note_outcome(WriteOutcome::Answered, 5));
        assert_eq!(state, ServerStatus::Up);
    }
}
