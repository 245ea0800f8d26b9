//! `/dashboard`: one page, in the binary, that needs nothing from elsewhere.

use axum::Router;
use axum::response::Response;
use axum::routing::get;
use http::StatusCode;
use http::header::{HeaderValue, LOCATION};

use super::AdminState;
use super::reply::{text, with_type};

/// What the page may load: its own script and style, and the admin API. Nothing
/// inline, so that a key that looks like markup stays text.
pub const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const FILES: [(&str, &str, &str); 4] = [
    ("/dashboard", "text/html; charset=utf-8", include_str!("assets/dashboard.html")),
    ("/dashboard/dashboard.css", "text/css; charset=utf-8", include_str!("assets/dashboard.css")),
    (
        "/dashboard/dashboard.js",
        "text/javascript; charset=utf-8",
        include_str!("assets/dashboard.js"),
    ),
    ("/dashboard/icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
];

/// The page and its files.
pub fn router() -> Router<AdminState> {
    FILES.into_iter().fold(Router::new(), |router, (path, kind, text)| {
        router.route(path, get(move || async move { with_type(StatusCode::OK, kind, text.into()) }))
    })
}

/// Whoever comes to the front door means the page.
pub async fn redirect() -> Response {
    let mut response = text(StatusCode::SEE_OTHER, "see /dashboard\n");
    response.headers_mut().insert(LOCATION, HeaderValue::from_static("dashboard"));
    response
}
