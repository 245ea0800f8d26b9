//! Statistics about decisions, in bounded memory.
//!
//! Two requirements conflict: a counter may cost only a few nanoseconds per request, and an
//! operator needs to know *which keys* were denied. So there are two layers.
//!
//! - Counters per policy, limit and mode. They are resolved to a [`LimitStats`] once per reload.
//!   Recording is then one relaxed add per limit in a stripe of the calling thread, one for the
//!   request in the counters of its reported limit, and another one for the latency.
//! - Names of keys and routes, recorded only for a denial, a would-be denial or a near miss, and
//!   for a sample of all requests: a heavy-hitter sketch per policy ([`Stats::top`]) and a stream
//!   of denials ([`Stats::events`]).
//!
//! A key never becomes the name of a counter, because an attacker can create any number of keys.
//! Everything is bounded: series, tracked policies, sketch entries, bytes of text, events and their
//! subscribers.
//!
//! Layout: `counters.rs`: counters per limit; `latency.rs`: durations of decisions and of the
//! service of requests; `top.rs`: top keys per policy, found by a sketch; `events.rs`: the stream
//! of denials; `mask.rs`: keys without credentials, short and printable; `prometheus.rs`: the
//! statistics as metrics.

mod counters;
mod events;
mod latency;
mod mask;
mod prometheus;
mod top;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Decision, Limit, RetryAfter, Timestamp};

pub use self::counters::Counters;
pub use self::counters::{LimitStats, MAX_SERIES, RequestCounts, SeriesCounts};
pub use self::events::{
    Denial, EVENTS_HELD, EVENTS_PER_POLICY_PER_SECOND, Events, MAX_SUBSCRIBERS, StreamItem,
    Subscription, TooManySubscribers,
};
pub(crate) use self::latency::is_sampled;
pub use self::latency::{LATENCY_BOUNDS, LatencyCounts};
use self::latency::{RANKED_EVERY, is_ranked};
pub use self::latency::{SERVICE_BOUNDS, ServiceLatency, ServiceTimer, TIMED_EVERY};
#[cfg(feature = "config")]
pub(crate) use self::mask::MIN_SECRET_BYTES;
pub use self::mask::{LogKeys, MAX_SHOWN_CHARS, MaskSecret, SecretTooShort};
pub use self::mask::{MAX_TEXT_BYTES, ShownText};
pub(crate) use self::mask::{has_masked_parts, looks_masked};
pub use self::prometheus::{
    MetricFamily, MetricKind, PROMETHEUS_CONTENT_TYPE, PrometheusText, write_memory_metrics,
};
pub use self::top::SKETCH_ENTRIES;
pub use self::top::{MAX_TRACKED_POLICIES, RankedEntry, Ranking, TOP_PERIOD, Top};
#[doc(no_inline)]
pub use tidegate_core::Decided;

use self::counters::Registry;
use self::counters::{Stripe, stripe};
use self::latency::Latency;
use self::mask::{Masking, StoredKey};
use self::top::{Observation, PolicyTracker, TopQuery};
use crate::Clock;
use crate::policy::{Key, Mode, Policy, Template, shown_path};

/// The policy name of limits that callers provide. No policy can have this name.
pub const CALLER: &str = "(caller)";

/// The limit name of limits that come with a request. They share one series per policy, because
/// their number is unbounded.
#[cfg(feature = "tower")]
const PER_REQUEST: &str = "per-request";
/// The policy name of series beyond [`MAX_SERIES`] and of rankings beyond
/// [`MAX_TRACKED_POLICIES`]. No policy can have this name.
pub const OTHER: &str = "(other)";

/// The limit name of policies without limits, whose requests are counted nevertheless.
const NO_LIMIT: &str = "";

/// The outcome of one limit, or of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The limit, or every limit, admitted the request.
    Allowed,
    /// The limit denied the request.
    Denied,
    /// The limit is only observed and would have denied the request, which was admitted unless
    /// another limit denied it.
    WouldDeny,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Outcome; 3] = [Outcome::Allowed, Outcome::Denied, Outcome::WouldDeny];

    /// Returns the name used in metrics and events.
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::Allowed => "allowed",
            Outcome::Denied => "denied",
            Outcome::WouldDeny => "would_deny",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The events by which keys and routes are ranked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RankBy {
    /// Denied requests.
    #[default]
    Denied,
    /// Requests that an observed policy would have denied.
    WouldDeny,
    /// Requests that were allowed and left at most 5 % of the limit.
    Near,
    /// Requests that were allowed. Estimated from samples.
    Allowed,
    /// Requests that were sent to a shared store: not those that were answered from memory, or that
    /// failed before. Estimated from samples.
    StoreCalls,
}

impl RankBy {
    /// Every ranking.
    pub const ALL: [RankBy; 5] =
        [RankBy::Denied, RankBy::WouldDeny, RankBy::Near, RankBy::Allowed, RankBy::StoreCalls];

    /// Returns the name used in queries.
    pub const fn name(self) -> &'static str {
        match self {
            RankBy::Denied => "denied",
            RankBy::WouldDeny => "would_deny",
            RankBy::Near => "near",
            RankBy::Allowed => "allowed",
            RankBy::StoreCalls => "store_calls",
        }
    }

    /// Returns the number of requests that one recorded request stands for. `is_shared` is whether
    /// the requests are decided by a shared store. It is 1 if every request is recorded.
    pub fn sampled_one_in(self, is_shared: bool) -> u32 {
        match self {
            RankBy::Denied | RankBy::WouldDeny | RankBy::Near => 1,
            // All requests to a shared store are timed.
            RankBy::Allowed | RankBy::StoreCalls if is_shared => u32::from(RANKED_EVERY),
            RankBy::Allowed | RankBy::StoreCalls => {
                u32::from(TIMED_EVERY) * u32::from(RANKED_EVERY)
            }
        }
    }
}

impl fmt::Display for RankBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An unknown name of a ranking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownRanking;

impl fmt::Display for UnknownRanking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("use denied, would_deny, near, allowed or store_calls")
    }
}

impl std::error::Error for UnknownRanking {}

impl FromStr for RankBy {
    type Err = UnknownRanking;

    fn from_str(name: &str) -> Result<Self, UnknownRanking> {
        RankBy::ALL.into_iter().find(|by| by.name() == name).ok_or(UnknownRanking)
    }
}

/// The result of one limit of a request, as it is recorded.
#[derive(Clone, Copy, Debug)]
pub struct LimitRecord<'a> {
    /// The counters of the limit, from [`Stats::limit`] or [`Stats::caller`].
    pub stats: &'a LimitStats,
    /// The limit, by which near misses are determined. The counters do not identify it, because all
    /// limits that callers provide share one series.
    pub limit: &'a Limit,
    /// The key, without the name of the policy.
    pub key: &'a [u8],
    /// Whether this limit allowed the request.
    pub allowed: bool,
    /// The remaining units after the request; `None` if they are unknown because the store failed.
    pub remaining: Option<u64>,
    /// The time after which the request would pass this limit.
    pub retry_after: RetryAfter,
    /// How this limit was decided.
    pub decided: Decided,
}

impl<'a> LimitRecord<'a> {
    /// The record of a limit that the store decided.
    #[inline(always)]
    pub(crate) fn exact(
        stats: &'a LimitStats,
        limit: &'a Limit,
        key: &'a [u8],
        decision: &Decision,
    ) -> Self {
        LimitRecord {
            stats,
            limit,
            key,
            allowed: decision.allowed,
            remaining: Some(decision.remaining),
            retry_after: decision.retry_after,
            decided: Decided::Exact,
        }
    }

    /// Whether the request was allowed and left at most 5 % of the limit. It is measured against
    /// the burst, which is what a token bucket holds.
    #[inline]
    pub(crate) fn is_near(&self) -> bool {
        self.allowed && is_near(self.limit, self.remaining)
    }

    /// The result as it is counted.
    #[inline(always)]
    pub(crate) fn counted(&self) -> CountedResult {
        CountedResult { allowed: self.allowed, near_miss: self.is_near(), decided: self.decided }
    }
}

/// The denying limit with the longest wait.
fn longest_wait<'r, 'a>(limits: &'r [LimitRecord<'a>]) -> Option<&'r LimitRecord<'a>> {
    let wait = |limit: &&LimitRecord<'_>| limit.retry_after.as_micros().unwrap_or(u64::MAX);
    limits.iter().filter(|limit| !limit.allowed).max_by_key(wait)
}

/// Whether at most 5 % of a limit remain.
#[inline]
pub(crate) fn is_near(limit: &Limit, remaining: Option<u64>) -> bool {
    remaining.is_some_and(|left| left <= limit.burst() / 20)
}

/// A request as it is recorded. Limits of one policy are adjacent.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestRecord<'a> {
    /// The enforced and observed limits, in the order of the configuration.
    pub limits: &'a [LimitRecord<'a>],
    /// Whether the request as a whole was allowed.
    pub allowed: bool,
    /// The path of the request, without the query.
    pub route: Option<&'a str>,
    /// The caller's name for the request, for the log.
    pub request_id: Option<&'a str>,
    /// The duration of the decision; `None` if it was not measured.
    pub elapsed: Option<Duration>,
    /// Whether a shared store decides. In that case every request is timed.
    pub is_shared: bool,
    /// Whether the request was sent to the shared store.
    pub was_sent: bool,
}

/// A request whose limits are being counted.
pub(crate) struct Counting<'s> {
    stripe: Stripe,
    allowed: bool,
    is_notable: bool,
    /// Whether the request is sampled for the rankings by volume.
    is_ranked: bool,
    outcome: Outcome,
    /// The limit under which the request is counted: the first observed limit that would have
    /// denied it or, if there is none, the reported limit, or the first one if none is enforced.
    counted: Option<&'s LimitStats>,
}

impl<'s> Counting<'s> {
    /// Starts counting a request that was or was not allowed.
    #[inline]
    pub(crate) fn new(allowed: bool) -> Self {
        let outcome = if allowed { Outcome::Allowed } else { Outcome::Denied };
        let (is_notable, is_ranked) = (false, false);
        Counting { stripe: stripe(), allowed, is_notable, is_ranked, outcome, counted: None }
    }

    /// Counts the result of one limit. `is_reported` is whether the verdict reports it.
    #[inline(always)]
    pub(crate) fn add(&mut self, stats: &'s LimitStats, result: CountedResult, is_reported: bool) {
        let CountedResult { allowed, near_miss, decided } = result;
        let near_miss = near_miss && allowed && self.allowed;
        stats.count(self.stripe, allowed, near_miss, decided);
        self.is_notable |= near_miss || !allowed;
        if self.outcome == Outcome::WouldDeny {
            return;
        }
        // A quota that was skipped denies, although the request is allowed.
        if !allowed && self.allowed && stats.denied_outcome() == Outcome::WouldDeny {
            self.outcome = Outcome::WouldDeny;
            self.counted = Some(stats);
        } else if is_reported || self.counted.is_none() {
            self.counted = Some(stats);
        }
    }

    /// Returns the ranking of the request, and the limit whose key is ranked. A request that was
    /// admitted and would not have been denied is ranked if it was a near miss.
    fn ranked<'r, 'a>(
        &self,
        limits: &'r [LimitRecord<'a>],
    ) -> Option<(RankBy, &'r LimitRecord<'a>)> {
        let by = match self.outcome {
            Outcome::Allowed => {
                return Some((RankBy::Near, limits.iter().find(|limit| limit.is_near())?));
            }
            Outcome::Denied => RankBy::Denied,
            Outcome::WouldDeny => RankBy::WouldDeny,
        };
        let counted = self.counted?;
        let mut policies = limits.chunk_by(|a, b| a.stats.same_policy(b.stats));
        let limits = policies.find(|limits| limits[0].stats.same_policy(counted))?;
        // A failure of the store does not describe the key.
        longest_wait(limits)
            .filter(|limit| limit.decided != Decided::FailedClosed)
            .map(|limit| (by, limit))
    }

    /// Whether a limit was counted.
    #[inline]
    pub(crate) fn has_limits(&self) -> bool {
        self.counted.is_some()
    }
}

/// The result of one limit, as it is counted.
#[derive(Clone, Copy)]
pub(crate) struct CountedResult {
    pub(crate) allowed: bool,
    /// Whether at most 5 % of the limit remain.
    pub(crate) near_miss: bool,
    pub(crate) decided: Decided,
}

/// The statistics of a gate. They are shared by reference. Recording never blocks for longer than
/// another thread needs to record a name.
#[derive(Debug)]
pub struct Stats {
    registry: Registry,
    latency: Latency,
    store_latency: Latency,
    /// Requests that no policy applied to, by [`Outcome`].
    unmatched: Counters<{ Outcome::ALL.len() }>,
    events: Arc<Events>,
    clock: Clock,
    started: Timestamp,
}

impl Default for Stats {
    fn default() -> Self {
        Stats::new(Clock::default())
    }
}

impl Stats {
    /// Creates empty statistics. The clock dates events and determines which keys are recent;
    /// counters do not use it.
    pub fn new(clock: Clock) -> Self {
        Stats {
            registry: Registry::default(),
            latency: Latency::default(),
            store_latency: Latency::default(),
            unmatched: Counters::default(),
            events: Arc::new(Events::default()),
            started: clock.now(),
            clock,
        }
    }

    /// Returns the counters of a policy's limit. This is slow: call it when the policies change,
    /// and keep the result.
    ///
    /// A repeated call with the same names returns the same counters. Beyond [`MAX_SERIES`], series
    /// that are no longer in use are merged into [`OTHER`] to make room. If all are in use, the new
    /// limit is counted in [`OTHER`].
    pub fn limit(&self, policy: &str, limit: &Limit, mode: Mode) -> Arc<LimitStats> {
        Arc::new(self.registry.resolve(policy, &limit.to_string(), mode))
    }

    /// The counters of a policy's limits, in their order, or one for the requests of a policy
    /// without limits. Their keys are masked as the key template of the policy requires.
    pub(crate) fn limits(
        &self,
        policy: &Policy,
        limits: &[Limit],
        mode: Mode,
    ) -> Vec<Arc<LimitStats>> {
        let template = masked_template(policy);
        let resolve = |limit: &str| {
            let stats = self.registry.resolve(policy.name(), limit, mode);
            Arc::new(stats.with_template(template.as_ref()))
        };
        match limits {
            [] => vec![resolve(NO_LIMIT)],
            limits => limits.iter().map(|limit| resolve(&limit.to_string())).collect(),
        }
    }

    /// The counters of limits that come with a request of a policy.
    #[cfg(feature = "tower")]
    pub(crate) fn request_limits(&self, policy: &Policy) -> Arc<LimitStats> {
        let stats = self.registry.resolve(policy.name(), PER_REQUEST, policy.mode());
        Arc::new(stats.with_template(masked_template(policy).as_ref()))
    }

    /// Returns the counters of limits that callers provide. All of them share one series, because
    /// callers can provide any number of limits.
    pub fn caller(&self) -> Arc<LimitStats> {
        Arc::new(self.registry.resolve(CALLER, CALLER, Mode::Enforce))
    }

    /// Records a request. Call it once per request. It is cheap, except for denials, would-be
    /// denials and near misses.
    pub fn record(&self, record: &RequestRecord<'_>) {
        let mut counting = Counting::new(record.allowed);
        let reported = longest_wait(record.limits).filter(|_| !record.allowed);
        for limit in record.limits {
            let is_reported = reported.is_some_and(|reported| std::ptr::eq(reported, limit));
            counting.add(limit.stats, limit.counted(), is_reported);
        }
        self.count_request(&counting, None);
        if self.add(&mut counting, record.elapsed) {
            self.record_notable(record, &counting);
        }
    }

    /// Counts a request once. `unlimited` is the counter of a policy without limits that applied,
    /// in case that none of the limits was counted.
    #[inline(always)]
    pub(crate) fn count_request(&self, counting: &Counting<'_>, unlimited: Option<&LimitStats>) {
        match counting.counted.or(unlimited) {
            Some(stats) => stats.count_request(counting.stripe, counting.outcome),
            None => self.unmatched.add_in(counting.stripe, counting.outcome as usize, 1),
        }
    }

    /// Adds the duration of a decision. Returns whether the keys have to be recorded.
    #[inline]
    pub(crate) fn add(&self, counting: &mut Counting<'_>, elapsed: Option<Duration>) -> bool {
        if let Some(elapsed) = elapsed {
            self.latency.add(counting.stripe, elapsed);
            counting.is_ranked = is_ranked();
        }
        counting.is_notable || counting.is_ranked
    }

    /// Records the duration of a call to the shared store, including failures.
    pub(crate) fn record_store(&self, elapsed: Duration) {
        self.store_latency.add(stripe(), elapsed);
    }

    /// Records the key of a request in the rankings, under the policy that counts the request, and
    /// publishes its denials, one per policy. A quota that was skipped denies, although the request
    /// is allowed: that is not published.
    #[cold]
    pub(crate) fn record_notable(&self, record: &RequestRecord<'_>, counting: &Counting<'_>) {
        let now = self.clock.now();
        let route = record.route.map(route);
        let record = &RequestRecord { route: route.as_deref(), ..*record };
        if let Some((by, limit)) = counting.ranked(record.limits) {
            self.rank(by, limit, record, now);
        }
        let volume = [
            (RankBy::Allowed, counting.outcome != Outcome::Denied),
            (RankBy::StoreCalls, record.was_sent),
        ];
        if counting.is_ranked
            && let Some(counted) = counting.counted
            && let Some(limit) = record.limits.iter().find(|limit| limit.stats.same_policy(counted))
        {
            for (by, _) in volume.into_iter().filter(|(_, is_ranked)| *is_ranked) {
                self.rank(by, limit, record, now);
            }
        }
        for limits in record.limits.chunk_by(|a, b| a.stats.same_policy(b.stats)) {
            if let Some(limit) = longest_wait(limits)
                && !(record.allowed && limit.stats.denied_outcome() == Outcome::Denied)
                && let Some(suppressed) = limit.stats.tracker().may_publish(now)
            {
                self.events.publish(record, limit, now, suppressed);
            }
        }
    }

    /// Adds the key of a limit, and the route of the request, to a ranking.
    fn rank(
        &self,
        by: RankBy,
        limit: &LimitRecord<'_>,
        record: &RequestRecord<'_>,
        now: Timestamp,
    ) {
        let (key, template) = (limit.key, limit.stats.template());
        let count = by.sampled_one_in(record.is_shared).into();
        let observation = Observation { by, key, template, route: record.route, count };
        limit.stats.tracker().add(&observation, self.period(now));
    }

    fn period(&self, now: Timestamp) -> u64 {
        self.since_start_us(now) / 1_000_000 / TOP_PERIOD.as_secs()
    }

    fn since_start_us(&self, now: Timestamp) -> u64 {
        now.as_micros().saturating_sub(self.started.as_micros())
    }

    /// Returns the `n` keys and routes that were seen most often recently, of one policy or of all.
    pub fn top(&self, by: RankBy, policy: Option<&str>, n: usize) -> Top {
        let now = self.clock.now();
        let period = self.period(now);
        let elapsed = Duration::from_micros(self.since_start_us(now));
        let started = TOP_PERIOD * u32::try_from(period.saturating_sub(1)).unwrap_or(u32::MAX);
        let trackers = &self.registry.trackers(policy);
        let covers = elapsed.saturating_sub(started);
        top::top(&TopQuery { trackers, by, period, n, covers }, &self.events.masking().load())
    }

    /// Sets how keys are shown, including those that were recorded before. Nodes with the same
    /// secret mask a key in the same way. Without a secret, every process masks differently.
    pub fn set_log_keys(&self, log_keys: LogKeys, secret: Option<&MaskSecret>) {
        self.events.masking().store(Arc::new(Masking::new(log_keys, secret)));
    }

    /// Returns a key of this template as [`LogKeys`] shows it, for example in a log.
    pub fn show(&self, template: &Template, key: &Key) -> ShownText {
        self.events.masking().load().text_of(template, key.as_ref())
    }

    /// Returns the key of a policy with this masked form, if it is among the top keys or the latest
    /// denials. Keys are not stored anywhere else.
    pub fn unmask(&self, policy: &str, form: &str) -> Option<Key> {
        let masking = self.events.masking().load();
        let mut keys = self.keys(policy);
        let stored = keys.find(|stored| masking.is_form_of(form, stored))?;
        Some(Key::from_rendered(stored.bytes()))
    }

    /// Whether a key of a policy is among the top keys or the latest denials.
    pub(crate) fn is_recent(&self, policy: &str, key: &Key) -> bool {
        self.keys(policy).any(|stored| stored.is(key))
    }

    /// The stored keys of a policy: those of the latest denials, and the top keys.
    fn keys(&self, policy: &str) -> impl Iterator<Item = StoredKey> {
        let denied = self.events.keys(policy).into_iter();
        // Policies beyond `MAX_TRACKED_POLICIES` share the rankings of `OTHER`.
        let trackers = [policy, OTHER].map(|name| self.registry.trackers(Some(name)));
        let ranked = |tracker: Arc<PolicyTracker>| {
            RankBy::ALL.map(|by| tracker.keys(by)).into_iter().flatten()
        };
        denied.chain(trackers.into_iter().flatten().flat_map(ranked))
    }

    /// Returns the counts of all limits, sorted by name.
    pub fn series(&self) -> Vec<SeriesCounts> {
        let mut series = self.registry.counts();
        series.retain(|one| &*one.limit != NO_LIMIT);
        series
    }

    /// Returns the requests by policy, sorted by name. The first entry, with an empty name, counts
    /// the requests that no policy applied to.
    ///
    /// A request is counted once: a denied one under the policy of the reported limit; one that is
    /// admitted, but that an observed policy would have denied, under that policy; any other under
    /// the policy of the reported limit or, if none is enforced, the first that applied.
    pub fn requests(&self) -> Vec<RequestCounts> {
        let (policy, outcomes) = ("".into(), self.unmatched.sums());
        let unmatched = RequestCounts { policy, outcomes, possible: [true, false, false] };
        let mut requests = self.registry.requests();
        requests.insert(0, unmatched);
        requests
    }

    /// Returns the durations of decisions.
    pub fn latency(&self) -> LatencyCounts {
        self.latency.counts()
    }

    /// Returns the durations of calls to the shared store, including failures.
    pub fn store_latency(&self) -> LatencyCounts {
        self.store_latency.counts()
    }

    /// Returns the durations of the service of admitted requests, by policy and outcome. Only
    /// fronts that use a [`ServiceTimer`] record them.
    pub fn service_latency(&self) -> Vec<ServiceLatency> {
        latency::counts(&self.registry.trackers(None))
    }

    /// Returns the stream of denials.
    pub fn events(&self) -> &Arc<Events> {
        &self.events
    }
}

/// Returns the route of a path: without a query that a caller left in it, normalised, and without
/// path parameters.
fn route(path: &str) -> Cow<'_, str> {
    shown_path(path.split(['?', '#']).next().unwrap_or_default())
}

/// The key template of a policy, if its keys may contain credentials.
fn masked_template(policy: &Policy) -> Option<Arc<Template>> {
    let template = policy.key_template();
    has_masked_parts(template).then(|| Arc::new(template.clone()))
}
