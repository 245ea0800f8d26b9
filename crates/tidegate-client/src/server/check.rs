//! What is asked.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

/// One question. Which of its parts go together is for the server to say.
///
/// ```
/// use tidegate_client::server::{Attributes, Check};
///
/// // A key under a policy.
/// let check = Check::policy("login", "alice");
/// // A request, for every policy that matches it.
/// let check = Check::request(Attributes::new("POST", "/login").client_ip("192.0.2.1"));
/// // A key under limits of your own.
/// let check = Check::limits("alice", ["10 per 1s", "600 per 1m"]).cost(2);
/// ```
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Check {
    /// The policy's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Who is counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The facts of a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Attributes>,
    /// Limits of the caller's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Vec<String>>,
    /// Units asked for: 0 looks without charging, a negative number gives back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<i64>,
    /// Idempotency id: the same check under it is charged once within the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Wait for so many milliseconds instead of being denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_wait_ms: Option<u64>,
    /// Charge without asking.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
}

impl Check {
    /// A key under a policy.
    pub fn policy(policy: impl Into<String>, key: impl Into<String>) -> Self {
        Check { policy: Some(policy.into()), key: Some(key.into()), ..Check::default() }
    }

    /// A request, for every policy that matches it.
    pub fn request(attributes: Attributes) -> Self {
        Check { attributes: Some(attributes), ..Check::default() }
    }

    /// A key under limits of your own, counted apart from all policies.
    pub fn limits<T: Into<String>>(
        key: impl Into<String>,
        limits: impl IntoIterator<Item = T>,
    ) -> Self {
        let limits = limits.into_iter().map(Into::into).collect();
        Check { key: Some(key.into()), limits: Some(limits), ..Check::default() }
    }

    /// Asks for so many units: 0 looks without charging, a negative number gives back.
    #[must_use]
    pub fn cost(mut self, cost: i64) -> Self {
        self.cost = Some(cost);
        self
    }

    /// Is charged once within the window, however often it is asked.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Waits for up to so long instead of being denied.
    #[must_use]
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait_ms = Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Charges without asking, and is never denied.
    #[must_use]
    pub fn force(mut self) -> Self {
        self.force = Some(true);
        self
    }

    /// The longest time the server may take on purpose; it refuses to wait for more.
    pub(super) fn wait(&self) -> Duration {
        Duration::from_millis(self.max_wait_ms.unwrap_or(0).min(60_000))
    }
}

/// The facts of a request that policies are selected by.
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
    /// Facts of your own.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub descriptors: BTreeMap<String, String>,
}

impl Attributes {
    /// A request with this method and path.
    pub fn new(method: impl Into<String>, path: impl Into<String>) -> Self {
        Attributes { method: Some(method.into()), path: Some(path.into()), ..Attributes::default() }
    }

    /// To this host.
    #[must_use]
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// From this address.
    #[must_use]
    pub fn client_ip(mut self, address: impl Into<String>) -> Self {
        self.client_ip = Some(address.into());
        self
    }

    /// With this header field.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// With this fact of your own.
    #[must_use]
    pub fn descriptor(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.descriptors.insert(name.into(), value.into());
        self
    }
}
