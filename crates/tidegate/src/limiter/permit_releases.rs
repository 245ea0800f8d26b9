//! Permits that are given back while others wait for them.
//!
//! The lease of a `concurrency` limit says when a permit ends at the latest, not when it is
//! released. So a waiter listens for releases under its keys. It begins to listen before it asks
//! for a permit: a release between the two is not lost.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::task::Waker;

use smallvec::SmallVec;
use tidegate_core::Algorithm;

use crate::Check;
use crate::sync::Mutex;

/// The waiters that listen, by the key they wait for.
#[derive(Debug, Default)]
pub(crate) struct Releases {
    listeners: Mutex<HashMap<u64, Vec<Listener>>>,
    /// How many there are. A release reads only this while nobody listens.
    count: AtomicUsize,
    hasher: RandomState,
}

#[derive(Debug)]
struct Listener {
    ticket: u64,
    released: bool,
    waker: Option<Waker>,
}

impl Releases {
    /// Listens for permits of the `concurrency` limits among these checks, under the ticket of a
    /// waiter.
    pub(crate) fn listen(&self, ticket: u64, checks: &[Check<'_>]) -> Listening<'_> {
        let held = checks
            .iter()
            .filter(|check| check.limit.algorithm() == Algorithm::Concurrency && !check.observed);
        let names: SmallVec<[u64; 2]> = held.map(|check| self.hasher.hash_one(check.key)).collect();
        let mut listeners = self.listeners.lock();
        for name in &names {
            let listener = Listener { ticket, released: false, waker: None };
            listeners.entry(*name).or_default().push(listener);
        }
        self.count.fetch_add(names.len(), Ordering::SeqCst);
        drop(listeners);
        // A release either sees the count or happened before what the listener asks next.
        fence(Ordering::SeqCst);
        Listening { releases: self, ticket, names }
    }

    /// Wakes the waiters for permits of a key, one of which was released.
    pub(crate) fn notify(&self, key: &[u8]) {
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut woken = SmallVec::<[Waker; 4]>::new();
        let name = self.hasher.hash_one(key);
        if let Some(listeners) = self.listeners.lock().get_mut(&name) {
            for listener in listeners {
                listener.released = true;
                woken.extend(listener.waker.take());
            }
        }
        woken.into_iter().for_each(Waker::wake);
    }
}

/// A waiter that listens, until this is dropped.
#[derive(Debug)]
pub(crate) struct Listening<'r> {
    releases: &'r Releases,
    ticket: u64,
    names: SmallVec<[u64; 2]>,
}

impl Listening<'_> {
    /// Whether a permit was released since this began; if not, `waker` is woken by the next one.
    pub(crate) fn poll_released(&self, waker: &Waker) -> bool {
        let mut listeners = self.releases.listeners.lock();
        let mut released = false;
        for name in &self.names {
            let own = listeners.get_mut(name).into_iter().flatten();
            for listener in own.filter(|listener| listener.ticket == self.ticket) {
                released |= listener.released;
                listener.waker = Some(waker.clone());
            }
        }
        released
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        let mut listeners = self.releases.listeners.lock();
        for name in &self.names {
            if let Some(waiting) = listeners.get_mut(name) {
                waiting.retain(|listener| listener.ticket != self.ticket);
                if waiting.is_empty() {
                    listeners.remove(name);
                }
            }
        }
        self.releases.count.fetch_sub(self.names.len(), Ordering::SeqCst);
    }
}
