//! The request that the gateway received, as the gateway describes it.
//!
//! Gateways describe it in one of two families of headers, or in the path after the prefix of
//! tidegate.
//!
//! | from | path and query | method | host |
//! | --- | --- | --- | --- |
//! | `forwarded` (Caddy, Traefik) | `X-Forwarded-Uri` | `X-Forwarded-Method` | `X-Forwarded-Host` |
//! | `original` (nginx) | `X-Original-URI` or `-URL` | `X-Original-Method` | the URL's, or `Host` |
//! | `path` (Envoy) | what follows `/v1/forward-auth` | that of the request | `Host` |
//!
//! A gateway sets one family and passes the other on as the *client* sent it. So the families are
//! never mixed. If both name a target, and differ in target, method or host, it is unknown which is
//! true. Such a request is rejected, unless the URL that the gateway is configured with selects a
//! family with `?from=...`. With `from`, a target and a method are required: without them, the
//! decision would be about another request. The method of the check is not that of the client:
//! nginx checks every request with GET.
//!
//! Some gateways (Caddy) append the query of the client to the URL of tidegate if that has none, so
//! a client could send `?from=...` too. [`is_client_query`] detects this: the gateway also sends
//! that query as part of the target.

use std::borrow::Cow;

use http::header::{HOST, HeaderName};
use http::{HeaderMap, Request};
use tidegate::unstable::attributes::RequestTarget;

use crate::error::RequestError;

/// Where the gateway names the target of the original request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetSource {
    /// The headers `X-Forwarded-*`.
    Forwarded,
    /// The headers `X-Original-*`.
    Original,
    /// The path after the prefix of tidegate.
    Path,
}

impl TargetSource {
    /// Returns the source with this name in `?from=`. `Path` is never selected by name: a path
    /// after the prefix always takes precedence.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "forwarded" => Some(TargetSource::Forwarded),
            "original" => Some(TargetSource::Original),
            _ => None,
        }
    }
}

// Parsed once, so that a lookup does not parse the name again.
static FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
static FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
static FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
static ORIGINAL_URI: HeaderName = HeaderName::from_static("x-original-uri");
static ORIGINAL_URL: HeaderName = HeaderName::from_static("x-original-url");
static ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");

/// The headers that hold a target.
static TARGETS: [&HeaderName; 3] = [&FORWARDED_URI, &ORIGINAL_URI, &ORIGINAL_URL];

/// Whether the query of this request is the client's, passed on by the gateway: a target has it
/// too.
pub fn is_client_query(query: &str, headers: &HeaderMap) -> bool {
    let targets = TARGETS.iter().flat_map(|name| headers.get_all(*name));
    targets.into_iter().any(|value| {
        let target = String::from_utf8_lossy(value.as_bytes());
        let target = target.split('#').next().unwrap_or_default();
        target.split_once('?').is_some_and(|(_, clients)| clients == query)
    })
}

/// The request that the gateway received.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OriginalRequest<'a> {
    pub method: Cow<'a, str>,
    pub path: Option<Cow<'a, str>>,
    pub query: Option<Cow<'a, str>>,
    pub host: Option<Cow<'a, str>>,
}

impl<'a> OriginalRequest<'a> {
    /// Parses the original request from `request`. `suffix` is the path after the prefix.
    pub fn of<B>(
        request: &'a Request<B>,
        suffix: &'a str,
        from: Option<TargetSource>,
    ) -> Result<Self, RequestError> {
        match from {
            Some(from) => {
                let original = OriginalRequest::from(request, suffix, from)?;
                require_method(request.headers(), from)?;
                Ok(original)
            }
            None if !suffix.is_empty() => {
                OriginalRequest::from(request, suffix, TargetSource::Path)
            }
            None => OriginalRequest::guess(request),
        }
    }

    fn from<B>(
        request: &'a Request<B>,
        suffix: &'a str,
        from: TargetSource,
    ) -> Result<Self, RequestError> {
        let headers = request.headers();
        let own_method = || Cow::Borrowed(request.method().as_str());
        match from {
            TargetSource::Path => Ok(OriginalRequest {
                method: own_method(),
                path: (!suffix.is_empty()).then_some(Cow::Borrowed(suffix)),
                query: request.uri().query().filter(|_| !suffix.is_empty()).map(Cow::Borrowed),
                host: own_host(request)?,
            }),
            TargetSource::Forwarded => {
                let target = target_in(request, &FORWARDED_URI)?;
                let target = target.ok_or_else(|| missing("X-Forwarded-Uri"))?;
                Ok(OriginalRequest {
                    method: single_value(headers, &FORWARDED_METHOD)?.unwrap_or_else(own_method),
                    host: single_value(headers, &FORWARDED_HOST)?.or(target.host),
                    ..target
                })
            }
            TargetSource::Original => {
                let target = original_target(request)?;
                let target = target.ok_or_else(|| missing("X-Original-URI"))?;
                Ok(OriginalRequest {
                    method: single_value(headers, &ORIGINAL_METHOD)?.unwrap_or_else(own_method),
                    ..target
                })
            }
        }
    }

    /// Uses the family of headers that has a target. If both have one, they must agree in
    /// everything: a client can send the same target as the gateway, with another method or host.
    fn guess<B>(request: &'a Request<B>) -> Result<Self, RequestError> {
        let headers = request.headers();
        let (forwarded, original) =
            (single_value(headers, &FORWARDED_URI)?, original_target(request)?);
        let from = match (forwarded, original) {
            (None, None) if headers.contains_key(&FORWARDED_METHOD) => TargetSource::Forwarded,
            (None, None) if headers.contains_key(&ORIGINAL_METHOD) => TargetSource::Original,
            (None, None) => TargetSource::Path,
            (Some(_), None) => TargetSource::Forwarded,
            (None, Some(_)) => TargetSource::Original,
            (Some(_), Some(_)) => {
                let forwarded = OriginalRequest::from(request, "", TargetSource::Forwarded)?;
                let original = OriginalRequest::from(request, "", TargetSource::Original)?;
                return match forwarded == original {
                    true => Ok(forwarded),
                    false => Err(conflict(
                        "X-Forwarded-*",
                        "X-Original-*",
                        ", or add ?from=forwarded or ?from=original to its URL for tidegate",
                    )),
                };
            }
        };
        OriginalRequest::from(request, "", from)
    }
}

/// The host of the request to tidegate.
fn own_host<B>(request: &Request<B>) -> Result<Option<Cow<'_, str>>, RequestError> {
    let authority = || request.uri().authority().map(|host| host.as_str().into());
    single_value(request.headers(), &HOST).map(|host| host.or_else(authority))
}

/// The target in a header, with its host or else that of the request.
fn target_in<'a, B>(
    request: &'a Request<B>,
    name: &HeaderName,
) -> Result<Option<OriginalRequest<'a>>, RequestError> {
    let Some(target) = single_value(request.headers(), name)?.map(read) else { return Ok(None) };
    let host = match target.host {
        Some(host) => Some(host),
        None => own_host(request)?,
    };
    Ok(Some(OriginalRequest { host, ..target }))
}

/// The target in `X-Original-URI` or `X-Original-URL`. If both are present they must agree, also in
/// the host, because one may be the client's.
fn original_target<B>(request: &Request<B>) -> Result<Option<OriginalRequest<'_>>, RequestError> {
    match (target_in(request, &ORIGINAL_URI)?, target_in(request, &ORIGINAL_URL)?) {
        (Some(uri), Some(url)) if uri != url => {
            Err(conflict("X-Original-URI", "X-Original-URL", ""))
        }
        (uri, url) => Ok(url.or(uri)),
    }
}

/// Checks that the gateway sends the method of the client.
fn require_method(headers: &HeaderMap, from: TargetSource) -> Result<(), RequestError> {
    let (name, shown) = match from {
        TargetSource::Forwarded => (&FORWARDED_METHOD, "X-Forwarded-Method"),
        TargetSource::Original => (&ORIGINAL_METHOD, "X-Original-Method"),
        TargetSource::Path => return Ok(()),
    };
    single_value(headers, name)?.map_or_else(|| Err(missing(shown)), |_| Ok(()))
}

fn missing(name: &str) -> RequestError {
    let detail = format!("{name} is missing: configure the gateway to send it");
    RequestError::field(format!("header:{}", name.to_ascii_lowercase()), detail)
}

/// The error for two headers that differ. `alternative` is what else the operator can do.
fn conflict(one: &str, other: &str, alternative: &str) -> RequestError {
    RequestError::invalid(format!(
        "{one} and {other} differ, and the client may have sent one of them: have the gateway \
         remove the one that it does not set{alternative}"
    ))
}

/// The value of a header that must not have several values. Bytes that are not UTF-8 are replaced,
/// not dropped: an invalid byte in a query must not hide the path before it.
fn single_value<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<Cow<'a, str>>, RequestError> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else { return Ok(None) };
    if values.any(|value| value != first) {
        let detail =
            format!("{name} was sent twice with different values: have the gateway replace it");
        return Err(RequestError::field(format!("header:{name}"), detail));
    }
    // An empty header is treated as absent.
    Ok(Some(String::from_utf8_lossy(first.as_bytes())).filter(|value| !value.is_empty()))
}

fn read(uri: Cow<'_, str>) -> OriginalRequest<'_> {
    match uri {
        Cow::Borrowed(uri) => split(uri, Cow::Borrowed),
        Cow::Owned(uri) => split(&uri, |text| Cow::Owned(text.to_owned())),
    }
}

fn split<'u, 'a>(uri: &'u str, own: impl Fn(&'u str) -> Cow<'a, str>) -> OriginalRequest<'a> {
    let RequestTarget { host, path, query } = RequestTarget::new(uri);
    let path = if path.is_empty() { "/" } else { path };
    OriginalRequest {
        method: Cow::default(),
        path: Some(own(path)),
        query: query.map(&own),
        host: host.map(&own),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers from `name: value` lines.
    fn headers(lines: &[&str]) -> HeaderMap {
        let pairs = lines.iter().map(|line| {
            let (name, value) = line.split_once(": ").expect("a header");
            let name: http::HeaderName = name.parse().expect("a name");
            (name, http::HeaderValue::from_bytes(value.as_bytes()).expect("a value"))
        });
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, value);
        }
        headers
    }

    /// `METHOD host path query` of the original request, or the detail of the error.
    fn original(lines: &[&str], suffix: &str, from: Option<TargetSource>) -> String {
        let mut request = Request::builder().method("GET").uri(format!("/v1/forward-auth{suffix}"));
        *request.headers_mut().expect("a builder") = headers(lines);
        let request = request.body(()).expect("a request");
        let suffix = suffix.split('?').next().expect("a path");
        match OriginalRequest::of(&request, suffix, from) {
            Ok(original) => {
                let part = |part: Option<Cow<'_, str>>| part.unwrap_or("-".into()).into_owned();
                let (host, path) = (part(original.host), part(original.path));
                format!("{} {host} {path} {}", original.method, part(original.query))
            }
            Err(error) => error.detail.into_owned(),
        }
    }

    #[test]
    fn reads_original_request_from_one_header_family() {
        let forwarded = Some(TargetSource::Forwarded);
        #[rustfmt::skip]
        let rows: &[(&[&str], &str, Option<TargetSource>, &str)] = &[
            (&["host: tg"], "", None, "GET tg - -"),
            (&["host: shop.example"], "/login?a=1", None, "GET shop.example /login a=1"),
            (&["host: s"], "//login/../x", None, "GET s //login/../x -"),
            // Caddy and Traefik.
            (&["host: tg", "x-forwarded-uri: /login?a=1", "x-forwarded-method: POST", "x-forwarded-host: shop.example"], "", None,
             "POST shop.example /login a=1"),
            // nginx.
            (&["host: shop.example", "x-original-uri: /login", "x-original-method: PUT"], "", None, "PUT shop.example /login -"),
            (&["host: tg", "x-original-url: https://shop.example:8443/login?a#b"], "", None, "GET shop.example:8443 /login a"),
            (&["x-original-url: https://shop.example"], "", None, "GET shop.example / -"),
            (&["host: shop.example", "x-original-uri: /a", "x-original-url: https://shop.example/a"], "", None, "GET shop.example /a -"),
            // The path that Envoy sends takes precedence over headers of a client.
            (&["host: s", "x-forwarded-uri: /free", "x-forwarded-method: OPTIONS", "x-original-uri: /free"], "/login", None, "GET s /login -"),
            // Headers of a client in the other family are ignored.
            (&["host: s", "x-forwarded-uri: /login", "x-original-method: OPTIONS"], "", None, "GET s /login -"),
            (&["host: s", "x-original-uri: /login", "x-forwarded-method: OPTIONS", "x-forwarded-host: free"], "", None, "GET s /login -"),
            (&["x-forwarded-uri: /login", "x-forwarded-method: PUT", "x-original-uri: /free"], "", forwarded, "PUT - /login -"),
            (&["x-forwarded-uri: /login", "x-original-uri: /free", "x-original-method: PUT"], "", Some(TargetSource::Original), "PUT - /free -"),
            (&["x-forwarded-uri: /login", "x-original-uri: /login"], "", None, "GET - /login -"),
            // Unusual bytes hide nothing.
            (&["x-forwarded-uri: /login?\u{e9}"], "", None, "GET - /login \u{e9}"),
            (&["x-forwarded-uri: /a?next=http://b/c"], "", None, "GET - /a next=http://b/c"),
        ];
        for (lines, suffix, from, expected) in rows {
            assert_eq!(original(lines, suffix, *from), *expected, "{lines:?} {suffix}");
        }
    }

    #[test]
    fn rejects_contradictory_headers() {
        #[rustfmt::skip]
        let rows: &[(&[&str], Option<TargetSource>, &str)] = &[
            (&["x-forwarded-uri: /login", "x-original-uri: /free"], None, "or add ?from=forwarded or ?from=original"),
            (&["x-forwarded-uri: /login", "x-original-url: http://h/free"], None, "X-Forwarded-* and X-Original-* differ"),
            (&["x-forwarded-uri: /a", "x-original-uri: /a", "x-forwarded-method: PUT", "x-original-method: GET"], None, "differ"),
            (&["x-original-uri: /login", "x-original-url: http://h/free"], None, "X-Original-URI and X-Original-URL differ"),
            (&["x-original-uri: /login", "x-original-url: http://h/free"], Some(TargetSource::Original), "remove the one that it does not set"),
            // The target is the same, and the host may be the client's choice.
            (&["host: shop", "x-original-uri: /login", "x-original-url: http://free/login"], None, "X-Original-URI and X-Original-URL differ"),
            (&["host: shop", "x-original-uri: /login", "x-original-url: http://free/login"], Some(TargetSource::Original), "X-Original-URI and X-Original-URL differ"),
            (&["host: shop", "x-original-uri: /login", "x-forwarded-uri: /login", "x-forwarded-host: free"], None, "X-Forwarded-* and X-Original-* differ"),
            (&["x-forwarded-uri: /login", "x-forwarded-uri: /free"], None, "x-forwarded-uri was sent twice"),
            (&["x-original-uri: /login"], Some(TargetSource::Forwarded), "X-Forwarded-Uri is missing"),
            (&["x-forwarded-uri: /login"], Some(TargetSource::Original), "X-Original-URI is missing"),
            (&["x-forwarded-uri: /login", "x-original-method: POST"], Some(TargetSource::Forwarded), "X-Forwarded-Method is missing"),
            (&["x-forwarded-uri: /login", "x-forwarded-method: "], Some(TargetSource::Forwarded), "X-Forwarded-Method is missing"),
            (&["x-original-uri: /login", "x-forwarded-method: POST"], Some(TargetSource::Original), "X-Original-Method is missing"),
            (&["x-forwarded-method: POST"], None, "X-Forwarded-Uri is missing"),
            (&["x-forwarded-uri: "], Some(TargetSource::Forwarded), "X-Forwarded-Uri is missing"),
            (&["x-original-method: POST"], None, "X-Original-URI is missing"),
        ];
        for (lines, from, expected) in rows {
            let got = original(lines, "", *from);
            assert!(got.contains(expected), "{lines:?}: {got}");
        }
    }

    #[test]
    fn detects_client_query() {
        let rows = [
            ("deny_status=403", "/login", false),
            ("deny_status=403", "/login?a=1", false),
            ("deny_status=403", "/login?deny_status=403", true),
            ("a=1", "/login?a=1", true),
            ("a=1", "https://shop/login?a=1#top", true),
            ("from=forwarded&a=1", "/login?a=1", false),
        ];
        for (query, target, expected) in rows {
            for name in TARGETS {
                let headers = headers(&[&format!("{name}: {target}")]);
                assert_eq!(is_client_query(query, &headers), expected, "{query} {target}");
            }
        }
    }
}
