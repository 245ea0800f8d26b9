//! Atomics that loom can replace, and mutexes.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::{Mutex as RawMutex, MutexGuard as RawMutexGuard};
#[cfg(loom)]
use loom::{hint::spin_loop, thread::yield_now};

#[cfg(not(loom))]
use spin::mutex::{SpinMutex as RawMutex, SpinMutexGuard as RawMutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::{hint::spin_loop, thread::yield_now};

/// A mutex that ignores poisoning. The data is valid after every statement, and a panic in one
/// thread must not disable the limiter.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The length of the first and the last pause of a waiter between attempts. Each pause is twice as
/// long as the one before. Without pauses, two threads on one hot key would exchange its cache
/// lines for every decision. With them, each thread makes a few dozen decisions at full speed in
/// turn, and both make more decisions.
const FIRST_PAUSES: u32 = if cfg!(loom) { 2 } else { 16 };
const LAST_PAUSES: u32 = if cfg!(loom) { 1 } else { 128 };

/// A mutex whose waiters spin, for a shard of the memory store. It cannot be poisoned.
///
/// It is held for tens of nanoseconds, so a waiter that spins gets it sooner than one that sleeps.
/// A waiter that has spun for some time yields, in case the holder was descheduled. No waiter
/// sleeps, so a plain store releases the mutex. The standard mutex takes an atomic exchange for
/// that, which is about a tenth of the time of a decision on a log.
#[derive(Debug, Default)]
pub(crate) struct SpinMutex<T>(RawMutex<T>);

pub(crate) type SpinGuard<'a, T> = RawMutexGuard<'a, T>;

impl<T> SpinMutex<T> {
    /// Locks the mutex if it is free.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        #[cfg(loom)]
        return self.0.try_lock().ok();
        #[cfg(not(loom))]
        self.0.try_lock()
    }

    /// Locks the mutex.
    #[inline]
    pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    #[cold]
    fn wait(&self) -> SpinGuard<'_, T> {
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
pub(crate) struct Backoff {
    pauses: u32,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Backoff { pauses: FIRST_PAUSES }
    }

    /// Waits longer every time, then yields to other threads and starts again.
    #[cold]
    pub(crate) fn wait(&mut self) {
        if self.pauses <= LAST_PAUSES {
            (0..self.pauses).for_each(|_| spin_loop());
            self.pauses *= 2;
        } else {
            yield_now();
            self.pauses = FIRST_PAUSES;
        }
    }
}
