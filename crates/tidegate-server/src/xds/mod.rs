//! Receives configs of envoyproxy/ratelimit from a control plane over xDS.
//!
//! The client opens one stream of the aggregated discovery service and subscribes to
//! `RateLimitConfig`. Every response holds all configs ("state of the world"). It is decoded,
//! applied and acknowledged, or rejected with the reason; a rejected config changes nothing. When
//! the stream ends, the client connects again after a pause that grows with every failure. The last
//! accepted config stays in force meanwhile.
//!
//! ```text
//!   control plane --DiscoveryResponse--> xds/ --Update-> serve/reload.rs
//!                 <--ACK or NACK--------      <--result--
//! ```
//!
//! Bounds: one message is at most [`XdsSettings::max_message_bytes`] large, configs that arrive
//! while another is applied are skipped except for the newest, and a control plane that stops
//! responding is detected by pings.

mod messages;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::{FutureExt as _, stream};
use http::uri::PathAndQuery;
use prost::Message as _;
use prost_types::Any;
use tidegate::unstable::config::envoy::DomainConfig;
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::client::Grpc;
use tonic::codec::Streaming;
use tonic::metadata::{MetadataKey, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic_prost::ProstCodec;
use tracing::{debug, info, warn};

use self::messages::{
    DiscoveryRequest, DiscoveryResponse, Node, RateLimitConfig, Status, text_struct,
};

const STREAM: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// The code of a rejected config: INVALID_ARGUMENT.
const INVALID_ARGUMENT: i32 = 3;

/// The largest size of a reason that is sent to the control plane. It stays below the limit of
/// gRPC on metadata, because control planes log it and some pass it on there.
const MAX_REASON_BYTES: usize = 4096;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The control plane is pinged this often, and must reply within the timeout.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// The time from one config to the next. A control plane that sends configs without end is slowed
/// down by flow control, and only the newest config that arrived meanwhile is applied.
const INTERVAL: Duration = Duration::from_millis(100);

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
    pub ca: Option<XdsFile>,
    /// The certificate and key of this client.
    pub identity: Option<(XdsFile, XdsFile)>,
    /// The name that the server's certificate must have; by default the host of the address.
    pub server_name: Option<ServerName<'static>>,
}

/// A file, and the variable that names it.
#[derive(Clone, Debug)]
pub struct XdsFile {
    pub variable: &'static str,
    pub path: PathBuf,
}

/// The pauses between attempts to connect.
#[derive(Clone, Copy, Debug)]
pub struct BackoffSettings {
    pub first: Duration,
    pub max: Duration,
    /// Whether a random part of up to a half is subtracted from each pause.
    pub jitter: bool,
}

/// All configs of one response, to be decoded and applied.
#[derive(Debug)]
pub struct Update {
    type_url: String,
    resources: Vec<Any>,
    /// Receives the result: an error is sent to the control plane.
    pub result: oneshot::Sender<Result<(), String>>,
}

/// Receives configs and sends them to `updates`, until the receiver is dropped.
pub async fn run(settings: XdsSettings, updates: mpsc::Sender<Update>) {
    let mut client = Client { settings, updates, accepted: String::new(), failures: 0 };
    loop {
        let Err(error) = client.follow().await else { return };
        let pause = pause_after(client.settings.backoff, client.failures);
        client.failures = client.failures.saturating_add(1);
        let address = &client.settings.address;
        warn!(address, retry_in = ?pause, "no configs from the xDS control plane: {error}");
        tokio::time::sleep(pause).await;
    }
}

struct Client {
    settings: XdsSettings,
    updates: mpsc::Sender<Update>,
    /// The version that was last accepted.
    accepted: String,
    /// The number of streams that failed since the last response.
    failures: u32,
}

impl Client {
    /// Opens a stream and applies its configs. Returns `Ok` if nobody receives updates any more,
    /// and an error when the stream ends.
    async fn follow(&mut self) -> Result<(), StreamError> {
        let (requests, mut responses) = self.open().await?;
        info!(address = self.settings.address, "connected to the xDS control plane");
        loop {
            let first = responses.message().await?.ok_or(StreamError::Ended)?;
            let next = tokio::time::Instant::now() + INTERVAL;
            let (response, failed) = newest(&mut responses, first);
            self.failures = 0;
            let DiscoveryResponse { version_info, resources, type_url, nonce } = response;
            let (result, applied) = oneshot::channel();
            if self.updates.send(Update { type_url, resources, result }).await.is_err() {
                return Ok(());
            }
            let Ok(applied) = applied.await else { return Ok(()) };
            let acknowledgement = self.acknowledge(version_info, nonce, applied);
            // If the stream has ended, the next read returns the reason.
            let _ = requests.send(acknowledgement).await;
            if let Some(status) = failed {
                return Err(status.into());
            }
            tokio::time::sleep_until(next).await;
        }
    }

    async fn open(
        &self,
    ) -> Result<(mpsc::Sender<DiscoveryRequest>, Streaming<DiscoveryResponse>), StreamError> {
        let channel = connect(&self.settings).await?;
        let mut grpc =
            Grpc::new(channel).max_decoding_message_size(self.settings.max_message_bytes);
        grpc.ready().await.map_err(StreamError::Connect)?;
        let (requests, outgoing) = mpsc::channel(1);
        let first = DiscoveryRequest {
            version_info: self.accepted.clone(),
            node: Some(self.node()),
            type_url: TYPE_URL.to_owned(),
            ..DiscoveryRequest::default()
        };
        let first = stream::once(async { first });
        let later = stream::unfold(outgoing, |mut outgoing: mpsc::Receiver<_>| async move {
            outgoing.recv().await.map(|request| (request, outgoing))
        });
        let mut request = tonic::Request::new(stream::StreamExt::chain(first, later));
        for (name, value) in &self.settings.headers {
            let name = name.parse::<MetadataKey<_>>();
            let value = value.parse::<MetadataValue<_>>();
            if let (Ok(name), Ok(value)) = (name, value) {
                request.metadata_mut().insert(name, value);
            }
        }
        let path = PathAndQuery::from_static(STREAM);
        let responses = grpc.streaming(request, path, ProstCodec::default()).await?;
        Ok((requests, responses.into_inner()))
    }

    fn node(&self) -> Node {
        Node {
            id: self.settings.node_id.clone(),
            metadata: Some(text_struct(&self.settings.node_metadata)),
            user_agent_name: "tidegate".to_owned(),
        }
    }

    /// Returns the acknowledgement of a response, or its rejection.
    fn acknowledge(
        &mut self,
        version: String,
        nonce: String,
        result: Result<(), String>,
    ) -> DiscoveryRequest {
        let error_detail = match result {
            Ok(()) => {
                debug!(version, "accepted a config over xDS");
                self.accepted = version;
                None
            }
            Err(reason) => {
                debug!(version, "rejected a config over xDS");
                let message = shorten(reason);
                Some(Status { code: INVALID_ARGUMENT, message })
            }
        };
        DiscoveryRequest {
            version_info: self.accepted.clone(),
            node: None,
            type_url: TYPE_URL.to_owned(),
            response_nonce: nonce,
            error_detail,
        }
    }
}

/// Returns the newest response that has arrived, and the error that ended the stream after it, if
/// there is one. Each response holds all configs, so older ones are obsolete.
fn newest(
    responses: &mut Streaming<DiscoveryResponse>,
    mut response: DiscoveryResponse,
) -> (DiscoveryResponse, Option<tonic::Status>) {
    loop {
        match responses.message().now_or_never() {
            Some(Ok(Some(next))) => response = next,
            // An error is returned only once.
            Some(Err(status)) => return (response, Some(status)),
            // The end of the stream is found again by the next read.
            Some(Ok(None)) | None => return (response, None),
        }
    }
}

impl Update {
    /// Decodes all configs, or returns why the response is rejected.
    pub fn decode(&self) -> Result<Vec<DomainConfig>, String> {
        if self.type_url != TYPE_URL {
            let found = self.type_url.escape_debug();
            return Err(format!("the response has the type `{found}`; expected {TYPE_URL}"));
        }
        let resources = self.resources.iter().enumerate();
        resources.map(|(index, resource)| decode_one(index, resource)).collect()
    }
}

fn decode_one(index: usize, resource: &Any) -> Result<DomainConfig, String> {
    if resource.type_url != TYPE_URL {
        let found = resource.type_url.escape_debug();
        return Err(format!("resources[{index}] has the type `{found}`; send {TYPE_URL}"));
    }
    let mut config: DomainConfig = RateLimitConfig::decode(&*resource.value)
        .map_err(|error| format!("resources[{index}] is not a RateLimitConfig: {error}"))?
        .into();
    // Errors have the name or the domain of a config.
    if config.name.is_empty() && config.domain.is_empty() {
        config.name = format!("resources[{index}]");
    }
    Ok(config)
}

async fn connect(settings: &XdsSettings) -> Result<Channel, StreamError> {
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{}", settings.address))
        .map_err(StreamError::Connect)?
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true);
    if let Some(files) = &settings.tls {
        endpoint = endpoint.tls_config(tls(files).await?).map_err(StreamError::Connect)?;
    }
    // `Endpoint::connect_timeout` does not cover the TLS handshake.
    let connecting = tokio::time::timeout(CONNECT_TIMEOUT, endpoint.connect()).await;
    connecting.map_err(|_| StreamError::ConnectTimeout)?.map_err(StreamError::Connect)
}

async fn tls(files: &XdsTls) -> Result<ClientTlsConfig, StreamError> {
    let mut config = ClientTlsConfig::new();
    match &files.ca {
        Some(file) => config = config.ca_certificate(Certificate::from_pem(read(file).await?)),
        None => config = config.with_native_roots(),
    }
    if let Some((certificate, key)) = &files.identity {
        config = config.identity(Identity::from_pem(read(certificate).await?, read(key).await?));
    }
    if let Some(name) = &files.server_name {
        config = config.domain_name(name.to_str());
    }
    Ok(config)
}

async fn read(file: &XdsFile) -> Result<Vec<u8>, StreamError> {
    let file = file.clone();
    let read = tokio::task::spawn_blocking(move || {
        std::fs::read(&file.path).map_err(|error| StreamError::File(file, error))
    });
    read.await.unwrap_or(Err(StreamError::Ended))
}

/// The pause after a number of failures: doubled with each, up to the maximum.
fn pause_after(backoff: BackoffSettings, failures: u32) -> Duration {
    let pause = backoff.first.saturating_mul(1 << failures.min(16)).min(backoff.max);
    if backoff.jitter { pause.mul_f64(random_between_half_and_one()) } else { pause }
}

fn random_between_half_and_one() -> f64 {
    let random = getrandom::u32().unwrap_or_default();
    0.5 + f64::from(random) / f64::from(u32::MAX) / 2.0
}

/// Cuts a reason at [`MAX_REASON_BYTES`].
fn shorten(mut reason: String) -> String {
    if reason.len() > MAX_REASON_BYTES {
        reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
        reason.push_str(" ...");
    }
    reason
}

/// Why a stream could not be opened, or ended.
#[derive(Debug)]
enum StreamError {
    Connect(tonic::transport::Error),
    ConnectTimeout,
    File(XdsFile, std::io::Error),
    Status(tonic::Status),
    Ended,
}

impl From<tonic::Status> for StreamError {
    fn from(status: tonic::Status) -> Self {
        StreamError::Status(status)
    }
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamError::Connect(error) => {
                write!(f, "{error}")?;
                // The cause is in the sources: refused, unknown host, certificate.
                let mut source = std::error::Error::source(error);
                while let Some(error) = source {
                    write!(f, ": {error}")?;
                    source = error.source();
                }
                Ok(())
            }
            StreamError::ConnectTimeout => {
                write!(f, "not connected within {CONNECT_TIMEOUT:?}")
            }
            StreamError::File(XdsFile { variable, path }, error) => {
                write!(f, "{variable}={}: {error}", path.display())
            }
            StreamError::Status(status) => {
                write!(f, "{}: {}", status.code(), status.message().escape_debug())
            }
            StreamError::Ended => f.write_str("the stream ended"),
        }
    }
}
