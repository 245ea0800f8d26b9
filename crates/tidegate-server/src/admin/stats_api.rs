//! Statistics as JSON: `/admin/v1/stats` returns all counters, `/admin/v1/top` the keys and routes
//! that were denied most, would have been, or nearly were, and those with most requests.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use http::Uri;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use serde::Serialize;
use tidegate::redis::RedisStats;
use tidegate::unstable::gate::ActivePolicies;
use tidegate::unstable::policy::Policy;
use tidegate::unstable::stats::{
    CALLER, Decided, LATENCY_BOUNDS, Outcome, RankBy, RankedEntry, Ranking, RequestCounts,
    SeriesCounts, ShownText, Top, UnknownRanking,
};

use super::AdminState;
use super::metrics::Process;
use super::policies::find;
use super::{json, unknown_parameter};
use crate::error::RequestError;
use crate::server_state::{FrontName, RejectedConfig, Reload, ServerState};

/// Returns the current totals. Clients compute rates from differences.
pub async fn stats(State(state): State<AdminState>) -> Response {
    let requests = state.stats().requests();
    json(&StatsView::new(&state, &requests))
}

#[derive(Serialize)]
struct StatsView<'a> {
    version: &'static str,
    started_seconds: f64,
    /// On the monotonic clock.
    uptime_seconds: f64,
    ready: bool,
    requests: Vec<RequestsView<'a>>,
    series: Vec<SeriesView>,
    latency: LatencyView,
    store: StoreView,
    config: ConfigView,
    reloads: ReloadsView,
    fronts: Vec<FrontView>,
    resident_bytes: Option<u64>,
}

/// The requests of a policy; its name is empty for requests that no policy applied to.
#[derive(Serialize)]
pub struct RequestsView<'a> {
    policy: &'a str,
    allowed: u64,
    denied: u64,
    would_deny: u64,
}

impl<'a> RequestsView<'a> {
    /// `outcomes` is in the order of [`Outcome::ALL`].
    pub fn new(policy: &'a str, outcomes: [u64; Outcome::ALL.len()]) -> Self {
        let [allowed, denied, would_deny] = outcomes;
        RequestsView { policy, allowed, denied, would_deny }
    }
}

#[derive(Serialize)]
struct SeriesView {
    policy: String,
    limit: String,
    mode: &'static str,
    /// Whether a policy of the current config, or an override of it, has this limit in this mode.
    in_force: bool,
    /// The numbers of the overrides that count in this series; empty if the policy itself does, or
    /// no override of the current config.
    overrides: Vec<usize>,
    allowed: u64,
    denied: u64,
    would_deny: u64,
    near: u64,
    /// Answers that were not decided exactly by the store.
    inexact: u64,
    decided: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
struct LatencyView {
    bounds_seconds: Vec<f64>,
    /// One entry per bound, and one more for durations above all bounds.
    counts: Vec<u64>,
}

#[derive(Serialize)]
struct StoreView {
    tracked_keys: u64,
    max_keys: u64,
    log_entries: u64,
    overflowed: u64,
    /// The store that nodes share; absent if counts are kept in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<SharedView>,
}

#[derive(Serialize)]
struct SharedView {
    up: bool,
    requests: u64,
    failed: u64,
    failures: BTreeMap<&'static str, u64>,
    round_trips: u64,
    round_trip_seconds: f64,
    connections: u64,
    deny_cache_hits: u64,
    breaker_openings: u64,
}

#[derive(Serialize)]
struct ConfigView {
    /// Null for the built-in default policy.
    source: Option<String>,
    policies: usize,
}

#[derive(Serialize)]
struct ReloadsView {
    ok: u64,
    refused: u64,
    last_ok_seconds: u64,
    last_refusal: Option<RejectedConfigView>,
}

#[derive(Serialize)]
struct RejectedConfigView {
    at_seconds: u64,
    why: String,
    /// Whether a later config was accepted.
    mended: bool,
}

impl RejectedConfigView {
    fn new(rejected: &RejectedConfig) -> Self {
        RejectedConfigView {
            at_seconds: rejected.at,
            // The text of several errors has the word before all but the first, which follows it on
            // the command line.
            why: format!("error: {}", rejected.errors),
            mended: rejected.is_superseded(),
        }
    }
}

#[derive(Serialize)]
struct FrontView {
    front: &'static str,
    connections: u64,
    answers: u64,
}

impl<'a> StatsView<'a> {
    fn new(state: &AdminState, requests: &'a [RequestCounts]) -> Self {
        let (server_state, store, latency) =
            (&*state.server_state, state.gate.limiter().stats(), state.stats().latency());
        StatsView {
            version: env!("CARGO_PKG_VERSION"),
            started_seconds: server_state.started().as_secs_f64(),
            uptime_seconds: server_state.uptime().as_secs_f64(),
            ready: server_state.is_ready(),
            requests: requests
                .iter()
                .map(|one| RequestsView::new(&one.policy, one.outcomes))
                .collect(),
            series: {
                let active = state.gate.active_policies();
                let series = state.stats().series();
                let by_policy = series.chunk_by(|one, next| one.policy == next.policy);
                by_policy.flat_map(|series| SeriesView::of_policy(series, &active)).collect()
            },
            latency: LatencyView {
                bounds_seconds: LATENCY_BOUNDS.iter().map(|bound| bound.as_secs_f64()).collect(),
                counts: latency.buckets.to_vec(),
            },
            store: StoreView {
                tracked_keys: store.tracked_keys,
                max_keys: server_state.max_keys(),
                log_entries: store.log_entries,
                overflowed: store.overflowed,
                shared: state.store.as_ref().map(|store| SharedView::new(&store.stats())),
            },
            config: ConfigView {
                source: server_state.source().map(str::to_owned),
                policies: state.gate.active_policies().policies().len(),
            },
            reloads: ReloadsView {
                ok: server_state.reloads(Reload::Ok),
                refused: server_state.reloads(Reload::RejectedConfig),
                last_ok_seconds: server_state.reloaded_at(),
                last_refusal: server_state
                    .last_rejected_config()
                    .map(|last| RejectedConfigView::new(&last)),
            },
            fronts: FrontName::ALL
                .into_iter()
                .map(|front| FrontView::new(server_state, front))
                .collect(),
            resident_bytes: Process::read().resident_bytes,
        }
    }
}

impl SharedView {
    fn new(stats: &RedisStats) -> Self {
        SharedView {
            up: stats.up,
            requests: stats.requests,
            failed: stats.failures().iter().map(|(_, count)| count).sum(),
            failures: stats.failures().into_iter().collect(),
            round_trips: stats.round_trips,
            round_trip_seconds: Duration::from_micros(stats.round_trip_us).as_secs_f64(),
            connections: stats.connections,
            deny_cache_hits: stats.deny_cache_hits,
            breaker_openings: stats.breaker_openings,
        }
    }
}

impl SeriesView {
    /// Returns the series of one policy, which may no longer be in force.
    fn of_policy(series: &[SeriesCounts], active: &ActivePolicies) -> Vec<Self> {
        let policy = series.first().and_then(|one| active.policies().get(&one.policy));
        let variants = VariantSeries::of(policy);
        series.iter().map(|one| SeriesView::new(one, &variants)).collect()
    }

    fn new(series: &SeriesCounts, variants: &VariantSeries) -> Self {
        let denied: u64 = series.denied.iter().sum();
        let when = |outcome| if series.denied_outcome() == outcome { denied } else { 0 };
        let decided = Decided::ALL
            .map(|way| (way.name(), series.allowed[way as usize] + series.denied[way as usize]));
        let numbers = variants.find(series);
        SeriesView {
            policy: series.policy.to_string(),
            limit: series.limit.to_string(),
            mode: series.mode.name(),
            in_force: !numbers.is_empty(),
            // The first variant is the policy itself.
            overrides: if numbers.contains(&0) { Vec::new() } else { numbers.to_vec() },
            allowed: series.allowed.iter().sum(),
            denied: when(Outcome::Denied),
            would_deny: when(Outcome::WouldDeny),
            near: series.near,
            inexact: decided[1..].iter().map(|(_, count)| count).sum(),
            decided: decided.into_iter().collect(),
        }
    }
}

/// The variants of a policy that count in each of its series, by limit and mode.
struct VariantSeries(BTreeMap<(String, &'static str), Vec<usize>>);

impl VariantSeries {
    fn of(policy: Option<&Policy>) -> Self {
        let mut all: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        let variants = policy.into_iter().flat_map(Policy::variants).enumerate();
        for (number, variant) in variants {
            for limit in variant.limits() {
                let series = (limit.to_string(), variant.mode().name());
                all.entry(series).or_default().push(number);
            }
        }
        VariantSeries(all)
    }

    fn find(&self, series: &SeriesCounts) -> &[usize] {
        let series = (series.limit.to_string(), series.mode.name());
        self.0.get(&series).map_or(&[], Vec::as_slice)
    }
}

impl FrontView {
    fn new(server_state: &ServerState, front: FrontName) -> Self {
        let answers: u64 = server_state.http_responses(front).iter().map(|(_, count)| count).sum();
        let others = match front {
            FrontName::Grpc => server_state.grpc_responses(),
            FrontName::Resp => server_state.resp_replies(),
            FrontName::Http | FrontName::Admin => Vec::new(),
        };
        let others: u64 = others.iter().map(|(_, count)| count).sum();
        FrontView {
            front: front.name(),
            connections: server_state.connections(front),
            answers: answers + others,
        }
    }
}

/// The default number of entries of a ranking.
const TOP_DEFAULT: usize = 10;
/// The maximum number of entries of a ranking: a longer page would not be read.
const TOP_MOST: usize = 1_000;

/// Returns the ranking that the query selects.
pub async fn top(State(state): State<AdminState>, uri: Uri) -> Result<Response, RequestError> {
    let query = TopQuery::from_query(uri.query().unwrap_or_default())?;
    if let Some(policy) = &query.policy {
        find(&state.gate.active_policies(), policy)?;
    }
    let top = state.stats().top(query.by, query.policy.as_deref(), query.n);
    let one_in = query.by.sampled_one_in(state.gate.is_shared());
    Ok(json(&TopView::new(&query, &top, one_in)))
}

struct TopQuery {
    by: RankBy,
    policy: Option<String>,
    n: usize,
}

impl TopQuery {
    fn from_query(text: &str) -> Result<Self, RequestError> {
        let mut query = TopQuery { by: RankBy::default(), policy: None, n: TOP_DEFAULT };
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = value.replace('+', " ");
            let value = percent_decode_str(&value).decode_utf8_lossy();
            match name {
                "by" => {
                    let unknown =
                        |error: UnknownRanking| RequestError::field("by", error.to_string());
                    query.by = value.parse().map_err(unknown)?;
                }
                "policy" => query.policy = Some(value.into_owned()),
                "n" => {
                    let n = value.parse().ok().filter(|n| (1..=TOP_MOST).contains(n));
                    let detail = || {
                        RequestError::field("n", format!("use a whole number from 1 to {TOP_MOST}"))
                    };
                    query.n = n.ok_or_else(detail)?;
                }
                _ => return Err(unknown_parameter(name, "`by`, `policy` or `n`")),
            }
        }
        Ok(query)
    }
}

#[derive(Serialize)]
struct TopView<'a> {
    by: &'static str,
    /// The counts are estimated from one request in this many; 1 if every request is counted.
    sampled_one_in: u32,
    policy: Option<&'a str>,
    /// The period that the counts cover.
    covers_seconds: u64,
    keys: ListView,
    routes: ListView,
}

#[derive(Serialize)]
struct ListView {
    entries: Vec<EntryView>,
    unlisted_at_most: u64,
}

#[derive(Serialize)]
struct EntryView {
    policy: String,
    name: String,
    /// The key as it is written in `/admin/v1/policies/{policy}/keys/{key}`; null for routes and
    /// for keys that cannot be looked up.
    encoded: Option<String>,
    count: u64,
    error: u64,
}

impl<'a> TopView<'a> {
    fn new(query: &'a TopQuery, top: &Top, sampled_one_in: u32) -> Self {
        TopView {
            by: query.by.name(),
            sampled_one_in,
            policy: query.policy.as_deref(),
            covers_seconds: top.covers.as_secs(),
            keys: ListView::new(&top.keys, encoded),
            routes: ListView::new(&top.routes, |_| None),
        }
    }
}

impl ListView {
    fn new(listed: &Ranking, encode: impl Fn(&ShownText) -> Option<String>) -> Self {
        let view = |entry: &RankedEntry| EntryView {
            policy: entry.policy.to_string(),
            name: entry.name.to_string(),
            // Keys of limits that callers send belong to no policy, so they cannot be looked up.
            encoded: encode(&entry.name).filter(|_| *entry.policy != *CALLER),
            count: entry.count,
            error: entry.error,
        };
        let entries = listed.entries.iter().map(view).collect();
        ListView { entries, unlisted_at_most: listed.unlisted_at_most }
    }
}

/// The key percent-encoded, or its masked form, which the lookup accepts too. A key that is
/// truncated and not masked cannot be looked up.
fn encoded(key: &ShownText) -> Option<String> {
    let encode = |bytes: &[u8]| percent_encode(bytes, NON_ALPHANUMERIC).to_string();
    if key.is_masked() {
        return Some(encode(key.to_string().as_bytes()));
    }
    (!key.is_truncated() && !key.as_bytes().is_empty()).then(|| encode(key.as_bytes()))
}
