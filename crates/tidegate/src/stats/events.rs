//! A stream of denials that never makes a request wait.
//!
//! The latest denials are in a ring buffer. Writers overwrite it; a subscriber that is too slow
//! misses some of them, and receives their number. A flood of denials by one policy would displace
//! those of all others and fill every log. So at most [`EVENTS_PER_POLICY_PER_SECOND`] denials are
//! published per policy, and the next one published has the number of those that were suppressed.
//!
//! Slots reuse their memory: publishing a denial does not allocate.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use tidegate_core::{RetryAfter, Timestamp};

use super::mask::{Masking, StoredKey};
use super::{Decided, LimitRecord, Outcome, RequestRecord, ShownText};
use crate::sync::Mutex;

/// The number of denials that are kept for subscribers: some seconds of several policies at the
/// full rate.
pub const EVENTS_HELD: usize = 256;
/// The maximum number of denials published per policy and second, which a person can follow and a
/// log can keep.
pub const EVENTS_PER_POLICY_PER_SECOND: u64 = 10;
/// The maximum number of concurrent subscribers. Every published denial wakes all of them.
pub const MAX_SUBSCRIBERS: usize = 64;

/// A denial, or a would-be denial by an observed policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The sequence number of the published denial, starting at 1.
    pub number: u64,
    /// The time of the denial.
    pub at: Timestamp,
    /// The name of the policy.
    pub policy: Arc<str>,
    /// The denying limit; if there are several, the one with the longest wait.
    pub limit: Arc<str>,
    /// [`Outcome::Denied`] or [`Outcome::WouldDeny`].
    pub outcome: Outcome,
    /// How it was decided.
    pub decided: Decided,
    /// The key as [`LogKeys`](super::LogKeys) shows it; empty if keys are not shown.
    pub key: ShownText,
    /// The path of the request; empty if it is unknown.
    pub route: ShownText,
    /// The caller's name for the request; empty if it has none.
    pub request_id: ShownText,
    /// The time after which the request would pass.
    pub retry_after: RetryAfter,
    /// The number of denials of this policy that were suppressed since its last published one.
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
            key: ShownText::default(),
            route: ShownText::default(),
            request_id: ShownText::default(),
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

/// An item of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamItem {
    /// A denial.
    Denial(Denial),
    /// The number of denials that were overwritten before the subscriber read them.
    Missed(u64),
}

/// The ring buffer of denials.
#[derive(Debug, Default)]
pub struct Events {
    ring: Mutex<Ring>,
    /// How keys are shown to subscribers.
    masking: ArcSwap<Masking>,
}

#[derive(Debug, Default)]
struct Ring {
    /// The number of denials published so far.
    published: u64,
    /// Denial number `n` is in slot `(n - 1) % EVENTS_HELD`.
    slots: Vec<Slot>,
    readers: Vec<Reader>,
    next_reader: u64,
}

/// A denial whose key is not masked yet.
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

/// The maximum number of subscribers, [`MAX_SUBSCRIBERS`], is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManySubscribers;

impl fmt::Display for TooManySubscribers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MAX_SUBSCRIBERS} readers are connected already: close one")
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
        // The woken subscribers lock the ring again.
        drop(ring);
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(super) fn masking(&self) -> &ArcSwap<Masking> {
        &self.masking
    }

    /// Copies of the keys in the stored denials of a policy.
    pub(super) fn keys(&self, policy: &str) -> Vec<StoredKey> {
        let ring = self.ring.lock();
        let of_policy = ring.slots.iter().filter(|slot| *slot.denial.policy == *policy);
        of_policy.map(|slot| slot.key.clone()).collect()
    }

    /// Subscribes to denials: those after number `after`, or by default all stored ones.
    ///
    /// # Errors
    /// Returns an error if there are already [`MAX_SUBSCRIBERS`] subscribers.
    pub fn subscribe(
        self: &Arc<Self>,
        after: Option<u64>,
    ) -> Result<Subscription, TooManySubscribers> {
        let mut ring = self.ring.lock();
        if ring.readers.len() >= MAX_SUBSCRIBERS {
            return Err(TooManySubscribers);
        }
        let oldest = ring.oldest();
        // A number from before a restart may be too large. All stored denials are new then.
        let next = match after {
            Some(after) if after <= ring.published => after + 1,
            _ => oldest,
        };
        ring.next_reader += 1;
        let id = ring.next_reader;
        ring.readers.push(Reader { id, waker: None });
        Ok(Subscription { events: Arc::clone(self), id, next })
    }

    /// Returns the number of subscribers.
    pub fn subscribers(&self) -> usize {
        self.ring.lock().readers.len()
    }
}

impl Ring {
    /// The number of the oldest stored denial.
    fn oldest(&self) -> u64 {
        self.published + 1 - self.slots.len() as u64
    }
}

fn slot_of(number: u64) -> usize {
    // The remainder is below `EVENTS_HELD`, which is a usize.
    usize::try_from((number - 1) % EVENTS_HELD as u64).unwrap_or_default()
}

/// A subscriber to denials. Dropping it allows another one to subscribe.
#[derive(Debug)]
pub struct Subscription {
    events: Arc<Events>,
    id: u64,
    next: u64,
}

impl Subscription {
    /// Returns the next item if it is available.
    pub fn try_next(&mut self) -> Option<StreamItem> {
        match self.poll_next(None) {
            Poll::Ready(published) => Some(published),
            Poll::Pending => None,
        }
    }

    /// Waits for the next item. It runs on any runtime, and is cancel safe: dropping the future
    /// does not lose an item.
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
        // Hashing takes some time, and requests may be waiting for the lock.
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
