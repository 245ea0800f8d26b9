//! Leases: units of hot keys that this node has taken from the store and spends without asking it.
//!
//! ```text
//!   request -> every state leased and enough units left? --yes--> verdict
//!                  |no                                              (no round trip)
//!                  v
//!               the store decides, and the key is counted; a hot key gets a lease
//! ```
//!
//! [`tidegate_core::LeasedState`] explains why nothing is admitted beyond the limit. This module
//! finds hot keys in constant memory ([`HotKeys`]), and decides how many units a lease has and how
//! long it lasts:
//!
//! - `key_leases.rs` has the leases of one key: spending, sizing, renewal, giving back;
//! - `renewal.rs` is the task that sends grants and give-backs, and compares the clocks of the node
//!   and of the store.
//!
//! If there are too few units left for a lease, the requests of a very hot key are sent at
//! intervals of [`GATHER_US`], so that many of them share a call.
//!
//! A request takes part only if each of its limits can be answered from leases. Requests with an
//! idempotency id, a permit, an observed check, a forced charge or a denial that consumes are
//! always decided by the store.

mod key_leases;
mod renewal;
#[cfg(test)]
mod simulation;

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::FixedState;
use tidegate_core::{Algorithm, Cost, Decision, GrantId, Limit, ResetAfter, Timestamp};
use tokio::sync::Notify;

use self::key_leases::{KeyLeases, LocalAnswer, duration_us};
use self::renewal::DriftDetector;
pub(super) use self::renewal::{give_back_all, renew_all};
use super::key_names::KeyNames;
use super::machine::{Machine, NodeClock, NodeTime};
use super::plan::Few;
use super::stats::StoreCounters;
use crate::request::may_consume;
use crate::{Check, MAX_CHECKS, Request, Verdict};

/// The maximum number of leased keys. Others are decided by the store. A tick looks at all of them.
const MAX_LEASED_KEYS: usize = 1024;
const SHARDS: usize = 16;
/// The shortest window of a leased limit. The shortest useful lease is a fiftieth of it, and its
/// units count that much longer.
const MIN_WINDOW_US: u64 = 1_000_000;
/// The largest `sliding-log` that is leased. The script replies with the whole log while units of
/// it are out.
const MAX_LEASED_LOG: u64 = 1_000;
/// The size of the id of a grant, which must be exact in the doubles of Lua.
const GRANT_BITS: u32 = 53;

/// The leases of a store.
pub(super) struct Leases {
    hasher: FixedState,
    clock: NodeClock,
    machine: Machine,
    shards: Box<[Mutex<Shard>]>,
    keys: AtomicUsize,
    hot_keys: HotKeys,
    /// The clocks of the servers, by slot.
    drift: Mutex<HashMap<u16, DriftDetector>>,
    /// Whether leases are suspended because the clocks drift apart.
    suspended: AtomicBool,
    /// Keys that need a new lease now.
    due: Mutex<Vec<Arc<LeasedKey>>>,
    woken: Notify,
    counters: Arc<StoreCounters>,
}

/// Keys by their hash, in a fixed order.
type Shard = BTreeMap<u64, Arc<LeasedKey>>;

/// A key under one limit that is leased.
pub(super) struct LeasedKey {
    hash: u64,
    key: Box<[u8]>,
    /// The name of the key in Redis.
    name: Vec<u8>,
    limit: Limit,
    leases: Mutex<KeyLeases>,
}

impl LeasedKey {
    fn leases(&self) -> MutexGuard<'_, KeyLeases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leases {
    pub(super) fn new(counters: Arc<StoreCounters>, machine: &Machine) -> Self {
        Leases {
            hasher: FixedState::with_seed(machine.random()),
            clock: NodeClock::new(machine.clone()),
            machine: machine.clone(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            keys: AtomicUsize::new(0),
            hot_keys: HotKeys::new(),
            drift: Mutex::default(),
            suspended: AtomicBool::new(false),
            due: Mutex::default(),
            woken: Notify::new(),
            counters,
        }
    }

    /// Decides a request from leases, unless the store has to. If a key of the request is not
    /// leased, all of its keys are counted, and hot ones are leased.
    pub(super) fn decide(
        &self,
        request: &Request<'_>,
        key_names: &KeyNames,
    ) -> Result<Verdict, AskStore> {
        let Some(kind) = leasable(request) else { return Err(AskStore::NOW) };
        let hashes: Few<u64> = request.checks.iter().map(|check| self.hash(check)).collect();
        let keys = self.find(request.checks, &hashes);
        if let Some(keys) = &keys
            && let Some(verdict) = self.answer(request.checks, keys)
        {
            self.counters.lease_hits.fetch_add(1, Relaxed);
            return Ok(verdict);
        }
        if kind == RequestKind::Refund {
            return Err(AskStore::NOW);
        }
        let now = self.clock.now();
        if let Some(keys) = keys {
            return Err(match keys.iter().any(|key| key.leases().is_gathered()) {
                true => AskStore { gather_time: gather_time(now) },
                false => AskStore::NOW,
            });
        }
        if !self.suspended.load(Relaxed) {
            for (check, hash) in request.checks.iter().zip(hashes) {
                if self.hot_keys.note(hash, hot_requests(check.limit), now.monotonic) {
                    self.lease(check, hash, key_names, now);
                }
            }
        }
        Err(AskStore::NOW)
    }

    /// Answers a peek that the store denied, because this node may still have units. A peek is
    /// decided as a request for one unit.
    pub(super) fn peek(&self, request: &Request<'_>) -> Option<Verdict> {
        let is_peek = |check: &Check<'_>| check.cost == Cost::PEEK && !check.observed;
        if request.id.is_some() || !request.lease || !request.checks.iter().all(is_peek) {
            return None;
        }
        let hashes: Few<u64> = request.checks.iter().map(|check| self.hash(check)).collect();
        self.answer(request.checks, &self.find(request.checks, &hashes)?)
    }

    /// Whether any key is leased.
    pub(super) fn has_keys(&self) -> bool {
        self.keys.load(Relaxed) > 0
    }

    /// Returns the number of leases that can be spent from.
    pub(super) fn active(&self) -> u64 {
        let now = self.clock.now();
        self.all_keys().iter().map(|key| key.leases().active(now)).sum()
    }

    fn hash(&self, check: &Check<'_>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(check.key);
        hasher.write_u64(check.limit.id());
        hasher.finish()
    }

    /// The leased keys of all checks; `None` if one is not leased. A key whose limit has changed is
    /// given back.
    fn find(&self, checks: &[Check<'_>], hashes: &[u64]) -> Option<Few<Arc<LeasedKey>>> {
        if self.keys.load(Relaxed) == 0 {
            return None;
        }
        let mut keys = Few::new();
        for (check, &hash) in checks.iter().zip(hashes) {
            let key = self.shard(hash).get(&hash).cloned().filter(|key| *key.key == *check.key)?;
            if key.limit != *check.limit {
                if key.leases().close() {
                    self.wake(key);
                }
                return None;
            }
            keys.push(key);
        }
        Some(keys)
    }

    /// Charges or refunds all checks, or none. The time is read while a key is locked: a thread
    /// that waited for the lock must not spend units of a lease that has ended meanwhile.
    fn answer(&self, checks: &[Check<'_>], keys: &[Arc<LeasedKey>]) -> Option<Verdict> {
        let mut answers: Few<LocalAnswer> = Few::new();
        for (check, key) in checks.iter().zip(keys) {
            let (answer, is_due) = {
                let mut leases = key.leases();
                leases.apply(check.cost, self.clock.now())
            };
            if is_due {
                self.wake(Arc::clone(key));
            }
            let Some(answer) = answer else {
                // Units that are put back after their lease has ended are lost, which only admits
                // less.
                for ((check, key), _) in checks.iter().zip(keys).zip(&answers) {
                    let mut leases = key.leases();
                    leases.undo(check.cost, self.clock.now());
                }
                return None;
            };
            answers.push(answer);
        }
        for check in checks {
            if let Cost::Ask(units) = check.cost {
                self.counters.lease_spent.fetch_add(units, Relaxed);
            }
        }
        let decisions = checks.iter().zip(answers).map(|(check, answer)| Decision {
            allowed: true,
            limit: check.limit.count(),
            remaining: answer.left,
            reset_after: ResetAfter::from_micros(answer.reset_after_us),
            ..Decision::default()
        });
        let mut verdict = Verdict::new(checks, decisions);
        verdict.remembered = true;
        Some(verdict)
    }

    /// Starts to lease a hot key, unless too many are leased.
    fn lease(&self, check: &Check<'_>, hash: u64, key_names: &KeyNames, now: NodeTime) {
        if self.keys.load(Relaxed) >= MAX_LEASED_KEYS {
            return;
        }
        let mut shard = self.shard(hash);
        if shard.contains_key(&hash) {
            return;
        }
        let key = Arc::new(LeasedKey {
            hash,
            key: check.key.into(),
            name: key_names.state(check.key, check.limit),
            limit: *check.limit,
            leases: Mutex::new(KeyLeases::new(check.limit, hot_rate(check.limit), now)),
        });
        shard.insert(hash, Arc::clone(&key));
        drop(shard);
        self.keys.fetch_add(1, Relaxed);
        self.wake(key);
    }

    fn remove(&self, key: &LeasedKey) {
        let mut shard = self.shard(key.hash);
        if shard.get(&key.hash).is_some_and(|current| std::ptr::eq(&raw const **current, key)) {
            shard.remove(&key.hash);
            self.keys.fetch_sub(1, Relaxed);
        }
    }

    fn all_keys(&self) -> Vec<Arc<LeasedKey>> {
        let mut keys = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            keys.extend(shard.values().cloned());
        }
        keys
    }

    /// Lets the task look at a key.
    fn wake(&self, key: Arc<LeasedKey>) {
        self.due.lock().unwrap_or_else(PoisonError::into_inner).push(key);
        self.woken.notify_one();
    }

    /// A random id, so that no other grant of any node has it.
    fn new_grant_id(&self) -> GrantId {
        GrantId((self.machine.random() >> (u64::BITS - GRANT_BITS)).max(1))
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        let index = usize::try_from(hash >> 33).unwrap_or(0) % SHARDS;
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that the store has to decide.
#[derive(Clone, Copy, Debug)]
pub(super) struct AskStore {
    /// The time in which others on the same keys are gathered before it is sent.
    pub(super) gather_time: Duration,
}

impl AskStore {
    /// The request is sent immediately.
    pub(super) const NOW: Self = AskStore { gather_time: Duration::ZERO };
}

/// The interval at which requests are sent whose key is very hot, but has too few units left for a
/// lease, in microseconds. They would otherwise take Redis a command for every round trip of every
/// node. Few clients notice so short a delay while their limit is nearly used up.
const GATHER_US: u64 = 4_000;
/// The fewest units in an interval for which requests are gathered. With fewer, the delay would
/// save few commands.
const MIN_GATHERED: u64 = 8;

/// The time until the next requests on scarce keys are sent. It ends at the same time for all
/// requests of an interval, so that they share a call.
fn gather_time(now: NodeTime) -> Duration {
    Duration::from_micros(GATHER_US - now.monotonic.as_micros() % GATHER_US)
}

/// The kind of a request that leases can answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestKind {
    Ask,
    Refund,
}

/// The kind of a request; `None` if only the store can decide it.
fn leasable(request: &Request<'_>) -> Option<RequestKind> {
    let checks = request.checks;
    let is_plain = request.lease
        && request.id.is_none()
        && request.permit.is_none()
        && (1..=MAX_CHECKS).contains(&checks.len())
        && checks.iter().all(|check| !check.observed && is_leasable(check.limit))
        && !may_consume(checks)
        && !share_states(checks);
    if !is_plain {
        return None;
    }
    if checks.iter().all(|check| matches!(check.cost, Cost::Ask(1..))) {
        Some(RequestKind::Ask)
    } else if checks.iter().all(|check| matches!(check.cost, Cost::Refund(1..))) {
        Some(RequestKind::Refund)
    } else {
        None
    }
}

/// Whether keys can be leased under a limit.
fn is_leasable(limit: &Limit) -> bool {
    let has_leases = match limit.algorithm() {
        Algorithm::Concurrency => false,
        // A log of up to 20 units, of which a lease would take most.
        Algorithm::SlidingWindow => limit.count() > 20,
        Algorithm::SlidingLog => limit.count() <= MAX_LEASED_LOG,
        Algorithm::SlidingCounter | Algorithm::FixedWindow | Algorithm::TokenBucket => true,
    };
    has_leases && limit.count() > 0 && limit.window_us() >= MIN_WINDOW_US
}

/// Whether two checks count in the same state. The store merges such checks.
fn share_states(checks: &[Check<'_>]) -> bool {
    let is_shared = |(index, check): (usize, &Check<'_>)| {
        checks[..index].iter().any(|other| other.shares_state(check))
    };
    checks.iter().enumerate().any(is_shared)
}

/// The number of cells: 32 KiB. A few hot keys among 100,000 cold ones share a cell with some of
/// these, which adds few requests to their count.
const HOT_KEY_CELLS: usize = 4096;
/// The interval in which requests are counted, in microseconds.
const HOT_INTERVAL_US: u64 = 100_000;
/// The fewest requests in an interval that make a key hot, and the fewest that a lease has to
/// answer. A lease takes two commands to take and to give back, and requests on a key with leases
/// cost Redis more than others.
const HOT_REQUESTS: u64 = 32;

/// The number of requests in an interval that makes a key hot under a limit. Short windows have
/// short leases, so they need more.
fn hot_requests(limit: &Limit) -> u64 {
    (HOT_REQUESTS * HOT_INTERVAL_US / duration_us(limit)).max(HOT_REQUESTS)
}

/// The rate of requests at which a key becomes hot, in a second.
fn hot_rate(limit: &Limit) -> u64 {
    hot_requests(limit) * 1_000_000 / HOT_INTERVAL_US
}

/// Finds hot keys: those with many requests on this node within a short time.
///
/// Keys are counted in a table of fixed size by their hash. Two keys may share a cell, so a key may
/// look hotter than it is. It is then leased in vain for a moment, and dropped when its own demand
/// was measured.
struct HotKeys {
    /// Each cell has the number of its interval in the upper half, and a count in the lower one.
    cells: Box<[AtomicU64]>,
}

impl HotKeys {
    fn new() -> Self {
        HotKeys { cells: (0..HOT_KEY_CELLS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Counts a request. Returns whether the key has just become hot, with `hot_requests` requests
    /// in this interval.
    fn note(&self, hash: u64, hot_requests: u64, now: Timestamp) -> bool {
        let interval = (now.as_micros() / HOT_INTERVAL_US) << 32 >> 32;
        let cell = &self.cells[usize::try_from(hash % HOT_KEY_CELLS as u64).unwrap_or(0)];
        let counted = cell.load(Relaxed);
        // Counts that are lost because of a race do not matter.
        if counted >> 32 == interval {
            (cell.fetch_add(1, Relaxed) & u64::from(u32::MAX)) + 1 == hot_requests
        } else {
            cell.store(interval << 32 | 1, Relaxed);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::LeasedState;

    use super::super::lease_call::LeaseReply;
    use super::key_leases::EndedUnits;
    use super::*;

    #[test]
    fn many_requests_in_an_interval_make_a_key_hot_once() {
        let hot_keys = HotKeys::new();
        let at =
            |interval: u64, part: u64| Timestamp::from_micros(interval * HOT_INTERVAL_US + part);
        let notes = |interval, count: u64| {
            (0..count).filter(|part| hot_keys.note(7, HOT_REQUESTS, at(interval, *part))).count()
        };
        assert_eq!(notes(5, HOT_REQUESTS - 1), 0);
        assert_eq!(notes(6, HOT_REQUESTS - 1), 0);
        assert_eq!(notes(6, 1), 1);
        assert_eq!(notes(6, 1_000), 0);
        assert!((0..1_000).all(|hash| !hot_keys.note(hash, HOT_REQUESTS, at(7, 0))));
    }

    #[test]
    fn short_windows_need_more_requests_for_a_lease() {
        let rows = [("1000 per 1s", 160), ("1000 per 10s", 64), ("1000 per 1m", 32)];
        for (text, requests) in rows {
            assert_eq!(hot_requests(&text.parse().expect("a limit")), requests, "{text}");
        }
    }

    /// Requests on a key with more than 2,000 units in a second, for which the store has too few
    /// left, wait for the end of the same interval.
    #[test]
    fn requests_on_scarce_hot_keys_are_gathered() {
        let leases = Leases::new(Arc::default(), &Machine::Real);
        let (names, limit) = (KeyNames::new("test"), Limit::per_minute(1_000));
        let check = Check::new("hot", &limit, 1);
        leases.lease(&check, leases.hash(&check), &names, leases.clock.now());
        let key = leases.all_keys().pop().expect("a leased key");
        for (rate, is_gathered) in [(10_000, true), (1_000, false)] {
            let (now, mut ended) = (leases.clock.now(), EndedUnits::default());
            let mut refused = KeyLeases::new(&limit, rate, now);
            assert!(!refused.operations(now, || GrantId(1), &mut ended).is_empty());
            let state = LeasedState::new(&limit);
            let reply = LeaseReply { now: now.wall, existed: true, state, grant: None };
            refused.received(&reply, now, &mut ended);
            *key.leases() = refused;
            let request = Request { lease: true, ..Request::new(std::slice::from_ref(&check)) };
            let asked = leases.decide(&request, &names).expect_err("no units are leased");
            assert_eq!(asked.gather_time > Duration::ZERO, is_gathered, "{rate}");
        }
        let time = |monotonic_us: u64| {
            let monotonic = Timestamp::from_micros(monotonic_us);
            gather_time(NodeTime { monotonic, wall: monotonic }).as_micros()
        };
        assert_eq!(
            [time(8_000), time(8_001), time(11_999), time(12_000)],
            [4_000, 3_999, 1, 4_000]
        );
    }

    #[test]
    fn leased_keys_are_bounded() {
        let leases = Leases::new(Arc::default(), &Machine::Real);
        let names = KeyNames::new("test");
        let limit = Limit::per_minute(1_000);
        for key in 0..2 * MAX_LEASED_KEYS {
            let key = key.to_le_bytes();
            let check = Check::new(&key, &limit, 1);
            leases.lease(&check, leases.hash(&check), &names, leases.clock.now());
        }
        assert_eq!(leases.all_keys().len(), MAX_LEASED_KEYS);
    }
}
