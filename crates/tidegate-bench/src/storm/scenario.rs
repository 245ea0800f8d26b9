//! Scenarios: clients, limit, and changes during a run.

use std::time::Duration;

/// A change during a scenario.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    Nothing,
    /// The limit changes to this number.
    Limit(u64),
    /// All but this many clients leave.
    KeepClients(usize),
}

/// The information that the server sends to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerReply {
    /// Header fields: whole seconds, rounded up.
    HeaderFields,
    /// JSON: milliseconds.
    Json,
    /// Wrong values: nothing is used up, and retry immediately.
    Misleading,
}

/// A scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub clients: usize,
    pub limit: u64,
    pub window: Duration,
    pub algorithm: &'static str,
    pub change: Change,
    pub reply: ServerReply,
}

/// Duration of a scenario in windows. The first `WARM_UP_WINDOWS` are not counted. Changes happen
/// at `CHANGE_WINDOW`; then nothing before `SETTLED_WINDOW` is counted.
pub const TOTAL_WINDOWS: u32 = 30;
pub const WARM_UP_WINDOWS: u32 = 5;
pub const CHANGE_WINDOW: u32 = 12;
pub const SETTLED_WINDOW: u32 = 16;

/// The main scenario, which the thresholds apply to.
pub const STORM: Scenario = Scenario {
    name: "storm",
    clients: 200,
    limit: 100,
    window: Duration::from_secs(1),
    algorithm: "sliding-log",
    change: Change::Nothing,
    reply: ServerReply::HeaderFields,
};

impl Scenario {
    /// Returns the window in which counting starts.
    pub fn counted_from(&self) -> u32 {
        if matches!(self.change, Change::Nothing) { WARM_UP_WINDOWS } else { SETTLED_WINDOW }
    }

    /// Returns the number of the limit while requests are counted.
    pub fn counted_limit(&self) -> u64 {
        if let Change::Limit(limit) = self.change { limit } else { self.limit }
    }
}

/// Returns all scenarios, the main one first.
pub fn scenarios() -> Vec<Scenario> {
    let window = Duration::from_secs(60);
    vec![
        STORM,
        Scenario { name: "wait in milliseconds", reply: ServerReply::Json, ..STORM },
        Scenario { name: "one client", clients: 1, ..STORM },
        Scenario { name: "3 clients", clients: 3, ..STORM },
        Scenario { name: "50 clients", clients: 50, ..STORM },
        Scenario { name: "1000 clients", clients: 1000, ..STORM },
        Scenario { name: "a minute's window", window, clients: 20, ..STORM },
        Scenario { name: "sliding-counter", algorithm: "sliding-counter", ..STORM },
        Scenario { name: "sliding-window", algorithm: "sliding-window", ..STORM },
        Scenario { name: "fixed-window", algorithm: "fixed-window", ..STORM },
        Scenario { name: "token-bucket", algorithm: "token-bucket", ..STORM },
        Scenario { name: "bucket of one", algorithm: "token-bucket burst 1", ..STORM },
        Scenario { name: "limit halved", change: Change::Limit(50), ..STORM },
        Scenario { name: "limit doubled", change: Change::Limit(200), ..STORM },
        Scenario { name: "20 clients stay", change: Change::KeepClients(20), ..STORM },
        Scenario { name: "wrong answers", reply: ServerReply::Misleading, ..STORM },
    ]
}

/// Counts of one run.
#[derive(Clone, Debug)]
pub struct StormCounts {
    pub sent: u64,
    /// Successes of each client that is present at the end.
    pub successes: Vec<u64>,
    /// Number of requests that the limit admits in the same time.
    pub capacity: f64,
}

impl StormCounts {
    pub fn admitted(&self) -> u64 {
        self.successes.iter().sum()
    }

    /// Returns the admitted requests relative to the capacity of the limit.
    pub fn goodput(&self) -> f64 {
        float(self.admitted()) / self.capacity
    }

    /// Returns the requests sent per success.
    pub fn sent_per_success(&self) -> f64 {
        float(self.sent) / float(self.admitted().max(1))
    }

    /// Returns Jain's index: (sum of successes)^2 / (clients * sum of squared successes).
    pub fn fairness(&self) -> f64 {
        let squares: f64 = self.successes.iter().map(|successes| float(*successes).powi(2)).sum();
        let count = u32::try_from(self.successes.len()).map_or(f64::MAX, f64::from);
        if squares > 0.0 { float(self.admitted()).powi(2) / (count * squares) } else { 1.0 }
    }

    /// Returns the number of clients without any success.
    pub fn starved(&self) -> usize {
        self.successes.iter().filter(|successes| **successes == 0).count()
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run, far below 2^53")]
fn float(count: u64) -> f64 {
    count as f64
}
