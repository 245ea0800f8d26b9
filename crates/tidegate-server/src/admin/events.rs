//! `/admin/v1/events`: denials as they happen, as server-sent events.
//!
//! The id of an event is the number of the denial. A client that reconnects with `Last-Event-ID`
//! resumes where it was, or receives the number of denials that it missed. Comments are sent
//! periodically, so that both ends notice a broken connection.

use std::convert::Infallible;
use std::future;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{StreamExt as _, stream};
use http::HeaderMap;
use serde::Serialize;
use tidegate::unstable::stats::{Denial, StreamItem, TooManySubscribers};

use super::AdminState;
use super::header;
use crate::error::{ErrorKind, RequestError};

/// The interval of comments: well below the idle timeouts of proxies.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Streams denials until the server drains.
pub async fn stream(
    State(state): State<AdminState>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, RequestError> {
    let after = header(&headers, "last-event-id").and_then(|id| id.parse().ok());
    let full =
        |error: TooManySubscribers| RequestError::new(ErrorKind::Unavailable, error.to_string());
    let subscription = state.stats().events().subscribe(after).map_err(full)?;
    // Sent immediately, so that the client knows it is connected.
    let opening = Event::default().comment("denials follow");
    let denials = stream::unfold(subscription, |mut subscription| async {
        let item = subscription.next().await;
        Some((event(&item), subscription))
    });
    let server_state = Arc::clone(&state.server_state);
    let events = stream::once(future::ready(opening))
        .chain(denials)
        .take_until(async move { server_state.draining().await })
        .map(Ok::<_, Infallible>);
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT).text("still here")))
}

fn event(item: &StreamItem) -> Event {
    match item {
        StreamItem::Denial(denial) => {
            // Serialization cannot fail, because all values are strings and numbers.
            let data = serde_json::to_string(&View::new(denial)).unwrap_or_default();
            Event::default().id(denial.number.to_string()).event("denial").data(data)
        }
        StreamItem::Missed(count) => {
            Event::default().event("missed").data(format!("{{\"missed\":{count}}}"))
        }
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
