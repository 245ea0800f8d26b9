//! In front of an axum app, with the address that axum knows.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::any;
use http::Request;
use tidegate::tower::RateLimitLayer;
use tower::ServiceExt;

use crate::common::limit;

fn request(from: Option<[u8; 4]>) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    if let Some(address) = from {
        let info = ConnectInfo(SocketAddr::from((address, 4242)));
        request.extensions_mut().insert(info);
    }
    request
}

#[tokio::test]
async fn three_lines_in_an_axum_app() {
    let layer = RateLimitLayer::new(limit("2 per 1h sliding-log"));
    let app = Router::new().route("/", any(|| async { "hello" })).layer(layer);
    let rows = [
        (Some([192, 0, 2, 1]), 200),
        (Some([192, 0, 2, 1]), 200),
        (Some([192, 0, 2, 1]), 429),
        (Some([192, 0, 2, 2]), 200),
        (None, 500),
    ];
    for (address, expected) in rows {
        let response = app.clone().oneshot(request(address)).await.expect("it cannot fail");
        assert_eq!(response.status(), expected, "{address:?}");
    }
}

#[tokio::test]
async fn a_layer_per_route_counts_apart() {
    let limited = |text: &str| RateLimitLayer::new(limit(text));
    let app = Router::new()
        .route("/login", any(|| async {}).layer(limited("1 per 1h sliding-log")))
        .route("/", any(|| async {}));
    let ask = |path: &'static str| {
        let mut request = request(Some([192, 0, 2, 1]));
        *request.uri_mut() = path.parse().expect("a path");
        app.clone().oneshot(request)
    };
    for (path, expected) in [("/login", 200), ("/login", 429), ("/", 200), ("/", 200)] {
        assert_eq!(ask(path).await.expect("it cannot fail").status(), expected, "{path}");
    }
}
