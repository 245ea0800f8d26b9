//! The settings of metrics, from variables.

use std::net::SocketAddr;
use std::time::Duration;

use super::super::reader::{Reader, VariableError};
use crate::connections::ListenAddr;

/// The bounds of the interval between two packets to statsd.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
const MAX_INTERVAL: Duration = Duration::from_secs(3600);

/// The maximum length of all tags, so that a line of statsd always fits into a packet.
const MAX_TAG_BYTES: usize = 512;

const TAGS: &str = "EXTRA_TAGS";

/// Where metrics are sent and served.
#[derive(Clone, Debug)]
pub struct MetricsSettings {
    /// The part of a limit from which hits are near it, from 0 to 1.
    pub near_limit_ratio: f32,
    pub prometheus: Option<PrometheusSettings>,
    pub statsd: Option<StatsdSettings>,
}

/// The page for Prometheus.
#[derive(Clone, Debug)]
pub struct PrometheusSettings {
    pub address: SocketAddr,
    pub path: String,
}

/// The receiver of statsd, and the form of what it receives.
#[derive(Clone, Debug)]
pub struct StatsdSettings {
    pub host: String,
    pub port: u16,
    pub form: StatsdForm,
    pub interval: Duration,
    /// The tags of all metrics, in order of name.
    pub tags: Vec<(String, String)>,
}

/// The protocol and the form of tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatsdForm {
    Tcp,
    Udp,
    /// UDP, with tags in the form of Datadog.
    DogStatsd,
}

/// Reads the settings; `None` if metrics are neither sent nor served.
pub fn read(reader: &Reader) -> Result<Option<MetricsSettings>, VariableError> {
    let settings = MetricsSettings {
        near_limit_ratio: near_limit_ratio(reader)?,
        prometheus: prometheus(reader)?,
        statsd: statsd(reader)?,
    };
    let is_disabled = reader.boolean("DISABLE_STATS")?;
    let is_empty = settings.prometheus.is_none() && settings.statsd.is_none();
    Ok((!is_disabled && !is_empty).then_some(settings))
}

fn near_limit_ratio(reader: &Reader) -> Result<f32, VariableError> {
    let name = "NEAR_LIMIT_RATIO";
    let ratio = reader.text(name).parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| reader.error(name, "write a number from 0 to 1"))
}

fn prometheus(reader: &Reader) -> Result<Option<PrometheusSettings>, VariableError> {
    if !reader.boolean("USE_PROMETHEUS")? {
        return Ok(None);
    }
    let text = reader.text("PROMETHEUS_ADDR");
    // A port alone is that of every address.
    let host = if text.starts_with(':') { "0.0.0.0" } else { "" };
    let Ok(ListenAddr::At(address)) = format!("{host}{text}").parse() else {
        return Err(reader.error("PROMETHEUS_ADDR", "write an address and a port, such as :9090"));
    };
    let path = reader.text("PROMETHEUS_PATH").to_owned();
    if !path.starts_with('/') {
        return Err(reader.error("PROMETHEUS_PATH", "write a path that begins with `/`"));
    }
    Ok(Some(PrometheusSettings { address, path }))
}

fn statsd(reader: &Reader) -> Result<Option<StatsdSettings>, VariableError> {
    let is_datadog = reader.boolean("USE_DOG_STATSD")?;
    // Statsd is the default, unless Prometheus is used instead.
    let is_default = !reader.is_set("USE_STATSD");
    let is_replaced = is_default && reader.boolean("USE_PROMETHEUS")?;
    if !is_datadog && (is_replaced || !reader.boolean("USE_STATSD")?) {
        return Ok(None);
    }
    let form = match reader.text("STATSD_PROTOCOL") {
        _ if is_datadog => StatsdForm::DogStatsd,
        "tcp" => StatsdForm::Tcp,
        "udp" => StatsdForm::Udp,
        _ => return Err(reader.error("STATSD_PROTOCOL", "write tcp or udp")),
    };
    let interval = reader.duration("STATS_FLUSH_INTERVAL")?;
    if !(MIN_INTERVAL..=MAX_INTERVAL).contains(&interval) {
        return Err(reader.error("STATS_FLUSH_INTERVAL", "write a duration from 100ms to 1h"));
    }
    let host = reader.text("STATSD_HOST").to_owned();
    Ok(Some(StatsdSettings {
        host,
        port: reader.number("STATSD_PORT")?,
        form,
        interval,
        tags: tags(reader)?,
    }))
}

/// Reads the tags. Characters with a meaning in statsd are replaced.
fn tags(reader: &Reader) -> Result<Vec<(String, String)>, VariableError> {
    let clean = |text: String| {
        let is_special = |c: char| ".:|,#".contains(c) || c.is_control() || c.is_whitespace();
        text.replace(is_special, "_")
    };
    let pairs = reader.pairs(TAGS, ':')?.into_iter();
    let mut tags: Vec<_> = pairs.map(|(name, value)| (clean(name), clean(value))).collect();
    tags.sort();
    let bytes: usize = tags.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
    if bytes > MAX_TAG_BYTES {
        return Err(reader.error(TAGS, format!("tags may take {MAX_TAG_BYTES} bytes in all")));
    }
    Ok(tags)
}
