//! The layer in front of an axum app, with the address from axum's `ConnectInfo`.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Extension};
use axum::response::Html;
use axum::routing::{any, post};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use tidegate::tower::{LayerBuilder, RateLimitLayer, Rejection, Reservation, Rule};
use tower::ServiceExt;

use crate::common::{limit, limiter};

fn request(from: Option<[u8; 4]>) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    if let Some(address) = from {
        let info = ConnectInfo(SocketAddr::from((address, 4242)));
        request.extensions_mut().insert(info);
    }
    request
}

#[tokio::test]
async fn minimal_axum_app_is_limited() {
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
async fn layers_per_route_count_separately() {
    let limited = |text: &str| RateLimitLayer::new(limit(text));
    let app = Router::new()
        .route("/login", any(|| async {}).layer(limited("1 per 1h sliding-log")))
        .route("/", any(|| async {}));
    let send = |path: &'static str| {
        let mut request = request(Some([192, 0, 2, 1]));
        *request.uri_mut() = path.parse().expect("a path");
        app.clone().oneshot(request)
    };
    for (path, expected) in [("/login", 200), ("/login", 429), ("/", 200), ("/", 200)] {
        assert_eq!(send(path).await.expect("it cannot fail").status(), expected, "{path}");
    }
}

/// With `for_axum`, a permit is still held until the body has ended, and a denial has its problem
/// document.
#[tokio::test]
async fn for_axum_holds_and_denies_alike() {
    let rule = Rule::new("jobs", [limit("1 concurrent lease 30s"), limit("2 per 1h sliding-log")]);
    let layer = RateLimitLayer::builder().rule(rule).build().expect("a layer").for_axum();
    let app = Router::new().route("/", any(|| async { "hello" })).layer(layer);
    let send = || app.clone().oneshot(request(Some([192, 0, 2, 1])));
    let first = send().await.expect("it cannot fail");
    assert_eq!(first.status(), 200);
    assert_eq!(send().await.expect("it cannot fail").status(), 429, "the place is held");
    let body = first.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(body, "hello");
    assert_eq!(send().await.expect("it cannot fail").status(), 200, "the body has ended");
    let denied = send().await.expect("it cannot fail");
    assert_eq!(denied.status(), 429);
    assert_eq!(denied.headers()["content-type"], "application/problem+json");
    let body = denied.into_body().collect().await.expect("a body").to_bytes();
    assert!(body.starts_with(b"{\"type\":"), "{body:?}");
}

/// The header fields are the same with `for_axum`, and with a rule that reserves.
#[tokio::test]
async fn header_fields_do_not_depend_on_the_body_type() {
    for forms in ["draft-10", "draft-7", "draft-6", "x-ratelimit", "none"] {
        let layer = |rule: Rule| {
            // The clock is manual, so that waits are equal too.
            let (limiter, _) = limiter();
            let builder = RateLimitLayer::builder().limiter(limiter).rule(rule);
            builder.headers(forms.parse().expect("forms")).build().expect("a layer")
        };
        let rule = || Rule::new("api", [limit("3 per 1h fixed-window")]);
        let app = Router::new().route("/", any(|| async {}));
        let quick = app.clone().layer(layer(rule()).for_axum());
        let other = app.layer(layer(rule().reserve(|_| 1)));
        for (round, status) in [200, 200, 200, 429].into_iter().enumerate() {
            let send = async |app: &Router| {
                let response = app.clone().oneshot(request(Some([192, 0, 2, 1]))).await;
                let (parts, body) = response.expect("it cannot fail").into_parts();
                (parts.status, parts.headers, body.collect().await.expect("a body").to_bytes())
            };
            let one = send(&quick).await;
            assert_eq!(one.0, status, "{forms}, request {round}");
            assert_eq!(one, send(&other).await, "{forms}, request {round}");
        }
    }
}

/// `nest` removes the prefix from the path, so policies for the whole path did not match.
#[cfg(feature = "config")]
#[tokio::test]
async fn policies_see_the_full_path_of_nested_routes() {
    use tidegate::unstable::stats::{RankBy, Stats};

    let text = "policies:\n  - name: api\n    match: { path: \"/api/**\" }\n    key: \"{path}\"\n    limits: [\"1 per 1h sliding-log\"]";
    let config =
        tidegate::unstable::config::Config::parse(text, "tidegate.yaml").expect("a config");
    let stats = Arc::new(Stats::default());
    let gate = tidegate::unstable::gate::Gate::new(
        tidegate::Limiter::new(),
        config.policies,
        Arc::clone(&stats),
    );
    let limits = RateLimitLayer::from_gate(Arc::new(gate)).build().expect("a layer");
    let inner = Router::new().route("/users", any(|| async {})).layer(limits);
    let app = Router::new().nest("/api", inner);
    let send = || {
        let mut request = request(Some([192, 0, 2, 1]));
        *request.uri_mut() = "/api/users".parse().expect("a path");
        app.clone().oneshot(request)
    };
    for expected in [200, 429] {
        assert_eq!(send().await.expect("it cannot fail").status(), expected);
    }
    let seen = stats.top(RankBy::Denied, None, 1).routes;
    assert_eq!(seen.entries[0].name.as_bytes(), b"/api/users");
}

/// `nest` removes the prefix from the URI, so rules could not distinguish paths.
#[tokio::test]
async fn rules_see_the_full_path_of_nested_routes() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&seen);
    let rule = Rule::new("login", limit("1 per 1h sliding-log")).when(move |head| {
        let seen = (head.path().to_owned(), head.uri().path().to_owned());
        recorded.lock().expect("no panic").push(seen);
        head.path() == "/api/v1/login"
    });
    let limits = RateLimitLayer::builder().rule(rule).build().expect("a layer");
    let inner = Router::new()
        .route("/login", any(|| async {}))
        .route("/items", any(|| async {}))
        .layer(limits);
    let app = Router::new().nest("/api", Router::new().nest("/v1", inner));
    for (path, expected) in [("login", 200), ("items", 200), ("items", 200), ("login", 429)] {
        let mut request = request(Some([192, 0, 2, 1]));
        *request.uri_mut() = format!("/api/v1/{path}?x=1").parse().expect("a path");
        let response = app.clone().oneshot(request).await.expect("it cannot fail");
        assert_eq!(response.status(), expected, "{path}");
    }
    let first = seen.lock().expect("no panic")[0].clone();
    assert_eq!(first, ("/api/v1/login".into(), "/login".into()));
}

async fn read_response(response: axum::response::Response) -> (u16, http::HeaderMap, String) {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.expect("a body").to_bytes().to_vec();
    (parts.status.as_u16(), parts.headers, String::from_utf8(body).expect("text"))
}

/// A body that is never ready.
struct Never;

impl http_body::Body for Never {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
        Poll::Pending
    }
}

#[tokio::test]
async fn on_denied_returns_any_axum_response() {
    let with = |builder: LayerBuilder| {
        let rule = Rule::new("api", limit("0 per 1m"));
        let layer = builder.rule(rule).build().expect("a layer");
        Router::new().route("/", any(|| async {})).layer(layer)
    };
    let new = RateLimitLayer::builder;
    let html = with(new().on_denied(|head, _| Html(format!("<p>{}</p>", head.path()))));
    let both = with(new().on_denied(|_, rejection| (StatusCode::IM_A_TEAPOT, rejection)));
    let tuple = with(new().on_denied(|_, _| ([("x-mine", "1"), ("ratelimit", "mine")], "no")));
    let never = with(new().on_denied(|_, _| Body::new(Never)));
    let long = with(new().on_denied(|_, _| "x".repeat(2 << 20)));
    let send = async |app: Router| {
        read_response(app.oneshot(request(Some([192, 0, 2, 1]))).await.expect("it cannot fail"))
            .await
    };
    let (status, fields, body) = send(html).await;
    assert_eq!((status, body.as_str()), (429, "<p>/</p>"));
    assert_eq!(fields["content-type"], "text/html; charset=utf-8");
    assert_eq!(fields["ratelimit-policy"], "\"api\";q=0;w=60");
    let (status, fields, body) = send(both).await;
    assert_eq!((status, body.starts_with("{\"type\":")), (418, true));
    assert_eq!(fields["content-type"], "application/problem+json");
    let (status, fields, _) = send(tuple).await;
    assert_eq!(status, 429);
    assert_eq!(
        (fields["x-mine"].as_bytes(), fields["ratelimit"].as_bytes()),
        (&b"1"[..], &b"mine"[..])
    );
    for app in [never, long] {
        let (status, fields, body) = send(app).await;
        assert_eq!((status, body.starts_with("{\"type\":")), (429, true));
        assert_eq!(fields["content-type"], "application/problem+json");
    }
}

/// The handler estimates the cost after it has read the body.
#[tokio::test]
async fn handler_reserves_by_the_size_of_the_body() {
    async fn complete(
        Extension(reservation): Extension<Reservation>,
        prompt: String,
    ) -> Result<String, Rejection> {
        reservation.reserve(prompt.len() as u64).await?;
        reservation.commit(1);
        Ok(prompt)
    }
    let rule = Rule::new("tokens", limit("100 per 1h sliding-log")).reserve(|_| 0);
    let layer = RateLimitLayer::builder().rule(rule).build().expect("a layer");
    let app = Router::new().route("/", post(complete)).layer(layer.clone());
    let send = async |length: usize| {
        let mut request = request(Some([192, 0, 2, 1])).map(|_| Body::from("x".repeat(length)));
        *request.method_mut() = http::Method::POST;
        read_response(app.clone().oneshot(request).await.expect("it cannot fail")).await
    };
    for (length, expected) in [(98, 200), (99, 200), (99, 429), (98, 200), (101, 429)] {
        let (status, fields, body) = send(length).await;
        assert_eq!(status, expected, "{length}");
        if status == 429 {
            assert_eq!(fields.contains_key("retry-after"), length == 99);
            assert_eq!(fields["content-type"], "application/problem+json");
            assert!(body.contains("\"violated-policies\":[\"tokens\"]"), "{body}");
        }
    }
}
