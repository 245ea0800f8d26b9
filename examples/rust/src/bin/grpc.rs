//! A gRPC service with a rate limit. It is the health service, to keep the example small.
//!
//! Each client address may make 100 calls per second. Further calls are answered with
//! `RESOURCE_EXHAUSTED` and the time to wait in `grpc-retry-pushback-ms`.
//!
//! ```text
//! $ cargo run -p tidegate-examples --bin grpc
//! ```

use std::net::IpAddr;

use tidegate::Limit;
use tidegate::tower::{RateLimitLayer, Rule};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::transport::server::TcpConnectInfo;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Returns the address of the client from the extension that tonic sets.
fn peer(extensions: &axum::http::Extensions) -> Option<IpAddr> {
    let info: &TcpConnectInfo = extensions.get()?;
    Some(info.remote_addr()?.ip())
}

async fn serve(listener: TcpListener, limit: Limit) -> Result<(), BoxError> {
    let rule = Rule::new("calls", [limit]);
    let limits = RateLimitLayer::builder().rule(rule).peer(peer).build()?;
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(limits).add_service(health);
    server.serve_with_incoming(TcpListenerStream::new(listener)).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let listener = TcpListener::bind("127.0.0.1:3002").await?;
    println!("grpc://{}", listener.local_addr()?);
    serve(listener, "100 per 1s sliding-window".parse()?).await
}

#[cfg(test)]
mod tests {
    use tonic::Code;
    use tonic::transport::Endpoint;
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;

    use super::*;

    #[tokio::test]
    async fn answers_resource_exhausted_above_the_limit() -> Result<(), BoxError> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let limit = "2 per 1h sliding-log".parse()?;
        let serving = tokio::spawn(serve(listener, limit));
        let channel = Endpoint::from_shared(format!("http://{address}"))?.connect().await?;
        let mut client = HealthClient::new(channel);
        for _ in 0..2 {
            client.check(HealthCheckRequest::default()).await?;
        }
        let denied = client.check(HealthCheckRequest::default()).await.expect_err("a denial");
        assert_eq!(denied.code(), Code::ResourceExhausted);
        assert!(denied.message().starts_with("used up: `2 per 1h sliding-log`"), "{denied}");
        let wait = denied.metadata().get("grpc-retry-pushback-ms").expect("a wait").to_str()?;
        assert!((3_500_000..=3_600_000).contains(&wait.parse::<u64>()?), "{wait}");
        serving.abort();
        Ok(())
    }
}
