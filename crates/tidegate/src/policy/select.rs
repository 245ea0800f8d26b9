//! All policies together: which of them a request meets.

use std::collections::HashSet;
use std::fmt;

use smallvec::SmallVec;
use tidegate_core::{Limit, bounds};

use super::condition::Conditions;
use super::explain::{Explanation, explain};
use super::facts::{Facts, Patterns, Reading};
use super::index::Index;
use super::key::Key;
use super::part::Part;
use super::path::PathVariants;
use super::pattern::{Pattern, PatternSet};
use super::rule::{MAX_NAME_BYTES, MAX_REPLACED, Policy};
use super::template::Template;
use super::{Mode, OnStoreFailure};
use crate::Overflow;
use crate::attributes::Attributes;
use crate::char_boundary::floor_char_boundary;
use crate::check::MAX_CHECKS;
use crate::identity::Identity;

/// Most policies: each is held against every request.
pub(crate) const MAX_POLICIES: usize = 1024;

/// A set of policies, ready to be asked. By default there are none.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    policies: Vec<Policy>,
    index: Index,
    patterns: Patterns,
    reading: Reading,
}

/// A policy that a request meets, and how.
#[derive(Clone, Debug)]
pub struct Selected<'p> {
    /// The policy.
    pub policy: &'p Policy,
    /// Who is counted.
    pub key: Key,
    /// The limits it is counted under.
    pub limits: &'p [Limit],
    /// Whether a denial counts.
    pub mode: Mode,
    /// What to answer when the store cannot.
    pub on_store_failure: OnStoreFailure,
    /// Units asked for, unless the caller says otherwise.
    pub cost: u64,
    /// Its overflow; `None` if the question decides.
    pub overflow: Option<Overflow>,
    /// Which of [`Policy::variants`] it is: 0 for the policy itself, *n* for its *n*-th override.
    pub variant: usize,
}

impl<'p> Selected<'p> {
    fn new(policy: &'p Policy, key: Key, variant: usize, cost: u64) -> Self {
        let chosen = &policy.variants()[variant];
        Selected {
            policy,
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
    /// Policies in the order given, with addresses grouped as `identity` says.
    ///
    /// # Errors
    /// When two share a name, or there are too many.
    pub fn new(mut policies: Vec<Policy>, identity: Identity) -> Result<Self, PoliciesError> {
        if policies.len() > MAX_POLICIES {
            return Err(PoliciesError::TooMany);
        }
        for (second, policy) in policies.iter().enumerate() {
            if let Some(first) = policies[..second].iter().position(|p| p.name() == policy.name()) {
                return Err(PoliciesError::SameName { first, second });
            }
        }
        if held_always(&policies) > MAX_CHECKS {
            return Err(PoliciesError::TooManyLimits);
        }
        let patterns = Patterns {
            paths: place(&mut policies, &Part::Path)?,
            hosts: place(&mut policies, &Part::Host)?,
        };
        check_replaces(&policies)?;
        let reading = Reading { identity, path_variants: PathVariants::default() };
        Ok(Policies { index: Index::new(&policies), policies, patterns, reading })
    }

    /// Sets how path parameters and backslashes are read.
    ///
    /// ```
    /// use tidegate::unstable::policy::{PathVariants, Policies};
    ///
    /// let policies = Policies::default().with_path_variants(PathVariants::Keep);
    /// assert_eq!(policies.path_variants(), PathVariants::Keep);
    /// ```
    #[must_use]
    pub fn with_path_variants(mut self, path_variants: PathVariants) -> Self {
        self.reading.path_variants = path_variants;
        self
    }

    /// Every policy that a request meets, in order. Policies that are off, spare this
    /// request or are replaced by another that it meets are left out.
    ///
    /// # Errors
    /// When the request's cost is to come from a part of it that is no number, and the policy
    /// is enforced. Under one that is only observed such a request costs 1.
    pub fn select<'p>(
        &'p self,
        attributes: &Attributes<'_>,
    ) -> Result<SmallVec<[Selected<'p>; 4]>, SelectError> {
        let mut met = self.meet(attributes)?;
        if met.iter().all(|one| one.policy.replaces().is_empty()) {
            return Ok(met);
        }
        let replaced: SmallVec<[bool; 4]> =
            met.iter().map(|one| is_replaced(one.policy.name(), met.iter())).collect();
        let mut replaced = replaced.into_iter();
        met.retain(|_| !replaced.next().unwrap_or(false));
        Ok(met)
    }

    /// The same with those that are replaced: over several descriptors, a policy that one
    /// of them meets may replace what another meets.
    pub(crate) fn meet<'p>(
        &'p self,
        attributes: &Attributes<'_>,
    ) -> Result<SmallVec<[Selected<'p>; 4]>, SelectError> {
        let facts = self.facts(attributes);
        let candidates = self.index.candidates(&facts);
        let mut selected = SmallVec::new();
        for &place in candidates.as_deref().unwrap_or(self.index.anyone()) {
            let policy = &self.policies[place as usize];
            if policy.matching().all_hold(&facts)
                && let Some(chosen) = choose(policy, &facts)?
            {
                selected.push(chosen);
            }
        }
        Ok(selected)
    }

    /// The policy of this name, whether or not it matches, with the key its
    /// template makes; `None` if it is off or spares this request.
    ///
    /// # Errors
    /// When there is no such policy, or as [`Policies::select`].
    pub fn select_named<'p>(
        &'p self,
        name: &str,
        attributes: &Attributes<'_>,
    ) -> Result<Option<Selected<'p>>, SelectError> {
        choose(self.find(name)?, &self.facts(attributes))
    }

    /// The policy of this name under a key the caller gives; `None` if there is
    /// no such policy. Overrides hold if the attributes given say so. Nobody is
    /// exempt, the mode may be [`Mode::Off`], and a cost that is to come from
    /// the request is 1: who names the key names the cost.
    pub fn named<'p>(
        &'p self,
        name: &str,
        key: &[u8],
        attributes: Option<&Attributes<'_>>,
    ) -> Option<Selected<'p>> {
        self.under(name, Key::given(key), attributes)
    }

    /// The policy of this name under a key that was made before; otherwise as
    /// [`Policies::named`].
    pub(crate) fn under<'p>(
        &'p self,
        name: &str,
        key: Key,
        attributes: Option<&Attributes<'_>>,
    ) -> Option<Selected<'p>> {
        let policy = self.get(name)?;
        let variant = attributes.map_or(0, |a| policy.variant_for(&self.facts(a)));
        let cost = match policy.variants()[variant].cost() {
            super::Charge::Fixed(units) => *units,
            super::Charge::From(_) => 1,
        };
        Some(Selected::new(policy, key, variant, cost))
    }

    /// The policy of this name.
    pub fn get(&self, name: &str) -> Option<&Policy> {
        self.policies.iter().find(|policy| policy.name() == name)
    }

    /// The same, or the error that says there is none.
    ///
    /// # Errors
    /// [`SelectError::UnknownPolicy`].
    pub fn find(&self, name: &str) -> Result<&Policy, SelectError> {
        self.get(name).ok_or_else(|| SelectError::UnknownPolicy { name: shown(name) })
    }

    /// Every policy, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Policy> {
        self.policies.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.policies.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty()
    }

    /// How addresses are grouped, and which proxies are believed.
    pub fn identity(&self) -> &Identity {
        &self.reading.identity
    }

    /// How path parameters and backslashes are read.
    pub fn path_variants(&self) -> PathVariants {
        self.reading.path_variants
    }

    /// What every policy makes of a request, and why.
    pub fn explain(&self, attributes: &Attributes<'_>) -> Explanation<'_> {
        explain(&self.policies, &self.facts(attributes))
    }

    /// The key that a template makes of a request, whichever policy's it is.
    pub(crate) fn render(&self, template: &Template, attributes: &Attributes<'_>) -> Key {
        template.render(&Facts::new(attributes, &self.reading, &Patterns::default()))
    }

    /// The keys that a plain value may stand for under a template.
    pub(crate) fn keys_for(&self, template: &Template, value: &[u8]) -> Vec<Key> {
        template.readings(value, &self.reading)
    }

    /// Whether a request has all that a template makes keys of.
    #[cfg(feature = "tower")]
    pub(crate) fn has_key(&self, template: &Template, attributes: &Attributes<'_>) -> bool {
        template.is_whole(&Facts::new(attributes, &self.reading, &Patterns::default()))
    }

    fn facts<'a>(&'a self, attributes: &'a Attributes<'a>) -> Facts<'a> {
        Facts::new(attributes, &self.reading, &self.patterns)
    }
}

impl<'p> IntoIterator for &'p Policies {
    type Item = &'p Policy;
    type IntoIter = std::slice::Iter<'p, Policy>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// How a policy applies to a request it matches; `None` if it is off or spares it.
fn choose<'p>(policy: &'p Policy, facts: &Facts<'_>) -> Result<Option<Selected<'p>>, SelectError> {
    if policy.exempt().first_that_exempts(facts).is_some() {
        return Ok(None);
    }
    let variant = policy.variant_for(facts);
    let chosen = &policy.variants()[variant];
    if chosen.mode() == Mode::Off {
        return Ok(None);
    }
    let cost = match chosen.cost().units(facts) {
        Ok(units) => units,
        // What only watches must not make requests fail.
        Err(_) if chosen.mode() == Mode::Observe => 1,
        Err(found) => {
            let (policy, part) = (policy.name().into(), chosen.cost().to_string());
            return Err(SelectError::BadCost { policy, part, found });
        }
    };
    let key = policy.key_template().render(facts);
    Ok(Some(Selected::new(policy, key, variant, cost)))
}

/// Whether one of those that are met takes the place of the policy of this name.
fn is_replaced<'s, 'p: 's>(name: &str, mut met: impl Iterator<Item = &'s Selected<'p>>) -> bool {
    met.any(|one| one.policy.replaces().iter().any(|replaced| **replaced == *name))
}

/// That what a policy replaces is there, and is another.
fn check_replaces(policies: &[Policy]) -> Result<(), PoliciesError> {
    let names: HashSet<&str> = policies.iter().map(Policy::name).collect();
    for (index, policy) in policies.iter().enumerate() {
        if policy.replaces().len() > MAX_REPLACED {
            return Err(PoliciesError::TooManyReplaced { policy: index });
        }
        let is_other = |name: &str| name != policy.name() && names.contains(name);
        if let Some(replaced) = policy.replaces().iter().position(|name| !is_other(name)) {
            return Err(PoliciesError::ReplacesNobody { policy: index, replaced });
        }
    }
    Ok(())
}

/// How many limits hold for a request that no policy exempts or overrides: those of
/// the policies that match everything. What is more than a request may have is
/// found here, and not by every request.
fn held_always(policies: &[Policy]) -> usize {
    let always = |policy: &&Policy| {
        let free = policy.matching().is_empty() && policy.exempt().is_empty();
        free && policy.mode() != Mode::Off
    };
    policies.iter().filter(always).map(|policy| policy.variants()[0].limits().len()).sum()
}

/// Compiles every pattern over `part` into one set and tells each condition
/// where in it its own begin.
fn place(policies: &mut [Policy], part: &Part) -> Result<PatternSet, PoliciesError> {
    let mut patterns: Vec<Pattern> = Vec::new();
    let conditions = policies.iter_mut().flat_map(Policy::conditions_mut);
    for condition in conditions.flat_map(Conditions::iter_mut).filter(|c| c.part() == part) {
        condition.place(&mut patterns);
    }
    PatternSet::new(patterns.iter()).map_err(|_| PoliciesError::PatternsTooLarge)
}

/// A name as an error repeats it: no control characters, no pasted file. What was cut
/// off is seen to be.
pub(crate) fn shown(name: &str) -> String {
    let mut out = String::new();
    let end = floor_char_boundary(name, MAX_NAME_BYTES);
    // Writing to memory cannot fail.
    let _ = super::key::write_escaped(&name.as_bytes()[..end], &mut out);
    if end < name.len() {
        out.push_str("...");
    }
    out
}

/// A request that cannot be held against the policies: bad input, not a denial.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SelectError {
    /// There is no policy of this name.
    UnknownPolicy {
        /// The name asked for.
        name: String,
    },
    /// The cost is to come from a part of the request that holds no whole number up to 10^12.
    BadCost {
        /// The policy that wants it.
        policy: String,
        /// The part, such as `{header:x-cost}`.
        part: String,
        /// What it holds, shortened.
        found: String,
    },
}

impl fmt::Display for SelectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SelectError::UnknownPolicy { name } => write!(f, "there is no policy `{name}`"),
            SelectError::BadCost { policy, part, found } => write!(
                f,
                "the cost for policy `{policy}` comes from {part}, which holds `{found}`: send a whole \
                 number from 0 to {}, or leave it out for 1",
                bounds::MAX_COUNT
            ),
        }
    }
}

impl std::error::Error for SelectError {}

/// Policies that cannot stand together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoliciesError {
    /// More than `MAX_POLICIES`.
    TooMany,
    /// Two share a name.
    SameName {
        /// Index of the first.
        first: usize,
        /// Index of the second.
        second: usize,
    },
    /// A policy is to replace one that is not there, or itself.
    ReplacesNobody {
        /// Its index.
        policy: usize,
        /// Which of the names it is.
        replaced: usize,
    },
    /// A policy is to replace more than `MAX_REPLACED`.
    TooManyReplaced {
        /// Its index.
        policy: usize,
    },
    /// Policies that match every request have more limits together than one request
    /// may be checked against.
    TooManyLimits,
    /// The path or host patterns are too large to compile together.
    PatternsTooLarge,
}

impl PoliciesError {
    /// What is wrong, in a few words.
    pub const fn problem(self) -> &'static str {
        match self {
            PoliciesError::TooMany => "there are too many policies",
            PoliciesError::SameName { .. } => "two policies have this name",
            PoliciesError::ReplacesNobody { .. } => "no other policy has a name that is replaced",
            PoliciesError::TooManyReplaced { .. } => "a policy replaces too many others",
            PoliciesError::TooManyLimits => "more than 256 limits hold for every request",
            PoliciesError::PatternsTooLarge => "the patterns are too large to compile together",
        }
    }

    /// What to do instead.
    pub const fn help(self) -> &'static str {
        match self {
            PoliciesError::TooMany => "use at most 1024, and overrides for what differs by tenant",
            PoliciesError::SameName { .. } => "give each policy a name of its own",
            PoliciesError::ReplacesNobody { .. } => "name another policy in `replaces`",
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

// The texts above name the bounds; this keeps them true.
const _: () = assert!(MAX_POLICIES == 1024 && MAX_REPLACED == 1024 && MAX_CHECKS == 256);
