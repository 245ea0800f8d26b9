//! What all clones of a layer share, and how it decides about a request: that is, how it
//! asks the gate.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, Response, StatusCode};
use tidegate_core::Cost;

use super::compiled_rule::{CompiledRule, NoAddress, uses_address};
use super::denial::{self, Denied};
use super::guard::{GuardState, HeldPermits, RequestGuard};
use super::head::Head;
use super::reservation::{Reservation, Reserving, Unsettled};
use crate::asker::Asker;
use crate::attributes::{Attributes, Headers};
use crate::gate::{
    Answer, Gate, GateError, Named, OwnPolicy, Plan, Question, Rules, Subject, Taking, poll_once,
};
use crate::headers::Forms;
use crate::policy::{Key, Mode, Selected};

pub(super) type PeerOf = dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync;
pub(super) type OnDenied = dyn Fn(&Denied<'_, '_>) -> Response<Bytes> + Send + Sync;

/// What is told where a client's address is needed and nobody has said where it is.
const NO_ADDRESS: &str = "the client's address is not known: serve the app with \
    `into_make_service_with_connect_info::<SocketAddr>()` (and tidegate's feature `axum`), \
    or tell the layer where it is with `peer(..)`";

pub(super) struct Core {
    pub(super) gate: Arc<Gate>,
    /// The rules of a gate that has no policies but the layer's.
    pub(super) fixed: Option<Arc<Rules>>,
    pub(super) rules: Box<[CompiledRule]>,
    pub(super) forms: Forms,
    pub(super) max_wait: Option<Duration>,
    pub(super) peer: Option<Box<PeerOf>>,
    pub(super) on_denied: Option<Box<OnDenied>>,
}

/// The response to a request that is not let through.
pub(super) type Refusal = Box<Response<Bytes>>;

impl Core {
    /// Whether it can be decided without waiting for anything.
    pub(super) fn is_immediate(&self) -> bool {
        !self.gate.is_shared() && self.max_wait.is_none()
    }

    /// Every policy of the layer's rules.
    pub(super) fn policies(&self) -> impl Iterator<Item = &OwnPolicy> {
        self.rules.iter().flat_map(CompiledRule::policies)
    }

    /// One of the policies of a rule, both by their numbers.
    pub(super) fn policy_at(&self, (rule, index): (usize, usize)) -> Option<&OwnPolicy> {
        Some(self.rules.get(rule)?.policy(index))
    }

    /// Decides a request that has nothing to wait for. The guard is filled in if it passes.
    pub(super) fn decide_now(
        self: &Arc<Self>,
        mut head: Head<'_>,
        guard: &mut RequestGuard,
    ) -> Result<(), Refusal> {
        let loaded;
        let rules: &Rules = match &self.fixed {
            Some(rules) => rules,
            None => {
                loaded = self.gate.rules();
                &loaded
            }
        };
        let asker = Asker::default();
        let decided = poll_once(self.decide(rules, &mut head, &asker, guard));
        decided.unwrap_or_else(|| Err(refuse(&head, &GateError::MustAwait)))
    }

    /// The rules in force, for a request that may wait.
    pub(super) fn rules(&self) -> Arc<Rules> {
        match &self.fixed {
            Some(rules) => Arc::clone(rules),
            None => Arc::clone(&self.gate.rules()),
        }
    }

    /// Decides a request, after its wait and the answer of a shared store. The guard is filled in if
    /// it passes.
    pub(super) async fn decide(
        self: &Arc<Self>,
        rules: &Rules,
        head: &mut Head<'_>,
        asker: &Asker,
        guard: &mut RequestGuard,
    ) -> Result<(), Refusal> {
        self.identify(rules, head);
        let attributes = self.fixed.is_none().then(|| head.attributes());
        let mut plan = Plan::default();
        let mut reserving = Reserving::new();
        self.plan(rules, attributes.as_ref(), head, &mut plan, &mut reserving)?;
        let route = || Some(head.path());
        let named = Named { id: None, route: &route, request_id: None, max_wait: self.max_wait };
        let entered = match self.is_immediate() {
            true => self.gate.enter_here(&mut plan, &named),
            false => self.gate.enter_planned(asker, &mut plan, &named).await,
        };
        entered.map_err(|error| refuse(head, &error))?;
        self.finish(head, &mut plan, reserving, guard)
    }

    /// Finds the address of the client that sent a request.
    #[inline(never)]
    fn identify(&self, rules: &Rules, head: &mut Head<'_>) {
        let peer = match &self.peer {
            Some(peer) => peer(head.extensions()),
            None => usual_peer(head.extensions()),
        };
        let identity = rules.policies().identity();
        head.client_ip = identity.client_ip(peer, &Headers::Map(head.headers()));
    }

    /// Plans the checks of the rules and, behind them, of the gate's own policies, if a request
    /// with these attributes may have any. Adds what the rules reserve.
    #[inline(never)]
    fn plan<'a>(
        &'a self,
        rules: &'a Rules,
        attributes: Option<&'a Attributes<'a>>,
        head: &Head<'_>,
        plan: &mut Plan<'a>,
        reserving: &mut Reserving,
    ) -> Result<(), Refusal> {
        for (index, rule) in self.rules.iter().enumerate().filter(|(_, rule)| rule.applies(head)) {
            let policy = rule.policy_for(head);
            let own = rule.policy(policy);
            let key = plan.begin_key(own.policy().name());
            match rule.write_key(rules, head, &mut plan.keys) {
                Ok(true) => {}
                Ok(false) => {
                    plan.keys.truncate(key.start);
                    continue;
                }
                Err(NoAddress) => return Err(no_address(head)),
            }
            let units = rule.units(head);
            if rule.reserves() {
                reserving.push((Key::made(&plan.keys[key.bare..]), (index, policy), units));
            }
            plan.push_own(own, key, Cost::Ask(units));
        }
        if let Some(attributes) = attributes {
            if head.client_ip().is_none() && gate_needs_address(rules, attributes) {
                return Err(no_address(head));
            }
            let question = Question::new(Subject::Request(attributes));
            plan.meet(rules, &question, 0).map_err(|error| refuse(head, &error))?;
        }
        plan.settle(&[], Taking::Places).map_err(|error| refuse(head, &error))
    }

    /// Turns the gate's answer into the guard of an admitted request, or into a denial.
    #[inline(never)]
    fn finish(
        self: &Arc<Self>,
        head: &Head<'_>,
        plan: &mut Plan<'_>,
        reserving: Reserving,
        guard: &mut RequestGuard,
    ) -> Result<(), Refusal> {
        if !plan.answer.allowed {
            return Err(self.deny(head, &plan.answer));
        }
        if self.forms != Forms::NONE {
            plan.answer.fill_fields(self.forms, || self.gate.now(), &mut guard.fields);
        }
        if plan.permit.is_some() || plan.timer.is_some() || !reserving.is_empty() {
            let permits = plan.permit.take().map(|permit| HeldPermits::new(&self.gate, permit));
            let reservation = Reservation::new(self, reserving, &plan.answer);
            let (timer, unsettled) = (plan.timer.take(), reservation.map(Unsettled::new));
            guard.held = Some(Box::new(GuardState { permits, timer, unsettled }));
        }
        Ok(())
    }

    #[cold]
    fn deny(&self, head: &Head<'_>, answer: &Answer<'_>) -> Refusal {
        let denied = Denied::new(head, answer, self.forms, self.gate.now());
        let response = match &self.on_denied {
            Some(on_denied) => on_denied(&denied),
            None => denied.response(),
        };
        response.into()
    }
}

#[cold]
fn refuse(head: &Head<'_>, error: &GateError) -> Refusal {
    denial::refuse(head, error).into()
}

#[cold]
fn no_address(head: &Head<'_>) -> Refusal {
    denial::fail(head, StatusCode::INTERNAL_SERVER_ERROR, NO_ADDRESS).into()
}

/// Whether a policy that holds for this request, and is enforced, counts by address. Asked only
/// where there is none. What else is wrong with the request is told by who decides about it.
#[cold]
fn gate_needs_address(rules: &Rules, attributes: &Attributes<'_>) -> bool {
    let selected = rules.policies().select(attributes).unwrap_or_default();
    let needs =
        |one: &Selected<'_>| one.mode == Mode::Enforce && uses_address(one.policy.key_template());
    selected.iter().any(needs)
}

/// The address of the peer, where servers put it. Not inlined, so that it writes only four bytes for
/// an IPv4 address: a later read of sixteen would stall.
#[inline(never)]
fn usual_peer(extensions: &Extensions) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(info) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>() {
        return Some(info.0.ip());
    }
    let socket = extensions.get().map(SocketAddr::ip);
    socket.or_else(|| extensions.get::<IpAddr>().copied())
}
