//! Who asks a shared store, and may be gone before it has answered.
//!
//! A future that is dropped while the store decides takes the answer with it: what was
//! charged or held there can then not be given back, for nobody knows of it. So whoever owns such
//! a future must know whether it asks just now, and then let it run on to the
//! answer. While it only waits for its turn it is dropped: it leaves the queue.

use std::sync::atomic::{AtomicBool, Ordering};

/// What a future and its owner know of each other.
#[derive(Debug, Default)]
pub(crate) struct Asker {
    is_asking: AtomicBool,
    is_gone: AtomicBool,
}

impl Asker {
    /// Asks: what comes of it must not be lost.
    pub(crate) async fn asks<T>(&self, asked: impl Future<Output = T>) -> T {
        self.is_asking.store(true, Ordering::Relaxed);
        let answer = asked.await;
        self.is_asking.store(false, Ordering::Relaxed);
        answer
    }

    /// Whether an answer is on its way.
    #[cfg(feature = "tower")]
    pub(crate) fn is_asking(&self) -> bool {
        self.is_asking.load(Ordering::Relaxed)
    }

    /// Nobody waits any more: there is to be no question after this one.
    #[cfg(feature = "tower")]
    pub(crate) fn leave(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }
}
