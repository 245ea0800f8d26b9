//! A spin lock of one word.
//!
//! What it guards takes tens of nanoseconds, so a waiter that spins is served
//! sooner than one that sleeps; and taking and releasing it is one atomic exchange
//! where a mutex needs two. A waiter that does not get its turn soon yields, in
//! case the holder was descheduled.

use crate::sync::{AtomicU32, Ordering, spin_loop, yield_now};

/// How long a waiter pauses between attempts, twice as long every time. Without
/// pauses two threads on one hot key pass its cache lines to and fro for every
/// decision; with them each makes a few dozen at full speed in turn, and both
/// get more done.
const FIRST_PAUSES: u32 = if cfg!(loom) { 2 } else { 16 };
const LAST_PAUSES: u32 = if cfg!(loom) { 1 } else { 128 };

#[derive(Debug)]
pub(super) struct SpinLock(AtomicU32);

impl SpinLock {
    pub(super) fn new() -> Self {
        SpinLock(AtomicU32::new(0))
    }

    /// Takes it if it is free. A failed attempt writes nothing.
    #[inline]
    pub(super) fn try_lock(&self) -> bool {
        self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes it. A plain exchange is cheaper than one that compares, and taking what
    /// is taken leaves it as it was; but the model checker would have a waiter
    /// read its own failed exchange for ever.
    #[inline]
    pub(super) fn lock(&self) {
        let taken =
            if cfg!(loom) { self.try_lock() } else { self.0.swap(1, Ordering::Acquire) == 0 };
        if !taken {
            self.wait();
        }
    }

    #[inline]
    pub(super) fn unlock(&self) {
        self.0.store(0, Ordering::Release);
    }

    #[cold]
    fn wait(&self) {
        let mut backoff = Backoff::new();
        loop {
            backoff.wait();
            if self.try_lock() {
                return;
            }
        }
    }
}

/// How a waiter waits between its attempts.
#[derive(Debug)]
pub(super) struct Backoff {
    pauses: u32,
}

impl Backoff {
    pub(super) fn new() -> Self {
        Backoff { pauses: FIRST_PAUSES }
    }

    /// Waits longer every time, then lets others run and begins anew.
    #[cold]
    pub(super) fn wait(&mut self) {
        if self.pauses <= LAST_PAUSES {
            (0..self.pauses).for_each(|_| spin_loop());
            self.pauses *= 2;
        } else {
            yield_now();
            self.pauses = FIRST_PAUSES;
        }
    }
}
