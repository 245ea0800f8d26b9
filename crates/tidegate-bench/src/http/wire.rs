//! Requests and answers as bytes.
//!
//! The load must cost less than what it measures. So a request is rendered once, and afterwards
//! only the digits of its key are overwritten. An answer is delimited by its `content-length`,
//! without allocations.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use clap::ValueEnum;
use serde::Deserialize;

use crate::cli::name_of;

/// Maximum size of an answer's head; the measured servers send less.
const MAX_HEAD_BYTES: usize = 16 << 10;

/// The kinds of requests that the servers answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RequestKind {
    /// `POST /v1/check` with a policy and a key.
    Check,
    /// `POST /v1/check` with attributes that determine policy and key.
    Attributes,
    /// `GET /v1/forward-auth` as a gateway sends it.
    ForwardAuth,
    /// throttlecrab's `POST /throttle`.
    Throttle,
}

/// The two limits that a request may be subject to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Budget {
    /// A limit that a run does not reach.
    Loose,
    /// A limit that a few requests exhaust.
    Tight,
}

/// The numbers of both limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub loose: u64,
    pub tight: u64,
}

impl Limits {
    pub fn of(self, budget: Budget) -> u64 {
        match budget {
            Budget::Loose => self.loose,
            Budget::Tight => self.tight,
        }
    }
}

/// The limits for throttlecrab, and the tight limit for all servers.
pub const LIMITS: Limits = Limits { loose: 1_000_000, tight: 3 };

/// The limits of a measured policy, of which it has the first or both. A run does not reach them,
/// and several of their windows pass during a run.
pub const LOOSE_LIMITS: [&str; 2] =
    ["500000 per 20s sliding-window", "1000000 per 30s sliding-window"];

/// How long the load runs before servers are timed: longer than either window, so that keys hold
/// cells of several ages.
pub const AGEING_TIME: Duration = Duration::from_secs(31);

/// The key in a rendered request, see [`Request::set_key`].
const KEY: &str = "user:00000000";
const DIGITS: usize = 8;

/// A rendered request.
#[derive(Clone)]
pub struct Request {
    bytes: Vec<u8>,
    digits_at: usize,
}

impl Request {
    pub fn render(kind: RequestKind, budget: Budget, to: SocketAddr) -> Self {
        Request::new(text(kind, budget, to))
    }

    /// Renders a check of the given policy.
    pub fn check(policy: &str, to: SocketAddr) -> Self {
        let body = format!("{{\"policy\":\"{policy}\",\"key\":\"{KEY}\"}}");
        Request::new(post(to, "/v1/check", &body))
    }

    fn new(text: String) -> Self {
        let digits_at = text.find(KEY).expect("every kind has a key") + KEY.len() - DIGITS;
        Request { bytes: text.into_bytes(), digits_at }
    }

    /// Changes the key to `number`.
    pub fn set_key(&mut self, number: u32) {
        let mut rest = number;
        for digit in self.bytes[self.digits_at..self.digits_at + DIGITS].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

fn text(kind: RequestKind, budget: Budget, to: SocketAddr) -> String {
    let policy = policy_name(kind, budget);
    match kind {
        RequestKind::Check => {
            post(to, "/v1/check", &format!("{{\"policy\":\"{policy}\",\"key\":\"{KEY}\"}}"))
        }
        RequestKind::Attributes => post(
            to,
            "/v1/check",
            &format!(
                "{{\"attributes\":{{\"method\":\"GET\",\"path\":\"/{policy}/item\",\
                 \"client_ip\":\"203.0.113.7\",\"headers\":{{\"x-api-key\":\"{KEY}\"}}}}}}"
            ),
        ),
        RequestKind::ForwardAuth => format!(
            "GET /v1/forward-auth HTTP/1.1\r\nhost: {to}\r\nuser-agent: gateway\r\naccept: */*\r\n\
             x-forwarded-for: 203.0.113.7\r\nx-forwarded-method: GET\r\nx-forwarded-proto: https\r\n\
             x-forwarded-host: api.example.com\r\nx-forwarded-uri: /{policy}/item?page=2\r\n\
             x-api-key: {KEY}\r\n\r\n"
        ),
        RequestKind::Throttle => {
            let limit = LIMITS.of(budget);
            let prefix = if budget == Budget::Tight { "tight:" } else { "" };
            post(
                to,
                "/throttle",
                &format!(
                    "{{\"key\":\"{prefix}{KEY}\",\"max_burst\":{limit},\
                     \"count_per_period\":{limit},\"period\":3600}}"
                ),
            )
        }
    }
}

fn post(to: SocketAddr, path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: {to}\r\nuser-agent: load\r\naccept: */*\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Returns the name of a policy. Each kind has separate policies, so that their counts are
/// independent.
fn policy_name(kind: RequestKind, budget: Budget) -> String {
    format!("{}-{}", name_of(&kind), name_of(&budget))
}

/// The longest allowed window. No run reaches its end, where a count may fall by one.
pub const LONGEST: &str = "366d";

/// Returns the config of a measured server: for each kind of request one policy with the loose
/// limits and one with a limit of `tight`.
pub fn config(loose: &[&str], tight: u64) -> String {
    let mut text = String::from("trusted_proxies: [127.0.0.1/32]\nmax_keys: 4000000\npolicies:\n");
    for kind in [RequestKind::Check, RequestKind::Attributes, RequestKind::ForwardAuth] {
        let tight = format!("{tight} per {LONGEST} sliding-window");
        for (budget, limits) in [(Budget::Loose, loose), (Budget::Tight, &[tight.as_str()])] {
            let name = policy_name(kind, budget);
            text += &format!(
                "  - name: {name}\n    match: {{ path: \"/{name}/**\" }}\n    \
                 key: \"{{header:x-api-key | client_ip}}\"\n    limits: {limits:?}\n"
            );
        }
    }
    text
}

/// One answer, borrowed from the buffer it was read into.
#[derive(Clone, Copy, Debug)]
pub struct HttpResponse<'a> {
    pub status: u16,
    pub head: &'a str,
    pub body: &'a [u8],
}

impl<'a> HttpResponse<'a> {
    /// Parses the answer at the start of `bytes`; `None` if it is incomplete.
    pub fn parse(bytes: &'a [u8]) -> io::Result<Option<Self>> {
        let Some(head_len) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            return if bytes.len() > MAX_HEAD_BYTES {
                Err(unexpected("head too long"))
            } else {
                Ok(None)
            };
        };
        let head =
            std::str::from_utf8(&bytes[..head_len]).map_err(|_| unexpected("head is not text"))?;
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let mut response =
            HttpResponse { status: status.ok_or_else(|| unexpected(head))?, head, body: &[] };
        let len: usize = match response.field("content-length") {
            Some(len) => len.parse().map_err(|_| unexpected(head))?,
            None => return Err(unexpected("content-length is missing")),
        };
        let rest = &bytes[head_len + 4..];
        if rest.len() > len {
            return Err(unexpected("more than one answer"));
        }
        response.body = rest;
        Ok((rest.len() == len).then_some(response))
    }

    /// Returns the value of a header field.
    pub fn field(&self, name: &str) -> Option<&'a str> {
        self.head.split("\r\n").skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// Returns whether the answer allows the request. Cheap enough for the timed loop.
    pub fn allows(&self, kind: RequestKind) -> bool {
        const ALLOWED: &[u8] = b"\"allowed\":true";
        self.status == 200
            && (kind == RequestKind::ForwardAuth
                || self.body.windows(ALLOWED.len()).any(|bytes| bytes == ALLOWED))
    }

    /// Parses the complete answer, for loads that are not timed.
    pub fn verdict(&self, kind: RequestKind) -> io::Result<Verdict> {
        let verdict = match kind {
            RequestKind::ForwardAuth => self.verdict_of_fields(),
            RequestKind::Check | RequestKind::Attributes | RequestKind::Throttle => {
                serde_json::from_slice(self.body).ok().filter(|_| self.status == 200)
            }
        };
        verdict.ok_or_else(|| {
            unexpected(&format!("{}\n{}", self.head, String::from_utf8_lossy(self.body)))
        })
    }

    fn verdict_of_fields(&self) -> Option<Verdict> {
        let allowed = match self.status {
            200 => true,
            429 => false,
            _ => return None,
        };
        let seconds = self.field("retry-after").map_or(Some(0), |value| value.parse().ok())?;
        Some(Verdict {
            allowed,
            limit: parameter(self.field("ratelimit-policy")?, "q")?,
            remaining: parameter(self.field("ratelimit")?, "r")?,
            retry_after: seconds,
        })
    }
}

/// Returns parameter `name` of a structured field such as `"login";r=4;t=60`.
fn parameter(field: &str, name: &str) -> Option<u64> {
    field
        .split(';')
        .find_map(|item| item.trim().strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}

/// The content of an answer, whatever its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Verdict {
    pub allowed: bool,
    pub limit: u64,
    pub remaining: u64,
    /// Seconds or milliseconds, rounded up; only compared with zero.
    #[serde(alias = "retry_after_ms")]
    pub retry_after: u64,
}

fn unexpected(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("unexpected answer: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 8080))
    }

    #[test]
    fn only_the_digits_of_a_request_change() {
        for &kind in RequestKind::value_variants() {
            let first = Request::render(kind, Budget::Loose, address());
            let mut request = first.clone();
            request.set_key(12_345_678);
            let (before, after) = (first.bytes(), request.bytes());
            let differing = before.iter().zip(after).filter(|(a, b)| a != b).count();
            assert_eq!((before.len(), differing), (after.len(), 8), "{kind:?}");
            let text = String::from_utf8_lossy(after);
            assert!(text.contains("user:12345678"), "{text}");
            if let Some((head, body)) = text.split_once("\r\n\r\n").filter(|(_, b)| !b.is_empty()) {
                assert!(head.ends_with(&format!("content-length: {}", body.len())), "{text}");
                let json: serde_json::Value = serde_json::from_str(body).expect("a JSON body");
                assert!(json.is_object());
            }
        }
    }

    #[test]
    fn responses_are_delimited_by_content_length() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{\"allowed\":true}";
        for len in 0..whole.len() {
            assert!(HttpResponse::parse(&whole[..len]).expect("no error yet").is_none(), "{len}");
        }
        let response = HttpResponse::parse(whole).expect("valid").expect("complete");
        assert_eq!((response.status, response.body.len()), (200, 16));
        assert!(response.allows(RequestKind::Check));
        for wrong in [
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 abc\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab",
            "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        ] {
            assert!(HttpResponse::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn verdicts_are_read_from_json_and_from_fields() {
        let rows: [(RequestKind, &str, &str, Option<Verdict>); 4] = [
            (
                RequestKind::Check,
                "200 OK",
                "{\"allowed\":true,\"policy\":\"a\",\"limit\":5,\"remaining\":4,\"retry_after_ms\":0}",
                Some(Verdict { allowed: true, limit: 5, remaining: 4, retry_after: 0 }),
            ),
            (
                RequestKind::ForwardAuth,
                "429 Too Many Requests\r\nRetry-After: 7\r\nRateLimit-Policy: \"a\";q=5;w=60\r\nRateLimit: \"a\";r=0;t=7",
                "",
                Some(Verdict { allowed: false, limit: 5, remaining: 0, retry_after: 7 }),
            ),
            (RequestKind::ForwardAuth, "200 OK", "", None),
            (RequestKind::Check, "500 Internal Server Error", "{\"allowed\":true}", None),
        ];
        for (kind, head, body, expected) in rows {
            let text = format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            let response = HttpResponse::parse(text.as_bytes()).expect("valid").expect("complete");
            assert_eq!(response.verdict(kind).ok(), expected, "{text}");
        }
    }
}
