//! Receives configs of envoyproxy/ratelimit from a control plane over xDS.
//!
//! The client opens one stream of the aggregated discovery service and subscribes to
//! `RateLimitConfig`. Every response holds all configs ("state of the world"). It is decoded,
//! applied and acknowledged, or rejected with the reason; a rejected config changes nothing. When
//! the stream ends, the client connects again after a pause that grows with every failure. The last
//! accepted config stays in force meanwhile.
//!
//! ```text
//!   control plane --DiscoveryResponse--> client.rs, messages.rs --Update-> serve/reload.rs
//!                 <--ACK or NACK--------                       <--result--
//! ```
//!
//! Bounds: one message is at most [`XdsSettings::max_message_bytes`] large, configs that arrive
//! while another is applied are skipped except for the newest, and a control plane that stops
//! responding is detected by pings.

mod client;
mod messages;

use std::path::PathBuf;
use std::time::Duration;

use tidegate::unstable::config::envoy::DomainConfig;
use tokio::sync::oneshot;

pub use self::client::run;

/// The settings of the client.
#[derive(Clone, Debug)]
pub struct XdsSettings {
    /// The control plane, as `host:port`.
    pub address: String,
    /// The identity under which the control plane knows this client.
    pub node_id: String,
    pub node_metadata: Vec<(String, String)>,
    /// Metadata that is sent with the stream.
    pub headers: Vec<(String, String)>,
    /// `None` for a connection without TLS.
    pub tls: Option<XdsTls>,
    pub backoff: BackoffSettings,
    pub max_message_bytes: usize,
}

/// The files of a connection with TLS. They are read for every connection.
#[derive(Clone, Debug, Default)]
pub struct XdsTls {
    /// The authority of the server's certificate; by default those of the system.
    pub ca: Option<PathBuf>,
    /// The certificate and key of this client.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate must have; by default the host of the address.
    pub server_name: Option<String>,
}

/// The pauses between attempts to connect.
#[derive(Clone, Copy, Debug)]
pub struct BackoffSettings {
    pub first: Duration,
    pub max: Duration,
    /// Whether a random part of up to a half is subtracted from each pause.
    pub jitter: bool,
}

/// All configs of one response, to be applied.
#[derive(Debug)]
pub struct Update {
    pub configs: Vec<DomainConfig>,
    /// Receives the result: an error is sent to the control plane.
    pub result: oneshot::Sender<Result<(), String>>,
}
