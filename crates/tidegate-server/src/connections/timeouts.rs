//! Open connections, and their timeouts.
//!
//! Every connection has a timeout: for the first bytes, for the rest of a request head, for reading
//! a response, or for the next request. A timer per connection would be set and cancelled with
//! every request, which costs more than a decision. Instead, a request only updates counters and
//! flags of its connection. A sweep every [`TICK`] compares them with those of the last sweep, and
//! commands connections that made no progress for too long to close. A connection is closed up to
//! one tick late.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// The interval of the sweep. A connection whose request head or response is stalled is closed
/// after one to two ticks. An honest client needs milliseconds.
pub const TICK: Duration = Duration::from_secs(10);

/// Ticks without a request after which a connection is closed: four minutes. Gateways and HTTP
/// clients close idle connections of their pools after 60 to 90 s, so they close first and never
/// send a request on a connection that the server is closing.
const IDLE_TICKS: u32 = 24;

/// Ticks without progress after which a request head or a response is stalled.
const STALLED_TICKS: u32 = 2;

/// How long streams that were ended may take to send their last messages.
const END_GRACE: Duration = Duration::from_secs(10);

/// The bounds on the age of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxAge {
    /// The approximate age at which a connection is drained. Clients that never reconnect would not
    /// use servers that were added.
    pub age: Duration,
    /// How long its requests may take after that.
    pub grace: Duration,
}

/// All connections of a front.
#[derive(Debug, Default)]
pub struct Connections {
    open: Mutex<HashMap<u64, OpenConnection>>,
    next: AtomicU64,
    emptied: Notify,
    /// Whether idle connections are kept open.
    keeps_idle: bool,
}

#[derive(Debug)]
struct OpenConnection {
    progress: Arc<ConnectionProgress>,
    last_sweep: LastSweep,
}

/// The values of a connection at the last sweep, and the ticks since it made progress.
#[derive(Clone, Copy, Debug, Default)]
struct LastSweep {
    begun: u64,
    written: u64,
    idle_ticks: u32,
    head_ticks: u32,
    stalled_ticks: u32,
}

/// A command to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnCommand {
    /// Continue to serve requests.
    Serve,
    /// Finish the requests that have begun, then close.
    Drain,
    /// End streamed responses, which would otherwise never end, with a status.
    EndStreams,
    /// Close immediately.
    Close,
}

/// The progress of one connection, and the last command to it.
#[derive(Debug)]
pub struct ConnectionProgress {
    command: AtomicU8,
    waker: Mutex<Option<Waker>>,
    /// Notified when streams have to end.
    streams_ended: Notify,
    begun: AtomicU64,
    ended: AtomicU64,
    /// Bytes arrived since a request last began or ended, perhaps of a request head.
    unread: AtomicBool,
    /// The last write was blocked.
    stalled: AtomicBool,
    written: AtomicU64,
    /// The connection uses HTTP/2, where some bytes belong to no request: ping replies, window
    /// updates.
    is_http2: AtomicBool,
    /// Bytes that may still be read in this poll.
    left_to_read: AtomicUsize,
}

impl Connections {
    /// Creates an empty set. With `keeps_idle`, connections may be idle without a time limit,
    /// because clients keep them in pools.
    pub fn new(keeps_idle: bool) -> Self {
        Connections { keeps_idle, ..Connections::default() }
    }

    /// Registers a connection. It is removed when the guard is dropped.
    pub fn enter(self: &Arc<Self>) -> ConnGuard {
        let id = self.next.fetch_add(1, Relaxed);
        let progress = Arc::new(ConnectionProgress::new());
        let entry =
            OpenConnection { progress: Arc::clone(&progress), last_sweep: LastSweep::default() };
        self.open().insert(id, entry);
        ConnGuard { id, progress, connections: Arc::clone(self) }
    }

    /// The number of open connections.
    pub fn len(&self) -> usize {
        self.open().len()
    }

    /// Commands connections without progress to close. Called every [`TICK`].
    pub fn sweep(&self) {
        for entry in self.open().values_mut() {
            let command = entry.last_sweep.next_command(&entry.progress);
            let is_idle = command == ConnCommand::Drain;
            if command != ConnCommand::Serve && !(is_idle && self.keeps_idle) {
                entry.progress.send(command);
            }
        }
    }

    /// Sends a command to all connections.
    pub fn send_all(&self, command: ConnCommand) {
        for entry in self.open().values() {
            entry.progress.send(command);
        }
    }

    /// Waits until no connection is open.
    pub async fn empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.len() == 0 {
                return;
            }
            emptied.await;
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, OpenConnection>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LastSweep {
    fn next_command(&mut self, now: &ConnectionProgress) -> ConnCommand {
        let (begun, written) = (now.begun.load(Relaxed), now.written.load(Relaxed));
        let stalled = now.stalled.load(Relaxed);
        let is_under_way = begun != now.ended.load(Relaxed);
        let moved = begun != self.begun || is_under_way;
        let unread = now.unread.load(Relaxed) && !now.is_http2.load(Relaxed);
        let head = !is_under_way && (unread || begun == 0);
        // Progress since the last tick may have stopped right after it, so it counts as one tick.
        let ticks = |is_stuck: bool, moved: bool, before: u32| match (is_stuck, moved) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => before + 1,
        };
        *self = LastSweep {
            begun,
            written,
            idle_ticks: if moved { 0 } else { self.idle_ticks + 1 },
            head_ticks: ticks(head, moved, self.head_ticks),
            stalled_ticks: ticks(stalled, written != self.written, self.stalled_ticks),
        };
        if self.head_ticks >= STALLED_TICKS || self.stalled_ticks >= STALLED_TICKS {
            ConnCommand::Close
        } else if self.idle_ticks >= IDLE_TICKS {
            ConnCommand::Drain
        } else {
            ConnCommand::Serve
        }
    }
}

impl ConnectionProgress {
    fn new() -> Self {
        ConnectionProgress {
            command: AtomicU8::new(ConnCommand::Serve as u8),
            waker: Mutex::default(),
            streams_ended: Notify::new(),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            unread: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            written: AtomicU64::new(0),
            is_http2: AtomicBool::new(false),
            left_to_read: AtomicUsize::new(0),
        }
    }

    /// Sets the waker that commands wake. A task has the same waker all its life, so it is set
    /// once.
    pub fn set_waker(&self, waker: &Waker) {
        *self.waker() = Some(waker.clone());
    }

    /// The last command sent.
    pub fn command(&self) -> ConnCommand {
        match self.command.load(SeqCst) {
            command if command == ConnCommand::Serve as u8 => ConnCommand::Serve,
            command if command == ConnCommand::Drain as u8 => ConnCommand::Drain,
            command if command == ConnCommand::EndStreams as u8 => ConnCommand::EndStreams,
            _ => ConnCommand::Close,
        }
    }

    /// Records that a request has begun. It ends when the returned value is dropped.
    pub fn begin(self: &Arc<Self>) -> InFlight {
        self.begun.fetch_add(1, Relaxed);
        self.unread.store(false, Relaxed);
        InFlight(Arc::clone(self))
    }

    /// Records that the connection uses HTTP/2.
    pub fn set_http2(&self) {
        if !self.is_http2.load(Relaxed) {
            self.is_http2.store(true, Relaxed);
        }
    }

    /// Records that all complete requests that had arrived were answered together.
    pub fn note_answered(&self) {
        // Where this is called, only the task of the connection changes these counters.
        for count in [&self.begun, &self.ended] {
            count.store(count.load(Relaxed) + 1, Relaxed);
        }
        self.unread.store(false, Relaxed);
    }

    /// Records that bytes arrived.
    pub fn note_read(&self) {
        self.unread.store(true, Relaxed);
    }

    /// Whether bytes arrived that belong to no request yet.
    pub fn has_unread(&self) -> bool {
        self.unread.load(Relaxed)
    }

    /// Records that bytes were written.
    pub fn note_written(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Relaxed);
        self.stalled.store(false, Relaxed);
    }

    /// Records that a write was blocked.
    pub fn note_stalled(&self) {
        self.stalled.store(true, Relaxed);
    }

    /// Whether the last write was blocked.
    pub fn is_stalled(&self) -> bool {
        self.stalled.load(Relaxed)
    }

    /// Begins a poll of the connection, in which at most `bytes` bytes are read.
    pub fn begin_poll(&self, bytes: usize) {
        self.left_to_read.store(bytes, Relaxed);
    }

    /// The number of bytes that may still be read in this poll.
    pub fn left_to_read(&self) -> usize {
        self.left_to_read.load(Relaxed)
    }

    /// Records bytes that were read in this poll. Only the task that polls calls it.
    pub fn consume_read_budget(&self, bytes: usize) {
        let left = self.left_to_read.load(Relaxed);
        self.left_to_read.store(left.saturating_sub(bytes), Relaxed);
    }

    fn send(&self, command: ConnCommand) {
        self.command.fetch_max(command as u8, SeqCst);
        if let Some(waker) = &*self.waker() {
            waker.wake_by_ref();
        }
        if command == ConnCommand::EndStreams {
            self.streams_ended.notify_waiters();
        }
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registered connection.
#[derive(Debug)]
pub struct ConnGuard {
    id: u64,
    progress: Arc<ConnectionProgress>,
    connections: Arc<Connections>,
}

impl ConnGuard {
    /// The progress of the connection.
    pub fn progress(&self) -> &Arc<ConnectionProgress> {
        &self.progress
    }

    /// Drains the connection at about the maximum age. Ends its streams after the grace, and closes
    /// it soon after that if it is still open. Dropping the returned timer cancels all of it.
    pub fn close_after(&self, age: MaxAge) -> AgeTimer {
        let progress = Arc::clone(&self.progress);
        let MaxAge { age, grace } = MaxAge { age: spread(age.age, self.id), ..age };
        AgeTimer(tokio::spawn(async move {
            tokio::time::sleep(age).await;
            progress.send(ConnCommand::Drain);
            tokio::time::sleep(grace).await;
            progress.send(ConnCommand::EndStreams);
            tokio::time::sleep(END_GRACE).await;
            progress.send(ConnCommand::Close);
        }))
    }
}

/// The timer that closes a connection at its maximum age. Cancelled on drop.
#[derive(Debug)]
pub struct AgeTimer(JoinHandle<()>);

impl Drop for AgeTimer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Varies an age randomly by up to a tenth, so that connections that were opened together, as after
/// a restart, are not all closed together.
fn spread(age: Duration, id: u64) -> Duration {
    const STEPS: u32 = 1 << 10;
    let random = RandomState::new().hash_one(id) % u64::from(2 * STEPS);
    let step = u32::try_from(random).unwrap_or_default();
    age * 9 / 10 + age / 10 / STEPS * step
}

impl Drop for ConnGuard {
    fn drop(&mut self) {
        let mut open = self.connections.open();
        open.remove(&self.id);
        if open.is_empty() {
            self.connections.emptied.notify_waiters();
        }
    }
}

/// A request that has begun. Dropping it records the end.
#[derive(Debug)]
pub struct InFlight(Arc<ConnectionProgress>);

impl InFlight {
    /// Waits until streams of the connection have to end.
    pub async fn streams_end(&self) {
        let ended = self.0.streams_ended.notified();
        if self.0.command() != ConnCommand::EndStreams {
            ended.await;
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.unread.store(false, Relaxed);
        self.0.ended.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The actions of a client in one tick.
    type Act = fn(&Arc<ConnectionProgress>);

    /// Runs the actions of each tick, and returns the last command after each.
    fn commands_after(ticks: &[Act]) -> Vec<ConnCommand> {
        let connections = Arc::new(Connections::default());
        let guard = connections.enter();
        let each = ticks.iter().map(|tick| {
            tick(guard.progress());
            connections.sweep();
            guard.progress().command()
        });
        each.collect()
    }

    fn request(progress: &Arc<ConnectionProgress>) {
        progress.note_read();
        drop(progress.begin());
        progress.note_written(100);
    }

    fn bytes(progress: &Arc<ConnectionProgress>) {
        progress.note_read();
    }

    /// A complete request, and the beginning of the next.
    fn and_bytes(progress: &Arc<ConnectionProgress>) {
        request(progress);
        bytes(progress);
    }

    fn nothing(_: &Arc<ConnectionProgress>) {}

    #[test]
    fn closes_stalled_connections() {
        use ConnCommand::{Close, Serve};
        let stall: Act = |progress| progress.note_stalled();
        let trickle: Act = |progress| {
            progress.note_written(1);
            progress.note_stalled();
        };
        let hang: Act = |progress| std::mem::forget(progress.begin());
        #[rustfmt::skip]
        let rows: [(&str, &[Act], &[ConnCommand]); 9] = [
            ("says nothing", &[nothing, nothing], &[Serve, Close]),
            ("a head in drops", &[bytes, bytes], &[Serve, Close]),
            ("a second head in drops", &[request, nothing, bytes, bytes], &[Serve, Serve, Serve, Close]),
            ("a head in drops behind a request", &[and_bytes, bytes], &[Serve, Close]),
            ("always busy", &[and_bytes, and_bytes, and_bytes, and_bytes], &[Serve; 4]),
            ("reads the beginning of an answer", &[trickle, nothing], &[Serve, Close]),
            ("reads no answer", &[request, stall, nothing], &[Serve, Serve, Close]),
            ("reads slowly", &[request, trickle, trickle, trickle], &[Serve; 4]),
            ("waits for an answer", &[hang, nothing, nothing, nothing], &[Serve; 4]),
        ];
        for (name, ticks, commands) in rows {
            assert_eq!(commands_after(ticks), commands, "{name}");
        }
    }

    #[test]
    fn drains_idle_connections() {
        let mut ticks: Vec<Act> = vec![request];
        ticks.resize(1 + IDLE_TICKS as usize, nothing);
        let commands = commands_after(&ticks);
        let (last, before) = commands.split_last().expect("ticks");
        assert!(before.iter().all(|command| *command == ConnCommand::Serve));
        assert_eq!(*last, ConnCommand::Drain);
    }
}
