//! The messages of the protocol, as far as a client of rate limit configs needs them.
//!
//! The tags are those of `envoy/service/discovery/v3/discovery.proto`,
//! `envoy/config/core/v3/base.proto`, `google/rpc/status.proto` and
//! `ratelimit/config/ratelimit/v3/rls_conf.proto`. Unknown fields are skipped. Generated code would
//! bring all messages that these refer to, which is most of Envoy's API. Received configs are
//! converted to the values that files are read into.

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message;
use prost_types::value::Kind;
use prost_types::{Any, Struct, Value};
use tidegate::unstable::config::envoy::{self, DescriptorConfig, DomainConfig, Unit};
use tidegate::unstable::policy::{Metadata, MetadataValue};

/// A request for the configs, and the acknowledgement of a response.
#[derive(Clone, PartialEq, Message)]
pub struct DiscoveryRequest {
    /// The version that was last accepted; empty before the first.
    #[prost(string, tag = "1")]
    pub version_info: String,
    #[prost(message, optional, tag = "2")]
    pub node: Option<Node>,
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// The nonce of the response that this acknowledges or rejects.
    #[prost(string, tag = "5")]
    pub response_nonce: String,
    /// The reason of a rejection. An acknowledgement has none.
    #[prost(message, optional, tag = "6")]
    pub error_detail: Option<Status>,
}

/// All configs, in one version.
#[derive(Clone, PartialEq, Message)]
pub struct DiscoveryResponse {
    #[prost(string, tag = "1")]
    pub version_info: String,
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<Any>,
    #[prost(string, tag = "4")]
    pub type_url: String,
    #[prost(string, tag = "5")]
    pub nonce: String,
}

/// The identity of this client.
#[derive(Clone, PartialEq, Message)]
pub struct Node {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, optional, tag = "3")]
    pub metadata: Option<Struct>,
    #[prost(string, tag = "6")]
    pub user_agent_name: String,
}

/// An error.
#[derive(Clone, PartialEq, Message)]
pub struct Status {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

/// The limits of one domain.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitConfig {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub domain: String,
    #[prost(message, repeated, tag = "3")]
    pub descriptors: Vec<RateLimitDescriptor>,
}

/// A node of the tree of descriptors.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitDescriptor {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
    #[prost(message, optional, tag = "3")]
    pub rate_limit: Option<RateLimitPolicy>,
    #[prost(message, repeated, tag = "4")]
    pub descriptors: Vec<RateLimitDescriptor>,
    #[prost(bool, tag = "5")]
    pub shadow_mode: bool,
    #[prost(bool, tag = "6")]
    pub detailed_metric: bool,
    #[prost(bool, tag = "7")]
    pub quota_mode: bool,
    #[prost(message, optional, tag = "8")]
    pub metadata: Option<Struct>,
}

/// The limit of a descriptor.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitPolicy {
    /// The number of the [`Unit`].
    #[prost(int32, tag = "1")]
    pub unit: i32,
    #[prost(uint32, tag = "2")]
    pub requests_per_unit: u32,
    #[prost(bool, tag = "3")]
    pub unlimited: bool,
    #[prost(string, tag = "4")]
    pub name: String,
    #[prost(message, repeated, tag = "5")]
    pub replaces: Vec<RateLimitReplace>,
}

/// The name of a limit that another one replaces.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitReplace {
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Returns a struct of texts.
pub fn text_struct(fields: &[(String, String)]) -> Struct {
    let value = |text: &String| Value { kind: Some(Kind::StringValue(text.clone())) };
    let fields: BTreeMap<String, _> =
        fields.iter().map(|(name, text)| (name.clone(), value(text))).collect();
    Struct { fields }
}

impl From<RateLimitConfig> for DomainConfig {
    fn from(config: RateLimitConfig) -> Self {
        DomainConfig {
            name: config.name,
            domain: config.domain,
            descriptors: config.descriptors.into_iter().map(Into::into).collect(),
        }
    }
}

/// The decoder bounds how deep descriptors are nested.
impl From<RateLimitDescriptor> for DescriptorConfig {
    fn from(descriptor: RateLimitDescriptor) -> Self {
        DescriptorConfig {
            key: descriptor.key,
            value: descriptor.value,
            rate_limit: descriptor.rate_limit.map(Into::into),
            descriptors: descriptor.descriptors.into_iter().map(Into::into).collect(),
            shadow_mode: descriptor.shadow_mode,
            quota_mode: descriptor.quota_mode,
            detailed_metric: descriptor.detailed_metric,
            metadata: descriptor.metadata.map(|metadata| Arc::new(to_metadata(metadata))),
            ..DescriptorConfig::default()
        }
    }
}

impl From<RateLimitPolicy> for envoy::RateLimitConfig {
    fn from(policy: RateLimitPolicy) -> Self {
        let unit = u64::try_from(policy.unit).ok().and_then(Unit::from_number);
        envoy::RateLimitConfig {
            unit: unit.unwrap_or_default(),
            requests_per_unit: policy.requests_per_unit,
            unlimited: policy.unlimited,
            name: policy.name,
            replaces: policy.replaces.into_iter().map(|replaced| replaced.name).collect(),
        }
    }
}

fn to_metadata(fields: Struct) -> Metadata {
    fields.fields.into_iter().map(|(name, value)| (name, to_value(value))).collect()
}

fn to_value(value: Value) -> MetadataValue {
    match value.kind {
        None | Some(Kind::NullValue(_)) => MetadataValue::Null,
        Some(Kind::BoolValue(value)) => MetadataValue::Bool(value),
        Some(Kind::NumberValue(number)) => MetadataValue::Number(number),
        Some(Kind::StringValue(text)) => MetadataValue::Text(text),
        Some(Kind::ListValue(list)) => {
            MetadataValue::List(list.values.into_iter().map(to_value).collect())
        }
        Some(Kind::StructValue(fields)) => MetadataValue::Map(to_metadata(fields)),
    }
}
