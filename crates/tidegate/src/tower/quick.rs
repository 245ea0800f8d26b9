//! The way most requests take: one rule, one limit that has all the say, counted in memory.
//!
//! The way for all (`core.rs`) puts together questions that can say everything, a plan and an
//! answer with room for many limits, and takes them apart again: that costs several times what
//! the decision does. Here the key is written, the limiter asked, and two numbers go with
//! the request; its fields are written when there is a response to put them in. Whatever is
//! not of this kind says so before anything is asked, and goes the other way.
//!
//! Shorter still is the way of a request that is counted by its peer's IPv4 address and is let
//! in by the store at once ([`Core::decide_at_once`]). All that is known on it are a few
//! numbers, and they stay in registers: addresses of both kinds and answers that may
//! be anything are moved through memory, and waiting for that took longer than deciding.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, Request};
use tidegate_core::Decision;

use super::core::{Asked, Core, Decided, no_address, usual_peer_v4};
use super::head::Head;
use super::passing::Passing;
use super::ready::{Counted, Name, NoAddress, Ready};
use crate::gate::{Answer, Entered, OwnEntering, Rules};
use crate::short::Short;
use crate::stats::{Outcome, is_timed};
use crate::store::{Missed, Prefix, Words};

/// What goes with a request that was let in this way.
pub(super) struct Quick {
    core: Arc<Core>,
    by: LetIn,
    /// When it was asked, if its service is timed; to decide takes nothing beside serving.
    begun: Option<Instant>,
}

/// What is to be said of a request that was let in.
#[derive(Clone, Copy)]
pub(super) struct LetIn {
    /// Which of the rule's policies let it in.
    policy: usize,
    remaining: u64,
    reset_us: u64,
}

/// What is known beforehand of the shortest way.
pub(super) struct ByPeer {
    /// What keys begin with in the store: under the rule's own policy, and under its plans'.
    own: Prefix,
    plans: Box<[Prefix]>,
}

impl ByPeer {
    /// `None` if requests cannot take it. They can where one quick rule counts by
    /// address, and that is the peer's: nobody else is asked or trusted to tell another. Its
    /// name, and those of its plans, have up to 30 bytes, so that keys fit into [`Words`].
    pub(super) fn of(core: &Core) -> Option<Self> {
        let [rule] = &*core.rules else { return None };
        let is_peers = core.peer.is_none()
            && core.fixed.as_ref()?.policies().identity().trusts_nobody()
            && rule.is_by_address();
        if !(is_peers && core.is_immediate() && rule.is_quick()) {
            return None;
        }
        let mut prefixes = rule.policies().map(|own| Prefix::new(own.prefix()));
        Some(ByPeer { own: prefixes.next()??, plans: prefixes.collect::<Option<_>>()? })
    }

    /// The key of an address under one of the rule's policies.
    #[inline(always)]
    fn key(&self, policy: usize, address: Ipv4Addr) -> Words {
        let plan = policy.checked_sub(1).and_then(|index| self.plans.get(index));
        plan.unwrap_or(&self.own).join(&Short::address(address))
    }
}

/// What becomes of a request on the shortest way. There is nothing to drop in it, so nothing has
/// to be held on to for the case that the service behind panics.
#[derive(Clone, Copy)]
pub(super) enum AtOnce {
    /// It goes on alone.
    Alone,
    /// It goes on, and this is said in its response.
    Says(LetIn),
    /// It is not known yet.
    Open(Pending),
}

/// A request that the store did not let in at once, or that is timed.
#[derive(Clone, Copy)]
pub(super) struct Pending {
    address: Ipv4Addr,
    policy: usize,
    units: u64,
    /// How far the store came with it; `None` if it was not asked, because it is timed.
    missed: Option<Missed>,
}

impl Core {
    /// Decides about a request that is counted by its peer's IPv4 address; `None` if it is
    /// another kind of request.
    #[inline(always)]
    pub(super) fn decide_at_once<B>(self: &Arc<Self>, request: &Request<B>) -> Option<AtOnce> {
        let (Some(by_peer), [rule, ..]) = (&self.by_peer, &*self.rules) else { return None };
        let address = usual_peer_v4(request.extensions())?;
        let head = || Head::of(request, Some(IpAddr::V4(address)));
        let (policy, units) = if rule.has_closures() {
            let Some(said) = rule.ask_closures(&head()) else { return Some(AtOnce::Alone) };
            said
        } else {
            (0, 1)
        };
        let open = |missed| AtOnce::Open(Pending { address, policy, units, missed });
        // What is timed goes the longer way, so that this one has no clocks in it.
        if is_timed() {
            return Some(open(None));
        }
        let counted = rule.counted(policy);
        let key = by_peer.key(policy, address);
        Some(match self.gate.enter_own(&counted.own, &key, units, || head().path()) {
            Ok(_) if counted.said.is_none() => AtOnce::Alone,
            Ok(decision) => AtOnce::Says(LetIn::new(policy, &decision)),
            Err(missed) => open(Some(missed)),
        })
    }

    /// Decides about a request that is not decided yet.
    pub(super) fn decide_pending(self: &Arc<Self>, pending: &Pending, head: &Head<'_>) -> Decided {
        let Pending { address, policy, units, missed } = *pending;
        let begun = missed.is_none().then(Instant::now);
        let (Some(by_peer), [rule, ..]) = (&self.by_peer, &*self.rules) else {
            return self.decide(head);
        };
        let counted = rule.counted(policy);
        let name = by_peer.key(policy, address).text();
        let name = name.as_bytes();
        let entering = OwnEntering { own: &counted.own, name, units, begun };
        self.decide_named(&entering, missed, (policy, counted), head)
    }

    /// Decides about a request of one rule; `None` if it takes the way for all.
    #[inline]
    pub(super) fn decide_quickly(
        self: &Arc<Self>,
        rules: &Rules,
        rule: &Ready,
        head: &Head<'_>,
    ) -> Option<Decided> {
        if !rule.is_quick() {
            return None;
        }
        let of = || *head;
        if !rule.holds_for(of) {
            return Some(Decided::Passes(Passing::Nothing));
        }
        let policy = rule.policy_for(of);
        let counted = rule.counted(policy);
        let mut name = Name::from_slice(counted.own.prefix());
        match rule.write_key(rules, head, &mut name) {
            Ok(true) => {}
            Ok(false) => return Some(Decided::Passes(Passing::Nothing)),
            Err(NoAddress) => return Some(Decided::Denied(no_address(head).into())),
        }
        let units = rule.units(of).unwrap_or(1);
        let begun = is_timed().then(Instant::now);
        let entering = OwnEntering { own: &counted.own, name: &name, units, begun };
        Some(self.decide_named(&entering, None, (policy, counted), head))
    }

    fn decide_named(
        self: &Arc<Self>,
        entering: &OwnEntering<'_>,
        missed: Option<Missed>,
        (policy, counted): (usize, &Counted),
        head: &Head<'_>,
    ) -> Decided {
        match self.gate.enter_slowly(entering, missed, || head.path()) {
            Ok(told) if told.decision.allowed => {
                // What charges nothing was only asked about.
                let begun = entering.begun.filter(|_| entering.units > 0);
                if begun.is_none() && counted.said.is_none() {
                    return Decided::Passes(Passing::Nothing);
                }
                let by = LetIn::new(policy, &told.decision);
                Decided::Passes(Passing::Quick(Quick { core: Arc::clone(self), by, begun }))
            }
            told => {
                let policy = entering.own.policy();
                let entered = told.map(|told| Entered {
                    answer: Answer::plain(Some(policy.name()), entering.own.only_limit(), told),
                    permit: None,
                    timer: None,
                });
                self.told(head, Asked::default(), entered)
            }
        }
    }
}

impl LetIn {
    #[inline(always)]
    fn new(policy: usize, decision: &Decision) -> Self {
        let (remaining, reset_us) = (decision.remaining, decision.reset_after.as_micros());
        LetIn { policy, remaining, reset_us }
    }

    /// As it goes with a request that is not timed.
    #[inline(always)]
    pub(super) fn under(self, core: &Arc<Core>) -> Quick {
        Quick { core: Arc::clone(core), by: self, begun: None }
    }
}

impl Quick {
    /// The service has answered.
    #[inline]
    pub(super) fn arrived(&self, fields: &mut HeaderMap) {
        let [rule, ..] = &*self.core.rules else { return };
        let counted = rule.counted(self.by.policy);
        if let Some(said) = &counted.said {
            let reset_after = Duration::from_micros(self.by.reset_us);
            said.put(self.by.remaining, reset_after, || self.core.gate.now(), fields);
        }
        if let (Some(begun), [stats, ..]) = (self.begun, counted.own.stats()) {
            stats.served(Outcome::Allowed, begun.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use super::*;
    use crate::headers::Forms;
    use crate::identity::Identity;
    use crate::tower::{Builder, RateLimitLayer, Rule};

    fn core(build: impl FnOnce(Rule, Builder) -> Builder) -> Arc<Core> {
        let rule = Rule::new("api", ["1000000 per 1h".parse().expect("a limit")]);
        let layer = build(rule, RateLimitLayer::builder()).build().expect("a layer");
        layer.core
    }

    fn named(name: &str) -> Rule {
        Rule::new(name, ["9 per 1s".parse().expect("a limit")])
    }

    /// With a plan whose policy is named for both.
    fn planned(rule: Rule, plan: &str) -> Rule {
        rule.plan(plan, ["9 per 1s".parse().expect("a limit")]).plan_of(|_| None)
    }

    #[test]
    fn the_shortest_way_is_for_one_rule_by_the_peers_address() {
        type Row = (bool, fn(Rule, Builder) -> Builder);
        let rows: [Row; 14] = [
            (true, |rule, builder| builder.rule(rule)),
            (true, |rule, builder| builder.rule(rule.cost(|_| 2).when(|_| true))),
            (true, |rule, builder| builder.rule(rule).headers(Forms::NONE)),
            (false, |rule, builder| builder.rule(rule.key(|_| None))),
            (false, |rule, builder| builder.rule(rule.reserve(|_| 1))),
            (false, |rule, builder| builder.rule(rule).peer(|_| None)),
            (false, |rule, builder| builder.rule(rule).max_wait(Duration::from_secs(1))),
            (false, |rule, builder| builder.rule(rule).rule(named("other"))),
            (false, |rule, builder| {
                let trusted = vec!["10.0.0.0/8".parse().expect("a network")];
                builder.rule(rule).identity(Identity::new(trusted, 64))
            }),
            (false, |_, builder| {
                let limits = ["1 per 1s", "9 per 1m"].map(|text| text.parse().expect("a limit"));
                builder.rule(Rule::new("two-limits", limits))
            }),
            (true, |_, builder| builder.rule(named("a-name-that-is-of-thirty-bytes"))),
            (false, |_, builder| builder.rule(named("a-name-that-is-of-one-byte-more"))),
            (true, |rule, builder| builder.rule(planned(rule, "this-is-of-twenty-six-byte"))),
            (false, |rule, builder| builder.rule(planned(rule, "this-is-of-twenty-seven-byt"))),
        ];
        for (number, (expected, build)) in rows.into_iter().enumerate() {
            assert_eq!(core(build).by_peer.is_some(), expected, "row {number}");
        }
    }

    #[test]
    fn what_is_let_in_at_once_needs_nothing_more() {
        let core = core(|rule, builder| builder.rule(rule));
        let mut request = Request::new(());
        request.extensions_mut().insert(SocketAddr::from(([192, 0, 2, 1], 40_000)));
        let head = Head::of(&request, Some(IpAddr::from([192, 0, 2, 1])));
        let is_let_in = |_| match core.decide_at_once(&request).expect("the shortest way") {
            AtOnce::Alone => panic!("there are fields to say"),
            AtOnce::Says(_) => true,
            AtOnce::Open(pending) => {
                assert!(matches!(core.decide_pending(&pending, &head), Decided::Passes(_)));
                false
            }
        };
        // The first of a key is not, nor is any before the clock ticks, nor the first of a tick.
        assert!((0..900_000).any(is_let_in), "none was");
    }
}
