//! What goes wrong: nobody decided.

use std::fmt;

use reqwest::{Response, StatusCode};
use serde::Deserialize;

/// Why there is no answer. A denial is not among these.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The address or the token makes no sense.
    Address(String),
    /// The server could not be reached, or did not answer in time. What was asked may have
    /// been charged.
    Unreachable(reqwest::Error),
    /// The server did not understand, or could not: see [`Problem::status`].
    Refused(Problem),
    /// Something answered that is no tidegate server.
    Unreadable(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Address(why) => write!(f, "the server's address: {why}"),
            Error::Unreachable(error) => write!(f, "the server gave no answer: {error}"),
            Error::Refused(problem) => problem.fmt(f),
            Error::Unreadable(why) => {
                write!(f, "the answer is not what a tidegate server sends: {why}")
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
    /// The status.
    pub status: u16,
    /// What kind of problem it is.
    pub title: String,
    /// What is wrong, and what to send instead.
    pub detail: String,
    /// The field to blame.
    pub field: Option<String>,
    /// The limits that denied.
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

/// The problem a response tells of. Proxies answer with pages of their own: then the status
/// has to say it all.
pub(super) async fn problem(response: Response) -> Problem {
    let status = response.status();
    let body = super::bytes(response).await.unwrap_or_default();
    let read: Option<Problem> = serde_json::from_slice(&body).ok();
    let mut problem = read.unwrap_or_default();
    problem.status = status.as_u16();
    if problem.title.is_empty() {
        problem.title = status.canonical_reason().unwrap_or("unknown").to_owned();
    }
    if problem.detail.is_empty() {
        problem.detail = "no problem document came with it".to_owned();
    }
    problem
}

/// A refusal as an error.
pub(super) async fn refused(response: Response) -> Error {
    Error::Refused(problem(response).await)
}

pub(super) fn unreadable(error: serde_json::Error) -> Error {
    Error::Unreadable(error.to_string())
}

impl Error {
    /// Whether the server says that it is short of capacity, or its store fails.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Error::Refused(problem)
            if problem.status == StatusCode::SERVICE_UNAVAILABLE.as_u16())
    }
}
