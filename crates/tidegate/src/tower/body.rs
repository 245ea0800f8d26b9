//! The body of a response: the service's own, or that of a denial.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::guard::HeldPermits;

pin_project! {
    /// The body of a response behind the layer. HeldPermits under `concurrency` limits are
    /// held until it has ended or is dropped.
    pub struct LimitedBody<B> {
        #[pin]
        content: Content<B>,
    }
}

pin_project! {
    #[project = Projected]
    enum Content<B> {
        /// The service's own.
        Service {
            #[pin]
            body: B,
            permits: Option<Box<HeldPermits>>,
        },
        /// That of a denial, in one piece.
        Denial { text: Bytes },
    }
}

/// What bodies become behind the layer: [`Wrapped`], unless told otherwise.
#[diagnostic::on_unimplemented(
    message = "bodies of type `{B}` cannot become `{Self}` behind the rate limit layer",
    label = "the service behind answers with `{B}`",
    note = "`for_axum()` is for services whose bodies are `axum::body::Body`; leave it out for others"
)]
pub trait Bodies<B>: sealed::Bodies<B> {}

/// Any body: it is wrapped, as a [`LimitedBody`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Wrapped;

impl<B> Bodies<B> for Wrapped {}

impl<B> sealed::Bodies<B> for Wrapped {
    type Body = LimitedBody<B>;

    #[inline]
    fn service(body: B, permits: Option<Box<HeldPermits>>) -> LimitedBody<B> {
        LimitedBody::service(body, permits)
    }

    fn denial(text: Bytes) -> LimitedBody<B> {
        LimitedBody { content: Content::Denial { text } }
    }
}

/// axum's bodies: they stay as they are, which saves axum boxing them anew.
/// Only those of responses that hold permits are wrapped.
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Axum;

#[cfg(feature = "axum")]
impl Bodies<axum::body::Body> for Axum {}

#[cfg(feature = "axum")]
impl sealed::Bodies<axum::body::Body> for Axum {
    type Body = axum::body::Body;

    #[inline]
    fn service(body: axum::body::Body, permits: Option<Box<HeldPermits>>) -> axum::body::Body {
        match permits {
            None => body,
            permits => axum::body::Body::new(LimitedBody::service(body, permits)),
        }
    }

    // A response without permits is not even moved.
    #[inline]
    fn finished<E>(
        polled: sealed::Polled<Self::Body, E>,
        permits: Option<Box<HeldPermits>>,
    ) -> sealed::Polled<Self::Body, E> {
        match permits {
            None => polled,
            permits => polled.map_ok(|response| response.map(|body| Self::service(body, permits))),
        }
    }

    fn denial(text: Bytes) -> axum::body::Body {
        text.into()
    }
}

pub(super) mod sealed {
    use std::task::Poll;

    use http::Response;

    use super::{Bytes, HeldPermits};

    /// What a service's future says.
    pub type Polled<B, E> = Poll<Result<Response<B>, E>>;

    /// Nobody else has permits to hold.
    pub trait Bodies<B> {
        /// What bodies become.
        type Body;

        /// The service's own, and what is held until it has ended.
        fn service(body: B, permits: Option<Box<HeldPermits>>) -> Self::Body;

        /// The service's response, and what is held until its body has ended.
        #[inline]
        fn finished<E>(
            polled: Polled<B, E>,
            permits: Option<Box<HeldPermits>>,
        ) -> Polled<Self::Body, E> {
            polled.map_ok(|response| response.map(|body| Self::service(body, permits)))
        }

        /// That of a denial.
        fn denial(text: Bytes) -> Self::Body;
    }
}

impl<B> LimitedBody<B> {
    pub(super) fn service(body: B, permits: Option<Box<HeldPermits>>) -> Self {
        LimitedBody { content: Content::Service { body, permits } }
    }
}

/// A body of somebody else's, who answers instead of the service.
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
