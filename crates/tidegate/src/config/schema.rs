//! The table of all fields of the config: name, type and description.
//!
//! Three users share it, so they cannot disagree: the reader finds unknown fields and suggestions
//! with it, the JSON Schema for editors is generated from it, and a test compares docs/config.md
//! with it.

use serde_json::{Map, Value, json};
use tidegate_core::{Algorithm, bounds};

use crate::Overflow;
use crate::headers::Form;
use crate::identity::Source;
use crate::policy::{
    MAX_ENTRIES, MAX_EXEMPT_VALUES, MAX_LIMITS, MAX_NAME_BYTES, MAX_OVERRIDES, MAX_POLICIES,
    PathVariants, SHARED_KEY,
};
use crate::stats::LogKeys;

/// A field of a mapping.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) field_type: FieldType,
    pub(super) is_required: bool,
    pub(super) about: &'static str,
}

/// The type of a field.
pub(super) enum FieldType {
    Text,
    /// A key template.
    Template,
    /// One of these words.
    Words(&'static [&'static str]),
    /// One of these words, or a list of them.
    WordList(&'static [&'static str]),
    Integer(u64, u64),
    /// An integer, or this word.
    IntegerOr(u64, u64, &'static str),
    /// `true` or `false`.
    Boolean,
    /// A duration such as `25ms`.
    Duration,
    /// One text or a list of them.
    Texts,
    /// A mapping with these fields.
    Object(&'static [Field]),
    /// A list of mappings with these fields, and its largest length.
    Objects(&'static [Field], usize),
    /// A list of limits.
    Limits,
    /// A list of limits, or `unlimited`.
    LimitsOrNone,
    /// Descriptors: a mapping of names to values, or a list of entries.
    Descriptors,
    /// A number or a template.
    Cost,
    /// A mapping of request fields to the values they may have.
    Conditions,
}

const fn field(name: &'static str, field_type: FieldType, about: &'static str) -> Field {
    Field { name, field_type, is_required: false, about }
}

const fn required(name: &'static str, field_type: FieldType, about: &'static str) -> Field {
    Field { name, field_type, is_required: true, about }
}

pub(super) const STORE_SCHEMES: [&str; 5] =
    ["redis", "rediss", "redis+unix", "redis-sentinel", "redis-cluster"];
pub(super) const FORMS: [&str; Form::ALL.len() + 1] = {
    let mut names = ["none"; Form::ALL.len() + 1];
    let mut index = 0;
    while index < Form::ALL.len() {
        names[index] = Form::ALL[index].name();
        index += 1;
    }
    names
};
pub(super) const FORWARDED_HEADERS: [&str; 3] =
    [Source::Either.name(), Source::XForwardedFor.name(), Source::Forwarded.name()];
pub(super) const PATH_VARIANTS: [&str; 2] = [PathVariants::Merge.name(), PathVariants::Keep.name()];
pub(super) const LOG_KEYS: [&str; 3] =
    [LogKeys::Masked.name(), LogKeys::Full.name(), LogKeys::Off.name()];
pub(super) const WHEN_FULL: [&str; 3] = ["overflow", "deny", "allow"];
/// The value of `limits` in a policy without limits.
pub(super) const UNLIMITED: &str = "unlimited";
pub(super) const MODES: [&str; 3] = ["enforce", "observe", "off"];
pub(super) const ON_STORE_FAILURE: [&str; 3] = ["allow", "deny", "local"];
/// The value of `lease` with which units of hot keys are leased.
pub(super) const LEASE_AUTO: &str = "auto";
pub(super) const LEASE: [&str; 2] = ["off", LEASE_AUTO];
pub(super) const OVERFLOW: [&str; 2] = [Overflow::Refuse.name(), Overflow::Consume.name()];
/// The algorithms with a window; `concurrent` limits have a separate form.
pub(super) const ALGORITHMS: [&str; 5] = [
    Algorithm::SlidingLog.name(),
    Algorithm::SlidingWindow.name(),
    Algorithm::SlidingCounter.name(),
    Algorithm::FixedWindow.name(),
    Algorithm::TokenBucket.name(),
];

/// The largest number of nodes. Divided among more, a limit has little meaning.
pub(super) const MAX_NODES: u64 = 10_000;
/// The value of `nodes` that lets the store count them.
pub(super) const AUTO: &str = "auto";
/// The largest number of keys: four times as many as fit in the largest available machines.
pub(super) const MAX_KEYS: u64 = 1 << 36;

pub(super) const TOP: &[Field] = &[
    field(
        "store",
        FieldType::Text,
        "Where counts are kept: memory, or redis://, rediss://, redis+unix://, redis-sentinel:// or redis-cluster://",
    ),
    field(
        "store_timeout",
        FieldType::Duration,
        "How long the store may take before on_store_failure applies, 1ms to 60s; default: 25ms",
    ),
    field("key_prefix", FieldType::Text, "The prefix of all keys in a shared store; default: tg"),
    field(
        "nodes",
        FieldType::IntegerOr(1, MAX_NODES, AUTO),
        "How many servers share the limits, for on_store_failure: local; auto: as many as are alive, counted in the shared store; default: 1",
    ),
    field(
        "headers",
        FieldType::WordList(&FORMS),
        "The RateLimit header fields of responses; default: draft-10",
    ),
    field(
        "trusted_proxies",
        FieldType::Texts,
        "Addresses and networks whose X-Forwarded-For or Forwarded is trusted; default: none",
    ),
    field(
        "forwarded_header",
        FieldType::Words(&FORWARDED_HEADERS),
        "The header that trusted proxies set; default: either",
    ),
    field(
        "ipv6_prefix",
        FieldType::Integer(1, 128),
        "The number of bits of an IPv6 address that identify a client; default: 64",
    ),
    field(
        "path_variants",
        FieldType::Words(&PATH_VARIANTS),
        "Whether path parameters (/login;x=1) and backslashes are resolved; default: merge",
    ),
    field(
        "max_keys",
        FieldType::Integer(1, MAX_KEYS),
        "The maximum number of keys in memory, counted per key and limit; default: 1000000",
    ),
    field(
        "max_log_entries",
        FieldType::Integer(1, MAX_KEYS),
        "The maximum number of log entries and permits in memory; default: 16000000",
    ),
    field(
        "max_ids",
        FieldType::Integer(0, MAX_KEYS),
        "The maximum number of idempotency ids in memory; default: 100000",
    ),
    field(
        "when_full",
        FieldType::Words(&WHEN_FULL),
        "What happens to new keys when the store is full; default: overflow, one shared key",
    ),
    field(
        "log_keys",
        FieldType::Words(&LOG_KEYS),
        "How logs, events and rankings show keys: masked (values of headers, cookies and queries), full or off; default: masked",
    ),
    field(
        "mask_secret",
        FieldType::Text,
        "A secret of at least 16 bytes that all nodes share, so that they mask a key alike; default: random",
    ),
    field("http", FieldType::Text, "Where /v1 listens, or off"),
    field("grpc", FieldType::Text, "Where Envoy's rate limit service listens, or off"),
    field(
        "grpc_max_connection_age",
        FieldType::Duration,
        "How long a connection to grpc lasts, about, 1s to 365d; default: 30m",
    ),
    field("resp", FieldType::Text, "Where the Redis protocol listens, or off"),
    field("admin", FieldType::Text, "Where health, metrics and administration listen, or off"),
    field("tls", FieldType::Object(TLS), "Certificates, per front"),
    required(
        "policies",
        FieldType::Objects(POLICY, MAX_POLICIES),
        "Which requests are limited, and how; every policy that matches applies",
    ),
];

pub(super) const TLS: &[Field] = &[
    field("http", FieldType::Object(TLS_FILES), "Certificates of /v1"),
    field("grpc", FieldType::Object(TLS_FILES), "Certificates of Envoy's rate limit service"),
    field("resp", FieldType::Object(TLS_FILES), "Certificates of the Redis protocol"),
    field(
        "admin",
        FieldType::Object(TLS_FILES),
        "Certificates of health, metrics and administration",
    ),
];

pub(super) const TLS_FILES: &[Field] = &[
    required("cert", FieldType::Text, "The file with the certificate chain, PEM"),
    required("key", FieldType::Text, "The file with its private key, PEM"),
    field(
        "client_ca",
        FieldType::Text,
        "The file with the certificate authorities of clients, PEM; if it is set, clients need a certificate",
    ),
];

pub(super) const POLICY: &[Field] = &[
    required("name", FieldType::Text, "1 to 64 letters, digits, dots, underscores and dashes"),
    field(
        "match",
        FieldType::Conditions,
        "The requests that it applies to: all conditions must hold; default: every request",
    ),
    required(
        "key",
        FieldType::Template,
        "The key that is counted, such as {client_ip} or {header:x-api-key | client_ip}; all for one shared count",
    ),
    required(
        "limits",
        FieldType::LimitsOrNone,
        "Limits such as 5 per 1m sliding-log, all of which must admit a request; or unlimited",
    ),
    field(
        "mode",
        FieldType::Words(&MODES),
        "enforce, observe (decide, count, log, never deny) or off; default: enforce",
    ),
    field(
        "on_store_failure",
        FieldType::Words(&ON_STORE_FAILURE),
        "What happens when the store fails; default: local",
    ),
    field(
        "deny_cache",
        FieldType::Boolean,
        "Whether denials of a shared store are remembered, for up to a second; default: true",
    ),
    field(
        "lease",
        FieldType::Words(&LEASE),
        "Whether this node takes units of hot keys from a shared store in advance: auto or off; default: off",
    ),
    field(
        "quota",
        FieldType::Boolean,
        "Whether one of several quotas is enough: those that are used up are skipped while another has units left",
    ),
    field(
        "cost",
        FieldType::Cost,
        "Units of a request, or the request field that holds them; default: 1",
    ),
    field(
        "overflow",
        FieldType::Words(&OVERFLOW),
        "What a denied cost above 1 charges: nothing (refuse) or what is left (consume); default: refuse, for Envoy consume",
    ),
    field(
        "exempt",
        FieldType::Conditions,
        "Requests that are not limited: those for which any of these holds",
    ),
    field(
        "replaces",
        FieldType::Texts,
        "Policies that do not apply to a request that this one matches, in any of its descriptors",
    ),
    field(
        "overrides",
        FieldType::Objects(OVERRIDE, MAX_OVERRIDES),
        "The first override whose conditions hold replaces the fields that it has",
    ),
];

pub(super) const OVERRIDE: &[Field] = &[
    required("when", FieldType::Conditions, "The requests it applies to: all conditions must hold"),
    field("limits", FieldType::Limits, "Limits in place of the policy's"),
    field("mode", FieldType::Words(&MODES), "A mode in place of the policy's"),
    field(
        "on_store_failure",
        FieldType::Words(&ON_STORE_FAILURE),
        "What happens when the store fails, in place of the policy's",
    ),
    field("cost", FieldType::Cost, "A cost in place of the policy's"),
    field(
        "overflow",
        FieldType::Words(&OVERFLOW),
        "What a denied cost above 1 charges, in place of the policy's",
    ),
];

pub(super) const RATE: &[Field] = &[
    required("limit", FieldType::Integer(0, bounds::MAX_COUNT), "Units per window"),
    required("window", FieldType::Duration, "The window, such as 1m"),
    field("algorithm", FieldType::Words(&ALGORITHMS), "The algorithm; default: sliding-window"),
    field(
        "burst",
        FieldType::Integer(1, bounds::MAX_COUNT),
        "The capacity of a token-bucket; default: the limit",
    ),
];

pub(super) const CONCURRENT: &[Field] = &[
    required(
        "concurrent",
        FieldType::Integer(0, bounds::MAX_COUNT),
        "The maximum number of permits at the same time",
    ),
    field(
        "lease",
        FieldType::Duration,
        "How long a permit is held without a renewal; default: 60s",
    ),
];

/// Conditions without a name. `header:x`, `query:x`, `cookie:x` and `descriptor:x` have one.
pub(super) const CONDITIONS: &[Field] = &[
    field("client_ip", FieldType::Texts, "Addresses and networks"),
    field("method", FieldType::Texts, "Methods"),
    field("methods", FieldType::Texts, "The same as method"),
    field("path", FieldType::Texts, "Globs over the normalised path"),
    field("host", FieldType::Texts, "Globs over the host, without port"),
    field("headers", FieldType::Conditions, "Header names and the values they must have"),
    field("domain", FieldType::Texts, "Domains that descriptors belong to"),
    field(
        "descriptors",
        FieldType::Descriptors,
        "Descriptor names and the values they must have, or a list of all entries in order",
    ),
];

const _: () = assert!(MAX_LIMITS == 16);

/// Returns a JSON Schema (2020-12) of the config.
///
/// It describes the fields, their types and their allowed words. Rules that a schema cannot
/// express, such as whether an override can ever apply, are checked by
/// [`Config::parse`](super::Config::parse).
pub fn schema() -> Value {
    let mut top = object_schema(TOP);
    let head = [
        ("$schema", json!("https://json-schema.org/draft/2020-12/schema")),
        ("title", json!("tidegate config")),
        ("$defs", definitions()),
    ];
    if let Some(top) = top.as_object_mut() {
        top.extend(head.map(|(name, value)| (name.to_owned(), value)));
    }
    top
}

/// Returns the definitions that are used in several places.
fn definitions() -> Value {
    let named = "^(header|query|cookie|descriptor):.+$";
    let mut conditions = object_schema(CONDITIONS);
    conditions["patternProperties"] = json!({ named: texts_schema() });
    conditions["properties"]["headers"] = json!({ "type": "object", "additionalProperties": texts_schema(), "description": "Header names and the values they must have" });
    let words = ALGORITHMS.join("|");
    let units = "ms|s|m|h|d|w|milliseconds?|sec(ond)?s?|min(ute)?s?|h(ou)?rs?|days?|w(ee)?ks?";
    let (number, time) = ("[0-9]+[kM]?", format!(r"([0-9]+\s*)?({units})"));
    let count = format!(r"{number}(\s+requests?)?");
    let per = r"(\s+per\s+|\s*/\s*)";
    let rate = format!(r"^\s*{count}{per}{time}(\s+({words}|burst\s+{number}))*\s*$");
    let held = format!(r"^\s*{count}\s+concurrent(\s+lease\s+{time})?\s*$");
    json!({
        "conditions": conditions,
        "limit": { "anyOf": [
            { "type": "string", "pattern": rate, "examples": ["10 per 1s", "5 per 1m sliding-log", "600 per 1m token-bucket burst 50"] },
            { "type": "string", "pattern": held, "examples": ["10 concurrent", "10 concurrent lease 5m"] },
            object_schema(RATE),
            object_schema(CONCURRENT),
        ] },
    })
}

fn object_schema(fields: &[Field]) -> Value {
    let properties: Map<String, Value> =
        fields.iter().map(|field| (field.name.to_owned(), property_schema(field))).collect();
    let required: Vec<&str> =
        fields.iter().filter(|field| field.is_required).map(|field| field.name).collect();
    let mut object =
        json!({ "type": "object", "additionalProperties": false, "properties": properties });
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    object
}

fn property_schema(field: &Field) -> Value {
    let mut value = match (&field.field_type, field.name) {
        (FieldType::Text, "name") => {
            json!({ "type": "string", "pattern": format!("^[A-Za-z0-9._-]{{1,{MAX_NAME_BYTES}}}$") })
        }
        (field_type, _) => type_schema(field_type),
    };
    value["description"] = json!(field.about);
    value
}

fn type_schema(field_type: &FieldType) -> Value {
    match field_type {
        FieldType::Text => json!({ "type": "string" }),
        FieldType::Template => {
            json!({ "type": "string", "pattern": format!(r"^{SHARED_KEY}$|\{{[^{{}}]+\}}") })
        }
        FieldType::Words(words) => json!({ "enum": words }),
        FieldType::WordList(words) => {
            json!({ "anyOf": [{ "enum": words }, { "type": "array", "items": { "enum": words }, "minItems": 1 }] })
        }
        FieldType::Integer(least, most) => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        FieldType::IntegerOr(least, most, word) => {
            json!({ "anyOf": [type_schema(&FieldType::Integer(*least, *most)), { "enum": [word] }] })
        }
        FieldType::Boolean => json!({ "type": "boolean" }),
        FieldType::Duration => json!({ "type": "string", "pattern": "^[0-9]+(ms|s|m|h|d|w)$" }),
        FieldType::Texts => texts_schema(),
        FieldType::Object(fields) => object_schema(fields),
        FieldType::Objects(fields, most) => {
            json!({ "type": "array", "items": object_schema(fields), "minItems": 1, "maxItems": most })
        }
        FieldType::Limits => json!({ "anyOf": limits_schema() }),
        FieldType::LimitsOrNone => {
            let [one, several] = limits_schema();
            json!({ "anyOf": [{ "enum": [UNLIMITED] }, one, several] })
        }
        FieldType::Descriptors => {
            let named = json!({ "type": "object", "additionalProperties": texts_schema() });
            let entry = json!({ "type": "object", "additionalProperties": texts_schema(), "minProperties": 1, "maxProperties": 1 });
            let entry = json!({ "anyOf": [{ "type": ["string", "number", "boolean"] }, entry] });
            json!({ "anyOf": [named, { "type": "array", "items": entry, "minItems": 1, "maxItems": MAX_ENTRIES }] })
        }
        FieldType::Cost => {
            json!({ "anyOf": [{ "type": "integer", "minimum": 0 }, { "type": "string", "pattern": r"^\{(header|query|cookie|descriptor):.+\}$" }] })
        }
        FieldType::Conditions => json!({ "$ref": "#/$defs/conditions" }),
    }
}

/// Returns the schemas of one limit and of a list of them.
fn limits_schema() -> [Value; 2] {
    let limit = json!({ "$ref": "#/$defs/limit" });
    let several = json!({ "type": "array", "items": limit, "minItems": 1, "maxItems": MAX_LIMITS });
    [limit, several]
}

/// Returns the schema of one value or a list of them. Numbers and booleans are read as text.
fn texts_schema() -> Value {
    let scalar = json!({ "type": ["string", "number", "boolean"] });
    json!({ "anyOf": [scalar, { "type": "array", "items": scalar, "maxItems": MAX_EXEMPT_VALUES }] })
}
