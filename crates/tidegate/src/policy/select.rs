//! The set of all policies, and the selection of those that apply to a request.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;

use foldhash::fast::RandomState;
use smallvec::SmallVec;
use tidegate_core::{Limit, bounds};

use super::condition::Conditions;
use super::definition::{MAX_REPLACED, Policy};
use super::explain::{Explanation, explain};
use super::index::{Index, MAX_COMPARED};
use super::key::Key;
use super::normalized_request::{NormalizedRequest, Patterns, ReadOptions};
use super::path::PathVariants;
use super::pattern::{Pattern, PatternSet};
use super::request_field::RequestField;
use super::template::Template;
use super::{Mode, OnStoreFailure};
use crate::Overflow;
use crate::attributes::Attributes;
use crate::identity::Identity;
use crate::request::MAX_CHECKS;
use crate::text::{excerpt, is_one_typo_apart};

/// The largest number of policies. A request is compared with at most [`MAX_COMPARED`] of them;
/// this bounds the memory and the time to load a set.
pub(crate) const MAX_POLICIES: usize = 65_536;

/// The number of policies whose names an unknown name is compared with. Anyone who can send
/// requests can send such names.
const MAX_NAMES_COMPARED: usize = 1024;

/// A set of policies. The default is empty.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    policies: Vec<Policy>,
    names: Names,
    index: Index,
    patterns: Patterns,
    options: ReadOptions,
    /// The domains of the configs of envoyproxy/ratelimit, also those without limits.
    envoy_domains: HashSet<Box<str>, RandomState>,
}

/// The index of each policy by its name.
type Names = HashMap<Box<str>, u32, RandomState>;

/// A policy that applies to a request, with the variant, key and cost for that request.
#[derive(Clone, Debug)]
pub struct SelectedPolicy<'p> {
    /// The policy.
    pub policy: &'p Policy,
    /// The index of the policy in [`Policies::iter`].
    pub policy_index: usize,
    /// The key that identifies who is counted.
    pub key: Key,
    /// The limits of the variant.
    pub limits: &'p [Limit],
    /// Whether the limits are enforced.
    pub mode: Mode,
    /// The answer when the store fails.
    pub on_store_failure: OnStoreFailure,
    /// The cost in units, unless the caller gives another.
    pub cost: u64,
    /// The overflow; `None` if the [request](crate::gate::GateRequest) decides.
    pub overflow: Option<Overflow>,
    /// The index in [`Policy::variants`]: 0 for the policy itself, *n* for its *n*-th override.
    pub variant: usize,
}

impl<'p> SelectedPolicy<'p> {
    fn new(
        (policy_index, policy): (usize, &'p Policy),
        key: Key,
        variant: usize,
        cost: u64,
    ) -> Self {
        let chosen = &policy.variants()[variant];
        SelectedPolicy {
            policy,
            policy_index,
            key,
            limits: chosen.limits(),
            mode: chosen.mode(),
            on_store_failure: chosen.on_store_failure(),
            cost,
            overflow: chosen.overflow(),
            variant,
        }
    }
}

impl Policies {
    /// Creates a set of policies. They are selected in the order given. `identity` defines how
    /// client addresses are grouped.
    ///
    /// # Errors
    /// Returns an error if two policies have the same name, if there are too many policies, or for
    /// one of the other reasons in [`PoliciesError`].
    pub fn new(mut policies: Vec<Policy>, identity: Identity) -> Result<Self, PoliciesError> {
        if policies.len() > MAX_POLICIES {
            return Err(PoliciesError::TooMany);
        }
        let names = index_names(&policies)?;
        if unconditional_limit_count(&policies) > MAX_CHECKS {
            return Err(PoliciesError::TooManyLimits);
        }
        let patterns = Patterns {
            paths: compile_patterns(&mut policies, &RequestField::Path)?,
            hosts: compile_patterns(&mut policies, &RequestField::Host)?,
        };
        check_replaces(&policies, &names)?;
        let options = ReadOptions { identity, path_variants: PathVariants::default() };
        let index =
            Index::new(&policies).map_err(|policy| PoliciesError::TooManyCompared { policy })?;
        let envoy_domains = HashSet::default();
        Ok(Policies { policies, names, index, patterns, options, envoy_domains })
    }

    /// Replaces how client addresses are grouped.
    #[must_use]
    pub(crate) fn with_identity(mut self, identity: Identity) -> Self {
        self.options.identity = identity;
        self
    }

    /// Returns the policies, in order.
    pub(crate) fn into_vec(self) -> Vec<Policy> {
        self.policies
    }

    /// Sets the domains of the configs of envoyproxy/ratelimit from which policies were converted.
    #[must_use]
    pub(crate) fn with_envoy_domains<'d>(
        mut self,
        domains: impl IntoIterator<Item = &'d str>,
    ) -> Self {
        self.envoy_domains = domains.into_iter().map(Box::from).collect();
        self
    }

    /// Sets whether path parameters and backslashes are resolved.
    ///
    /// ```
    /// use tidegate::unstable::policy::{PathVariants, Policies};
    ///
    /// let policies = Policies::default().with_path_variants(PathVariants::Keep);
    /// assert_eq!(policies.path_variants(), PathVariants::Keep);
    /// ```
    #[must_use]
    pub fn with_path_variants(mut self, path_variants: PathVariants) -> Self {
        self.options.path_variants = path_variants;
        self
    }

    /// Returns the policies that apply to a request, in order. Policies that are off, exempt the
    /// request or are replaced by another policy that applies are omitted.
    ///
    /// # Errors
    /// Returns [`SelectError::BadCost`] if the cost comes from a field of the request that is not a
    /// valid number, and the policy is enforced. Under a policy in observe mode such a request
    /// costs 1.
    pub fn select<'p>(
        &'p self,
        attributes: &Attributes<'_>,
    ) -> Result<SmallVec<[SelectedPolicy<'p>; 4]>, SelectError> {
        let mut matched_policies = self.matching(attributes)?;
        let replaced = replaced_names(matched_policies.iter().map(|one| one.policy.replaces()));
        if !replaced.is_empty() {
            matched_policies.retain(|one| !replaced.contains(one.policy.name()));
        }
        Ok(matched_policies)
    }

    /// Returns the policies that apply to a request, including those that are replaced. A request
    /// with several descriptors is selected once per descriptor, and a policy for one descriptor
    /// can replace a policy for another.
    pub(crate) fn matching<'p>(
        &'p self,
        attributes: &Attributes<'_>,
    ) -> Result<SmallVec<[SelectedPolicy<'p>; 4]>, SelectError> {
        let request = self.normalize(attributes);
        let candidates = self.index.candidates(&request);
        let mut selected = SmallVec::new();
        for &index in candidates.as_deref().unwrap_or(self.index.unindexed()) {
            let index = index as usize;
            let policy = &self.policies[index];
            if policy.matching().all_match(&request)
                && let Some(chosen) = choose((index, policy), &request)?
            {
                selected.push(chosen);
            }
        }
        Ok(selected)
    }

    /// Returns the policy with this name, whether or not it matches the request, under the key of
    /// its template. Returns `None` if the policy is off or exempts the request.
    ///
    /// # Errors
    /// Returns [`SelectError::UnknownPolicy`], or an error of [`Policies::select`].
    pub fn select_named<'p>(
        &'p self,
        name: &str,
        attributes: &Attributes<'_>,
    ) -> Result<Option<SelectedPolicy<'p>>, SelectError> {
        let found = self.find(name).ok_or_else(|| self.unknown_policy(name))?;
        choose(found, &self.normalize(attributes))
    }

    /// Returns the policy with this name under a key that the caller gives, or `None` if there is
    /// no such policy. Overrides apply if their conditions hold for the given attributes.
    /// Exemptions do not apply, and the mode may be [`Mode::Off`]. If the cost would come from the
    /// request, it is 1: a caller that gives the key also gives the cost.
    pub fn with_key<'p>(
        &'p self,
        name: &str,
        key: &[u8],
        attributes: Option<&Attributes<'_>>,
    ) -> Option<SelectedPolicy<'p>> {
        self.with_rendered_key(name, Key::literal(key), attributes)
    }

    /// Returns the policy with this name under a rendered key; see [`Policies::with_key`].
    pub(crate) fn with_rendered_key<'p>(
        &'p self,
        name: &str,
        key: Key,
        attributes: Option<&Attributes<'_>>,
    ) -> Option<SelectedPolicy<'p>> {
        let (_, policy) = self.find(name)?;
        let variant = attributes.map_or(0, |a| policy.variant_for(&self.normalize(a)));
        self.with_variant(name, key, variant)
    }

    /// Returns a variant of the policy with this name under a rendered key.
    pub(crate) fn with_variant(
        &self,
        name: &str,
        key: Key,
        variant: usize,
    ) -> Option<SelectedPolicy<'_>> {
        let (index, policy) = self.find(name)?;
        let cost = match policy.variants().get(variant)?.cost() {
            super::CostSource::Fixed(units) => *units,
            super::CostSource::From(_) => 1,
        };
        Some(SelectedPolicy::new((index, policy), key, variant, cost))
    }

    /// Returns the policy with this name.
    pub fn get(&self, name: &str) -> Option<&Policy> {
        self.find(name).map(|(_, policy)| policy)
    }

    /// Returns the policy with this name, and its index.
    #[inline]
    pub(crate) fn find(&self, name: &str) -> Option<(usize, &Policy)> {
        let index = *self.names.get(name)? as usize;
        Some((index, &self.policies[index]))
    }

    /// Returns the policy with this name.
    ///
    /// # Errors
    /// Returns [`SelectError::UnknownPolicy`] if there is none.
    pub fn get_or_err(&self, name: &str) -> Result<&Policy, SelectError> {
        self.get(name).ok_or_else(|| self.unknown_policy(name))
    }

    #[cold]
    pub(crate) fn unknown_policy(&self, name: &str) -> SelectError {
        SelectError::unknown_policy(name, self.policies.iter().map(Policy::name))
    }

    /// Returns all policies in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Policy> {
        self.policies.iter()
    }

    /// Returns the number of policies.
    pub fn len(&self) -> usize {
        self.policies.len()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty()
    }

    /// Returns the domains of the configs of envoyproxy/ratelimit from which policies were
    /// converted, in no order. A domain without limits is one of them.
    pub fn envoy_domains(&self) -> &HashSet<Box<str>, RandomState> {
        &self.envoy_domains
    }

    /// Returns how client addresses are found and grouped.
    pub fn identity(&self) -> &Identity {
        &self.options.identity
    }

    /// Returns whether path parameters and backslashes are resolved.
    pub fn path_variants(&self) -> PathVariants {
        self.options.path_variants
    }

    /// Explains the result of every policy for a request.
    pub fn explain(&self, attributes: &Attributes<'_>) -> Explanation<'_> {
        explain(&self.policies, &self.normalize(attributes))
    }

    /// Renders the key of a request with a template, which need not belong to a policy.
    pub(crate) fn render(&self, template: &Template, attributes: &Attributes<'_>) -> Key {
        template.render(&NormalizedRequest::new(attributes, &self.options, &Patterns::default()))
    }

    /// Returns the keys that a plain value may represent under a template.
    pub(crate) fn keys_for(&self, template: &Template, value: &[u8]) -> Vec<Key> {
        template.possible_keys(value, &self.options)
    }

    /// Returns whether a template can make this key.
    #[cfg(feature = "tower")]
    pub(crate) fn may_be_key(&self, template: &Template, key: &Key) -> bool {
        template.may_make(key.as_ref(), &self.options)
    }

    /// Returns whether a request has a value for every field of a template.
    #[cfg(feature = "tower")]
    pub(crate) fn has_key(&self, template: &Template, attributes: &Attributes<'_>) -> bool {
        template.has_all_fields(&NormalizedRequest::new(
            attributes,
            &self.options,
            &Patterns::default(),
        ))
    }

    fn normalize<'a>(&'a self, attributes: &'a Attributes<'a>) -> NormalizedRequest<'a> {
        NormalizedRequest::new(attributes, &self.options, &self.patterns)
    }
}

impl<'p> IntoIterator for &'p Policies {
    type Item = &'p Policy;
    type IntoIter = std::slice::Iter<'p, Policy>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Returns how a policy applies to a request that it matches; `None` if it is off or exempts it.
fn choose<'p>(
    (index, policy): (usize, &'p Policy),
    request: &NormalizedRequest<'_>,
) -> Result<Option<SelectedPolicy<'p>>, SelectError> {
    if policy.exempt().first_exempting(request).is_some() {
        return Ok(None);
    }
    let variant = policy.variant_for(request);
    let chosen = &policy.variants()[variant];
    if chosen.mode() == Mode::Off {
        return Ok(None);
    }
    let cost = match chosen.cost().units(request) {
        Ok(units) => units,
        // A policy in observe mode must not make requests fail.
        Err(_) if chosen.mode() == Mode::Observe => 1,
        Err(found) => {
            let (policy, field) = (policy.name().into(), chosen.cost().to_string());
            return Err(SelectError::BadCost { policy, field, found });
        }
    };
    let key = policy.key_template().render(request);
    Ok(Some(SelectedPolicy::new((index, policy), key, variant, cost)))
}

/// Returns the names of the policies that others replace. `replaces` has the list of each policy
/// that applies.
pub(crate) fn replaced_names<'p>(
    replaces: impl Iterator<Item = &'p [Box<str>]>,
) -> HashSet<&'p str> {
    replaces.flatten().map(|name| &**name).collect()
}

/// Returns the index of each policy by its name.
fn index_names(policies: &[Policy]) -> Result<Names, PoliciesError> {
    let mut names = Names::with_capacity_and_hasher(policies.len(), RandomState::default());
    for (index, policy) in (0..).zip(policies) {
        match names.entry(policy.name().into()) {
            Entry::Vacant(vacant) => {
                vacant.insert(index);
            }
            Entry::Occupied(first) => {
                let (first, second) = (*first.get() as usize, index as usize);
                return Err(PoliciesError::SameName { first, second });
            }
        }
    }
    Ok(names)
}

/// Checks that each replaced policy exists, and that no policy replaces itself.
fn check_replaces(policies: &[Policy], names: &Names) -> Result<(), PoliciesError> {
    for (index, policy) in policies.iter().enumerate() {
        if policy.replaces().len() > MAX_REPLACED {
            return Err(PoliciesError::TooManyReplaced { policy: index });
        }
        let is_other = |name: &str| name != policy.name() && names.contains_key(name);
        if let Some(replaced) = policy.replaces().iter().position(|name| !is_other(name)) {
            return Err(PoliciesError::ReplacesUnknown { policy: index, replaced });
        }
    }
    Ok(())
}

/// Returns the number of limits that apply to every request if no override does: those of the
/// policies without conditions. If they exceed the largest number of checks, the set is rejected,
/// instead of every request.
fn unconditional_limit_count(policies: &[Policy]) -> usize {
    let always = |policy: &&Policy| {
        let free = policy.matching().is_empty() && policy.exempt().is_empty();
        free && policy.mode() != Mode::Off
    };
    policies.iter().filter(always).map(|policy| policy.variants()[0].limits().len()).sum()
}

/// Compiles the patterns of `field` that need it into one set, and registers with each condition
/// the range of its patterns.
fn compile_patterns(
    policies: &mut [Policy],
    field: &RequestField,
) -> Result<PatternSet, PoliciesError> {
    let mut patterns: Vec<Pattern> = Vec::new();
    let conditions = policies.iter_mut().flat_map(Policy::conditions_mut);
    for condition in conditions.flat_map(Conditions::iter_mut).filter(|c| c.field() == field) {
        condition.register_patterns(&mut patterns);
    }
    PatternSet::new(patterns.iter()).map_err(|_| PoliciesError::PatternsTooLarge)
}

/// The error of a request for which policies cannot be selected. It is bad input, not a denial.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SelectError {
    /// No policy has this name.
    UnknownPolicy {
        /// The requested name, shortened.
        name: String,
        /// The name that was probably meant.
        near: Option<String>,
    },
    /// The field that the cost comes from does not hold a whole number up to 10^12.
    BadCost {
        /// The name of the policy.
        policy: String,
        /// The field, such as `{header:x-cost}`.
        field: String,
        /// Its value, shortened.
        found: String,
    },
}

impl SelectError {
    /// An unknown policy beside the names of those that exist. The name is truncated if it is long,
    /// and escaped, so that it is safe to print in a terminal.
    pub(crate) fn unknown_policy<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Self {
        let mut names = names.take(MAX_NAMES_COMPARED);
        let near = names.find(|near| is_one_typo_apart(name, near)).map(str::to_owned);
        SelectError::UnknownPolicy { name: excerpt(name), near }
    }
}

/// Writes the error about an unknown policy.
pub(crate) fn write_unknown_policy(
    name: &str,
    near: Option<&str>,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    write!(f, "there is no policy `{name}`")?;
    near.map_or(Ok(()), |near| write!(f, "; did you mean `{near}`?"))
}

impl fmt::Display for SelectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SelectError::UnknownPolicy { name, near } => {
                write_unknown_policy(name, near.as_deref(), f)
            }
            SelectError::BadCost { policy, field, found } => write!(
                f,
                "the cost for policy `{policy}` comes from {field}, which holds `{found}`: send a whole \
                 number from 0 to {}, or leave it out for 1",
                bounds::MAX_COUNT
            ),
        }
    }
}

impl std::error::Error for SelectError {}

/// The error of policies that cannot be in one set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoliciesError {
    /// There are more than `MAX_POLICIES` policies.
    TooMany,
    /// A request could be compared with more than `MAX_COMPARED` policies.
    TooManyCompared {
        /// The index of the policy with which the number is exceeded.
        policy: usize,
    },
    /// Two policies have the same name.
    SameName {
        /// The index of the first.
        first: usize,
        /// The index of the second.
        second: usize,
    },
    /// A policy replaces one that does not exist, or itself.
    ReplacesUnknown {
        /// The index of the policy.
        policy: usize,
        /// The index of the name in its list of replaced policies.
        replaced: usize,
    },
    /// A policy replaces more than `MAX_REPLACED` others.
    TooManyReplaced {
        /// The index of the policy.
        policy: usize,
    },
    /// The policies that match every request have more limits together than one request can be
    /// checked against.
    TooManyLimits,
    /// The path or host patterns are too large to compile together.
    PatternsTooLarge,
}

impl PoliciesError {
    /// Returns a short description of the error.
    pub const fn problem(self) -> &'static str {
        match self {
            PoliciesError::TooMany => "there are too many policies",
            PoliciesError::TooManyCompared { .. } => {
                "a request would be compared with more than 1024 policies"
            }
            PoliciesError::SameName { .. } => "two policies have this name",
            PoliciesError::ReplacesUnknown { .. } => "no other policy has a name that is replaced",
            PoliciesError::TooManyReplaced { .. } => "a policy replaces too many others",
            PoliciesError::TooManyLimits => "more than 256 limits hold for every request",
            PoliciesError::PatternsTooLarge => "the patterns are too large to compile together",
        }
    }

    /// Returns how to fix it.
    pub const fn help(self) -> &'static str {
        match self {
            PoliciesError::TooMany => "use at most 65536, and overrides for what differs by tenant",
            PoliciesError::TooManyCompared { .. } => {
                "match a list of descriptors with exact values, which are looked up, or use overrides for what differs by tenant"
            }
            PoliciesError::SameName { .. } => "give each policy a different name",
            PoliciesError::ReplacesUnknown { .. } => "name another policy in `replaces`",
            PoliciesError::TooManyReplaced { .. } => "replace at most 1024",
            PoliciesError::TooManyLimits => "give policies a `match`, or fewer limits",
            PoliciesError::PatternsTooLarge => "use fewer or simpler path and host patterns",
        }
    }
}

impl fmt::Display for PoliciesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.problem(), self.help())
    }
}

impl std::error::Error for PoliciesError {}

// The texts above contain these bounds.
const _: () = assert!(MAX_POLICIES == 65_536 && MAX_COMPARED == 1024);
const _: () = assert!(MAX_REPLACED == 1024 && MAX_CHECKS == 256);
