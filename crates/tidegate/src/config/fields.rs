//! The table of all fields of the config: name, type and description.
//!
//! Three users share it, so they cannot disagree: the reader finds unknown fields and suggestions
//! with it, the JSON Schema is generated from it, and a test compares docs/config.md with it.

use tidegate_core::{Algorithm, bounds};

use crate::Overflow;
use crate::headers::Form;
use crate::identity::Source;
use crate::policy::{MAX_LIMITS, MAX_OVERRIDES, MAX_POLICIES, PathVariants};
use crate::stats::LogKeys;

/// A field of a mapping.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) is_required: bool,
    pub(super) about: &'static str,
}

/// The type of a field.
pub(super) enum Shape {
    Text,
    /// A key template.
    Template,
    /// One of these words.
    Words(&'static [&'static str]),
    /// One of these words, or a list of them.
    WordList(&'static [&'static str]),
    Integer(u64, u64),
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

const fn field(name: &'static str, shape: Shape, about: &'static str) -> Field {
    Field { name, shape, is_required: false, about }
}

const fn required(name: &'static str, shape: Shape, about: &'static str) -> Field {
    Field { name, shape, is_required: true, about }
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
/// The largest number of keys: four times as many as fit in the largest available machines.
pub(super) const MAX_KEYS: u64 = 1 << 36;

pub(super) const TOP: &[Field] = &[
    field(
        "store",
        Shape::Text,
        "Where counts are kept: memory, or redis://, rediss://, redis+unix://, redis-sentinel:// or redis-cluster://",
    ),
    field(
        "store_timeout",
        Shape::Duration,
        "How long the store may take before on_store_failure answers, 1ms to 60s; default: 25ms",
    ),
    field("key_prefix", Shape::Text, "What every key begins with in a shared store; default: tg"),
    field(
        "nodes",
        Shape::Integer(1, MAX_NODES),
        "How many servers share the limits, for on_store_failure: local; default: 1",
    ),
    field(
        "headers",
        Shape::WordList(&FORMS),
        "Which RateLimit headers answers carry; default: draft-10",
    ),
    field(
        "trusted_proxies",
        Shape::Texts,
        "Addresses and networks whose X-Forwarded-For or Forwarded is believed; default: none",
    ),
    field(
        "forwarded_header",
        Shape::Words(&FORWARDED_HEADERS),
        "Which header trusted proxies write; default: either",
    ),
    field(
        "ipv6_prefix",
        Shape::Integer(1, 128),
        "How many bits of an IPv6 address make a client; default: 64",
    ),
    field(
        "path_variants",
        Shape::Words(&PATH_VARIANTS),
        "Whether path parameters (/login;x=1) and backslashes are resolved; default: merge",
    ),
    field(
        "max_keys",
        Shape::Integer(1, MAX_KEYS),
        "Most keys held in memory, counted per key and limit; default: 1000000",
    ),
    field(
        "max_log_entries",
        Shape::Integer(1, MAX_KEYS),
        "Most log entries and permits held in memory; default: 16000000",
    ),
    field(
        "max_ids",
        Shape::Integer(0, MAX_KEYS),
        "Most idempotency ids remembered; default: 100000",
    ),
    field(
        "when_full",
        Shape::Words(&WHEN_FULL),
        "What happens to keys there is no room for; default: overflow, one shared key",
    ),
    field(
        "log_keys",
        Shape::Words(&LOG_KEYS),
        "How logs, events and rankings show keys: masked (values of headers, cookies and queries), full or off; default: masked",
    ),
    field(
        "mask_secret",
        Shape::Text,
        "A secret of at least 16 bytes that all nodes share, so that they mask a key alike; default: random",
    ),
    field("http", Shape::Text, "Where /v1 listens, or off"),
    field("grpc", Shape::Text, "Where Envoy's rate limit service listens, or off"),
    field(
        "grpc_max_connection_age",
        Shape::Duration,
        "How long a connection to grpc lasts, about, 1s to 365d; default: 30m",
    ),
    field("resp", Shape::Text, "Where the Redis protocol listens, or off"),
    field("admin", Shape::Text, "Where health, metrics and administration listen, or off"),
    field("tls", Shape::Object(TLS), "Certificates, per front"),
    required(
        "policies",
        Shape::Objects(POLICY, MAX_POLICIES),
        "Which requests are limited, and how; every one that matches applies",
    ),
];

pub(super) const TLS: &[Field] = &[
    field("http", Shape::Object(TLS_FILES), "Certificates of /v1"),
    field("grpc", Shape::Object(TLS_FILES), "Certificates of Envoy's rate limit service"),
    field("resp", Shape::Object(TLS_FILES), "Certificates of the Redis protocol"),
    field("admin", Shape::Object(TLS_FILES), "Certificates of health, metrics and administration"),
];

pub(super) const TLS_FILES: &[Field] = &[
    required("cert", Shape::Text, "The file with the certificate chain, PEM"),
    required("key", Shape::Text, "The file with its private key, PEM"),
    field(
        "client_ca",
        Shape::Text,
        "The file with who signs clients' certificates, PEM; clients need one if it is given",
    ),
];

pub(super) const POLICY: &[Field] = &[
    required("name", Shape::Text, "1 to 64 letters, digits, dots, underscores and dashes"),
    field("match", Shape::Conditions, "Which requests: all of these hold; default: every request"),
    required(
        "key",
        Shape::Template,
        "Who is counted, such as {client_ip} or {header:x-api-key | client_ip}; all for one shared count",
    ),
    required(
        "limits",
        Shape::LimitsOrNone,
        "So many per window, such as 5 per 1m sliding-log; all must admit; or unlimited",
    ),
    field(
        "mode",
        Shape::Words(&MODES),
        "enforce, observe (decide, count, log, never deny) or off; default: enforce",
    ),
    field(
        "on_store_failure",
        Shape::Words(&ON_STORE_FAILURE),
        "What happens when the store fails; default: local",
    ),
    field(
        "deny_cache",
        Shape::Boolean,
        "Whether a denial by a shared store is answered from memory until it ends; default: true",
    ),
    field(
        "quota",
        Shape::Boolean,
        "Whether one of several quotas is enough: those used up are passed over while another has room",
    ),
    field(
        "cost",
        Shape::Cost,
        "Units of a request, or the request field that holds them; default: 1",
    ),
    field(
        "overflow",
        Shape::Words(&OVERFLOW),
        "What a denied cost above 1 charges: nothing (refuse) or what is left (consume); default: refuse, for Envoy consume",
    ),
    field(
        "exempt",
        Shape::Conditions,
        "Requests that are not limited: those for which any of these holds",
    ),
    field(
        "replaces",
        Shape::Texts,
        "Policies that are left out where a request meets this one too, over all its descriptors",
    ),
    field(
        "overrides",
        Shape::Objects(OVERRIDE, MAX_OVERRIDES),
        "The first whose when holds replaces the fields it names",
    ),
];

pub(super) const OVERRIDE: &[Field] = &[
    required("when", Shape::Conditions, "For which requests it holds; all conditions must"),
    field("limits", Shape::Limits, "Limits in place of the policy's"),
    field("mode", Shape::Words(&MODES), "A mode in place of the policy's"),
    field(
        "on_store_failure",
        Shape::Words(&ON_STORE_FAILURE),
        "What happens when the store fails, in place of the policy's",
    ),
    field("cost", Shape::Cost, "A cost in place of the policy's"),
    field(
        "overflow",
        Shape::Words(&OVERFLOW),
        "What a denied cost above 1 charges, in place of the policy's",
    ),
];

pub(super) const RATE: &[Field] = &[
    required("limit", Shape::Integer(0, bounds::MAX_COUNT), "Units per window"),
    required("window", Shape::Duration, "The window, such as 1m"),
    field("algorithm", Shape::Words(&ALGORITHMS), "How it counts; default: sliding-window"),
    field(
        "burst",
        Shape::Integer(1, bounds::MAX_COUNT),
        "What a token-bucket holds; default: the limit",
    ),
];

pub(super) const CONCURRENT: &[Field] = &[
    required("concurrent", Shape::Integer(0, bounds::MAX_COUNT), "How many at once"),
    field("lease", Shape::Duration, "When a permit that nobody returns is forgotten; default: 60s"),
];

/// Conditions without a name. `header:x`, `query:x`, `cookie:x` and `descriptor:x` have one.
pub(super) const CONDITIONS: &[Field] = &[
    field("client_ip", Shape::Texts, "Addresses and networks"),
    field("method", Shape::Texts, "Methods"),
    field("methods", Shape::Texts, "The same as method"),
    field("path", Shape::Texts, "Globs over the normalised path"),
    field("host", Shape::Texts, "Globs over the host, without port"),
    field("headers", Shape::Conditions, "Header names and the values they must have"),
    field("domain", Shape::Texts, "Domains that descriptors belong to"),
    field(
        "descriptors",
        Shape::Descriptors,
        "Descriptor names and the values they must have, or a list of exactly the entries there are",
    ),
];

const _: () = assert!(MAX_LIMITS == 16);
