//! The way most requests take: one rule, one limit that has all the say, counted in memory.
//!
//! The way for all (`core.rs`) puts together questions that can say everything, a plan and an
//! answer with room for many limits, and takes them apart again: that costs several times what
//! the decision does. Here the key is written, the limiter asked, and two numbers go with
//! the request; its fields are written when there is a response to put them in. Whatever is
//! not of this kind says so before anything is asked, and goes the other way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderMap;
use smallvec::SmallVec;

use super::core::{Asked, Core, Decided, no_address};
use super::head::Head;
use super::ready::{NoAddress, Ready};
use crate::gate::{Answer, Entered, Rules};
use crate::stats::Outcome;

/// A key as the store sees it. Most fit, so that nothing is allocated for it.
pub(super) type Name = SmallVec<[u8; 128]>;

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

impl Core {
    /// Decides at once; `None` if it takes the other way.
    #[inline(always)]
    pub(super) fn decide_quickly(
        self: &Arc<Self>,
        rules: &Rules,
        rule: &Ready,
        head: &Head<'_>,
    ) -> Option<Decided> {
        if !rule.is_quick() {
            return None;
        }
        if !rule.holds_for(head) {
            return Some(Decided::Freely);
        }
        let policy = rule.policy_for(head);
        let counted = rule.counted(policy)?;
        let [stats, ..] = counted.own.stats() else { return None };
        let mut name = Name::from_slice(counted.own.prefix());
        match rule.write_key(rules, head, &mut name) {
            Ok(true) => {}
            Ok(false) => return Some(Decided::Freely),
            Err(NoAddress) => return Some(Decided::Denied(no_address(head).into())),
        }
        let units = rule.units(head).unwrap_or(1);
        Some(match self.gate.enter_own(&counted.own, &name, units, || head.path()) {
            Ok(told) if told.decision.allowed => {
                let begun = (units > 0 && stats.is_due()).then(Instant::now);
                if begun.is_none() && counted.said.is_none() {
                    return Some(Decided::Freely);
                }
                let (core, decision) = (Arc::clone(self), told.decision);
                let (remaining, reset_us) = (decision.remaining, decision.reset_after.as_micros());
                Decided::With(Quick { core, policy, remaining, reset_us, begun }.into())
            }
            told => {
                let policy = counted.own.policy();
                let entered = told.map(|told| Entered {
                    answer: Answer::plain(Some(policy.name()), &policy.limits()[0], told),
                    permit: None,
                    timer: None,
                });
                self.told(head, Asked::default(), entered)
            }
        })
    }
}

impl Quick {
    /// The service has answered.
    #[inline]
    pub(super) fn arrived(self, fields: &mut HeaderMap) {
        let Some(counted) = self.core.rules.first().and_then(|rule| rule.counted(self.policy))
        else {
            return;
        };
        if let Some(said) = &counted.said {
            said.put(self.remaining, Duration::from_micros(self.reset_us), fields);
        }
        if let (Some(begun), [stats, ..]) = (self.begun, counted.own.stats()) {
            stats.served(Outcome::Allowed, begun.elapsed());
        }
    }
}
