//! `/admin/v1/policies`: the active policies, their fingerprint, and the remaining units of their
//! keys.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::Uri;
use percent_encoding::percent_decode_str;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tidegate::Overflow;
use tidegate::unstable::config::Config;
use tidegate::unstable::gate::{ActivePolicies, FoundKey, GateError, LimitResult};
use tidegate::unstable::policy::{Policy, SelectError, Variant};

use super::AdminState;
use super::json;
use crate::error::{ErrorKind, RequestError};
use crate::logs::some;

/// Lists the active policies.
pub async fn list(State(state): State<AdminState>) -> Response {
    #[derive(Serialize)]
    struct Page<'a> {
        fingerprint: String,
        policies: Vec<PolicyView<'a>>,
    }
    let active = state.gate.active_policies();
    let fingerprint = shown_fingerprint(state.server_state.fingerprint());
    json(&Page { fingerprint, policies: active.policies().iter().map(PolicyView::new).collect() })
}

/// A short digest of everything that decides which requests are limited and how: the policies in
/// order, and the settings by which clients and paths are read. Nodes of one version with an equal
/// config have an equal fingerprint.
pub fn fingerprint(config: &Config) -> u64 {
    let mut digest = Sha256::new();
    for policy in &config.policies {
        // Serializing to memory cannot fail, because no key of a map is anything but a string.
        let bytes = serde_json::to_vec(&PolicyView::new(policy)).unwrap_or_default();
        digest.update(bytes.len().to_le_bytes());
        digest.update(bytes);
    }
    digest.update(format!("{:?} {:?}", config.identity, config.path_variants));
    let digest = digest.finalize();
    digest.first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
}

/// A fingerprint as it is shown: 16 hexadecimal digits.
pub fn shown_fingerprint(fingerprint: u64) -> String {
    format!("{fingerprint:016x}")
}

#[derive(Serialize)]
struct PolicyView<'a> {
    name: &'a str,
    #[serde(rename = "match")]
    matching: Vec<String>,
    key: &'a str,
    limits: Vec<String>,
    mode: &'static str,
    on_store_failure: &'static str,
    deny_cache: bool,
    lease: &'static str,
    cost: String,
    /// Null if the default of the front applies.
    overflow: Option<&'static str>,
    exempt: Vec<String>,
    replaces: &'a [Box<str>],
    quota: bool,
    overrides: Vec<VariantView>,
}

#[derive(Serialize)]
struct VariantView {
    when: Vec<String>,
    limits: Vec<String>,
    mode: &'static str,
    on_store_failure: &'static str,
    cost: String,
    overflow: Option<&'static str>,
}

impl<'a> PolicyView<'a> {
    fn new(policy: &'a Policy) -> Self {
        PolicyView {
            name: policy.name(),
            matching: policy.matching().iter().map(ToString::to_string).collect(),
            key: policy.key_template().as_str(),
            limits: policy.limits().iter().map(ToString::to_string).collect(),
            mode: policy.mode().name(),
            on_store_failure: policy.on_store_failure().name(),
            deny_cache: policy.caches_denials(),
            lease: if policy.leases() { "auto" } else { "off" },
            cost: policy.cost().to_string(),
            overflow: policy.overflow().map(Overflow::name),
            exempt: policy.exempt().iter().map(ToString::to_string).collect(),
            replaces: policy.replaces(),
            quota: policy.is_quota(),
            // The first variant is the policy itself.
            overrides: policy.variants().iter().skip(1).map(VariantView::new).collect(),
        }
    }
}

impl VariantView {
    fn new(variant: &Variant) -> Self {
        VariantView {
            when: variant.when().iter().map(ToString::to_string).collect(),
            limits: variant.limits().iter().map(ToString::to_string).collect(),
            mode: variant.mode().name(),
            on_store_failure: variant.on_store_failure().name(),
            cost: variant.cost().to_string(),
            overflow: variant.overflow().map(Overflow::name),
        }
    }
}

/// The number of overrides that are shown for a key. A policy may have one for each of a thousand
/// tenants.
const MAX_OVERRIDES_SHOWN: usize = 20;

/// Returns what is left for a key, without charging it.
pub async fn peek(State(state): State<AdminState>, uri: Uri) -> Result<Response, RequestError> {
    #[derive(Serialize)]
    struct Page<'a> {
        policy: &'a str,
        /// The key that was found, in full; masked if the request named it by its masked form.
        key: String,
        /// Whether the key is tracked, or among the top keys and latest denials.
        seen: bool,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        also_seen: Vec<String>,
        mode: &'static str,
        allowed: bool,
        limits: Vec<LimitView>,
        /// The same under each override, because the key does not show which one applies.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        overrides: Vec<OverrideView>,
        /// The number of overrides that are left out.
        #[serde(skip_serializing_if = "Option::is_none")]
        overrides_left_out: Option<usize>,
    }
    #[derive(Serialize)]
    struct OverrideView {
        when: Vec<String>,
        mode: &'static str,
        allowed: bool,
        limits: Vec<LimitView>,
    }
    let PolicyKey { policy, key } = PolicyKey::from_uri(&uri)?;
    let active = Arc::clone(&state.gate.active_policies());
    let known = find(&active, &policy)?;
    let keys = state.gate.keys(&active, &policy)?;
    let found = keys.find_shown(&key).await?;
    let key = shown(&state, known, &found);
    let seen = keys.is_seen(&found.key).await?;
    let verdict = keys.peek(&found.key, 0).await?;
    let variants = known.variants().iter().enumerate().skip(1);
    let mut overrides = Vec::new();
    for (index, variant) in variants.take(MAX_OVERRIDES_SHOWN) {
        let verdict = keys.peek(&found.key, index).await?;
        overrides.push(OverrideView {
            when: variant.when().iter().map(ToString::to_string).collect(),
            mode: variant.mode().name(),
            allowed: verdict.allowed,
            limits: verdict.results.iter().map(LimitView::new).collect(),
        });
    }
    let left_out = known.variants().len() - 1 - overrides.len();
    Ok(json(&Page {
        policy: known.name(),
        key,
        seen,
        also_seen: found.also_seen.iter().map(ToString::to_string).collect(),
        mode: known.mode().name(),
        allowed: verdict.allowed,
        limits: verdict.results.iter().map(LimitView::new).collect(),
        overrides,
        overrides_left_out: Some(left_out).filter(|count| *count > 0),
    }))
}

#[derive(Serialize)]
struct LimitView {
    text: String,
    limit: u64,
    /// The most that can remain: the burst of a `token-bucket`, and the limit otherwise.
    capacity: u64,
    window_ms: u64,
    algorithm: &'static str,
    allowed: bool,
    remaining: u64,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
}

impl LimitView {
    fn new(result: &LimitResult<'_>) -> Self {
        LimitView {
            text: result.limit.to_string(),
            limit: result.limit.count(),
            capacity: result.limit.capacity(),
            window_ms: result.limit.window_us().div_ceil(1_000),
            algorithm: result.limit.algorithm().name(),
            allowed: result.decision.allowed,
            remaining: result.decision.remaining,
            retry_after_ms: result.decision.retry_after.as_millis(),
            reset_after_ms: result.decision.reset_after.as_millis(),
        }
    }
}

/// Resets the counts of a key.
pub async fn reset(State(state): State<AdminState>, uri: Uri) -> Result<Response, RequestError> {
    #[derive(Serialize)]
    struct Page<'a> {
        policy: &'a str,
        key: String,
        reset: bool,
    }
    let PolicyKey { policy, key } = PolicyKey::from_uri(&uri)?;
    let active = Arc::clone(&state.gate.active_policies());
    let known = find(&active, &policy)?;
    let keys = state.gate.keys(&active, &policy)?;
    let found = keys.find_shown(&key).await?;
    let reset = keys.reset(&found.key).await?;
    let logged = state.stats().show(known.key_template(), &found.key);
    tracing::info!(policy = known.name(), key = some(&logged), reset, "key reset");
    Ok(json(&Page { policy: known.name(), key: shown(&state, known, &found), reset }))
}

/// The policy and the key in a URL. They are parsed from the raw URI, because a key is arbitrary
/// bytes and need not be UTF-8. The key may be in `?key=` instead of the path: browsers normalize a
/// path that ends in `..`, even if it is percent-encoded.
struct PolicyKey {
    policy: String,
    key: Vec<u8>,
}

impl PolicyKey {
    fn from_uri(uri: &Uri) -> Result<Self, RequestError> {
        // The path segments: "", "admin", "v1", "policies", policy, "keys", key.
        let mut parts = uri.path().split('/').skip(4);
        let policy = percent_decode_str(parts.next().unwrap_or_default()).decode_utf8();
        let policy =
            policy.map_err(|_| unknown_policy("the name of the policy is not UTF-8"))?.into_owned();
        let pairs = uri.query().unwrap_or_default().split('&');
        let in_query = pairs.filter_map(|pair| pair.strip_prefix("key="));
        let mut keys = parts.nth(1).into_iter().chain(in_query);
        match (keys.next(), keys.next()) {
            (Some(""), None) => Err(RequestError::field("key", "it is empty")),
            (Some(key), None) => Ok(PolicyKey { policy, key: percent_decode_str(key).collect() }),
            (Some(_), Some(_)) => Err(RequestError::field("key", "it is given twice")),
            (None, _) => {
                let detail = "required: send `/keys/{key}` or `?key=`";
                Err(RequestError::field("key", detail))
            }
        }
    }
}

/// Returns the policy with this name, or a 404 error.
pub fn find<'a>(active: &'a ActivePolicies, policy: &str) -> Result<&'a Policy, RequestError> {
    active.policies().get_or_err(policy).map_err(|error| match error {
        SelectError::UnknownPolicy { near: Some(_), .. } => GateError::from(error).into(),
        error => unknown_policy(&error.to_string()),
    })
}

fn unknown_policy(problem: &str) -> RequestError {
    let detail = format!("{problem}: see /admin/v1/policies");
    RequestError::field("policy", detail).with_kind(ErrorKind::NotFound)
}

/// The key as the policy counts it, escaped, or its masked form if the request named it by that.
fn shown(state: &AdminState, policy: &Policy, found: &FoundKey) -> String {
    match found.masked {
        true => state.stats().show(policy.key_template(), &found.key).to_string(),
        false => found.key.to_string(),
    }
}
