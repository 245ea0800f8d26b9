//! The part of a request that the layer reads: everything except its body.

use std::net::IpAddr;

use http::header::HOST;
use http::request::Parts;
use http::{Extensions, HeaderMap, Method, Request, Uri};

use crate::policy::attributes::{Attributes, Headers};

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
