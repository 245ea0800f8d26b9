//! The lock of a shard: a mutex whose waiters spin.
//!
//! The lock is held for tens of nanoseconds, so a waiter that spins gets it sooner than one that
//! sleeps. A waiter that has spun for some time yields, in case the holder was descheduled.

use std::sync::TryLockError;

use crate::sync::{RawMutex, RawMutexGuard, spin_loop, yield_now};

/// The length of the first and the last pause of a waiter between attempts. Each pause is twice as
/// long as the one before. Without pauses, two threads on one hot key would exchange its cache
/// lines for every decision. With them, each thread makes a few dozen decisions at full speed in
/// turn, and both make more decisions.
const FIRST_PAUSES: u32 = if cfg!(loom) { 2 } else { 16 };
const LAST_PAUSES: u32 = if cfg!(loom) { 1 } else { 128 };

/// A mutex whose waiters spin. It ignores poisoning, as [`crate::sync::Mutex`] does.
#[derive(Debug, Default)]
pub(super) struct SpinMutex<T>(RawMutex<T>);

pub(super) type Guard<'a, T> = RawMutexGuard<'a, T>;

impl<T> SpinMutex<T> {
    /// Locks the mutex if it is free.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<Guard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Locks the mutex.
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

/// The pauses of a waiter between its attempts.
#[derive(Debug)]
pub(super) struct Backoff {
    pauses: u32,
}

impl Backoff {
    pub(super) fn new() -> Self {
        Backoff { pauses: FIRST_PAUSES }
    }

    /// Waits longer every time, then yields to other threads and starts again.
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
