//! Denials answered without asking.
//!
//! A request that was denied is denied until its `retry_after` has passed, whatever
//! others do: they can only use up more. So the same request is answered here until
//! then, and an attacker who hammers costs Redis nothing. Exactly two things can
//! let it pass sooner, units given back and a reset:
//!
//! - on this node they are noticed: each state has a cell that counts them, a denial
//!   keeps the counts from *before* it was sent, and one that differs is not used;
//! - on another node they are not, so nothing is believed for longer than
//!   [`MAX_AGE`].
//!
//! A denial that consumes what is left charges something, so it is never answered here.
//! Denials are also forgotten when a connection fails: its server may no longer be
//! the primary.
//!
//! A denial ends `retry_after` after it was *sent*, which is before Redis read its
//! clock, less a little for clocks that run at different speeds; the wait that
//! is answered counts from when it was *received*, which is after. So neither is
//! ever too early.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Cost, Limit, ResetAfter, RetryAfter};

use super::stats::StoreCounters;
use crate::request::may_consume;
use crate::{Request, Verdict};

/// How long a denial is believed at most: what a refund or reset on another node
/// may wait until this node notices.
pub const MAX_AGE: Duration = Duration::from_secs(1);
/// Clocks run at speeds that differ by less than one in this.
const DRIFT: u32 = 1000;
const SHARDS: usize = 16;
/// Denials remembered in each shard: some 100,000 in all, a few tens of megabytes at most.
const MAX_ENTRIES: usize = 6144;
/// How often a full shard is looked through: somebody who is denied under many names
/// must not make that the main work.
const SWEEP: Duration = Duration::from_millis(50);
/// Requests with more bytes in their keys are not remembered, so that the bound above holds.
const MAX_CACHE_KEY_BYTES: usize = 512;
/// Counts of what was given back. Two states that share one only forget too much.
const CELLS: usize = 4096;

type CacheKey = SmallVec<[u8; 128]>;

/// What was denied lately.
pub(super) struct DenyCache {
    random: RandomState,
    /// Counts the connections that were given up.
    counters: Arc<StoreCounters>,
    shards: Box<[Mutex<DenyShard>]>,
    cells: Box<[AtomicU32]>,
}

/// A shard.
#[derive(Default)]
struct DenyShard {
    by_key: HashMap<CacheKey, Denial>,
    swept: Option<Instant>,
}

struct Denial {
    verdict: Verdict,
    received: Instant,
    until: Instant,
    versions: Versions,
}

/// The counts of the cells, and of failed connections, when a request was sent.
type Versions = SmallVec<[u32; 5]>;

/// Which cells count what is given back to some states.
pub(super) type Cells = SmallVec<[u16; 4]>;

/// A request on its way that may be remembered when it comes back denied.
pub(super) struct Candidate {
    cache_key: CacheKey,
    shard: usize,
    cells: Cells,
    versions: Versions,
    sent: Instant,
}

/// What a look came to.
pub(super) enum Lookup {
    /// Denied, as before.
    Denied(Verdict),
    /// Nothing is known; a denial may be remembered.
    Unknown(Candidate),
    /// Nothing is known or will be: not a request for this.
    NotCacheable,
}

impl DenyCache {
    pub(super) fn new(counters: Arc<StoreCounters>) -> Self {
        DenyCache {
            random: RandomState::new(),
            counters,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            cells: (0..CELLS).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Looks a request up, before it is sent at `now`.
    pub(super) fn lookup(&self, request: &Request<'_>, now: Instant) -> Lookup {
        let Some(cache_key) = cache_key(request) else { return Lookup::NotCacheable };
        let shard = self.hash(&cache_key) % SHARDS;
        let cells = self.cells(request);
        let versions = self.versions(&cells);
        let known =
            self.shard(shard).by_key.get(&cache_key).and_then(|denial| denial.at(now, &versions));
        match known {
            Some(verdict) => Lookup::Denied(verdict),
            None => Lookup::Unknown(Candidate { cache_key, shard, cells, versions, sent: now }),
        }
    }

    /// Remembers a denial that was received at `now`.
    pub(super) fn insert(&self, candidate: Candidate, verdict: &Verdict, now: Instant) {
        let Candidate { cache_key, shard, cells, versions, sent } = candidate;
        let wait = match verdict.retry_after() {
            RetryAfter::Now => return,
            RetryAfter::Micros(micros) => Duration::from_micros(micros).min(MAX_AGE),
            RetryAfter::Never => MAX_AGE,
        };
        let until = sent + (wait - wait / DRIFT);
        if verdict.allowed || until <= now || self.versions(&cells) != versions {
            return;
        }
        let mut denials = self.shard(shard);
        denials.make_room(now);
        if denials.by_key.len() < MAX_ENTRIES || denials.by_key.contains_key(&cache_key) {
            let denial = Denial { verdict: verdict.clone(), received: now, until, versions };
            denials.by_key.insert(cache_key, denial);
        }
    }

    /// Units of these states were given back, or may have been: denials from before
    /// are not used again.
    pub(super) fn invalidate(&self, cells: &Cells) {
        for cell in cells {
            self.cells[usize::from(*cell)].fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The cells of a request's states.
    pub(super) fn cells(&self, request: &Request<'_>) -> Cells {
        request.checks.iter().map(|check| self.cell(check.key, check.limit)).collect()
    }

    fn versions(&self, cells: &Cells) -> Versions {
        let invalidate = |cell: &u16| self.cells[usize::from(*cell)].load(Ordering::SeqCst);
        let disconnects = self.counters.breaker_openings.load(Ordering::SeqCst);
        // It counts connections: far fewer than this holds.
        let disconnects = u32::try_from(disconnects).unwrap_or(u32::MAX);
        cells.iter().map(invalidate).chain([disconnects]).collect()
    }

    /// The cell of one state.
    pub(super) fn cell(&self, key: &[u8], limit: &Limit) -> u16 {
        let mut hasher = self.random.build_hasher();
        hasher.write(key);
        hasher.write_u64(limit.id());
        u16::try_from(hasher.finish() % CELLS as u64).unwrap_or(0)
    }

    fn hash(&self, cache_key: &[u8]) -> usize {
        usize::try_from(self.random.hash_one(cache_key) >> 33).unwrap_or(0)
    }

    fn shard(&self, shard: usize) -> MutexGuard<'_, DenyShard> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DenyShard {
    /// Lets go of what has ended, if there is no room and that was not just done.
    fn make_room(&mut self, now: Instant) {
        let is_due = self.swept.is_none_or(|swept| now >= swept + SWEEP);
        if self.by_key.len() >= MAX_ENTRIES && is_due {
            self.by_key.retain(|_, denial| denial.until > now);
            self.swept = Some(now);
        }
    }
}

impl Denial {
    /// The verdict as it is at `now`, if it still is one.
    fn at(&self, now: Instant, versions: &Versions) -> Option<Verdict> {
        if now >= self.until || *versions != self.versions {
            return None;
        }
        let age = now.saturating_duration_since(self.received);
        let age_us = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        let mut verdict = self.verdict.clone();
        verdict.remembered = true;
        for decision in &mut verdict.decisions {
            if let RetryAfter::Micros(micros) = decision.retry_after {
                // A denial has a wait, if only the shortest.
                let left = micros.saturating_sub(age_us).max(1);
                decision.retry_after = RetryAfter::Micros(left);
            }
            let left = decision.reset_after.as_micros().saturating_sub(age_us);
            decision.reset_after = ResetAfter::from_micros(left);
        }
        Some(verdict)
    }
}

/// All that a request asks, as bytes: equal for requests that get the same answer.
/// `None` for one that is not to be answered from memory.
fn cache_key(request: &Request<'_>) -> Option<CacheKey> {
    if !request.deny_cache || request.id.is_some() || request.permit.is_some() {
        return None;
    }
    if may_consume(request.checks) {
        return None;
    }
    let mut cache_key = CacheKey::new();
    for check in request.checks {
        let Cost::Ask(units) = check.cost else { return None };
        let limit = check.limit;
        // Permits come back whenever their holders are done.
        if units == 0 || limit.algorithm() == Algorithm::Concurrency {
            return None;
        }
        let numbers = [check.key.len() as u64, limit.id(), limit.count(), limit.burst(), units];
        let observed = [u8::from(check.observed)];
        let numbers = numbers.iter().flat_map(|number| number.to_le_bytes());
        cache_key.extend(numbers.chain(observed).chain(check.key.iter().copied()));
        if cache_key.len() > MAX_CACHE_KEY_BYTES {
            return None;
        }
    }
    Some(cache_key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Check;
    use smallvec::smallvec;
    use tidegate_core::{Decision, PermitId};

    const MS: Duration = Duration::from_millis(1);

    fn limit(text: &str) -> Limit {
        text.parse().expect("a limit")
    }

    /// A denial of one check.
    fn denial(checks: &[Check<'_>], retry_after: RetryAfter) -> Verdict {
        let reset_after = ResetAfter::from_micros(5_000_000);
        let decision = Decision { limit: 1, retry_after, reset_after, ..Decision::default() };
        Verdict::new(checks, std::iter::repeat_n(decision, checks.len()))
    }

    fn candidate(cache: &DenyCache, request: &Request<'_>, now: Instant) -> Candidate {
        match cache.lookup(request, now) {
            Lookup::Unknown(candidate) => candidate,
            Lookup::Denied(verdict) => panic!("it is known: {verdict:?}"),
            Lookup::NotCacheable => panic!("it is not for this"),
        }
    }

    fn known(cache: &DenyCache, request: &Request<'_>, now: Instant) -> Option<Verdict> {
        match cache.lookup(request, now) {
            Lookup::Denied(verdict) => Some(verdict),
            Lookup::Unknown(_) | Lookup::NotCacheable => None,
        }
    }

    #[test]
    fn denial_expires_from_send_time_and_ages_from_receipt() {
        let cache = DenyCache::new(Arc::default());
        let limit = limit("1 per 1h");
        let checks = [Check::new("alice", &limit, 1)];
        let request = Request::new(&checks);
        let sent = Instant::now();
        let sending = candidate(&cache, &request, sent);
        cache.insert(sending, &denial(&checks, RetryAfter::Micros(100_000)), sent + 40 * MS);
        let verdict = known(&cache, &request, sent + 60 * MS).expect("denied");
        assert_eq!(verdict.retry_after(), RetryAfter::Micros(80_000));
        assert_eq!(verdict.decisions[0].reset_after.as_micros(), 4_980_000);
        // A thousandth early, for clocks that differ.
        assert!(known(&cache, &request, sent + 99 * MS).is_some());
        assert!(known(&cache, &request, sent + 100 * MS - MS / 10).is_none());
        // One that came when its time was up is not remembered.
        let sending = candidate(&cache, &request, sent + 100 * MS);
        let short = denial(&checks, RetryAfter::Micros(10_000));
        cache.insert(sending, &short, sent + 111 * MS);
        assert!(known(&cache, &request, sent + 111 * MS).is_none());
    }

    #[test]
    fn entries_expire_after_max_age() {
        let cache = DenyCache::new(Arc::default());
        let limit = limit("1 per 1h");
        for retry_after in [RetryAfter::Micros(3_600_000_000), RetryAfter::Never] {
            let key = format!("{retry_after:?}");
            let checks = [Check::new(&key, &limit, 1)];
            let request = Request::new(&checks);
            let sent = Instant::now();
            let sending = candidate(&cache, &request, sent);
            cache.insert(sending, &denial(&checks, retry_after), sent + MS);
            assert!(known(&cache, &request, sent + MAX_AGE - 10 * MS).is_some());
            assert!(known(&cache, &request, sent + MAX_AGE).is_none());
        }
    }

    #[test]
    fn refunds_invalidate_cached_and_pending_denials() {
        let cache = DenyCache::new(Arc::default());
        let limits = [limit("1 per 1h"), limit("1 per 1m")];
        let checks = [Check::new("alice", &limits[0], 1), Check::new("bob", &limits[1], 1)];
        let request = Request::new(&checks);
        let now = Instant::now();
        let denial = denial(&checks, RetryAfter::Micros(900_000));
        for (key, limit) in [("alice", &limits[0]), ("bob", &limits[1])] {
            let cells = smallvec![cache.cell(key.as_bytes(), limit)];
            cache.insert(candidate(&cache, &request, now), &denial, now);
            assert!(known(&cache, &request, now).is_some());
            cache.invalidate(&cells);
            assert!(known(&cache, &request, now).is_none());
            let sending = candidate(&cache, &request, now);
            cache.invalidate(&cells);
            cache.insert(sending, &denial, now);
            assert!(known(&cache, &request, now).is_none());
        }
    }

    #[test]
    fn only_plain_checks_are_cached_each_under_its_own_key() {
        let cache = DenyCache::new(Arc::default());
        let (counter, other) = (limit("1 per 1h"), limit("2 per 1h"));
        let held = limit("1 concurrent");
        let now = Instant::now();
        let unfit = [
            Check::new("alice", &counter, 0),
            Check::new("alice", &counter, Cost::Refund(1)),
            Check::new("alice", &counter, Cost::Force(1)),
            Check::new("alice", &held, 1),
        ];
        for check in unfit {
            let checks = [check];
            let request = Request { permit: None, ..Request::new(&checks) };
            assert!(matches!(cache.lookup(&request, now), Lookup::NotCacheable), "{check:?}");
        }
        let checks = [Check::new("alice", &counter, 1)];
        let plain = Request::new(&checks);
        let unfit = [
            plain.with_id("id"),
            Request { permit: Some(PermitId(1)), ..plain },
            Request { deny_cache: false, ..plain },
        ];
        let consuming = [
            vec![Check::new("alice", &counter, 2).consuming()],
            // Two that share a count cost 2 together.
            vec![Check::new("alice", &counter, 1).consuming(), checks[0]],
        ];
        for checks in &consuming {
            assert!(matches!(cache.lookup(&Request::new(checks), now), Lookup::NotCacheable));
        }
        for request in unfit {
            assert!(matches!(cache.lookup(&request, now), Lookup::NotCacheable), "{request:?}");
        }
        let denied = denial(&checks, RetryAfter::Never);
        cache.insert(candidate(&cache, &plain, now), &denied, now);
        let others = [
            [Check::new("bob", &counter, 1)],
            [Check::new("alice", &counter, 2)],
            [Check::new("alice", &other, 1)],
            [Check::new("alice", &counter, 1).observed()],
        ];
        // A denied cost of 1 charges nothing, so it may be remembered.
        let one = [Check::new("carol", &counter, 1).consuming()];
        assert!(matches!(cache.lookup(&Request::new(&one), now), Lookup::Unknown(_)));
        for checks in &others {
            assert!(known(&cache, &Request::new(checks), now).is_none(), "{checks:?}");
        }
        assert!(known(&cache, &plain, now).is_some());
    }

    #[test]
    fn cache_is_bounded() {
        let cache = DenyCache::new(Arc::default());
        let limit = limit("1 per 1h");
        let now = Instant::now();
        let long = "k".repeat(MAX_CACHE_KEY_BYTES);
        let checks = [Check::new(&long, &limit, 1)];
        assert!(matches!(cache.lookup(&Request::new(&checks), now), Lookup::NotCacheable));
        let insert = |number: u32, now: Instant| {
            let key = number.to_le_bytes();
            let checks = [Check::new(&key, &limit, 1)];
            let request = Request::new(&checks);
            let sending = candidate(&cache, &request, now);
            cache.insert(sending, &denial(&checks, RetryAfter::Never), now);
            known(&cache, &request, now).is_some()
        };
        let most = u32::try_from(SHARDS * MAX_ENTRIES).expect("small");
        let kept = (0..most * 2).filter(|number| insert(*number, now)).count();
        assert_eq!(kept, SHARDS * MAX_ENTRIES);
        // What has ended makes room.
        assert!(insert(most * 2, now + MAX_AGE));
    }
}
