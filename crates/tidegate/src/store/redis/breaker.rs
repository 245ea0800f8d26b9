//! When a server is given up, and how long to rest before it is tried again.
//!
//! A connection that breaks is given up at once. One that stays silent is given up
//! after a few batches in a row went unanswered: a single slow answer must not cost
//! everybody the store. What is given up is tried again in the background, with
//! pauses that grow and are spread at random so that many nodes do not return in step.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::Notify;

/// Batches in a row that go unanswered before the server is given up.
const MAX_SILENCES: u32 = 3;
const SHORTEST_REST: Duration = Duration::from_millis(20);
/// A server that is back is found within this and the time a connection takes.
const LONGEST_REST: Duration = Duration::from_millis(200);
/// A server that says no is asked less often: a person must change something.
const REFUSED_FACTOR: u32 = 10;

/// How one connection is doing.
#[derive(Debug, Default)]
pub(super) struct Health {
    silences: AtomicU32,
    given_up: AtomicBool,
    noticed: Notify,
}

impl Health {
    pub(super) fn answered(&self) {
        self.silences.store(0, Relaxed);
    }

    pub(super) fn silent(&self) {
        if self.silences.fetch_add(1, Relaxed) + 1 >= MAX_SILENCES {
            self.give_up();
        }
    }

    /// The connection is of no use any more.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Relaxed);
        self.noticed.notify_one();
    }

    /// Waits until it is given up.
    pub(super) async fn given_up(&self) {
        while !self.given_up.load(Relaxed) {
            self.noticed.notified().await;
        }
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

    fn is_given_up(health: &Health) -> bool {
        health.given_up.load(Relaxed)
    }

    #[test]
    fn only_silences_in_a_row_give_up() {
        let health = Health::default();
        for _ in 0..10 {
            (1..MAX_SILENCES).for_each(|_| health.silent());
            health.answered();
        }
        assert!(!is_given_up(&health));
        (0..MAX_SILENCES).for_each(|_| health.silent());
        assert!(is_given_up(&health));
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
