//! Files of web pages that are embedded in the binary, and the headers that are sent with them.

use http::HeaderMap;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};

/// The content security policy of all pages: a page may load only its own files and call only the
/// API of its server. Inline scripts and styles are forbidden, so a key that looks like markup
/// cannot run.
pub const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Content types of the embedded files.
pub const HTML: &str = "text/html; charset=utf-8";
pub const CSS: &str = "text/css; charset=utf-8";
pub const SCRIPT: &str = "text/javascript; charset=utf-8";
pub const SVG: &str = "image/svg+xml";
pub const TEXT: &str = "text/plain; charset=utf-8";

/// The icon of tidegate.
pub const ICON: &str = include_str!("admin/assets/icon.svg");

/// A file of a web page.
#[derive(Clone, Copy, Debug)]
pub struct Asset {
    /// The path of its URL.
    pub path: &'static str,
    /// Its content type.
    pub kind: &'static str,
    pub text: &'static str,
}

/// Creates an [`Asset`] from a file in the `assets` directory beside the calling module.
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
/// are already set are kept.
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
