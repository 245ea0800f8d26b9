//! One call: its turn, its retries, its end.
//!
//! No clock, no chance and no network: the middleware asks it what to do next, and so does
//! the simulation that the choice of every number here comes from.

use std::time::Duration;

use crate::{Backoff, Budget, Fields, Pace};

/// What a client does about denials and failures.
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
    /// Up to 5 retries within a minute, paused for at most 30 s at a time, with
    /// [`Backoff::default`] and [`Budget::default`].
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
    /// How often one request is sent again at most.
    #[must_use]
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// The time from the call to the last time its request is sent. The answer to that one
    /// may come later: for this, set reqwest's timeout.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The longest pause that pacing makes, whatever a server says.
    #[must_use]
    pub fn longest_pause(mut self, longest: Duration) -> Self {
        self.longest_pause = longest;
        self
    }

    /// Requests are not paced: only retries wait.
    #[must_use]
    pub fn unpaced(mut self) -> Self {
        self.paces = false;
        self
    }

    /// How long a retry waits.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// How many retries there may be among all requests.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self
    }
}

/// What is shared by all calls to one server.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pace: Option<Pace>,
    budget: Budget,
}

impl Peer {
    /// A server that nothing is known about.
    pub fn new(rules: &RetryRules) -> Self {
        let pace = rules.paces.then(|| Pace::new(rules.longest_pause));
        Peer { pace, budget: rules.budget }
    }

    /// Gives back a turn of a call that will not be sent.
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
                if let Some(standing) = &fields.standing {
                    pace.admitted(now, standing);
                }
            }
            Outcome::Denied(fields) => {
                pace.denied(now, fields.wait, fields.standing.as_ref(), chance);
            }
            // A server that is short of capacity says nothing about a limit.
            Outcome::Unavailable(fields) => pace.denied(now, fields.wait, None, chance),
            Outcome::Unreachable => {}
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Anything that is not to be retried.
    Answered(Fields),
    /// 429: a limit denied it.
    Denied(Fields),
    /// 503: the server cannot, for now.
    Unavailable(Fields),
    /// No connection was made, so nothing was sent.
    Unreachable,
}

impl Outcome {
    /// What a status and the fields beside it mean.
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

/// The turn of a call lies behind its deadline, so it was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Paused {
    /// How long it would have had to wait.
    pub wait: Duration,
}

impl std::fmt::Display for Paused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "not sent: the server's limit is used up, and this request's turn would come in \
             {} ms, behind its deadline",
            self.wait.as_millis()
        )
    }
}

impl std::error::Error for Paused {}

/// A call under way.
///
/// Times are what has passed since any start you choose, the same for all calls of a
/// [`Peer`]; chances are numbers from 0 up to 1.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    started: Duration,
    retries: u32,
}

impl Call {
    /// Begins a call. Its request goes at the time returned, now or later.
    ///
    /// # Errors
    ///
    /// Its turn would come only after the deadline.
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

    /// A request of this call ended. `Some` is the time at which to send it again; `None`
    /// is the end: what there is, is the answer. Where a request cannot be sent again, say
    /// so with `can_repeat`: what was learned from its end counts all the same.
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
        // Pacing has its own way of spreading those who were denied, over a longer time.
        let paced = matches!(outcome, Outcome::Denied(fields) if fields.standing.is_some())
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
    /// When.
    pub now: Duration,
    /// How.
    pub outcome: Outcome,
    /// Whether the request can be sent again without harm.
    pub can_repeat: bool,
}
