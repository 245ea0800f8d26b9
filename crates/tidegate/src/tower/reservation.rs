//! Reserve, then settle: charges that depend on the outcome of a request.
//!
//! The cost of a language model's answer is known when it is complete. If it were charged only
//! then, a hundred concurrent requests would all be admitted under an unused limit. So an estimate
//! is charged before the request is served, and settled later: by the handler, which knows the
//! cost, or else by the response. The difference is charged without a check, or refunded.
//!
//! ```text
//!   estimate charged -> handler -> reserve(more) -> denied     charged: nothing, reserve again or answer 429
//!                          |-----> commit(actual)              charged: actual
//!                          |-----> response, `settle_when`     charged: the estimate
//!                          |-----> response, not `settle_when` charged: nothing
//!                          `-----> error, or dropped           charged: nothing
//!                                     `-> commit(actual)       charged: actual
//! ```
//!
//! The last line is work that outlives its request: the client has disconnected, and the model
//! still works.
//!
//! A rule with `settle_when` and without `reserve` uses the same code, but its handler gets no
//! reservation. Without a response its charge is kept: a client must not be able to avoid it by
//! disconnecting.

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Response;
use smallvec::SmallVec;
use tidegate_core::{Cost, Timestamp, bounds};

use super::compiled_rule::CompiledRule;
use super::decide::LayerState;
use super::denial::Rejection;
use super::request::Background;
use super::rule::Limits;
use crate::gate::{Adjustment, ChargeRecord, GateError, GateVerdict};
use crate::policy::{Key, Mode};
use crate::stats::Decided;

/// An estimate that was charged before the true cost is known. It is in the extensions of a request
/// to which a rule with [`Rule::reserve`](super::Rule::reserve) applies. Clones are the same
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
///     let tokens = 1_234; // as the model reports
///     if let Some(reservation) = reservation {
///         reservation.commit(tokens);
///     }
///     Response::new(Bytes::from("..."))
/// }
/// ```
#[derive(Clone)]
pub struct Reservation(Arc<Inner>);

struct Inner {
    layer_state: Arc<LayerState>,
    parts: SmallVec<[ReservedPart; 1]>,
    background: Background,
}

/// The reservation of one rule, before the request is decided.
pub(super) struct PendingPart {
    pub(super) key: Key,
    /// The index of the rule, and the index of the policy in that rule.
    pub(super) policy_index: (usize, usize),
    /// The limits that came with the request, if any.
    pub(super) limits: Option<Limits>,
    pub(super) units: u64,
}

/// The reservation of one rule, after the request was admitted.
struct ReservedPart {
    policy_index: (usize, usize),
    limits: Option<Limits>,
    charged: ChargeRecord,
    progress: Mutex<Progress>,
}

/// The units that a part has charged, and its stage.
#[derive(Clone, Copy)]
struct Progress {
    units: u64,
    /// The time at which the first of the units were charged.
    at: Timestamp,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// Refunded because of the response, or because there was none. A commit is still possible.
    Refunded,
    /// Settled by the handler. Nothing changes it.
    Committed,
}

/// Parts by index, each with a number of units.
type Units = SmallVec<[(usize, u64); 1]>;

impl Reservation {
    /// Creates the reservation of an admitted request. Returns `None` if no rule reserves.
    pub(super) fn new(
        layer_state: &Arc<LayerState>,
        reserving: Vec<PendingPart>,
        verdict: &GateVerdict<'_>,
    ) -> Option<Self> {
        if reserving.is_empty() {
            return None;
        }
        let now = layer_state.gate.now();
        let parts =
            reserving.into_iter().filter_map(|PendingPart { key, policy_index, limits, units }| {
                let charged = ChargeRecord::of(layer_state.policy_at(policy_index)?, key, verdict);
                let progress = Mutex::new(Progress { units, at: now, stage: Stage::Open });
                Some(ReservedPart { policy_index, limits, charged, progress })
            });
        let (parts, background) = (parts.collect(), Background::of(&layer_state.gate));
        Some(Reservation(Arc::new(Inner {
            layer_state: Arc::clone(layer_state),
            parts,
            background,
        })))
    }

    /// Changes the estimate to `units`, for example when the handler has read the body. A larger
    /// estimate is checked like any cost, and charged under all rules that reserve or none. The
    /// excess of a smaller one is refunded.
    ///
    /// ```
    /// use tidegate::tower::{Rejection, Reservation};
    ///
    /// // In axum: `Extension(reservation): Extension<Reservation>, prompt: String`.
    /// async fn complete(reservation: Reservation, prompt: String) -> Result<String, Rejection> {
    ///     reservation.reserve(prompt.len() as u64 / 4 + 500).await?;
    ///     // ...
    ///     reservation.commit(321);
    ///     Ok("...".to_owned())
    /// }
    /// ```
    ///
    /// With [`LayerBuilder::max_wait`](super::LayerBuilder::max_wait) it waits until the limits
    /// admit the estimate, or denies it immediately if that takes longer. Units that have left the
    /// window since they were charged are charged again.
    ///
    /// After a denial it may be called again, for example with the estimate of a smaller model. If
    /// the request has ended meanwhile, the charged units stay charged until a commit. After a
    /// commit it changes nothing. Over a shared store the decision is completed in the background
    /// if the future is dropped.
    ///
    /// # Errors
    /// A [`Rejection`] if the limits do not admit it. Then the whole reservation was refunded. The
    /// handler returns the rejection as its response, or makes another response from it.
    pub async fn reserve(&self, units: u64) -> Result<(), Rejection> {
        let inner = Arc::clone(&self.0);
        // A cost above the largest limit never passes, so it can be capped.
        let units = units.min(bounds::MAX_COUNT);
        if !inner.layer_state.gate.is_shared() {
            return inner.reserve(units).await;
        }
        let working = Arc::clone(&inner);
        let completed = inner.background.complete(async move { working.reserve(units).await });
        completed
            .await
            .unwrap_or_else(|| Err(Rejection::of_failure("the service shuts down".to_owned())))
    }

    /// Settles the reservation at its actual cost. The excess is refunded; a shortfall is charged,
    /// also above the limit. Only the first call has an effect. It may come after the request's
    /// future was dropped and the estimate was refunded.
    ///
    /// If several rules reserve, `actual` is the cost under each rule that was not settled by
    /// [`Reservation::commit_for`].
    ///
    /// A `token-bucket` pays an overdraft off at its rate, so a number that is far too large denies
    /// the key for a long time. Bound numbers that may be wrong.
    ///
    /// Over a shared store it is done in the background: on the runtime of the caller or, without
    /// one, on the runtime that admitted the request.
    pub fn commit(&self, actual: u64) {
        self.0.commit(actual, |_, _| true);
    }

    /// Settles one rule at its actual cost, under any plan. Returns `false` if no rule of this name
    /// has a reservation. A plan can also be named: `rule.plan`.
    pub fn commit_for(&self, rule: &str, actual: u64) -> bool {
        self.0.commit(actual, |layer_state, (index, policy)| {
            // The policy with index 0 has the name of the rule.
            let mut named =
                [layer_state.policy_at((index, 0)), layer_state.policy_at((index, policy))]
                    .into_iter();
            named.any(|code_policy| {
                code_policy.is_some_and(|code_policy| code_policy.policy().name() == rule)
            })
        })
    }

    /// Returns the units that the reservation holds, or the committed cost after a commit. If
    /// several rules reserve, it is the largest number.
    ///
    /// An observed limit that would have denied the estimate was not charged, so it counts fewer.
    pub fn estimate(&self) -> u64 {
        let parts = self.0.parts.iter().filter(|part| self.0.is_settled_by_handler(part));
        parts.map(|part| part.progress().units).max().unwrap_or_default()
    }
}

impl Inner {
    fn rule(&self, part: &ReservedPart) -> Option<&CompiledRule> {
        self.layer_state.rules.get(part.policy_index.0)
    }

    /// Whether the handler settles this part. Other parts are settled by the response alone.
    fn is_settled_by_handler(&self, part: &ReservedPart) -> bool {
        self.rule(part).is_some_and(CompiledRule::reserves)
    }

    fn commit(
        self: &Arc<Self>,
        actual: u64,
        is_selected: impl Fn(&LayerState, (usize, usize)) -> bool,
    ) -> bool {
        let mut found = false;
        for (index, part) in self.parts.iter().enumerate() {
            if self.is_settled_by_handler(part) && is_selected(&self.layer_state, part.policy_index)
            {
                found = true;
                if let Some(units) = part.commit(actual) {
                    self.correct(index, units, actual);
                }
            }
        }
        found
    }

    /// Refunds the open parts for which `is_due` returns true.
    fn refund(self: &Arc<Self>, is_due: impl Fn(&ReservedPart) -> bool) {
        for (index, part) in self.parts.iter().enumerate() {
            if part.progress().stage == Stage::Open && is_due(part) {
                self.correct(index, part.refund(), 0);
            }
        }
    }

    async fn reserve(self: &Arc<Self>, units: u64) -> Result<(), Rejection> {
        let parts = self.parts.iter().enumerate();
        let open: Units = parts
            .filter(|(_, part)| self.is_settled_by_handler(part))
            .filter_map(|(index, part)| Some((index, part.reopen()?)))
            .collect();
        let max_wait = self.layer_state.max_wait;
        let holds_any = open.iter().any(|(_, held)| *held > 0);
        if !(holds_any && self.must_renew(&open, units)) {
            let missing = open.iter().map(|(index, held)| (*index, units.saturating_sub(*held)));
            match self.charge_more(&missing.collect(), max_wait).await {
                Err(_) if holds_any => {}
                charged => {
                    open.iter().for_each(|(index, _)| self.lower(*index, units));
                    return charged;
                }
            }
        }
        // The units held so far are part of the new estimate. They are refunded first, so that the
        // verdict reports when the whole estimate would pass, or that it never does.
        for (index, _) in &open {
            self.release(*index).await;
        }
        let all = open.iter().map(|(index, _)| (*index, units)).collect();
        self.charge_more(&all, max_wait).await
    }

    /// Whether the units held so far must be charged again for a new estimate: under some limit
    /// they have left the window, or an enforced limit never admits the whole estimate.
    fn must_renew(&self, open: &Units, units: u64) -> bool {
        let now = self.layer_state.gate.now();
        open.iter().filter(|(_, held)| *held > 0).any(|(index, _)| {
            let Some(change) = self.change(*index, Cost::PEEK) else { return false };
            let is_enforced = change.code_policy.policy().mode() == Mode::Enforce;
            change.limits().any(|limit| {
                is_enforced && units > limit.capacity() || !limit.may_refund(change.charged_at, now)
            })
        })
    }

    /// Charges more units for some parts: all or none.
    async fn charge_more(
        self: &Arc<Self>,
        more: &Units,
        max_wait: Option<Duration>,
    ) -> Result<(), Rejection> {
        let more = || more.iter().filter(|(_, units)| *units > 0);
        let changes: SmallVec<[Adjustment<'_>; 1]> =
            more().filter_map(|(index, units)| self.change(*index, Cost::Ask(*units))).collect();
        if changes.is_empty() {
            return Ok(());
        }
        let gate = &self.layer_state.gate;
        let verdict = gate.charge_more(&changes, max_wait).await;
        let verdict =
            verdict.map_err(|error: GateError| Rejection::of_failure(error.to_string()))?;
        if !verdict.allowed {
            return Err(Rejection::of_verdict(&verdict, self.layer_state.forms, gate.now()));
        }
        for (index, units) in more() {
            let part = &self.parts[*index];
            // Units that were not charged, or charged in this node's memory because the store has
            // failed meanwhile, are not refunded: the refund would take units of other requests.
            let code_policy = self.layer_state.policy_at(part.policy_index);
            let is_counted = (verdict.decided == Decided::Exact || part.charged.is_local())
                && code_policy
                    .is_some_and(|code_policy| ChargeRecord::admits(code_policy, &verdict));
            // Another clone may have settled the part meanwhile.
            if is_counted && !part.raise(*units, gate.now()) {
                self.correct(*index, *units, 0);
            }
        }
        Ok(())
    }

    /// Refunds the units of a part, and keeps the part open.
    async fn release(&self, index: usize) {
        let units = self.parts[index].lower(0);
        if let Some(change) = self.change(index, Cost::Refund(units)).filter(|_| units > 0) {
            // A refund that fails is not repeated: it would fail again.
            drop(self.layer_state.gate.settle(change).await);
        }
    }

    fn lower(self: &Arc<Self>, index: usize, units: u64) {
        let excess = self.parts[index].lower(units);
        self.correct(index, excess, 0);
    }

    /// Corrects the charge of a part from `charged` units to `final_units` units.
    fn correct(self: &Arc<Self>, index: usize, charged: u64, final_units: u64) {
        match final_units.checked_sub(charged) {
            Some(0) => {}
            Some(more) => self.settle(index, Cost::Force(more)),
            None => self.settle(index, Cost::Refund(charged - final_units)),
        }
    }

    fn settle(self: &Arc<Self>, index: usize, cost: Cost) {
        let inner = Arc::clone(self);
        let settling = async move {
            match inner.change(index, cost) {
                Some(change) => inner.layer_state.gate.settle(change).await,
                None => Ok(()),
            }
        };
        // The result is ignored: the checks were valid when the units were reserved, and a change
        // that a shared store does not accept now would not be accepted later either.
        if self.layer_state.gate.is_shared() {
            self.background.run(async move { drop(settling.await) });
        } else {
            drop(self.layer_state.gate.poll_now(settling));
        }
    }

    fn change(&self, index: usize, cost: Cost) -> Option<Adjustment<'_>> {
        let part = self.parts.get(index)?;
        let code_policy = self.layer_state.policy_at(part.policy_index)?;
        Some(Adjustment {
            code_policy,
            limits: part.limits.as_deref(),
            charged: &part.charged,
            charged_at: part.progress().at,
            cost,
        })
    }
}

impl ReservedPart {
    /// Changes the progress. Nothing that can panic runs while the lock is held.
    fn update<T>(&self, change: impl FnOnce(&mut Progress) -> T) -> T {
        change(&mut self.progress.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn progress(&self) -> Progress {
        self.update(|progress| *progress)
    }

    /// Commits the part. Returns the units that were charged, or `None` after an earlier commit.
    fn commit(&self, actual: u64) -> Option<u64> {
        self.update(|progress| {
            let before = *progress;
            if before.stage == Stage::Committed {
                return None;
            }
            *progress = Progress { units: actual, stage: Stage::Committed, ..before };
            Some(before.units)
        })
    }

    /// Opens the part again if it was refunded. Returns the units that are charged, or `None` after
    /// a commit.
    fn reopen(&self) -> Option<u64> {
        self.update(|progress| {
            if progress.stage == Stage::Committed {
                return None;
            }
            progress.stage = Stage::Open;
            Some(progress.units)
        })
    }

    /// Marks the part as refunded, unless it is settled. Returns the units to refund.
    fn refund(&self) -> u64 {
        self.update(|progress| match progress.stage {
            Stage::Open => {
                progress.stage = Stage::Refunded;
                mem::take(&mut progress.units)
            }
            Stage::Refunded | Stage::Committed => 0,
        })
    }

    /// Records that more units were charged now. Returns `false` if the part is settled.
    fn raise(&self, units: u64, now: Timestamp) -> bool {
        self.update(|progress| {
            let is_open = progress.stage == Stage::Open;
            if is_open {
                if progress.units == 0 {
                    progress.at = now;
                }
                progress.units = progress.units.saturating_add(units);
            }
            is_open
        })
    }

    /// Lowers the charged units to `units`, unless the part is settled. Returns the excess.
    fn lower(&self, units: u64) -> u64 {
        self.update(|progress| {
            let excess = match progress.stage {
                Stage::Open => progress.units.saturating_sub(units),
                Stage::Refunded | Stage::Committed => 0,
            };
            progress.units -= excess;
            excess
        })
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("estimate", &self.estimate()).finish_non_exhaustive()
    }
}

/// A reservation of a request that is still being served.
#[derive(Debug)]
pub(super) struct SettleOnDrop(Option<Reservation>);

impl SettleOnDrop {
    pub(super) fn new(reservation: Reservation) -> Self {
        SettleOnDrop(Some(reservation))
    }

    /// The reservation for the request's extensions. `None` if the handler settles no part.
    pub(super) fn reservation(&self) -> Option<Reservation> {
        let inner = &self.0.as_ref()?.0;
        let is_settled_by_handler =
            inner.parts.iter().any(|part| inner.is_settled_by_handler(part));
        self.0.clone().filter(|_| is_settled_by_handler)
    }

    /// Refunds the charges that are not kept after this response. The handler can still commit.
    pub(super) fn settle<B>(mut self, response: &mut Response<B>) {
        if let Some(Reservation(inner)) = &self.0 {
            let stands = |part: &ReservedPart, head: &_| {
                inner.rule(part).is_some_and(|rule| rule.keeps_charge_after(head))
            };
            with_head(response, |head| inner.refund(|part| !stands(part, head)));
        }
        self.0 = None;
    }
}

/// Without a response the outcome is unknown: reservations are refunded, other charges are kept.
impl Drop for SettleOnDrop {
    fn drop(&mut self) {
        if let Some(Reservation(inner)) = self.0.take() {
            inner.refund(|part| inner.is_settled_by_handler(part));
        }
    }
}

/// Calls `inspect` with the response without its body, which may have any type.
fn with_head<B>(response: &mut Response<B>, inspect: impl FnOnce(&Response<()>)) {
    let mut head = Response::new(());
    (*head.status_mut(), *head.version_mut()) = (response.status(), response.version());
    mem::swap(head.headers_mut(), response.headers_mut());
    mem::swap(head.extensions_mut(), response.extensions_mut());
    inspect(&head);
    mem::swap(head.headers_mut(), response.headers_mut());
    mem::swap(head.extensions_mut(), response.extensions_mut());
}
