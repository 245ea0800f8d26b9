//! Atomics that loom can replace, and a mutex.

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

/// A mutex that ignores poisoning. The data is valid after every statement, and a panic in one
/// thread must not disable the limiter.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
