//! Who asks, under which limit, and what changes meanwhile.

use std::time::Duration;

/// What is different from the first scenario halfway through.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    Nothing,
    /// The limit's number is another one.
    Limit(u64),
    /// Only so many clients stay.
    KeepClients(usize),
}

/// What clients are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerReply {
    /// Header fields: whole seconds, rounded up.
    HeaderFields,
    /// JSON: milliseconds.
    Json,
    /// That all is left, and to come back at once.
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

/// A scenario lasts for so many windows; those before are left out. Changes come at
/// `CHANGE_WINDOW`, and then everything before `SETTLED_WINDOW` is left out.
pub const TOTAL_WINDOWS: u32 = 30;
pub const WARM_UP_WINDOWS: u32 = 5;
pub const CHANGE_WINDOW: u32 = 12;
pub const SETTLED_WINDOW: u32 = 16;

/// The scenario of the bars.
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
    /// When counting begins, in windows.
    pub fn counted_from(&self) -> u32 {
        if matches!(self.change, Change::Nothing) { WARM_UP_WINDOWS } else { SETTLED_WINDOW }
    }

    /// The limit's number while it is counted.
    pub fn counted_limit(&self) -> u64 {
        if let Change::Limit(limit) = self.change { limit } else { self.limit }
    }
}

/// Every scenario, the one of the bars first.
pub fn scenarios() -> Vec<Scenario> {
    let window = Duration::from_secs(60);
    vec![
        STORM,
        Scenario { name: "told milliseconds", reply: ServerReply::Json, ..STORM },
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
        Scenario { name: "a server that lies", reply: ServerReply::Misleading, ..STORM },
    ]
}

/// What was counted.
#[derive(Clone, Debug)]
pub struct StormCounts {
    pub sent: u64,
    /// Successes of each client that is there at the end.
    pub successes: Vec<u64>,
    /// What the limit admits in the same time.
    pub capacity: f64,
}

impl StormCounts {
    pub fn admitted(&self) -> u64 {
        self.successes.iter().sum()
    }

    /// What was admitted, as a part of what the limit admits.
    pub fn goodput(&self) -> f64 {
        float(self.admitted()) / self.capacity
    }

    /// Requests sent per success.
    pub fn sent_per_success(&self) -> f64 {
        float(self.sent) / float(self.admitted().max(1))
    }

    /// Jain's index: the square of the sum over the sum of squares, per client.
    pub fn fairness(&self) -> f64 {
        let squares: f64 = self.successes.iter().map(|it| float(*it).powi(2)).sum();
        let count = u32::try_from(self.successes.len()).map_or(f64::MAX, f64::from);
        if squares > 0.0 { float(self.admitted()).powi(2) / (count * squares) } else { 1.0 }
    }

    /// Clients without any success.
    pub fn starved(&self) -> usize {
        self.successes.iter().filter(|it| **it == 0).count()
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run, far below 2^53")]
fn float(count: u64) -> f64 {
    count as f64
}
