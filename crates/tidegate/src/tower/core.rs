//! What all clones of a layer share, and how it decides about a request: that is, how it
//! asks the gate.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, HeaderMap, Response, StatusCode};
use tidegate_core::Cost;

use super::compiled_rule::{Ask, CompiledRule, NoAddress, uses_address};
use super::denial::{self, Denied};
use super::guard::{FieldList, GuardState, HeldPermits, RequestGuard};
use super::head::Head;
use super::reservation::{Reservation, Reserving, Unsettled};
use crate::asker::Asker;
use crate::attributes::{Attributes, Headers};
use crate::gate::{
    Answer, Gate, HeldPermit, Named, OwnPolicy, Plan, Question, Rules, Subject, Taking,
};
use crate::headers::Forms;
use crate::policy::{Key, Mode, Selected};
use crate::stats::ServiceTimer;

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

/// What becomes of a request.
pub(super) enum Decided {
    /// It goes on, and this with it.
    Passes(RequestGuard),
    /// It does not, and this is answered.
    Denied(Box<Response<Bytes>>),
}

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

    /// Decides a request that has nothing to wait for.
    pub(super) fn decide_now(self: &Arc<Self>, head: &Head<'_>) -> Decided {
        let asker = Asker::default();
        let deciding = async { Ok(self.decide(head, &asker).await) };
        let decided = self.gate.sync(deciding);
        decided.unwrap_or_else(|error| Decided::Denied(denial::refuse(head, &error).into()))
    }

    /// Decides a request, after its wait and the answer of a shared store.
    pub(super) async fn decide(self: &Arc<Self>, head: &Head<'_>, asker: &Asker) -> Decided {
        let loaded;
        let (rules, attributes) = match &self.fixed {
            Some(rules) => (rules, None),
            None => {
                loaded = Arc::clone(&self.gate.rules());
                (&loaded, Some(head.attributes()))
            }
        };
        let mut plan = Plan::default();
        let reserving = match self.plan(rules, attributes.as_ref(), head, &mut plan) {
            Ok(reserving) => reserving,
            Err(refusal) => return Decided::Denied(refusal),
        };
        let route = || Some(head.path());
        let max_wait = self.max_wait;
        let named = Named { id: None, route: &route, request_id: None, max_wait };
        match self.gate.enter_planned(asker, &mut plan, named).await {
            Ok((permit, timer)) => self.finish(head, &plan.answer, reserving, (permit, timer)),
            Err(error) => Decided::Denied(denial::refuse(head, &error).into()),
        }
    }

    /// The address of who sent a request with these.
    pub(super) fn client_ip(&self, extensions: &Extensions, headers: &HeaderMap) -> Option<IpAddr> {
        let peer = match &self.peer {
            Some(peer) => peer(extensions),
            None => usual_peer(extensions),
        };
        let found =
            |rules: &Rules| rules.policies().identity().client_ip(peer, &Headers::Map(headers));
        match &self.fixed {
            Some(rules) => found(rules),
            None => found(&self.gate.rules()),
        }
    }

    /// Plans the checks of the rules and, behind them, of the gate's own policies, if a request
    /// with these attributes may have any. Returns what the rules reserve.
    fn plan<'a>(
        &'a self,
        rules: &'a Rules,
        attributes: Option<&'a Attributes<'a>>,
        head: &Head<'_>,
        plan: &mut Plan<'a>,
    ) -> Result<Reserving, Box<Response<Bytes>>> {
        let mut reserving = Reserving::new();
        for (index, rule) in self.rules.iter().enumerate() {
            let mut key = Key::default();
            let asked = rule.ask(rules, head, &mut key).map_err(|NoAddress| no_address(head))?;
            let Some(Ask { policy, units }) = asked else { continue };
            plan.push_own(rule.policy(policy), &key, Cost::Ask(units));
            if rule.reserves() {
                reserving.push((key, (index, policy), units));
            }
        }
        let refuse = |error| Box::new(denial::refuse(head, &error));
        if let Some(attributes) = attributes {
            if head.client_ip().is_none() && gate_needs_address(rules, attributes) {
                return Err(no_address(head));
            }
            plan.meet(rules, &Question::new(Subject::Request(attributes)), 0).map_err(refuse)?;
        }
        plan.settle(&[], Taking::Places).map_err(refuse)?;
        Ok(reserving)
    }

    /// What the gate's answer means for the request.
    fn finish(
        self: &Arc<Self>,
        head: &Head<'_>,
        answer: &Answer<'_>,
        reserving: Reserving,
        (permit, timer): (Option<HeldPermit>, Option<ServiceTimer>),
    ) -> Decided {
        if !answer.allowed {
            let denied = Denied::new(head, answer, self.forms, self.gate.now());
            let response = match &self.on_denied {
                Some(on_denied) => on_denied(&denied),
                None => denied.response(),
            };
            return Decided::Denied(response.into());
        }
        let mut fields = FieldList::default();
        if self.forms != Forms::NONE {
            answer.write_fields_to(self.forms, || self.gate.now(), &mut fields);
        }
        let permits = permit.map(|permit| HeldPermits::new(&self.gate, permit));
        let reservation = Reservation::new(self, reserving, answer);
        let unsettled = reservation.map(Unsettled::new);
        Decided::Passes(RequestGuard::new(fields, GuardState { permits, timer, unsettled }))
    }
}

#[cold]
fn no_address(head: &Head<'_>) -> Box<Response<Bytes>> {
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

/// Where servers put the address of who connected.
fn usual_peer(extensions: &Extensions) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(info) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>() {
        return Some(info.0.ip());
    }
    let socket = extensions.get().map(SocketAddr::ip);
    socket.or_else(|| extensions.get::<IpAddr>().copied())
}
