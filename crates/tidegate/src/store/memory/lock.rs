//! The lock of a shard: a mutex whose waiters spin.
//!
//! It is held for tens of nanoseconds, so a waiter that spins gets it sooner than one that sleeps.
//! A waiter that has spun for some time yields, in case the holder was descheduled.

use std::sync::TryLockError;

use crate::sync::{RawMutex, RawMutexGuard, spin_loop, yield_now};

/// How long a waiter pauses between attempts, twice as long every time. Without
/// pauses two threads on one hot key pass its cache lines to and fro for every
/// decision; with them each makes a few dozen at full speed in turn, and both
/// get more done.
const FIRST_PAUSES: u32 = if cfg!(loom) { 2 } else { 16 };
const LAST_PAUSES: u32 = if cfg!(loom) { 1 } else { 128 };

/// A mutex whose waiters spin. Poisoning does not matter, as for [`crate::sync::Mutex`].
#[derive(Debug, Default)]
pub(super) struct SpinMutex<T>(RawMutex<T>);

pub(super) type Guard<'a, T> = RawMutexGuard<'a, T>;

impl<T> SpinMutex<T> {
    /// Locks it if it is free.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<Guard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Locks it.
    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    #[cold]
    fn wait(&self) -> Guard<'_, T> {
        let mut backoff = Backoff::new();
        loop {
            backoff.wait();
            if let Some(guard) = self.try_lock() {
                return guard;
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
