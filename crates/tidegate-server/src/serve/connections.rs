//! Who is connected, and who has overstayed.
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
    seen: Seen,
}

/// What the last sweep saw of a connection, and for how many ticks it has not moved.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    begun: u64,
    written: u64,
    idle_ticks: u32,
    head_ticks: u32,
    stalled_ticks: u32,
}

/// What a connection is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
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
    order: AtomicU8,
    waker: Mutex<Option<Waker>>,
    begun: AtomicU64,
    ended: AtomicU64,
    /// Bytes have come since the last request began or ended: a head, perhaps.
    heard: AtomicBool,
    /// A write found no room.
    stalled: AtomicBool,
    written: AtomicU64,
    /// It speaks HTTP/2, where bytes come that belong to no request: answers to pings,
    /// room for more.
    framed: AtomicBool,
    /// Bytes that may still be read in this poll.
    left_to_read: AtomicUsize,
}

impl Connections {
    /// With `keeps_idle`, connections may be idle without end, as those of a pool are.
    pub fn new(keeps_idle: bool) -> Self {
        Connections { keeps_idle, ..Connections::default() }
    }

    /// Takes a connection in; it leaves when the handle is dropped.
    pub fn enter(self: &Arc<Self>) -> Entered {
        let id = self.next.fetch_add(1, Relaxed);
        let connection = Arc::new(Connection::new());
        let entry = Entry { connection: Arc::clone(&connection), seen: Seen::default() };
        self.open().insert(id, entry);
        Entered { id, connection, connections: Arc::clone(self) }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.open().len()
    }

    /// Tells those that have overstayed to close. Called every [`TICK`].
    pub fn sweep(&self) {
        for entry in self.open().values_mut() {
            let order = entry.seen.judge(&entry.connection);
            let is_idle = order == Order::Drain;
            if order != Order::Serve && !(is_idle && self.keeps_idle) {
                entry.connection.tell(order);
            }
        }
    }

    /// Tells all the same.
    pub fn tell_all(&self, order: Order) {
        for entry in self.open().values() {
            entry.connection.tell(order);
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

impl Seen {
    fn judge(&mut self, now: &Connection) -> Order {
        let (begun, written) = (now.begun.load(Relaxed), now.written.load(Relaxed));
        let stalled = now.stalled.load(Relaxed);
        let is_under_way = begun != now.ended.load(Relaxed);
        let moved = begun != self.begun || is_under_way;
        let heard = now.heard.load(Relaxed) && !now.framed.load(Relaxed);
        let head = !is_under_way && (heard || begun == 0);
        // What has moved since the last tick may have stopped right behind it.
        let ticks = |is_stuck: bool, moved: bool, before: u32| match (is_stuck, moved) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => before + 1,
        };
        *self = Seen {
            begun,
            written,
            idle_ticks: if moved { 0 } else { self.idle_ticks + 1 },
            head_ticks: ticks(head, moved, self.head_ticks),
            stalled_ticks: ticks(stalled, written != self.written, self.stalled_ticks),
        };
        if self.head_ticks >= STALLED_TICKS || self.stalled_ticks >= STALLED_TICKS {
            Order::Close
        } else if self.idle_ticks >= IDLE_TICKS {
            Order::Drain
        } else {
            Order::Serve
        }
    }
}

impl Connection {
    fn new() -> Self {
        Connection {
            order: AtomicU8::new(Order::Serve as u8),
            waker: Mutex::default(),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            heard: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            written: AtomicU64::new(0),
            framed: AtomicBool::new(false),
            left_to_read: AtomicUsize::new(0),
        }
    }

    /// Whom to wake when there is an order. The waker of a task is the same all
    /// its life, so once is enough.
    pub fn listen(&self, waker: &Waker) {
        *self.waker() = Some(waker.clone());
    }

    /// What it has been told.
    pub fn order(&self) -> Order {
        match self.order.load(SeqCst) {
            order if order == Order::Serve as u8 => Order::Serve,
            order if order == Order::Drain as u8 => Order::Drain,
            _ => Order::Close,
        }
    }

    /// A request has begun; it ends when the mark is dropped.
    pub fn begin(self: &Arc<Self>) -> InFlight {
        self.begun.fetch_add(1, Relaxed);
        self.heard.store(false, Relaxed);
        InFlight(Arc::clone(self))
    }

    /// It speaks HTTP/2.
    pub fn speaks_in_frames(&self) {
        if !self.framed.load(Relaxed) {
            self.framed.store(true, Relaxed);
        }
    }

    /// What had come was answered in one go.
    pub fn moved(&self) {
        // Nobody else counts these.
        for count in [&self.begun, &self.ended] {
            count.store(count.load(Relaxed) + 1, Relaxed);
        }
        self.heard.store(false, Relaxed);
    }

    /// Bytes came.
    pub fn heard(&self) {
        self.heard.store(true, Relaxed);
    }

    /// Whether bytes came that no request has taken.
    pub fn has_unread(&self) -> bool {
        self.heard.load(Relaxed)
    }

    /// So many bytes went out.
    pub fn wrote(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Relaxed);
        self.stalled.store(false, Relaxed);
    }

    /// There was no room for bytes to go out.
    pub fn stalled(&self) {
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

    fn tell(&self, order: Order) {
        self.order.fetch_max(order as u8, SeqCst);
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
pub struct Entered {
    id: u64,
    connection: Arc<Connection>,
    connections: Arc<Connections>,
}

impl Entered {
    /// Its marks.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Has it drained at about this age, and closed [`AGE_GRACE`] later if it is still there;
    /// until the handle is dropped.
    pub fn age_out(&self, age: Duration) -> Aging {
        let (connection, age) = (Arc::clone(&self.connection), spread(age, self.id));
        Aging(tokio::spawn(async move {
            tokio::time::sleep(age).await;
            connection.tell(Order::Drain);
            tokio::time::sleep(AGE_GRACE).await;
            connection.tell(Order::Close);
        }))
    }
}

/// A connection's end to come; called off on drop.
#[derive(Debug)]
pub struct Aging(JoinHandle<()>);

impl Drop for Aging {
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

impl Drop for Entered {
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
        self.0.heard.store(false, Relaxed);
        self.0.ended.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a client does in a tick.
    type Act = fn(&Arc<Connection>);

    /// What a client does in each tick, and what it is told after each.
    fn told(ticks: &[Act]) -> Vec<Order> {
        let connections = Arc::new(Connections::default());
        let entered = connections.enter();
        let each = ticks.iter().map(|tick| {
            tick(entered.connection());
            connections.sweep();
            entered.connection().order()
        });
        each.collect()
    }

    fn request(connection: &Arc<Connection>) {
        connection.heard();
        drop(connection.begin());
        connection.wrote(100);
    }

    fn bytes(connection: &Arc<Connection>) {
        connection.heard();
    }

    /// A request, and the beginning of the next.
    fn and_bytes(connection: &Arc<Connection>) {
        request(connection);
        bytes(connection);
    }

    fn nothing(_: &Arc<Connection>) {}

    #[test]
    fn those_that_do_not_move_are_closed() {
        use Order::{Close, Serve};
        let stall: Act = |connection| connection.stalled();
        let trickle: Act = |connection| {
            connection.wrote(1);
            connection.stalled();
        };
        let hang: Act = |connection| std::mem::forget(connection.begin());
        #[rustfmt::skip]
        let rows: [(&str, &[Act], &[Order]); 9] = [
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
        for (name, ticks, orders) in rows {
            assert_eq!(told(ticks), orders, "{name}");
        }
    }

    #[test]
    fn the_idle_are_let_go_at_last() {
        let mut ticks: Vec<Act> = vec![request];
        ticks.resize(1 + IDLE_TICKS as usize, nothing);
        let orders = told(&ticks);
        let (last, before) = orders.split_last().expect("ticks");
        assert!(before.iter().all(|order| *order == Order::Serve));
        assert_eq!(*last, Order::Drain);
    }
}
