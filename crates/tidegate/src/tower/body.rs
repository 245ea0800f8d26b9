//! The body of a response: that of the service, or that of a denial.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::request::{HeldPermits, RequestGuard};

pin_project! {
    /// The body of a response that has passed the layer. Permits of `concurrency` limits are held
    /// until it has ended or is dropped.
    pub struct LimitedBody<B> {
        #[pin]
        content: Content<B>,
    }
}

pin_project! {
    #[project = Projected]
    enum Content<B> {
        /// The body of the service, and the permits that it holds.
        Service {
            #[pin]
            body: B,
            permits: Option<Box<HeldPermits>>,
        },
        /// The body of a denial, in one piece.
        Denial { text: Bytes },
    }
}

/// The conversion of response bodies by the layer. Default: [`Wrapped`].
#[diagnostic::on_unimplemented(
    message = "bodies of type `{B}` cannot become `{Self}` behind the rate limit layer",
    label = "the service behind answers with `{B}`",
    note = "`for_axum()` is for services whose bodies are `axum::body::Body`; leave it out for others"
)]
pub trait Bodies<B>: sealed::Bodies<B> {}

/// Wraps any body in a [`LimitedBody`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Wrapped;

impl<B> Bodies<B> for Wrapped {}

impl<B> sealed::Bodies<B> for Wrapped {
    type Body = LimitedBody<B>;

    #[inline]
    fn poll<F, E>(
        future: Pin<&mut F>,
        guard: &mut RequestGuard,
        context: &mut Context<'_>,
    ) -> sealed::Polled<LimitedBody<B>, E>
    where
        F: Future<Output = Result<Response<B>, E>>,
    {
        let mut polled = future.poll(context);
        let permits = guard.finish(&mut polled);
        polled.map_ok(|response| response.map(|body| LimitedBody::service(body, permits)))
    }

    fn denial(text: Bytes) -> LimitedBody<B> {
        LimitedBody { content: Content::Denial { text } }
    }
}

/// Keeps axum's bodies as they are, so that axum does not box them again. Only bodies of responses
/// that hold permits are wrapped.
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Axum;

#[cfg(feature = "axum")]
impl Bodies<axum::body::Body> for Axum {}

#[cfg(feature = "axum")]
impl sealed::Bodies<axum::body::Body> for Axum {
    type Body = axum::body::Body;

    // The response is changed where the caller keeps it.
    #[inline]
    fn poll<F, E>(
        future: Pin<&mut F>,
        guard: &mut RequestGuard,
        context: &mut Context<'_>,
    ) -> sealed::Polled<axum::body::Body, E>
    where
        F: Future<Output = Result<Response<axum::body::Body>, E>>,
    {
        let mut polled = future.poll(context);
        if let Some(permits) = guard.finish(&mut polled) {
            hold_permits(permits, &mut polled);
        }
        polled
    }

    fn denial(text: Bytes) -> axum::body::Body {
        text.into()
    }
}

/// Wraps the body of a response, which holds permits until it has ended.
#[cfg(feature = "axum")]
fn hold_permits<E>(permits: Box<HeldPermits>, polled: &mut sealed::Polled<axum::body::Body, E>) {
    if let Poll::Ready(Ok(response)) = polled {
        let body = std::mem::take(response.body_mut());
        *response.body_mut() = axum::body::Body::new(LimitedBody::service(body, Some(permits)));
    }
}

pub(super) mod sealed {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http::Response;

    use super::{Bytes, RequestGuard};

    /// The result of polling the future of a service.
    pub type Polled<B, E> = Poll<Result<Response<B>, E>>;

    /// Sealed, because only the layer has permits to hold.
    pub trait Bodies<B> {
        /// The converted body.
        type Body;

        /// Polls the future of the service and finishes the guard of the request with its result.
        /// Permits are held until the body of the response has ended.
        fn poll<F, E>(
            future: Pin<&mut F>,
            guard: &mut RequestGuard,
            context: &mut Context<'_>,
        ) -> Polled<Self::Body, E>
        where
            F: Future<Output = Result<Response<B>, E>>;

        /// Makes the body of a denial.
        fn denial(text: Bytes) -> Self::Body;
    }
}

impl<B> LimitedBody<B> {
    pub(super) fn service(body: B, permits: Option<Box<HeldPermits>>) -> Self {
        LimitedBody { content: Content::Service { body, permits } }
    }
}

/// For other layers that answer instead of the service.
impl<B: Default> Default for LimitedBody<B> {
    fn default() -> Self {
        LimitedBody::service(B::default(), None)
    }
}

impl<B: Body<Data = Bytes>> Body for LimitedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().content.project() {
            Projected::Service { body, permits } => {
                let polled = body.poll_frame(context);
                if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
                    *permits = None;
                }
                polled
            }
            Projected::Denial { text } => {
                let text = std::mem::take(text);
                Poll::Ready((!text.is_empty()).then(|| Ok(Frame::data(text))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Service { body, .. } => body.is_end_stream(),
            Content::Denial { text } => text.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Service { body, .. } => body.size_hint(),
            Content::Denial { text } => SizeHint::with_exact(text.len() as u64),
        }
    }
}

impl<B> fmt::Debug for LimitedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitedBody").finish_non_exhaustive()
    }
}
