//! What all clones of a layer share, and how it decides about a request: that is, how it
//! asks the gate.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, HeaderMap, Response, StatusCode};
use smallvec::SmallVec;

use super::denial::{self, Denied};
use super::head::Head;
use super::passing::{Passing, Places, Rest};
use super::quick::ByPeer;
use super::ready::{Ask, NoAddress, Ready, uses_address};
use super::reservation::{Reservation, Unsettled};
use crate::asker::Asker;
use crate::attributes::{Attributes, Headers};
use crate::gate::{Entered, Gate, GateError, OwnPolicy, Question, Rules, Subject};
use crate::headers::{Forms, render_to};
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
    pub(super) rules: Box<[Ready]>,
    /// What is known beforehand of the shortest way, if requests can take it.
    pub(super) by_peer: Option<ByPeer>,
    pub(super) forms: Forms,
    pub(super) max_wait: Option<Duration>,
    pub(super) peer: Option<Box<PeerOf>>,
    pub(super) on_denied: Option<Box<OnDenied>>,
}

/// What is asked about one request. One rule is usual, several are not many.
type Asks<'a> = SmallVec<[Ask<'a>; 2]>;
type Keys = SmallVec<[Key; 2]>;
type Questions<'a> = SmallVec<[Question<'a>; 2]>;

/// What was asked, and beside it the keys that were made for it.
#[derive(Clone, Copy, Default)]
pub(super) struct Asked<'q, 'a> {
    asks: &'q [Ask<'a>],
    keys: &'q [Key],
}

impl<'q, 'a> Asked<'q, 'a> {
    pub(super) fn each(&self) -> impl Iterator<Item = (&'q Ask<'a>, &'q Key)> + use<'q, 'a> {
        self.asks.iter().zip(self.keys)
    }

    fn questions(&self, path: &'q str) -> impl Iterator<Item = Question<'q>> + use<'q, 'a> {
        self.each().map(move |(ask, made)| ask.question(made, path))
    }
}

/// What becomes of a request.
pub(super) enum Decided {
    /// It goes on, and this with it.
    Passes(Passing),
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
        self.rules.iter().flat_map(Ready::policies)
    }

    /// Where a policy is.
    pub(super) fn place_of(&self, policy: &OwnPolicy) -> Option<(usize, usize)> {
        let rules = self.rules.iter().enumerate();
        let mut places = rules.flat_map(|(rule, ready)| {
            ready.policies().enumerate().map(move |(index, own)| ((rule, index), own))
        });
        places.find(|(_, own)| std::ptr::eq(*own, policy)).map(|(place, _)| place)
    }

    pub(super) fn policy_at(&self, (rule, index): (usize, usize)) -> Option<&OwnPolicy> {
        self.rules.get(rule)?.policies().nth(index)
    }

    /// Decides at once.
    #[inline(always)]
    pub(super) fn decide(self: &Arc<Self>, head: &Head<'_>) -> Decided {
        if let (Some(rules), [only]) = (&self.fixed, &*self.rules)
            && let Some(decided) = self.decide_quickly(rules, only, head)
        {
            return decided;
        }
        self.decide_any(head)
    }

    #[inline(never)]
    fn decide_any(self: &Arc<Self>, head: &Head<'_>) -> Decided {
        match &self.fixed {
            Some(rules) => self.decide_by(rules, head),
            None => self.decide_by(&self.gate.rules(), head),
        }
    }

    fn decide_by(self: &Arc<Self>, rules: &Rules, head: &Head<'_>) -> Decided {
        let (asks, keys) = match self.asks(rules, head) {
            Ok(asks) => asks,
            Err(NoAddress) => return Decided::Denied(no_address(head).into()),
        };
        let asked = Asked { asks: &asks, keys: &keys };
        if self.fixed.is_some() {
            let questions: Questions<'_> = asked.questions(head.path()).collect();
            return self.told(head, asked, self.gate.enter(rules, &questions));
        }
        let attributes = head.attributes();
        let questions = self.with_gate(asked, head, &attributes);
        self.told(head, asked, self.gate.enter(rules, &questions))
    }

    /// Decides when it is its turn, or when the store has answered.
    pub(super) async fn decide_later(self: &Arc<Self>, head: Head<'_>, asker: &Asker) -> Decided {
        let rules = &*self.fixed.clone().unwrap_or_else(|| self.gate.rules_owned());
        let (asks, keys) = match self.asks(rules, &head) {
            Ok(asks) => asks,
            Err(NoAddress) => return Decided::Denied(no_address(&head).into()),
        };
        let asked = Asked { asks: &asks, keys: &keys };
        let attributes = head.attributes();
        let questions = self.with_gate(asked, &head, &attributes);
        let entered = self.gate.enter_for(asker, rules, &questions, self.max_wait).await;
        self.told(&head, asked, entered)
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

    fn asks<'a>(&'a self, rules: &Rules, head: &Head<'a>) -> Result<(Asks<'a>, Keys), NoAddress> {
        let (mut asks, mut keys) = (Asks::new(), Keys::new());
        for rule in &self.rules {
            let mut made = Key::default();
            if let Some(ask) = rule.ask(rules, head, &mut made)? {
                asks.push(ask);
                keys.push(made);
            }
        }
        if self.fixed.is_none() && head.client_ip().is_none() && gate_needs_address(rules, head) {
            return Err(NoAddress);
        }
        Ok((asks, keys))
    }

    /// The questions of the rules and, behind them, that of the gate's own policies.
    fn with_gate<'q>(
        &self,
        asked: Asked<'q, '_>,
        head: &Head<'q>,
        attributes: &'q Attributes<'q>,
    ) -> Questions<'q> {
        let own = self.fixed.is_none().then(|| Question::new(Subject::Request(attributes)));
        asked.questions(head.path()).chain(own).collect()
    }

    /// What the gate's answer means for the request.
    #[inline(never)]
    pub(super) fn told(
        self: &Arc<Self>,
        head: &Head<'_>,
        asked: Asked<'_, '_>,
        entered: Result<Entered<'_>, GateError>,
    ) -> Decided {
        let Entered { answer, permit, timer } = match entered {
            Ok(entered) => entered,
            Err(error) => return Decided::Denied(denial::refuse(head, &error).into()),
        };
        if !answer.allowed {
            let denied = Denied::new(head, &answer, self.forms, self.gate.now());
            let response = match &self.on_denied {
                Some(on_denied) => on_denied(&denied),
                None => denied.response(),
            };
            return Decided::Denied(response.into());
        }
        let mut passing = Rest { timer, ..Rest::default() };
        if self.forms != Forms::NONE {
            answer.show(|shown| {
                render_to(self.forms, shown, || self.gate.now(), &mut passing.fields);
            });
        }
        passing.places = permit.map(|permit| Places::new(&self.gate, permit));
        if asked.asks.iter().any(|ask| ask.estimate.is_some()) {
            passing.unsettled = Reservation::new(self, &asked, &answer).map(Unsettled::new);
        }
        Decided::Passes(passing.into())
    }
}

#[cold]
pub(super) fn no_address(head: &Head<'_>) -> Response<Bytes> {
    denial::fail(head, StatusCode::INTERNAL_SERVER_ERROR, NO_ADDRESS)
}

/// Whether a policy that holds for this request, and is enforced, counts by address. Asked only
/// where there is none. What else is wrong with the request is told by who decides about it.
#[cold]
fn gate_needs_address(rules: &Rules, head: &Head<'_>) -> bool {
    let selected = rules.policies().select(&head.attributes()).unwrap_or_default();
    let needs =
        |one: &Selected<'_>| one.mode == Mode::Enforce && uses_address(one.policy.key_template());
    selected.iter().any(needs)
}

/// Where servers put the address of who connected.
fn usual_peer(extensions: &Extensions) -> Option<IpAddr> {
    let socket = usual_socket(extensions).map(SocketAddr::ip);
    socket.or_else(|| extensions.get::<IpAddr>().copied())
}

#[inline(always)]
fn usual_socket(extensions: &Extensions) -> Option<&SocketAddr> {
    #[cfg(feature = "axum")]
    if let Some(info) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>() {
        return Some(&info.0);
    }
    extensions.get()
}

/// The peer's address, if it is an IPv4 address and came with its port, as sockets have it.
#[inline(always)]
pub(super) fn usual_peer_v4(extensions: &Extensions) -> Option<Ipv4Addr> {
    match usual_socket(extensions)? {
        SocketAddr::V4(address) => Some(*address.ip()),
        SocketAddr::V6(_) => None,
    }
}
