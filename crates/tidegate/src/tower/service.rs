//! The service: decides about a request, then calls the inner service or responds itself.
//!
//! In memory the decision is made inside `call`: the inner service, which `poll_ready` found ready,
//! is called immediately, and nothing is cloned or boxed. With a shared store or `max_wait` the
//! decision is a boxed future. The inner service is then replaced by a clone, and the one that is
//! ready moves into the future.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::request::Parts;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::body::{Bodies, Wrapped};
use super::decide::{LayerState, RejectionResponse};
use super::request::{Background, Head, RequestGuard};
use crate::futures::CallTracker;

/// A service behind a [`RateLimitLayer`](super::RateLimitLayer).
pub struct RateLimit<S, K = Wrapped> {
    inner: S,
    layer_state: Arc<LayerState>,
    bodies: PhantomData<fn() -> K>,
}

impl<S, K> RateLimit<S, K> {
    pub(super) fn new(inner: S, layer_state: Arc<LayerState>) -> Self {
        RateLimit { inner, layer_state, bodies: PhantomData }
    }

    /// Returns a reference to the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns a mutable reference to the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: Clone, K> Clone for RateLimit<S, K> {
    fn clone(&self) -> Self {
        RateLimit::new(self.inner.clone(), Arc::clone(&self.layer_state))
    }
}

impl<S, B, R, K> Service<Request<B>> for RateLimit<S, K>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Send + 'static,
    K: Bodies<R>,
{
    type Response = Response<K::Body>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, K>;

    #[inline]
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    // Not inlined: the future is large, and is then made where the caller keeps it.
    #[inline(never)]
    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if !self.layer_state.is_immediate() {
            return self.call_later(request);
        }
        let mut guard = RequestGuard::EMPTY;
        if let Err(denial) = self.layer_state.decide_now(Head::of(&request), &mut guard) {
            return ResponseFuture::new(State::Denied { response: Some(denial) });
        }
        guard.reserve(&mut request);
        let state = State::Called { future: self.inner.call(request) };
        ResponseFuture { state, guard, bodies: PhantomData }
    }
}

impl<S, K> RateLimit<S, K> {
    fn call_later<B, R>(&mut self, request: Request<B>) -> ResponseFuture<S::Future, K>
    where
        S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        B: Send + 'static,
        K: Bodies<R>,
    {
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let layer_state = Arc::clone(&self.layer_state);
        let future = Box::pin(async move {
            let (parts, body) = request.into_parts();
            let (decided, parts) = DecisionFuture::new(layer_state, parts).await;
            match decided {
                Ok(guard) => {
                    let mut request = Request::from_parts(parts, body);
                    guard.reserve(&mut request);
                    (State::Called { future: inner.call(request) }, guard)
                }
                Err(denial) => (State::Denied { response: Some(denial) }, RequestGuard::EMPTY),
            }
        });
        ResponseFuture::new(State::Waiting { future })
    }
}

impl<S: fmt::Debug, K> fmt::Debug for RateLimit<S, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).finish_non_exhaustive()
    }
}

pin_project! {
    /// The future of a response: that of the inner service, or a denial.
    pub struct ResponseFuture<F, K = Wrapped> {
        #[pin]
        state: State<F>,
        guard: RequestGuard,
        bodies: PhantomData<fn() -> K>,
    }
}

impl<F, K> ResponseFuture<F, K> {
    /// A future without a guard.
    fn new(state: State<F>) -> Self {
        ResponseFuture { state, guard: RequestGuard::EMPTY, bodies: PhantomData }
    }
}

pin_project! {
    #[project = Projected]
    enum State<F> {
        /// The inner service was called.
        Called {
            #[pin]
            future: F,
        },
        /// The request was rejected, and the inner service is not called.
        Denied { response: Option<RejectionResponse> },
        /// The request waits under `max_wait`, or for the shared store.
        Waiting { future: Pin<Box<dyn Future<Output = (State<F>, RequestGuard)> + Send>> },
    }
}

impl<F, R, E, K> Future for ResponseFuture<F, K>
where
    F: Future<Output = Result<Response<R>, E>>,
    K: Bodies<R>,
{
    type Output = Result<Response<K::Body>, E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Projected::Waiting { future } = this.state.as_mut().project() {
            let (state, guard) = ready!(future.as_mut().poll(context));
            this.state.set(state);
            *this.guard = guard;
        }
        match this.state.project() {
            Projected::Called { future } => K::poll(future, this.guard, context),
            Projected::Denied { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response.map(K::denial))),
                // A future must not be polled after it was ready.
                None => Poll::Pending,
            },
            // The future that waits returns another state.
            Projected::Waiting { .. } => Poll::Pending,
        }
    }
}

impl<F, K> fmt::Debug for ResponseFuture<F, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

/// The decision about a request, and the head of the request.
type DecisionResult = (Result<RequestGuard, RejectionResponse>, Parts);

/// Decides a request. If it is dropped during a call to the store, the call is completed in the
/// background, so that the guard is dropped after it and undoes its effects.
pub(super) struct DecisionFuture {
    future: Option<Pin<Box<dyn Future<Output = DecisionResult> + Send>>>,
    tracker: Arc<CallTracker>,
    background: Background,
}

impl DecisionFuture {
    pub(super) fn new(layer_state: Arc<LayerState>, parts: Parts) -> Self {
        let background = Background::of(&layer_state.gate);
        let tracker = Arc::<CallTracker>::default();
        let call_tracker = Arc::clone(&tracker);
        let future = Box::pin(async move {
            let (active, mut guard) = (layer_state.active_policies(), RequestGuard::EMPTY);
            let decided = layer_state
                .decide(&active, &mut Head::of_parts(&parts), &call_tracker, &mut guard)
                .await;
            (decided.map(|()| guard), parts)
        });
        DecisionFuture { future: Some(future), tracker, background }
    }
}

impl Future for DecisionFuture {
    type Output = DecisionResult;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<DecisionResult> {
        let this = self.get_mut();
        // A future must not be polled after it was ready.
        let Some(future) = &mut this.future else { return Poll::Pending };
        let result = ready!(future.as_mut().poll(context));
        this.future = None;
        Poll::Ready(result)
    }
}

impl Drop for DecisionFuture {
    fn drop(&mut self) {
        if let Some(future) = self.future.take().filter(|_| self.tracker.is_in_flight()) {
            self.tracker.cancel();
            self.background.run(async move { drop(future.await) });
        }
    }
}
