//! One call: a request and its retries.
//!
//! This module is pure. Its callers supply the time and random numbers, and send the requests. They
//! are the middleware, and the simulation by which the defaults were chosen.

use std::time::Duration;

use crate::{Backoff, Budget, Fields, Pace};

/// Settings for denials and failures.
///
/// ```
/// use std::time::Duration;
/// use tidegate_client::RetryRules;
///
/// let rules = RetryRules::default().retries(2).deadline(Duration::from_secs(10));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RetryRules {
    retries: u32,
    deadline: Duration,
    longest_pause: Duration,
    paces: bool,
    backoff: Backoff,
    budget: Budget,
}

impl Default for RetryRules {
    /// Up to 5 retries within a minute and pauses of at most 30 s, with [`Backoff::default`] and
    /// [`Budget::default`].
    fn default() -> Self {
        RetryRules {
            retries: 5,
            deadline: Duration::from_secs(60),
            longest_pause: Duration::from_secs(30),
            paces: true,
            backoff: Backoff::default(),
            budget: Budget::default(),
        }
    }
}

impl RetryRules {
    /// Sets the largest number of retries of a request.
    #[must_use]
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Sets the time, from the start of a call, after which its request is not sent again. The
    /// last response may arrive later: set reqwest's timeout to bound that.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the longest pause for pacing, whatever a server reports.
    #[must_use]
    pub fn longest_pause(mut self, longest: Duration) -> Self {
        self.longest_pause = longest;
        self
    }

    /// Disables pacing: only retries wait.
    #[must_use]
    pub fn unpaced(mut self) -> Self {
        self.paces = false;
        self
    }

    /// Sets how long a retry waits.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets how many retries are allowed among all requests.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self
    }
}

/// State that all calls to one server share.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pace: Option<Pace>,
    budget: Budget,
}

impl Peer {
    /// Creates the state of a server without history.
    pub fn new(rules: &RetryRules) -> Self {
        let pace = rules.paces.then(|| Pace::new(rules.longest_pause));
        Peer { pace, budget: rules.budget }
    }

    /// Gives back the turn of a request that will not be sent.
    pub fn give_back(&mut self, turn: Duration) {
        if let Some(pace) = &mut self.pace {
            pace.give_back(turn);
        }
    }

    fn turn(&mut self, now: Duration, chance: f64) -> Duration {
        self.pace.as_mut().map_or(now, |pace| pace.turn(now, chance))
    }

    fn learn(&mut self, now: Duration, outcome: &Outcome, chance: f64) {
        let Some(pace) = &mut self.pace else { return };
        match outcome {
            Outcome::Answered(fields) => {
                if let Some(usage) = &fields.usage {
                    pace.admitted(now, usage);
                }
            }
            Outcome::Denied(fields) => {
                pace.denied(now, fields.wait, fields.usage.as_ref(), chance);
            }
            // A server that is short of capacity does not report a limit.
            Outcome::Unavailable(fields) => pace.denied(now, fields.wait, None, chance),
            Outcome::Unreachable => {}
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// A response that is not retried.
    Answered(Fields),
    /// Status 429: a limit denied the request.
    Denied(Fields),
    /// Status 503: the server is temporarily unavailable.
    Unavailable(Fields),
    /// The connection failed, so nothing was sent.
    Unreachable,
}

impl Outcome {
    /// Classifies a response by its status.
    pub fn of(status: u16, fields: Fields) -> Self {
        match status {
            429 => Outcome::Denied(fields),
            503 => Outcome::Unavailable(fields),
            _ => Outcome::Answered(fields),
        }
    }

    fn wait(&self) -> Option<Duration> {
        match self {
            Outcome::Answered(fields) | Outcome::Denied(fields) | Outcome::Unavailable(fields) => {
                fields.wait
            }
            Outcome::Unreachable => None,
        }
    }
}

/// The error of a request that was not sent, because pacing would delay it past its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Paused {
    /// How long the request would have waited.
    pub wait: Duration,
}

impl std::fmt::Display for Paused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "request not sent: the server's limit is used up, and pacing would delay the request \
             by {} ms, past its deadline",
            self.wait.as_millis()
        )
    }
}

impl std::error::Error for Paused {}

/// A call in progress.
///
/// Times are measured from any fixed start, the same for all calls of a [`Peer`]. Chances are
/// random numbers from 0 up to 1.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    started: Duration,
    retries: u32,
}

impl Call {
    /// Begins a call. Returns the time at which to send its request, now or later.
    ///
    /// # Errors
    ///
    /// Pacing would delay the request past the deadline.
    pub fn begin(
        rules: &RetryRules,
        peer: &mut Peer,
        now: Duration,
        chance: f64,
    ) -> Result<(Self, Duration), Paused> {
        let turn = peer.turn(now, chance);
        if turn > now.saturating_add(rules.deadline) {
            peer.give_back(turn);
            return Err(Paused { wait: turn.saturating_sub(now) });
        }
        peer.budget.earn(now);
        Ok((Call { started: now, retries: 0 }, turn))
    }

    /// Records the end of a request. Returns the time at which to send it again, or `None` if
    /// the call is over and its last response is the result. Set `can_repeat` to `false` if the
    /// request cannot be sent again; its outcome is learned from in any case.
    pub fn ended(
        &mut self,
        rules: &RetryRules,
        peer: &mut Peer,
        end: &End,
        chance: f64,
    ) -> Option<Duration> {
        let End { now, outcome, can_repeat } = end;
        peer.learn(*now, outcome, chance);
        let is_final = matches!(outcome, Outcome::Answered(_));
        if is_final || !can_repeat || self.retries >= rules.retries {
            return None;
        }
        let delay = rules.backoff.delay(self.retries, outcome.wait(), chance)?;
        // Pacing spreads denied requests itself, over a longer time.
        let paced = matches!(outcome, Outcome::Denied(fields) if fields.usage.is_some())
            && peer.pace.as_ref().is_some_and(Pace::is_pacing);
        let earliest = if paced { *now } else { now.saturating_add(delay) };
        let deadline = self.started.saturating_add(rules.deadline);
        if earliest > deadline || !peer.budget.spend(*now) {
            return None;
        }
        let turn = peer.turn(earliest, chance);
        if turn > deadline {
            peer.give_back(turn);
            return None;
        }
        self.retries += 1;
        Some(turn)
    }
}

/// The end of one request of a call.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// When it ended.
    pub now: Duration,
    /// How it ended.
    pub outcome: Outcome,
    /// Whether the request can be sent again without harm.
    pub can_repeat: bool,
}
