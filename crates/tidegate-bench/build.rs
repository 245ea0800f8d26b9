//! Generates the tonic clients and servers for `grpc` and `xds`, without `protoc`, for the messages
//! in `src/grpc/messages.rs` and `src/xds/messages.rs`. The generated code is the same that users
//! of tonic have.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let should_rate_limit = Method::builder()
        .name("should_rate_limit")
        .route_name("ShouldRateLimit")
        .input_type("crate::grpc::messages::RateLimitRequest")
        .output_type("crate::grpc::messages::RateLimitResponse")
        .codec_path("tonic_prost::ProstCodec")
        .build();
    let service = Service::builder()
        .name("RateLimitService")
        .package("envoy.service.ratelimit.v3")
        .method(should_rate_limit)
        .build();
    let stream = Method::builder()
        .name("stream_aggregated_resources")
        .route_name("StreamAggregatedResources")
        .input_type("crate::xds::messages::DiscoveryRequest")
        .output_type("crate::xds::messages::DiscoveryResponse")
        .codec_path("tonic_prost::ProstCodec")
        .client_streaming()
        .server_streaming()
        .build();
    let discovery = Service::builder()
        .name("AggregatedDiscoveryService")
        .package("envoy.service.discovery.v3")
        .method(stream)
        .build();
    Builder::new().compile(&[service, discovery]);
    println!("cargo::rerun-if-changed=build.rs");
}
