//! The messages of the aggregated discovery service and of rate limit configs, reduced to the
//! fields that the control plane uses. Other fields are ignored.

#[derive(Clone, PartialEq, prost::Message)]
pub struct DiscoveryRequest {
    #[prost(string, tag = "5")]
    pub response_nonce: String,
    #[prost(message, optional, tag = "6")]
    pub error_detail: Option<Status>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Status {
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DiscoveryResponse {
    #[prost(string, tag = "1")]
    pub version_info: String,
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<Resource>,
    #[prost(string, tag = "4")]
    pub type_url: String,
    #[prost(string, tag = "5")]
    pub nonce: String,
}

/// A `google.protobuf.Any`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Resource {
    #[prost(string, tag = "1")]
    pub type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Config {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub domain: String,
    #[prost(message, repeated, tag = "3")]
    pub descriptors: Vec<Descriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Descriptor {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
    #[prost(message, optional, tag = "3")]
    pub rate_limit: Option<Policy>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Policy {
    #[prost(int32, tag = "1")]
    pub unit: i32,
    #[prost(uint32, tag = "2")]
    pub requests_per_unit: u32,
}

/// The server that tonic generates.
#[allow(clippy::all, missing_docs, dead_code, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/envoy.service.discovery.v3.AggregatedDiscoveryService.rs"));
}

pub use generated::aggregated_discovery_service_server::{
    AggregatedDiscoveryService as Service, AggregatedDiscoveryServiceServer as Server,
};
