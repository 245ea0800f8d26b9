//! The playground: a web page that shows limits at work.
//!
//! ```text
//!   /playground, /playground/*   the page: it draws, and decides nothing
//!   POST /v1/playground          limits, events and times in; decisions and states out
//! ```
//!
//! The page contains no limiter. It sends limits and the times of events, and
//! [`tidegate_replay::playground`] decides them with the code that decides live requests. Nothing
//! is kept between two requests, and nothing is counted.
//!
//! Every caller that may request decisions may request this, so the largest scenario must be cheap:
//! 8 limits, 1,000 events and 256 samples are about 10,000 decisions, which take two to ten
//! milliseconds, and a response of less than 5 MB.

use std::sync::Arc;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use tidegate::{Algorithm, Limit, LimitError, Timestamp};
use tidegate_replay::playground::{Event, Scenario};

use super::json_body::{JsonInt, Object, Text, decode};
use super::response::{HttpResponse, RequestId, content, json};
use super::{HttpFront, json_only};
use crate::error::{ErrorKind, RequestError};
use crate::fronts::MAX_COST;
use crate::fronts::request_body::{self, MAX_SCENARIO_BYTES};
use crate::web_pages::{self, Asset, CSS, HTML, ICON, SCRIPT, SVG, own_asset};

/// The path of the endpoint.
pub const ENDPOINT: &str = "/v1/playground";

/// The maximum number of limits: more than there are algorithms.
const MAX_LIMITS: usize = 8;

/// The maximum number of events: twice as many as a page draws smoothly.
const MAX_EVENTS: usize = 1_000;

/// The maximum number of samples: a second or more of a page that shows them in real time.
const MAX_SAMPLES: usize = 256;

/// The latest time, in microseconds since 1970: 31 years. It is exact in a double, the only number
/// type of JavaScript.
const MAX_AT_US: i64 = 1_000_000_000_000_000;

const ASSETS: [Asset; 10] = [
    Asset { path: "/playground", kind: HTML, text: include_str!("assets/playground.html") },
    own_asset!("playground", "playground.css", CSS),
    own_asset!("playground", "playground.js", SCRIPT),
    own_asset!("playground", "algorithms.js", SCRIPT),
    own_asset!("playground", "settings.js", SCRIPT),
    own_asset!("playground", "engine.js", SCRIPT),
    own_asset!("playground", "timeline.js", SCRIPT),
    own_asset!("playground", "cells.js", SCRIPT),
    own_asset!("playground", "lessons.js", SCRIPT),
    Asset { path: "/playground/icon.svg", kind: SVG, text: ICON },
];

/// Returns the file of the page at this path.
pub fn asset(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

/// The number of scenarios that are decided concurrently. Each takes thousands of decisions, so
/// that together they use at most one core.
pub const MAX_CONCURRENT_SCENARIOS: usize = 1;

impl HttpFront {
    pub(super) async fn play(&self, request: Request<Incoming>) -> HttpResponse {
        let (head, body) = request.into_parts();
        let played = match json_only(&head.headers) {
            Ok(()) => self.play_body(body).await,
            Err(error) => Err(error),
        };
        played.unwrap_or_else(|error| error.respond(&RequestId::of(&head.headers)))
    }

    async fn play_body(&self, body: Incoming) -> Result<HttpResponse, RequestError> {
        let body = request_body::collect(body, None, MAX_SCENARIO_BYTES).await?;
        // The semaphore is never closed; if it were, the scenario would be decided anyway.
        let permit = Arc::clone(&self.playground_slots).acquire_owned().await;
        // Not on this thread, which serves requests: a scenario takes a thousand times as long as a
        // decision. The permit is held until the scenario is decided, even if the client has
        // disconnected.
        let played = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let outcome = read_scenario(&body)?.play();
            // Serialization cannot fail, because all values are strings, integers and finite
            // floats.
            Ok::<_, RequestError>(serde_json::to_vec(&outcome).unwrap_or_default())
        });
        let stopping = |_| RequestError::new(ErrorKind::Unavailable, "the server is stopping");
        Ok(json(StatusCode::OK, played.await.map_err(stopping)??))
    }
}

/// Creates the response with a file of the page.
pub fn file(asset: &'static Asset) -> HttpResponse {
    let mut response = Response::new(content(asset.text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(asset.kind));
    web_pages::harden(headers);
    response
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body<'a> {
    #[serde(borrow)]
    limits: Vec<Text<'a>>,
    #[serde(default)]
    events: Vec<Object<EventBody>>,
    #[serde(default)]
    samples: Vec<JsonInt>,
    cost: Option<JsonInt>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventBody {
    at_us: JsonInt,
    cost: Option<JsonInt>,
}

/// Decodes and validates the body of a request.
fn read_scenario(body: &[u8]) -> Result<Scenario, RequestError> {
    let body: Body<'_> = decode(body)?;
    at_most("limits", body.limits.len(), MAX_LIMITS)?;
    at_most("events", body.events.len(), MAX_EVENTS)?;
    at_most("samples", body.samples.len(), MAX_SAMPLES)?;
    if body.limits.is_empty() {
        return Err(RequestError::field("limits", "it is empty: give at least one limit"));
    }
    let limits = body.limits.iter().enumerate().map(|(index, text)| limit(index, text));
    let events = body.events.iter().enumerate().map(|(index, Object(event))| {
        let field = |name: &str| format!("events[{index}].{name}");
        let at = time(event.at_us).map_err(|detail| RequestError::field(field("at_us"), detail))?;
        let cost = cost(event.cost).map_err(|detail| RequestError::field(field("cost"), detail))?;
        Ok(Event { at, cost })
    });
    let samples = body.samples.iter().enumerate().map(|(index, at)| {
        time(*at).map_err(|detail| RequestError::field(format!("samples[{index}]"), detail))
    });
    let scenario = Scenario {
        limits: limits.collect::<Result<_, _>>()?,
        events: events.collect::<Result<_, RequestError>>()?,
        samples: samples.collect::<Result<_, _>>()?,
        cost: cost(body.cost).map_err(|detail| RequestError::field("cost", detail))?,
    };
    in_order(scenario.events.iter().map(|event| event.at))
        .map_err(|index| out_of_order(format!("events[{index}].at_us")))?;
    in_order(scenario.samples.iter().copied())
        .map_err(|index| out_of_order(format!("samples[{index}]")))?;
    Ok(scenario)
}

fn at_most(field: &'static str, count: usize, most: usize) -> Result<(), RequestError> {
    if count <= most {
        return Ok(());
    }
    Err(RequestError::field(field, format!("there are {count}: send at most {most}")))
}

fn limit(index: usize, Text(text): &Text<'_>) -> Result<Limit, RequestError> {
    let field = || format!("limits[{index}]");
    let limit: Limit = text
        .parse()
        .map_err(|error: LimitError| RequestError::field(field(), error.to_string()))?;
    if limit.algorithm() == Algorithm::Concurrency {
        let detail = "concurrency limits are not supported here: use a limit per window";
        return Err(RequestError::field(field(), detail));
    }
    Ok(limit)
}

fn time(JsonInt(at_us): JsonInt) -> Result<Timestamp, String> {
    match u64::try_from(at_us) {
        Ok(at) if at_us <= MAX_AT_US => Ok(Timestamp::from_micros(at)),
        _ => Err(format!("it is out of range: use whole microseconds from 0 to {MAX_AT_US}")),
    }
}

/// The cost, by default 1. The page sends only requests, so peeks and refunds are out of range.
fn cost(cost: Option<JsonInt>) -> Result<u64, String> {
    match cost {
        None => Ok(1),
        Some(JsonInt(cost @ 1..=MAX_COST)) => Ok(cost.unsigned_abs()),
        Some(_) => Err(format!("it is out of range: use a whole number from 1 to {MAX_COST}")),
    }
}

/// Checks that times do not decrease. The error is the index of the first one that does.
fn in_order(times: impl Iterator<Item = Timestamp>) -> Result<(), usize> {
    let mut last = Timestamp::EPOCH;
    for (index, at) in times.enumerate() {
        if at < last {
            return Err(index);
        }
        last = at;
    }
    Ok(())
}

fn out_of_order(field: String) -> RequestError {
    RequestError::field(field, "earlier than the event before it: send events in order of time")
}
