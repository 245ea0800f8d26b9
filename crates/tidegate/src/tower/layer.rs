//! The layer.

use std::fmt;
use std::marker::PhantomData;
#[cfg(feature = "config")]
use std::path::Path;
use std::sync::Arc;

use tower_layer::Layer;

#[cfg(feature = "axum")]
use super::body::Axum;
use super::body::Wrapped;
use super::builder::LayerBuilder;
use super::compiled_rule::CompiledRule;
use super::decide::Core;
use super::error::KeyError;
use super::rule::Rule;
use super::service::RateLimit;
#[cfg(feature = "config")]
use crate::config::{Config, ConfigErrors};
#[cfg(feature = "unstable")]
use crate::gate::Gate;
use crate::gate::{CodeKey, CodePolicy, FoundKey, GateError};
#[cfg(feature = "unstable")]
use crate::stats::Stats;
use crate::stats::{PrometheusText, write_memory_metrics};
use crate::{Decision, Limit};

/// Limits the requests to any HTTP service. Clones, and the services they wrap, share their
/// counts.
///
/// ```
/// use tidegate::tower::RateLimitLayer;
///
/// // 100 requests per minute for each client address.
/// let layer = RateLimitLayer::new("100 per 1m".parse()?);
/// # let _: RateLimitLayer = layer.clone();
/// # Ok::<(), tidegate::LimitError>(())
/// ```
pub struct RateLimitLayer<K = Wrapped> {
    pub(super) core: Arc<Core>,
    bodies: PhantomData<fn() -> K>,
}

impl RateLimitLayer {
    /// Limits each client address. Counts are kept in memory, for at most a million keys.
    ///
    /// # Panics
    /// If 146 MB of address space are unavailable; [`RateLimitLayer::builder`] returns an error
    /// instead.
    pub fn new(limit: Limit) -> Self {
        let builder = Self::builder().rule(Rule::new("default", limit));
        builder.build().expect("one limit stands with itself, and a million keys reserve 146 MB")
    }

    pub(super) fn of(core: Core) -> Self {
        RateLimitLayer { core: Arc::new(core), bodies: PhantomData }
    }

    /// Returns a builder for a layer with several rules or other settings.
    pub fn builder() -> LayerBuilder {
        LayerBuilder::default()
    }

    /// Returns a builder for a layer with the policies of a gate (feature `unstable`). Rules may be
    /// added, and the gate can be reloaded while requests are served.
    ///
    /// ```
    /// # #[cfg(feature = "config")] {
    /// use std::sync::Arc;
    /// use tidegate::Limiter;
    /// use tidegate::unstable::config::Config;
    /// use tidegate::unstable::gate::Gate;
    /// use tidegate::unstable::stats::Stats;
    /// use tidegate::tower::RateLimitLayer;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let text = "policies:\n  - name: api\n    key: \"{client_ip}\"\n    limits: [\"10 per 1s\"]";
    /// // In a program: `Config::load("tidegate.yaml".as_ref())?`.
    /// let config = Config::parse(text, "tidegate.yaml")?;
    /// let gate = Gate::new(Limiter::new(), config.policies, Arc::new(Stats::default()));
    /// let layer = RateLimitLayer::from_gate(Arc::new(gate)).headers(config.headers).build()?;
    /// # Ok(()) }
    /// # main().unwrap() }
    /// ```
    #[cfg(feature = "unstable")]
    pub fn from_gate(gate: Arc<Gate>) -> LayerBuilder {
        LayerBuilder::from_gate(gate)
    }

    /// Converts the layer for services whose bodies are axum's, such as every `Router`. Bodies stay
    /// as they are, so that axum does not box each of them once more.
    #[cfg(feature = "axum")]
    pub fn for_axum(self) -> RateLimitLayer<Axum> {
        RateLimitLayer { core: self.core, bodies: PhantomData }
    }
}

impl<K> RateLimitLayer<K> {
    /// Returns the gate that decides (feature `unstable`).
    #[cfg(feature = "unstable")]
    pub fn gate(&self) -> &Arc<Gate> {
        &self.core.gate
    }

    /// Returns what was counted (feature `unstable`).
    #[cfg(feature = "unstable")]
    pub fn stats(&self) -> &Arc<Stats> {
        self.core.gate.stats()
    }

    /// Returns metrics for Prometheus as text (version 0.0.4 of the format): requests by policy and
    /// outcome, decisions by limit, the time to decide, the time that the service behind the layer
    /// took, and the keys in memory. The names are those of the server's metrics. Call it for each
    /// scrape, on a route without the layer.
    ///
    /// ```
    /// use tidegate::tower::RateLimitLayer;
    ///
    /// let layer = RateLimitLayer::new("100 per 1m".parse()?);
    /// let requests = r#"tidegate_requests_total{policy="default",outcome="denied"} 0"#;
    /// assert!(layer.metrics().contains(requests));
    /// # Ok::<(), tidegate::LimitError>(())
    /// ```
    pub fn metrics(&self) -> String {
        let gate = &self.core.gate;
        let mut page = PrometheusText::default();
        gate.stats().write_metrics(&mut page, gate.active_policies().policies());
        write_memory_metrics(&mut page, &gate.limiter().stats());
        page.finish()
    }

    /// Replaces the policies of [`LayerBuilder::config_file`] with those of a file (feature
    /// `config`), from the next request on. Counts, rules and the forms of header fields are kept.
    /// An invalid file changes nothing.
    ///
    /// # Errors
    /// All errors in the file, or that the layer was built without one.
    #[cfg(feature = "config")]
    pub fn reload_config_file(&self, path: impl AsRef<Path>) -> Result<(), ConfigErrors> {
        let path = path.as_ref();
        let policies = Config::load(path)?.policies;
        if self.core.fixed.is_some() {
            return Err(ConfigErrors::whole(
                &path.display().to_string(),
                "this layer has no policies of a config file to replace",
                "build it with `config_file`",
            ));
        }
        self.core.gate.reload(policies);
        Ok(())
    }

    /// Returns each limit of a rule, or of one of its plans (`rule.plan`), with what a key has left
    /// under it, without charging.
    ///
    /// The key may be the plain value that a client sends, or the masked form that statistics show.
    /// For a template with several parts, it has the length before each part: `5#alice:3#eu1` for
    /// `{header:user}:{header:region}`.
    ///
    /// # Errors
    /// See [`KeyError`].
    pub async fn peek(&self, rule: &str, key: &str) -> Result<Vec<(Limit, Decision)>, KeyError> {
        let policy = self.policy(rule)?;
        let found = self.find(policy, key).await?;
        let peeked = policy.peek(&self.core.gate, CodeKey::Key(&found.key)).await;
        let verdict = peeked?;
        let decisions = verdict
            .results
            .iter()
            .map(|result| (*result.limit, Decision { decided: result.decided, ..result.decision }));
        Ok(decisions.collect())
    }

    /// Forgets what a key has used under a rule and all of its plans, which share their counts.
    /// Returns whether anything was counted. Counts under a window or an algorithm that only
    /// [`Rule::limits_of`] returns are not found. The key has the forms of
    /// [`peek`](Self::peek).
    ///
    /// # Errors
    /// See [`KeyError`].
    pub async fn reset(&self, rule: &str, key: &str) -> Result<bool, KeyError> {
        let found = self.find(self.policy(rule)?, key).await?;
        let is_named = |code_policy: &CodePolicy| code_policy.policy().name() == rule;
        let rules = self.core.rules.iter().filter(|rule| rule.policies().any(is_named));
        let mut any = false;
        for code_policy in rules.flat_map(CompiledRule::policies) {
            let reset = code_policy.reset(&self.core.gate, CodeKey::Key(&found.key)).await;
            any |= reset?;
        }
        Ok(any)
    }

    async fn find(&self, code_policy: &CodePolicy, key: &str) -> Result<FoundKey, KeyError> {
        let gate = &self.core.gate;
        let active = Arc::clone(&gate.active_policies());
        let found = gate.find_key(&active, code_policy.policy(), key.as_bytes()).await?;
        let is_own = |one: &CodePolicy| std::ptr::eq(one, code_policy);
        let mut rules = self.core.rules.iter().filter(|rule| rule.policies().any(is_own));
        match rules.find(|rule| !rule.may_have_key(&active, &found.key)) {
            Some(rule) => Err(KeyError::not_a_key(rule.name(), key)),
            None => Ok(found),
        }
    }

    fn policy(&self, name: &str) -> Result<&CodePolicy, KeyError> {
        let found = self.core.policies().find(|code_policy| code_policy.policy().name() == name);
        found.ok_or_else(|| GateError::unknown_policy(name).into())
    }
}

impl<K> Clone for RateLimitLayer<K> {
    fn clone(&self) -> Self {
        RateLimitLayer { core: Arc::clone(&self.core), bodies: PhantomData }
    }
}

impl<S, K> Layer<S> for RateLimitLayer<K> {
    type Service = RateLimit<S, K>;

    fn layer(&self, inner: S) -> RateLimit<S, K> {
        RateLimit::new(inner, Arc::clone(&self.core))
    }
}

impl<K> fmt::Debug for RateLimitLayer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules: Vec<&str> =
            self.core.policies().map(|code_policy| code_policy.policy().name()).collect();
        f.debug_struct("RateLimitLayer").field("rules", &rules).finish_non_exhaustive()
    }
}
