//! Generates the tonic client and server for `grpc`, without `protoc`, for the messages in
//! `src/grpc/messages.rs`. The generated code is the same that users of tonic have.

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
