//! Errors: the server did not decide.

use std::fmt;

use reqwest::header::CONTENT_TYPE;
use reqwest::{Response, StatusCode, Url};
use serde::Deserialize;

/// The reason why the server did not decide. A denial is not an error.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The address or the token is invalid.
    Address(String),
    /// The server could not be reached, or did not answer in time. The check may have been
    /// charged.
    Unreachable(reqwest::Error),
    /// The server rejected the request, or is unavailable: see [`Problem::status`].
    Refused(Problem),
    /// The response is not one of a tidegate server.
    Unreadable(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Address(reason) => write!(f, "invalid server settings: {reason}"),
            Error::Unreachable(error) => write!(f, "no answer from the server: {error}"),
            Error::Refused(problem) => problem.fmt(f),
            Error::Unreadable(reason) => {
                write!(f, "the response is not from a tidegate server: {reason}")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Unreachable(error) => Some(error),
            Error::Refused(problem) => Some(problem),
            Error::Address(_) | Error::Unreadable(_) => None,
        }
    }
}

impl From<reqwest::Error> for Error {
    fn from(error: reqwest::Error) -> Self {
        Error::Unreachable(error)
    }
}

/// A problem document (RFC 9457).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Problem {
    /// The HTTP status.
    pub status: u16,
    /// The kind of problem.
    pub title: String,
    /// The description of the problem, and how to fix it.
    pub detail: String,
    /// The field that is wrong.
    pub field: Option<String>,
    /// The names of the limits that denied the request.
    #[serde(rename = "violated-policies")]
    pub violated: Vec<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status, self.title)?;
        if let Some(field) = &self.field {
            write!(f, ", field `{field}`")?;
        }
        write!(f, ": {}", self.detail)
    }
}

impl std::error::Error for Problem {}

/// The maximum length of a line of a plain-text body in a message.
const MAX_SHOWN_CHARS: usize = 200;

/// Reads the problem document of a response. Proxies send other documents; the problem is then
/// made from the status and, if the body is plain text, from its first line.
pub(super) async fn problem(response: Response) -> Problem {
    let (status, url) = (response.status(), response.url().clone());
    let content_type = response.headers().get(CONTENT_TYPE);
    let is_text = content_type.is_some_and(|kind| kind.as_bytes().starts_with(b"text/plain"));
    let body = super::bytes(response).await.unwrap_or_default();
    let read: Option<Problem> = serde_json::from_slice(&body).ok();
    let mut problem = read.unwrap_or_default();
    problem.status = status.as_u16();
    if problem.title.is_empty() {
        problem.title = status.canonical_reason().unwrap_or("unknown").to_owned();
    }
    if problem.detail.is_empty() {
        problem.detail = format!("the response of {url} has no problem document");
        if is_text {
            problem.detail += &first_line(&body);
        }
    }
    problem
}

/// The first line of a plain-text body for a message. Other ports and proxies may name the mistake
/// there.
fn first_line(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let line = text.trim().lines().next().unwrap_or_default();
    let mut shown = String::new();
    for char in line.chars().take(MAX_SHOWN_CHARS) {
        // A control character could change what a terminal shows.
        match char.is_control() {
            true => shown.extend(char.escape_unicode()),
            false => shown.push(char),
        }
    }
    let more = if line.chars().nth(MAX_SHOWN_CHARS).is_some() { "..." } else { "" };
    if shown.is_empty() { shown } else { format!(": {shown}{more}") }
}

/// Reads a response as an error.
pub(super) async fn refused(response: Response) -> Error {
    Error::Refused(problem(response).await)
}

/// The error for a response from `url` that is not one of tidegate.
pub(super) fn unreadable(url: &Url, reason: impl fmt::Display) -> Error {
    Error::Unreadable(format!("{url}: {reason}"))
}

impl Error {
    /// Returns whether the server is short of capacity or its store is unavailable.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Error::Refused(problem)
            if problem.status == StatusCode::SERVICE_UNAVAILABLE.as_u16())
    }
}
