//! The service: asks, then calls the one behind it or answers itself.
//!
//! In memory everything is decided inside `call`: the service behind is called at once, by
//! the readiness that was polled for, and nothing is cloned or boxed. Only where something
//! must be waited for is there a future of our own; the service behind is then swapped for
//! a clone, so that the one that is ready goes with the request.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::body::LimitedBody;
use super::core::Core;
use super::head::Head;
use super::passing::Passing;

/// A service behind a [`RateLimitLayer`](super::RateLimitLayer).
#[derive(Clone)]
pub struct RateLimit<S> {
    inner: S,
    core: Arc<Core>,
}

impl<S> RateLimit<S> {
    pub(super) fn new(inner: S, core: Arc<Core>) -> Self {
        RateLimit { inner, core }
    }

    /// The service behind it.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The service behind it.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, R> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<LimitedBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, R, S::Error>;

    #[inline]
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    #[inline]
    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if !self.core.is_immediate() {
            return self.call_later(request);
        }
        match self.core.decide(Head::of(&request)) {
            Ok(passing) => {
                if let Some(unsettled) = &passing.unsettled {
                    request.extensions_mut().extend_with(unsettled.reservation());
                }
                let future = self.inner.call(request);
                ResponseFuture { state: State::Passing { future, passing: Some(passing) } }
            }
            Err(response) => ResponseFuture { state: State::Denied { response: Some(response) } },
        }
    }
}

impl<S> RateLimit<S> {
    fn call_later<B, R>(&mut self, request: Request<B>) -> ResponseFuture<S::Future, R, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        B: Send + 'static,
    {
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let core = Arc::clone(&self.core);
        let future = Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            match core.decide_later(Head::of_parts(&parts)).await {
                Ok(passing) => {
                    if let Some(unsettled) = &passing.unsettled {
                        parts.extensions.extend_with(unsettled.reservation());
                    }
                    let response = inner.call(Request::from_parts(parts, body)).await?;
                    Ok(passing.arrived(response))
                }
                Err(response) => Ok(response.map(LimitedBody::denial)),
            }
        });
        ResponseFuture { state: State::Waiting { future } }
    }
}

impl<S: fmt::Debug> fmt::Debug for RateLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).finish_non_exhaustive()
    }
}

type Waiting<R, E> = Pin<Box<dyn Future<Output = Result<Response<LimitedBody<R>>, E>> + Send>>;

pin_project! {
    /// The response on its way: the service's, or a denial.
    pub struct ResponseFuture<F, R, E> {
        #[pin]
        state: State<F, R, E>,
    }
}

pin_project! {
    #[project = Projected]
    enum State<F, R, E> {
        /// The service has been called.
        Passing {
            #[pin]
            future: F,
            passing: Option<Passing>,
        },
        /// It has not, and will not be.
        Denied { response: Option<Box<Response<Bytes>>> },
        /// It will be when its turn has come or the store has answered.
        Waiting { future: Waiting<R, E> },
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<LimitedBody<R>>, E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            Projected::Passing { future, passing } => {
                let answered = ready!(future.poll(context));
                // Taken in any case: after an error, what was reserved is given back.
                let passing = passing.take().unwrap_or_default();
                Poll::Ready(answered.map(|response| passing.arrived(response)))
            }
            Projected::Denied { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response.map(LimitedBody::denial))),
                // It was ready before; nobody may poll it again.
                None => Poll::Pending,
            },
            Projected::Waiting { future } => future.as_mut().poll(context),
        }
    }
}

impl<F, R, E> fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

/// Putting in what there is to put in.
trait ExtendWith {
    fn extend_with<T: Clone + Send + Sync + 'static>(&mut self, value: Option<T>);
}

impl ExtendWith for http::Extensions {
    fn extend_with<T: Clone + Send + Sync + 'static>(&mut self, value: Option<T>) {
        if let Some(value) = value {
            self.insert(value);
        }
    }
}
