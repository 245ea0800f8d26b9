//! Responses of the admin front, and the router as a front.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body as AxumBody;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, StatusCode};
use hyper::body::{Body, Frame, SizeHint};
use serde::Serialize;
use tower_service::Service;

use crate::connections::InFlight;
use crate::error::{ErrorKind, RequestError};
use crate::fronts::{Front, FrontCall};
use crate::server_state::{FrontName, ServerState};

/// Creates a plain-text response.
pub fn text(status: StatusCode, text: impl Into<Cow<'static, str>>) -> Response {
    with_type(status, "text/plain; charset=utf-8", text.into())
}

/// Creates a JSON response.
pub fn json(value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => with_type(StatusCode::OK, "application/json", text.into()),
        // Unreachable while the keys of all maps are strings.
        Err(error) => RequestError::new(ErrorKind::Internal, error.to_string()).into_response(),
    }
}

/// Creates a response with a content type.
pub fn with_type(status: StatusCode, kind: &'static str, text: Cow<'static, str>) -> Response {
    let mut response = Response::new(match text {
        Cow::Borrowed(text) => AxumBody::from(text),
        Cow::Owned(text) => AxumBody::from(text),
    });
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        self.to_response(AxumBody::from)
    }
}

/// Returns a header as text, if it is present and valid text.
pub fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The admin front: serves an axum router.
#[derive(Debug)]
pub struct AdminFront {
    router: Router,
    server_state: Arc<ServerState>,
}

impl AdminFront {
    /// Creates a front from a router. Handlers find the `SocketAddr` of the peer among the
    /// extensions of the request.
    pub fn new(router: Router, server_state: Arc<ServerState>) -> Self {
        AdminFront { router, server_state }
    }
}

impl Front for AdminFront {
    type Body = TrackedBody;

    async fn finish(
        self: Arc<Self>,
        call: FrontCall,
        _: Option<Bytes>,
    ) -> http::Response<TrackedBody> {
        let FrontCall { mut request, peer, in_flight } = call;
        request.extensions_mut().insert(peer);
        match self.router.clone().call(request).await {
            Ok(response) => response.map(|body| TrackedBody { body, _in_flight: in_flight }),
            Err(never) => match never {},
        }
    }

    fn record(&self, response: &http::Response<TrackedBody>) {
        self.server_state.count_response(FrontName::Admin, response.status());
    }
}

/// A response body that keeps its request in flight until it is dropped.
#[derive(Debug)]
pub struct TrackedBody {
    body: AxumBody,
    _in_flight: InFlight,
}

impl Body for TrackedBody {
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
