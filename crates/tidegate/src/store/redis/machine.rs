//! What a store takes from the machine that it runs on: sockets, clocks and random numbers.
//!
//! The simulation in `tests/simulation` replaces all of them, so that a run depends on its seed
//! alone. Timers and [`tokio::time::Instant`] follow the paused clock of the simulation's runtime.

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use tidegate_core::Timestamp;
use tokio::time::Instant;

/// The machine of a store.
#[derive(Clone, Default)]
pub(super) enum Machine {
    #[default]
    Real,
    #[cfg(feature = "unstable")]
    Simulated(std::sync::Arc<dyn SimulatedMachine>),
}

/// A machine of a simulation.
#[cfg(feature = "unstable")]
pub trait SimulatedMachine: Send + Sync {
    /// Connects to the store.
    fn connect(&self) -> Boxed<std::io::Result<Box<dyn SimulatedSocket>>>;
    /// Returns the monotonic clock and the wall clock, in microseconds.
    fn clocks(&self) -> (u64, u64);
    /// Returns a random number.
    fn random(&self) -> u64;
    /// Lets a moment pass. A loop that waits for a short time calls it, because a paused clock
    /// stands still while a task is ready to run.
    fn pass_time(&self) -> Boxed<()>;
    /// Records that the store has decided a request of the current task at this time of its clock.
    /// The task does not wait between this call and the verdict.
    fn decided(&self, at: Timestamp);
}

/// A socket of a simulation.
#[cfg(feature = "unstable")]
pub trait SimulatedSocket: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send {}

/// A future on the heap.
#[cfg(feature = "unstable")]
pub type Boxed<T> = std::pin::Pin<Box<dyn Future<Output = T> + Send>>;

impl Machine {
    /// Returns a random number that nobody can guess.
    pub(super) fn random(&self) -> u64 {
        #[cfg(feature = "unstable")]
        if let Machine::Simulated(machine) = self {
            return machine.random();
        }
        // Every state has other keys.
        RandomState::new().hash_one(0)
    }

    /// Lets other tasks run, in a loop that waits for a short time.
    pub(super) async fn yield_now(&self) {
        #[cfg(feature = "unstable")]
        if let Machine::Simulated(machine) = self {
            return machine.pass_time().await;
        }
        tokio::task::yield_now().await;
    }

    /// Reports when the store has decided a request, to a simulation.
    pub(super) fn note_decided(&self, _at: Timestamp) {
        #[cfg(feature = "unstable")]
        if let Machine::Simulated(machine) = self {
            machine.decided(_at);
        }
    }
}

/// The time on the clocks of this node.
///
/// A lease ends by whichever clock is ahead. The monotonic clock never steps, but on many systems
/// it stands still while the machine is suspended; the wall clock does not.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeTime {
    /// The monotonic clock, since the store was created.
    pub(super) monotonic: Timestamp,
    /// The wall clock.
    pub(super) wall: Timestamp,
}

/// The clocks of this node.
pub(super) struct NodeClock {
    #[cfg_attr(not(feature = "unstable"), allow(dead_code, reason = "for a simulation"))]
    machine: Machine,
    start: Instant,
}

impl NodeClock {
    pub(super) fn new(machine: Machine) -> Self {
        NodeClock { machine, start: Instant::now() }
    }

    pub(super) fn now(&self) -> NodeTime {
        #[cfg(feature = "unstable")]
        if let Machine::Simulated(machine) = &self.machine {
            let (monotonic, wall) = machine.clocks();
            let time = Timestamp::from_micros;
            return NodeTime { monotonic: time(monotonic), wall: time(wall) };
        }
        let micros = |duration: std::time::Duration| {
            Timestamp::from_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
        };
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        NodeTime { monotonic: micros(self.start.elapsed()), wall: micros(wall) }
    }
}
