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
use super::settings::{StatsdForm, StatsdSettings};
use super::{EnvoyMetrics, SERVICE_NAMES};

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
        let packets = packets(&self.metrics, &self.settings);
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
