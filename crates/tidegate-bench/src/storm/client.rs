//! The retry strategies, without clock or network.

use std::time::Duration;

use clap::ValueEnum;
use tidegate_client::{Backoff, Call, End, Fields, Outcome, Peer, RetryRules};

/// A retry strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RetryStrategy {
    /// Retries immediately.
    Naive,
    /// Full jitter, from 100 ms doubled up to 10 s; ignores the server's answer.
    FullJitter,
    /// The client helper without pacing: the server's wait times, full jitter and a retry budget.
    Backoff,
    /// The client helper with its defaults.
    Helper,
}

/// One client that sends requests in a loop.
pub enum Client {
    Naive,
    FullJitter { failures: u32 },
    Helper(Box<Helper>),
}

/// A client that uses the helper.
pub struct Helper {
    rules: RetryRules,
    peer: Peer,
    call: Option<Call>,
}

impl Client {
    pub fn new(strategy: RetryStrategy) -> Self {
        let helper = |rules: RetryRules| {
            Client::Helper(Box::new(Helper { rules, peer: Peer::new(&rules), call: None }))
        };
        match strategy {
            RetryStrategy::Naive => Client::Naive,
            RetryStrategy::FullJitter => Client::FullJitter { failures: 0 },
            RetryStrategy::Backoff => helper(RetryRules::default().unpaced()),
            RetryStrategy::Helper => helper(RetryRules::default()),
        }
    }

    /// Returns when the first request is sent.
    pub fn first(&mut self, now: Duration, random: f64) -> Duration {
        match self {
            Client::Helper(helper) => helper.begin(now, random),
            _ => now,
        }
    }

    /// Handles an answer and returns when the next request is sent: a retry or a new one.
    pub fn next(&mut self, now: Duration, allowed: bool, fields: Fields, random: f64) -> Duration {
        match self {
            Client::Naive => now,
            Client::FullJitter { failures } => {
                *failures = if allowed { 0 } else { failures.saturating_add(1) };
                let jitter = |retry| Backoff::default().jitter(retry, random);
                now + failures.checked_sub(1).map_or(Duration::ZERO, jitter)
            }
            Client::Helper(helper) => helper.next(now, allowed, fields, random),
        }
    }
}

impl Helper {
    fn begin(&mut self, now: Duration, random: f64) -> Duration {
        match Call::begin(&self.rules, &mut self.peer, now, random) {
            Ok((call, turn)) => {
                self.call = Some(call);
                turn
            }
            // The request was not sent. The caller is in a loop and tries again after the wait.
            Err(paused) => {
                self.call = None;
                now + paused.wait
            }
        }
    }

    fn next(&mut self, now: Duration, allowed: bool, fields: Fields, random: f64) -> Duration {
        let outcome = if allowed { Outcome::Answered(fields) } else { Outcome::Denied(fields) };
        let end = End { now, outcome, can_repeat: true };
        let (rules, peer) = (&self.rules, &mut self.peer);
        let again = self.call.as_mut().and_then(|call| call.ended(rules, peer, &end, random));
        again.unwrap_or_else(|| self.begin(now, random))
    }
}
