//! A login limit by user name, where the name is in the JSON body of the request.
//!
//! - 20 attempts per minute and address, before the body is read.
//! - Five failed attempts in 15 minutes per user name. Successful logins do not count.
//!
//! ```text
//! $ cargo run -p tidegate-examples --bin login
//! $ curl -i -H 'content-type: application/json' -d '{"name": "ann", "password": "123"}' \
//!     http://127.0.0.1:3003/login
//! ```

use std::error::Error;
use std::net::SocketAddr;

use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Request};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use tidegate::Limit;
use tidegate::tower::{Keyless, RateLimitLayer, Rule};

/// The largest body of a login. It is held in memory before the limit by name applies.
const MAX_BODY_BYTES: usize = 16 * 1024;

/// The user name of a login, in the form in which accounts are found.
#[derive(Clone)]
struct UserName(String);

#[derive(Deserialize)]
struct Login {
    name: String,
    password: String,
}

/// Reads the body, and passes it on with the user name as an extension.
async fn read_user_name(request: Request, next: Next) -> Result<Response, StatusCode> {
    let (mut parts, body) = request.into_parts();
    let body = to_bytes(body, MAX_BODY_BYTES).await.map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
    let Json(login) = Json::<Login>::from_bytes(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
    parts.extensions.insert(UserName(login.name.trim().to_lowercase()));
    Ok(next.run(Request::from_parts(parts, Body::from(body))).await)
}

async fn login(
    Extension(name): Extension<UserName>,
    Json(login): Json<Login>,
) -> Result<String, StatusCode> {
    let is_right = name.0 == "ann" && login.password == "secret";
    is_right.then(|| format!("token-of-{}\n", name.0)).ok_or(StatusCode::UNAUTHORIZED)
}

fn app() -> Result<Router, Box<dyn Error>> {
    let per_name = Rule::new("name", ["5 per 15m".parse()?])
        .key(|head| Some(head.extension::<UserName>()?.0.as_str().into()))
        .keyless(Keyless::Reject)
        .settle_when(|response| response.status() == StatusCode::UNAUTHORIZED);
    let per_address = Rule::new("address", Limit::per_minute(20));
    let app = Router::new().route("/login", post(login));
    // The layer added last runs first.
    let app = app.layer(RateLimitLayer::builder().rule(per_name).build()?);
    let app = app.layer(from_fn(read_user_name));
    Ok(app.layer(RateLimitLayer::builder().rule(per_address).build()?))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3003").await?;
    println!("http://{}", listener.local_addr()?);
    // The connect info provides the client address for the limits.
    let service = app()?.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use axum::extract::ConnectInfo;
    use tower::ServiceExt;

    use super::*;

    async fn status(app: &Router, client: u8, body: String) -> u16 {
        let request = Request::post("/login").header("content-type", "application/json");
        let mut request = request.body(Body::from(body)).expect("a request");
        let address = SocketAddr::from(([192, 0, 2, client], 4242));
        request.extensions_mut().insert(ConnectInfo(address));
        app.clone().oneshot(request).await.expect("it cannot fail").status().as_u16()
    }

    fn login_as(name: &str, password: &str) -> String {
        format!("{{\"name\": \"{name}\", \"password\": \"{password}\"}}")
    }

    #[tokio::test]
    async fn failed_logins_count_by_user_name() {
        let app = app().expect("an app");
        for client in 0..9 {
            assert_eq!(status(&app, client, login_as("ann", "secret")).await, 200);
        }
        for (client, name) in (0..).zip(["ann", "Ann", " ann", "ANN ", "ann"]) {
            assert_eq!(status(&app, client, login_as(name, "123")).await, 401, "{name}");
        }
        // After five failures even the correct password is denied, from any address.
        assert_eq!(status(&app, 9, login_as("ann", "secret")).await, 429);
        assert_eq!(status(&app, 9, login_as("ben", "123")).await, 401);
    }

    #[tokio::test]
    async fn attempts_count_by_address_before_the_body_is_read() {
        let app = app().expect("an app");
        for _ in 0..10 {
            assert_eq!(status(&app, 1, "{".to_owned()).await, 400);
            assert_eq!(status(&app, 1, "x".repeat(MAX_BODY_BYTES + 1)).await, 413);
        }
        assert_eq!(status(&app, 1, login_as("ann", "secret")).await, 429);
        assert_eq!(status(&app, 2, login_as("ann", "secret")).await, 200);
    }
}
