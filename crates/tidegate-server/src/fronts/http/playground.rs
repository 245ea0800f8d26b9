//! `/playground` and `/v1/playground`: see `crate::fronts::http::playground_page` for what they are.

use std::sync::Arc;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;

use super::request_id::RequestId;
use super::{Answered, HttpFront, body, content, json, json_only};
use crate::error::{ErrorKind, RequestError};
use crate::fronts::http::playground_page;
use crate::static_assets::{self, Asset};

/// How many questions are played at once. They are for the curious and take thousands of
/// decisions each: beside the decisions of others they may keep one core busy.
pub const PLAYED_AT_ONCE: usize = 1;

impl HttpFront {
    pub(super) async fn play(&self, request: Request<Incoming>) -> Answered {
        let (head, body) = request.into_parts();
        let played = match json_only(&head.headers) {
            Ok(()) => self.play_body(body).await,
            Err(error) => Err(error),
        };
        played.unwrap_or_else(|error| error.respond(&RequestId::of(&head.headers)))
    }

    async fn play_body(&self, body: Incoming) -> Result<Answered, RequestError> {
        let body = body::collect(body, None, playground_page::MAX_BODY_BYTES).await?;
        // It is never closed; if it were, the question would be played all the same.
        let turn = Arc::clone(&self.stage).acquire_owned().await;
        // Not here, where decisions are made: it takes a thousand times as long. The turn
        // lasts until it is played, also if nobody waits for the answer any more.
        let played = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            playground_page::answer(&body)
        });
        let unplayed = |_| RequestError::new(ErrorKind::Unavailable, "the server is stopping");
        Ok(json(StatusCode::OK, played.await.map_err(unplayed)??))
    }
}

/// A file of the page.
pub fn file(asset: &'static Asset) -> Answered {
    let mut response = Response::new(content(asset.text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(asset.kind));
    static_assets::harden(headers);
    response
}
