//! One policy, validated, with its overrides worked out.
//!
//! An override replaces the fields it names. Rather than ask at every request
//! which fields those are, each override becomes a [`Variant`] with all fields
//! filled in: variant 0 is the policy itself, variant *n* its *n*-th override.

use tidegate_core::{Algorithm, Limit};

use super::condition::Conditions;
use super::cost::CostSource;
use super::error::PolicyError;
use super::normalized::NormalizedRequest;
use super::template::Template;
use super::{Mode, OnStoreFailure};
use crate::Overflow;

/// Longest name of a policy: it is a metric label, a header and part of every key.
pub const MAX_NAME_BYTES: usize = 64;

/// Most limits of a policy: every one is decided for every request.
pub const MAX_LIMITS: usize = 16;

/// Most overrides of a policy: they are tried one after another.
pub(crate) const MAX_OVERRIDES: usize = 1024;

/// Most policies that one can replace: as many as can stand in for one another.
pub(crate) const MAX_REPLACED: usize = 1024;

/// A named rule: what it matches, how its key is made, its limits, its mode,
/// and what happens when the store fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    name: Box<str>,
    /// The name its counts are kept under, if that is another policy's.
    count_name: Option<Box<str>>,
    matching: Conditions,
    key: Template,
    exempt: Conditions,
    replaces: Box<[Box<str>]>,
    quota: bool,
    deny_cache: bool,
    overrides: Vec<Override>,
    /// The policy itself, then one per override; never empty.
    variants: Vec<Variant>,
}

/// What replaces some fields of a policy, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Override {
    /// When it holds: all of these.
    pub when: Conditions,
    /// Other limits.
    pub limits: Option<Vec<Limit>>,
    /// Another mode.
    pub mode: Option<Mode>,
    /// Another answer when the store fails.
    pub on_store_failure: Option<OnStoreFailure>,
    /// Another cost.
    pub cost: Option<CostSource>,
    /// Another overflow.
    pub overflow: Option<Overflow>,
}

impl Override {
    fn replaces_nothing(&self) -> bool {
        let Override { when: _, limits, mode, on_store_failure, cost, overflow } = self;
        let answers = mode.is_some() || on_store_failure.is_some() || overflow.is_some();
        limits.is_none() && cost.is_none() && !answers
    }
}

/// A policy as one of its overrides, or none, makes it.
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
    /// The same with the fields that an override names replaced.
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

    /// When it holds; empty for the policy itself.
    pub fn when(&self) -> &Conditions {
        &self.when
    }

    /// Its limits.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Its mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Its answer when the store fails.
    pub fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// What a request costs.
    pub fn cost(&self) -> &CostSource {
        &self.cost
    }

    /// Its overflow; `None` if the [request](crate::gate::GateRequest) decides.
    pub fn overflow(&self) -> Option<Overflow> {
        self.overflow
    }
}

impl Policy {
    /// A policy that matches everything, enforces, and costs 1.
    ///
    /// # Errors
    /// When the name is none, or the limits cannot stand together.
    pub fn new(name: &str, key: Template, limits: Vec<Limit>) -> Result<Self, PolicyError> {
        if !Self::is_name(name) {
            return Err(PolicyError::Name);
        }
        check_limits(&limits)?;
        Ok(Self::with_limits(name, key, limits))
    }

    /// A policy that matches everything and limits nothing. It is met all the same: it may
    /// replace others, and an answer tells that a request met it.
    ///
    /// # Errors
    /// When the name is none.
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
            overrides: Vec::new(),
            variants: vec![base],
        }
    }

    /// Whether a policy may have this name: 1 to [`MAX_NAME_BYTES`] letters, digits, `.`, `_` and `-`.
    pub fn is_name(name: &str) -> bool {
        let is_name_char = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_name_char)
    }

    /// The same, matching only requests for which all of `conditions` hold.
    #[must_use]
    pub fn with_match(mut self, conditions: Conditions) -> Self {
        self.matching = conditions;
        self
    }

    /// The same, sparing requests for which any of `conditions` holds.
    #[must_use]
    pub fn with_exempt(mut self, conditions: Conditions) -> Self {
        self.exempt = conditions;
        self
    }

    /// The same, in place of the policies of these names: where a request meets it and
    /// them, they are left out.
    #[must_use]
    pub fn with_replaces<N: AsRef<str>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.replaces = names.into_iter().map(|name| name.as_ref().into()).collect();
        self
    }

    /// The same as one of several quotas, or not: a request that meets more than one is
    /// denied for them only if all are used up. Those that are, are passed over.
    #[must_use]
    pub fn with_quota(mut self, quota: bool) -> Self {
        self.quota = quota;
        self
    }

    /// The same in another mode.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.variants[0].mode = mode;
        self.derive()
    }

    /// The same with another answer when the store fails.
    #[must_use]
    pub fn with_on_store_failure(mut self, answer: OnStoreFailure) -> Self {
        self.variants[0].on_store_failure = answer;
        self.derive()
    }

    /// The same, with denials by a shared store answered from memory until they end, or
    /// never.
    #[must_use]
    pub fn with_deny_cache(mut self, deny_cache: bool) -> Self {
        self.deny_cache = deny_cache;
        self
    }

    /// The same at another cost.
    #[must_use]
    pub fn with_cost(mut self, cost: CostSource) -> Self {
        self.variants[0].cost = cost;
        self.derive()
    }

    /// Sets the overflow, whatever the default of the [request](crate::gate::GateRequest).
    #[must_use]
    pub fn with_overflow(mut self, overflow: Overflow) -> Self {
        self.variants[0].overflow = Some(overflow);
        self.derive()
    }

    /// The same with one more override, tried after those it has.
    ///
    /// # Errors
    /// When it replaces nothing or can never apply.
    pub fn with_override(mut self, new: Override) -> Result<Self, PolicyError> {
        self.add_override(new)?;
        Ok(self)
    }

    /// As [`Policy::with_override`]; a policy that refuses one stays as it is.
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
        if let Some((condition, own)) = new.when.contradiction(&self.matching) {
            return Err(PolicyError::NeverMatches { condition, own: own.to_string() });
        }
        let mut earlier = self.overrides.iter();
        match earlier.position(|earlier| new.when.imply(&earlier.when)) {
            Some(earlier) => Err(PolicyError::Covered { earlier }),
            None => Ok(()),
        }
    }

    /// Works the overrides out anew.
    fn derive(mut self) -> Self {
        self.variants.truncate(1);
        for over in &self.overrides {
            self.variants.push(self.variants[0].replaced_by(over));
        }
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name its counts are kept under: its own, unless it shares those of another policy.
    #[inline]
    pub(crate) fn count_name(&self) -> &str {
        self.count_name.as_deref().unwrap_or(&self.name)
    }

    /// Keeps counts under the name of another policy.
    #[cfg(feature = "tower")]
    pub(crate) fn with_count_name(mut self, name: &str) -> Self {
        self.count_name = Some(name.into());
        self
    }

    /// What it matches: all of these.
    pub fn matching(&self) -> &Conditions {
        &self.matching
    }

    /// Whom it spares: any of these.
    pub fn exempt(&self) -> &Conditions {
        &self.exempt
    }

    /// The names of those it takes the place of.
    pub fn replaces(&self) -> &[Box<str>] {
        &self.replaces
    }

    /// Whether it is one of several quotas, of which one is enough.
    pub fn quota(&self) -> bool {
        self.quota
    }

    /// Whether it limits nothing, whichever override holds.
    pub fn is_unlimited(&self) -> bool {
        self.variants.iter().all(|variant| variant.limits.is_empty())
    }

    /// How its keys are made.
    pub fn key_template(&self) -> &Template {
        &self.key
    }

    /// Whether a denial by a shared store may be answered from memory until it ends.
    pub fn deny_cache(&self) -> bool {
        self.deny_cache
    }

    /// Its own limits, where no override holds.
    pub fn limits(&self) -> &[Limit] {
        self.variants[0].limits()
    }

    /// Its own mode.
    pub fn mode(&self) -> Mode {
        self.variants[0].mode
    }

    /// Its own answer when the store fails.
    pub fn on_store_failure(&self) -> OnStoreFailure {
        self.variants[0].on_store_failure
    }

    /// What a request costs.
    pub fn cost(&self) -> &CostSource {
        &self.variants[0].cost
    }

    /// Its overflow; `None` if the [request](crate::gate::GateRequest) decides.
    pub fn overflow(&self) -> Option<Overflow> {
        self.variants[0].overflow
    }

    /// The policy itself, then one per override, with every field filled in.
    pub fn variants(&self) -> &[Variant] {
        &self.variants
    }

    /// Whether some variant holds places rather than counts, so that it needs permits.
    pub fn has_concurrency(&self) -> bool {
        let mut limits = self.variants.iter().flat_map(|variant| variant.limits.iter());
        limits.any(is_concurrency)
    }

    /// Every list of conditions, for placing patterns.
    pub(super) fn conditions_mut(&mut self) -> impl Iterator<Item = &mut Conditions> {
        let variants = self.variants.iter_mut().map(|variant| &mut variant.when);
        [&mut self.matching, &mut self.exempt].into_iter().chain(variants)
    }

    /// Which variant a request meets. An override that does not enforce limits must hold for
    /// every reading of the path, as an exemption must.
    pub(super) fn variant_for(&self, request: &NormalizedRequest<'_>) -> usize {
        let applies = |variant: &Variant| match variant.mode {
            Mode::Enforce => variant.when.all_match(request),
            Mode::Observe | Mode::Off => variant.when.all_match_every_reading(request),
        };
        let mut overrides = self.variants.iter().skip(1);
        overrides.position(applies).map_or(0, |index| index + 1)
    }
}

/// Checks that a policy can have these limits.
pub(crate) fn check_limits(limits: &[Limit]) -> Result<(), PolicyError> {
    if limits.is_empty() {
        return Err(PolicyError::NoLimits);
    }
    if limits.len() > MAX_LIMITS {
        return Err(PolicyError::TooManyLimits);
    }
    check_counts(limits)
}

/// That each of these limits has a count of its own.
///
/// # Errors
/// [`PolicyError::SharedState`] or [`PolicyError::BothConcurrent`] for the first that has not.
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

/// Whether a limit is held while work goes on, not checked.
pub(crate) fn is_concurrency(limit: &Limit) -> bool {
    limit.algorithm() == Algorithm::Concurrency
}
