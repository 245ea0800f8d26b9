//! Health, metrics and administration.

mod facts;

pub use facts::{Connected, Facts, Front, Reload};

/// The routes of the admin front.
pub fn router(
    _gate: std::sync::Arc<tidegate::gate::Gate>,
    facts: std::sync::Arc<Facts>,
    _tokens: crate::access::Tokens,
) -> axum::Router {
    axum::Router::new().route(
        "/readyz",
        axum::routing::get(async move || {
            if facts.is_ready() { http::StatusCode::OK } else { http::StatusCode::SERVICE_UNAVAILABLE }
        }),
    )
}
