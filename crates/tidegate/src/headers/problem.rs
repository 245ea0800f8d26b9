//! Problem documents (RFC 9457), which state why a request was rejected.

use std::fmt::{self, Write};

use http::StatusCode;

use super::ResponseView;
use super::text::LimitNames;
use crate::RetryAfter;

/// The media type of a problem document.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// Why a request was rejected.
#[derive(Clone, Copy, Debug)]
pub enum Problem<'a> {
    /// A limit denied the request: 429.
    QuotaExceeded(&'a ResponseView<'a>),
    /// The store is full, and new keys are denied: 429. The document does not claim
    /// that a quota is exceeded, because the key has used nothing.
    NoRoom(&'a ResponseView<'a>),
    /// The store failed, and a policy fails closed: 503. It is never a 429, because the client did
    /// not cause it.
    ReducedCapacity(&'a ResponseView<'a>),
    /// The request was not decided: it is invalid, the caller has no access, or the server failed.
    Undecided {
        /// The status: 400 if no other one is more specific.
        status: StatusCode,
        /// The invalid field, as the request spells it: `limits[0]`.
        field: Option<&'a str>,
        /// The mistake, and how to correct it.
        detail: &'a str,
    },
}

impl Problem<'_> {
    /// Returns the status of the response.
    pub const fn status(&self) -> StatusCode {
        match self {
            Problem::QuotaExceeded(_) | Problem::NoRoom(_) => StatusCode::TOO_MANY_REQUESTS,
            Problem::ReducedCapacity(_) => StatusCode::SERVICE_UNAVAILABLE,
            Problem::Undecided { status, .. } => *status,
        }
    }

    /// Writes the text of `detail`, without the escapes of JSON.
    pub(crate) fn write_detail(&self, out: &mut impl Write) -> fmt::Result {
        match self {
            Problem::QuotaExceeded(response) => write_quota_detail(out, response),
            Problem::NoRoom(_) => out.write_str(
                "there is no room for new keys now, so they are denied; try again later",
            ),
            Problem::ReducedCapacity(_) => {
                out.write_str("the request cannot be decided now; try again later")
            }
            Problem::Undecided { detail, .. } => out.write_str(detail),
        }
    }

    /// The type and title as registered for rate limits. A request that was not decided has the
    /// type `about:blank`, which adds nothing to its status.
    fn type_and_title(&self) -> (&'static str, &'static str) {
        match self {
            Problem::QuotaExceeded(_) => (
                "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "Request cannot be satisfied as assigned quota has been exceeded",
            ),
            Problem::ReducedCapacity(_) | Problem::NoRoom(_) => (
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
                "Request cannot be satisfied due to temporary server capacity constraints",
            ),
            Problem::Undecided { status, .. } => {
                ("about:blank", status.canonical_reason().unwrap_or("Refused"))
            }
        }
    }
}

/// Appends a problem document as JSON to `out`, for a response with the status of the problem.
///
/// ```
/// use http::StatusCode;
/// use tidegate::unstable::headers::{Problem, write_problem};
///
/// let mut body = String::new();
/// let problem = Problem::Undecided {
///     status: StatusCode::BAD_REQUEST,
///     field: Some("cost"),
///     detail: "expected a whole number",
/// };
/// write_problem(&problem, &mut body);
/// assert_eq!(
///     body,
///     r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"expected a whole number","field":"cost"}"#
/// );
/// ```
pub fn write_problem(problem: &Problem<'_>, out: &mut String) {
    write_problem_as(problem, problem.status(), out);
}

/// Appends a problem document as JSON to `out`, for a response with another status. The document
/// must state the status that it is sent with.
pub fn write_problem_as(problem: &Problem<'_>, status: StatusCode, out: &mut String) {
    let (kind, title) = problem.type_and_title();
    out.push_str("{\"type\":\"");
    out.push_str(kind);
    out.push_str("\",\"title\":\"");
    out.push_str(title);
    out.push_str("\",\"status\":");
    out.push_str(status.as_str());
    member(out, "detail", |out| {
        // Writing to a `String` cannot fail.
        let _ = problem.write_detail(out);
    });
    match problem {
        Problem::QuotaExceeded(response)
        | Problem::NoRoom(response)
        | Problem::ReducedCapacity(response) => violated_policies(out, response),
        Problem::Undecided { field: Some(field), .. } => {
            member(out, "field", |out| out.put(field));
        }
        Problem::Undecided { field: None, .. } => {}
    }
    out.push('}');
}

fn write_quota_detail(out: &mut impl Write, response: &ResponseView<'_>) -> fmt::Result {
    let Some(view) = response.reported_limit() else { return Ok(()) };
    out.write_str(match (view.retry_after, view.remaining) {
        (RetryAfter::Never, _) => "this cost can never pass `",
        (_, None | Some(0)) => "used up: `",
        // The cost exceeds what is left, or callers that wait come first.
        (_, Some(_)) => "not enough left: `",
    })?;
    write!(out, "{}`", view.limit)?;
    if !view.policy.is_empty() {
        out.write_str(" of policy ")?;
        out.write_str(view.policy)?;
    }
    match (view.retry_after, view.retry_after.as_secs()) {
        (RetryAfter::Micros(_), Some(seconds)) => write!(out, "; retry after {seconds} s"),
        _ => Ok(()),
    }
}

/// Appends the denying limits, by the names that `RateLimit-Policy` uses.
fn violated_policies(out: &mut String, response: &ResponseView<'_>) {
    let names = LimitNames::of(response.limits);
    out.push_str(",\"violated-policies\":[");
    for (position, index) in response.violated().enumerate() {
        out.push_str(if position == 0 { "\"" } else { ",\"" });
        let mut escaped = Escaped(out);
        names.get(index).iter().for_each(|byte| escaped.put_char(char::from(*byte)));
        out.push('"');
    }
    out.push(']');
}

fn member(out: &mut String, name: &str, value: impl FnOnce(&mut Escaped<'_>)) {
    out.push_str(",\"");
    out.push_str(name);
    out.push_str("\":\"");
    value(&mut Escaped(out));
    out.push('"');
}

/// Writes the content of a JSON string.
struct Escaped<'a>(&'a mut String);

impl Escaped<'_> {
    fn put(&mut self, text: &str) {
        // Nearly all text is plain, and most requests of an attack end here.
        let is_plain = |byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
        if text.bytes().all(is_plain) {
            self.0.push_str(text);
        } else {
            text.chars().for_each(|c| self.put_char(c));
        }
    }

    fn put_char(&mut self, c: char) {
        match c {
            '"' => self.0.push_str("\\\""),
            '\\' => self.0.push_str("\\\\"),
            '\n' => self.0.push_str("\\n"),
            // Besides the characters that JSON requires to be escaped, escapes those that a
            // terminal interprets or that end a line in JavaScript.
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => {
                let _ = write!(self.0, "\\u{:04x}", u32::from(c));
            }
            c => self.0.push(c),
        }
    }
}

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.put(text);
        Ok(())
    }
}
