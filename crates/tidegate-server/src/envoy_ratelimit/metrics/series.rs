//! The names of limits, and a bounded table of their counters.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use tidegate::unstable::policy::{EnvoyDetails, EnvoyLevel};
use tidegate::unstable::stats::Counters;
use tracing::warn;

use crate::fronts::envoy::Entries;

/// The maximum number of series. Each takes about 1.5 KiB, so all of them take 6 MiB. The values of
/// requests are part of some names, so the number would be unbounded otherwise.
pub const MAX_SERIES: usize = 4096;

/// The maximum length of a name, so that a line of statsd always fits into a packet.
pub const MAX_NAME_BYTES: usize = 512;

/// The maximum length of a value of a request in a name. Longer values that begin alike are counted
/// together.
const MAX_VALUE_BYTES: usize = 128;

/// The name of the series that counts what exceeds [`MAX_SERIES`]: a domain and a key.
const OTHER: &str = "other.other";

/// A counter of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    Total,
    Over,
    Near,
    Within,
    Shadow,
    DomainNotFound,
}

impl Hits {
    /// The counters of limits.
    pub const OF_LIMITS: [Hits; 5] =
        [Hits::Total, Hits::Over, Hits::Near, Hits::Within, Hits::Shadow];

    /// All counters.
    pub const ALL: [Hits; 6] =
        [Hits::Total, Hits::Over, Hits::Near, Hits::Within, Hits::Shadow, Hits::DomainNotFound];

    /// The last part of the metric's name.
    pub const fn name(self) -> &'static str {
        match self {
            Hits::Total => "total_hits",
            Hits::Over => "over_limit",
            Hits::Near => "near_limit",
            Hits::Within => "within_limit",
            Hits::Shadow => "shadow_mode",
            Hits::DomainNotFound => "domain_not_found",
        }
    }
}

/// Counters that also know what was sent to statsd.
#[derive(Debug)]
pub struct DeltaCounters<const N: usize> {
    counters: Counters<N>,
    sent: [AtomicU64; N],
}

impl<const N: usize> Default for DeltaCounters<N> {
    fn default() -> Self {
        DeltaCounters { counters: Counters::default(), sent: [const { AtomicU64::new(0) }; N] }
    }
}

impl<const N: usize> DeltaCounters<N> {
    pub fn add(&self, index: usize, count: u64) {
        self.counters.add(index, count);
    }

    pub fn sums(&self) -> [u64; N] {
        self.counters.sums()
    }

    /// Returns what was added since the last call.
    pub fn take_deltas(&self) -> [u64; N] {
        let sums = self.sums();
        std::array::from_fn(|index| {
            sums[index].wrapping_sub(self.sent[index].swap(sums[index], Relaxed))
        })
    }
}

/// The counters of a limit or of an unknown domain.
#[derive(Debug)]
pub struct Series {
    /// The domain and the descriptors, separated by dots.
    pub name: String,
    pub counters: DeltaCounters<{ Hits::ALL.len() }>,
}

impl Series {
    fn new(name: String) -> Arc<Self> {
        Arc::new(Series { name, counters: DeltaCounters::default() })
    }
}

/// All series, by name.
#[derive(Debug, Default)]
pub struct Registry {
    series: RwLock<HashMap<String, Arc<Series>>>,
    /// Set when the first series exceeds the bound.
    other: OnceLock<Arc<Series>>,
}

impl Registry {
    /// Returns the series with this name, which is created if there is room.
    pub fn get(&self, name: &str) -> Arc<Series> {
        let known = self.series.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(series) = known.get(name) {
            return Arc::clone(series);
        }
        let is_full = known.len() >= MAX_SERIES;
        drop(known);
        if is_full {
            return Arc::clone(self.other());
        }
        let mut all = self.series.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have taken the last place.
        if all.len() >= MAX_SERIES && !all.contains_key(name) {
            return Arc::clone(self.other());
        }
        let series = all.entry(name.to_owned()).or_insert_with(|| Series::new(name.to_owned()));
        Arc::clone(series)
    }

    /// Removes all series but those of these names, if the table is full.
    pub fn make_room<'a>(&self, names: impl Iterator<Item = &'a str>) {
        if self.series.read().unwrap_or_else(PoisonError::into_inner).len() < MAX_SERIES {
            return;
        }
        // Checks wait for the lock, so the set is made before and the series are freed after.
        let kept: HashSet<&str> = names.collect();
        let mut all = self.series.write().unwrap_or_else(PoisonError::into_inner);
        let removed: Vec<_> = all.extract_if(|name, _| !kept.contains(&**name)).collect();
        drop(all);
        drop(removed);
    }

    /// Returns all series, in no order.
    pub fn all(&self) -> Vec<Arc<Series>> {
        let known = self.series.read().unwrap_or_else(PoisonError::into_inner);
        known.values().chain(self.other.get()).map(Arc::clone).collect()
    }

    fn other(&self) -> &Arc<Series> {
        self.other.get_or_init(|| {
            warn!(
                max = MAX_SERIES,
                "too many series of metrics: further ones are counted as domain `other`"
            );
            Series::new(OTHER.to_owned())
        })
    }
}

/// Returns the name of a limit of a config. Returns `None` if the name depends on the values of the
/// request, and `entries` is `None`.
pub fn limit_name(details: &EnvoyDetails, entries: Option<&Entries<'_>>) -> Option<String> {
    let mut name = Name::new(&details.domain);
    for (index, level) in details.levels.iter().enumerate() {
        name.push(".", &level.key, true);
        if is_by_request(details, level) {
            name.push_value(&entries?.get(index)?.1);
        } else if !level.value.is_empty() {
            name.push("_", &level.value, true);
        }
    }
    Some(name.finish())
}

/// Whether the name of a limit has the value of the request at this level.
fn is_by_request(details: &EnvoyDetails, level: &EnvoyLevel) -> bool {
    let is_wild = level.value.contains('*');
    let is_open = level.value.is_empty() || is_wild && !level.share_threshold;
    is_open && (details.detailed_metric || level.value_to_metric)
}

/// Returns the name of a limit that is sent with a request.
pub fn request_limit_name(domain: &str, entries: &Entries<'_>) -> String {
    let mut name = Name::new(domain);
    for (key, value) in entries {
        name.push(".", cut(key), false);
        name.push_value(value);
    }
    name.finish()
}

/// Returns the name of a domain that no config has.
pub fn unknown_domain(domain: &str) -> String {
    let mut name = Name::new("");
    name.push("", cut(domain), false);
    name.finish()
}

/// A name that is being written.
struct Name(String);

impl Name {
    fn new(domain: &str) -> Self {
        let mut name = Name(String::new());
        name.push("", domain, true);
        name
    }

    /// Adds a text. Characters with a meaning in statsd are replaced. Dots separate labels, so only
    /// a config may have them, except within addresses.
    fn push(&mut self, separator: &str, text: &str, keeps_dots: bool) {
        self.0.push_str(separator);
        // Nearly all texts have only these characters.
        if text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-/".contains(&byte)) {
            return self.0.push_str(text);
        }
        let is_digit_or_dot = |c: char| c.is_ascii_digit() || c == '.';
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let is_number = is_digit_or_dot(first);
            let end = rest.find(|c| is_digit_or_dot(c) != is_number).unwrap_or(rest.len());
            let (run, after) = rest.split_at(end);
            let keeps_dots = keeps_dots && !is_ipv4(run);
            self.0.extend(run.chars().map(|c| match c {
                ':' | '|' => '_',
                '.' if !keeps_dots => '_',
                c if c.is_control() || c.is_whitespace() => '_',
                c => c,
            }));
            rest = after;
        }
    }

    /// Adds a value of the request, unless it is empty.
    fn push_value(&mut self, value: &str) {
        if !value.is_empty() {
            self.push("_", cut(value), false);
        }
    }

    fn finish(mut self) -> String {
        self.0.truncate(self.0.floor_char_boundary(MAX_NAME_BYTES));
        self.0
    }
}

fn cut(value: &str) -> &str {
    &value[..value.floor_char_boundary(MAX_VALUE_BYTES)]
}

/// Whether a text has the form of an IPv4 address: four groups of one to three digits.
fn is_ipv4(text: &str) -> bool {
    text.split('.').count() == 4 && text.split('.').all(|group| (1..=3).contains(&group.len()))
}
