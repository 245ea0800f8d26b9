//! Helpers for futures: block on one, poll one once, await several, track a call that may be
//! cancelled.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
#[cfg(feature = "policies")]
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::thread::Thread;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to completion and blocks the thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(ready) => return ready,
            Poll::Pending => thread::park(),
        }
    }
}

/// Polls a future once. Returns `None` if it is not ready.
#[inline]
pub(crate) fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(ready) => Some(ready),
        Poll::Pending => None,
    }
}

/// The number of checks of one caller that are submitted to a shared store concurrently. It is
/// the share of a connection that one caller may use. Each check has its own deadline, so a
/// larger batch that is submitted in parts does not time out.
pub const MAX_CONCURRENT_CHECKS: usize = 128;

/// Awaits all futures together, and returns their results in order.
pub(crate) async fn join_all<F: Future + ?Sized>(mut futures: Vec<Pin<Box<F>>>) -> Vec<F::Output> {
    let mut results: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(ready) = future.as_mut().poll(context)
            {
                *result = Some(ready);
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}

/// The state of a call, shared by a future and its owner.
#[cfg(feature = "policies")]
#[derive(Debug, Default)]
pub(crate) struct CallTracker {
    is_in_flight: AtomicBool,
    is_cancelled: AtomicBool,
}

#[cfg(feature = "policies")]
impl CallTracker {
    /// Awaits a call whose result must not be lost, and marks it as in flight meanwhile.
    pub(crate) async fn track<T>(&self, call: impl Future<Output = T>) -> T {
        self.is_in_flight.store(true, Ordering::Relaxed);
        let output = call.await;
        self.is_in_flight.store(false, Ordering::Relaxed);
        output
    }

    /// Whether a call is in flight.
    #[cfg(feature = "tower")]
    pub(crate) fn is_in_flight(&self) -> bool {
        self.is_in_flight.load(Ordering::Relaxed)
    }

    /// Marks the caller as gone. The future must not start another call then.
    #[cfg(feature = "tower")]
    pub(crate) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }
}
