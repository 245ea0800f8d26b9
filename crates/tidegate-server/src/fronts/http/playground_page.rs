//! The playground: a page on which limits can be seen at work.
//!
//! ```text
//!   /playground, /playground/*   the page: it draws, and decides nothing
//!   POST /v1/playground          limits, events and times in; decisions and states out
//! ```
//!
//! The page has no limiter in it. It tells the endpoint which limits there are and when
//! requests came, on a time of its own, and the engine that decides for everybody else
//! says what it would have answered and what its states held. Nothing is kept between
//! two questions, and nothing is counted: a question is its own world.
//!
//! `tidegate_replay::playground` decides; `playground_request.rs` reads what is asked, within its bounds.

use super::playground_request;
use crate::error::RequestError;
use crate::static_assets::{Asset, CSS, HTML, ICON, SCRIPT, SVG, own_asset};

pub use super::playground_request::MAX_BODY_BYTES;

/// Where the endpoint is.
pub const ENDPOINT: &str = "/v1/playground";

const ASSETS: [Asset; 9] = [
    Asset { path: "/playground", kind: HTML, text: include_str!("assets/playground.html") },
    own_asset!("playground", "playground.css", CSS),
    own_asset!("playground", "playground.js", SCRIPT),
    own_asset!("playground", "settings.js", SCRIPT),
    own_asset!("playground", "engine.js", SCRIPT),
    own_asset!("playground", "timeline.js", SCRIPT),
    own_asset!("playground", "cells.js", SCRIPT),
    own_asset!("playground", "lessons.js", SCRIPT),
    Asset { path: "/playground/icon.svg", kind: SVG, text: ICON },
];

/// The file of the page that is at this path.
pub fn asset(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

/// Plays what a body asks for.
pub fn answer(body: &[u8]) -> Result<Vec<u8>, RequestError> {
    let outcome = playground_request::read(body)?.play();
    // Strings, whole numbers and finite fractions: all of it can be written.
    Ok(serde_json::to_vec(&outcome).unwrap_or_default())
}
