//! The control plane: a tonic server that sends configs to one client.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures_util::{Stream, stream};
use prost::Message as _;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming};

use super::messages::{
    Config, Descriptor, DiscoveryRequest, DiscoveryResponse, Policy, Resource, Server, Service,
};

const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// The domain of all configs, and the key of all descriptors.
pub const DOMAIN: &str = "bench";
pub const KEY: &str = "user";

/// The number of the unit `HOUR`.
const HOUR: i32 = 3;

/// How long the client may take for any request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A running control plane.
pub struct ControlPlane {
    pub address: SocketAddr,
    responses: mpsc::Sender<DiscoveryResponse>,
    requests: mpsc::Receiver<DiscoveryRequest>,
}

impl ControlPlane {
    /// Starts to listen on a free port, on the current runtime.
    pub fn start() -> io::Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let (responses, sent) = mpsc::channel(1);
        let (received, requests) = mpsc::channel(16);
        let service = OneStream { responses: Mutex::new(Some(sent)), requests: received };
        let server = tonic::transport::Server::builder().add_service(Server::new(service));
        tokio::spawn(server.serve(address));
        Ok(ControlPlane { address, responses, requests })
    }

    /// Waits until the client has subscribed.
    pub async fn subscribed(&mut self) -> io::Result<()> {
        self.next_request().await.map(|_| ())
    }

    /// Sends an encoded config, and returns the time until it is accepted.
    pub async fn push(&mut self, value: Vec<u8>, number: usize) -> io::Result<Duration> {
        let response = DiscoveryResponse {
            version_info: number.to_string(),
            resources: vec![Resource { type_url: TYPE_URL.to_owned(), value }],
            type_url: TYPE_URL.to_owned(),
            nonce: number.to_string(),
        };
        let sent = Instant::now();
        self.responses.send(response).await.map_err(|_| io::Error::other("the stream ended"))?;
        let request = self.next_request().await?;
        let took = sent.elapsed();
        match request.error_detail {
            Some(error) => Err(io::Error::other(format!("config rejected: {}", error.message))),
            None if request.response_nonce != number.to_string() => {
                Err(io::Error::other(format!("not the acknowledgement of {number}: {request:?}")))
            }
            None => Ok(took),
        }
    }

    async fn next_request(&mut self) -> io::Result<DiscoveryRequest> {
        let request = tokio::time::timeout(REQUEST_TIMEOUT, self.requests.recv()).await?;
        request.ok_or_else(|| io::Error::other("the client closed the stream"))
    }
}

/// Returns an encoded config of many descriptors with one limit each. The limits differ by
/// `number`.
pub fn config(descriptors: u32, number: u32) -> Vec<u8> {
    let descriptor = |value: u32| Descriptor {
        key: KEY.to_owned(),
        value: format!("user:{value:08}"),
        rate_limit: Some(Policy { unit: HOUR, requests_per_unit: 1_000_000_000 + number }),
    };
    let config = Config {
        name: DOMAIN.to_owned(),
        domain: DOMAIN.to_owned(),
        descriptors: (0..descriptors).map(descriptor).collect(),
    };
    config.encode_to_vec()
}

/// A service with one stream.
struct OneStream {
    responses: Mutex<Option<mpsc::Receiver<DiscoveryResponse>>>,
    requests: mpsc::Sender<DiscoveryRequest>,
}

#[tonic::async_trait]
impl Service for OneStream {
    type StreamAggregatedResourcesStream =
        Pin<Box<dyn Stream<Item = Result<DiscoveryResponse, Status>> + Send>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let responses = self.responses.lock().ok().and_then(|mut responses| responses.take());
        let responses = responses.ok_or_else(|| Status::unavailable("there was a stream"))?;
        let (received, mut incoming) = (self.requests.clone(), request.into_inner());
        tokio::spawn(async move {
            while let Ok(Some(request)) = incoming.message().await {
                if received.send(request).await.is_err() {
                    return;
                }
            }
        });
        let responses = stream::unfold(responses, |mut responses| async move {
            responses.recv().await.map(|response| (Ok(response), responses))
        });
        Ok(Response::new(Box::pin(responses)))
    }
}
