//! Open connections, and their deadlines.
//!
//! Every connection has a deadline of some kind: its first bytes, the rest of a
//! head it began, the reading of an answer, the next request. A timer for each
//! would be set and called off with every request, which costs more than a
//! decision. So a request only leaves marks (a counter here, a flag there), and one
//! sweep every [`TICK`] looks at the marks of all connections and tells those that
//! have not moved for too long to close. A deadline is then met up to one tick late.

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

/// How often the marks are looked at. A head, or a stalled answer, is given up
/// on between one and two ticks: an honest client needs milliseconds.
pub const TICK: Duration = Duration::from_secs(10);

/// Ticks without a request after which a connection is closed. Four minutes: longer
/// than the pools of gateways and HTTP clients keep an idle connection (60 to
/// 90 s), so that it is they who close first and never find it closed.
const IDLE_TICKS: u32 = 24;

/// Ticks after which a head that began, or an answer nobody reads, is given up on.
const STALLED_TICKS: u32 = 2;

/// How long a connection that is too old may take to finish what was begun: decisions take
/// milliseconds, and whoever watches our health may ask again.
const AGE_GRACE: Duration = Duration::from_secs(20);

/// All connections of a server.
#[derive(Debug, Default)]
pub struct Connections {
    open: Mutex<HashMap<u64, Entry>>,
    next: AtomicU64,
    emptied: Notify,
    /// Whether the idle may stay for as long as they like.
    keeps_idle: bool,
}

#[derive(Debug)]
struct Entry {
    connection: Arc<Connection>,
    progress: Progress,
}

/// What the last sweep saw of a connection, and for how many ticks it has not moved.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    begun: u64,
    written: u64,
    idle_ticks: u32,
    head_ticks: u32,
    stalled_ticks: u32,
}

/// A command to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnCommand {
    /// Carry on.
    Serve,
    /// Finish what was begun, then close.
    Drain,
    /// Close now.
    Close,
}

/// The marks one connection leaves.
#[derive(Debug)]
pub struct Connection {
    command: AtomicU8,
    waker: Mutex<Option<Waker>>,
    begun: AtomicU64,
    ended: AtomicU64,
    /// Bytes have come since the last request began or ended: a head, perhaps.
    unread: AtomicBool,
    /// A write found no room.
    stalled: AtomicBool,
    written: AtomicU64,
    /// It speaks HTTP/2, where bytes come that belong to no request: answers to pings,
    /// room for more.
    is_http2: AtomicBool,
    /// Bytes that may still be read in this poll.
    left_to_read: AtomicUsize,
}

impl Connections {
    /// With `keeps_idle`, connections may be idle without end, as those of a pool are.
    pub fn new(keeps_idle: bool) -> Self {
        Connections { keeps_idle, ..Connections::default() }
    }

    /// Takes a connection in; it leaves when the handle is dropped.
    pub fn enter(self: &Arc<Self>) -> ConnGuard {
        let id = self.next.fetch_add(1, Relaxed);
        let connection = Arc::new(Connection::new());
        let entry = Entry { connection: Arc::clone(&connection), progress: Progress::default() };
        self.open().insert(id, entry);
        ConnGuard { id, connection, connections: Arc::clone(self) }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.open().len()
    }

    /// Commands connections past a deadline to close. Called every [`TICK`].
    pub fn sweep(&self) {
        for entry in self.open().values_mut() {
            let command = entry.progress.next_command(&entry.connection);
            let is_idle = command == ConnCommand::Drain;
            if command != ConnCommand::Serve && !(is_idle && self.keeps_idle) {
                entry.connection.send(command);
            }
        }
    }

    /// Sends a command to all connections.
    pub fn send_all(&self, command: ConnCommand) {
        for entry in self.open().values() {
            entry.connection.send(command);
        }
    }

    /// Ends when there are none.
    pub async fn empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.len() == 0 {
                return;
            }
            emptied.await;
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    fn next_command(&mut self, now: &Connection) -> ConnCommand {
        let (begun, written) = (now.begun.load(Relaxed), now.written.load(Relaxed));
        let stalled = now.stalled.load(Relaxed);
        let is_under_way = begun != now.ended.load(Relaxed);
        let moved = begun != self.begun || is_under_way;
        let unread = now.unread.load(Relaxed) && !now.is_http2.load(Relaxed);
        let head = !is_under_way && (unread || begun == 0);
        // What has moved since the last tick may have stopped right behind it.
        let ticks = |is_stuck: bool, moved: bool, before: u32| match (is_stuck, moved) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => before + 1,
        };
        *self = Progress {
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

impl Connection {
    fn new() -> Self {
        Connection {
            command: AtomicU8::new(ConnCommand::Serve as u8),
            waker: Mutex::default(),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            unread: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            written: AtomicU64::new(0),
            is_http2: AtomicBool::new(false),
            left_to_read: AtomicUsize::new(0),
        }
    }

    /// Sets the waker for commands. The waker of a task is the same all
    /// its life, so once is enough.
    pub fn set_waker(&self, waker: &Waker) {
        *self.waker() = Some(waker.clone());
    }

    /// The last command.
    pub fn command(&self) -> ConnCommand {
        match self.command.load(SeqCst) {
            command if command == ConnCommand::Serve as u8 => ConnCommand::Serve,
            command if command == ConnCommand::Drain as u8 => ConnCommand::Drain,
            _ => ConnCommand::Close,
        }
    }

    /// A request has begun; it ends when the mark is dropped.
    pub fn begin(self: &Arc<Self>) -> InFlight {
        self.begun.fetch_add(1, Relaxed);
        self.unread.store(false, Relaxed);
        InFlight(Arc::clone(self))
    }

    /// It speaks HTTP/2.
    pub fn set_http2(&self) {
        if !self.is_http2.load(Relaxed) {
            self.is_http2.store(true, Relaxed);
        }
    }

    /// What had come was answered in one go.
    pub fn note_answered(&self) {
        // Nobody else counts these.
        for count in [&self.begun, &self.ended] {
            count.store(count.load(Relaxed) + 1, Relaxed);
        }
        self.unread.store(false, Relaxed);
    }

    /// Bytes came.
    pub fn note_read(&self) {
        self.unread.store(true, Relaxed);
    }

    /// Whether bytes came that no request has taken.
    pub fn has_unread(&self) -> bool {
        self.unread.load(Relaxed)
    }

    /// So many bytes went out.
    pub fn note_written(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Relaxed);
        self.stalled.store(false, Relaxed);
    }

    /// There was no room for bytes to go out.
    pub fn note_stalled(&self) {
        self.stalled.store(true, Relaxed);
    }

    /// Whether the last write found no room.
    pub fn is_stalled(&self) -> bool {
        self.stalled.load(Relaxed)
    }

    /// Begins a poll of the connection, in which at most this many bytes are read.
    pub fn begin_poll(&self, bytes: usize) {
        self.left_to_read.store(bytes, Relaxed);
    }

    /// How many bytes may still be read in this poll.
    pub fn left_to_read(&self) -> usize {
        self.left_to_read.load(Relaxed)
    }

    /// Notes bytes that were read in this poll. Only the task that polls counts them.
    pub fn has_read(&self, bytes: usize) {
        let left = self.left_to_read.load(Relaxed);
        self.left_to_read.store(left.saturating_sub(bytes), Relaxed);
    }

    fn send(&self, command: ConnCommand) {
        self.command.fetch_max(command as u8, SeqCst);
        if let Some(waker) = &*self.waker() {
            waker.wake_by_ref();
        }
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that has been taken in.
#[derive(Debug)]
pub struct ConnGuard {
    id: u64,
    connection: Arc<Connection>,
    connections: Arc<Connections>,
}

impl ConnGuard {
    /// Its marks.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Has it drained at about this age, and closed [`AGE_GRACE`] later if it is still there;
    /// until the handle is dropped.
    pub fn close_after(&self, age: Duration) -> AgeTimer {
        let (connection, age) = (Arc::clone(&self.connection), spread(age, self.id));
        AgeTimer(tokio::spawn(async move {
            tokio::time::sleep(age).await;
            connection.send(ConnCommand::Drain);
            tokio::time::sleep(AGE_GRACE).await;
            connection.send(ConnCommand::Close);
        }))
    }
}

/// A connection's end to come; called off on drop.
#[derive(Debug)]
pub struct AgeTimer(JoinHandle<()>);

impl Drop for AgeTimer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An age up to a tenth more or less, another for each connection: those that came together,
/// as after a restart, do not all go together.
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

/// A request on its way.
#[derive(Debug)]
pub struct InFlight(Arc<Connection>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.unread.store(false, Relaxed);
        self.0.ended.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a client does in a tick.
    type Act = fn(&Arc<Connection>);

    /// What a client does in each tick, and what it is told after each.
    fn commands_after(ticks: &[Act]) -> Vec<ConnCommand> {
        let connections = Arc::new(Connections::default());
        let guard = connections.enter();
        let each = ticks.iter().map(|tick| {
            tick(guard.connection());
            connections.sweep();
            guard.connection().command()
        });
        each.collect()
    }

    fn request(connection: &Arc<Connection>) {
        connection.note_read();
        drop(connection.begin());
        connection.note_written(100);
    }

    fn bytes(connection: &Arc<Connection>) {
        connection.note_read();
    }

    /// A request, and the beginning of the next.
    fn and_bytes(connection: &Arc<Connection>) {
        request(connection);
        bytes(connection);
    }

    fn nothing(_: &Arc<Connection>) {}

    #[test]
    fn closes_stalled_connections() {
        use ConnCommand::{Close, Serve};
        let stall: Act = |connection| connection.note_stalled();
        let trickle: Act = |connection| {
            connection.note_written(1);
            connection.note_stalled();
        };
        let hang: Act = |connection| std::mem::forget(connection.begin());
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
