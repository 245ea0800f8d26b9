//! Files of pages that are embedded in the binary, and the headers they are sent with.

use http::HeaderMap;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};

/// What a page may load: its own files, and the API beside it. Nothing inline, so that a
/// key that looks like markup stays text.
pub const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The types of files there are.
pub const HTML: &str = "text/html; charset=utf-8";
pub const CSS: &str = "text/css; charset=utf-8";
pub const SCRIPT: &str = "text/javascript; charset=utf-8";
pub const SVG: &str = "image/svg+xml";
pub const TEXT: &str = "text/plain; charset=utf-8";

/// The sign of tidegate.
pub const ICON: &str = include_str!("admin/assets/icon.svg");

/// A file of a page.
#[derive(Clone, Copy, Debug)]
pub struct Asset {
    /// Where it is asked for.
    pub path: &'static str,
    /// Its content type.
    pub kind: &'static str,
    pub text: &'static str,
}

/// A file of a page's own, out of the `assets` beside the module that names it.
macro_rules! own_asset {
    ($page:literal, $name:literal, $kind:expr) => {
        $crate::static_assets::Asset {
            path: concat!("/", $page, "/", $name),
            kind: $kind,
            text: include_str!(concat!("assets/", $name)),
        }
    };
}
pub(crate) use own_asset;

/// Adds headers that forbid content sniffing, caching, external resources and framing. Headers that
/// the response has already are kept.
pub fn harden(headers: &mut HeaderMap) {
    const FIELDS: [(HeaderName, &str); 4] = [
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CACHE_CONTROL, "no-store"),
        (REFERRER_POLICY, "no-referrer"),
        (CONTENT_SECURITY_POLICY, CONTENT_POLICY),
    ];
    for (name, value) in FIELDS {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
}
