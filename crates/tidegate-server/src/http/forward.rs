//! `ANY /v1/forward-auth`: a gateway asks whether a request may go ahead.
//!
//! The answer is a status: 200, or 429 with all that the client should be told,
//! for the gateway to pass on. A gateway that makes something else of a 429
//! names another with `?deny_status=403`.

use std::net::SocketAddr;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use tidegate::attributes::{Attributes, Headers};
use tidegate::gate::{Question, Subject};

use super::original::{From, Original};
use super::refusal::Refusal;
use super::request_id::RequestId;
use super::{Answered, HttpFront};

const PREFIX: &str = "/v1/forward-auth";

/// What follows our own path: empty, or a path; `None` if it is not ours.
pub fn behind_prefix(path: &str) -> Option<&str> {
    path.strip_prefix(PREFIX).filter(|behind| behind.is_empty() || behind.starts_with('/'))
}

/// What the gateway's address for us says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options<'a> {
    deny_status: Option<StatusCode>,
    from: Option<From>,
    policy: Option<&'a str>,
}

impl<'a> Options<'a> {
    fn parse(query: &'a str) -> Result<Self, Refusal> {
        let mut options = Options::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "deny_status" => options.deny_status = Some(deny_status(value)?),
                "from" => {
                    let unknown =
                        || Refusal::field("from", "use forwarded, original or path");
                    options.from = Some(From::from_name(value).ok_or_else(unknown)?);
                }
                "policy" => options.policy = Some(value),
                _ => {
                    let detail = "this parameter is not known: use deny_status, from or policy";
                    return Err(Refusal::field(name.to_owned(), detail));
                }
            }
        }
        Ok(options)
    }
}

/// Only refusals: a status that lets the request through would be no denial.
fn deny_status(value: &str) -> Result<StatusCode, Refusal> {
    let status = value.parse().ok().filter(|code| (400..500).contains(code));
    let status = status.and_then(|code: u16| StatusCode::from_u16(code).ok());
    status.ok_or_else(|| Refusal::field("deny_status", "use a status from 400 to 499, such as 403"))
}

impl HttpFront {
    pub(super) fn forward_auth(
        &self,
        request: &Request<Incoming>,
        behind: &str,
        peer: SocketAddr,
    ) -> Answered {
        let id = RequestId::of(request.headers());
        let answered = self.forward_now(request, behind, peer, &id);
        let mut response = answered.unwrap_or_else(|refusal| refusal.respond(&id));
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    fn forward_now(
        &self,
        request: &Request<Incoming>,
        behind: &str,
        peer: SocketAddr,
        id: &RequestId<'_>,
    ) -> Result<Answered, Refusal> {
        // Behind a path of the client's, the query is the client's too.
        let query = request.uri().query().filter(|_| behind.is_empty());
        let options = Options::parse(query.unwrap_or_default())?;
        let original = Original::of(request, behind, options.from)?;
        let rules = self.gate.rules();
        let headers = Headers::Map(request.headers());
        let attributes = Attributes {
            method: Some(&original.method),
            path: original.path.as_deref(),
            query: original.query.as_deref(),
            host: original.host.as_deref(),
            client_ip: rules.policies().identity().client_ip(Some(peer.ip()), &headers),
            headers,
            descriptors: &[],
        };
        let subject = match options.policy {
            Some(policy) => Subject::Policy { policy, attributes: &attributes },
            None => Subject::Request(&attributes),
        };
        let question = Question { request_id: Some(id.as_str()), ..Question::new(subject) };
        let answer = self.gate.check(&rules, &question)?;
        if !answer.allowed {
            return Ok(self.deny(&answer, options.deny_status, id));
        }
        let mut response = Response::new(Full::new(Bytes::new()));
        self.render(&answer, response.headers_mut());
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gateways_address_is_read_or_refused_by_field() {
        let rows: [(&str, Result<(Option<u16>, Option<From>, Option<&str>), &str>); 9] = [
            ("", Ok((None, None, None))),
            ("deny_status=403", Ok((Some(403), None, None))),
            ("from=original&deny_status=499", Ok((Some(499), Some(From::Original), None))),
            ("policy=login&from=path", Ok((None, Some(From::Path), Some("login")))),
            ("deny_status=200", Err("deny_status")),
            ("deny_status=503", Err("deny_status")),
            ("deny_status=x", Err("deny_status")),
            ("from=nginx", Err("from")),
            ("denystatus=403", Err("denystatus")),
        ];
        for (query, expected) in rows {
            let got = Options::parse(query)
                .map(|o| (o.deny_status.map(|s| s.as_u16()), o.from, o.policy))
                .map_err(|refusal| refusal.field.expect("a field").into_owned());
            assert_eq!(got, expected.map_err(str::to_owned), "{query}");
        }
    }

    #[test]
    fn only_our_own_path_is_ours() {
        let rows = [
            ("/v1/forward-auth", Some("")),
            ("/v1/forward-auth/", Some("/")),
            ("/v1/forward-auth/login", Some("/login")),
            ("/v1/forward-author", None),
            ("/v1/forward", None),
        ];
        for (path, expected) in rows {
            assert_eq!(behind_prefix(path), expected, "{path}");
        }
    }
}
