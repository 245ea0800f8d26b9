//! One rule in code: who is counted, under which limits, at which cost.

use std::borrow::Cow;
use std::fmt;

use super::head::Head;
use crate::policy::{Mode, OnStoreFailure, Template};
use crate::{Limit, Overflow};

pub(super) type KeyOf = dyn for<'a> Fn(&Head<'a>) -> Option<Cow<'a, str>> + Send + Sync;
pub(super) type PlanOf = KeyOf;
pub(super) type CostOf = dyn Fn(&Head<'_>) -> u64 + Send + Sync;
pub(super) type When = dyn Fn(&Head<'_>) -> bool + Send + Sync;

/// One rule: who is counted, under which limits, at which cost.
///
/// ```
/// use tidegate::tower::{RateLimitLayer, Rule};
///
/// /// Put into the request by the layer that checks logins.
/// #[derive(Clone)]
/// struct User {
///     name: String,
///     plan: &'static str,
/// }
///
/// let per_user = Rule::new("per-user", ["60 per 1m".parse()?])
///     .plan("gold", ["6000 per 1m".parse()?])
///     .plan_of(|head| Some(head.extension::<User>()?.plan.into()))
///     .key(|head| Some(head.extension::<User>()?.name.as_str().into()));
/// let per_address = Rule::new("per-address", ["1000 per 1m".parse()?]);
/// let layer = RateLimitLayer::builder().rule(per_user).rule(per_address).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Rule {
    pub(super) name: String,
    pub(super) limits: Vec<Limit>,
    pub(super) plans: Vec<(String, Vec<Limit>)>,
    pub(super) mode: Mode,
    pub(super) on_store_failure: OnStoreFailure,
    pub(super) overflow: Overflow,
    pub(super) key: KeyFrom,
    pub(super) plan: Option<Box<PlanOf>>,
    pub(super) cost: Option<Box<CostOf>>,
    pub(super) reserves: bool,
    pub(super) when: Option<Box<When>>,
    pub(super) keyless: Keyless,
}

/// Where a rule's keys come from.
pub(super) enum KeyFrom {
    /// The client's address.
    Address,
    Template(Template),
    Closure(Box<KeyOf>),
}

/// What becomes of a request that has no key: a closure gives none, or a part of the template is
/// missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Keyless {
    /// All such requests share one key, which no other request can have. Of a template with
    /// several parts, those share one that lack the same parts and agree in the rest.
    #[default]
    Share,
    /// The rule does not hold for it.
    Skip,
}

impl Rule {
    /// That each client address has these limits. The name appears in header fields and
    /// statistics: letters, digits, `.`, `_` and `-`.
    pub fn new(name: impl Into<String>, limits: impl IntoIterator<Item = Limit>) -> Self {
        Rule {
            name: name.into(),
            limits: limits.into_iter().collect(),
            plans: Vec::new(),
            mode: Mode::default(),
            on_store_failure: OnStoreFailure::default(),
            overflow: Overflow::default(),
            key: KeyFrom::Address,
            plan: None,
            cost: None,
            reserves: false,
            when: None,
            keyless: Keyless::default(),
        }
    }

    /// The same with other keys than client addresses.
    #[must_use]
    pub fn key(
        mut self,
        key: impl for<'a> Fn(&Head<'a>) -> Option<Cow<'a, str>> + Send + Sync + 'static,
    ) -> Self {
        self.key = KeyFrom::Closure(Box::new(key));
        self
    }

    /// The same with keys from a template, as in a policies file:
    /// `"{header:x-api-key | client_ip}"`.
    #[must_use]
    pub fn key_template(mut self, template: Template) -> Self {
        self.key = KeyFrom::Template(template);
        self
    }

    /// The same with other limits for those who have this plan. What they use is counted
    /// apart from the others', as policy `rule.plan`.
    #[must_use]
    pub fn plan(
        mut self,
        name: impl Into<String>,
        limits: impl IntoIterator<Item = Limit>,
    ) -> Self {
        self.plans.push((name.into(), limits.into_iter().collect()));
        self
    }

    /// The same, with plans told apart by this. One that was not named in
    /// [`Rule::plan`] has the rule's own limits.
    #[must_use]
    pub fn plan_of(
        mut self,
        plan: impl for<'a> Fn(&Head<'a>) -> Option<Cow<'a, str>> + Send + Sync + 'static,
    ) -> Self {
        self.plan = Some(Box::new(plan));
        self
    }

    /// The same at another cost than 1. A cost of 0 charges nothing and passes where 1 would;
    /// what is to pass in any case is left out with [`Rule::when`].
    #[must_use]
    pub fn cost(mut self, cost: impl Fn(&Head<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Box::new(cost));
        self.reserves = false;
        self
    }

    /// The same at a cost that is known only afterwards: this much is charged before, and the
    /// handler says through a [`Reservation`](super::Reservation) what it came to.
    #[must_use]
    pub fn reserve(mut self, estimate: impl Fn(&Head<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Box::new(estimate));
        self.reserves = true;
        self
    }

    /// The same, only for requests of which this is true.
    #[must_use]
    pub fn when(mut self, when: impl Fn(&Head<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.when = Some(Box::new(when));
        self
    }

    /// The same, with this done about requests without a key.
    #[must_use]
    pub fn keyless(mut self, keyless: Keyless) -> Self {
        self.keyless = keyless;
        self
    }

    /// The same in another mode: [`Mode::Observe`] decides and counts, and never denies.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// The same with another answer when a shared store fails.
    #[must_use]
    pub fn on_store_failure(mut self, answer: OnStoreFailure) -> Self {
        self.on_store_failure = answer;
        self
    }

    /// Sets the effect of a denied cost above 1: it charges nothing, or what is left.
    #[must_use]
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rule { name, limits, plans, mode, .. } = self;
        f.debug_struct("Rule")
            .field("name", name)
            .field("limits", limits)
            .field("plans", plans)
            .field("mode", mode)
            .finish_non_exhaustive()
    }
}
