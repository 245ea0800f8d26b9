//! Packets for statsd and DogStatsD.
//!
//! Every interval, what was added to each counter is sent once, in packets of bounded size. Nothing
//! is kept for a receiver that cannot be reached or reads too slowly: what it misses is lost.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tracing::{info, warn};

use super::series::Hits;
use super::{EnvoyMetrics, SERVICE_NAMES};
use crate::background;
use crate::envoy_ratelimit::variables::{Reader, VariableError};

/// The bounds of the interval between two packets to statsd.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
const MAX_INTERVAL: Duration = Duration::from_secs(3600);

/// The maximum length of all tags, so that a line of statsd always fits into a packet.
const MAX_TAG_BYTES: usize = 512;

const TAGS: &str = "EXTRA_TAGS";

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

/// Reads the settings; `None` if nothing is sent.
pub fn read_settings(reader: &Reader) -> Result<Option<StatsdSettings>, VariableError> {
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

/// The maximum size of a packet: the payload that fits into an Ethernet frame.
const MAX_PACKET_BYTES: usize = 1432;

/// The time after which the rest of the packets is dropped.
const SEND_TIMEOUT: Duration = Duration::from_secs(2);

/// Sends metrics to a receiver.
#[derive(Debug)]
pub struct Statsd {
    settings: StatsdSettings,
    metrics: Arc<EnvoyMetrics>,
    /// Whether the last packets could not be sent.
    failed: AtomicBool,
}

impl Statsd {
    pub fn new(settings: StatsdSettings, metrics: Arc<EnvoyMetrics>) -> Self {
        Statsd { settings, metrics, failed: AtomicBool::new(false) }
    }

    /// Sends what was counted, once per interval. Never returns.
    pub async fn run(self: Arc<Self>) {
        loop {
            tokio::time::sleep(self.settings.interval).await;
            self.flush().await;
        }
    }

    /// Sends what was counted since the last call. Logs the first failure of several in a row.
    pub async fn flush(&self) {
        let (metrics, settings) = (Arc::clone(&self.metrics), self.settings.clone());
        let packets = background::run(move || packets(&metrics, &settings)).await;
        if packets.is_empty() {
            return;
        }
        let sent = tokio::time::timeout(SEND_TIMEOUT, self.send(&packets)).await;
        let sent = sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let (host, port) = (&self.settings.host, self.settings.port);
        let had_failed = self.failed.swap(sent.is_err(), Relaxed);
        match (sent, had_failed) {
            (Err(error), false) => warn!(
                host, port, %error,
                "metrics cannot be sent to statsd and are lost; set USE_STATSD=false if there is no \
                 receiver"
            ),
            (Ok(()), true) => info!(host, port, "metrics are sent to statsd again"),
            _ => {}
        }
    }

    #[cfg(test)]
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    async fn send(&self, packets: &[String]) -> io::Result<()> {
        let address = lookup_host((&*self.settings.host, self.settings.port)).await?.next();
        let address = address.ok_or(io::ErrorKind::AddrNotAvailable)?;
        if self.settings.form == StatsdForm::Tcp {
            let mut stream = TcpStream::connect(address).await?;
            for packet in packets {
                stream.write_all(packet.as_bytes()).await?;
            }
            return stream.shutdown().await;
        }
        let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).await?;
        socket.connect(address).await?;
        for packet in packets {
            socket.send(packet.as_bytes()).await?;
        }
        Ok(())
    }
}

/// Returns the packets with what was counted since the last call.
pub(super) fn packets(metrics: &EnvoyMetrics, settings: &StatsdSettings) -> Vec<String> {
    let mut packets = Packets::new(settings);
    for (name, delta) in SERVICE_NAMES.into_iter().zip(metrics.service.take_deltas()) {
        packets.add(format_args!("{name}"), delta);
    }
    for series in metrics.registry.all() {
        for (which, delta) in Hits::ALL.into_iter().zip(series.counters.take_deltas()) {
            let (series, which) = (&series.name, which.name());
            packets.add(format_args!("ratelimit.service.rate_limit.{series}.{which}"), delta);
        }
    }
    packets.done
}

struct Packets {
    done: Vec<String>,
    /// The text after a name, and the text after a value.
    before_value: String,
    after_value: String,
}

impl Packets {
    fn new(settings: &StatsdSettings) -> Self {
        let (mut before_value, mut after_value) = (String::new(), String::new());
        for (name, value) in &settings.tags {
            // Writing to memory cannot fail.
            let _ = match settings.form {
                StatsdForm::DogStatsd => {
                    let separator = if after_value.is_empty() { "|#" } else { "," };
                    write!(after_value, "{separator}{name}:{value}")
                }
                StatsdForm::Tcp | StatsdForm::Udp => write!(before_value, ".__{name}={value}"),
            };
        }
        Packets { done: Vec::new(), before_value, after_value }
    }

    /// Adds a line, unless nothing was counted.
    fn add(&mut self, name: std::fmt::Arguments<'_>, delta: u64) {
        if delta == 0 {
            return;
        }
        let line = format!("{name}{}:{delta}|c{}\n", self.before_value, self.after_value);
        match self.done.last_mut() {
            Some(packet) if packet.len() + line.len() <= MAX_PACKET_BYTES => packet.push_str(&line),
            _ => self.done.push(line),
        }
    }
}
