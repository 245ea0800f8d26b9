//! The body of a response: the service's own, or that of a denial.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::passing::Places;

pin_project! {
    /// The body of a response behind the layer. Places under `concurrency` limits are
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
            places: Option<Box<Places>>,
        },
        /// That of a denial, in one piece.
        Denial { text: Bytes },
    }
}

impl<B> LimitedBody<B> {
    pub(super) fn service(body: B, places: Option<Box<Places>>) -> Self {
        LimitedBody { content: Content::Service { body, places } }
    }

    pub(super) fn denial(text: Bytes) -> Self {
        LimitedBody { content: Content::Denial { text } }
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
            Projected::Service { body, places } => {
                let polled = body.poll_frame(context);
                if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
                    *places = None;
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
