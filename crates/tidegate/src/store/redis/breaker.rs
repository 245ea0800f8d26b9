//! The circuit breaker: when a server counts as down, and how long to wait before reconnecting.
//!
//! The breaker opens immediately when a connection breaks, and after a few deadlines in which not a
//! single reply arrived although some are due. The latency of a reply does not matter, because
//! commands wait for those ahead of them, and that is time in this process's own queue. The store
//! reconnects in the background, with random pauses that grow, so that many nodes do not reconnect
//! at the same time.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use foldhash::quality::FixedState;
use tokio::sync::Notify;

/// The number of deadlines without any reply after which a server counts as down. A single slow
/// command must not make the store unavailable to everybody.
const MAX_SILENT_DEADLINES: u32 = 3;
/// The number of polls in that time. Silence is measured in polls, so that a process that was
/// stopped for a while does not mistake its own pause for the silence of the server.
const SILENCE_CHECKS: u32 = 12;
const MIN_BACKOFF: Duration = Duration::from_millis(20);
/// A server that is available again is detected within this time plus the time to connect.
const MAX_BACKOFF: Duration = Duration::from_millis(200);
/// The factor of pauses after a refusal, which usually ends only when an operator changes
/// something.
const REFUSED_FACTOR: u32 = 10;

/// The health of one connection.
#[derive(Debug, Default)]
pub(super) struct ConnectionHealth {
    /// The number of writes that are not completely answered.
    writes: AtomicUsize,
    /// The number of commands without a reply.
    unanswered: AtomicUsize,
    replies: AtomicU64,
    silent: AtomicBool,
    /// Notified when a command is sent on an idle connection.
    busy: Notify,
    /// Notified when a write was completely answered.
    answered: Notify,
    unusable: Notify,
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    Answered,
    /// The server refuses such commands for every key: its memory is full, for example.
    Refused,
    /// The connection is broken, or the server cannot decide: it is a replica, for example.
    Unusable,
}

impl ConnectionHealth {
    /// Records the start of a write.
    pub(super) fn write_started(&self) {
        self.writes.fetch_add(1, SeqCst);
    }

    /// Records commands that are sent.
    pub(super) fn sent(&self, commands: usize) {
        if self.unanswered.fetch_add(commands, SeqCst) == 0 {
            self.busy.notify_one();
        }
    }

    /// Records the arrival of a reply.
    pub(super) fn replied(&self) {
        self.replies.fetch_add(1, SeqCst);
        self.unanswered.fetch_sub(1, SeqCst);
    }

    /// Records that a write was completely answered.
    pub(super) fn write_finished(&self) {
        self.writes.fetch_sub(1, SeqCst);
        self.answered.notify_one();
    }

    /// Marks the connection as unusable.
    pub(super) fn mark_unusable(&self) {
        self.unusable.notify_one();
    }

    pub(super) fn writes(&self) -> usize {
        self.writes.load(SeqCst)
    }

    /// Waits until a write was completely answered. For one waiter.
    pub(super) async fn answered(&self) {
        self.answered.notified().await;
    }

    /// Waits until the connection is unusable. For one waiter.
    pub(super) async fn unusable(&self) {
        self.unusable.notified().await;
    }

    /// Waits until the server has been silent for too long. For one waiter.
    pub(super) async fn silent(&self, timeout: Duration) {
        let (mut checks, mut replies) = (0, 0);
        while checks < SILENCE_CHECKS {
            if self.unanswered.load(SeqCst) == 0 {
                self.busy.notified().await;
                checks = 0;
            }
            tokio::time::sleep(timeout * MAX_SILENT_DEADLINES / SILENCE_CHECKS).await;
            let before = std::mem::replace(&mut replies, self.replies.load(SeqCst));
            let is_silent = replies == before && self.unanswered.load(SeqCst) > 0;
            checks = if is_silent { checks + 1 } else { 0 };
        }
        self.silent.store(true, SeqCst);
    }

    /// Whether the connection was given up because the server was silent.
    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(SeqCst)
    }
}

/// The pauses between attempts to connect.
#[derive(Debug)]
pub(super) struct ReconnectBackoff {
    next: Duration,
    random: FixedState,
    selected: u64,
}

impl ReconnectBackoff {
    /// Creates pauses that depend on a random seed.
    pub(super) fn new(seed: u64) -> Self {
        ReconnectBackoff { next: MIN_BACKOFF, random: FixedState::with_seed(seed), selected: 0 }
    }

    /// Resets the next pause to the shortest.
    pub(super) fn reset(&mut self) {
        self.next = MIN_BACKOFF;
    }

    /// Returns the next pause: a random time between half and all of a maximum, which doubles with
    /// every attempt.
    pub(super) fn next(&mut self, refused: bool) -> Duration {
        self.selected += 1;
        let longest = self.next;
        self.next = (longest * 2).min(MAX_BACKOFF);
        let random = u32::try_from(self.random.hash_one(self.selected) >> 32).unwrap_or(0);
        let delay = longest / 2 + (longest / 2).mul_f64(f64::from(random) / f64::from(u32::MAX));
        if refused { delay * REFUSED_FACTOR } else { delay }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(24);

    /// Whether a server is given up within `times` times the silence that is allowed.
    async fn is_given_up(health: &ConnectionHealth, times: u32) -> bool {
        let within = times * MAX_SILENT_DEADLINES * TIMEOUT;
        tokio::time::timeout(within, health.silent(TIMEOUT)).await.is_ok()
    }

    fn run<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(test)
    }

    #[test]
    fn only_silence_marks_a_server_as_down() {
        run(async {
            let health = ConnectionHealth::default();
            assert!(!is_given_up(&health, 3).await, "nothing is due");
            health.sent(1_000_000);
            let replies = async {
                loop {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    health.replied();
                }
            };
            tokio::select! {
                given_up = is_given_up(&health, 6) => assert!(!given_up, "replies arrive"),
                () = replies => {}
            }
            assert!(!health.is_silent());
            assert!(is_given_up(&health, 100).await, "none arrives any more");
            assert!(health.is_silent());
        });
    }

    #[test]
    fn backoff_grows_within_bounds_and_is_random() {
        let (mut one, mut other) = (ReconnectBackoff::new(1), ReconnectBackoff::new(2));
        let mut longest = MIN_BACKOFF;
        let mut differ = false;
        for _ in 0..20 {
            let (a, b) = (one.next(false), other.next(false));
            for delay in [a, b] {
                assert!(delay >= longest / 2 && delay <= longest, "{delay:?} of {longest:?}");
            }
            differ |= a != b;
            longest = (longest * 2).min(MAX_BACKOFF);
        }
        assert!(differ);
        assert!(one.next(true) >= MAX_BACKOFF / 2 * REFUSED_FACTOR);
        one.reset();
        assert!(one.next(false) <= MIN_BACKOFF);
    }
}
