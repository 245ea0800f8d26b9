//! Atomics from one place, so that loom can stand in for them, and a mutex.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use loom::sync::{Mutex as RawMutex, MutexGuard as RawMutexGuard};
#[cfg(loom)]
pub(crate) use loom::{hint::spin_loop, thread::yield_now};

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex as RawMutex, MutexGuard as RawMutexGuard};
#[cfg(not(loom))]
pub(crate) use std::{hint::spin_loop, thread::yield_now};

/// A mutex whose poisoning does not matter: what it guards is valid after every
/// statement, and a panic elsewhere must not take the limiter down with it.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
