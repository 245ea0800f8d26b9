//! Virtual time, and the network between the nodes and the server.
//!
//! Bytes of one connection arrive in order, each write after a random delay. Connections are
//! independent, so bytes of an old connection may arrive after those of a new one, also after the
//! node has closed the old one. A connection breaks with everything in flight, or with some of it
//! delivered. A node can be cut off: its bytes are held back, and new connections are not answered.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::unstable::redis::SimulatedSocket;
use tidegate_testkit::Random;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The time on the wall clocks at which a run begins: in the middle of any aligned window.
pub const EPOCH_US: u64 = 1_700_000_000_300_000;

/// Something that happens at a time.
#[derive(Debug)]
pub enum Event {
    /// Bytes of a connection arrive at the server.
    Arrive(usize, Vec<u8>),
    /// Bytes of a connection arrive at its node.
    Deliver(usize, Vec<u8>),
    /// A request arrives at a node.
    Request(usize),
    /// A fault happens.
    Fault(usize),
}

/// The delays of messages, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// The delay of most messages: up to this.
    pub usual_us: u64,
    /// One message in this number is slow.
    pub slow_one_in: u64,
    /// The delay of slow messages: up to this.
    pub slow_us: u64,
}

struct Connection {
    node: usize,
    /// The bytes that the node has not read, and its task that waits for them.
    inbound: VecDeque<u8>,
    reader: Option<Waker>,
    /// The bytes that the server has received of an incomplete command.
    received: Vec<u8>,
    /// Whether the node can use it.
    is_open: bool,
    /// Whether bytes that are in flight to the server are lost.
    is_lost: bool,
    /// The times at which the last bytes arrive in each direction.
    arrives: u64,
    delivers: u64,
}

/// The network, and what is to happen.
pub struct Network {
    start: Instant,
    pub random: Random,
    latency: Latency,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    /// The events by their number.
    scheduled: Vec<Option<Event>>,
    changed: Arc<Notify>,
    connections: Vec<Connection>,
    /// The times until which each node is cut off from the server.
    cut_off_until: Vec<u64>,
}

impl Network {
    pub fn new(random: Random, latency: Latency, nodes: usize) -> Self {
        Network {
            start: Instant::now(),
            random,
            latency,
            events: BinaryHeap::new(),
            scheduled: Vec::new(),
            changed: Arc::new(Notify::new()),
            connections: Vec::new(),
            cut_off_until: vec![0; nodes],
        }
    }

    /// The true time since the start, in microseconds.
    pub fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).expect("a short run")
    }

    pub fn schedule(&mut self, at: u64, event: Event) {
        self.events.push(Reverse((at, self.scheduled.len() as u64)));
        self.scheduled.push(Some(event));
        self.changed.notify_one();
    }

    /// Is notified when an event was scheduled.
    pub fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    /// The time of the next event.
    pub fn next_at(&self) -> Option<u64> {
        self.events.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes the next event, if its time has come.
    pub fn take_due(&mut self) -> Option<Event> {
        let now = self.now();
        self.events.peek().filter(|Reverse((at, _))| *at <= now)?;
        let Reverse((_, number)) = self.events.pop()?;
        self.scheduled[usize::try_from(number).expect("an index")].take()
    }

    /// The delay of a message of a node: at least until it is no longer cut off.
    fn arrival(&mut self, node: usize, after: u64) -> u64 {
        let now = self.now();
        let Latency { usual_us, slow_one_in, slow_us } = self.latency;
        let is_slow = self.random.below(slow_one_in) == 0;
        let delay = 1 + self.random.below(if is_slow { slow_us } else { usual_us });
        (now + delay).max(after + 1).max(self.cut_off_until[node] + delay)
    }

    /// Cuts a node off for a while.
    pub fn cut_off(&mut self, node: usize, lasts_us: u64) {
        self.cut_off_until[node] = self.now() + lasts_us;
    }

    pub fn is_cut_off(&self, node: usize) -> bool {
        self.now() < self.cut_off_until[node]
    }

    /// Opens a connection, and returns its number.
    pub fn open(&mut self, node: usize) -> usize {
        self.connections.push(Connection {
            node,
            inbound: VecDeque::new(),
            reader: None,
            received: Vec::new(),
            is_open: true,
            is_lost: false,
            arrives: 0,
            delivers: 0,
        });
        self.connections.len() - 1
    }

    /// Breaks the connections of a node. Bytes in flight to the server may still arrive.
    pub fn break_connections(&mut self, node: usize) {
        for number in 0..self.connections.len() {
            if self.connections[number].node == node && self.connections[number].is_open {
                self.close(number);
            }
        }
    }

    /// Breaks all connections, and what is in flight is lost: the server has ended.
    pub fn break_all(&mut self) {
        for number in 0..self.connections.len() {
            self.close(number);
            self.connections[number].is_lost = true;
        }
    }

    fn close(&mut self, number: usize) {
        let is_lost = self.random.below(2) == 0;
        let connection = &mut self.connections[number];
        if std::mem::replace(&mut connection.is_open, false) {
            connection.is_lost = is_lost;
            connection.reader.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Sends bytes to the server, in up to two pieces.
    fn send(&mut self, number: usize, bytes: &[u8]) {
        let at = if self.random.below(8) == 0 {
            usize::try_from(self.random.below(bytes.len() as u64)).expect("a length")
        } else {
            0
        };
        for part in [&bytes[..at], &bytes[at..]] {
            if !part.is_empty() {
                let (node, arrives) =
                    (self.connections[number].node, self.connections[number].arrives);
                let at = self.arrival(node, arrives);
                self.connections[number].arrives = at;
                self.schedule(at, Event::Arrive(number, part.to_vec()));
            }
        }
    }

    /// Takes bytes that have arrived at the server; returns all of an incomplete command. `None` if
    /// they are lost.
    pub fn arrived(&mut self, number: usize, bytes: Vec<u8>) -> Option<&mut Vec<u8>> {
        let connection = &mut self.connections[number];
        if connection.is_lost {
            return None;
        }
        connection.received.extend(bytes);
        Some(&mut connection.received)
    }

    /// Sends bytes to the node.
    pub fn reply(&mut self, number: usize, bytes: Vec<u8>) {
        let Connection { node, delivers, is_open, .. } = self.connections[number];
        if is_open && !bytes.is_empty() {
            let at = self.arrival(node, delivers);
            self.connections[number].delivers = at;
            self.schedule(at, Event::Deliver(number, bytes));
        }
    }

    /// Bytes arrive at the node.
    pub fn deliver(&mut self, number: usize, bytes: Vec<u8>) {
        let connection = &mut self.connections[number];
        if connection.is_open {
            connection.inbound.extend(bytes);
            connection.reader.take().into_iter().for_each(Waker::wake);
        }
    }
}

/// A network that tasks share.
pub type SharedNetwork = Arc<Mutex<Network>>;

/// Locks what tasks share. One task runs at a time, so it is never locked by another.
pub fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.try_lock().expect("not locked")
}

/// Connects a node to the server. Waits for ever if the node is cut off.
pub async fn connect(network: SharedNetwork, node: usize) -> io::Result<Box<dyn SimulatedSocket>> {
    let (delay, is_cut_off) = {
        let mut network = lock(&network);
        (network.random.below(1_000), network.is_cut_off(node))
    };
    tokio::time::sleep(Duration::from_micros(delay)).await;
    if is_cut_off {
        std::future::pending::<()>().await;
    }
    let number = lock(&network).open(node);
    Ok(Box::new(Socket { network, number }))
}

/// The node's end of a connection.
struct Socket {
    network: SharedNetwork,
    number: usize,
}

impl SimulatedSocket for Socket {}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut network = lock(&self.network);
        let connection = &mut network.connections[self.number];
        if connection.inbound.is_empty() && connection.is_open {
            connection.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        // A connection that is closed ends after the bytes that have arrived.
        let (first, _) = connection.inbound.as_slices();
        let length = first.len().min(buffer.remaining());
        buffer.put_slice(&first[..length]);
        connection.inbound.drain(..length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut network = lock(&self.network);
        if !network.connections[self.number].is_open {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        network.send(self.number, bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        lock(&self.network).close(self.number);
        Poll::Ready(Ok(()))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        lock(&self.network).close(self.number);
    }
}
