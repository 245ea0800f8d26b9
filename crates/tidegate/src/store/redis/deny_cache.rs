//! A cache of denials, which answers denied requests without Redis.
//!
//! A denied request stays denied until its `retry_after` has passed, whatever other requests do,
//! because they can only use up more units. Until then, the same request is answered from this
//! cache, so a client that keeps sending while it is denied costs Redis nothing. Only a refund and
//! a reset can end a denial sooner:
//!
//! - On this node they are noticed. Each state has a generation that counts them, a denial stores
//!   the counts from *before* it was sent, and it is not used if they have changed.
//! - On another node they are not noticed, so a denial is used for at most [`MAX_AGE`].
//!
//! A denial that consumes the units that are left charges something, so it is never cached. All
//! denials are also dropped when a connection fails, because its server may no longer be the
//! primary.
//!
//! A cached denial expires `retry_after` after its request was *sent*, which is before Redis read
//! its clock, less a margin for clocks that run at different speeds. The waits that it reports are
//! measured from when the reply was *received*, which is after Redis read its clock. So a request
//! is never denied for too long, and a reported wait is never too short.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::quality::FixedState;
use smallvec::SmallVec;
use tidegate_core::{Algorithm, Cost, Limit, ResetAfter, RetryAfter};
use tokio::time::Instant;

use super::stats::StoreCounters;
use crate::request::may_consume;
use crate::{Request, Verdict};

/// The longest time for which a denial is cached. A refund or a reset on another node takes effect
/// on this node at most this much later.
pub const MAX_AGE: Duration = Duration::from_secs(1);
/// The speeds of clocks differ by less than one part in this.
const DRIFT: u32 = 1000;
const SHARDS: usize = 16;
/// The capacity of each shard: some 100,000 denials in all, and a few tens of megabytes at most.
const MAX_ENTRIES: usize = 6144;
/// The shortest time between two sweeps of a full shard. A client that is denied under many keys
/// must not cause constant sweeps.
const SWEEP: Duration = Duration::from_millis(50);
/// The size of the longest cache key. Requests with a longer one are not cached, which bounds the
/// memory.
const MAX_CACHE_KEY_BYTES: usize = 512;
/// The number of generations, which count refunds and resets. If two states share one, denials are
/// only invalidated more often than necessary.
const GENERATIONS: usize = 4096;

type CacheKey = SmallVec<[u8; 128]>;

/// The cache of denials.
pub(super) struct DenyCache {
    hasher: FixedState,
    /// The counters of the store, among them the connections that failed.
    counters: Arc<StoreCounters>,
    shards: Box<[Mutex<DenyShard>]>,
    generations: Box<[AtomicU32]>,
}

#[derive(Default)]
struct DenyShard {
    by_key: HashMap<CacheKey, CachedDenial>,
    swept: Option<Instant>,
}

struct CachedDenial {
    verdict: Verdict,
    received: Instant,
    until: Instant,
    versions: Versions,
}

/// The generations, and the count of failed connections, from before a request was sent.
type Versions = SmallVec<[u32; 5]>;

/// The indexes of the generations of some states.
pub(super) type GenerationIndexes = SmallVec<[u16; 4]>;

/// A request that was sent and may be cached if it is denied.
pub(super) struct Candidate {
    cache_key: CacheKey,
    shard: usize,
    generations: GenerationIndexes,
    versions: Versions,
    sent: Instant,
}

/// The result of a lookup.
pub(super) enum Lookup {
    /// The request is denied.
    Denied(Verdict),
    /// The request is not in the cache. A denial of it may be cached.
    Unknown(Candidate),
    /// Denials of such requests are not cached.
    NotCacheable,
}

impl DenyCache {
    /// Creates an empty cache, whose hashes depend on a random seed.
    pub(super) fn new(counters: Arc<StoreCounters>, seed: u64) -> Self {
        DenyCache {
            hasher: FixedState::with_seed(seed),
            counters,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            generations: (0..GENERATIONS).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Looks up a request at the time `now`, before it is sent.
    pub(super) fn lookup(&self, request: &Request<'_>, now: Instant) -> Lookup {
        let Some(cache_key) = cache_key(request) else { return Lookup::NotCacheable };
        let shard = self.hash(&cache_key) % SHARDS;
        let generations = self.generations(request);
        let versions = self.versions(&generations);
        let known =
            self.shard(shard).by_key.get(&cache_key).and_then(|denial| denial.at(now, &versions));
        match known {
            Some(verdict) => Lookup::Denied(verdict),
            None => {
                Lookup::Unknown(Candidate { cache_key, shard, generations, versions, sent: now })
            }
        }
    }

    /// Caches a verdict that was received at `now`, if it is a denial.
    pub(super) fn insert(&self, candidate: Candidate, verdict: &Verdict, now: Instant) {
        let Candidate { cache_key, shard, generations, versions, sent } = candidate;
        let wait = match verdict.retry_after() {
            RetryAfter::Now => return,
            RetryAfter::Micros(micros) => Duration::from_micros(micros).min(MAX_AGE),
            RetryAfter::Never => MAX_AGE,
        };
        let until = sent + (wait - wait / DRIFT);
        if verdict.allowed || until <= now || self.versions(&generations) != versions {
            return;
        }
        let mut denials = self.shard(shard);
        denials.make_room(now);
        if denials.by_key.len() < MAX_ENTRIES || denials.by_key.contains_key(&cache_key) {
            let denial = CachedDenial { verdict: verdict.clone(), received: now, until, versions };
            denials.by_key.insert(cache_key, denial);
        }
    }

    /// Invalidates the denials that depend on these generations, because units of their states may
    /// have been refunded.
    pub(super) fn invalidate(&self, generations: &GenerationIndexes) {
        for generation in generations {
            self.generations[usize::from(*generation)].fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The indexes of the generations of the states of a request.
    pub(super) fn generations(&self, request: &Request<'_>) -> GenerationIndexes {
        request.checks.iter().map(|check| self.generation(check.key, check.limit)).collect()
    }

    fn versions(&self, generations: &GenerationIndexes) -> Versions {
        let version =
            |generation: &u16| self.generations[usize::from(*generation)].load(Ordering::SeqCst);
        let disconnects = self.counters.breaker_openings.load(Ordering::SeqCst);
        // There are far fewer connections than a `u32` can count.
        let disconnects = u32::try_from(disconnects).unwrap_or(u32::MAX);
        generations.iter().map(version).chain([disconnects]).collect()
    }

    /// The index of the generation of one state.
    pub(super) fn generation(&self, key: &[u8], limit: &Limit) -> u16 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.write_u64(limit.id());
        u16::try_from(hasher.finish() % GENERATIONS as u64).unwrap_or(0)
    }

    fn hash(&self, cache_key: &[u8]) -> usize {
        usize::try_from(self.hasher.hash_one(cache_key) >> 33).unwrap_or(0)
    }

    fn shard(&self, shard: usize) -> MutexGuard<'_, DenyShard> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DenyShard {
    /// Removes expired denials, if the shard is full and was not swept within [`SWEEP`].
    fn make_room(&mut self, now: Instant) {
        let is_due = self.swept.is_none_or(|swept| now >= swept + SWEEP);
        if self.by_key.len() >= MAX_ENTRIES && is_due {
            self.by_key.retain(|_, denial| denial.until > now);
            self.swept = Some(now);
        }
    }
}

impl CachedDenial {
    /// The verdict with its waits at `now`, if it is still valid.
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
                // The wait of a denial is never 0.
                let left = micros.saturating_sub(age_us).max(1);
                decision.retry_after = RetryAfter::Micros(left);
            }
            let left = decision.reset_after.as_micros().saturating_sub(age_us);
            decision.reset_after = ResetAfter::from_micros(left);
        }
        Some(verdict)
    }
}

/// The cache key of a request, which is equal for requests that get the same answer; `None` if the
/// request must not be answered from memory.
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
        // Permits are released at any time.
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

    /// A verdict that denies all checks.
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
        let cache = DenyCache::new(Arc::default(), 1);
        let limit = limit("1 per 1h");
        let checks = [Check::new("alice", &limit, 1)];
        let request = Request::new(&checks);
        let sent = Instant::now();
        let sending = candidate(&cache, &request, sent);
        cache.insert(sending, &denial(&checks, RetryAfter::Micros(100_000)), sent + 40 * MS);
        let verdict = known(&cache, &request, sent + 60 * MS).expect("denied");
        assert_eq!(verdict.retry_after(), RetryAfter::Micros(80_000));
        assert_eq!(verdict.decisions[0].reset_after.as_micros(), 4_980_000);
        // It expires a thousandth earlier, because clocks differ.
        assert!(known(&cache, &request, sent + 99 * MS).is_some());
        assert!(known(&cache, &request, sent + 100 * MS - MS / 10).is_none());
        // A denial that is received after it has expired is not cached.
        let sending = candidate(&cache, &request, sent + 100 * MS);
        let short = denial(&checks, RetryAfter::Micros(10_000));
        cache.insert(sending, &short, sent + 111 * MS);
        assert!(known(&cache, &request, sent + 111 * MS).is_none());
    }

    #[test]
    fn entries_expire_after_max_age() {
        let cache = DenyCache::new(Arc::default(), 1);
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
        let cache = DenyCache::new(Arc::default(), 1);
        let limits = [limit("1 per 1h"), limit("1 per 1m")];
        let checks = [Check::new("alice", &limits[0], 1), Check::new("bob", &limits[1], 1)];
        let request = Request::new(&checks);
        let now = Instant::now();
        let denial = denial(&checks, RetryAfter::Micros(900_000));
        for (key, limit) in [("alice", &limits[0]), ("bob", &limits[1])] {
            let generations = smallvec![cache.generation(key.as_bytes(), limit)];
            cache.insert(candidate(&cache, &request, now), &denial, now);
            assert!(known(&cache, &request, now).is_some());
            cache.invalidate(&generations);
            assert!(known(&cache, &request, now).is_none());
            let sending = candidate(&cache, &request, now);
            cache.invalidate(&generations);
            cache.insert(sending, &denial, now);
            assert!(known(&cache, &request, now).is_none());
        }
    }

    #[test]
    fn only_plain_checks_are_cached_each_under_its_own_key() {
        let cache = DenyCache::new(Arc::default(), 1);
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
            // Two checks that share a state cost 2 together.
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
        // A denied cost of 1 charges nothing, so it may be cached.
        let one = [Check::new("carol", &counter, 1).consuming()];
        assert!(matches!(cache.lookup(&Request::new(&one), now), Lookup::Unknown(_)));
        for checks in &others {
            assert!(known(&cache, &Request::new(checks), now).is_none(), "{checks:?}");
        }
        assert!(known(&cache, &plain, now).is_some());
    }

    #[test]
    fn cache_is_bounded() {
        let cache = DenyCache::new(Arc::default(), 1);
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
        // Expired denials are removed when the shard is full.
        assert!(insert(most * 2, now + MAX_AGE));
    }
}
