//! Facts about a limit of an envoyproxy/ratelimit config that do not affect decisions: its place in
//! the tree of descriptors, how its metrics are named, and its metadata.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The place of a limit in an envoyproxy/ratelimit config, and its settings for metrics and
/// metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyDetails {
    /// The domain.
    pub domain: Arc<str>,
    /// The descriptors from the root of the tree to the limit.
    pub levels: Box<[Arc<EnvoyLevel>]>,
    /// The `name` of the limit; empty if it has none. The policy may have another name.
    pub name: Box<str>,
    /// Whether metrics are named by the values of the request (`detailed_metric`).
    pub detailed_metric: bool,
    /// The `metadata` of the descriptor that has the limit.
    pub metadata: Option<Arc<Metadata>>,
}

/// One descriptor on the path to a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyLevel {
    /// The key.
    pub key: Box<str>,
    /// The value, which may contain `*`; empty for any value.
    pub value: Box<str>,
    /// Whether metrics are named by the value of the request at this level (`value_to_metric`).
    pub value_to_metric: bool,
    /// Whether all values that the wildcard matches share one count (`share_threshold`).
    pub share_threshold: bool,
}

/// Named values, in order of name: a `google.protobuf.Struct`.
pub type Metadata = BTreeMap<String, MetadataValue>;

/// A value of [`Metadata`].
#[derive(Clone, Debug)]
pub enum MetadataValue {
    /// Null.
    Null,
    /// A boolean.
    Bool(bool),
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
    /// A list of values.
    List(Vec<MetadataValue>),
    /// Named values.
    Map(Metadata),
}

/// Numbers are equal if their bits are, so that every value equals itself.
impl PartialEq for MetadataValue {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (MetadataValue::Null, MetadataValue::Null) => true,
            (MetadataValue::Bool(ours), MetadataValue::Bool(theirs)) => ours == theirs,
            (MetadataValue::Number(ours), MetadataValue::Number(theirs)) => {
                ours.to_bits() == theirs.to_bits()
            }
            (MetadataValue::Text(ours), MetadataValue::Text(theirs)) => ours == theirs,
            (MetadataValue::List(ours), MetadataValue::List(theirs)) => ours == theirs,
            (MetadataValue::Map(ours), MetadataValue::Map(theirs)) => ours == theirs,
            _ => false,
        }
    }
}

impl Eq for MetadataValue {}
