//! The metrics of envoyproxy/ratelimit, for `--as-envoy-ratelimit`.
//!
//! ```text
//!   settings.rs     the variables
//!   series.rs       the names of limits, and a bounded table of their counters
//!   mod.rs          counts hits, calls and loaded configs
//!   prometheus.rs   the page for Prometheus
//!   statsd.rs       packets for statsd and DogStatsD
//! ```
//!
//! The name of a limit usually follows from its config. The counters of such a limit are looked up
//! when its policy becomes active, so counting takes one look-up by policy and a few additions. Only
//! `detailed_metric`, `value_to_metric` and limits that are sent with a request put values of the
//! request into names. Their number is bounded by [`series::MAX_SERIES`].

mod prometheus;
mod series;
mod settings;
mod statsd;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate::unstable::gate::{GateVerdict, LimitResult};
use tidegate::unstable::policy::Policies;
use tidegate::unstable::stats::Counters;

pub use self::prometheus::router;
pub use self::settings::{MetricsSettings, PrometheusSettings, read};
pub use self::statsd::Statsd;

use self::series::{
    DeltaCounters, Hits, Registry, Series, limit_name, request_limit_name, unknown_domain,
};
use crate::error::{ErrorKind, RequestError};
use crate::fronts::envoy::{Descriptor, RateLimitRequest};

/// The upper bounds of the buckets of response times: those of the Prometheus client libraries.
const RESPONSE_BOUNDS: [Duration; 11] = [
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2_500),
    Duration::from_secs(5),
    Duration::from_secs(10),
];

/// The index of the sum of response times, in nanoseconds, after the buckets and that of larger
/// values.
const RESPONSE_SUM: usize = RESPONSE_BOUNDS.len() + 1;

/// A counter of the service as a whole.
#[derive(Clone, Copy, Debug)]
enum ServiceCount {
    ConfigLoaded,
    ConfigRejected,
    RedisError,
    ServiceError,
    GlobalShadowMode,
    Calls,
}

/// The names of the service's counters in statsd.
const SERVICE_NAMES: [&str; 6] = [
    "ratelimit.service.config_load_success",
    "ratelimit.service.config_load_error",
    "ratelimit.service.call.should_rate_limit.redis_error",
    "ratelimit.service.call.should_rate_limit.service_error",
    "ratelimit.service.global_shadow_mode",
    "ratelimit_server.ShouldRateLimit.total_requests",
];

/// All counters.
#[derive(Debug)]
pub struct EnvoyMetrics {
    /// The part of a limit from which hits are near it.
    near_limit_ratio: f32,
    /// Whether `SHADOW_MODE` is set.
    shadow_mode: bool,
    registry: Registry,
    active: ArcSwap<ActiveSeries>,
    service: DeltaCounters<{ SERVICE_NAMES.len() }>,
    response_times: Counters<{ RESPONSE_SUM + 1 }>,
}

/// The series of the active policies.
#[derive(Debug, Default)]
pub struct ActiveSeries {
    /// By policy. Policies whose series depend on the request are missing.
    by_policy: HashMap<Box<str>, Arc<Series>>,
    domains: HashSet<Arc<str>>,
}

impl EnvoyMetrics {
    /// Creates counters that are 0. `shadow_mode` is the setting of all limits.
    pub fn new(near_limit_ratio: f32, shadow_mode: bool) -> Self {
        EnvoyMetrics {
            near_limit_ratio,
            shadow_mode,
            registry: Registry::default(),
            active: ArcSwap::default(),
            service: DeltaCounters::default(),
            response_times: Counters::default(),
        }
    }

    /// Looks up the series of policies that become active, and counts a loaded config. Returns the
    /// series that it replaces.
    pub fn set_policies(&self, policies: &Policies) -> Arc<ActiveSeries> {
        let details = || {
            let each = policies.iter().filter(|policy| !policy.limits().is_empty());
            each.filter_map(|policy| Some((policy.name(), policy.envoy_details()?)))
        };
        let fixed: Vec<(&str, String)> = details()
            .filter_map(|(policy, details)| Some((policy, limit_name(details, None)?)))
            .collect();
        self.registry.make_room(fixed.iter().map(|(_, name)| &**name));
        let by_policy =
            fixed.into_iter().map(|(policy, name)| (policy.into(), self.registry.get(&name)));
        let with_details = policies.iter().filter_map(|policy| policy.envoy_details());
        let active = ActiveSeries {
            by_policy: by_policy.collect(),
            domains: with_details.map(|details| Arc::clone(&details.domain)).collect(),
        };
        self.add(ServiceCount::ConfigLoaded, 1);
        self.active.swap(Arc::new(active))
    }

    /// Counts a config that was rejected.
    pub fn count_rejected_config(&self) {
        self.add(ServiceCount::ConfigRejected, 1);
    }

    /// Counts the hits of a request. `policies` are those that decided.
    pub fn count(
        &self,
        verdict: &GateVerdict<'_>,
        request: &RateLimitRequest<'_>,
        policies: &Policies,
    ) {
        let active = self.active.load();
        for result in &verdict.results {
            let Some(descriptor) = request.descriptors.get(result.request_index) else { continue };
            let Some(hits) = hits(request, descriptor) else { continue };
            let known = result.policy.and_then(|policy| active.by_policy.get(policy));
            if let Some(series) = known {
                self.count_result(series, result, hits, verdict.allowed);
                continue;
            }
            let name = match result.policy {
                None => Some(request_limit_name(&request.domain, &descriptor.entries)),
                Some(policy) => {
                    let details = policies.get(policy).and_then(|policy| policy.envoy_details());
                    details.and_then(|details| limit_name(details, Some(&descriptor.entries)))
                }
            };
            if let Some(name) = name {
                self.count_result(&self.registry.get(&name), result, hits, verdict.allowed);
            }
        }
        if verdict.results.is_empty() && !active.domains.contains(&*request.domain) {
            let series = self.registry.get(&unknown_domain(&request.domain));
            series.counters.add(Hits::DomainNotFound as usize, request.descriptors.len() as u64);
        }
        if self.shadow_mode && !verdict.allowed {
            self.add(ServiceCount::GlobalShadowMode, 1);
        }
    }

    /// Counts the hits of one limit. `charged` is false if another limit denied the request, so that
    /// nothing was charged.
    fn count_result(&self, series: &Series, result: &LimitResult<'_>, hits: u64, charged: bool) {
        let add = |which: Hits, count: u64| {
            if count > 0 {
                series.counters.add(which as usize, count);
            }
        };
        let allowed = result.decision.allowed;
        add(Hits::Total, hits);
        if allowed {
            add(Hits::Within, hits);
        }
        // The remaining hits are unknown if the store failed.
        let Some(left) = result.remaining() else { return };
        let limit = result.limit.count();
        let used = limit.saturating_sub(left);
        let before = if allowed && charged { used.saturating_sub(hits) } else { used };
        let after = before.saturating_add(hits);
        add(Hits::Near, after.min(limit).saturating_sub(before.max(self.near_from(limit))));
        let over = if allowed { 0 } else { after.saturating_sub(limit) };
        add(Hits::Over, over);
        if !result.is_enforced() {
            add(Hits::Shadow, over);
        }
    }

    /// The number of hits above which a hit is near the limit.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "the ratio is from 0 to 1, and envoyproxy/ratelimit computes it with 32 bits"
    )]
    fn near_from(&self, limit: u64) -> u64 {
        (limit as f32 * self.near_limit_ratio) as u64
    }

    /// Counts a gRPC call and its response time.
    pub fn count_call(&self, elapsed: Duration) {
        let bucket = RESPONSE_BOUNDS.iter().position(|bound| elapsed <= *bound);
        self.response_times.add(bucket.unwrap_or(RESPONSE_BOUNDS.len()), 1);
        let elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        self.response_times.add(RESPONSE_SUM, elapsed_ns);
        self.add(ServiceCount::Calls, 1);
    }

    /// Counts a call that failed.
    pub fn count_error(&self, error: &RequestError) {
        self.add(
            match error.kind {
                ErrorKind::StoreFailed => ServiceCount::RedisError,
                _ => ServiceCount::ServiceError,
            },
            1,
        );
    }

    fn add(&self, which: ServiceCount, count: u64) {
        self.service.add(which as usize, count);
    }
}

/// The hits of a descriptor; `None` if it refunds them.
fn hits(request: &RateLimitRequest<'_>, descriptor: &Descriptor<'_>) -> Option<u64> {
    let hits = descriptor.hits_addend.unwrap_or_else(|| request.hits_addend.max(1).into());
    (!descriptor.is_negative_hits).then_some(hits)
}

#[cfg(test)]
mod tests;
