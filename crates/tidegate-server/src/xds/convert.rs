//! Converts received messages to the configs that files are read into.

use std::sync::Arc;

use prost_types::value::Kind;
use prost_types::{Struct, Value};
use tidegate::unstable::config::envoy::{self, DescriptorConfig, DomainConfig, Unit};
use tidegate::unstable::policy::{Metadata, MetadataValue};

use super::messages::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy};

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
        envoy::RateLimitConfig {
            unit: match policy.unit {
                1 => Unit::Second,
                2 => Unit::Minute,
                3 => Unit::Hour,
                4 => Unit::Day,
                5 => Unit::Month,
                6 => Unit::Year,
                7 => Unit::Week,
                _ => Unit::Unknown,
            },
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
