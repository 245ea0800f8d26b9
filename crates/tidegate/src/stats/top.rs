//! Keys and routes that were denied most often recently, or had most requests, per policy.
//!
//! Counts that never expire would list last week's attacker for ever. So each ranking is a pair of
//! Space-Saving sketches, one for this period and one for the previous period; when a period ends,
//! the older one is dropped. A query adds up both, including their errors.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;
use tidegate_core::Timestamp;

use super::events::EVENTS_PER_POLICY_PER_SECOND;
use super::latency::ServiceTimes;
use super::mask::{LogKeys, Masking, StoredKey};
use super::{RankBy, ShownText};
use crate::policy::Template;
use crate::sync::Mutex;

/// The maximum number of policies with separate rankings. The others share one. If an attacker
/// fills every ranking of every policy, they take about 60 MB; and 200 MB if all keys are masked
/// keys of 1,024 bytes, which are stored whole.
pub const MAX_TRACKED_POLICIES: usize = 128;

/// Rankings cover between one and two of these periods.
pub const TOP_PERIOD: Duration = Duration::from_secs(600);

/// A key that is added to a ranking.
pub(super) struct Observation<'a> {
    pub by: RankBy,
    pub key: &'a [u8],
    /// The template that rendered the key, if it has to be masked.
    pub template: Option<&'a Arc<Template>>,
    pub route: Option<&'a str>,
    /// The number of requests that it stands for.
    pub count: u64,
}

/// The rankings and service times of a policy.
#[derive(Debug)]
pub(super) struct PolicyTracker {
    policy: Arc<str>,
    /// The rankings in the order of [`RankBy::ALL`]. Each has a separate lock, because different
    /// requests add to them.
    rankings: [Mutex<PolicyRanking>; RankBy::ALL.len()],
    published: Mutex<PublishQuota>,
    /// The service times of admitted requests, if they are measured.
    pub(super) service: OnceLock<Box<ServiceTimes>>,
}

impl PolicyTracker {
    pub(super) fn new(policy: Arc<str>) -> Self {
        let (rankings, published) = Default::default();
        PolicyTracker { policy, rankings, published, service: OnceLock::new() }
    }

    pub(super) fn policy(&self) -> &Arc<str> {
        &self.policy
    }

    pub(super) fn add(&self, observation: &Observation<'_>, period: u64) {
        let route = observation.route.map(|route| (hash(route.as_bytes()), route));
        let key_hash = hash(observation.key);
        let mut ranking = self.rankings[observation.by as usize].lock();
        let (key, count) = (observation.key, observation.count);
        ranking.keys.advance_to(period).add(key_hash, key, observation.template, count);
        if let Some((route_hash, route)) = route {
            ranking.routes.advance_to(period).add(route_hash, route.as_bytes(), None, count);
        }
    }

    /// Copies of all keys in a ranking, so that a long search does not hold the lock.
    pub(super) fn keys(&self, by: RankBy) -> Vec<StoredKey> {
        let ranking = self.rankings[by as usize].lock();
        let sketches = [&ranking.keys.current, &ranking.keys.previous];
        sketches
            .into_iter()
            .flat_map(Sketch::counters)
            .map(|counter| counter.stored.clone())
            .collect()
    }

    /// Returns the number of denials suppressed since the last published one if another may be
    /// published now, and `None` otherwise.
    pub(super) fn may_publish(&self, now: Timestamp) -> Option<u64> {
        let second = now.as_micros() / 1_000_000;
        let mut published = self.published.lock();
        if published.second != second {
            published.second = second;
            published.count = 0;
        }
        if published.count >= EVENTS_PER_POLICY_PER_SECOND {
            published.suppressed += 1;
            return None;
        }
        published.count += 1;
        Some(std::mem::take(&mut published.suppressed))
    }
}

#[derive(Debug, Default)]
struct PublishQuota {
    second: u64,
    count: u64,
    suppressed: u64,
}

#[derive(Debug, Default)]
struct PolicyRanking {
    keys: RecentSketches,
    routes: RecentSketches,
}

#[derive(Debug, Default)]
struct RecentSketches {
    period: u64,
    current: Sketch,
    previous: Sketch,
}

impl RecentSketches {
    /// The sketch of this period. Starts a new one if the period has ended.
    fn advance_to(&mut self, period: u64) -> &mut Sketch {
        if period > self.period {
            self.previous.clear();
            if period == self.period + 1 {
                std::mem::swap(&mut self.previous, &mut self.current);
            }
            self.current.clear();
            self.period = period;
        }
        &mut self.current
    }

    /// Combines both sketches. A name that one of them does not list may have occurred in it up to
    /// its floor.
    fn list(&mut self, period: u64, policy: &Arc<str>) -> PartialRanking {
        self.advance_to(period);
        let (current, previous) = (&self.current, &self.previous);
        let entry = |stored: &StoredKey, (count, error): (u64, u64), (more, wrong): (u64, u64)| {
            UnmaskedEntry {
                policy: Arc::clone(policy),
                stored: stored.clone(),
                count: count + more,
                error: error + wrong,
            }
        };
        let now = current.counters().map(|counter| {
            entry(counter.stored, (counter.count, counter.error), previous.estimate(counter.hash))
        });
        let before = previous.counters().filter(|counter| !current.contains(counter.hash));
        let before = before.map(|counter| {
            entry(counter.stored, (counter.count, counter.error), current.estimate(counter.hash))
        });
        let entries = now.chain(before).collect();
        PartialRanking { entries, unlisted_at_most: current.floor() + previous.floor() }
    }
}

/// An entry before its key is masked.
struct UnmaskedEntry {
    policy: Arc<str>,
    stored: StoredKey,
    count: u64,
    error: u64,
}

#[derive(Default)]
struct PartialRanking {
    entries: Vec<UnmaskedEntry>,
    unlisted_at_most: u64,
}

/// A key or route, and how often it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankedEntry {
    /// The name of the policy.
    pub policy: Arc<str>,
    /// The key or route.
    pub name: ShownText,
    /// An upper bound of the number of times that it was seen.
    pub count: u64,
    /// The maximum error of `count`: the name was seen at least `count - error` times.
    pub error: u64,
}

/// A ranking by count, with a bound for the names that it does not list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranking {
    /// The entries, largest count first.
    pub entries: Vec<RankedEntry>,
    /// The maximum count of a name that is not listed.
    pub unlisted_at_most: u64,
}

impl PartialRanking {
    /// Adds the entries of another ranking and keeps the `n` largest. Entries with equal counts are
    /// sorted by name.
    fn add(&mut self, other: PartialRanking, n: usize) {
        self.entries.extend(other.entries);
        self.unlisted_at_most = self.unlisted_at_most.max(other.unlisted_at_most);
        self.entries.sort_by(|a, b| {
            let names = || (&a.policy, a.stored.bytes()).cmp(&(&b.policy, b.stored.bytes()));
            b.count.cmp(&a.count).then_with(names)
        });
        if let Some(first_left_out) = self.entries.get(n) {
            self.unlisted_at_most = self.unlisted_at_most.max(first_left_out.count);
        }
        self.entries.truncate(n);
    }

    fn named(self, name: impl Fn(&StoredKey) -> ShownText) -> Ranking {
        let entries = self.entries.into_iter().map(|entry| RankedEntry {
            name: name(&entry.stored),
            policy: entry.policy,
            count: entry.count,
            error: entry.error,
        });
        Ranking { entries: entries.collect(), unlisted_at_most: self.unlisted_at_most }
    }
}

/// The keys and routes that were seen most often recently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Top {
    /// The ranking of keys.
    pub keys: Ranking,
    /// The ranking of routes.
    pub routes: Ranking,
    /// The time span that the counts cover.
    pub covers: Duration,
}

/// A query for the top entries of some rankings.
pub(super) struct TopQuery<'a> {
    pub trackers: &'a [Arc<PolicyTracker>],
    pub by: RankBy,
    pub period: u64,
    pub n: usize,
    pub covers: Duration,
}

/// Combines the rankings of several policies. Keys are omitted if they must not be shown.
pub(super) fn top(query: &TopQuery<'_>, masking: &Masking) -> Top {
    let (mut keys, mut routes) = (PartialRanking::default(), PartialRanking::default());
    let keys_shown = if masking.log_keys == LogKeys::Off { 0 } else { query.n };
    for tracker in query.trackers {
        let mut ranking = tracker.rankings[query.by as usize].lock();
        keys.add(ranking.keys.list(query.period, &tracker.policy), keys_shown);
        routes.add(ranking.routes.list(query.period, &tracker.policy), query.n);
    }
    Top {
        keys: keys.named(|stored| masking.text(stored)),
        routes: routes.named(StoredKey::plain),
        covers: query.covers,
    }
}

/// Hashes a name. The seed is random, so that clients cannot make names collide.
fn hash(bytes: &[u8]) -> u64 {
    static SEED: OnceLock<(SharedSeed, u64)> = OnceLock::new();
    let random = || RandomState::new().hash_one(0);
    let (shared, seed) = SEED.get_or_init(|| (SharedSeed::from_u64(random()), random()));
    SeedableRandomState::with_seed(*seed, shared).hash_one(bytes)
}

/// The number of counters per sketch. A name with more than 1/128 of the denials is always listed.
pub const SKETCH_ENTRIES: usize = 128;

#[derive(Debug, Default)]
pub(super) struct Sketch {
    /// The names are identified by a keyed hash of 64 bits. The chance that two of a million names
    /// share a hash is 3 in 10^8.
    hashes: Vec<u64>,
    counts: Vec<u64>,
    names: Vec<Name>,
}

#[derive(Debug)]
struct Name {
    error: u64,
    stored: StoredKey,
}

/// A borrowed counter of a sketch.
pub(super) struct Counter<'a> {
    pub hash: u64,
    pub count: u64,
    pub error: u64,
    pub stored: &'a StoredKey,
}

impl Sketch {
    /// Counts a name `count` times. `template` is the one that rendered it, if it has to be masked.
    pub(super) fn add(
        &mut self,
        hash: u64,
        name: &[u8],
        template: Option<&Arc<Template>>,
        count: u64,
    ) {
        if let Some(index) = self.find(hash) {
            self.counts[index] += count;
            return;
        }
        if self.hashes.len() < SKETCH_ENTRIES {
            self.hashes.push(hash);
            self.counts.push(count);
            let mut stored = StoredKey::default();
            stored.set(name, template);
            self.names.push(Name { error: 0, stored });
            return;
        }
        // Finds the minimum first and then its index: two simple passes are faster than a combined
        // one.
        let error = self.floor();
        let Some(index) = self.counts.iter().position(|count| *count == error) else { return };
        self.hashes[index] = hash;
        self.counts[index] = error + count;
        // The memory is reused, so that a flood of new names does not allocate.
        self.names[index].error = error;
        self.names[index].stored.set(name, template);
    }

    fn find(&self, hash: u64) -> Option<usize> {
        self.hashes.iter().position(|known| *known == hash)
    }

    /// The maximum number of times that a name without a counter can have been seen.
    pub(super) fn floor(&self) -> u64 {
        if self.hashes.len() < SKETCH_ENTRIES {
            return 0;
        }
        self.counts.iter().copied().min().unwrap_or(0)
    }

    /// The maximum number of times that a name can have been seen, and the maximum error of that.
    pub(super) fn estimate(&self, hash: u64) -> (u64, u64) {
        match self.find(hash) {
            Some(index) => (self.counts[index], self.names[index].error),
            None => (self.floor(), self.floor()),
        }
    }

    pub(super) fn contains(&self, hash: u64) -> bool {
        self.find(hash).is_some()
    }

    pub(super) fn counters(&self) -> impl Iterator<Item = Counter<'_>> {
        let both = self.hashes.iter().zip(&self.counts).zip(&self.names);
        both.map(|((&hash, &count), name)| Counter {
            hash,
            count,
            error: name.error,
            stored: &name.stored,
        })
    }

    pub(super) fn clear(&mut self) {
        *self = Sketch::default();
    }
}
