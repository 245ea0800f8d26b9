//! Who asks a shared store, and may be gone before it has answered.
//!
//! A future that is dropped while the store decides takes the answer with it: what was
//! charged or held there can then not be given back, for nobody knows of it. So whoever owns such
//! a future must know whether it asks just now, and then let it run on to the
//! answer. While it only waits for its turn it is dropped: it leaves the queue.

use std::sync::atomic::{AtomicBool, Ordering};

/// What a future and its owner know of each other.
#[derive(Debug, Default)]
pub(crate) struct CallTracker {
    is_in_flight: AtomicBool,
    is_cancelled: AtomicBool,
}

impl CallTracker {
    /// Asks: what comes of it must not be lost.
    pub(crate) async fn track<T>(&self, call: impl Future<Output = T>) -> T {
        self.is_in_flight.store(true, Ordering::Relaxed);
        let answer = call.await;
        self.is_in_flight.store(false, Ordering::Relaxed);
        answer
    }

    /// Whether an answer is on its way.
    #[cfg(feature = "tower")]
    pub(crate) fn is_in_flight(&self) -> bool {
        self.is_in_flight.load(Ordering::Relaxed)
    }

    /// Nobody waits any more: there is to be no question after this one.
    #[cfg(feature = "tower")]
    pub(crate) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }
}
