//! What can go wrong.

use clap::ValueEnum;

/// Something that is done to Redis, and undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fault {
    /// The server is killed, and started again, empty, after a while.
    Killed,
    /// It is killed and started again at once, empty.
    RestartedEmpty,
    /// It is stopped: connections stay open, nothing answers.
    Stopped,
    /// Every answer takes 200 ms longer.
    Slow,
    /// It forgets its scripts.
    ScriptsFlushed,
    /// Its replica, which is behind, takes over.
    FailedOver,
    /// It has no memory left.
    MemoryFull,
    /// Its clock is set back an hour.
    ClockBack,
    /// Its clock is set forward an hour.
    ClockForward,
    /// All connections break, ten times in a row.
    Reconnects,
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
        }
    }

    /// How many times a limit may be used anew, because what was counted is lost or
    /// its time seems to have passed. What was counted before a clock was set
    /// back is counted from then on.
    pub fn limit_resets(self) -> u32 {
        match self {
            Fault::Killed | Fault::RestartedEmpty | Fault::FailedOver | Fault::ClockForward => 1,
            Fault::Stopped
            | Fault::Slow
            | Fault::ScriptsFlushed
            | Fault::MemoryFull
            | Fault::ClockBack
            | Fault::Reconnects => 0,
        }
    }

    /// Whether callers are bound to see that the store cannot be asked.
    pub fn makes_store_unavailable(self) -> bool {
        matches!(self, Fault::Killed | Fault::Stopped | Fault::Slow | Fault::FailedOver)
    }
}
