//! What the gateway was asked, as it tells us.
//!
//! Gateways have two families of headers for it, and a third way: the path behind our own.
//!
//! | from | path and query | method | host |
//! | --- | --- | --- | --- |
//! | `forwarded` (Caddy, Traefik) | `X-Forwarded-Uri` | `X-Forwarded-Method` | `X-Forwarded-Host` |
//! | `original` (nginx) | `X-Original-URI` or `-URL` | `X-Original-Method` | `Host` |
//! | `path` (Envoy) | what follows `/v1/forward-auth` | the request's own | `Host` |
//!
//! A gateway sets one family and passes the other on as the *client* sent it. So the
//! families are never mixed, and where both name a target, and not the same one,
//! nobody can say which is true: that is refused rather than guessed, unless the
//! gateway's address for us says `?from=...`.

use std::borrow::Cow;

use http::header::HOST;
use http::{HeaderMap, Request};

use super::refusal::Refusal;

/// Which family is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// `X-Forwarded-*`.
    Forwarded,
    /// `X-Original-*`.
    Original,
    /// The path behind ours.
    Path,
}

impl From {
    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "forwarded" => Some(From::Forwarded),
            "original" => Some(From::Original),
            "path" => Some(From::Path),
            _ => None,
        }
    }
}

/// What the gateway was asked.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Original<'a> {
    pub method: Cow<'a, str>,
    pub path: Option<Cow<'a, str>>,
    pub query: Option<Cow<'a, str>>,
    pub host: Option<Cow<'a, str>>,
}

impl<'a> Original<'a> {
    /// What `request` says it was; `behind` is its path behind ours.
    pub fn of<B>(
        request: &'a Request<B>,
        behind: &'a str,
        from: Option<From>,
    ) -> Result<Self, Refusal> {
        let headers = request.headers();
        let from = match from {
            Some(from) => from,
            None if !behind.is_empty() => From::Path,
            None => guess(headers)?,
        };
        let own_method = || Cow::Borrowed(request.method().as_str());
        let own_host = || {
            let authority = request.uri().authority().map(|authority| authority.as_str().into());
            one(headers, HOST.as_str()).map(|host| host.or(authority))
        };
        match from {
            From::Path => Ok(Original {
                method: own_method(),
                path: (!behind.is_empty()).then_some(Cow::Borrowed(behind)),
                query: request.uri().query().filter(|_| !behind.is_empty()).map(Cow::Borrowed),
                host: own_host()?,
            }),
            From::Forwarded => {
                let target = target(one(headers, "x-forwarded-uri")?);
                Ok(Original {
                    method: one(headers, "x-forwarded-method")?.unwrap_or_else(own_method),
                    host: one(headers, "x-forwarded-host")?.or(target.host).or(own_host()?),
                    ..target
                })
            }
            From::Original => {
                let target = target(original_target(headers)?);
                Ok(Original {
                    method: one(headers, "x-original-method")?.unwrap_or_else(own_method),
                    host: target.host.or(own_host()?),
                    ..target
                })
            }
        }
    }
}

fn original_target(headers: &HeaderMap) -> Result<Option<Cow<'_, str>>, Refusal> {
    let (uri, url) = (one(headers, "x-original-uri")?, one(headers, "x-original-url")?);
    match (uri, url) {
        (Some(uri), Some(url)) if !same_target(&uri, &url) => {
            Err(conflict("X-Original-URI", "X-Original-URL"))
        }
        // The URL knows the host too.
        (uri, url) => Ok(url.or(uri)),
    }
}

/// The family that names a target, if only one does or both agree.
fn guess(headers: &HeaderMap) -> Result<From, Refusal> {
    let (forwarded, original) = (one(headers, "x-forwarded-uri")?, original_target(headers)?);
    match (forwarded, original) {
        (None, None) if headers.contains_key("x-forwarded-method") => Ok(From::Forwarded),
        (None, None) if headers.contains_key("x-original-method") => Ok(From::Original),
        (None, None) => Ok(From::Path),
        (Some(_), None) => Ok(From::Forwarded),
        (None, Some(_)) => Ok(From::Original),
        (Some(forwarded), Some(original)) => {
            let methods = (one(headers, "x-forwarded-method")?, one(headers, "x-original-method")?);
            if same_target(&forwarded, &original) && methods.0 == methods.1 {
                Ok(From::Forwarded)
            } else {
                Err(conflict("X-Forwarded-*", "X-Original-*"))
            }
        }
    }
}

fn conflict(one: &str, other: &str) -> Refusal {
    Refusal::bad(format!(
        "{one} and {other} disagree, and one of them may be the client's own: let the gateway clear \
         the family it does not set, or add ?from=forwarded or ?from=original to the address it asks"
    ))
}

/// The value of a header that may come once. What is not UTF-8 is replaced, not
/// dropped: a strange byte in a query must not hide the path before it.
fn one<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<Cow<'a, str>>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else { return Ok(None) };
    if values.any(|value| value != first) {
        let detail = format!("{name} came twice with different values: let the gateway replace it");
        return Err(Refusal::bad(detail));
    }
    Ok(Some(String::from_utf8_lossy(first.as_bytes())))
}

fn same_target(a: &str, b: &str) -> bool {
    without_origin(a).1 == without_origin(b).1
}

/// Scheme and host of a URL, if it has them, and the rest.
fn without_origin(uri: &str) -> (Option<&str>, &str) {
    let Some((scheme, rest)) = uri.split_once("://") else { return (None, uri) };
    if scheme.is_empty() || !scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)) {
        return (None, uri);
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    (Some(&rest[..end]), &rest[end..])
}

fn target(uri: Option<Cow<'_, str>>) -> Original<'_> {
    let Some(uri) = uri else { return Original::default() };
    match uri {
        Cow::Borrowed(uri) => split(uri, Cow::Borrowed),
        Cow::Owned(uri) => split(&uri, |text| Cow::Owned(text.to_owned())),
    }
}

fn split<'u, 'a>(uri: &'u str, own: impl Fn(&'u str) -> Cow<'a, str>) -> Original<'a> {
    let (host, rest) = without_origin(uri);
    let rest = rest.split_once('#').map_or(rest, |(before, _)| before);
    let (path, query) = match rest.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (rest, None),
    };
    let path = if path.is_empty() { "/" } else { path };
    Original {
        method: Cow::default(),
        path: Some(own(path)),
        query: query.map(&own),
        host: host.map(&own),
    }
}
