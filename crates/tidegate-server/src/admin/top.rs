//! `/admin/v1/top`: the keys and routes that were denied most, would have been, or nearly were.

use axum::extract::State;
use axum::response::Response;
use http::Uri;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use serde::Serialize;
use tidegate::unstable::stats::{
    CALLER, RankBy, RankedEntry, Ranking, ShownText, Top, UnknownRanking,
};

use super::AdminState;
use super::policies::find;
use super::response::json;
use crate::error::RequestError;

/// The default number of entries of a ranking.
const TOP_DEFAULT: usize = 10;
/// The maximum number of entries of a ranking: a longer page would not be read.
const TOP_MOST: usize = 1_000;

/// Returns the ranking that the query selects.
pub async fn top(State(state): State<AdminState>, uri: Uri) -> Result<Response, RequestError> {
    let query = TopQuery::from_query(uri.query().unwrap_or_default())?;
    if let Some(policy) = &query.policy {
        find(&state.gate.active_policies(), policy)?;
    }
    let top = state.stats().top(query.by, query.policy.as_deref(), query.n);
    Ok(json(&TopView::new(&query, &top)))
}

struct TopQuery {
    by: RankBy,
    policy: Option<String>,
    n: usize,
}

impl TopQuery {
    fn from_query(text: &str) -> Result<Self, RequestError> {
        let mut query = TopQuery { by: RankBy::default(), policy: None, n: TOP_DEFAULT };
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = value.replace('+', " ");
            let value = percent_decode_str(&value).decode_utf8_lossy();
            match name {
                "by" => {
                    let unknown =
                        |error: UnknownRanking| RequestError::field("by", error.to_string());
                    query.by = value.parse().map_err(unknown)?;
                }
                "policy" => query.policy = Some(value.into_owned()),
                "n" => {
                    let n = value.parse().ok().filter(|n| (1..=TOP_MOST).contains(n));
                    let detail = || {
                        RequestError::field("n", format!("use a whole number from 1 to {TOP_MOST}"))
                    };
                    query.n = n.ok_or_else(detail)?;
                }
                _ => return Err(RequestError::field("query", "use by, policy and n alone")),
            }
        }
        Ok(query)
    }
}

#[derive(Serialize)]
struct TopView<'a> {
    by: &'static str,
    policy: Option<&'a str>,
    /// The period that the counts cover.
    covers_seconds: u64,
    keys: ListView,
    routes: ListView,
}

#[derive(Serialize)]
struct ListView {
    entries: Vec<EntryView>,
    unlisted_at_most: u64,
}

#[derive(Serialize)]
struct EntryView {
    policy: String,
    name: String,
    /// The key as it is written in `/admin/v1/policies/{policy}/keys/{key}`; null for routes and
    /// for keys that cannot be looked up.
    encoded: Option<String>,
    count: u64,
    error: u64,
}

impl<'a> TopView<'a> {
    fn new(query: &'a TopQuery, top: &Top) -> Self {
        TopView {
            by: query.by.name(),
            policy: query.policy.as_deref(),
            covers_seconds: top.covers.as_secs(),
            keys: ListView::new(&top.keys, encoded),
            routes: ListView::new(&top.routes, |_| None),
        }
    }
}

impl ListView {
    fn new(listed: &Ranking, encode: impl Fn(&ShownText) -> Option<String>) -> Self {
        let view = |entry: &RankedEntry| EntryView {
            policy: entry.policy.to_string(),
            name: entry.name.to_string(),
            // Keys of limits that callers send belong to no policy, so they cannot be looked up.
            encoded: encode(&entry.name).filter(|_| *entry.policy != *CALLER),
            count: entry.count,
            error: entry.error,
        };
        let entries = listed.entries.iter().map(view).collect();
        ListView { entries, unlisted_at_most: listed.unlisted_at_most }
    }
}

/// The key percent-encoded, or its masked form, which the lookup accepts too. A key that is
/// truncated and not masked cannot be looked up. A key that begins with a single NUL stands for a
/// missing part, which no caller can name (if a value itself begins with a NUL, the key has one
/// more).
fn encoded(key: &ShownText) -> Option<String> {
    if key.is_masked() {
        return Some(percent_encode(key.to_string().as_bytes(), NON_ALPHANUMERIC).to_string());
    }
    let bytes = match key.as_bytes() {
        [0, rest @ ..] if rest.first() == Some(&0) => rest,
        [] | [0, ..] => return None,
        bytes => bytes,
    };
    (!key.is_truncated()).then(|| percent_encode(bytes, NON_ALPHANUMERIC).to_string())
}
