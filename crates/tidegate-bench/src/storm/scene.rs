//! Who asks, under which limit, and what changes meanwhile.

use std::time::Duration;

/// What is different from the first scene halfway through.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    Nothing,
    /// The limit's number is another one.
    Limit(u64),
    /// Only so many clients stay.
    Stay(usize),
}

/// What clients are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Header fields: whole seconds, rounded up.
    Fields,
    /// JSON: milliseconds.
    Json,
    /// That all is left, and to come back at once.
    Lies,
}

/// A scene.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    pub name: &'static str,
    pub clients: usize,
    pub limit: u64,
    pub window: Duration,
    pub algorithm: &'static str,
    pub change: Change,
    pub told: Told,
}

/// A scene lasts for so many windows; those before are left out. Changes come at
/// `CHANGES_AT`, and then everything before `SETTLED_AT` is left out.
pub const LASTS: u32 = 30;
pub const WARM_AT: u32 = 5;
pub const CHANGES_AT: u32 = 12;
pub const SETTLED_AT: u32 = 16;

/// The scene of the bars.
pub const STORM: Scene = Scene {
    name: "storm",
    clients: 200,
    limit: 100,
    window: Duration::from_secs(1),
    algorithm: "sliding-log",
    change: Change::Nothing,
    told: Told::Fields,
};

impl Scene {
    /// When counting begins, in windows.
    pub fn counted_from(&self) -> u32 {
        if matches!(self.change, Change::Nothing) { WARM_AT } else { SETTLED_AT }
    }

    /// The limit's number while it is counted.
    pub fn limit_counted(&self) -> u64 {
        if let Change::Limit(limit) = self.change { limit } else { self.limit }
    }
}

/// Every scene, the one of the bars first.
pub fn scenes() -> Vec<Scene> {
    let window = Duration::from_secs(60);
    vec![
        STORM,
        Scene { name: "told milliseconds", told: Told::Json, ..STORM },
        Scene { name: "one client", clients: 1, ..STORM },
        Scene { name: "3 clients", clients: 3, ..STORM },
        Scene { name: "50 clients", clients: 50, ..STORM },
        Scene { name: "1000 clients", clients: 1000, ..STORM },
        Scene { name: "a minute's window", window, clients: 20, ..STORM },
        Scene { name: "sliding-counter", algorithm: "sliding-counter", ..STORM },
        Scene { name: "sliding-window", algorithm: "sliding-window", ..STORM },
        Scene { name: "fixed-window", algorithm: "fixed-window", ..STORM },
        Scene { name: "token-bucket", algorithm: "token-bucket", ..STORM },
        Scene { name: "bucket of one", algorithm: "token-bucket burst 1", ..STORM },
        Scene { name: "limit halved", change: Change::Limit(50), ..STORM },
        Scene { name: "limit doubled", change: Change::Limit(200), ..STORM },
        Scene { name: "20 clients stay", change: Change::Stay(20), ..STORM },
        Scene { name: "a server that lies", told: Told::Lies, ..STORM },
    ]
}

/// What was counted.
#[derive(Clone, Debug)]
pub struct Tally {
    pub sent: u64,
    /// Successes of each client that is there at the end.
    pub successes: Vec<u64>,
    /// What the limit admits in the same time.
    pub capacity: f64,
}

impl Tally {
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
