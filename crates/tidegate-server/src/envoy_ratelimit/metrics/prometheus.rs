//! The page for Prometheus, with the names and labels of the default mapper of
//! envoyproxy/ratelimit.
//!
//! The mapper splits a name at its dots: the first part is the domain, the next two are the keys.
//! Further parts have no label, so limits that differ in them alone are summed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use http::{StatusCode, Uri};
use tidegate::unstable::stats::{MetricKind as Kind, PROMETHEUS_CONTENT_TYPE, PrometheusText};

use super::series::Hits;
use super::{EnvoyMetrics, RESPONSE_BOUNDS, RESPONSE_SUM, ServiceCount};
use crate::admin::{text, with_type};
use crate::background;
use crate::envoy_ratelimit::resolve;
use crate::envoy_ratelimit::variables::{Reader, VariableError};

/// The page for Prometheus.
#[derive(Clone, Debug)]
pub struct PrometheusSettings {
    pub address: SocketAddr,
    pub path: String,
}

/// Reads the settings; `None` if there is no page.
pub fn read_settings(reader: &Reader) -> Result<Option<PrometheusSettings>, VariableError> {
    if !reader.boolean("USE_PROMETHEUS")? {
        return Ok(None);
    }
    let text = reader.text("PROMETHEUS_ADDR");
    let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let address = parts.and_then(|(host, port)| {
        // The brackets of an IPv6 address separate it from the port.
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        resolve(bare.unwrap_or(host), port)
    });
    let Some(address) = address else {
        return Err(reader.error("PROMETHEUS_ADDR", "write an address and a port, such as :9090"));
    };
    let path = reader.text("PROMETHEUS_PATH").to_owned();
    if !path.starts_with('/') {
        return Err(reader.error("PROMETHEUS_PATH", "write a path that begins with `/`"));
    }
    Ok(Some(PrometheusSettings { address, path }))
}

/// Creates the routes of the page at `path`.
pub fn router(metrics: Arc<EnvoyMetrics>, path: String) -> Router {
    // A route is a pattern, and the path may contain characters with a meaning in it.
    Router::new().fallback(move |uri: Uri| async move {
        if uri.path() != path {
            return not_found(&path);
        }
        let page = background::run(move || page(&metrics)).await;
        with_type(StatusCode::OK, PROMETHEUS_CONTENT_TYPE, page.into())
    })
}

fn not_found(path: &str) -> Response {
    text(StatusCode::NOT_FOUND, format!("not found: metrics are at {path}\n"))
}

/// The domain and up to two keys of a limit.
type Labels = [Option<String>; 3];

const LABEL_NAMES: [&str; 3] = ["domain", "key1", "key2"];

/// Writes the page.
pub fn page(metrics: &EnvoyMetrics) -> String {
    let mut page = PrometheusText::default();
    limits(&mut page, metrics);
    service(&mut page, metrics);
    response_times(&mut page, metrics);
    page.finish()
}

fn limits(page: &mut PrometheusText, metrics: &EnvoyMetrics) {
    let mut by_labels: BTreeMap<Labels, [u64; Hits::ALL.len()]> = BTreeMap::new();
    for series in metrics.registry.all() {
        let Some((domain, keys)) = series.name.split_once('.') else { continue };
        let mut keys = keys.split('.').map(str::to_owned);
        let sums =
            by_labels.entry([Some(domain.to_owned()), keys.next(), keys.next()]).or_default();
        for (sum, count) in sums.iter_mut().zip(series.counters.sums()) {
            *sum = sum.wrapping_add(count);
        }
    }
    for which in Hits::OF_LIMITS {
        let name = format!("ratelimit_service_rate_limit_{}", which.name());
        let help = match which {
            Hits::Total => "Hits.",
            Hits::Over => "Hits over the limit.",
            Hits::Near => "Hits within the limit, and above NEAR_LIMIT_RATIO of it.",
            Hits::Within => "Hits of requests within the limit.",
            Hits::Shadow => "Hits over a limit with shadow_mode.",
            Hits::DomainNotFound => continue,
        };
        let mut family = page.family(&name, Kind::Counter, help);
        for (labels, sums) in &by_labels {
            let labels = LABEL_NAMES.into_iter().zip(labels);
            let labels: Vec<_> =
                labels.filter_map(|(name, label)| Some((name, label.as_deref()?))).collect();
            family.sample(&labels, sums[which as usize]);
        }
    }
}

fn service(page: &mut PrometheusText, metrics: &EnvoyMetrics) {
    let sums = metrics.service.sums();
    let sum = |which: ServiceCount| sums[which as usize];
    let name = "ratelimit_service_should_rate_limit_error";
    let mut family = page.family(name, Kind::Counter, "Calls that failed.");
    family.sample(&[("err_type", "redis_error")], sum(ServiceCount::RedisError));
    family.sample(&[("err_type", "service_error")], sum(ServiceCount::ServiceError));
    let name = "ratelimit_service_total_requests";
    let mut family = page.family(name, Kind::Counter, "Calls over gRPC.");
    family.sample(&METHOD, sum(ServiceCount::Calls));
    let singles = [
        ("config_load_success", "Configs that were loaded.", ServiceCount::ConfigLoaded),
        ("config_load_error", "Configs that were rejected.", ServiceCount::ConfigRejected),
        (
            "global_shadow_mode",
            "Requests that only SHADOW_MODE allowed.",
            ServiceCount::GlobalShadowMode,
        ),
    ];
    for (name, help, which) in singles {
        page.single(&format!("ratelimit_service_{name}"), Kind::Counter, help, sum(which));
    }
}

const METHOD: [(&str, &str); 1] = [("grpc_method", "ShouldRateLimit")];

fn response_times(page: &mut PrometheusText, metrics: &EnvoyMetrics) {
    let name = "ratelimit_service_response_time_seconds";
    let mut family = page.family(name, Kind::Histogram, "Time to answer a call over gRPC.");
    let sums = metrics.response_times.sums();
    let bounds = RESPONSE_BOUNDS.iter().map(|bound| bound.as_secs_f64().to_string());
    let mut up_to = 0;
    for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(sums) {
        up_to += count;
        family.suffixed("_bucket", &[METHOD[0], ("le", &bound)], up_to);
    }
    let sum = Duration::from_nanos(sums[RESPONSE_SUM]);
    family.suffixed("_sum", &METHOD, sum.as_secs_f64());
    family.suffixed("_count", &METHOD, up_to);
}
