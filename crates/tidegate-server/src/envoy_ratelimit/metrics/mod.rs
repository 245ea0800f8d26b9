//! The metrics of envoyproxy/ratelimit, for `--as-envoy-ratelimit`.
//!
//! ```text
//!   series.rs       the names of limits, and a bounded table of their counters
//!   mod.rs          counts hits, calls and loaded configs
//!   prometheus.rs   the page for Prometheus
//!   statsd.rs       packets for statsd and DogStatsD
//! ```
//!
//! The name of a limit usually follows from its config. The counters of such a limit are looked up
//! when its policy becomes active, so counting takes one look-up by policy and a few additions.
//! Only `detailed_metric`, `value_to_metric` and limits that are sent with a request put values of
//! the request into names. Their number is bounded by [`series::MAX_SERIES`].

mod prometheus;
mod series;
mod statsd;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate::unstable::gate::{GateVerdict, LimitResult};
use tidegate::unstable::policy::Policies;
use tidegate::unstable::stats::Counters;

pub use self::prometheus::{PrometheusSettings, router};
pub use self::statsd::Statsd;

use self::series::{
    DeltaCounters, Hits, Registry, Series, limit_name, request_limit_name, unknown_domain,
};
use self::statsd::StatsdSettings;
use super::variables::{Reader, VariableError};
use crate::error::{ErrorKind, RequestError};
use crate::fronts::envoy::{Descriptor, RateLimitRequest};

/// Where metrics are sent and served.
#[derive(Clone, Debug)]
pub struct MetricsSettings {
    /// The part of a limit from which hits are near it, from 0 to 1.
    pub near_limit_ratio: f32,
    pub prometheus: Option<PrometheusSettings>,
    pub statsd: Option<StatsdSettings>,
}

/// Reads the settings; `None` if metrics are neither sent nor served.
pub fn read(reader: &Reader) -> Result<Option<MetricsSettings>, VariableError> {
    let settings = MetricsSettings {
        near_limit_ratio: near_limit_ratio(reader)?,
        prometheus: prometheus::read_settings(reader)?,
        statsd: statsd::read_settings(reader)?,
    };
    let is_disabled = reader.boolean("DISABLE_STATS")?;
    let is_empty = settings.prometheus.is_none() && settings.statsd.is_none();
    Ok((!is_disabled && !is_empty).then_some(settings))
}

fn near_limit_ratio(reader: &Reader) -> Result<f32, VariableError> {
    let name = "NEAR_LIMIT_RATIO";
    let ratio = Some(reader.decimal(name)?).filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| reader.error(name, "write a number from 0 to 1"))
}

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
        let active = ActiveSeries { by_policy: by_policy.collect() };
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
        if verdict.results.is_empty() && !policies.envoy_domains().contains(&*request.domain) {
            let series = self.registry.get(&unknown_domain(&request.domain));
            series.counters.add(Hits::DomainNotFound as usize, request.descriptors.len() as u64);
        }
        if self.shadow_mode && !verdict.allowed {
            self.add(ServiceCount::GlobalShadowMode, 1);
        }
    }

    /// Counts the hits of one limit. `charged` is false if another limit denied the request, so
    /// that nothing was charged.
    fn count_result(&self, series: &Series, result: &LimitResult<'_>, hits: u64, charged: bool) {
        let add = |which: Hits, count: u64| {
            if count > 0 {
                series.counters.add(which as usize, count);
            }
        };
        let allowed = result.decision.allowed;
        add(Hits::Total, hits);
        let Some(left) = result.remaining() else {
            // The store failed, so it is not known how many were left.
            return add(Hits::Within, if allowed { hits } else { 0 });
        };
        let limit = result.limit.count();
        let used = limit.saturating_sub(left);
        let before = if allowed && charged { used.saturating_sub(hits) } else { used };
        let after = before.saturating_add(hits);
        add(Hits::Near, after.min(limit).saturating_sub(before.max(self.near_from(limit))));
        let over = if allowed { 0 } else { after.saturating_sub(limit).min(hits) };
        add(Hits::Over, over);
        add(Hits::Within, hits - over);
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
mod tests {
    use std::sync::Arc;

    use tidegate::unstable::policy::{EnvoyDetails, EnvoyLevel};

    use super::series::{MAX_NAME_BYTES, MAX_SERIES, Registry, limit_name, request_limit_name};
    use super::statsd::{StatsdForm, StatsdSettings};
    use super::*;
    use crate::fronts::envoy::Entries;

    /// Levels as `key=value` of the config, then `v` for `value_to_metric` and `s` for
    /// `share_threshold`.
    fn details(domain: &str, levels: &[(&str, &str)], detailed_metric: bool) -> EnvoyDetails {
        let level = |(level, flags): &(&str, &str)| {
            let (key, value) = level.split_once('=').unwrap_or((level, ""));
            Arc::new(EnvoyLevel {
                key: key.into(),
                value: value.into(),
                value_to_metric: flags.contains('v'),
                share_threshold: flags.contains('s'),
            })
        };
        let levels = levels.iter().map(level).collect();
        EnvoyDetails {
            domain: domain.into(),
            levels,
            name: "".into(),
            detailed_metric,
            metadata: None,
        }
    }

    fn entries(values: &[&'static str]) -> Entries<'static> {
        values.iter().map(|value| ("k".into(), (*value).into())).collect()
    }

    #[test]
    fn names_are_those_of_envoyproxy_ratelimit() {
        #[rustfmt::skip]
        let rows: [(&str, &[(&str, &str)], bool, &[&'static str], Option<&str>, &str); 11] = [
            // The config has the whole name.
            ("d", &[("a", "")], false, &["1"], Some("d.a"), "d.a"),
            ("d", &[("a=1", "v"), ("b", "")], false, &["1", "2"], Some("d.a_1.b"), "d.a_1.b"),
            ("d", &[("a=x*", "")], false, &["xy"], Some("d.a_x*"), "d.a_x*"),
            ("d", &[("a=x*", "vs")], true, &["xy"], Some("d.a_x*"), "d.a_x*"),
            ("a.b:c", &[("h=x.y", ""), ("ip=10.0.0.1/8", "")], true, &["x.y", ""], Some("a.b_c.h_x.y.ip_10_0_0_1/8"), "a.b_c.h_x.y.ip_10_0_0_1/8"),
            // The request has a part of it.
            ("d", &[("a", "v"), ("b", "")], false, &["1", "2"], None, "d.a_1.b"),
            ("d", &[("a=x*", "v")], false, &["xy"], None, "d.a_xy"),
            ("d", &[("a", ""), ("b", "")], true, &["1", "2"], None, "d.a_1.b_2"),
            ("d", &[("a=x*", "s"), ("b", "")], true, &["xy", "2"], None, "d.a_x*.b_2"),
            ("d", &[("a", "")], true, &[""], None, "d.a"),
            ("d", &[("a", "")], true, &["x.y:z|\n\t\u{0} 1.2"], None, "d.a_x_y_z_____1_2"),
        ];
        for (domain, levels, detailed, values, fixed, expected) in rows {
            let details = details(domain, levels, detailed);
            assert_eq!(limit_name(&details, None).as_deref(), fixed, "{levels:?}");
            let name = limit_name(&details, Some(&entries(values)));
            assert_eq!(name.as_deref(), Some(expected), "{levels:?}");
        }
        assert_eq!(request_limit_name("d", &entries(&["1.5", ""])), "d.k_1_5.k");
    }

    #[test]
    fn names_are_bounded() {
        let long: Entries<'_> =
            (0..100).map(|_| ("k".repeat(999).into(), "ü".repeat(999).into())).collect();
        let name = request_limit_name("d", &long);
        assert!((MAX_NAME_BYTES - 3..=MAX_NAME_BYTES).contains(&name.len()), "{}", name.len());
        let levels = vec![("key=value", ""); 200];
        let name = limit_name(&details("d", &levels, false), None);
        assert_eq!(name.map(|name| name.len()), Some(MAX_NAME_BYTES));
    }

    #[test]
    fn full_table_counts_the_rest_together_until_a_reload() {
        let registry = Registry::default();
        for index in 0..MAX_SERIES {
            assert_eq!(registry.get(&format!("d.{index}")).name, format!("d.{index}"));
        }
        assert_eq!(registry.get("d.more").name, "other.other");
        assert_eq!(registry.get("d.7").name, "d.7");
        assert_eq!(registry.all().len(), MAX_SERIES + 1);
        registry.make_room(["d.7", "d.more"].into_iter());
        assert_eq!(registry.get("d.more").name, "d.more");
        let mut names: Vec<_> = registry.all().iter().map(|series| series.name.clone()).collect();
        names.sort();
        assert_eq!(names, ["d.7", "d.more", "other.other"]);
    }

    /// A receiver that accepts and never reads holds up one flush for a while, and nothing is kept.
    #[tokio::test]
    async fn silent_receiver_is_given_up() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
        let settings = StatsdSettings {
            host: "127.0.0.1".to_owned(),
            port: listener.local_addr().expect("an address").port(),
            form: StatsdForm::Tcp,
            interval: Duration::from_secs(1),
            tags: Vec::new(),
        };
        let metrics = Arc::new(EnvoyMetrics::new(0.8, false));
        // More than the buffers of a connection hold.
        for index in 0..MAX_SERIES {
            let series = metrics.registry.get(&format!("d.{index}.{}", "x".repeat(480)));
            (0..Hits::ALL.len()).for_each(|which| series.counters.add(which, 1));
        }
        let statsd = Statsd::new(settings.clone(), Arc::clone(&metrics));
        statsd.flush().await;
        assert!(statsd.has_failed());
        assert_eq!(statsd::packets(&metrics, &settings), [""; 0]);
    }

    #[test]
    fn packets_have_what_was_added_since_the_last() {
        let metrics = EnvoyMetrics::new(0.8, false);
        let tags = vec![("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())];
        let mut settings = StatsdSettings {
            host: "localhost".to_owned(),
            port: 1,
            form: StatsdForm::Udp,
            interval: Duration::from_secs(1),
            tags,
        };
        metrics.count_rejected_config();
        let name = "ratelimit.service.config_load_error";
        assert_eq!(statsd::packets(&metrics, &settings), [format!("{name}.__a=1.__b=2:1|c\n")]);
        assert_eq!(statsd::packets(&metrics, &settings), [""; 0]);
        metrics.count_rejected_config();
        metrics.count_rejected_config();
        settings.form = StatsdForm::DogStatsd;
        assert_eq!(statsd::packets(&metrics, &settings), [format!("{name}:2|c|#a:1,b:2\n")]);
    }
}
