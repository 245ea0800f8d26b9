//! A rule in code: its key, limits and cost.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;
use std::{fmt, slice};

use http::Response;

use super::request::Head;
use crate::policy::{Mode, OnStoreFailure, Template, TemplateError};
use crate::{Limit, Overflow};

pub(super) type KeyOf = dyn for<'a> Fn(&Head<'a>) -> Option<Cow<'a, str>> + Send + Sync;
pub(super) type PlanOf = KeyOf;
pub(super) type OnUnknownPlan = dyn Fn(&str) -> UnknownPlan + Send + Sync;
pub(super) type LimitsOf = dyn Fn(&Head<'_>) -> Option<Limits> + Send + Sync;
pub(super) type CostOf = dyn Fn(&Head<'_>) -> u64 + Send + Sync;
pub(super) type When = dyn Fn(&Head<'_>) -> bool + Send + Sync;
pub(super) type SettleWhen = dyn Fn(&Response<()>) -> bool + Send + Sync;

/// The largest number of plans of a rule. Each plan has counters and header text in memory.
pub(super) const MAX_PLANS: usize = 1024;

/// A rule of a layer: how requests are counted (the key), under which limits, and at which cost.
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
///     .plan("gold", ["6000 per 1m".parse()?, "100000 per 1h".parse()?])
///     .plan_of(|head| Some(head.extension::<User>()?.plan.into()))
///     .key(|head| Some(head.extension::<User>()?.name.as_str().into()));
/// let per_address = Rule::new("per-address", ["1000 per 1m".parse()?]);
/// let layer = RateLimitLayer::builder().rule(per_user).rule(per_address).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Rule {
    pub(super) name: String,
    pub(super) limits: Limits,
    pub(super) plans: Vec<(String, Limits)>,
    pub(super) mode: Mode,
    pub(super) on_store_failure: OnStoreFailure,
    pub(super) overflow: Overflow,
    /// An error is reported when the layer is built.
    pub(super) key: Result<KeyFrom, TemplateError>,
    pub(super) plan: Option<Box<PlanOf>>,
    pub(super) on_unknown_plan: Option<Box<OnUnknownPlan>>,
    pub(super) limits_of: Option<Box<LimitsOf>>,
    pub(super) cost: Option<Box<CostOf>>,
    pub(super) estimate: Option<Box<CostOf>>,
    pub(super) settle_when: Option<Box<SettleWhen>>,
    pub(super) when: Option<Box<When>>,
    pub(super) keyless: Keyless,
}

/// The source of a rule's keys.
pub(super) enum KeyFrom {
    /// The client's address.
    Address,
    Template(Template),
    Closure(Box<KeyOf>),
}

/// The effect of a request without a key: the closure returns none, a part of the template is
/// missing, or the client's address is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Keyless {
    /// All such requests share one key, which no other request can have. Under a template with
    /// several parts, requests share a key if they lack the same parts and agree in the others. An
    /// unknown address is answered 500 instead: it means that the server does not provide
    /// addresses.
    #[default]
    Share,
    /// The rule does not apply to the request.
    Skip,
    /// The request is answered 500. For rules whose key is always provided by another layer: if
    /// that layer is missing or runs too late, all clients would share one key. An observed rule
    /// shares a key instead.
    Reject,
}

/// The effect of a plan that a rule does not have; see [`Rule::on_unknown_plan`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnknownPlan {
    /// The request has the rule's own limits.
    #[default]
    Base,
    /// The request is answered 500, with a text that names the plan. The name may come from the
    /// client, so it is cut to 64 bytes, and control characters in it are escaped.
    Reject,
}

impl Rule {
    /// Creates a rule that limits each client address. The name appears in header fields and
    /// statistics, and consists of letters, digits, `.`, `_` and `-`.
    ///
    /// A limit from text is written in brackets, `["5 per 15m".parse()?]`, so that Rust can infer
    /// its type.
    pub fn new(name: impl Into<String>, limits: impl Into<Limits>) -> Self {
        Rule {
            name: name.into(),
            limits: limits.into(),
            plans: Vec::new(),
            mode: Mode::default(),
            on_store_failure: OnStoreFailure::default(),
            overflow: Overflow::default(),
            key: Ok(KeyFrom::Address),
            plan: None,
            on_unknown_plan: None,
            limits_of: None,
            cost: None,
            estimate: None,
            settle_when: None,
            when: None,
            keyless: Keyless::default(),
        }
    }

    /// Sets the key with a closure (default: the client's address).
    #[must_use]
    pub fn key(
        mut self,
        key: impl for<'a> Fn(&Head<'a>) -> Option<Cow<'a, str>> + Send + Sync + 'static,
    ) -> Self {
        self.key = Ok(KeyFrom::Closure(Box::new(key)));
        self
    }

    /// Sets the key with a template, as in a policies file:
    /// `"{header:x-api-key | client_ip}"`. An invalid template is an error when the layer is built.
    #[must_use]
    pub fn key_template(mut self, template: &str) -> Self {
        self.key = template.parse().map(KeyFrom::Template);
        self
    }

    /// Adds a plan: other limits for some clients. In header fields and statistics it is the policy
    /// `rule.plan`.
    ///
    /// A client that changes plan keeps its count: the plans of a rule and its own limits share
    /// counts if algorithm and window are the same. Under another window or algorithm the client
    /// starts from zero.
    #[must_use]
    pub fn plan(mut self, name: impl Into<String>, limits: impl Into<Limits>) -> Self {
        self.plans.push((name.into(), limits.into()));
        self
    }

    /// Sets the plan of a request; `None` for the rule's own limits. Text that is not borrowed from
    /// the request must be owned: `Some(plan.clone().into())`.
    #[must_use]
    pub fn plan_of(
        mut self,
        plan: impl for<'a> Fn(&Head<'a>) -> Option<Cow<'a, str>> + Send + Sync + 'static,
    ) -> Self {
        self.plan = Some(Box::new(plan));
        self
    }

    /// Sets the effect of a plan that was not added with [`Rule::plan`]. By default such a request
    /// has the rule's own limits. The closure gets the name of the plan, for example to log it.
    ///
    /// ```
    /// use tidegate::tower::{Rule, UnknownPlan};
    ///
    /// let rule = Rule::new("user", ["60 per 1m".parse()?])
    ///     .plan("pro", ["600 per 1m".parse()?])
    ///     .plan_of(|head| head.header("x-plan").map(Into::into));
    /// let strict = rule.on_unknown_plan(|plan| {
    ///     eprintln!("unknown plan {plan:?}");
    ///     UnknownPlan::Reject
    /// });
    /// # Ok::<(), tidegate::LimitError>(())
    /// ```
    #[must_use]
    pub fn on_unknown_plan(
        mut self,
        unknown: impl Fn(&str) -> UnknownPlan + Send + Sync + 'static,
    ) -> Self {
        self.on_unknown_plan = Some(Box::new(unknown));
        self
    }

    /// Sets the limits of each request, for example those that an outer layer has loaded from a
    /// database. With `None` the request has its plan's limits, or the rule's own. Nothing is kept
    /// about these limits, so there may be any number of different ones.
    ///
    /// ```
    /// use tidegate::Limit;
    /// use tidegate::tower::Rule;
    ///
    /// /// Put into the request by the layer that checks logins.
    /// #[derive(Clone)]
    /// struct Customer {
    ///     id: String,
    ///     limit: Limit,
    /// }
    ///
    /// let rule = Rule::new("customer", ["60 per 1m".parse()?])
    ///     .key(|head| Some(head.extension::<Customer>()?.id.as_str().into()))
    ///     .limits_of(|head| Some(head.extension::<Customer>()?.limit));
    /// # Ok::<(), tidegate::LimitError>(())
    /// ```
    ///
    /// A client whose limits change keeps its count, as with [`Rule::plan`]. In statistics such
    /// limits share one series per rule, with the limit `per-request`.
    ///
    /// A request is answered 500 if its list is empty, has more than 16 limits or two with the same
    /// algorithm and window, or has a `concurrency` limit in a rule with a cost.
    #[must_use]
    pub fn limits_of<L: Into<Limits>>(
        mut self,
        limits: impl Fn(&Head<'_>) -> Option<L> + Send + Sync + 'static,
    ) -> Self {
        self.limits_of = Some(Box::new(move |head| limits(head).map(Into::into)));
        self
    }

    /// Sets the cost (default: 1). A cost of 0 charges nothing and is admitted if a cost of 1 would
    /// be. To admit requests in any case, exclude them with [`Rule::when`].
    #[must_use]
    pub fn cost(mut self, cost: impl Fn(&Head<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Box::new(cost));
        self
    }

    /// Charges an estimate of a cost that is known only afterwards. Through a
    /// [`Reservation`](super::Reservation) the handler commits the actual cost, or changes the
    /// estimate when it has read the body.
    ///
    /// If the handler does not commit, the status of the response decides: a 5xx refunds the
    /// estimate, any other status keeps it charged. [`Rule::settle_when`] sets another condition.
    #[must_use]
    pub fn reserve(mut self, estimate: impl Fn(&Head<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.estimate = Some(Box::new(estimate));
        self
    }

    /// Keeps the charge only if this returns true for the response, and refunds it otherwise. The
    /// cost is charged before the request is served, so concurrent requests cannot exceed the limit
    /// together.
    ///
    /// ```
    /// use http::StatusCode;
    /// use tidegate::tower::Rule;
    ///
    /// // Only failed logins count.
    /// let logins = Rule::new("login", ["5 per 15m".parse()?])
    ///     .settle_when(|response| response.status() == StatusCode::UNAUTHORIZED);
    /// // Only successful generations count.
    /// let images = Rule::new("images", ["20 per 1h".parse()?])
    ///     .settle_when(|response| response.status().is_success());
    /// # Ok::<(), tidegate::LimitError>(())
    /// ```
    ///
    /// The closure sees status, header fields and extensions, not the body. If the service fails or
    /// panics, or its future is dropped, there is no response: the cost stays charged, and only a
    /// [reservation](Rule::reserve) is refunded.
    ///
    /// A closure in a variable needs the type of its parameter: `|response: &Response<()>| ..`.
    #[must_use]
    pub fn settle_when(
        mut self,
        settle: impl Fn(&Response<()>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settle_when = Some(Box::new(settle));
        self
    }

    /// Applies the rule only to requests for which this returns true.
    #[must_use]
    pub fn when(mut self, when: impl Fn(&Head<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.when = Some(Box::new(when));
        self
    }

    /// Sets the effect of a request without a key (default: [`Keyless::Share`]).
    #[must_use]
    pub fn keyless(mut self, keyless: Keyless) -> Self {
        self.keyless = keyless;
        self
    }

    /// Sets the mode (default: [`Mode::Enforce`]). [`Mode::Observe`] decides and counts, and never
    /// denies.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the decision while a shared store fails.
    #[must_use]
    pub fn on_store_failure(mut self, behavior: OnStoreFailure) -> Self {
        self.on_store_failure = behavior;
        self
    }

    /// Sets the effect of a denied cost above 1: [`Overflow::Refuse`], the default, charges
    /// nothing; [`Overflow::Consume`] charges what is left. It has no effect on a denial in
    /// [`Reservation::reserve`](super::Reservation::reserve).
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

/// One limit or several, for [`Rule::new`](super::Rule::new), [`Rule::plan`](super::Rule::plan) and
/// [`Rule::limits_of`](super::Rule::limits_of). A clone does not allocate.
///
/// ```
/// use tidegate::Limit;
/// use tidegate::tower::Rule;
///
/// let burst: Limit = "20 per 1s".parse()?;
/// let total: Limit = "600 per 1h".parse()?;
/// let one = Rule::new("one", total);
/// let both = Rule::new("both", [burst, total]);
/// # Ok::<(), tidegate::LimitError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits(Inner);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Inner {
    /// Stored without an allocation: most requests have one limit.
    One(Limit),
    Several(Arc<[Limit]>),
}

impl Deref for Limits {
    type Target = [Limit];

    fn deref(&self) -> &[Limit] {
        match &self.0 {
            Inner::One(limit) => slice::from_ref(limit),
            Inner::Several(limits) => limits,
        }
    }
}

impl From<Limit> for Limits {
    fn from(limit: Limit) -> Self {
        Limits(Inner::One(limit))
    }
}

impl From<&[Limit]> for Limits {
    fn from(limits: &[Limit]) -> Self {
        match limits {
            [limit] => (*limit).into(),
            limits => Limits(Inner::Several(limits.into())),
        }
    }
}

impl<const N: usize> From<[Limit; N]> for Limits {
    fn from(limits: [Limit; N]) -> Self {
        limits.as_slice().into()
    }
}

impl From<Vec<Limit>> for Limits {
    fn from(limits: Vec<Limit>) -> Self {
        limits.as_slice().into()
    }
}

impl From<Arc<[Limit]>> for Limits {
    fn from(limits: Arc<[Limit]>) -> Self {
        Limits(Inner::Several(limits))
    }
}
