//! A router of axum's as a front.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use bytes::Bytes;
use http::Response;
use hyper::body::{Body, Frame, SizeHint};
use tower_service::Service;

use super::{Facts, Front as FrontName};
use crate::fronts::response_future::{Call, Front};
use crate::serve::InFlight;

/// Serves a router.
#[derive(Debug)]
pub struct Routed {
    router: Router,
    facts: Arc<Facts>,
}

impl Routed {
    /// Serves this router as the admin front. Its handlers find the peer's
    /// `SocketAddr` as an extension.
    pub fn new(router: Router, facts: Arc<Facts>) -> Self {
        Routed { router, facts }
    }
}

impl Front for Routed {
    type Body = Lasting;

    async fn finish(self: Arc<Self>, call: Call, _: Option<Bytes>) -> Response<Lasting> {
        let Call { mut request, peer, in_flight } = call;
        request.extensions_mut().insert(peer);
        match self.router.clone().call(request).await {
            Ok(response) => response.map(|body| Lasting { body, _in_flight: in_flight }),
            Err(never) => match never {},
        }
    }

    fn record(&self, response: &Response<Lasting>) {
        self.facts.answered(FrontName::Admin, response.status());
    }
}

/// A body whose request is on its way for as long as it lasts.
#[derive(Debug)]
pub struct Lasting {
    body: axum::body::Body,
    _in_flight: InFlight,
}

impl Body for Lasting {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
