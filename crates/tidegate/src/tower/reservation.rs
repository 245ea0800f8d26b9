//! Reserve, then commit: costs that are known only afterwards.
//!
//! A language model's answer costs what it turns out to cost. Charged only afterwards, a
//! hundred requests at once would all find the limit unused. So an estimate is charged
//! before, and the handler says later what it came to: the difference is charged without
//! asking, or given back.
//!
//! ```text
//!   estimate charged -> handler -> commit(actual)        charged: actual
//!                          |-----> no commit             charged: the estimate
//!                          `-----> error, or dropped     charged: nothing
//!                                     `-> commit(actual) charged: actual
//! ```
//!
//! The last is work that outlives its request: a client has gone, and the model still answers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use smallvec::SmallVec;
use tidegate_core::Cost;

use super::background::Background;
use super::core::Core;
use crate::gate::{Answer, Charged, OwnPolicy};
use crate::policy::Key;

/// What was charged before the true cost is known; in the extensions of a request to which
/// a rule with [`Rule::reserve`](super::Rule::reserve) applies. Clones are the same
/// reservation.
///
/// ```
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use tidegate::tower::Reservation;
/// # type Body = Bytes;
///
/// async fn complete(request: Request<Body>) -> Response<Body> {
///     let reservation = request.extensions().get::<Reservation>().cloned();
///     let tokens = 1_234; // what the model says it has used
///     if let Some(reservation) = reservation {
///         reservation.commit(tokens);
///     }
///     Response::new(Bytes::from("..."))
/// }
/// ```
#[derive(Clone)]
pub struct Reservation(Arc<Inner>);

struct Inner {
    core: Arc<Core>,
    parts: SmallVec<[Reserved; 1]>,
    background: Background,
}

/// How far a part is: settled by nobody, given back because there was no response, or settled by
/// the handler, which has the last word.
const OPEN: u8 = 0;
const GIVEN_BACK: u8 = 1;
const COMMITTED: u8 = 2;

/// Reservations of a request before it is decided: key, indexes of rule and policy, estimate.
pub(super) type Reserving = Vec<(Key, (usize, usize), u64)>;

/// What one rule has reserved.
struct Reserved {
    /// Where its policy is: which rule, and which of that one's policies.
    place: (usize, usize),
    charged: Charged,
    estimate: u64,
    settled: AtomicU8,
}

impl Reservation {
    /// What an admitted request has reserved; `None` if that is nothing.
    pub(super) fn new(core: &Arc<Core>, reserving: Reserving, answer: &Answer<'_>) -> Option<Self> {
        if reserving.is_empty() {
            return None;
        }
        let parts = reserving.into_iter().filter_map(|(key, place, estimate)| {
            let charged = Charged::of(core.policy_at(place)?, key, answer);
            Some(Reserved { place, charged, estimate, settled: AtomicU8::new(OPEN) })
        });
        let (parts, background) = (parts.collect(), Background::of(&core.gate));
        Some(Reservation(Arc::new(Inner { core: Arc::clone(core), parts, background })))
    }

    /// Says what it came to: what was reserved too much is given back, what was reserved too
    /// little is charged, also beyond the limit. Only the first time counts; it does also
    /// after the request's future was dropped and all had been given back.
    ///
    /// With several rules that reserve, it came to this much under each that was not
    /// told apart by [`Reservation::commit_for`].
    ///
    /// Over a shared store it is done in the background, on the runtime this is called on or, off
    /// any, on the one where the request was let in.
    pub fn commit(&self, actual: u64) {
        self.settle(actual, |_, _| true);
    }

    /// The same for one rule, whatever plan the request has under it; `false` if no rule of this
    /// name has reserved anything. A plan can also be named in full: `rule.plan`.
    pub fn commit_for(&self, rule: &str, actual: u64) -> bool {
        self.settle(actual, |core, (index, policy)| {
            // A rule's own policy has its name.
            let mut named =
                [core.policy_at((index, 0)), core.policy_at((index, policy))].into_iter();
            named.any(|own| own.is_some_and(|own| own.policy().name() == rule))
        })
    }

    /// What was reserved: the largest estimate, if several rules made one.
    pub fn estimate(&self) -> u64 {
        self.0.parts.iter().map(|part| part.estimate).max().unwrap_or_default()
    }

    fn settle(&self, actual: u64, is_meant: impl Fn(&Core, (usize, usize)) -> bool) -> bool {
        let mut found = false;
        for (index, part) in self.0.parts.iter().enumerate() {
            if is_meant(&self.0.core, part.place) {
                found = true;
                let charged = match part.settled.swap(COMMITTED, Ordering::Relaxed) {
                    OPEN => part.estimate,
                    GIVEN_BACK => 0,
                    _ => continue,
                };
                self.0.correct(index, charged, actual);
            }
        }
        found
    }

    /// There was no response: gives back what nobody has settled.
    fn give_back(&self) {
        for (index, part) in self.0.parts.iter().enumerate() {
            let given = part.settled.compare_exchange(
                OPEN,
                GIVEN_BACK,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            if given.is_ok() {
                self.0.correct(index, part.estimate, 0);
            }
        }
    }
}

impl Inner {
    /// Makes one amount of another.
    fn correct(self: &Arc<Self>, index: usize, charged: u64, due: u64) {
        match due.checked_sub(charged) {
            Some(0) => {}
            Some(more) => self.settle(index, Cost::Force(more)),
            None => self.settle(index, Cost::Refund(charged - due)),
        }
    }

    fn settle(self: &Arc<Self>, index: usize, cost: Cost) {
        let inner = Arc::clone(self);
        let settling = async move {
            match inner.at(index) {
                Some((own, part)) => inner.core.gate.settle(own, &part.charged, cost).await,
                None => Ok(()),
            }
        };
        // The checks made sense when they were reserved. What a shared store does not take now it
        // does not take later either.
        if self.core.gate.is_shared() {
            self.background.run(async move { drop(settling.await) });
        } else {
            drop(self.core.gate.sync(settling));
        }
    }

    fn at(&self, index: usize) -> Option<(&OwnPolicy, &Reserved)> {
        let part = self.parts.get(index)?;
        Some((self.core.policy_at(part.place)?, part))
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("estimate", &self.estimate()).finish_non_exhaustive()
    }
}

/// A reservation whose request has no response yet: dropped, it is given back whole.
#[derive(Debug)]
pub(super) struct Unsettled(Option<Reservation>);

impl Unsettled {
    pub(super) fn new(reservation: Reservation) -> Self {
        Unsettled(Some(reservation))
    }

    /// For the request's extensions.
    pub(super) fn reservation(&self) -> Option<Reservation> {
        self.0.clone()
    }

    /// There is a response: from now on it is the handler's business.
    pub(super) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        if let Some(reservation) = self.0.take() {
            reservation.give_back();
        }
    }
}
