//! State of an admitted request until its response has ended.

use std::sync::Arc;
use std::task::Poll;

use http::{Request, Response};
use tokio::runtime::Handle;

use super::reservation::SettleOnDrop;
use crate::gate::{AnyPermit, Gate};
use crate::headers::Fields;
use crate::stats::ServiceTimer;

/// State of an admitted request. If it is dropped before there is a response, permits are released
/// and reservations are refunded.
pub struct RequestGuard {
    pub(super) fields: Fields,
    /// Boxed, because few requests have it and the guard is moved with its future.
    pub(super) held: Option<Box<GuardState>>,
}

/// State that few requests have.
#[derive(Default)]
pub(super) struct GuardState {
    pub(super) permits: Option<Box<HeldPermits>>,
    pub(super) timer: Option<ServiceTimer>,
    pub(super) unsettled: Option<SettleOnDrop>,
}

impl RequestGuard {
    /// A guard of nothing. A constant is copied as a whole, which a copy right after it can read
    /// without a stall.
    pub(super) const EMPTY: Self = RequestGuard { fields: Fields::EMPTY, held: None };

    /// Puts the reservation that the handler settles, if there is one, into the request's
    /// extensions.
    #[inline]
    pub(super) fn reserve<B>(&self, request: &mut Request<B>) {
        let unsettled = self.held.as_ref().and_then(|held| held.unsettled.as_ref());
        if let Some(reservation) = unsettled.and_then(SettleOnDrop::reservation) {
            request.extensions_mut().insert(reservation);
        }
    }

    /// Finishes with the result of the service, unless it is pending: adds the header fields to a
    /// response, settles reservations by its outcome, and returns the permits to hold until its
    /// body has ended. An error refunds reservations.
    #[inline]
    pub(super) fn finish<B, E>(
        &mut self,
        polled: &mut Poll<Result<Response<B>, E>>,
    ) -> Option<Box<HeldPermits>> {
        let response = match polled {
            Poll::Ready(Ok(response)) => response,
            Poll::Ready(Err(_)) => {
                *self = RequestGuard::EMPTY;
                return None;
            }
            Poll::Pending => return None,
        };
        let headers = response.headers_mut();
        // Fields that the service has set take precedence: it knows more about the request.
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

/// Permits held under `concurrency` limits, released on drop.
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
        // A permit in this node's memory releases itself on drop.
        if let Some(AnyPermit::Shared(permit)) = self.permit.take() {
            let gate = Arc::clone(&self.gate);
            // A Redis store repeats a release that fails; elsewhere the lease ends the permit.
            self.background.run(async move { drop(permit.release(&gate).await) });
        }
    }
}

/// Runs work that outlives a request: on the current runtime or, outside of any, on the runtime
/// that admitted the request. Without either the work is not done, and its subject expires: a
/// permit with its lease, a charge with its window.
#[derive(Debug)]
pub(super) struct Background(Option<Handle>);

impl Background {
    /// Keeps the current runtime, for requests that this gate admits now. In memory no runtime is
    /// needed.
    pub(super) fn of(gate: &Gate) -> Self {
        Background(gate.is_shared().then(Handle::try_current).and_then(Result::ok))
    }

    pub(super) fn run(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = self.runtime() {
            runtime.spawn(work);
        }
    }

    /// Runs work to its end, also if this future is dropped meanwhile. Returns `None` if the
    /// runtime shuts down before.
    pub(super) async fn complete<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        match self.runtime() {
            Some(runtime) => runtime.spawn(work).await.ok(),
            None => Some(work.await),
        }
    }

    fn runtime(&self) -> Option<Handle> {
        Handle::try_current().ok().or_else(|| self.0.clone())
    }
}
