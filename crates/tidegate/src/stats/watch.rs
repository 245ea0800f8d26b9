//! Who was denied lately, per policy.
//!
//! Counts that never end would name last week's attacker for ever. So each
//! ranking is a pair of sketches, this period's and the last one's; when a period
//! ends, the older is dropped. An answer adds the two, errors included.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;
use tidegate_core::Timestamp;

use super::events::EVENTS_PER_POLICY_PER_SECOND;
use super::mask::{Kept, LogKeys, Masking};
use super::service::Served;
use super::sketch::Sketch;
use super::{By, Text};
use crate::policy::Template;
use crate::sync::Mutex;

/// The most policies with rankings of their own; the rest share one. All of them
/// full take some 35 MB, which takes an attacker who fills every ranking of every policy; and
/// 120 MB if all keys are masked ones of 1,024 bytes, which are kept whole.
pub const MAX_WATCHED_POLICIES: usize = 128;

/// Rankings cover between one and two of these.
pub const TOP_PERIOD: Duration = Duration::from_secs(600);

/// Somebody who is to be remembered.
pub(super) struct Sighting<'a> {
    pub by: By,
    pub key: &'a [u8],
    /// The template that made the key, if it is to be masked.
    pub template: Option<&'a Arc<Template>>,
    pub route: Option<&'a str>,
}

/// What is remembered of one policy.
#[derive(Debug)]
pub(super) struct Watch {
    policy: Arc<str>,
    /// In the order of [`By::ALL`]; each with a lock of its own, because they
    /// are added to by different requests.
    rankings: [Mutex<Ranking>; By::ALL.len()],
    told: Mutex<ToldLately>,
    /// How long it took to serve those it admitted, where somebody times that.
    pub(super) service: OnceLock<Box<Served>>,
}

impl Watch {
    pub(super) fn new(policy: Arc<str>) -> Self {
        let (rankings, told) = Default::default();
        Watch { policy, rankings, told, service: OnceLock::new() }
    }

    pub(super) fn policy(&self) -> &Arc<str> {
        &self.policy
    }

    pub(super) fn note(&self, sighting: &Sighting<'_>, period: u64) {
        let route = sighting.route.map(|route| (hash(route.as_bytes()), route));
        let key_hash = hash(sighting.key);
        let mut ranking = self.rankings[sighting.by as usize].lock();
        ranking.keys.at(period).add(key_hash, sighting.key, sighting.template);
        if let Some((route_hash, route)) = route {
            ranking.routes.at(period).add(route_hash, route.as_bytes(), None);
        }
    }

    /// Copies of all keys in a ranking. Copied, so that a long search does not hold the lock.
    pub(super) fn keys(&self, by: By) -> Vec<Kept> {
        let ranking = self.rankings[by as usize].lock();
        let sketches = [&ranking.keys.current, &ranking.keys.previous];
        sketches
            .into_iter()
            .flat_map(Sketch::counters)
            .map(|counter| counter.kept.clone())
            .collect()
    }

    /// Whether a denial may be told now, and if so how many before it were not.
    pub(super) fn may_tell(&self, now: Timestamp) -> Option<u64> {
        let second = now.as_micros() / 1_000_000;
        let mut told = self.told.lock();
        if told.second != second {
            told.second = second;
            told.count = 0;
        }
        if told.count >= EVENTS_PER_POLICY_PER_SECOND {
            told.suppressed += 1;
            return None;
        }
        told.count += 1;
        Some(std::mem::take(&mut told.suppressed))
    }
}

#[derive(Debug, Default)]
struct ToldLately {
    second: u64,
    count: u64,
    suppressed: u64,
}

#[derive(Debug, Default)]
struct Ranking {
    keys: Recent,
    routes: Recent,
}

#[derive(Debug, Default)]
struct Recent {
    period: u64,
    current: Sketch,
    previous: Sketch,
}

impl Recent {
    /// The sketch of this period.
    fn at(&mut self, period: u64) -> &mut Sketch {
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

    /// Both sketches as one: a name that one of them does not list may have
    /// been there up to its floor.
    fn list(&mut self, period: u64, policy: &Arc<str>) -> Ranked {
        self.at(period);
        let (current, previous) = (&self.current, &self.previous);
        let entry = |kept: &Kept, (count, error): (u64, u64), (more, wrong): (u64, u64)| Unnamed {
            policy: Arc::clone(policy),
            kept: kept.clone(),
            count: count + more,
            error: error + wrong,
        };
        let now = current.counters().map(|counter| {
            entry(counter.kept, (counter.count, counter.error), previous.estimate(counter.hash))
        });
        let before = previous.counters().filter(|counter| !current.contains(counter.hash));
        let before = before.map(|counter| {
            entry(counter.kept, (counter.count, counter.error), current.estimate(counter.hash))
        });
        let entries = now.chain(before).collect();
        Ranked { entries, unlisted_at_most: current.floor() + previous.floor() }
    }
}

/// An entry before its key is masked.
struct Unnamed {
    policy: Arc<str>,
    kept: Kept,
    count: u64,
    error: u64,
}

#[derive(Default)]
struct Ranked {
    entries: Vec<Unnamed>,
    unlisted_at_most: u64,
}

/// A key or route and how often it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Under which policy.
    pub policy: Arc<str>,
    /// The key or route.
    pub name: Text,
    /// How often, at most.
    pub count: u64,
    /// By how much `count` may be too high: it was at least `count - error`.
    pub error: u64,
}

/// Entries by count, and what is known of the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// The entries, largest count first.
    pub entries: Vec<Entry>,
    /// Nobody who is not listed was seen more often than this.
    pub unlisted_at_most: u64,
}

impl Ranked {
    /// Adds others and keeps the `n` largest; equals in the order of their names.
    fn add(&mut self, other: Ranked, n: usize) {
        self.entries.extend(other.entries);
        self.unlisted_at_most = self.unlisted_at_most.max(other.unlisted_at_most);
        self.entries.sort_by(|a, b| {
            let names = || (&a.policy, a.kept.bytes()).cmp(&(&b.policy, b.kept.bytes()));
            b.count.cmp(&a.count).then_with(names)
        });
        if let Some(first_left_out) = self.entries.get(n) {
            self.unlisted_at_most = self.unlisted_at_most.max(first_left_out.count);
        }
        self.entries.truncate(n);
    }

    fn named(self, name: impl Fn(&Kept) -> Text) -> Listed {
        let entries = self.entries.into_iter().map(|entry| Entry {
            name: name(&entry.kept),
            policy: entry.policy,
            count: entry.count,
            error: entry.error,
        });
        Listed { entries: entries.collect(), unlisted_at_most: self.unlisted_at_most }
    }
}

/// Who was seen most often lately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Top {
    /// By key.
    pub keys: Listed,
    /// By route.
    pub routes: Listed,
    /// How far back the counts reach.
    pub covers: Duration,
}

/// A query for the top entries of some rankings.
pub(super) struct TopOf<'a> {
    pub watches: &'a [Arc<Watch>],
    pub by: By,
    pub period: u64,
    pub n: usize,
    pub covers: Duration,
}

/// The rankings of several policies as one. Without keys if they are not to be shown.
pub(super) fn top(asked: &TopOf<'_>, masking: &Masking) -> Top {
    let (mut keys, mut routes) = (Ranked::default(), Ranked::default());
    let keys_shown = if masking.log_keys == LogKeys::Off { 0 } else { asked.n };
    for watch in asked.watches {
        let mut ranking = watch.rankings[asked.by as usize].lock();
        keys.add(ranking.keys.list(asked.period, &watch.policy), keys_shown);
        routes.add(ranking.routes.list(asked.period, &watch.policy), asked.n);
    }
    Top {
        keys: keys.named(|kept| masking.text(kept)),
        routes: routes.named(Kept::plain),
        covers: asked.covers,
    }
}

/// Seeded from the operating system, so that nobody outside can make names collide.
fn hash(bytes: &[u8]) -> u64 {
    static SEED: OnceLock<(SharedSeed, u64)> = OnceLock::new();
    let random = || RandomState::new().hash_one(0);
    let (shared, seed) = SEED.get_or_init(|| (SharedSeed::from_u64(random()), random()));
    SeedableRandomState::with_seed(*seed, shared).hash_one(bytes)
}
