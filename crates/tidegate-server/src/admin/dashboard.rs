//! `/dashboard`: one page, in the binary, that needs nothing from elsewhere.

use axum::Router;
use axum::response::Response;
use axum::routing::get;
use http::StatusCode;
use http::header::{HeaderValue, LOCATION};
use tidegate_replay::uplot;

use super::AdminState;
use super::response::{text, with_type};
use crate::static_assets::{Asset, CSS, HTML, ICON, SCRIPT, SVG, TEXT, own_asset};

const ASSETS: [Asset; 10] = [
    Asset { path: "/dashboard", kind: HTML, text: include_str!("assets/dashboard.html") },
    own_asset!("dashboard", "dashboard.css", CSS),
    own_asset!("dashboard", "dashboard.js", SCRIPT),
    own_asset!("dashboard", "api.js", SCRIPT),
    own_asset!("dashboard", "charts.js", SCRIPT),
    own_asset!("dashboard", "format.js", SCRIPT),
    Asset { path: "/dashboard/uplot.css", kind: CSS, text: uplot::STYLE },
    Asset { path: "/dashboard/uplot.js", kind: SCRIPT, text: uplot::SCRIPT },
    Asset { path: "/dashboard/uplot.txt", kind: TEXT, text: uplot::LICENCE },
    Asset { path: "/dashboard/icon.svg", kind: SVG, text: ICON },
];

/// The page and its files.
pub fn router() -> Router<AdminState> {
    ASSETS.into_iter().fold(Router::new(), |router, Asset { path, kind, text }| {
        router.route(path, get(move || async move { with_type(StatusCode::OK, kind, text.into()) }))
    })
}

/// Whoever comes to the front door means the page.
pub async fn redirect() -> Response {
    let mut response = text(StatusCode::SEE_OTHER, "see /dashboard\n");
    response.headers_mut().insert(LOCATION, HeaderValue::from_static("dashboard"));
    response
}
