//! `/admin/v1/events`: denials as they happen, as server-sent events.
//!
//! The id of an event is the number of the denial. A client that reconnects with `Last-Event-ID`
//! resumes where it was, or receives the number of denials that it missed. Comments are sent
//! periodically, so that both ends notice a broken connection.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::HeaderMap;
use http::header::{CONTENT_TYPE, HeaderValue};
use serde::Serialize;
use tidegate::unstable::stats::{Denial, StreamItem, Subscription, TooManySubscribers};

use super::AdminState;
use super::response::header;
use super::server_state::ServerState;
use crate::error::{ErrorKind, RequestError};

/// The interval of comments: well below the idle timeouts of proxies.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Streams denials until the server drains.
pub async fn stream(
    State(state): State<AdminState>,
    headers: HeaderMap,
) -> Result<Response, RequestError> {
    let after = header(&headers, "last-event-id").and_then(|id| id.parse().ok());
    let full =
        |error: TooManySubscribers| RequestError::new(ErrorKind::Unavailable, error.to_string());
    let subscription = state.stats().events().subscribe(after).map_err(full)?;
    let reader = Reader { subscription, server_state: state.server_state, opening: true };
    let body = Body::from_stream(stream::unfold(reader, |mut reader| async {
        let next = reader.next().await?;
        Some((Ok::<_, Infallible>(next), reader))
    }));
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

struct Reader {
    subscription: Subscription,
    server_state: Arc<ServerState>,
    opening: bool,
}

impl Reader {
    async fn next(&mut self) -> Option<Bytes> {
        // Sent immediately, so that the client knows it is connected.
        if std::mem::take(&mut self.opening) {
            return Some(Bytes::from_static(b": denials follow\n\n"));
        }
        tokio::select! {
            told = self.subscription.next() => Some(write(&told).into()),
            () = tokio::time::sleep(HEARTBEAT) => Some(Bytes::from_static(b": still here\n\n")),
            () = self.server_state.draining() => None,
        }
    }
}

fn write(told: &StreamItem) -> String {
    match told {
        StreamItem::Denial(denial) => {
            // Serialization cannot fail, because all values are strings and numbers.
            let data = serde_json::to_string(&View::new(denial)).unwrap_or_default();
            format!("id: {}\nevent: denial\ndata: {data}\n\n", denial.number)
        }
        StreamItem::Missed(count) => format!("event: missed\ndata: {{\"missed\":{count}}}\n\n"),
    }
}

#[derive(Serialize)]
struct View<'a> {
    at_ms: u64,
    policy: &'a str,
    limit: &'a str,
    outcome: &'static str,
    decided: &'static str,
    key: String,
    route: String,
    request_id: String,
    retry_after_ms: Option<u64>,
    suppressed: u64,
}

impl<'a> View<'a> {
    fn new(denial: &'a Denial) -> Self {
        View {
            at_ms: denial.at.as_micros() / 1_000,
            policy: &denial.policy,
            limit: &denial.limit,
            outcome: denial.outcome.name(),
            decided: denial.decided.name(),
            key: denial.key.to_string(),
            route: denial.route.to_string(),
            request_id: denial.request_id.to_string(),
            retry_after_ms: denial.retry_after.as_millis(),
            suppressed: denial.suppressed,
        }
    }
}
