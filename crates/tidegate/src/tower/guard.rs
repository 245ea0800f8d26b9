//! State of an admitted request until its response has ended.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::background::Background;
use super::reservation::{Reservation, Unsettled};
use crate::gate::{Gate, HeldPermit};
use crate::headers::Sink;
use crate::stats::ServiceTimer;

/// Header fields put aside for the response. The newest form has two.
#[derive(Default)]
pub(super) struct FieldList(SmallVec<[(&'static HeaderName, HeaderValue); 2]>);

impl Sink for FieldList {
    fn put(&mut self, name: &'static HeaderName, value: HeaderValue) {
        self.0.push((name, value));
    }
}

/// State of an admitted request. If it is dropped before there is a response, permits are released
/// and reservations are refunded.
#[derive(Default)]
pub(super) struct RequestGuard {
    pub(super) fields: FieldList,
    /// Boxed, because few requests have any of it and the guard is moved about with its future.
    pub(super) held: Option<Box<GuardState>>,
}

/// State that few requests have.
#[derive(Default)]
pub(super) struct GuardState {
    pub(super) permits: Option<Box<HeldPermits>>,
    pub(super) timer: Option<ServiceTimer>,
    pub(super) unsettled: Option<Unsettled>,
}

impl RequestGuard {
    pub(super) fn new(fields: FieldList, state: GuardState) -> Self {
        let GuardState { permits, timer, unsettled } = &state;
        let has_any = permits.is_some() || timer.is_some() || unsettled.is_some();
        RequestGuard { fields, held: has_any.then(|| Box::new(state)) }
    }

    /// The reservation that the handler settles, if there is one.
    #[inline]
    pub(super) fn reservation(&self) -> Option<Reservation> {
        self.held.as_ref()?.unsettled.as_ref()?.reservation()
    }

    /// Puts the fields into a response of the service, and returns the permits that are held until
    /// its body has ended.
    #[inline]
    pub(super) fn finish(&mut self, headers: &mut HeaderMap) -> Option<Box<HeldPermits>> {
        let fields = std::mem::take(&mut self.fields.0);
        // The service's own fields take precedence: it knows more about the request.
        let has_own = || fields.iter().any(|(name, _)| headers.contains_key(*name));
        if headers.is_empty() || !has_own() {
            for (name, value) in fields {
                headers.insert(name, value);
            }
        }
        let state = *self.held.take()?;
        if let Some(timer) = state.timer {
            timer.finish();
        }
        if let Some(unsettled) = state.unsettled {
            unsettled.keep();
        }
        state.permits
    }
}

/// Places held under `concurrency` limits, given back on drop.
#[derive(Debug)]
pub struct HeldPermits {
    gate: Arc<Gate>,
    permit: Option<HeldPermit>,
    background: Background,
}

impl HeldPermits {
    pub(super) fn new(gate: &Arc<Gate>, permit: HeldPermit) -> Box<Self> {
        let background = Background::of(gate);
        Box::new(HeldPermits { gate: Arc::clone(gate), permit: Some(permit), background })
    }
}

impl Drop for HeldPermits {
    fn drop(&mut self) {
        // One in this node's memory gives itself back.
        if let Some(HeldPermit::Shared(permit)) = self.permit.take() {
            let gate = Arc::clone(&self.gate);
            // A Redis store repeats a release that fails; elsewhere the lease ends the permit.
            self.background.run(async move { drop(permit.release(&gate).await) });
        }
    }
}
