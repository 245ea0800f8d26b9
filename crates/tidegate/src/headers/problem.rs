//! Problem documents (RFC 9457), which state why a request was rejected.

use std::fmt::Write;

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
    /// The request is invalid.
    BadRequest {
        /// The status: 400 or a more specific one.
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
            Problem::BadRequest { status, .. } => *status,
        }
    }

    /// The type and title as registered for rate limits. A bad request has the type `about:blank`,
    /// which adds nothing to its status.
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
            Problem::BadRequest { status, .. } => {
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
/// let problem = Problem::BadRequest {
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
    match problem {
        Problem::QuotaExceeded(response) => {
            member(out, "detail", |out| quota_detail(out, response));
            violated_policies(out, response);
        }
        Problem::NoRoom(response) => {
            let detail = "there is no room for new keys now, so they are denied; try again later";
            member(out, "detail", |out| out.put(detail));
            violated_policies(out, response);
        }
        Problem::ReducedCapacity(response) => {
            member(out, "detail", |out| out.put("it cannot be decided now; try again later"));
            violated_policies(out, response);
        }
        Problem::BadRequest { field, detail, .. } => {
            member(out, "detail", |out| out.put(detail));
            if let Some(field) = field {
                member(out, "field", |out| out.put(field));
            }
        }
    }
    out.push('}');
}

fn quota_detail(out: &mut Escaped<'_>, response: &ResponseView<'_>) {
    let Some(view) = response.reported_limit() else { return };
    let verb = match view.retry_after {
        RetryAfter::Never => "this cost can never pass `",
        RetryAfter::Now | RetryAfter::Micros(_) => "used up: `",
    };
    out.put(verb);
    // Writing to a `String` cannot fail.
    let _ = write!(out, "{}`", view.limit);
    if !view.policy.is_empty() {
        out.put(" of policy ");
        out.put(view.policy);
    }
    if let (RetryAfter::Micros(_), Some(seconds)) = (view.retry_after, view.retry_after.as_secs()) {
        let _ = write!(out, "; retry after {seconds} s");
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
