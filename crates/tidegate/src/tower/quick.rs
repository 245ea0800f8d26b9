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
use crate::store::Missed;

/// What goes with a request that was let in this way.
pub(super) struct Quick {
    core: Arc<Core>,
    /// Which of the rule's policies let it in.
    policy: usize,
    remaining: u64,
    reset_us: u64,
    /// When it was, if it is one of those that are timed.
    begun: Option<Instant>,
}

/// What becomes of a request on the shortest way.
pub(super) enum AtOnce {
    /// It goes on alone.
    Alone,
    /// It goes on, and this with it.
    With(Quick),
    /// The store did not let it in at once.
    Missed(Asking),
}

/// A request that the store did not let in at once.
pub(super) struct Asking {
    address: Ipv4Addr,
    policy: usize,
    units: u64,
    begun: Option<Instant>,
    missed: Missed,
}

impl Core {
    /// Decides about a request that is counted by its peer's IPv4 address; `None` if it is
    /// another kind of request.
    #[inline(always)]
    pub(super) fn decide_at_once<B>(self: &Arc<Self>, request: &Request<B>) -> Option<AtOnce> {
        let rule = self.rules.first().filter(|_| self.is_by_peer)?;
        let address = usual_peer_v4(request.extensions())?;
        let head = || Head::of(request, Some(IpAddr::V4(address)));
        if !rule.holds_for(head) {
            return Some(AtOnce::Alone);
        }
        let policy = rule.policy_for(head);
        let counted = rule.counted(policy);
        let units = rule.units(head).unwrap_or(1);
        let begun = is_timed().then(Instant::now);
        let mut name = Short::EMPTY;
        let name = counted.name(address, &mut name)?;
        let entering = OwnEntering { own: &counted.own, name, units, begun };
        Some(match self.gate.enter_own(&entering, || head().path()) {
            Ok(decision) => match self.quick(policy, counted, &decision, begun) {
                Some(quick) => AtOnce::With(quick),
                None => AtOnce::Alone,
            },
            Err(missed) => AtOnce::Missed(Asking { address, policy, units, begun, missed }),
        })
    }

    /// Goes on about a request that the store did not let in at once.
    pub(super) fn decide_missed(self: &Arc<Self>, asking: &Asking, head: &Head<'_>) -> Decided {
        let Asking { address, policy, units, begun, missed } = *asking;
        let [rule, ..] = &*self.rules else { return self.decide(head) };
        let counted = rule.counted(policy);
        let mut name = Short::EMPTY;
        let Some(name) = counted.name(address, &mut name) else { return self.decide(head) };
        let entering = OwnEntering { own: &counted.own, name, units, begun };
        self.decide_named(&entering, Some(missed), (policy, counted), head)
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
        match self.gate.enter_any(entering, missed, || head.path()) {
            Ok(told) if told.decision.allowed => {
                // What charges nothing was only asked about.
                let begun = entering.begun.filter(|_| entering.units > 0);
                let quick = self.quick(policy, counted, &told.decision, begun);
                Decided::Passes(quick.map_or(Passing::Nothing, Passing::Quick))
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

    /// What goes with a request that was let in; `None` if there is nothing to say or to time.
    #[inline(always)]
    fn quick(
        self: &Arc<Self>,
        policy: usize,
        counted: &Counted,
        decision: &Decision,
        begun: Option<Instant>,
    ) -> Option<Quick> {
        if begun.is_none() && counted.said.is_none() {
            return None;
        }
        let (remaining, reset_us) = (decision.remaining, decision.reset_after.as_micros());
        Some(Quick { core: Arc::clone(self), policy, remaining, reset_us, begun })
    }
}

impl Quick {
    /// The service has answered.
    #[inline]
    pub(super) fn arrived(&self, fields: &mut HeaderMap) {
        let [rule, ..] = &*self.core.rules else { return };
        let counted = rule.counted(self.policy);
        if let Some(said) = &counted.said {
            said.put(self.remaining, Duration::from_micros(self.reset_us), fields);
        }
        if let (Some(begun), [stats, ..]) = (self.begun, counted.own.stats()) {
            stats.served(Outcome::Allowed, begun.elapsed());
        }
    }
}
