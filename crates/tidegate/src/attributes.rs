//! The attributes of a request, which policies match and from which keys are rendered.
//!
//! All values are borrowed, as the client sent them. A front sets the attributes that its protocol
//! has. A missing attribute matches nothing, and is a missing part of a key. Policies normalise the
//! attributes (`policy/normalized_request.rs`), not fronts, so no front can omit it.

use std::borrow::Cow;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName};

/// The attributes of one request.
///
/// ```
/// use std::borrow::Cow;
/// use tidegate::unstable::attributes::{Attributes, Headers};
///
/// let headers = [(Cow::from("X-Api-Key"), Cow::from("abc"))];
/// let attributes = Attributes {
///     method: Some("POST"),
///     path: Some("/login"),
///     client_ip: Some("192.0.2.1".parse()?),
///     headers: Headers::Pairs(&headers),
///     ..Attributes::default()
/// };
/// assert_eq!(attributes.headers.get("x-api-key"), Some(&b"abc"[..]));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes<'a> {
    /// The method, as sent.
    pub method: Option<&'a str>,
    /// The path, as sent, without the query.
    pub path: Option<&'a str>,
    /// The query after the `?`, as sent.
    pub query: Option<&'a str>,
    /// The host, as sent, with or without a port.
    pub host: Option<&'a str>,
    /// The client's full address, already resolved through trusted proxies. An IPv4-mapped address
    /// is IPv4.
    pub client_ip: Option<IpAddr>,
    /// The header fields.
    pub headers: Headers<'a>,
    /// The domain of the descriptors, as Envoy's rate limit filter sends it.
    pub domain: Option<&'a str>,
    /// Named values that are not part of HTTP, such as the entries of an Envoy descriptor, in
    /// order. A name may occur more than once.
    pub descriptors: &'a [(Cow<'a, str>, Cow<'a, str>)],
}

/// Header fields, in the form in which a front has them.
#[derive(Clone, Copy, Debug, Default)]
pub enum Headers<'a> {
    /// No header fields.
    #[default]
    None,
    /// The fields of an HTTP request, as hyper has them.
    Map(&'a HeaderMap),
    /// Pairs of names and values in any case and order, as in a JSON body.
    Pairs(&'a [(Cow<'a, str>, Cow<'a, str>)]),
}

impl<'a> Headers<'a> {
    /// Returns the first value of a header field. The name is case-insensitive.
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        match *self {
            Headers::None => None,
            Headers::Map(map) => map.get(name).map(|value| value.as_bytes()),
            Headers::Pairs(pairs) => in_pairs(pairs, name).next(),
        }
    }

    /// Returns all values of a header field, in order. The name is case-insensitive.
    pub fn all<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
        let (map, pairs) = match *self {
            Headers::None => (None, &[][..]),
            Headers::Map(map) => (Some(map), &[][..]),
            Headers::Pairs(pairs) => (None, pairs),
        };
        let mapped = map.into_iter().flat_map(move |map| map.get_all(name).iter());
        mapped.map(|value| value.as_bytes()).chain(in_pairs(pairs, name))
    }

    /// The first value of a header field whose name is already validated.
    pub(crate) fn named(&self, name: &HeaderName) -> Option<&'a [u8]> {
        match *self {
            Headers::Map(map) => map.get(name).map(|value| value.as_bytes()),
            _ => self.get(name.as_str()),
        }
    }
}

fn in_pairs<'a, 'n>(
    pairs: &'a [(Cow<'a, str>, Cow<'a, str>)],
    name: &'n str,
) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
    let named = pairs.iter().filter(move |(key, _)| key.eq_ignore_ascii_case(name));
    named.map(|(_, value)| value.as_bytes())
}

/// The parts of a request target: of a path with an optional query, or of a whole URL.
///
/// ```
/// use tidegate::unstable::attributes::RequestTarget;
///
/// let target = RequestTarget::new("https://shop.example/login?next=/");
/// assert_eq!((target.host, target.path), (Some("shop.example"), "/login"));
/// let target = RequestTarget::new("/login?next=https://shop.example/");
/// assert_eq!((target.host, target.path), (None, "/login"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTarget<'a> {
    /// `None` for a path.
    pub host: Option<&'a str>,
    /// The path. It is `/` if a URL has none.
    pub path: &'a str,
    /// The query after the `?`.
    pub query: Option<&'a str>,
}

impl<'a> RequestTarget<'a> {
    /// Splits a text. A fragment is dropped, as frameworks do before they route.
    pub fn new(text: &'a str) -> Self {
        let (host, rest) = without_origin(text);
        let rest = rest.split_once('#').map_or(rest, |(before, _)| before);
        let (path, query) = match rest.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (rest, None),
        };
        let path = if path.is_empty() && host.is_some() { "/" } else { path };
        RequestTarget { host, path, query }
    }
}

/// Splits a URL into its host, if it begins with a scheme and `://`, and the rest. A path or query
/// may contain `://` too.
fn without_origin(uri: &str) -> (Option<&str>, &str) {
    let Some((scheme, rest)) = uri.split_once("://") else { return (None, uri) };
    if !scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        || !scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    {
        return (None, uri);
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    (Some(&rest[..end]), &rest[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_targets_that_begin_with_a_scheme_are_urls() {
        for (text, host, path, query) in [
            ("/a?b=1#c", None, "/a", Some("b=1")),
            ("http://h:80/a?b", Some("h:80"), "/a", Some("b")),
            ("git+ssh-1.0://h", Some("h"), "/", None),
            ("http://h?b", Some("h"), "/", Some("b")),
            ("http://h/p/https://x", Some("h"), "/p/https://x", None),
            ("/login?next=https://x/y", None, "/login", Some("next=https://x/y")),
            ("/p/https://x", None, "/p/https://x", None),
            ("/://x", None, "/://x", None),
            ("://x", None, "://x", None),
            ("1a://x", None, "1a://x", None),
            ("h:443", None, "h:443", None),
            ("*", None, "*", None),
            ("", None, "", None),
        ] {
            assert_eq!(RequestTarget::new(text), RequestTarget { host, path, query }, "{text}");
        }
    }
}
