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
use super::settings::FrontName;
use crate::admin::Facts;

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

    type Answer = Pin<Box<dyn Future<Output = Response<Lasting>> + Send>>;

    fn answer(
        self: &Arc<Self>,
        mut request: Request<Incoming>,
        peer: SocketAddr,
        in_flight: InFlight,
    ) -> Self::Answer {
        request.extensions_mut().insert(peer);
        let answer = self.router.clone().call(request);
        let facts = Arc::clone(&self.facts);
        Box::pin(async move {
            match answer.await {
                Ok(response) => {
                    facts.answered(FrontName::Admin, response.status());
                    response.map(|body| Lasting { body, _in_flight: in_flight })
                }
                Err(never) => match never {},
            }
        })
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
