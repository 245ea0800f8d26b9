//! A front for a language model whose cost is known only afterwards.
//!
//! Each API key has 10,000 tokens a minute; who has none, or one that was never given out, has a
//! few tries. Before the call an estimate is charged (what the
//! prompt takes, and as much as the answer may); afterwards the handler commits what the model
//! says it has used, and the rest is given back. A client that hangs up before there is an
//! answer pays nothing.
//!
//! ```text
//! $ cargo run -p tidegate-examples --bin llm
//! $ curl -i -H 'x-api-key: k1' -H 'x-max-tokens: 500' -d 'Why is the sea salt?' http://127.0.0.1:3001/v1/complete
//! ```

use std::net::SocketAddr;

use axum::Router;
use axum::extract::Extension;
use axum::http::header::CONTENT_LENGTH;
use axum::routing::post;
use tidegate::tower::{Head, Keyless, RateLimitLayer, Reservation, Rule};

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// The keys that were given out. A limit per key holds only for keys that are checked: who could
/// make one up would have as many limits as they like.
const KEYS: [&str; 2] = ["k1", "k2"];

fn api_key<'a>(head: &Head<'a>) -> Option<&'a str> {
    head.header("x-api-key").filter(|key| KEYS.contains(key))
}

/// What the model may use for an answer if the client does not say.
const MAX_TOKENS: u64 = 1_000;

/// What a request may come to: some four bytes of prompt are a token, and the answer is as long as
/// it may be.
fn estimate(head: &Head<'_>) -> u64 {
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok());
    let prompt = number(head.header(CONTENT_LENGTH.as_str())).unwrap_or_default() / 4;
    prompt.saturating_add(number(head.header("x-max-tokens")).unwrap_or(MAX_TOKENS))
}

/// Stands for the model: the answer, and the tokens it took.
async fn model(prompt: &str) -> (String, u64) {
    let answer = format!("You asked: {prompt}\n");
    let tokens = (prompt.len() + answer.len()).div_ceil(4) as u64;
    (answer, tokens)
}

async fn complete(reservation: Option<Extension<Reservation>>, prompt: String) -> String {
    let (answer, tokens) = model(&prompt).await;
    if let Some(Extension(reservation)) = reservation {
        reservation.commit(tokens);
    }
    answer
}

fn app() -> Result<Router, Failed> {
    let tokens = Rule::new("tokens", ["10000 per 1m sliding-window".parse()?])
        .key(|head| api_key(head).map(Into::into))
        .keyless(Keyless::Skip)
        .reserve(estimate);
    // Who has no key may try it, a little.
    let visitors = Rule::new("visitors", ["3 per 1h sliding-log".parse()?])
        .when(|head| api_key(head).is_none());
    // The model has room for so many at once, whoever they are.
    let at_once =
        Rule::new("at-once", ["8 concurrent lease 2m".parse()?]).key(|_| Some("model".into()));
    let limits = RateLimitLayer::builder().rule(tokens).rule(visitors).rule(at_once).build()?;
    Ok(Router::new().route("/v1/complete", post(complete).layer(limits)))
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3001").await?;
    println!("http://{}", listener.local_addr()?);
    let service = app()?.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::extract::{ConnectInfo, Request};
    use tower::ServiceExt;

    use super::*;

    fn asking(prompt: &'static str, key: Option<&str>, max_tokens: &str) -> Request {
        let mut request = Request::builder().method("POST").uri("/v1/complete");
        if let Some(key) = key {
            request = request.header("x-api-key", key);
        }
        request = request.header("x-max-tokens", max_tokens).header("content-length", prompt.len());
        let mut request = request.body(Body::from(prompt)).expect("a request");
        let address = SocketAddr::from(([192, 0, 2, 1], 4242));
        request.extensions_mut().insert(ConnectInfo(address));
        request
    }

    /// What a response says is left of the tokens; before what is given back.
    async fn ask(app: &Router, request: Request) -> (u16, Option<u64>) {
        let response = app.clone().oneshot(request).await.expect("it cannot fail");
        let policy = response.headers().get("ratelimit").map(|told| told.to_str().expect("text"));
        let left = policy.and_then(|told| told.strip_prefix("\"tokens\";r="));
        let left = left.and_then(|left| left.split(';').next()).and_then(|left| left.parse().ok());
        (response.status().as_u16(), left)
    }

    #[tokio::test]
    async fn the_estimate_is_held_and_the_actual_charged() {
        let app = app().expect("an app");
        // At 4,000 each, three would not fit; what they take is 20 each.
        for _ in 0..5 {
            assert_eq!(ask(&app, asking("Why is the sea salt??", Some("k1"), "3995")).await.0, 200);
        }
        assert_eq!(ask(&app, asking("?", Some("k1"), "10001")).await.0, 429, "can never pass");
        assert_eq!(ask(&app, asking("?", Some("k1"), "9990")).await.0, 429);
        assert_eq!(ask(&app, asking("?", Some("k2"), "9990")).await.0, 200, "another key");
    }

    #[tokio::test]
    async fn visitors_have_a_few_tries() {
        let app = app().expect("an app");
        // A key that was made up is none.
        for (key, status) in [(None, 200), (Some("x1"), 200), (Some("x2"), 200), (Some("x3"), 429)]
        {
            assert_eq!(ask(&app, asking("?", key, "1")).await.0, status);
        }
        assert_eq!(ask(&app, asking("?", None, "1")).await.0, 429);
    }
}
