//! What the layer sees of a request: everything but its body.

use std::net::IpAddr;

use http::header::HOST;
use http::request::Parts;
use http::{Extensions, HeaderMap, Method, Request, Uri};

use crate::attributes::{Attributes, Headers};

/// A request without its body, as keys and costs are made from it.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    method: &'a Method,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
    /// `None` until the layer has looked for it.
    pub(super) client_ip: Option<IpAddr>,
}

impl<'a> Head<'a> {
    /// Of a request on its way through.
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

    /// Of a request whose body was put aside, because it may not be looked at by two threads.
    pub(super) fn of_parts(parts: &'a Parts) -> Self {
        Head {
            method: &parts.method,
            uri: &parts.uri,
            headers: &parts.headers,
            extensions: &parts.extensions,
            client_ip: None,
        }
    }

    /// The method.
    pub fn method(&self) -> &'a Method {
        self.method
    }

    /// The URI as the service behind sees it: axum's `Router::nest` takes the prefix off. For the
    /// path that the client sent see [`Head::path`].
    pub fn uri(&self) -> &'a Uri {
        self.uri
    }

    /// All headers.
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// The first header of a name, if it is text and not empty.
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.headers.get(name)?.to_str().ok().filter(|value| !value.is_empty())
    }

    /// All that outer layers have put in.
    pub fn extensions(&self) -> &'a Extensions {
        self.extensions
    }

    /// What an outer layer has put in, such as who is logged in.
    pub fn extension<T: Send + Sync + 'static>(&self) -> Option<&'a T> {
        self.extensions.get()
    }

    /// The client's address, found through trusted proxies.
    pub fn client_ip(&self) -> Option<IpAddr> {
        self.client_ip
    }

    /// What the client asked for, whatever routers have made of it since.
    #[inline]
    fn original_uri(&self) -> &'a Uri {
        #[cfg(feature = "axum")]
        if let Some(original) = self.extensions.get::<axum::extract::OriginalUri>() {
            return &original.0;
        }
        self.uri
    }

    /// The path that the client sent. With feature `axum` it is whole also inside `Router::nest`,
    /// which takes the prefix off [`Head::uri`].
    #[inline]
    pub fn path(&self) -> &'a str {
        self.original_uri().path()
    }

    /// The same facts, as policies want them.
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
