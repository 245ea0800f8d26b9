//! When a server is given up, and how long to rest before it is tried again.
//!
//! A connection that breaks is given up at once. One that stays silent is given up
//! after a few deadlines in a row went by without any answer: a single slow command
//! must not cost everybody the store. What is given up is tried again in the background, with
//! pauses that grow and are spread at random so that many nodes do not return in step.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Deadlines in a row without an answer before the server is given up.
const MAX_SILENCES: u32 = 3;
const SHORTEST_REST: Duration = Duration::from_millis(20);
/// A server that is back is found within this and the time a connection takes.
const LONGEST_REST: Duration = Duration::from_millis(200);
/// A server that says no is asked less often: a person must change something.
const REFUSED_FACTOR: u32 = 10;

/// How one connection is doing.
#[derive(Debug, Default)]
pub(super) struct Health {
    silences: Mutex<Silences>,
    in_flight: AtomicUsize,
    given_up: AtomicBool,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Silences {
    count: u32,
    /// When the last of them was noticed.
    noticed: Option<Instant>,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Answered,
    /// It answered that it will do nothing of the kind, whatever the key.
    Refused,
    /// There was no answer in time.
    Silent,
    /// The connection is broken, or leads to a server that is not the right one.
    Useless,
}

impl Health {
    /// A batch is sent.
    pub(super) fn sent(&self) {
        self.in_flight.fetch_add(1, SeqCst);
    }

    /// A batch that was sent at `sent` is over.
    pub(super) fn over(&self, sent: Instant, outcome: Outcome) {
        let give_up = match outcome {
            Outcome::Answered | Outcome::Refused => {
                *self.silences() = Silences::default();
                false
            }
            Outcome::Silent => self.silences().add(sent, Instant::now()) >= MAX_SILENCES,
            Outcome::Useless => true,
        };
        self.in_flight.fetch_sub(1, SeqCst);
        if give_up {
            self.given_up.store(true, SeqCst);
        }
        self.changed.notify_one();
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(SeqCst)
    }

    /// Whether the connection is of no use any more.
    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.load(SeqCst)
    }

    /// Waits until a batch is over. For one waiter.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn silences(&self) -> MutexGuard<'_, Silences> {
        self.silences.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Silences {
    /// Batches that were in flight together and all went unanswered are one silence.
    fn add(&mut self, sent: Instant, now: Instant) -> u32 {
        if self.noticed.is_none_or(|noticed| sent >= noticed) {
            self.count += 1;
            self.noticed = Some(now);
        }
        self.count
    }
}

/// The pauses between attempts.
#[derive(Debug)]
pub(super) struct Rests {
    next: Duration,
    random: RandomState,
    taken: u64,
}

impl Rests {
    pub(super) fn new() -> Self {
        Rests { next: SHORTEST_REST, random: RandomState::new(), taken: 0 }
    }

    /// It worked: the next pause is the shortest again.
    pub(super) fn reset(&mut self) {
        self.next = SHORTEST_REST;
    }

    /// The next pause: somewhere between half and all of a time that doubles.
    pub(super) fn next(&mut self, refused: bool) -> Duration {
        self.taken += 1;
        let longest = self.next;
        self.next = (longest * 2).min(LONGEST_REST);
        let random = u32::try_from(self.random.hash_one(self.taken) >> 32).unwrap_or(0);
        let rest = longest / 2 + (longest / 2).mul_f64(f64::from(random) / f64::from(u32::MAX));
        if refused { rest * REFUSED_FACTOR } else { rest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_silences_in_a_row_give_up() {
        let health = Health::default();
        let batch = |outcome: Outcome| {
            health.sent();
            health.over(Instant::now(), outcome);
        };
        for _ in 0..10 {
            (1..MAX_SILENCES).for_each(|_| batch(Outcome::Silent));
            batch(Outcome::Answered);
        }
        assert!(!health.is_given_up());
        (0..MAX_SILENCES).for_each(|_| batch(Outcome::Silent));
        assert!(health.is_given_up());
        assert_eq!(health.in_flight(), 0);
    }

    #[test]
    fn batches_in_flight_together_are_one_silence() {
        let health = Health::default();
        let together = Instant::now();
        for _ in 0..10 * MAX_SILENCES {
            health.sent();
            health.over(together, Outcome::Silent);
        }
        assert!(!health.is_given_up());
        health.sent();
        health.over(together, Outcome::Useless);
        assert!(health.is_given_up());
    }

    #[test]
    fn pauses_grow_are_bounded_and_differ() {
        let (mut one, mut other) = (Rests::new(), Rests::new());
        let mut longest = SHORTEST_REST;
        let mut differ = false;
        for _ in 0..20 {
            let (a, b) = (one.next(false), other.next(false));
            for rest in [a, b] {
                assert!(rest >= longest / 2 && rest <= longest, "{rest:?} of {longest:?}");
            }
            differ |= a != b;
            longest = (longest * 2).min(LONGEST_REST);
        }
        assert!(differ);
        assert!(one.next(true) >= LONGEST_REST / 2 * REFUSED_FACTOR);
        one.reset();
        assert!(one.next(false) <= SHORTEST_REST);
    }
}
