//! The state that all clones of a layer share, and the decision about a request: the rules become
//! one request to the gate.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, Response, StatusCode};
use tidegate_core::Cost;

use super::compiled_rule::{CompiledRule, NoKey, uses_address};
use super::denial::{self, OnDenied, Rejection};
use super::error::RuleFault;
use super::request::{GuardState, Head, HeldPermits, RequestGuard};
use super::reservation::{PendingPart, Reservation, SettleOnDrop};
use super::rule::Limits;
use crate::attributes::{Attributes, Headers};
use crate::futures::CallTracker;
use crate::futures::poll_once;
use crate::gate::{
    ActivePolicies, CodePolicy, ConcurrencyMode, Gate, GateCall, GateError, GateRequest,
    GateVerdict, Plan, RequestContext, Subject,
};
use crate::headers::Forms;
use crate::policy::{Key, Mode, SelectedPolicy};

pub(super) type PeerOf = dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync;

/// The rules with `limits_of` that apply to the request, by index, with the limits they got.
type RequestLimits = Vec<(usize, Option<Limits>)>;

/// The state that all clones of a layer share.
pub(super) struct LayerState {
    pub(super) gate: Arc<Gate>,
    /// The active policies of a gate without policies, which are never reloaded. `None` if a file
    /// or a gate provides policies.
    pub(super) fixed: Option<Arc<ActivePolicies>>,
    pub(super) rules: Box<[CompiledRule]>,
    pub(super) forms: Forms,
    pub(super) max_wait: Option<Duration>,
    pub(super) peer: Option<Box<PeerOf>>,
    pub(super) on_denied: Option<Box<OnDenied>>,
}

/// The response to a rejected request.
pub(super) type RejectionResponse = Box<Response<Bytes>>;

impl LayerState {
    /// Whether requests are decided without waiting: in memory, and without `max_wait`.
    pub(super) fn is_immediate(&self) -> bool {
        !self.gate.is_shared() && self.max_wait.is_none()
    }

    /// All policies of the layer's rules.
    pub(super) fn policies(&self) -> impl Iterator<Item = &CodePolicy> {
        self.rules.iter().flat_map(CompiledRule::policies)
    }

    /// Returns a policy by the index of its rule and its index in that rule.
    pub(super) fn policy_at(&self, (rule, index): (usize, usize)) -> Option<&CodePolicy> {
        Some(self.rules.get(rule)?.policy(index))
    }

    /// Decides a request without waiting. The guard is filled in if the request is admitted.
    pub(super) fn decide_now(
        self: &Arc<Self>,
        mut head: Head<'_>,
        guard: &mut RequestGuard,
    ) -> Result<(), RejectionResponse> {
        let loaded;
        let active: &ActivePolicies = match &self.fixed {
            Some(active) => active,
            None => {
                loaded = self.gate.active_policies();
                &loaded
            }
        };
        let tracker = CallTracker::default();
        let decided = poll_once(self.decide(active, &mut head, &tracker, guard));
        decided.unwrap_or_else(|| Err(self.refuse(&head, &GateError::MustAwait)))
    }

    /// The active policies, for a request that may wait.
    pub(super) fn active_policies(&self) -> Arc<ActivePolicies> {
        match &self.fixed {
            Some(active) => Arc::clone(active),
            None => Arc::clone(&self.gate.active_policies()),
        }
    }

    /// Decides a request; waits for its place in the queue and for a shared store, if there are
    /// any. The guard is filled in if the request is admitted.
    pub(super) async fn decide(
        self: &Arc<Self>,
        active: &ActivePolicies,
        head: &mut Head<'_>,
        tracker: &CallTracker,
        guard: &mut RequestGuard,
    ) -> Result<(), RejectionResponse> {
        self.identify(active, head);
        let attributes = self.fixed.is_none().then(|| head.attributes());
        let request_limits = self.request_limits(head)?;
        // Not a tuple of both: a call is large, and would be copied out of it.
        let mut call = GateCall::default();
        let mut reserving = Vec::new();
        let planned = (&mut call.plan, &mut reserving);
        self.plan(active, attributes.as_ref(), &request_limits, head, planned)?;
        let route = || Some(head.path());
        let named = RequestContext {
            id: None,
            route: &route,
            request_id: None,
            max_wait: self.max_wait,
            is_counted: true,
        };
        let admission = match self.is_immediate() {
            true => self.gate.admit_in_memory(&mut call, &named),
            false => self.gate.admit_planned(tracker, &mut call, &named).await,
        };
        admission.map_err(|error| self.refuse(head, &error))?;
        self.finish(head, &mut call, reserving, guard)
    }

    /// Finds the address of the client that sent a request.
    #[inline(never)]
    fn identify(&self, active: &ActivePolicies, head: &mut Head<'_>) {
        match &self.peer {
            Some(peer) => head.client_ip = peer(head.extensions()),
            None => usual_peer(head.extensions(), &mut head.client_ip),
        }
        let headers = Headers::Map(head.headers());
        active.policies().identity().resolve(&mut head.client_ip, &headers);
    }

    /// Returns the limits that come with the request, for the rules with `limits_of`.
    #[inline]
    fn request_limits(&self, head: &Head<'_>) -> Result<RequestLimits, RejectionResponse> {
        let mut request_limits = RequestLimits::new();
        for (index, rule) in self.rules.iter().enumerate() {
            if rule.takes_limits() && rule.applies(head) {
                request_limits
                    .push((index, rule.limits_of(head).map_err(|fault| self.fail(head, &fault))?));
            }
        }
        Ok(request_limits)
    }

    /// Plans the checks of the rules, followed by those of the gate's policies that match
    /// `attributes`. Appends the charges that are settled later to `reserving`.
    #[inline(never)]
    fn plan<'a>(
        &'a self,
        active: &'a ActivePolicies,
        attributes: Option<&'a Attributes<'a>>,
        request_limits: &'a RequestLimits,
        head: &Head<'_>,
        (plan, reserving): (&mut Plan<'a>, &mut Vec<PendingPart>),
    ) -> Result<(), RejectionResponse> {
        for (index, rule) in self.rules.iter().enumerate() {
            let limits = match request_limits.iter().find(|(taking, _)| *taking == index) {
                Some((_, limits)) => limits.as_ref(),
                None if rule.takes_limits() || !rule.applies(head) => continue,
                None => None,
            };
            let policy = match limits {
                Some(_) => 0,
                None => rule.policy_for(head).map_err(|fault| self.fail(head, &fault))?,
            };
            let code_policy = rule.policy(policy);
            let key = plan.begin_key(code_policy.policy().count_name());
            match rule.write_key(active, head, &mut plan.keys) {
                Ok(true) => {}
                Ok(false) => {
                    plan.keys.truncate(key.start);
                    continue;
                }
                Err(NoKey::Address) => return Err(self.fail(head, &RuleFault::NoAddress)),
                Err(NoKey::Other) => {
                    return Err(self.fail(head, &RuleFault::NoKey { rule: rule.name() }));
                }
            }
            let units = rule.units(head);
            if rule.is_settled_later() {
                let (key, policy_index) =
                    (Key::from_rendered(&plan.keys[key.key_offset..]), (index, policy));
                reserving.push(PendingPart { key, policy_index, limits: limits.cloned(), units });
            }
            plan.push_code_policy(
                code_policy,
                limits.map(|limits| &**limits),
                key,
                Cost::Ask(units),
            );
        }
        if let Some(attributes) = attributes {
            if head.client_ip().is_none() && gate_needs_address(active, attributes) {
                return Err(self.fail(head, &RuleFault::NoAddress));
            }
            let request = GateRequest::new(Subject::Request(attributes));
            plan.match_policies(active, &request, 0).map_err(|error| self.refuse(head, &error))?;
        }
        plan.finalize(&[], ConcurrencyMode::HoldIfAny).map_err(|error| self.refuse(head, &error))
    }

    /// Turns the gate's verdict into the guard of an admitted request, or into a denial.
    #[inline(never)]
    fn finish(
        self: &Arc<Self>,
        head: &Head<'_>,
        call: &mut GateCall<'_>,
        reserving: Vec<PendingPart>,
        guard: &mut RequestGuard,
    ) -> Result<(), RejectionResponse> {
        if !call.verdict.allowed {
            return Err(self.deny(head, &call.verdict));
        }
        if self.forms != Forms::NONE {
            call.verdict.fill_fields(self.forms, || self.gate.now(), &mut guard.fields);
        }
        if call.permit.is_some() || call.timer.is_some() || !reserving.is_empty() {
            let permits = call.permit.take().map(|permit| HeldPermits::new(&self.gate, permit));
            let reservation = Reservation::new(self, reserving, &call.verdict);
            let (timer, unsettled) = (call.timer.take(), reservation.map(SettleOnDrop::new));
            guard.held = Some(Box::new(GuardState { permits, timer, unsettled }));
        }
        Ok(())
    }

    #[cold]
    fn deny(&self, head: &Head<'_>, verdict: &GateVerdict<'_>) -> RejectionResponse {
        let response = denial::response_to(head, verdict, self.forms, self.gate.now());
        self.reject(head, response, |response| Rejection::denied(response, verdict))
    }

    #[cold]
    fn refuse(&self, head: &Head<'_>, error: &GateError) -> RejectionResponse {
        self.fail_with(head, denial::status_of(error), error.to_string())
    }

    #[cold]
    fn fail(&self, head: &Head<'_>, fault: &RuleFault<'_>) -> RejectionResponse {
        self.fail_with(head, StatusCode::INTERNAL_SERVER_ERROR, fault.to_string())
    }

    fn fail_with(&self, head: &Head<'_>, status: StatusCode, detail: String) -> RejectionResponse {
        let response = denial::fail(head, status, &detail);
        self.reject(head, response, |response| Rejection::undecided(response, detail))
    }

    /// Returns the response to a rejected request. All responses that the layer makes itself are
    /// returned here.
    fn reject(
        &self,
        head: &Head<'_>,
        response: Response<String>,
        rejection: impl FnOnce(Response<String>) -> Rejection,
    ) -> RejectionResponse {
        let response = match &self.on_denied {
            Some(on_denied) => denial::replace(on_denied, head, rejection(response)),
            None => response.map(Bytes::from),
        };
        response.into()
    }
}

/// Whether an enforced policy that matches this request counts by address. Called only if the
/// address is unknown. Errors of the selection are ignored here: the decision reports them.
#[cold]
fn gate_needs_address(active: &ActivePolicies, attributes: &Attributes<'_>) -> bool {
    let selected = active.policies().select(attributes).unwrap_or_default();
    let needs = |one: &SelectedPolicy<'_>| {
        one.mode == Mode::Enforce && uses_address(one.policy.key_template())
    };
    selected.iter().any(needs)
}

/// Finds the address of the peer in the extensions where servers put it. It is written in place,
/// four bytes of an IPv4 address: a copy of sixteen would stall.
#[inline(never)]
fn usual_peer(extensions: &Extensions, address: &mut Option<IpAddr>) {
    #[cfg(feature = "axum")]
    if let Some(info) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>() {
        *address = Some(info.0.ip());
        return;
    }
    let socket = extensions.get().map(SocketAddr::ip);
    *address = socket.or_else(|| extensions.get::<IpAddr>().copied());
}
