//! `ANY /v1/forward-auth`: decides a request that a gateway describes.
//!
//! The response is a status: 200, or 429 with the header fields and body for the client, which the
//! gateway passes on. For a gateway that does not pass on a 429, its URL can set another status
//! with `?deny_status=403`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use http::header::{CACHE_CONTROL, HeaderValue};
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use tidegate::unstable::attributes::{Attributes, Headers};
use tidegate::unstable::gate::{ActivePolicies, GateError, GateRequest, GateVerdict, Subject};
use tidegate::unstable::policy::SelectError;

use super::original_request::{OriginalRequest, TargetSource, is_client_query};
use super::response::{HttpResponse, RequestId, content};
use super::{HttpFront, auth_error};
use crate::error::RequestError;

const PREFIX: &str = "/v1/forward-auth";

/// The path after the prefix: empty, or a path; `None` if the prefix does not match.
fn path_after_prefix(path: &str) -> Option<&str> {
    path.strip_prefix(PREFIX).filter(|suffix| suffix.is_empty() || suffix.starts_with('/'))
}

/// The options in the URL that the gateway is configured with.
#[derive(Debug, Default, PartialEq, Eq)]
struct ForwardAuthOptions {
    deny_status: Option<StatusCode>,
    from: Option<TargetSource>,
}

impl ForwardAuthOptions {
    /// Parses a query that is the gateway's, or that may be the client's.
    fn of(query: &str, headers: &HeaderMap) -> Result<Self, RequestError> {
        if query.is_empty() || !is_client_query(query, headers) {
            return ForwardAuthOptions::parse(query);
        }
        // The query is the client's, or the client copied the gateway's query to make it look so.
        // In both cases, its `from` must not select which headers are trusted.
        let selects = |(name, value)| name == "from" && TargetSource::from_name(value).is_some();
        if parameters(query).any(selects) {
            return Err(RequestError::field(
                "from",
                "it is in the gateway's URL and in the client's query, so its origin is unknown: change the gateway's URL",
            ));
        }
        Ok(ForwardAuthOptions::default())
    }

    /// Parses a query of the gateway. A parameter that is unknown or given twice is an error: if it
    /// were ignored, a misspelt option would have no effect and nobody would notice.
    fn parse(query: &str) -> Result<Self, RequestError> {
        let mut options = ForwardAuthOptions::default();
        for (name, value) in parameters(query) {
            let is_repeated = match name {
                "deny_status" => options.deny_status.replace(deny_status(value)?).is_some(),
                "from" => {
                    let unknown = || RequestError::field("from", "use forwarded or original");
                    let from = TargetSource::from_name(value).ok_or_else(unknown)?;
                    options.from.replace(from).is_some()
                }
                _ => return Err(RequestError::field(excerpt(name), UNKNOWN_PARAMETER)),
            };
            if is_repeated {
                return Err(RequestError::field(excerpt(name), "it is given twice: keep one"));
            }
        }
        Ok(options)
    }
}

const UNKNOWN_PARAMETER: &str = "it is unknown: use `from` or `deny_status`";

/// The beginning of a name, which can be as long as the URL.
fn excerpt(name: &str) -> String {
    name.chars().take(64).collect()
}

/// The names and values in a query.
fn parameters(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// Parses a status. Only 4xx is accepted, because a gateway must not take a denial for success.
fn deny_status(value: &str) -> Result<StatusCode, RequestError> {
    let status = value.parse().ok().filter(|code| (400..500).contains(code));
    let status = status.and_then(|code: u16| StatusCode::from_u16(code).ok());
    status.ok_or_else(|| {
        RequestError::field("deny_status", "use a status from 400 to 499, such as 403")
    })
}

const STRAY_SLASH: &str =
    "remove the slash before the question mark: use /v1/forward-auth?from=...";

/// Whether the URL that the gateway is configured with has a slash too many. The slash would be
/// taken for the path of the client and the options for its query, and the request would be
/// admitted. A URL with `from=` is therefore an error.
fn is_stray_slash(suffix: &str, query: Option<&str>) -> bool {
    let says_from = |pair: &str| matches!(pair, "from=forwarded" | "from=original");
    suffix == "/" && query.is_some_and(|query| query.split('&').any(says_from))
}

impl HttpFront {
    /// Responds to a gateway with a decision in memory; `None` if the path is another.
    pub(super) fn forward_auth(
        &self,
        request: &Request<Incoming>,
        peer: SocketAddr,
    ) -> Option<HttpResponse> {
        let suffix = path_after_prefix(request.uri().path())?;
        let id = RequestId::of(request.headers());
        let forwarded = self.parse_forwarded(request, suffix, &id);
        Some(without_caching(
            forwarded.and_then(|forwarded| self.forward_sync(request, &forwarded, peer, &id)),
            &id,
        ))
    }

    /// Responds to a gateway with a decision of a shared store; `None` if the path is another.
    pub(super) async fn forward_auth_shared(
        &self,
        request: &Request<Incoming>,
        peer: SocketAddr,
    ) -> Option<HttpResponse> {
        let suffix = path_after_prefix(request.uri().path())?;
        let id = RequestId::of(request.headers());
        let answered = match self.parse_forwarded(request, suffix, &id) {
            Ok(forwarded) => self.forward_async(request.headers(), &forwarded, peer, &id).await,
            Err(error) => Err(error),
        };
        Some(without_caching(answered, &id))
    }

    /// Authorizes the gateway and parses the original request.
    fn parse_forwarded<'r>(
        &self,
        request: &'r Request<Incoming>,
        suffix: &'r str,
        id: &RequestId<'_>,
    ) -> Result<ForwardedRequest<'r>, RequestError> {
        self.access.authorize_gateway(request.headers()).map_err(auth_error)?;
        ForwardedRequest::of(request, suffix).inspect_err(|error| self.log_rejected(error, id))
    }

    /// Logs that a check was rejected, at most once in ten seconds: gateways fail for all of their
    /// clients then, and do not show the reason. `error` must not have a value of the request.
    #[cold]
    fn log_rejected(&self, error: &RequestError, id: &RequestId<'_>) {
        let status = error.status();
        // Failures of the store are logged there.
        if !status.is_client_error() {
            return;
        }
        if let Some(suppressed) = self.rejected_checks.should_log(Instant::now()) {
            // The name of an unknown parameter may be the client's.
            let is_unknown = error.detail == UNKNOWN_PARAMETER;
            let field = if is_unknown { Some("a query parameter") } else { error.field.as_deref() };
            tracing::warn!(
                request_id = id.as_str(),
                field,
                suppressed,
                "rejected the check of a gateway with {}: {}",
                status.as_u16(),
                error.detail
            );
        }
    }

    /// Converts an error of the gate, and logs it without the value that it shows.
    #[cold]
    fn undecided(&self, error: GateError, id: &RequestId<'_>) -> RequestError {
        let logged = match &error {
            GateError::Select(SelectError::BadCost { policy, field, .. }) => {
                let (policy, field) = (policy.clone(), field.clone());
                GateError::Select(SelectError::BadCost { policy, field, found: "...".into() })
            }
            other => other.clone(),
        };
        self.log_rejected(&gate_error(logged), id);
        gate_error(error)
    }

    fn forward_sync(
        &self,
        request: &Request<Incoming>,
        forwarded: &ForwardedRequest<'_>,
        peer: SocketAddr,
        id: &RequestId<'_>,
    ) -> Result<HttpResponse, RequestError> {
        let active = self.gate.active_policies();
        let attributes = forwarded.attributes(&active, request.headers(), peer);
        let gate_requests = [gate_request(&attributes, id)];
        let verdict = self.gate.poll_now(self.gate.check(&active, &gate_requests));
        let verdict = verdict.map_err(|error| self.undecided(error, id))?;
        Ok(self.forward_answer(&verdict, forwarded, id))
    }

    async fn forward_async(
        &self,
        headers: &HeaderMap,
        forwarded: &ForwardedRequest<'_>,
        peer: SocketAddr,
        id: &RequestId<'_>,
    ) -> Result<HttpResponse, RequestError> {
        let active = Arc::clone(&self.gate.active_policies());
        let attributes = forwarded.attributes(&active, headers, peer);
        let verdict = self.gate.check(&active, &[gate_request(&attributes, id)]).await;
        let verdict = verdict.map_err(|error| self.undecided(error, id))?;
        Ok(self.forward_answer(&verdict, forwarded, id))
    }

    fn forward_answer(
        &self,
        verdict: &GateVerdict<'_>,
        forwarded: &ForwardedRequest<'_>,
        id: &RequestId<'_>,
    ) -> HttpResponse {
        if !verdict.allowed {
            return self.deny(verdict, forwarded.deny_status, id);
        }
        let mut response = Response::new(content(Vec::new()));
        self.render(verdict, response.headers_mut());
        response
    }
}

/// The request of a gateway.
struct ForwardedRequest<'r> {
    original: OriginalRequest<'r>,
    deny_status: Option<StatusCode>,
}

impl<'r> ForwardedRequest<'r> {
    fn of(request: &'r Request<Incoming>, suffix: &'r str) -> Result<Self, RequestError> {
        if is_stray_slash(suffix, request.uri().query()) {
            return Err(RequestError::invalid(STRAY_SLASH));
        }
        // After a path of the client, the query is the client's too.
        let query = request.uri().query().filter(|_| suffix.is_empty());
        let options = ForwardAuthOptions::of(query.unwrap_or_default(), request.headers())?;
        let original = OriginalRequest::of(request, suffix, options.from)?;
        Ok(ForwardedRequest { original, deny_status: options.deny_status })
    }

    fn attributes<'a>(
        &'a self,
        active: &ActivePolicies,
        headers: &'a HeaderMap,
        peer: SocketAddr,
    ) -> Attributes<'a> {
        let headers = Headers::Map(headers);
        Attributes {
            method: Some(&self.original.method),
            path: self.original.path.as_deref(),
            query: self.original.query.as_deref(),
            host: self.original.host.as_deref(),
            client_ip: active.policies().identity().client_ip(Some(peer.ip()), &headers),
            headers,
            domain: None,
            descriptors: &[],
        }
    }
}

fn gate_request<'a>(attributes: &'a Attributes<'a>, id: &'a RequestId<'_>) -> GateRequest<'a> {
    let subject = Subject::Request(attributes);
    GateRequest { request_id: Some(id.as_str()), ..GateRequest::new(subject) }
}

/// Converts an error of the gate. A bad cost names the header or parameter that holds it: the
/// request of a gateway has no field `attributes`.
fn gate_error(error: GateError) -> RequestError {
    let field = match &error {
        GateError::Select(SelectError::BadCost { field, .. }) => {
            Some(field.trim_matches(['{', '}']).to_owned())
        }
        _ => None,
    };
    let error = RequestError::from(error);
    match field {
        Some(field) => RequestError { field: Some(field.into()), ..error },
        None => error,
    }
}

/// Creates the response. It must not be cached, because it is for this client only.
fn without_caching(
    answered: Result<HttpResponse, RequestError>,
    id: &RequestId<'_>,
) -> HttpResponse {
    let mut response = answered.unwrap_or_else(|error| error.respond(id));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    type Read<E> = Result<(Option<u16>, Option<TargetSource>), E>;

    fn options(query: &str, target: &str) -> Read<String> {
        let target = target.parse().expect("a value");
        let headers =
            HeaderMap::from_iter([(http::HeaderName::from_static("x-forwarded-uri"), target)]);
        ForwardAuthOptions::of(query, &headers)
            .map(|options| (options.deny_status.map(|status| status.as_u16()), options.from))
            .map_err(|error| error.field.expect("a field").into_owned())
    }

    #[test]
    fn parses_options_of_gateway_url() {
        let rows: [(&str, Read<&str>); 13] = [
            ("", Ok((None, None))),
            ("deny_status=403", Ok((Some(403), None))),
            ("from=original&deny_status=499", Ok((Some(499), Some(TargetSource::Original)))),
            ("deny_status=404&", Ok((Some(404), None))),
            ("deny_status=404&deny_status=403", Err("deny_status")),
            ("from=forwarded&from=forwarded", Err("from")),
            ("denystatus=403", Err("denystatus")),
            ("from=forwarded&policy", Err("policy")),
            ("deny_status=200", Err("deny_status")),
            ("deny_status=503", Err("deny_status")),
            ("deny_status=x", Err("deny_status")),
            ("from=nginx", Err("from")),
            ("from=path", Err("from")),
        ];
        for (query, expected) in rows {
            assert_eq!(options(query, "/login?a=1"), expected.map_err(str::to_owned), "{query}");
        }
    }

    #[test]
    fn ignores_options_in_client_query() {
        let rows = [
            ("deny_status=200", Ok((None, None))),
            ("deny_status=404", Ok((None, None))),
            ("from=2026-01-01", Ok((None, None))),
            ("from=original", Err("from".to_owned())),
            ("a=1&from=original", Err("from".to_owned())),
            ("policy=free&a=1", Ok((None, None))),
        ];
        for (query, expected) in rows {
            assert_eq!(options(query, &format!("/login?{query}")), expected, "{query}");
        }
    }

    #[test]
    fn detects_stray_slash() {
        let rows = [
            ("/", Some("from=original"), true),
            ("/", Some("deny_status=403&from=forwarded"), true),
            ("/", Some("from=2026-01-01"), false),
            ("/", None, false),
            ("", Some("from=original"), false),
            ("/login", Some("from=original"), false),
        ];
        for (suffix, query, expected) in rows {
            assert_eq!(is_stray_slash(suffix, query), expected, "{suffix}?{query:?}");
        }
    }

    #[test]
    fn matches_only_forward_auth_paths() {
        let rows = [
            ("/v1/forward-auth", Some("")),
            ("/v1/forward-auth/", Some("/")),
            ("/v1/forward-auth/login", Some("/login")),
            ("/v1/forward-author", None),
            ("/v1/forward", None),
        ];
        for (path, expected) in rows {
            assert_eq!(path_after_prefix(path), expected, "{path}");
        }
    }
}
