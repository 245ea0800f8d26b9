//! The API of a language model: users with plans, a login limit and a token budget.
//!
//! - `POST /login`: five failed attempts in 15 minutes per address. Successful logins do not count.
//! - `/v1/..`: a number of requests per minute and user, by plan or from the database, and 300 per
//!   minute and address, however many users share it. Both are charged or none.
//! - `POST /v1/complete`: a number of tokens per minute and user. The handler estimates the cost
//!   from the body and reports the actual use of the model. A failure of the model costs nothing.
//!
//! ```text
//! $ cargo run -p tidegate-examples --bin axum_api
//! $ curl -i -H 'authorization: Bearer token-of-ann' -H 'content-type: application/json' \
//!     -d '{"prompt": "Why is the sea salt?", "max_tokens": 500}' http://127.0.0.1:3000/v1/complete
//! ```

use std::error::Error;
use std::net::SocketAddr;

use axum::extract::{Extension, Request};
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use tidegate::Limit;
use tidegate::tower::{RateLimitLayer, Reservation, Rule, UnknownPlan};

/// A row of the user database.
#[derive(Clone)]
struct User {
    name: &'static str,
    plan: &'static str,
    /// An individual limit for this user.
    requests: Option<Limit>,
}

fn find_user(name: &str) -> Option<User> {
    let user = |name, plan, requests| Some(User { name, plan, requests });
    match name {
        "ann" => user("ann", "pro", None),
        "ben" => user("ben", "free", None),
        "eve" => user("eve", "gold", None),
        "zoe" => user("zoe", "free", Some(Limit::per_minute(100))),
        _ => None,
    }
}

/// Finds the user of a request before the limits are checked.
async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let token = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let name = token.and_then(|token| token.strip_prefix("Bearer token-of-"));
    let user = name.and_then(find_user).ok_or(StatusCode::UNAUTHORIZED)?;
    request.extensions_mut().insert(user);
    Ok(next.run(request).await)
}

#[derive(Deserialize)]
struct Login {
    name: String,
    password: String,
}

async fn login(Json(login): Json<Login>) -> Result<String, StatusCode> {
    let is_right = login.password == "secret" && find_user(&login.name).is_some();
    is_right.then(|| format!("token-of-{}\n", login.name)).ok_or(StatusCode::UNAUTHORIZED)
}

async fn items(Extension(user): Extension<User>) -> String {
    format!("the items of {}\n", user.name)
}

#[derive(Deserialize)]
struct Prompt {
    prompt: String,
    max_tokens: u64,
}

/// Simulates the model: returns the answer and the tokens it used.
async fn model(request: &Prompt) -> Result<(String, u64), StatusCode> {
    if request.prompt.is_empty() {
        return Err(StatusCode::BAD_GATEWAY);
    }
    let answer = format!("You asked: {}\n", request.prompt);
    let tokens = (request.prompt.len() + answer.len()).div_ceil(4) as u64;
    Ok((answer, tokens))
}

async fn complete(
    Extension(tokens): Extension<Reservation>,
    Json(request): Json<Prompt>,
) -> axum::response::Result<String> {
    // Four bytes of a prompt are about one token, and the answer may use up to `max_tokens`.
    tokens.reserve((request.prompt.len() as u64 / 4).saturating_add(request.max_tokens)).await?;
    let (answer, used) = model(&request).await?;
    tokens.commit(used);
    Ok(answer)
}

fn app() -> Result<Router, Box<dyn Error>> {
    let failed_logins = Rule::new("login", ["5 per 15m".parse()?])
        .settle_when(|response| response.status() == StatusCode::UNAUTHORIZED);

    let requests = Rule::new("requests", Limit::per_minute(60))
        .plan("pro", [Limit::per_minute(600), Limit::per_hour(10_000)])
        .plan("free", Limit::per_minute(60))
        .plan_of(|head| Some(head.extension::<User>()?.plan.into()))
        .on_unknown_plan(|plan| {
            eprintln!("unknown plan: {plan:?}");
            UnknownPlan::Base
        })
        .limits_of(|head| head.extension::<User>()?.requests)
        .key(|head| Some(head.extension::<User>()?.name.into()));

    let per_address = Rule::new("address", Limit::per_minute(300));

    let tokens = Rule::new("tokens", Limit::per_minute(1_000))
        .plan("pro", Limit::per_minute(10_000))
        .plan_of(|head| Some(head.extension::<User>()?.plan.into()))
        .key(|head| Some(head.extension::<User>()?.name.into()))
        .when(|head| head.path() == "/v1/complete")
        .reserve(|_| 0);

    let logins = RateLimitLayer::builder().rule(failed_logins).build()?;
    let limits = RateLimitLayer::builder().rule(requests).rule(per_address).rule(tokens).build()?;
    let v1 = Router::new()
        .route("/items", get(items))
        .route("/complete", post(complete))
        // The layer added last runs first.
        .layer(limits)
        .layer(from_fn(authenticate));
    Ok(Router::new().route("/login", post(login).layer(logins)).nest("/v1", v1))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}", listener.local_addr()?);
    // The connect info provides the client address for the limits.
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

    fn request(method: &str, path: &str, body: String) -> Request {
        let request = Request::builder().method(method).uri(path);
        let request = request.header("content-type", "application/json");
        let mut request = request.body(Body::from(body)).expect("a request");
        let address = SocketAddr::from(([192, 0, 2, 1], 4242));
        request.extensions_mut().insert(ConnectInfo(address));
        request
    }

    fn of(name: &str, mut request: Request) -> Request {
        let token = format!("Bearer token-of-{name}").parse().expect("a value");
        request.headers_mut().insert(AUTHORIZATION, token);
        request
    }

    fn items_of(name: &str) -> Request {
        of(name, request("GET", "/v1/items", String::new()))
    }

    fn prompt_of(name: &str, prompt: &str, max_tokens: u64) -> Request {
        let body = format!("{{\"prompt\": \"{prompt}\", \"max_tokens\": {max_tokens}}}");
        of(name, request("POST", "/v1/complete", body))
    }

    /// Status, `Retry-After`, `RateLimit` and body of a response.
    struct Answer {
        status: u16,
        retry_after: Option<String>,
        rate_limit: String,
        body: String,
    }

    async fn send(app: &Router, request: Request) -> Answer {
        let response = app.clone().oneshot(request).await.expect("it cannot fail");
        let field = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let (retry_after, rate_limit) = (field("retry-after"), field("ratelimit"));
        let (retry_after, rate_limit) =
            (retry_after.map(Into::into), rate_limit.unwrap_or_default().to_owned());
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        let body = String::from_utf8(body.to_vec()).expect("text");
        Answer { status, retry_after, rate_limit, body }
    }

    #[tokio::test]
    async fn only_failed_logins_count() {
        let app = app().expect("an app");
        let login = |password: &str| {
            let body = format!("{{\"name\": \"ann\", \"password\": \"{password}\"}}");
            request("POST", "/login", body)
        };
        for (password, status) in [("secret", 200); 9].into_iter().chain([("123", 401); 5]) {
            assert_eq!(send(&app, login(password)).await.status, status);
        }
        // After five failures even the correct password is denied.
        let answer = send(&app, login("secret")).await;
        assert_eq!(answer.status, 429);
        assert!(answer.retry_after.is_some());
        assert!(answer.body.starts_with("{\"type\":\"https://iana.org/"), "{}", answer.body);
    }

    #[tokio::test]
    async fn limits_depend_on_plan_user_and_address() {
        let app = app().expect("an app");
        assert_eq!(send(&app, request("GET", "/v1/items", String::new())).await.status, 401);
        let rows = [
            ("ann", "\"address\";r=299;"),
            ("eve", "\"requests\";r=59;"),
            ("zoe", "\"requests\";r=99;"),
            ("ben", "\"requests.free\";r=59;"),
        ];
        for (name, expected) in rows {
            let answer = send(&app, items_of(name)).await;
            assert_eq!((answer.status, answer.body), (200, format!("the items of {name}\n")));
            assert!(answer.rate_limit.starts_with(expected), "{name}: {}", answer.rate_limit);
        }
        for _ in 1..60 {
            assert_eq!(send(&app, items_of("ben")).await.status, 200);
        }
        let answer = send(&app, items_of("ben")).await;
        assert_eq!(answer.status, 429);
        assert!(answer.rate_limit.starts_with("\"requests.free\";r=0;"), "{}", answer.rate_limit);
        // The denial did not charge the address.
        let answer = send(&app, items_of("ann")).await;
        assert!(answer.rate_limit.starts_with("\"address\";r=236;"), "{}", answer.rate_limit);
    }

    #[tokio::test]
    async fn reserves_the_estimate_and_charges_the_actual_use() {
        let app = app().expect("an app");
        // Estimated at 900 each, two would exceed the limit; each actually uses 15.
        for _ in 0..5 {
            let answer = send(&app, prompt_of("ben", "Why is the sea salt?", 900)).await;
            assert_eq!((answer.status, &*answer.body), (200, "You asked: Why is the sea salt?\n"));
        }
        let answer = send(&app, prompt_of("ben", "?", 950)).await;
        assert_eq!(answer.status, 429);
        assert!(answer.retry_after.is_some());
        assert!(answer.body.contains("\"violated-policies\":[\"tokens\"]"), "{}", answer.body);
        let answer = send(&app, prompt_of("ben", "?", 1001)).await;
        assert_eq!((answer.status, answer.retry_after), (429, None), "can never pass");
        assert_eq!(send(&app, prompt_of("ann", "?", 1001)).await.status, 200, "another plan");
        assert_eq!(send(&app, prompt_of("ann", "?", u64::MAX)).await.status, 429);
        assert_eq!(
            send(&app, of("ben", request("POST", "/v1/complete", "{".into()))).await.status,
            400
        );
    }

    #[tokio::test]
    async fn model_failure_costs_nothing() {
        let app = app().expect("an app");
        for _ in 0..5 {
            assert_eq!(send(&app, prompt_of("ben", "", 900)).await.status, 502);
        }
        assert_eq!(send(&app, prompt_of("ben", "Why?", 900)).await.status, 200);
    }
}
