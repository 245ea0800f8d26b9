//! The faults.

use clap::ValueEnum;

/// A fault that is injected into Redis and removed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fault {
    /// The server is killed, and restarted empty after a while.
    Killed,
    /// The server is killed and immediately restarted, empty.
    RestartedEmpty,
    /// The server is stopped: connections stay open, but nothing is answered.
    Stopped,
    /// Every answer takes 200 ms longer.
    Slow,
    /// The server loses its scripts.
    ScriptsFlushed,
    /// A replica that is behind takes over.
    FailedOver,
    /// The server is out of memory.
    MemoryFull,
    /// The clock of the server is set back an hour.
    ClockBack,
    /// The clock of the server is set forward an hour.
    ClockForward,
    /// All connections break, ten times in a row.
    Reconnects,
    /// A third node is killed while it has a lease.
    NodeKilled,
}

impl Fault {
    pub fn describe(self) -> &'static str {
        match self {
            Fault::Killed => "kill -9, back and empty after a while",
            Fault::RestartedEmpty => "kill -9, back and empty at once",
            Fault::Stopped => "SIGSTOP, then SIGCONT",
            Fault::Slow => "200 ms added to every answer",
            Fault::ScriptsFlushed => "SCRIPT FLUSH",
            Fault::FailedOver => "its replica takes over, without the last writes",
            Fault::MemoryFull => "maxmemory reached",
            Fault::ClockBack => "clock set back an hour",
            Fault::ClockForward => "clock set forward an hour",
            Fault::Reconnects => "all connections cut, ten times",
            Fault::NodeKilled => "kill -9 of a third node that has a lease",
        }
    }

    /// Returns how many times a limit may be used again in full, because counts are lost or appear
    /// to have expired. Counts from before a clock was set back remain valid.
    pub fn limit_resets(self) -> u32 {
        match self {
            Fault::Killed | Fault::RestartedEmpty | Fault::FailedOver | Fault::ClockForward => 1,
            Fault::Stopped
            | Fault::Slow
            | Fault::ScriptsFlushed
            | Fault::MemoryFull
            | Fault::ClockBack
            | Fault::Reconnects
            | Fault::NodeKilled => 0,
        }
    }

    /// Returns whether Redis may forget units that nodes have taken, so that they are spent besides
    /// the limit. The clock of the server may also be set before a lease ends.
    pub fn forgets_leases(self) -> bool {
        self.limit_resets() > 0 || self == Fault::ClockBack
    }

    /// Returns whether every caller must notice that the store is unavailable.
    pub fn makes_store_unavailable(self) -> bool {
        matches!(self, Fault::Killed | Fault::Stopped | Fault::Slow | Fault::FailedOver)
    }
}
