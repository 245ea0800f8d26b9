//! The layer, and its builder.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;
#[cfg(feature = "config")]
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "axum")]
use axum::response::IntoResponse;
use http::Extensions;
#[cfg(not(feature = "axum"))]
use http::Response;
use tower_layer::Layer;

#[cfg(feature = "axum")]
use super::body::Axum;
use super::body::Wrapped;
use super::compiled_rule::CompiledRule;
use super::decide::{LayerState, PeerOf};
#[cfg(feature = "axum")]
use super::denial::read_body;
use super::denial::{OnDenied, Rejection};
use super::error::{KeyError, LayerError, LayerFault};
use super::request::Head;
use super::rule::Rule;
use super::service::RateLimit;
#[cfg(feature = "config")]
use crate::config::{Config, ConfigErrors};
use crate::gate::{CodeKey, CodePolicy, ErasedStore, FoundKey, Gate, GateError};
use crate::headers::Forms;
use crate::identity::Identity;
use crate::policy::{PathVariants, Policies, SelectError};
use crate::stats::{PrometheusText, Stats, write_memory_metrics};
use crate::{Decision, Limit, Limiter, MAX_CHECKS, Store};

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
    pub(super) layer_state: Arc<LayerState>,
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

    pub(super) fn of(layer_state: LayerState) -> Self {
        RateLimitLayer { layer_state: Arc::new(layer_state), bodies: PhantomData }
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
        RateLimitLayer { layer_state: self.layer_state, bodies: PhantomData }
    }
}

impl<K> RateLimitLayer<K> {
    /// Returns the gate that decides (feature `unstable`).
    #[cfg(feature = "unstable")]
    pub fn gate(&self) -> &Arc<Gate> {
        &self.layer_state.gate
    }

    /// Returns what was counted (feature `unstable`).
    #[cfg(feature = "unstable")]
    pub fn stats(&self) -> &Arc<Stats> {
        self.layer_state.gate.stats()
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
        let gate = &self.layer_state.gate;
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
        if self.layer_state.fixed.is_some() {
            return Err(ConfigErrors::whole(
                &path.display().to_string(),
                "this layer has no policies of a config file to replace",
                "build it with `config_file`",
            ));
        }
        self.layer_state.gate.reload(policies);
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
        let peeked = policy.peek(&self.layer_state.gate, CodeKey::Key(&found.key)).await;
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
        let rules = self.layer_state.rules.iter().filter(|rule| rule.policies().any(is_named));
        let mut any = false;
        for code_policy in rules.flat_map(CompiledRule::policies) {
            let reset = code_policy.reset(&self.layer_state.gate, CodeKey::Key(&found.key)).await;
            any |= reset?;
        }
        Ok(any)
    }

    async fn find(&self, code_policy: &CodePolicy, key: &str) -> Result<FoundKey, KeyError> {
        let gate = &self.layer_state.gate;
        let active = Arc::clone(&gate.active_policies());
        let found = gate.find_key(&active, code_policy.policy(), key.as_bytes()).await?;
        let is_own = |one: &CodePolicy| std::ptr::eq(one, code_policy);
        let mut rules = self.layer_state.rules.iter().filter(|rule| rule.policies().any(is_own));
        match rules.find(|rule| !rule.may_have_key(&active, &found.key)) {
            Some(rule) => Err(KeyError::not_a_key(rule.name(), key)),
            None => Ok(found),
        }
    }

    fn policy(&self, name: &str) -> Result<&CodePolicy, KeyError> {
        let policies = || self.layer_state.policies();
        let found = policies().find(|code_policy| code_policy.policy().name() == name);
        found.ok_or_else(|| {
            let names = policies().map(|code_policy| code_policy.policy().name());
            GateError::from(SelectError::unknown_policy(name, names)).into()
        })
    }
}

impl<K> Clone for RateLimitLayer<K> {
    fn clone(&self) -> Self {
        RateLimitLayer { layer_state: Arc::clone(&self.layer_state), bodies: PhantomData }
    }
}

impl<S, K> Layer<S> for RateLimitLayer<K> {
    type Service = RateLimit<S, K>;

    fn layer(&self, inner: S) -> RateLimit<S, K> {
        RateLimit::new(inner, Arc::clone(&self.layer_state))
    }
}

impl<K> fmt::Debug for RateLimitLayer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules: Vec<&str> =
            self.layer_state.policies().map(|code_policy| code_policy.policy().name()).collect();
        f.debug_struct("RateLimitLayer").field("rules", &rules).finish_non_exhaustive()
    }
}

/// Settings for a [`RateLimitLayer`].
#[derive(Default)]
#[must_use = "it becomes a layer with `build`"]
pub struct LayerBuilder {
    rules: Vec<Rule>,
    gate: Option<Arc<Gate>>,
    /// The policies of a config file.
    policies: Option<Policies>,
    limiter: Option<Limiter>,
    store: Option<(Arc<dyn ErasedStore>, u32)>,
    stats: Option<Arc<Stats>>,
    identity: Option<Identity>,
    path_variants: Option<PathVariants>,
    forms: Forms,
    max_wait: Option<Duration>,
    peer: Option<Box<PeerOf>>,
    on_denied: Option<Box<OnDenied>>,
}

impl LayerBuilder {
    #[cfg(feature = "unstable")]
    pub(super) fn from_gate(gate: Arc<Gate>) -> Self {
        LayerBuilder { gate: Some(gate), ..LayerBuilder::default() }
    }

    /// Adds a rule. A request is admitted if all rules that apply to it admit it, and is charged
    /// under all of them or none.
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Adds the policies of a config file and sets the forms of the header fields to those of the
    /// file (feature `config`). [`RateLimitLayer::reload_config_file`] reads the policies again.
    ///
    /// The file also sets which proxies are trusted and how paths are read, so
    /// [`identity`](Self::identity) and [`path_variants`](Self::path_variants) cannot be set as
    /// well. Its other settings, such as `store`, are for the server and are ignored here.
    ///
    /// ```no_run
    /// use tidegate::tower::RateLimitLayer;
    ///
    /// let layer = RateLimitLayer::builder().config_file("tidegate.yaml")?.build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// All errors in the file.
    #[cfg(feature = "config")]
    pub fn config_file(mut self, path: impl AsRef<Path>) -> Result<Self, ConfigErrors> {
        let config = Config::load(path.as_ref())?;
        (self.policies, self.forms) = (Some(config.policies), config.headers);
        Ok(self)
    }

    /// Sets the forms of the header fields. Default: the newest draft.
    pub fn headers(mut self, forms: Forms) -> Self {
        self.forms = forms;
        self
    }

    /// Sets how long a request may wait for its limits; a request that would wait longer is denied
    /// immediately. Requests under `concurrency` limits do not wait.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// Sets which proxies are trusted with the client's address, and how IPv6 addresses are
    /// grouped. Default: no proxy, and /64.
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// Sets how path parameters (`/login;x=1`) and backslashes are read in `{path}` keys. Default:
    /// [`PathVariants::Merge`].
    pub fn path_variants(mut self, path_variants: PathVariants) -> Self {
        self.path_variants = Some(path_variants);
        self
    }

    /// Sets how the address of the connection is found in the extensions of a request. Default:
    /// axum's `ConnectInfo<SocketAddr>` (with feature `axum`), a `SocketAddr` or an `IpAddr`.
    pub fn peer(
        mut self,
        peer: impl Fn(&Extensions) -> Option<IpAddr> + Send + Sync + 'static,
    ) -> Self {
        self.peer = Some(Box::new(peer));
        self
    }

    /// Sets the limiter that keeps the counts. With a [`store`](Self::store), it decides while the
    /// store fails. Default: a limiter in memory.
    pub fn limiter(mut self, limiter: Limiter) -> Self {
        self.limiter = Some(limiter);
        self
    }

    /// Sets a store that `nodes` nodes share, such as `tidegate::redis::RedisStore`.
    pub fn store<S: Store>(mut self, store: Arc<S>, nodes: u32) -> Self {
        self.store = Some((store, nodes));
        self
    }

    /// Sets where decisions are counted (feature `unstable`).
    #[cfg(feature = "unstable")]
    pub fn stats(mut self, stats: Arc<Stats>) -> Self {
        self.stats = Some(stats);
        self
    }

    /// Sets the response to rejected requests, for every cause: a denial, a failed store or a
    /// request that cannot be decided. The closure gets the request's head and a [`Rejection`] with
    /// the response that is sent by default. The returned response is completed: a status of 200
    /// becomes that of the rejection, and missing header fields, such as `Retry-After`, are added.
    ///
    /// ```
    /// use axum::response::Html;
    /// use tidegate::tower::{RateLimitLayer, Rule};
    ///
    /// let layer = RateLimitLayer::builder()
    ///     .rule(Rule::new("api", ["60 per 1m".parse()?]))
    ///     .on_denied(|_, rejection| Html(format!("<h1>{}</h1>", rejection.status())))
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The body must be complete, as that of a `String`, `Html` or `Json` is, and at most 1 MiB.
    /// Otherwise the default response is sent.
    #[cfg(feature = "axum")]
    pub fn on_denied<R: IntoResponse>(
        mut self,
        on_denied: impl Fn(&Head<'_>, Rejection) -> R + Send + Sync + 'static,
    ) -> Self {
        self.on_denied = Some(Box::new(move |head, rejection| {
            read_body(on_denied(head, rejection).into_response())
        }));
        self
    }

    /// Sets the response to rejected requests, for every cause: a denial, a failed store or a
    /// request that cannot be decided. The closure gets the request's head and a [`Rejection`] with
    /// the response that is sent by default. The returned response is completed: a status of 200
    /// becomes that of the rejection, and missing header fields, such as `Retry-After`, are added.
    /// With feature `axum` the closure returns any `IntoResponse`.
    #[cfg(not(feature = "axum"))]
    pub fn on_denied<R: Into<Response<String>>>(
        mut self,
        on_denied: impl Fn(&Head<'_>, Rejection) -> R + Send + Sync + 'static,
    ) -> Self {
        self.on_denied = Some(Box::new(move |head, rejection| {
            Some(on_denied(head, rejection).into().map(Into::into))
        }));
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    /// If a rule is invalid, two rules conflict, or a setting conflicts with a file or a gate.
    pub fn build(self) -> Result<RateLimitLayer, LayerError> {
        self.try_build().map_err(LayerError)
    }

    fn try_build(mut self) -> Result<RateLimitLayer, LayerFault> {
        if self.rules.is_empty() && self.gate.is_none() && self.policies.is_none() {
            return Err(LayerFault::NoRules);
        }
        let given_gate = self.gate.take();
        let is_fixed = given_gate.is_none() && self.policies.is_none();
        let gate = match given_gate {
            Some(gate) => self.check_gate(gate)?,
            None => Arc::new(self.own_gate()?),
        };
        let rules = self.rules.into_iter().map(|rule| CompiledRule::new(&gate, rule));
        let rules = rules.collect::<Result<Box<[CompiledRule]>, _>>()?;
        check_rules(&gate, &rules)?;
        let fixed = is_fixed.then(|| Arc::clone(&gate.active_policies()));
        let LayerBuilder { forms, max_wait, peer, on_denied, .. } = self;
        let layer_state = LayerState { gate, fixed, rules, forms, max_wait, peer, on_denied };
        Ok(RateLimitLayer::of(layer_state))
    }

    fn own_gate(&mut self) -> Result<Gate, LayerFault> {
        let limiter = match self.limiter.take() {
            Some(limiter) => limiter,
            None => Limiter::builder().build()?,
        };
        let policies = match self.policies.take() {
            Some(policies) => self.check_file(policies)?,
            None => Policies::new(Vec::new(), self.identity.take().unwrap_or_default())?
                .with_path_variants(self.path_variants.take().unwrap_or_default()),
        };
        let gate = Gate::new(limiter, policies, self.stats.take().unwrap_or_default());
        Ok(match self.store.take() {
            Some((store, nodes)) => gate.with_erased_store(store, nodes),
            None => gate,
        })
    }

    fn check_file(&self, policies: Policies) -> Result<Policies, LayerFault> {
        match self.reading() {
            Some(setting) => Err(LayerFault::ConflictsWithFile { setting }),
            None => Ok(policies),
        }
    }

    /// The name of a setting of how requests are read, if one was set.
    fn reading(&self) -> Option<&'static str> {
        let identity = self.identity.as_ref().map(|_| "identity");
        identity.or(self.path_variants.map(|_| "path_variants"))
    }

    fn check_gate(&self, gate: Arc<Gate>) -> Result<Arc<Gate>, LayerFault> {
        let settings = [
            ("limiter", self.limiter.is_some()),
            ("store", self.store.is_some()),
            ("stats", self.stats.is_some()),
            ("config_file", self.policies.is_some()),
        ];
        let conflict = settings.into_iter().find_map(|(setting, is_set)| is_set.then_some(setting));
        match conflict.or(self.reading()) {
            Some(setting) => Err(LayerFault::ConflictsWithGate { setting }),
            None => Ok(gate),
        }
    }
}

impl fmt::Debug for LayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerBuilder").field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// Checks that names differ, and that the limits of all rules fit into one request.
fn check_rules(gate: &Gate, rules: &[CompiledRule]) -> Result<(), LayerFault> {
    let loaded = gate.active_policies();
    let mut names: HashSet<&str> = loaded.policies().iter().map(|policy| policy.name()).collect();
    for code_policy in rules.iter().flat_map(CompiledRule::policies) {
        let name = code_policy.policy().name();
        if !names.insert(name) {
            return Err(LayerFault::SameName { name: name.to_owned() });
        }
    }
    let most = |rule: &CompiledRule| {
        rule.policies().map(|code_policy| code_policy.policy().limits().len()).max()
    };
    if rules.iter().filter_map(most).sum::<usize>() > MAX_CHECKS {
        return Err(LayerFault::TooManyRules);
    }
    Ok(())
}
