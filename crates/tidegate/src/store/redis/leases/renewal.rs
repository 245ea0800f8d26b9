//! The task that takes leases, renews them and gives them back.
//!
//! It looks at all leased keys once in a [`TICK`], and at a key that runs out of units immediately.
//! The operations of all keys that are due share calls of `lease.lua`, which go through the queue
//! of their server like any other command.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tidegate_core::Timestamp;

use super::super::Inner;
use super::super::lease_call::{LeaseEntry, decode_lease_reply, lease_call};
use super::super::machine::NodeTime;
use super::super::topology::Topology;
use super::key_leases::EndedUnits;
use super::{LeasedKey, Leases};

/// The time between two looks at all keys: a small part of the shortest lease that is renewed
/// often.
const TICK: Duration = Duration::from_millis(5);
/// The maximum number of states in one call, so that other clients of the server do not wait long.
const MAX_ENTRIES: usize = 32;
/// The time for which leases are suspended after the clocks drifted apart.
const SUSPENSION: Duration = Duration::from_secs(10);
/// The maximum number of slots whose clocks are compared. The servers of a cluster have a clock
/// each.
const MAX_COMPARED: usize = 1024;
/// The warning that an operator sees.
const DRIFT_WARNING: &str = "the clocks of this node and of the store drift apart by more than \
                             0.1 %, or one of them was set: leases are suspended for 10 s; check NTP";

/// Renews leases until the store is dropped.
pub(in super::super) async fn renew_all(store: Weak<Inner>) {
    loop {
        let Some(inner) = store.upgrade() else { return };
        let Some(leases) = inner.leases.clone() else { return };
        let is_idle = leases.keys.load(Relaxed) == 0;
        drop(inner);
        tokio::select! {
            biased;
            () = leases.woken.notified() => {}
            () = tokio::time::sleep(TICK), if !is_idle => leases.queue_all(),
        }
        let Some(inner) = store.upgrade() else { return };
        let due = leases.take_due();
        for (slot, entries) in leases.entries_of(due, |name| inner.topology.slot(name)) {
            let (store, sent) = (Arc::clone(&inner), leases.clock.now());
            tokio::spawn(async move { store.send_operations(slot, entries, sent).await });
        }
    }
}

/// Gives back all units, for a store that is shut down. The leases cannot be spent any more.
pub(in super::super) async fn give_back_all(
    leases: &Leases,
    topology: &Topology,
    timeout: Duration,
) {
    let keys = leases.all_keys();
    keys.iter().for_each(|key| {
        key.leases().close();
    });
    let give_back = async {
        for (slot, due) in leases.entries_of(keys, |name| topology.slot(name)) {
            let (keys, entries): (Vec<_>, Vec<LeaseEntry>) = due.into_iter().unzip();
            let call = lease_call(&entries, None);
            // Units that cannot be given back expire.
            drop(topology.send_call(slot, &call, &leases.counters).await);
            keys.iter().for_each(|key| leases.remove(key));
        }
    };
    drop(tokio::time::timeout(timeout, give_back).await);
}

/// The operations on one key.
type DueEntry = (Arc<LeasedKey>, LeaseEntry);

impl Leases {
    /// Lets the task look at every key.
    fn queue_all(&self) {
        let keys = self.all_keys();
        *self.due.lock().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    fn take_due(&self) -> Vec<Arc<LeasedKey>> {
        std::mem::take(&mut *self.due.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The operations of all keys that are due, as the entries of calls with one slot each. Keys
    /// that are no longer hot are dropped.
    fn entries_of(
        &self,
        keys: Vec<Arc<LeasedKey>>,
        slot: impl Fn(&[u8]) -> u16,
    ) -> Vec<(u16, Vec<DueEntry>)> {
        let (now, mut ended) = (self.clock.now(), EndedUnits::default());
        let mut by_slot = BTreeMap::<u16, Vec<DueEntry>>::new();
        for key in keys {
            let operations = {
                let mut leases = key.leases();
                let operations = leases.operations(now, || self.new_grant_id(), &mut ended);
                if operations.is_empty() {
                    if leases.is_done(now) {
                        leases.close();
                        drop(leases);
                        self.remove(&key);
                    }
                    continue;
                }
                operations.into_vec()
            };
            let entry = LeaseEntry { key: key.name.clone(), limit: key.limit, operations };
            by_slot.entry(slot(&key.name)).or_default().push((key, entry));
        }
        self.count(&ended);
        let mut calls = Vec::new();
        for (slot, mut entries) in by_slot {
            while !entries.is_empty() {
                let rest = entries.split_off(entries.len().min(MAX_ENTRIES));
                calls.push((slot, std::mem::replace(&mut entries, rest)));
            }
        }
        calls
    }

    fn count(&self, ended: &EndedUnits) {
        self.counters.lease_granted.fetch_add(ended.granted, Relaxed);
        self.counters.lease_given_back.fetch_add(ended.given_back, Relaxed);
        self.counters.lease_expired.fetch_add(ended.expired, Relaxed);
    }

    /// Compares the clocks by a reply. If they drift apart, all leases are given back and none are
    /// taken for a while. Returns whether they agree.
    fn compare_clocks(&self, slot: u16, reply: ReplyTimes) -> bool {
        let mut detectors = self.drift.lock().unwrap_or_else(PoisonError::into_inner);
        if detectors.len() >= MAX_COMPARED && !detectors.contains_key(&slot) {
            detectors.clear();
        }
        if !detectors.entry(slot).or_default().note(reply) {
            return true;
        }
        drop(detectors);
        self.counters.lease_drifts.fetch_add(1, Relaxed);
        self.counters.warn(Some(DRIFT_WARNING.into()));
        self.suspended.store(true, Relaxed);
        for key in self.all_keys() {
            if key.leases().close() {
                self.wake(key);
            }
        }
        false
    }
}

impl Inner {
    /// Sends operations on keys of one slot, and takes the replies.
    async fn send_operations(&self, slot: u16, due: Vec<DueEntry>, sent: NodeTime) {
        let Some(leases) = &self.leases else { return };
        let (keys, entries): (Vec<_>, Vec<LeaseEntry>) = due.into_iter().unzip();
        let call = lease_call(&entries, None);
        let sending = self.topology.send_call(slot, &call, &self.counters);
        let reply = tokio::time::timeout(self.timeout, sending).await;
        let reply = reply.ok().and_then(Result::ok);
        let replies = reply.and_then(|reply| decode_lease_reply(&entries, &reply).ok());
        let (now, mut ended) = (leases.clock.now(), EndedUnits::default());
        let Some(replies) = replies else {
            keys.iter().for_each(|key| key.leases().failed(now));
            return;
        };
        if let Some(Ok(first)) = replies.first() {
            let (sent, received) = (sent.monotonic, now.monotonic);
            let reply = ReplyTimes { sent, received, store: first.now };
            if !leases.compare_clocks(slot, reply) {
                self.end_suspension_later();
            }
        }
        for (key, reply) in keys.iter().zip(replies) {
            match reply {
                Ok(reply) => key.leases().received(&reply, now, &mut ended),
                Err(_) => key.leases().failed(now),
            }
        }
        leases.count(&ended);
    }

    fn end_suspension_later(&self) {
        let leases = self.leases.clone();
        self.io_thread.runtime().spawn(async move {
            tokio::time::sleep(SUSPENSION).await;
            if let Some(leases) = leases {
                leases.suspended.store(false, Relaxed);
            }
        });
    }
}

/// The part of a time by which the clocks may differ: one in this number, as in
/// [`tidegate_core::Lease`].
const DRIFT_DIVISOR: i128 = 1_000;
/// The time after which two replies are compared, in microseconds. Within it, a round trip would
/// hide more than the allowance.
const MIN_INTERVAL_US: i128 = 1_000_000;
/// The time after which a newer reply becomes the one that others are compared with. Slow drift of
/// both clocks that NTP corrects must not add up.
const MAX_INTERVAL_US: i128 = 30_000_000;

/// The times of one reply, in microseconds.
#[derive(Clone, Copy, Debug)]
struct ReplyTimes {
    /// The time on the clock of the node at which the request was sent.
    sent: Timestamp,
    /// The time on the clock of the node at which the reply was received.
    received: Timestamp,
    /// The time on the clock of the store.
    store: Timestamp,
}

impl ReplyTimes {
    /// The smallest and the largest possible difference of the clocks.
    fn difference(&self) -> (i128, i128) {
        let micros = |time: Timestamp| i128::from(time.as_micros());
        (micros(self.store) - micros(self.received), micros(self.store) - micros(self.sent))
    }
}

/// Detects clocks that drift apart by more than leases allow for.
///
/// A lease ends on the clock of the node. That is safe while the clock of the store is faster by at
/// most one part in a thousand. Each reply has the time of the store, and the node knows when it
/// sent the request and when it received the reply. So the difference of the two clocks is known up
/// to the round trip:
///
/// ```text
///   store - node    is between    store - received    and    store - sent
/// ```
///
/// If two replies show that the difference has certainly changed by more than a thousandth of the
/// time between them, a clock drifts or was set, or the node was suspended.
#[derive(Debug, Default)]
pub(super) struct DriftDetector {
    earlier: Option<ReplyTimes>,
}

impl DriftDetector {
    /// Records a reply. Returns whether it shows that the clocks drift apart.
    fn note(&mut self, reply: ReplyTimes) -> bool {
        let Some(earlier) = self.earlier else {
            self.earlier = Some(reply);
            return false;
        };
        let (low, high) = reply.difference();
        let (earlier_low, earlier_high) = earlier.difference();
        let elapsed = i128::from(reply.received.as_micros()) - i128::from(earlier.sent.as_micros());
        let allowed = elapsed.max(MIN_INTERVAL_US) / DRIFT_DIVISOR;
        let drifts = low - earlier_high > allowed || earlier_low - high > allowed;
        if drifts || elapsed > MAX_INTERVAL_US {
            self.earlier = Some(reply);
        }
        drifts
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Limit;

    use super::super::super::key_names::KeyNames;
    use super::super::super::machine::Machine;
    use super::*;
    use crate::Check;

    #[test]
    fn clocks_that_drift_apart_suspend_leases() {
        let counters = Arc::<super::super::StoreCounters>::default();
        let leases = Leases::new(Arc::clone(&counters), &Machine::default());
        let limit: Limit = "600000 per 1m".parse().expect("a limit");
        let (check, key_names) = (Check::new("alice", &limit, 1), KeyNames::new("tg"));
        leases.lease(&check, leases.hash(&check), &key_names, leases.clock.now());
        let calls = leases.entries_of(leases.take_due(), |_| 0);
        assert_eq!(calls.len(), 1);
        let reply = |at: u64, store: u64| {
            let time = Timestamp::from_micros;
            ReplyTimes { sent: time(at), received: time(at + 100), store: time(store) }
        };
        assert!(leases.compare_clocks(0, reply(0, 50)));
        // Another server has another clock.
        assert!(leases.compare_clocks(1, reply(1_000_000, 5)));
        assert!(leases.compare_clocks(0, reply(2_000_000, 2_001_000)));
        assert!(!leases.suspended.load(Relaxed));
        assert!(!leases.compare_clocks(0, reply(10_000_000, 10_020_000)));
        assert!(leases.suspended.load(Relaxed));
        assert_eq!(counters.read(true, 0).lease_clock_drifts, 1);
        assert_eq!(counters.warnings(), [DRIFT_WARNING]);
        assert!(!leases.all_keys()[0].leases().close(), "closed already");
    }

    const SECOND: u64 = 1_000_000;

    /// A reply after `at` microseconds, whose round trip takes 400 us, and in the middle of which
    /// the clock of the store is ahead by `ahead`.
    fn reply(at: u64, ahead: i64) -> ReplyTimes {
        let time = Timestamp::from_micros;
        let store = (500 * SECOND + at + 200).checked_add_signed(ahead).expect("later than 1970");
        ReplyTimes { sent: time(at), received: time(at + 400), store: time(store) }
    }

    #[test]
    fn round_trips_and_slow_drift_are_within_the_allowance() {
        let mut detector = DriftDetector::default();
        for (at, ahead) in [(0, 0), (2_000, 0), (SECOND, 900), (60 * SECOND, 50_000)] {
            assert!(!detector.note(reply(at, ahead)), "{at}");
        }
        // 70 ms over 70 s, as fast as it may be.
        assert!(!detector.note(reply(80 * SECOND, 70_000)));
    }

    #[test]
    fn drift_and_steps_are_detected() {
        for (at, ahead) in [(10 * SECOND, 11_000), (10 * SECOND, -11_000), (2_000, 2_000)] {
            let mut detector = DriftDetector::default();
            assert!(!detector.note(reply(0, 0)));
            assert!(detector.note(reply(at, ahead)), "{at}, {ahead}");
            // The next replies are compared with this one.
            assert!(!detector.note(reply(at + 1_000, ahead)));
        }
    }
}
