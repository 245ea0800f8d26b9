//! The service: asks, then calls the one behind it or answers itself.
//!
//! In memory everything is decided inside `call`: the service behind is called at once, by
//! the readiness that was polled for, and nothing is cloned or boxed. Only where something
//! must be waited for is there a future of our own; the service behind is then swapped for
//! a clone, so that the one that is ready goes with the request.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::body::{Bodies, Wrapped};
use super::core::{Core, Decided};
use super::deciding::Deciding;
use super::head::Head;
use super::passing::Passing;
use super::quick::{AtOnce, Pending};

/// A service behind a [`RateLimitLayer`](super::RateLimitLayer).
pub struct RateLimit<S, K = Wrapped> {
    inner: S,
    core: Arc<Core>,
    bodies: PhantomData<fn() -> K>,
}

impl<S, K> RateLimit<S, K> {
    pub(super) fn new(inner: S, core: Arc<Core>) -> Self {
        RateLimit { inner, core, bodies: PhantomData }
    }

    /// The service behind it.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The service behind it.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The service behind it.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: Clone, K> Clone for RateLimit<S, K> {
    fn clone(&self) -> Self {
        RateLimit::new(self.inner.clone(), Arc::clone(&self.core))
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

    #[inline]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        // Each arm builds its future itself: joined, `passing` would be moved once more.
        match self.core.decide_at_once(&request) {
            Some(AtOnce::Alone) => {
                let future = self.inner.call(request);
                ResponseFuture::new(State::Called { future, passing: Passing::Nothing })
            }
            Some(AtOnce::Says(by)) => {
                let future = self.inner.call(request);
                let passing = Passing::Quick(by.under(&self.core));
                ResponseFuture::new(State::Called { future, passing })
            }
            Some(AtOnce::Open(pending)) => self.call_now(request, Some(&pending)),
            None if self.core.is_immediate() => self.call_now(request, None),
            None => self.call_later(request),
        }
    }
}

impl<S, K> RateLimit<S, K> {
    /// For what can be decided without waiting for anything.
    #[inline(never)]
    fn call_now<B, R>(
        &mut self,
        request: Request<B>,
        pending: Option<&Pending>,
    ) -> ResponseFuture<S::Future, K>
    where
        S: Service<Request<B>, Response = Response<R>>,
        K: Bodies<R>,
    {
        let client_ip = self.core.client_ip(request.extensions(), request.headers());
        let head = Head::of(&request, client_ip);
        let decided = match pending {
            Some(pending) => self.core.decide_pending(pending, &head),
            None => self.core.decide(&head),
        };
        ResponseFuture::new(State::of(decided, &mut self.inner, request))
    }

    fn call_later<B, R>(&mut self, request: Request<B>) -> ResponseFuture<S::Future, K>
    where
        S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        B: Send + 'static,
        K: Bodies<R>,
    {
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let core = Arc::clone(&self.core);
        let future = Box::pin(async move {
            let (parts, body) = request.into_parts();
            let (decided, parts) = Deciding::new(core, parts).await;
            State::of(decided, &mut inner, Request::from_parts(parts, body))
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
    /// The response on its way: the service's, or a denial.
    pub struct ResponseFuture<F, K = Wrapped> {
        #[pin]
        state: State<F>,
        bodies: PhantomData<fn() -> K>,
    }
}

pin_project! {
    #[project = Projected]
    enum State<F> {
        /// The service has been called.
        Called {
            #[pin]
            future: F,
            passing: Passing,
        },
        /// It has not, and will not be.
        Denied { response: Option<Box<Response<Bytes>>> },
        /// It will be when its turn has come or the store has answered.
        Waiting { future: Pin<Box<dyn Future<Output = State<F>> + Send>> },
    }
}

impl<F> State<F> {
    /// Calls the service if the request passes.
    #[inline]
    fn of<S, B>(decided: Decided, inner: &mut S, mut request: Request<B>) -> Self
    where
        S: Service<Request<B>, Future = F>,
    {
        let passing = match decided {
            Decided::Passes(passing) => passing,
            Decided::Denied(response) => return State::Denied { response: Some(response) },
        };
        if let Some(reservation) = passing.reservation() {
            request.extensions_mut().insert(reservation);
        }
        State::Called { future: inner.call(request), passing }
    }
}

impl<F, K> ResponseFuture<F, K> {
    #[inline]
    fn new(state: State<F>) -> Self {
        ResponseFuture { state, bodies: PhantomData }
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
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                Projected::Called { future, passing: Passing::Rest(rest) } => {
                    let answered = ready!(future.poll(context));
                    // Taken in any case: after an error, what was reserved is given back.
                    let rest = std::mem::take(&mut **rest);
                    return Poll::Ready(answered.map(|response| rest.arrived::<K, R>(response)));
                }
                Projected::Called { future, passing } => {
                    let mut polled = future.poll(context);
                    if let (Poll::Ready(Ok(response)), Passing::Quick(quick)) =
                        (&mut polled, passing)
                    {
                        quick.arrived(response.headers_mut());
                    }
                    return K::unchanged(polled);
                }
                Projected::Denied { response } => {
                    return match response.take() {
                        Some(response) => Poll::Ready(Ok(response.map(K::denial))),
                        // It was ready before; nobody may poll it again.
                        None => Poll::Pending,
                    };
                }
                Projected::Waiting { future } => ready!(future.as_mut().poll(context)),
            };
            state.set(next);
        }
    }
}

impl<F, K> fmt::Debug for ResponseFuture<F, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
