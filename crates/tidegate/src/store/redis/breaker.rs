//! When a server is given up, and how long to rest before it is tried again.
//!
//! The breaker opens immediately when a connection breaks, and after a few deadlines in which
//! not a single reply arrived although some are due. The latency of a reply does not
//! matter: commands wait for those ahead of them, and that time is our own queue.
//! The node reconnects in the background, with random pauses that grow, so that many nodes do
//! not return in step.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::Notify;

/// Deadlines without any reply before a server is given up: a single slow command must not
/// cost everybody the store.
const MAX_SILENT_DEADLINES: u32 = 3;
/// Looks in that time. Silence is counted in looks, so that a process that was stopped for
/// a while does not take its own silence for the server's.
const SILENCE_CHECKS: u32 = 12;
const MIN_BACKOFF: Duration = Duration::from_millis(20);
/// A server that is back is found within this and the time a connection takes.
const MAX_BACKOFF: Duration = Duration::from_millis(200);
/// A server that says no is asked less often: a person must change something.
const REFUSED_FACTOR: u32 = 10;

/// How one connection is doing.
#[derive(Debug, Default)]
pub(super) struct ConnectionHealth {
    /// Writes that are not answered completely.
    writes: AtomicUsize,
    /// Commands without a reply.
    unanswered: AtomicUsize,
    replies: AtomicU64,
    silent: AtomicBool,
    /// The first command was sent to a connection that was idle.
    busy: Notify,
    /// A write was answered completely.
    answered: Notify,
    unusable: Notify,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Answered,
    /// It answered that it will do nothing of the kind, whatever the key.
    Refused,
    /// The connection is broken, or leads to a server that is not the right one.
    Unusable,
}

impl ConnectionHealth {
    /// A write begins.
    pub(super) fn write_started(&self) {
        self.writes.fetch_add(1, SeqCst);
    }

    /// Commands are sent.
    pub(super) fn sent(&self, commands: usize) {
        if self.unanswered.fetch_add(commands, SeqCst) == 0 {
            self.busy.notify_one();
        }
    }

    /// A reply arrived.
    pub(super) fn replied(&self) {
        self.replies.fetch_add(1, SeqCst);
        self.unanswered.fetch_sub(1, SeqCst);
    }

    /// A write was answered completely.
    pub(super) fn write_finished(&self) {
        self.writes.fetch_sub(1, SeqCst);
        self.answered.notify_one();
    }

    /// The connection is of no use any more.
    pub(super) fn mark_unusable(&self) {
        self.unusable.notify_one();
    }

    pub(super) fn writes(&self) -> usize {
        self.writes.load(SeqCst)
    }

    /// Waits until a write is over. For one waiter.
    pub(super) async fn answered(&self) {
        self.answered.notified().await;
    }

    /// Waits until the connection is of no use any more. For one waiter.
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

    /// Whether it was given up because it was silent.
    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(SeqCst)
    }
}

/// The pauses between attempts.
#[derive(Debug)]
pub(super) struct ReconnectBackoff {
    next: Duration,
    random: RandomState,
    selected: u64,
}

impl ReconnectBackoff {
    pub(super) fn new() -> Self {
        ReconnectBackoff { next: MIN_BACKOFF, random: RandomState::new(), selected: 0 }
    }

    /// It worked: the next pause is the shortest again.
    pub(super) fn reset(&mut self) {
        self.next = MIN_BACKOFF;
    }

    /// The next pause: somewhere between half and all of a time that doubles.
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

    /// Whether a server is given up within some times the silence that is allowed.
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
        let (mut one, mut other) = (ReconnectBackoff::new(), ReconnectBackoff::new());
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
