//! Links between the pages of the server, which are on different fronts: the playground on `http`,
//! the dashboard on `admin`. The pages are static files, so they link to a path of their own front,
//! which redirects to the other one.

use std::net::SocketAddr;

use http::header::HOST;
use http::uri::Authority;
use http::{HeaderMap, Uri};

/// The address of a front that serves pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageAddress {
    pub address: SocketAddr,
    pub is_tls: bool,
}

/// The addresses of the fronts that serve pages; `None` for a front that is off.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageLinks {
    pub http: Option<PageAddress>,
    pub admin: Option<PageAddress>,
}

impl PageAddress {
    /// Returns the URL of a path on this front, for a client that sent a request to another front.
    /// A front that listens on all addresses is reached under the host name of that request.
    pub fn url(self, path: &str, request_uri: &Uri, headers: &HeaderMap) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
        let host = request_uri.authority().cloned().or(host);
        match host.filter(|_| self.address.ip().is_unspecified()) {
            Some(host) => format!("{scheme}://{}:{}{path}", host.host(), self.address.port()),
            None => format!("{scheme}://{}{path}", self.address),
        }
    }
}
