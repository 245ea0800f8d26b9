//! Releases the permits of acquires that nobody waits for any more.
//!
//! An acquire that times out, or whose caller drops the future, may still be carried out. Its
//! permit would then stay held until the lease ends. This node chose the permit's id, so it can
//! release the permit. The release must not overtake the acquire. Therefore it is requested where
//! the reply arrives, not where the caller gives up:
//!
//! | the acquire | the permit |
//! | --- | --- |
//! | is dropped before it is sent, or refused | was not acquired |
//! | is answered after the caller has given up | is released |
//! | is not answered in time | is released later on the same connection, which keeps the order |
//! | loses its connection | is released on the next connection |
//!
//! A release that fails is repeated until the lease of its permit has ended. Releases wait in
//! one bounded queue, and one task sends them in groups to the servers like any other call.
//! After a failover they go to the server that has the key by then.

use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use redis::Value;
use tidegate_core::PermitId;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Inner;
use super::breaker::ReconnectBackoff;
use super::script;
use super::server::{CallError, CallReply};
use super::stats::StoreCounters;
use crate::Failure;

/// The capacity of the queue of releases: several times the number of calls that one server can
/// have in flight. Names of states are bounded, so the queue takes some 20 MB at most.
const MAX_QUEUED_RELEASES: usize = 65_536;
/// The maximum number of releases that are sent together. Callers share the connection, and must
/// not wait for a long group.
const RELEASES_PER_BATCH: usize = 512;
/// After this time, a release without a reply is sent again. Servers usually reply much earlier.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// The queue of releases.
#[derive(Clone, Debug)]
pub(super) struct ReleaseQueue {
    queue: mpsc::Sender<Release>,
    counters: Arc<StoreCounters>,
}

/// A release that is not yet carried out.
#[derive(Debug)]
pub(super) struct Release {
    state: Vec<u8>,
    permit: PermitId,
    /// When the lease ends, after which a release is not needed.
    until: Instant,
}

/// A permit that may be held, and the states that hold it once its acquire was carried out.
#[derive(Debug)]
pub(super) struct PendingPermit {
    pub(super) states: Vec<Vec<u8>>,
    pub(super) permit: PermitId,
    pub(super) lease: Duration,
    pub(super) deferred_release: ReleaseQueue,
}

impl ReleaseQueue {
    /// Creates an empty queue, and the receiver for [`release_all`].
    pub(super) fn new(counters: Arc<StoreCounters>) -> (Self, mpsc::Receiver<Release>) {
        let (queue, waiting) = mpsc::channel(MAX_QUEUED_RELEASES);
        (ReleaseQueue { queue, counters }, waiting)
    }

    fn add(&self, release: Release) {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(release) {
            self.counters.deferred_releases_dropped.fetch_add(1, Relaxed);
        }
    }
}

impl PendingPermit {
    /// Queues a release of the permit, whether it is held or not.
    pub(super) fn release_later(&self) {
        let until = Instant::now() + self.lease;
        StoreCounters::add(&self.deferred_release.counters.deferred_releases, self.states.len());
        for state in &self.states {
            self.deferred_release.add(Release { state: state.clone(), permit: self.permit, until });
        }
    }
}

/// A release in progress. It is repeated in the background if this is dropped before
/// [`done`](RetryOnDrop::done) is called.
#[derive(Debug)]
pub(super) struct RetryOnDrop(pub(super) Option<PendingPermit>);

impl RetryOnDrop {
    pub(super) fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for RetryOnDrop {
    fn drop(&mut self) {
        if let Some(pending_permit) = self.0.take() {
            pending_permit.release_later();
        }
    }
}

/// Sends releases until the store is dropped.
pub(super) async fn release_all(store: Weak<Inner>, mut waiting: mpsc::Receiver<Release>) {
    let Some(seed) = store.upgrade().map(|inner| inner.machine.random()) else { return };
    let mut backoff = ReconnectBackoff::new(seed);
    let mut group = Vec::new();
    while waiting.recv_many(&mut group, RELEASES_PER_BATCH).await > 0 {
        let Some(inner) = store.upgrade() else { return };
        let mut releasing = JoinSet::new();
        for release in group.drain(..) {
            releasing.spawn(release.send(Arc::clone(&inner)));
        }
        let mut any_done = false;
        while let Some(sent) = releasing.join_next().await {
            match sent {
                // It goes to the end of the queue, so that keys of other servers do not wait for
                // it.
                Ok(Some(failed)) => inner.deferred_release.add(failed),
                _ => any_done = true,
            }
        }
        drop(inner);
        if any_done {
            backoff.reset();
        } else {
            tokio::time::sleep(backoff.next(false)).await;
        }
    }
}

impl Release {
    /// Sends the release. Returns it if it must be sent again.
    async fn send(self, inner: Arc<Inner>) -> Option<Self> {
        if Instant::now() >= self.until {
            return None;
        }
        let call = script::release_call(vec![self.state.clone()], self.permit, None);
        match tokio::time::timeout(RELEASE_TIMEOUT, inner.call(&call)).await {
            Ok(Ok(Value::Int(_))) => None,
            _ => Some(self),
        }
    }
}

/// The result of a job.
pub(super) type CallResult = Result<CallReply, CallError>;

/// The sending end of a reply.
#[derive(Debug)]
pub(super) struct ReplySender {
    sender: oneshot::Sender<CallResult>,
    pending_permit: Option<Arc<PendingPermit>>,
}

/// The caller's end of a reply.
#[derive(Debug)]
pub(super) struct ReplyReceiver {
    receiver: oneshot::Receiver<CallResult>,
    pending_permit: Option<Arc<PendingPermit>>,
}

/// Creates the two ends of a reply. `pending_permit` is the permit that the job may acquire, if
/// any.
pub(super) fn channel(pending_permit: Option<Arc<PendingPermit>>) -> (ReplySender, ReplyReceiver) {
    let (sender, receiver) = oneshot::channel();
    (
        ReplySender { sender, pending_permit: pending_permit.clone() },
        ReplyReceiver { receiver, pending_permit },
    )
}

impl ReplySender {
    /// Whether the caller has given up.
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Sends the result to the caller. Returns it as an error if the caller has given up.
    pub(super) fn send(self, replied: CallResult) -> Result<(), CallResult> {
        let is_unknown =
            matches!(replied, Err(CallError::Failed(Failure::TimedOut | Failure::Lost)));
        let sent = self.sender.send(replied);
        if let Some(pending_permit) = self.pending_permit
            && (is_unknown || matches!(sent, Err(Ok(_))))
        {
            pending_permit.release_later();
        }
        sent
    }
}

impl Future for ReplyReceiver {
    type Output = Result<CallResult, oneshot::error::RecvError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let replied = ready!(Pin::new(&mut self.receiver).poll(context));
        self.pending_permit = None;
        Poll::Ready(replied)
    }
}

impl Drop for ReplyReceiver {
    /// Releases the permit of a reply that was sent but not read. If no reply was sent yet, the
    /// sending end does so when it finds that the caller has given up.
    fn drop(&mut self) {
        if let Some(pending_permit) = self.pending_permit.take() {
            self.receiver.close();
            if let Ok(Ok(_)) = self.receiver.try_recv() {
                pending_permit.release_later();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending_permit() -> (Arc<PendingPermit>, mpsc::Receiver<Release>, Arc<StoreCounters>) {
        let counters = Arc::new(StoreCounters::default());
        let (deferred_release, waiting) = ReleaseQueue::new(Arc::clone(&counters));
        let lease = Duration::from_secs(60);
        let states = vec![b"state".to_vec()];
        let pending_permit = PendingPermit { states, permit: PermitId(7), lease, deferred_release };
        (Arc::new(pending_permit), waiting, counters)
    }

    fn answered() -> CallResult {
        Ok(CallReply::Value(Value::Nil))
    }

    fn failed(failure: Failure) -> CallResult {
        Err(CallError::Failed(failure))
    }

    /// The rows state whether a permit is released if the caller gives up before and after the
    /// reply.
    #[test]
    fn permits_are_released_where_they_may_be_held() {
        let rows: [(fn() -> CallResult, bool, bool); 6] = [
            (answered, true, true),
            (|| failed(Failure::TimedOut), true, true),
            (|| failed(Failure::Lost), true, true),
            (|| failed(Failure::Down), false, false),
            (|| failed(Failure::Refused("no".into())), false, false),
            (|| Err(CallError::TryAgain), false, false),
        ];
        for (reply_with, left_before, left_after) in rows {
            let (pending_permit, mut waiting, _) = pending_permit();
            let (reply, awaited) = channel(Some(Arc::clone(&pending_permit)));
            drop(awaited);
            drop(reply.send(reply_with()));
            assert_eq!(waiting.try_recv().is_ok(), left_before, "{:?}", reply_with());
            let (reply, awaited) = channel(Some(pending_permit));
            drop(reply.send(reply_with()));
            drop(awaited);
            assert_eq!(waiting.try_recv().is_ok(), left_after, "{:?}", reply_with());
            assert!(waiting.try_recv().is_err(), "at most once");
        }
    }

    #[test]
    fn read_replies_and_unsent_calls_release_nothing() {
        let (pending_permit, mut waiting, _) = pending_permit();
        let (reply, mut awaited) = channel(Some(Arc::clone(&pending_permit)));
        assert!(reply.send(answered()).is_ok());
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(Pin::new(&mut awaited).poll(&mut context).is_ready());
        drop(awaited);
        let (reply, awaited) = channel(Some(pending_permit));
        drop(awaited);
        assert!(reply.is_closed());
        drop(reply);
        assert!(waiting.try_recv().is_err());
    }

    #[test]
    fn releases_beyond_the_bound_are_dropped_and_counted() {
        let (pending_permit, _waiting, counters) = pending_permit();
        for _ in 0..MAX_QUEUED_RELEASES + 3 {
            pending_permit.release_later();
        }
        let stats = counters.read(true, 0);
        assert_eq!(stats.deferred_releases, MAX_QUEUED_RELEASES as u64 + 3);
        assert_eq!(stats.deferred_releases_dropped, 3);
    }
}
