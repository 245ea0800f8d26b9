//! Checks: the requests to the server.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

/// A check. The server rejects combinations of fields that are not allowed.
///
/// ```
/// use tidegate_client::server::{Attributes, Check};
///
/// // A key under a policy.
/// let check = Check::policy("login", "alice");
/// // A request, for every policy that matches it.
/// let check = Check::request(Attributes::new("POST", "/login").client_ip("192.0.2.1"));
/// // A key under limits that the caller gives.
/// let check = Check::limits("alice", ["10 per 1s", "600 per 1m"]).cost(2);
/// ```
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Check {
    /// The policy's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The key that is counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The attributes of a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Attributes>,
    /// Limits given by the caller, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Vec<String>>,
    /// The units to charge: 0 peeks, a negative number refunds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<i64>,
    /// The idempotency id: a check with the same id is charged once within the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The longest time, in milliseconds, to wait instead of being denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_wait_ms: Option<u64>,
    /// Whether to charge even if the limit is exceeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
}

impl Check {
    /// Checks a key under a policy.
    pub fn policy(policy: impl Into<String>, key: impl Into<String>) -> Self {
        Check { policy: Some(policy.into()), key: Some(key.into()), ..Check::default() }
    }

    /// Checks a request under every policy that matches it.
    pub fn request(attributes: Attributes) -> Self {
        Check { attributes: Some(attributes), ..Check::default() }
    }

    /// Checks a key under limits given here, counted separately from all policies.
    pub fn limits<T: Into<String>>(
        key: impl Into<String>,
        limits: impl IntoIterator<Item = T>,
    ) -> Self {
        let limits = limits.into_iter().map(Into::into).collect();
        Check { key: Some(key.into()), limits: Some(limits), ..Check::default() }
    }

    /// Sets the units to charge: 0 peeks, a negative number refunds. Default: 1.
    #[must_use]
    pub fn cost(mut self, cost: i64) -> Self {
        self.cost = Some(cost);
        self
    }

    /// Sets an idempotency id: the check is charged once within the window, however often it is
    /// sent.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Waits at the server for up to `wait` instead of being denied.
    #[must_use]
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait_ms = Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Charges even if the limit is exceeded. Such a check is never denied.
    #[must_use]
    pub fn force(mut self) -> Self {
        self.force = Some(true);
        self
    }

    /// Returns how long the server may wait. It rejects longer waits.
    pub(super) fn wait(&self) -> Duration {
        Duration::from_millis(self.max_wait_ms.unwrap_or(0).min(60_000))
    }
}

/// The attributes of a request, by which the server selects policies and makes keys.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Attributes {
    /// The method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The path, with or without a query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The client's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ip: Option<String>,
    /// Header fields.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Application-defined attributes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub descriptors: BTreeMap<String, String>,
}

impl Attributes {
    /// Creates attributes with a method and a path.
    pub fn new(method: impl Into<String>, path: impl Into<String>) -> Self {
        Attributes { method: Some(method.into()), path: Some(path.into()), ..Attributes::default() }
    }

    /// Sets the host.
    #[must_use]
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// Sets the client's address.
    #[must_use]
    pub fn client_ip(mut self, address: impl Into<String>) -> Self {
        self.client_ip = Some(address.into());
        self
    }

    /// Adds a header field.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Adds an application-defined attribute.
    #[must_use]
    pub fn descriptor(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.descriptors.insert(name.into(), value.into());
        self
    }
}
