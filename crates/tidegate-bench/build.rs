//! Writes the client and the server of `grpc`: tonic's own, as its users have them, without
//! `protoc`, for the messages of `src/grpc/messages.rs`.

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
    Builder::new().compile(&[service]);
    println!("cargo::rerun-if-changed=build.rs");
}
