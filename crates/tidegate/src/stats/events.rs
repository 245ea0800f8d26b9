//! A stream of denials that never makes a request wait.
//!
//! A ring of the latest denials. Writers overwrite; a reader who is too slow
//! misses some and is told how many. A flood against one policy would push
//! everybody else's denials out and drown every log, so each policy may tell of
//! [`EVENTS_PER_POLICY_PER_SECOND`] only, and the next one told says how many were not.
//!
//! Slots keep their memory: telling of a denial allocates nothing.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use tidegate_core::{RetryAfter, Timestamp};

use super::mask::{Masking, StoredKey};
use super::{Decided, LimitRecord, Outcome, RequestRecord, Text};
use crate::sync::Mutex;

/// Denials kept for readers: some seconds of several policies at full flow.
pub const EVENTS_HELD: usize = 256;
/// Denials told per policy and second: what a person can follow and a log can keep.
pub const EVENTS_PER_POLICY_PER_SECOND: u64 = 10;
/// Readers at once: every denial told wakes all of them.
pub const MAX_SUBSCRIBERS: usize = 64;

/// A denial, or one that would have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// Counts the denials told since the start, from 1.
    pub number: u64,
    /// When.
    pub at: Timestamp,
    /// Which policy.
    pub policy: Arc<str>,
    /// Which of its limits: the one with the longest wait.
    pub limit: Arc<str>,
    /// [`Outcome::Denied`] or [`Outcome::WouldDeny`].
    pub outcome: Outcome,
    /// How it was decided.
    pub decided: Decided,
    /// Who, as [`LogKeys`](super::LogKeys) shows it; empty where keys are left out.
    pub key: Text,
    /// What was asked for; empty where there is no path.
    pub route: Text,
    /// The caller's name for the request; empty without one.
    pub request_id: Text,
    /// When it would pass.
    pub retry_after: RetryAfter,
    /// Denials of this policy that were not told since the last one that was.
    pub suppressed: u64,
}

impl Denial {
    fn new(limit: &LimitRecord<'_>) -> Self {
        Denial {
            number: 0,
            at: Timestamp::EPOCH,
            policy: Arc::clone(limit.stats.policy()),
            limit: Arc::clone(limit.stats.limit()),
            outcome: limit.stats.denied_outcome(),
            decided: limit.decided,
            key: Text::default(),
            route: Text::default(),
            request_id: Text::default(),
            retry_after: limit.retry_after,
            suppressed: 0,
        }
    }

    fn set(&mut self, record: &RequestRecord<'_>, limit: &LimitRecord<'_>) {
        self.policy = Arc::clone(limit.stats.policy());
        self.limit = Arc::clone(limit.stats.limit());
        self.outcome = limit.stats.denied_outcome();
        self.decided = limit.decided;
        self.retry_after = limit.retry_after;
        self.route.set(record.route.unwrap_or_default().as_bytes());
        self.request_id.set(record.request_id.unwrap_or_default().as_bytes());
    }
}

/// What a reader is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamItem {
    /// A denial.
    Denial(Denial),
    /// So many denials were overwritten before they could be read.
    Missed(u64),
}

/// The ring of denials.
#[derive(Debug, Default)]
pub struct Events {
    ring: Mutex<Ring>,
    /// How keys are shown to readers.
    masking: ArcSwap<Masking>,
}

#[derive(Debug, Default)]
struct Ring {
    /// How many were told.
    published: u64,
    /// Number `n` is in slot `(n - 1) % EVENTS_HELD`.
    slots: Vec<Slot>,
    readers: Vec<Reader>,
    next_reader: u64,
}

/// A denial whose key is not shown yet.
#[derive(Clone, Debug)]
struct Slot {
    denial: Denial,
    key: StoredKey,
}

#[derive(Debug)]
struct Reader {
    id: u64,
    waker: Option<Waker>,
}

/// There are [`MAX_SUBSCRIBERS`] readers already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManySubscribers;

impl fmt::Display for TooManySubscribers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MAX_SUBSCRIBERS} readers follow the denials already: close one")
    }
}

impl std::error::Error for TooManySubscribers {}

impl Events {
    pub(super) fn publish(
        &self,
        record: &RequestRecord<'_>,
        limit: &LimitRecord<'_>,
        now: Timestamp,
        suppressed: u64,
    ) {
        let mut ring = self.ring.lock();
        ring.published += 1;
        let number = ring.published;
        let index = slot_of(number);
        if index == ring.slots.len() {
            ring.slots.push(Slot { denial: Denial::new(limit), key: StoredKey::default() });
        }
        let Slot { denial, key } = &mut ring.slots[index];
        denial.set(record, limit);
        (denial.number, denial.at, denial.suppressed) = (number, now, suppressed);
        key.set(limit.key, limit.stats.template());
        let wakers: SmallVec<[Waker; 4]> =
            ring.readers.iter_mut().filter_map(|reader| reader.waker.take()).collect();
        // Woken readers come straight back here.
        drop(ring);
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(super) fn masking(&self) -> &ArcSwap<Masking> {
        &self.masking
    }

    /// The keys of the denials of a policy that are held, copied.
    pub(super) fn keys(&self, policy: &str) -> Vec<StoredKey> {
        let ring = self.ring.lock();
        let of_policy = ring.slots.iter().filter(|slot| *slot.denial.policy == *policy);
        of_policy.map(|slot| slot.key.clone()).collect()
    }

    /// Reads denials: after number `after`, or without one from the oldest held.
    ///
    /// # Errors
    /// When there are [`MAX_SUBSCRIBERS`] readers already.
    pub fn subscribe(
        self: &Arc<Self>,
        after: Option<u64>,
    ) -> Result<Subscription, TooManySubscribers> {
        let mut ring = self.ring.lock();
        if ring.readers.len() >= MAX_SUBSCRIBERS {
            return Err(TooManySubscribers);
        }
        let oldest = ring.oldest();
        // A number from before a restart may lie ahead; then all is new.
        let next = match after {
            Some(after) if after <= ring.published => after + 1,
            _ => oldest,
        };
        ring.next_reader += 1;
        let id = ring.next_reader;
        ring.readers.push(Reader { id, waker: None });
        Ok(Subscription { events: Arc::clone(self), id, next })
    }

    /// How many readers there are.
    pub fn subscribers(&self) -> usize {
        self.ring.lock().readers.len()
    }
}

impl Ring {
    /// The number of the oldest denial held.
    fn oldest(&self) -> u64 {
        self.published + 1 - self.slots.len() as u64
    }
}

fn slot_of(number: u64) -> usize {
    // The remainder is below `EVENTS_HELD`, which is a usize.
    usize::try_from((number - 1) % EVENTS_HELD as u64).unwrap_or_default()
}

/// A reader of denials. Dropping it makes room for another.
#[derive(Debug)]
pub struct Subscription {
    events: Arc<Events>,
    id: u64,
    next: u64,
}

impl Subscription {
    /// What comes next, if it is there.
    pub fn try_next(&mut self) -> Option<StreamItem> {
        match self.poll_next(None) {
            Poll::Ready(published) => Some(published),
            Poll::Pending => None,
        }
    }

    /// What comes next, once it is there. Runs on any runtime; dropping the
    /// future loses nothing.
    pub async fn next(&mut self) -> StreamItem {
        poll_fn(|context| self.poll_next(Some(context))).await
    }

    fn poll_next(&mut self, context: Option<&mut Context<'_>>) -> Poll<StreamItem> {
        let mut ring = self.events.ring.lock();
        if self.next > ring.published {
            let reader = ring.readers.iter_mut().find(|reader| reader.id == self.id);
            if let (Some(reader), Some(context)) = (reader, context) {
                reader.waker = Some(context.waker().clone());
            }
            return Poll::Pending;
        }
        let oldest = ring.oldest();
        if self.next < oldest {
            let missed = oldest - self.next;
            self.next = oldest;
            return Poll::Ready(StreamItem::Missed(missed));
        }
        let Slot { denial, key } = ring.slots[slot_of(self.next)].clone();
        self.next += 1;
        // Hashing takes a while, and requests may wait for the ring.
        drop(ring);
        let key = self.events.masking.load().text(&key);
        Poll::Ready(StreamItem::Denial(Denial { key, ..denial }))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.events.ring.lock().readers.retain(|reader| reader.id != self.id);
    }
}
