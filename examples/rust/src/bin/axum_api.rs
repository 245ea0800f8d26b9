//! An API with a login and with limits per plan.
//!
//! - `POST /login`: five tries a minute for each address, so that passwords are not guessed;
//! - `GET /v1/items`: each user so many a minute, more on the plan `pro`; and each address
//!   no more than 300, however many users are behind it. Both or none are charged.
//!
//! ```text
//! $ cargo run -p tidegate-examples --bin axum_api
//! $ curl -i -H 'authorization: Bearer token-of-ann' http://127.0.0.1:3000/v1/items
//! ```

use std::net::SocketAddr;

use axum::Router;
use axum::extract::{Extension, Request};
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{get, post};
use tidegate::tower::{Keyless, RateLimitLayer, Rule};

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Who is logged in.
#[derive(Clone)]
struct User {
    name: &'static str,
    plan: &'static str,
}

const USERS: [User; 2] = [User { name: "ann", plan: "pro" }, User { name: "ben", plan: "free" }];

/// Finds out who it is, before limits are asked for.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let token = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let name = token.and_then(|token| token.strip_prefix("Bearer token-of-"));
    if let Some(user) = USERS.iter().find(|user| Some(user.name) == name) {
        request.extensions_mut().insert(user.clone());
    }
    next.run(request).await
}

/// The body is a name and a password; the answer is a token.
async fn login(body: String) -> Result<String, StatusCode> {
    let name = body.strip_suffix(":secret").ok_or(StatusCode::UNAUTHORIZED)?;
    Ok(format!("token-of-{name}\n"))
}

async fn items(user: Option<Extension<User>>) -> Result<String, StatusCode> {
    let Extension(user) = user.ok_or(StatusCode::UNAUTHORIZED)?;
    Ok(format!("the items of {}\n", user.name))
}

fn app() -> Result<Router, Failed> {
    let logins = RateLimitLayer::new("5 per 1m sliding-log".parse()?);

    let per_user = Rule::new("user", ["60 per 1m".parse()?])
        .plan("pro", ["100 per 1m".parse()?, "2000 per 1h".parse()?])
        .plan_of(|head| Some(head.extension::<User>()?.plan.into()))
        .key(|head| Some(head.extension::<User>()?.name.into()))
        // Who is not logged in is limited by address alone.
        .keyless(Keyless::Skip);
    let per_address = Rule::new("address", ["300 per 1m".parse()?]);
    let limits = RateLimitLayer::builder().rule(per_user).rule(per_address).build()?;

    Ok(Router::new()
        // The layer added last is the first to see a request.
        .route("/v1/items", get(items).layer(limits).layer(from_fn(authenticate)))
        .route("/login", post(login).layer(logins)))
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}", listener.local_addr()?);
    // With connect info, or there is no address to count by.
    let service = app()?.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::extract::ConnectInfo;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    fn request(method: &str, path: &str, body: &'static str) -> Request {
        let request = Request::builder().method(method).uri(path);
        let mut request = request.body(Body::from(body)).expect("a request");
        let address = SocketAddr::from(([192, 0, 2, 1], 4242));
        request.extensions_mut().insert(ConnectInfo(address));
        request
    }

    fn items_of(name: &str) -> Request {
        let mut request = request("GET", "/v1/items", "");
        let token = format!("Bearer token-of-{name}").parse().expect("a value");
        request.headers_mut().insert(AUTHORIZATION, token);
        request
    }

    #[tokio::test]
    async fn passwords_are_not_guessed() {
        let app = app().expect("an app");
        for (body, status) in [("ann:secret", 200)].into_iter().chain([("ann:123", 401); 4]) {
            let response = app.clone().oneshot(request("POST", "/login", body)).await;
            assert_eq!(response.expect("it cannot fail").status(), status, "{body}");
        }
        // Neither good nor bad, for a minute.
        let response = app.oneshot(request("POST", "/login", "ann:secret")).await;
        let response = response.expect("it cannot fail");
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "60");
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        assert!(body.starts_with(b"{\"type\":\"https://iana.org/"), "{body:?}");
    }

    #[tokio::test]
    async fn plans_differ_and_addresses_are_shared() {
        let app = app().expect("an app");
        let ask = async |request: Request| {
            let response = app.clone().oneshot(request).await.expect("it cannot fail");
            let told = response.headers().get("ratelimit").cloned();
            (response.status().as_u16(), told.map(|told| told.to_str().expect("text").to_owned()))
        };
        let (status, told) = ask(items_of("ann")).await;
        assert_eq!(status, 200);
        assert!(told.is_some_and(|told| told.starts_with("\"user.pro-1m\";r=99;")));
        for _ in 0..60 {
            assert_eq!(ask(items_of("ben")).await.0, 200);
        }
        let (status, told) = ask(items_of("ben")).await;
        assert_eq!(status, 429);
        assert!(told.is_some_and(|told| told.starts_with("\"user\";r=0;")));
        // Nobody in particular: only the address counts, and it was not charged for denials.
        let (status, told) = ask(request("GET", "/v1/items", "")).await;
        assert_eq!(status, 401);
        assert!(told.is_some_and(|told| told.starts_with("\"address\";r=238;")));
    }
}
