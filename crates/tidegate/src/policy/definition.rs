//! One policy, validated, with its overrides resolved.
//!
//! An override replaces only the fields that it sets. To avoid merging fields for every request,
//! each override is stored as a [`Variant`] in which all fields are set: variant 0 is the policy
//! itself, variant *n* its *n*-th override.

use std::sync::Arc;

use tidegate_core::{Algorithm, Limit};

use super::condition::Conditions;
use super::cost::CostSource;
use super::descriptor::EnvoyDetails;
use super::error::PolicyError;
use super::normalized_request::NormalizedRequest;
use super::template::Template;
use super::{Mode, OnStoreFailure};
use crate::Overflow;

/// The longest name of a policy. The name is a metric label and part of header fields and keys.
pub const MAX_NAME_BYTES: usize = 64;

/// The largest number of limits of a policy. All of them are decided for every request.
pub const MAX_LIMITS: usize = 16;

/// The largest number of overrides of a policy. They are tried one after another.
pub(crate) const MAX_OVERRIDES: usize = 1024;

/// The largest number of policies that one policy can replace. A request that matches it searches
/// these names.
pub(crate) const MAX_REPLACED: usize = 1024;

/// A named policy: the requests it matches, how their keys are made, its limits, its mode, and the
/// answer when the store fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    name: Box<str>,
    /// The name under which requests are counted, if that is another policy's.
    count_name: Option<Box<str>>,
    matching: Conditions,
    key: Template,
    exempt: Conditions,
    replaces: Box<[Box<str>]>,
    quota: bool,
    deny_cache: bool,
    lease: bool,
    envoy_details: Option<Arc<EnvoyDetails>>,
    overrides: Vec<Override>,
    /// The policy itself, then one variant per override; never empty.
    variants: Vec<Variant>,
}

/// Replaces some fields of a policy, for requests that satisfy its conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Override {
    /// The conditions. The override applies if all of them hold.
    pub when: Conditions,
    /// The limits, if they are replaced.
    pub limits: Option<Vec<Limit>>,
    /// The mode, if it is replaced.
    pub mode: Option<Mode>,
    /// The answer when the store fails, if it is replaced.
    pub on_store_failure: Option<OnStoreFailure>,
    /// The cost, if it is replaced.
    pub cost: Option<CostSource>,
    /// The overflow, if it is replaced.
    pub overflow: Option<Overflow>,
}

impl Override {
    fn replaces_nothing(&self) -> bool {
        let Override { when: _, limits, mode, on_store_failure, cost, overflow } = self;
        let sets_handling = mode.is_some() || on_store_failure.is_some() || overflow.is_some();
        limits.is_none() && cost.is_none() && !sets_handling
    }
}

/// A policy with one of its overrides applied, or with none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    when: Conditions,
    limits: Box<[Limit]>,
    mode: Mode,
    on_store_failure: OnStoreFailure,
    cost: CostSource,
    overflow: Option<Overflow>,
}

impl Variant {
    /// Returns a copy in which the fields that an override sets are replaced.
    fn replaced_by(&self, over: &Override) -> Self {
        let limits = over.limits.as_ref().map(|limits| limits.clone().into());
        Variant {
            when: over.when.clone(),
            limits: limits.unwrap_or_else(|| self.limits.clone()),
            mode: over.mode.unwrap_or(self.mode),
            on_store_failure: over.on_store_failure.unwrap_or(self.on_store_failure),
            cost: over.cost.clone().unwrap_or_else(|| self.cost.clone()),
            overflow: over.overflow.or(self.overflow),
        }
    }

    /// Returns the conditions of the override; empty for the policy itself.
    pub fn when(&self) -> &Conditions {
        &self.when
    }

    /// Returns the limits.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Returns the limits that can never admit a request of this cost. A cost of 0 is a peek, which
    /// is answered like a cost of 1.
    pub(crate) fn limits_below(&self, units: u64) -> impl Iterator<Item = &Limit> {
        self.limits.iter().filter(move |limit| units.max(1) > limit.capacity())
    }

    /// Returns the mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the answer when the store fails.
    pub fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// Returns the cost of a request.
    pub fn cost(&self) -> &CostSource {
        &self.cost
    }

    /// Returns the overflow; `None` if the [request](crate::gate::GateRequest) decides.
    pub fn overflow(&self) -> Option<Overflow> {
        self.overflow
    }
}

impl Policy {
    /// Creates a policy that matches every request, enforces its limits and has a cost of 1.
    ///
    /// # Errors
    /// Returns an error if the name is not valid, if `limits` is empty or has more than
    /// [`MAX_LIMITS`] elements, or if two limits would share a count.
    pub fn new(name: &str, key: Template, limits: Vec<Limit>) -> Result<Self, PolicyError> {
        if !Self::is_name(name) {
            return Err(PolicyError::Name);
        }
        check_limits(&limits)?;
        Ok(Self::with_limits(name, key, limits))
    }

    /// Creates a policy that matches every request and limits none. It can replace other policies,
    /// and a verdict reports the requests that match it.
    ///
    /// # Errors
    /// Returns an error if the name is not valid.
    pub fn unlimited(name: &str, key: Template) -> Result<Self, PolicyError> {
        if !Self::is_name(name) {
            return Err(PolicyError::Name);
        }
        Ok(Self::with_limits(name, key, Vec::new()))
    }

    fn with_limits(name: &str, key: Template, limits: Vec<Limit>) -> Self {
        let base = Variant {
            when: Conditions::default(),
            limits: limits.into(),
            mode: Mode::default(),
            on_store_failure: OnStoreFailure::default(),
            cost: CostSource::default(),
            overflow: None,
        };
        Policy {
            name: name.into(),
            count_name: None,
            matching: Conditions::default(),
            key,
            exempt: Conditions::default(),
            replaces: Box::default(),
            quota: false,
            deny_cache: true,
            lease: false,
            envoy_details: None,
            overrides: Vec::new(),
            variants: vec![base],
        }
    }

    /// Returns whether a name is valid: 1 to [`MAX_NAME_BYTES`] letters, digits, `.`, `_` and `-`.
    pub fn is_name(name: &str) -> bool {
        let is_name_char = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_name_char)
    }

    /// Restricts the policy to requests for which all of `conditions` hold.
    #[must_use]
    pub fn with_match(mut self, conditions: Conditions) -> Self {
        self.matching = conditions;
        self
    }

    /// Exempts requests for which any of `conditions` holds.
    #[must_use]
    pub fn with_exempt(mut self, conditions: Conditions) -> Self {
        self.exempt = conditions;
        self
    }

    /// Sets the names of the policies that this one replaces: they do not apply to requests to
    /// which this one applies.
    #[must_use]
    pub fn with_replaces<N: AsRef<str>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.replaces = names.into_iter().map(|name| name.as_ref().into()).collect();
        self
    }

    /// Sets whether the policy is a quota. If several quotas apply to a request, one that has
    /// capacity left is enough: exhausted quotas are skipped, and the request is denied only if all
    /// are exhausted.
    #[must_use]
    pub fn with_quota(mut self, quota: bool) -> Self {
        self.quota = quota;
        self
    }

    /// Sets the mode.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.variants[0].mode = mode;
        self.derive()
    }

    /// Sets the answer when the store fails.
    #[must_use]
    pub fn with_on_store_failure(mut self, behavior: OnStoreFailure) -> Self {
        self.variants[0].on_store_failure = behavior;
        self.derive()
    }

    /// Sets whether denials by a shared store are cached in memory until they end. Default: `true`.
    #[must_use]
    pub fn with_deny_cache(mut self, deny_cache: bool) -> Self {
        self.deny_cache = deny_cache;
        self
    }

    /// Sets whether units of hot keys are leased from a shared store. Default: `false`.
    #[must_use]
    pub fn with_lease(mut self, lease: bool) -> Self {
        self.lease = lease;
        self
    }

    /// Sets the details of the limit in an envoyproxy/ratelimit config. They do not affect
    /// decisions.
    #[must_use]
    pub fn with_envoy_details(mut self, details: Option<Arc<EnvoyDetails>>) -> Self {
        self.envoy_details = details;
        self
    }

    /// Sets the cost of a request.
    #[must_use]
    pub fn with_cost(mut self, cost: CostSource) -> Self {
        self.variants[0].cost = cost;
        self.derive()
    }

    /// Sets the overflow, regardless of the default of the [request](crate::gate::GateRequest).
    #[must_use]
    pub fn with_overflow(mut self, overflow: Overflow) -> Self {
        self.variants[0].overflow = Some(overflow);
        self.derive()
    }

    /// Adds an override. Overrides are tried in the order in which they were added.
    ///
    /// # Errors
    /// Returns an error if the override lacks a condition, replaces nothing or can never apply, if
    /// its limits are not valid, or if there are too many overrides.
    pub fn with_override(mut self, new: Override) -> Result<Self, PolicyError> {
        self.add_override(new)?;
        Ok(self)
    }

    /// Adds an override; see [`Policy::with_override`]. After an error the policy is unchanged.
    pub(crate) fn add_override(&mut self, new: Override) -> Result<(), PolicyError> {
        self.check_override(&new)?;
        self.variants.push(self.variants[0].replaced_by(&new));
        self.overrides.push(new);
        Ok(())
    }

    fn check_override(&self, new: &Override) -> Result<(), PolicyError> {
        if self.overrides.len() >= MAX_OVERRIDES {
            return Err(PolicyError::TooManyOverrides);
        }
        if new.when.is_empty() {
            return Err(PolicyError::NoCondition);
        }
        if new.replaces_nothing() {
            return Err(PolicyError::ReplacesNothing);
        }
        if let Some(limits) = &new.limits {
            check_limits(limits)?;
        }
        if let Some((condition, policy_condition)) = new.when.contradiction(&self.matching) {
            return Err(PolicyError::NeverMatches {
                condition,
                policy_condition: policy_condition.to_string(),
            });
        }
        match self.overrides.iter().position(|earlier| new.when.imply(&earlier.when)) {
            Some(earlier) => {
                let is_same = self.overrides[earlier].when.imply(&new.when);
                Err(PolicyError::Covered { earlier, is_same })
            }
            None => Ok(()),
        }
    }

    /// Recomputes the variants of the overrides.
    fn derive(mut self) -> Self {
        self.variants.truncate(1);
        for over in &self.overrides {
            self.variants.push(self.variants[0].replaced_by(over));
        }
        self
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name under which requests are counted: the policy's name, unless it shares the
    /// counts of another policy.
    #[inline]
    pub(crate) fn count_name(&self) -> &str {
        self.count_name.as_deref().unwrap_or(&self.name)
    }

    /// Sets the name under which requests are counted to that of another policy.
    #[cfg(feature = "tower")]
    pub(crate) fn with_count_name(mut self, name: &str) -> Self {
        self.count_name = Some(name.into());
        self
    }

    /// Returns the conditions of a match, all of which must hold.
    pub fn matching(&self) -> &Conditions {
        &self.matching
    }

    /// Returns the conditions of an exemption, any of which is enough.
    pub fn exempt(&self) -> &Conditions {
        &self.exempt
    }

    /// Returns the names of the policies that it replaces.
    pub fn replaces(&self) -> &[Box<str>] {
        &self.replaces
    }

    /// Returns whether it is a quota; see [`Policy::with_quota`].
    pub fn is_quota(&self) -> bool {
        self.quota
    }

    /// Returns whether it is without limits, whichever override applies.
    pub fn is_unlimited(&self) -> bool {
        self.variants.iter().all(|variant| variant.limits.is_empty())
    }

    /// Returns the template of its keys.
    pub fn key_template(&self) -> &Template {
        &self.key
    }

    /// Returns whether denials by a shared store are cached in memory until they end.
    pub fn caches_denials(&self) -> bool {
        self.deny_cache
    }

    /// Returns whether units of hot keys are leased from a shared store.
    pub fn leases(&self) -> bool {
        self.lease
    }

    /// Returns the details of the limit in an envoyproxy/ratelimit config, if the policy comes from
    /// one.
    pub fn envoy_details(&self) -> Option<&Arc<EnvoyDetails>> {
        self.envoy_details.as_ref()
    }

    /// Returns the limits if no override applies.
    pub fn limits(&self) -> &[Limit] {
        self.variants[0].limits()
    }

    /// Returns the mode if no override applies.
    pub fn mode(&self) -> Mode {
        self.variants[0].mode
    }

    /// Returns the answer when the store fails, if no override applies.
    pub fn on_store_failure(&self) -> OnStoreFailure {
        self.variants[0].on_store_failure
    }

    /// Returns the cost of a request if no override applies.
    pub fn cost(&self) -> &CostSource {
        &self.variants[0].cost
    }

    /// Returns the overflow if no override applies; `None` if the
    /// [request](crate::gate::GateRequest) decides.
    pub fn overflow(&self) -> Option<Overflow> {
        self.variants[0].overflow
    }

    /// Returns the policy itself, then one variant per override.
    pub fn variants(&self) -> &[Variant] {
        &self.variants
    }

    /// Returns whether a variant has a `concurrency` limit, which requires permits.
    pub fn has_concurrency(&self) -> bool {
        let mut limits = self.variants.iter().flat_map(|variant| variant.limits.iter());
        limits.any(is_concurrency)
    }

    /// Returns every list of conditions, to register their patterns.
    pub(super) fn conditions_mut(&mut self) -> impl Iterator<Item = &mut Conditions> {
        let variants = self.variants.iter_mut().map(|variant| &mut variant.when);
        [&mut self.matching, &mut self.exempt].into_iter().chain(variants)
    }

    /// Returns the index of the variant for a request: that of the first override that applies,
    /// else 0. An override that does not enforce limits must hold for every reading of the path, as
    /// an exemption must.
    pub(super) fn variant_for(&self, request: &NormalizedRequest<'_>) -> usize {
        let applies = |variant: &Variant| match variant.mode {
            Mode::Enforce => variant.when.all_match(request),
            Mode::Observe | Mode::Off => variant.when.all_match_every_reading(request),
        };
        let mut overrides = self.variants.iter().skip(1);
        overrides.position(applies).map_or(0, |index| index + 1)
    }
}

/// Checks the number of limits, and that each has a separate count.
pub(crate) fn check_limits(limits: &[Limit]) -> Result<(), PolicyError> {
    if limits.is_empty() {
        return Err(PolicyError::NoLimits);
    }
    if limits.len() > MAX_LIMITS {
        return Err(PolicyError::TooManyLimits);
    }
    check_counts(limits)
}

/// Checks that each limit has a separate count.
///
/// # Errors
/// Returns [`PolicyError::SharedState`] or [`PolicyError::BothConcurrent`] for the first limit that
/// shares its count with an earlier one.
pub fn check_counts(limits: &[Limit]) -> Result<(), PolicyError> {
    for (second, limit) in limits.iter().enumerate() {
        if let Some(first) = limits[..second].iter().position(|other| other.id() == limit.id()) {
            return Err(match is_concurrency(limit) {
                true => PolicyError::BothConcurrent { first, second },
                false => PolicyError::SharedState { first, second },
            });
        }
    }
    Ok(())
}

/// Returns whether a limit is held by permits instead of charged by checks.
pub(crate) fn is_concurrency(limit: &Limit) -> bool {
    limit.algorithm() == Algorithm::Concurrency
}
