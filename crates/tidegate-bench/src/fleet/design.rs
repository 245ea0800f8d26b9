//! The compared designs: the store of tidegate with and without leases, and counters that nodes
//! exchange.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use tidegate::redis::{RedisOptions, RedisStore};
use tidegate::{Check, Limit, Request, Store};

use crate::BoxError;
use crate::redis::server::Server;

/// How often a synchronized counter exchanges its count.
const SYNC_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Design {
    /// tidegate with leases.
    Leases,
    /// tidegate without leases.
    NoLeases,
    /// A counter on every node, exchanged with Redis every 50 ms.
    Sync,
}

impl Design {
    pub fn name(self) -> &'static str {
        match self {
            Design::Leases => "leases",
            Design::NoLeases => "no leases",
            Design::Sync => "sync 50 ms",
        }
    }
}

/// One node.
#[derive(Clone)]
pub enum Node {
    Tidegate(RedisStore),
    Sync(Arc<SyncCounter>),
}

impl Node {
    pub async fn connect(design: Design, limit: Limit, server: &Server) -> Result<Self, BoxError> {
        if design == Design::Sync {
            return Ok(Node::Sync(SyncCounter::start(limit, server)?));
        }
        let options = RedisOptions {
            timeout: Duration::from_secs(5),
            leases: design == Design::Leases,
            ..RedisOptions::new(server.url())
        };
        Ok(Node::Tidegate(RedisStore::connect(options).await?))
    }

    /// Asks for one unit of a key. Returns whether it was admitted.
    pub async fn decide(&self, key: &str, limit: &Limit) -> bool {
        match self {
            Node::Tidegate(store) => {
                let checks = [Check::new(key, limit, 1)];
                store.decide(&Request::new(&checks)).await.is_ok_and(|verdict| verdict.allowed)
            }
            Node::Sync(counter) => counter.decide(),
        }
    }

    /// Returns the number of commands that the node has sent.
    pub fn commands(&self) -> u64 {
        match self {
            Node::Tidegate(store) => store.stats().calls,
            Node::Sync(counter) => counter.commands.load(Relaxed),
        }
    }
}

/// A fixed window that a node counts locally. Every 50 ms it adds its count to the shared one, and
/// learns what the others have counted.
pub struct SyncCounter {
    limit: Limit,
    start: Instant,
    window: AtomicU64,
    /// The units of the window that Redis had at the last exchange, and those since.
    known: AtomicU64,
    added: AtomicU64,
    commands: AtomicU64,
}

impl SyncCounter {
    fn start(limit: Limit, server: &Server) -> Result<Arc<Self>, BoxError> {
        let counter = Arc::new(SyncCounter {
            limit,
            start: Instant::now(),
            window: AtomicU64::new(0),
            known: AtomicU64::new(0),
            added: AtomicU64::new(0),
            commands: AtomicU64::new(0),
        });
        let (mut connection, syncing) = (server.connect()?, Arc::clone(&counter));
        std::thread::spawn(move || {
            // Ends with the server.
            while syncing.exchange(&mut connection).is_ok() {
                std::thread::sleep(SYNC_INTERVAL);
            }
        });
        Ok(counter)
    }

    fn exchange(&self, connection: &mut redis::Connection) -> redis::RedisResult<()> {
        let window = self.window.load(Relaxed);
        let added = self.added.swap(0, Relaxed);
        let key = format!("sync:{window}");
        let total: u64 = redis::cmd("INCRBY").arg(key).arg(added).query(connection)?;
        self.known.store(total, Relaxed);
        self.commands.fetch_add(1, Relaxed);
        Ok(())
    }

    fn decide(&self) -> bool {
        let elapsed = u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        let window = elapsed / self.limit.window_us();
        if self.window.swap(window, Relaxed) != window {
            self.known.store(0, Relaxed);
            self.added.store(0, Relaxed);
        }
        let used = self.known.load(Relaxed) + self.added.load(Relaxed);
        let allowed = used < self.limit.count();
        if allowed {
            self.added.fetch_add(1, Relaxed);
        }
        allowed
    }
}
