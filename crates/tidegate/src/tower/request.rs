//! A request as the layer sees it: its head, which rules read, and the state of an admitted request
//! until its response has ended.

use std::net::IpAddr;
use std::sync::Arc;
use std::task::Poll;

use http::header::HOST;
use http::request::Parts;
use http::{Extensions, HeaderMap, Method, Request, Response, Uri};
use tokio::runtime::Handle;

use super::reservation::SettleOnDrop;
use crate::attributes::{Attributes, Headers};
use crate::gate::{AnyPermit, Gate};
use crate::headers::Fields;
use crate::stats::ServiceTimer;

/// A request without its body. The closures of a [`Rule`](super::Rule) read it to make keys, costs
/// and limits.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    method: &'a Method,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
    /// `None` until the layer has found it.
    pub(super) client_ip: Option<IpAddr>,
}

impl<'a> Head<'a> {
    /// The head of a request.
    #[inline]
    pub(super) fn of<B>(request: &'a Request<B>) -> Self {
        Head {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
            client_ip: None,
        }
    }

    /// The head of a request that was split from its body, because the body need not be `Sync`.
    pub(super) fn of_parts(parts: &'a Parts) -> Self {
        Head {
            method: &parts.method,
            uri: &parts.uri,
            headers: &parts.headers,
            extensions: &parts.extensions,
            client_ip: None,
        }
    }

    /// Returns the method.
    pub fn method(&self) -> &'a Method {
        self.method
    }

    /// Returns the URI as the inner service sees it: axum's `Router::nest` removes the prefix. For
    /// the path that the client sent, see [`Head::path`].
    pub fn uri(&self) -> &'a Uri {
        self.uri
    }

    /// Returns all header fields.
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// Returns the first header field of a name, if its value is text and not empty.
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.headers.get(name)?.to_str().ok().filter(|value| !value.is_empty())
    }

    /// Returns the extensions, which outer layers have added.
    pub fn extensions(&self) -> &'a Extensions {
        self.extensions
    }

    /// Returns an extension that an outer layer has added, such as the user that is logged in.
    pub fn extension<T: Send + Sync + 'static>(&self) -> Option<&'a T> {
        self.extensions.get()
    }

    /// Returns the client's address, found through trusted proxies.
    pub fn client_ip(&self) -> Option<IpAddr> {
        self.client_ip
    }

    /// The URI that the client sent, before routers changed it.
    #[inline]
    fn original_uri(&self) -> &'a Uri {
        #[cfg(feature = "axum")]
        if let Some(original) = self.extensions.get::<axum::extract::OriginalUri>() {
            return &original.0;
        }
        self.uri
    }

    /// Returns the path that the client sent. With feature `axum` it is the whole path also inside
    /// `Router::nest`, which removes the prefix from [`Head::uri`].
    #[inline]
    pub fn path(&self) -> &'a str {
        self.original_uri().path()
    }

    /// The attributes of the request, for policies and key templates.
    pub(super) fn attributes(&self) -> Attributes<'a> {
        let uri = self.original_uri();
        let host = self.headers.get(HOST).and_then(|host| host.to_str().ok());
        Attributes {
            method: Some(self.method.as_str()),
            path: Some(uri.path()),
            query: uri.query(),
            host: uri.authority().map(|authority| authority.as_str()).or(host),
            client_ip: self.client_ip,
            headers: Headers::Map(self.headers),
            ..Attributes::default()
        }
    }
}

/// State of an admitted request. If it is dropped before there is a response, permits are released
/// and reservations are refunded.
pub struct RequestGuard {
    pub(super) fields: Fields,
    /// Boxed, because few requests have it and the guard is moved with its future.
    pub(super) held: Option<Box<GuardState>>,
}

/// State that few requests have.
#[derive(Default)]
pub(super) struct GuardState {
    pub(super) permits: Option<Box<HeldPermits>>,
    pub(super) timer: Option<ServiceTimer>,
    pub(super) unsettled: Option<SettleOnDrop>,
}

impl RequestGuard {
    /// A guard of nothing. A constant is copied as a whole, which a copy right after it can read
    /// without a stall.
    pub(super) const EMPTY: Self = RequestGuard { fields: Fields::EMPTY, held: None };

    /// Puts the reservation that the handler settles, if there is one, into the request's
    /// extensions.
    #[inline]
    pub(super) fn reserve<B>(&self, request: &mut Request<B>) {
        let unsettled = self.held.as_ref().and_then(|held| held.unsettled.as_ref());
        if let Some(reservation) = unsettled.and_then(SettleOnDrop::reservation) {
            request.extensions_mut().insert(reservation);
        }
    }

    /// Finishes with the result of the service, unless it is pending: adds the header fields to a
    /// response, settles reservations by its outcome, and returns the permits to hold until its
    /// body has ended. An error refunds reservations.
    #[inline]
    pub(super) fn finish<B, E>(
        &mut self,
        polled: &mut Poll<Result<Response<B>, E>>,
    ) -> Option<Box<HeldPermits>> {
        let response = match polled {
            Poll::Ready(Ok(response)) => response,
            Poll::Ready(Err(_)) => {
                *self = RequestGuard::EMPTY;
                return None;
            }
            Poll::Pending => return None,
        };
        let headers = response.headers_mut();
        // Fields that the service has set take precedence: it knows more about the request.
        if !headers.keys().any(|name| self.fields.has(name)) {
            self.fields.write(headers);
        }
        let state = *self.held.take()?;
        if let Some(timer) = state.timer {
            timer.finish();
        }
        if let Some(unsettled) = state.unsettled {
            unsettled.settle(response);
        }
        state.permits
    }
}

/// Permits held under `concurrency` limits, released on drop.
#[derive(Debug)]
pub struct HeldPermits {
    gate: Arc<Gate>,
    permit: Option<AnyPermit>,
    background: Background,
}

impl HeldPermits {
    pub(super) fn new(gate: &Arc<Gate>, permit: AnyPermit) -> Box<Self> {
        let background = Background::of(gate);
        Box::new(HeldPermits { gate: Arc::clone(gate), permit: Some(permit), background })
    }
}

impl Drop for HeldPermits {
    fn drop(&mut self) {
        // A permit in this node's memory releases itself on drop.
        if let Some(AnyPermit::Shared(permit)) = self.permit.take() {
            let gate = Arc::clone(&self.gate);
            // A Redis store repeats a release that fails; elsewhere the lease ends the permit.
            self.background.run(async move { drop(permit.release(&gate).await) });
        }
    }
}

/// Runs work that outlives a request: on the current runtime or, outside of any, on the runtime
/// that admitted the request. Without either the work is not done, and its subject expires: a
/// permit with its lease, a charge with its window.
#[derive(Debug)]
pub(super) struct Background(Option<Handle>);

impl Background {
    /// Keeps the current runtime, for requests that this gate admits now. In memory no runtime is
    /// needed.
    pub(super) fn of(gate: &Gate) -> Self {
        Background(gate.is_shared().then(Handle::try_current).and_then(Result::ok))
    }

    pub(super) fn run(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = self.runtime() {
            runtime.spawn(work);
        }
    }

    /// Runs work to its end, also if this future is dropped meanwhile. Returns `None` if the
    /// runtime shuts down before.
    pub(super) async fn complete<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        match self.runtime() {
            Some(runtime) => runtime.spawn(work).await.ok(),
            None => Some(work.await),
        }
    }

    fn runtime(&self) -> Option<Handle> {
        Handle::try_current().ok().or_else(|| self.0.clone())
    }
}
