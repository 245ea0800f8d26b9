//! What was decided, counted in bounded memory.
//!
//! Two needs pull apart: a counter must cost a few nanoseconds on every request,
//! and an operator wants to know *who* was denied. So there are two layers.
//!
//! - Counters per (policy, limit, mode), resolved once per reload to a
//!   [`LimitStats`]; recording then is a relaxed add in a stripe of the calling
//!   thread, and one more for the latency.
//! - Names of keys and routes, touched only by a denial, a would-be denial or a
//!   near miss: a heavy-hitter sketch per policy ([`Stats::top`]) and a stream
//!   of denials ([`Stats::events`]).
//!
//! Keys never become names of counters: there are as many as attackers like.
//! Everything here has a bound: series, watched policies, sketch entries, bytes
//! of text, events and their readers.
//!
//! Layout: `counters.rs`: counters per limit; `latency.rs`: times of decisions and of served requests;
//! `top.rs`: top keys per policy, found by a sketch; `events.rs`: the stream of denials;
//! `mask.rs`: keys without credentials, short and printable.

mod counters;
mod events;
mod latency;
mod mask;
mod top;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Decision, Limit, RetryAfter, Timestamp};

pub use self::counters::Counters;
pub use self::counters::{LimitStats, MAX_SERIES, SeriesCounts};
pub use self::events::{
    Denial, EVENTS_HELD, EVENTS_PER_POLICY_PER_SECOND, Events, MAX_SUBSCRIBERS, StreamItem,
    Subscription, TooManySubscribers,
};
pub(crate) use self::latency::is_timed;
pub use self::latency::{LATENCY_BOUNDS, LatencyCounts};
pub use self::latency::{SERVICE_BOUNDS, ServiceLatency, ServiceTimer, TIMED_EVERY};
#[cfg(feature = "config")]
pub(crate) use self::mask::MIN_SECRET_BYTES;
pub(crate) use self::mask::looks_masked;
pub use self::mask::{LogKeys, MAX_SHOWN_CHARS, MaskSecret, SecretTooShort};
pub use self::mask::{MAX_TEXT_BYTES, Text};
pub use self::top::SKETCH_ENTRIES;
pub use self::top::{Entry, MAX_TRACKED_POLICIES, Ranking, TOP_PERIOD, Top};
#[doc(no_inline)]
pub use tidegate_core::Decided;

use self::counters::Registry;
use self::counters::{Stripe, stripe};
use self::latency::Latency;
use self::mask::{Masking, StoredKey};
use self::top::{Observation, TopQuery, TopTracker};
use crate::Clock;
use crate::policy::{Key, Mode, Policy, Template};

/// The name under which counts of caller-given limits appear: no policy can have it.
pub const CALLER: &str = "(caller)";

/// Names the limits that come with a request, in place of their text: they share one series per
/// policy, because there may be any number of them.
#[cfg(feature = "tower")]
const PER_REQUEST: &str = "per-request";
/// The name under which counts appear that there was no room for: no policy can have it.
pub const OTHER: &str = "(other)";

/// What came of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The limit admitted the request.
    Allowed,
    /// The limit denied the request.
    Denied,
    /// The limit is only observed and would have denied the request.
    WouldDeny,
}

impl Outcome {
    /// The name used in metrics and events.
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

/// What keys and routes are ranked by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RankBy {
    /// Requests denied.
    #[default]
    Denied,
    /// Requests an observed policy would have denied.
    WouldDeny,
    /// Requests allowed with at most 5 % of the limit remaining.
    Near,
}

impl RankBy {
    /// Every ranking.
    pub const ALL: [RankBy; 3] = [RankBy::Denied, RankBy::WouldDeny, RankBy::Near];

    /// The name used in queries.
    pub const fn name(self) -> &'static str {
        match self {
            RankBy::Denied => "denied",
            RankBy::WouldDeny => "would_deny",
            RankBy::Near => "near",
        }
    }
}

impl fmt::Display for RankBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no ranking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownRanking;

impl fmt::Display for UnknownRanking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("use denied, would_deny or near")
    }
}

impl std::error::Error for UnknownRanking {}

impl FromStr for RankBy {
    type Err = UnknownRanking;

    fn from_str(name: &str) -> Result<Self, UnknownRanking> {
        RankBy::ALL.into_iter().find(|by| by.name() == name).ok_or(UnknownRanking)
    }
}

/// One limit's part in a request.
#[derive(Clone, Copy, Debug)]
pub struct LimitRecord<'a> {
    /// Where it is counted: from [`Stats::limit`] or [`Stats::caller`].
    pub stats: &'a LimitStats,
    /// The limit, by which a near miss is measured: what callers give differs each time.
    pub limit: &'a Limit,
    /// Who was counted, without the policy's name.
    pub key: &'a [u8],
    /// This limit's own answer.
    pub allowed: bool,
    /// What remained after it; `None` where nobody knows (failed open).
    pub remaining: Option<u64>,
    /// When it would pass.
    pub retry_after: RetryAfter,
    /// How it was decided.
    pub decided: Decided,
}

impl<'a> LimitRecord<'a> {
    /// What the store said of one limit.
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

    /// Whether it was allowed and left at most 5 % of the limit. What a bucket holds
    /// is its burst, so it is measured against that.
    #[inline]
    pub(crate) fn is_near(&self) -> bool {
        self.allowed && is_near(self.limit, self.remaining)
    }
}

/// Whether at most 5 % of a limit remain.
#[inline]
pub(crate) fn is_near(limit: &Limit, remaining: Option<u64>) -> bool {
    remaining.is_some_and(|left| left <= limit.burst() / 20)
}

/// One request, as it is recorded. Lines of one policy stand together.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestRecord<'a> {
    /// Its limits, enforced and observed, in config order.
    pub limits: &'a [LimitRecord<'a>],
    /// Whether the request as a whole was allowed.
    pub allowed: bool,
    /// What it asked for: the path without its query.
    pub route: Option<&'a str>,
    /// How the caller names this request, for the log.
    pub request_id: Option<&'a str>,
    /// How long it took to decide; `None` where nobody measured.
    pub elapsed: Option<Duration>,
}

/// A request whose lines are being counted.
pub(crate) struct Counting {
    stripe: Stripe,
    allowed: bool,
    pub(crate) has_limits: bool,
    is_notable: bool,
}

impl Counting {
    /// A request that was allowed or not, before its first line.
    #[inline]
    pub(crate) fn new(allowed: bool) -> Self {
        Counting { stripe: stripe(), allowed, has_limits: false, is_notable: false }
    }

    /// Counts what one limit answered.
    #[inline(always)]
    pub(crate) fn add(&mut self, stats: &LimitStats, allowed: bool, near: bool, decided: Decided) {
        self.has_limits = true;
        let near = near && allowed && self.allowed;
        stats.count(self.stripe, allowed, near, decided);
        self.is_notable |= near || !allowed;
    }
}

/// Everything that is counted. Shared by reference; recording never blocks for
/// longer than another thread takes to note a name.
#[derive(Debug)]
pub struct Stats {
    registry: Registry,
    latency: Latency,
    store_latency: Latency,
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
    /// Empty, on this clock. It dates events and says what is recent; counters need none.
    pub fn new(clock: Clock) -> Self {
        Stats {
            registry: Registry::default(),
            latency: Latency::default(),
            store_latency: Latency::default(),
            events: Arc::new(Events::default()),
            started: clock.now(),
            clock,
        }
    }

    /// Where decisions of a policy's limit are counted. Not for the hot path:
    /// resolve it when policies change and keep it.
    ///
    /// Asked again for the same names it counts on. Beyond [`MAX_SERIES`] names
    /// those that nobody holds any more make room and go to [`OTHER`]; if all
    /// are held, the new one counts there.
    pub fn limit(&self, policy: &str, limit: &Limit, mode: Mode) -> Arc<LimitStats> {
        Arc::new(self.registry.resolve(policy, &limit.to_string(), mode))
    }

    /// Where decisions of a policy's limits are counted, in their order, with their keys masked
    /// as the policy's key template demands.
    pub(crate) fn limits(
        &self,
        policy: &Policy,
        limits: &[Limit],
        mode: Mode,
    ) -> Vec<Arc<LimitStats>> {
        let template = masked_template(policy);
        let resolve = |limit: &Limit| {
            let stats = self.registry.resolve(policy.name(), &limit.to_string(), mode);
            Arc::new(stats.with_template(template.as_ref()))
        };
        limits.iter().map(resolve).collect()
    }

    /// Where the limits are counted that come with a request of a policy.
    #[cfg(feature = "tower")]
    pub(crate) fn request_limits(&self, policy: &Policy) -> Arc<LimitStats> {
        let stats = self.registry.resolve(policy.name(), PER_REQUEST, policy.mode());
        Arc::new(stats.with_template(masked_template(policy).as_ref()))
    }

    /// Where limits given by callers are counted: all in one series, because
    /// callers can invent as many as they like.
    pub fn caller(&self) -> Arc<LimitStats> {
        Arc::new(self.registry.resolve(CALLER, CALLER, Mode::Enforce))
    }

    /// Counts a request. Once per request, and cheap unless it was denied, would
    /// have been, or nearly was.
    pub fn record(&self, record: &RequestRecord<'_>) {
        let mut counting = Counting::new(record.allowed);
        for limit in record.limits {
            counting.add(limit.stats, limit.allowed, limit.is_near(), limit.decided);
        }
        if self.add(counting, record.elapsed) {
            self.record_notable(record);
        }
    }

    /// Adds how long a request took. Returns whether its keys are to be noted.
    #[inline]
    pub(crate) fn add(&self, counting: Counting, elapsed: Option<Duration>) -> bool {
        if let Some(elapsed) = elapsed {
            self.latency.add(counting.stripe, elapsed);
        }
        counting.is_notable
    }

    /// Counts how long a shared store took to answer, or not to.
    pub(crate) fn record_store(&self, elapsed: Duration) {
        self.store_latency.add(stripe(), elapsed);
    }

    /// Notes who it was: once per policy, however many of its limits said so.
    #[cold]
    pub(crate) fn record_notable(&self, record: &RequestRecord<'_>) {
        let now = self.clock.now();
        let route = record.route.map(without_parameters);
        let record = &RequestRecord { route: route.as_deref(), ..*record };
        for limits in record.limits.chunk_by(|a, b| a.stats.same_policy(b.stats)) {
            let wait = |limit: &&LimitRecord<'_>| limit.retry_after.as_micros().unwrap_or(u64::MAX);
            let refused = limits.iter().filter(|limit| !limit.allowed).max_by_key(wait);
            if let Some(limit) = refused {
                self.record_denied(record, limit, now);
            } else if record.allowed
                && let Some(limit) = limits.iter().find(|limit| limit.is_near())
            {
                self.record_key(RankBy::Near, record, limit, now);
            }
        }
    }

    fn record_denied(&self, record: &RequestRecord<'_>, limit: &LimitRecord<'_>, now: Timestamp) {
        let by = match limit.stats.denied_outcome() {
            Outcome::WouldDeny => RankBy::WouldDeny,
            _ => RankBy::Denied,
        };
        // A store's failure is not the key's doing.
        if limit.decided != Decided::FailedClosed {
            self.record_key(by, record, limit, now);
        }
        if let Some(suppressed) = limit.stats.tracker().may_publish(now) {
            self.events.publish(record, limit, now, suppressed);
        }
    }

    fn record_key(
        &self,
        by: RankBy,
        record: &RequestRecord<'_>,
        limit: &LimitRecord<'_>,
        now: Timestamp,
    ) {
        let (key, route) = (limit.key, record.route);
        let observation = Observation { by, key, template: limit.stats.template(), route };
        limit.stats.tracker().record_notable(&observation, self.period(now));
    }

    fn period(&self, now: Timestamp) -> u64 {
        self.since_start_us(now) / 1_000_000 / TOP_PERIOD.as_secs()
    }

    fn since_start_us(&self, now: Timestamp) -> u64 {
        now.as_micros().saturating_sub(self.started.as_micros())
    }

    /// The `n` keys and routes that were seen most often lately, of one policy or of all.
    pub fn top(&self, by: RankBy, policy: Option<&str>, n: usize) -> Top {
        let now = self.clock.now();
        let period = self.period(now);
        let elapsed = Duration::from_micros(self.since_start_us(now));
        let started = TOP_PERIOD * u32::try_from(period.saturating_sub(1)).unwrap_or(u32::MAX);
        let trackers = &self.registry.trackers(policy);
        let covers = elapsed.saturating_sub(started);
        top::top(&TopQuery { trackers, by, period, n, covers }, &self.events.masking().load())
    }

    /// How keys are shown from now on, those that were recorded before too. Nodes with the same
    /// secret mask a key alike; without one, each process has its own.
    pub fn set_log_keys(&self, log_keys: LogKeys, secret: Option<&MaskSecret>) {
        self.events.masking().store(Arc::new(Masking::new(log_keys, secret)));
    }

    /// A key of this template as [`LogKeys`] shows it: in a log, say.
    pub fn show(&self, template: &Template, key: &Key) -> Text {
        self.events.masking().load().text_of(template, key.as_ref())
    }

    /// The key of a policy that a masked form stands for, if it is among the top keys or the
    /// latest denials: no key is kept anywhere else.
    pub fn unmask(&self, policy: &str, form: &str) -> Option<Key> {
        let masking = self.events.masking().load();
        let mut keys = self.keys(policy);
        let stored = keys.find(|stored| masking.is_form_of(form, stored))?;
        Some(Key::from_rendered(stored.bytes()))
    }

    /// Whether a key of a policy is among the top keys or the latest denials.
    pub(crate) fn remembers(&self, policy: &str, key: &Key) -> bool {
        self.keys(policy).any(|stored| stored.is(key))
    }

    /// The keys of a policy that are kept: those of the latest denials, and the top keys.
    fn keys(&self, policy: &str) -> impl Iterator<Item = StoredKey> {
        let denied = self.events.keys(policy).into_iter();
        // Policies beyond `MAX_TRACKED_POLICIES` share the rankings of `OTHER`.
        let trackers = [policy, OTHER].map(|name| self.registry.trackers(Some(name)));
        let ranked =
            |tracker: Arc<TopTracker>| RankBy::ALL.map(|by| tracker.keys(by)).into_iter().flatten();
        denied.chain(trackers.into_iter().flatten().flat_map(ranked))
    }

    /// Every series with its counts, by name.
    pub fn series(&self) -> Vec<SeriesCounts> {
        self.registry.counts()
    }

    /// How long decisions took.
    pub fn latency(&self) -> LatencyCounts {
        self.latency.counts()
    }

    /// How long asking a shared store took, failures included.
    pub fn store_latency(&self) -> LatencyCounts {
        self.store_latency.counts()
    }

    /// How long it took to serve the requests that were let in, by policy and outcome, as far
    /// as a front tells ([`ServiceTimer`]).
    pub fn service_latency(&self) -> Vec<ServiceLatency> {
        latency::counts(&self.registry.trackers(None))
    }

    /// The stream of denials.
    pub fn events(&self) -> &Arc<Events> {
        &self.events
    }
}

/// A route without what may hold session ids and tokens: the parameters of path segments
/// (`/login;jsessionid=...`), and a query that a caller has left in it.
fn without_parameters(route: &str) -> Cow<'_, str> {
    let path = route.split(['?', '#']).next().unwrap_or_default();
    if !path.contains(';') {
        return Cow::Borrowed(path);
    }
    let bare = |segment: &str| segment.split(';').next().unwrap_or_default().to_owned();
    Cow::Owned(path.split('/').map(bare).collect::<Vec<_>>().join("/"))
}

/// The template of a policy's keys, if they may hold credentials.
fn masked_template(policy: &Policy) -> Option<Arc<Template>> {
    let template = policy.key_template();
    template.has_credentials().then(|| Arc::new(template.clone()))
}
