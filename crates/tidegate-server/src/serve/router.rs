//! A router of axum's as a front.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tower_service::Service;

use super::connections::InFlight;
use super::listener::Front;

/// Serves a router.
#[derive(Debug)]
pub struct Routed(Router);

impl Routed {
    /// Serves this router. Its handlers find the peer's `SocketAddr` as an extension.
    pub fn new(router: Router) -> Self {
        Routed(router)
    }
}

impl Front for Routed {
    type Body = Lasting;

    fn answer(
        self: Arc<Self>,
        mut request: Request<Incoming>,
        peer: SocketAddr,
        in_flight: InFlight,
    ) -> impl Future<Output = Response<Lasting>> + Send + 'static {
        request.extensions_mut().insert(peer);
        let answer = self.0.clone().call(request);
        async move {
            match answer.await {
                Ok(response) => response.map(|body| Lasting { body, _in_flight: in_flight }),
                Err(never) => match never {},
            }
        }
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
