//! State of an admitted request until its response has ended.

use std::sync::Arc;

use http::{Request, Response};

use super::background::Background;
use super::reservation::Unsettled;
use crate::gate::{AnyPermit, Gate};
use crate::headers::Fields;
use crate::stats::ServiceTimer;

/// State of an admitted request. If it is dropped before there is a response, permits are released
/// and reservations are refunded.
#[derive(Default)]
pub(super) struct RequestGuard {
    pub(super) fields: Fields,
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
    /// Puts the reservation that the handler settles, if there is one, into its request.
    #[inline]
    pub(super) fn reserve<B>(&self, request: &mut Request<B>) {
        let unsettled = self.held.as_ref().and_then(|held| held.unsettled.as_ref());
        if let Some(reservation) = unsettled.and_then(Unsettled::reservation) {
            request.extensions_mut().insert(reservation);
        }
    }

    /// Puts the fields into a response of the service, settles reservations by it, and returns the
    /// permits that are held until its body has ended.
    #[inline]
    pub(super) fn finish<B>(&mut self, response: &mut Response<B>) -> Option<Box<HeldPermits>> {
        let headers = response.headers_mut();
        // The service's own fields take precedence: it knows more about the request.
        if !headers.keys().any(|name| self.fields.has(name)) {
            self.fields.write(headers);
        }
        let state = *self.held.take()?;
        if let Some(timer) = state.timer {
            timer.finish();
        }
        if let Some(unsettled) = state.unsettled {
            unsettled.settle(response);
        }
        state.permits
    }
}

/// Places held under `concurrency` limits, given back on drop.
#[derive(Debug)]
pub struct HeldPermits {
    gate: Arc<Gate>,
    permit: Option<AnyPermit>,
    background: Background,
}

impl HeldPermits {
    pub(super) fn new(gate: &Arc<Gate>, permit: AnyPermit) -> Box<Self> {
        let background = Background::of(gate);
        Box::new(HeldPermits { gate: Arc::clone(gate), permit: Some(permit), background })
    }
}

impl Drop for HeldPermits {
    fn drop(&mut self) {
        // One in this node's memory gives itself back.
        if let Some(AnyPermit::Shared(permit)) = self.permit.take() {
            let gate = Arc::clone(&self.gate);
            // A Redis store repeats a release that fails; elsewhere the lease ends the permit.
            self.background.run(async move { drop(permit.release(&gate).await) });
        }
    }
}
