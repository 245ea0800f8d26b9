//! What a front knows of a request: the facts policies match on and keys are made of.
//!
//! Everything is borrowed. A front fills in what its protocol has and leaves the
//! rest out; a fact that is left out matches nothing and is a missing part of a
//! key. Nothing is cleaned here: policies normalise paths and hosts themselves,
//! so that no front can forget to.

use std::borrow::Cow;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName};

/// The facts of one request.
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
    /// The method as sent.
    pub method: Option<&'a str>,
    /// The path as sent, without the query.
    pub path: Option<&'a str>,
    /// What follows the `?`, as sent.
    pub query: Option<&'a str>,
    /// The host as sent, perhaps with a port.
    pub host: Option<&'a str>,
    /// The client's address, already resolved through trusted proxies; the full
    /// address, mapped IPv4 unmapped.
    pub client_ip: Option<IpAddr>,
    /// The headers.
    pub headers: Headers<'a>,
    /// Whose descriptors they are: the domain, as Envoy's rate limit filter names it.
    pub domain: Option<&'a str>,
    /// Named values that are no part of HTTP, such as the entries of an Envoy
    /// descriptor, in order. A name may come more than once.
    pub descriptors: &'a [(Cow<'a, str>, Cow<'a, str>)],
}

/// Headers, from wherever a front has them.
#[derive(Clone, Copy, Debug, Default)]
pub enum Headers<'a> {
    /// There are none.
    #[default]
    None,
    /// As hyper and its friends hold them.
    Map(&'a HeaderMap),
    /// Names and values in any case and order, as a JSON body gives them.
    Pairs(&'a [(Cow<'a, str>, Cow<'a, str>)]),
}

impl<'a> Headers<'a> {
    /// The first value of a header; case does not matter.
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        match *self {
            Headers::None => None,
            Headers::Map(map) => map.get(name).map(|value| value.as_bytes()),
            Headers::Pairs(pairs) => in_pairs(pairs, name).next(),
        }
    }

    /// Every value of a header, in order; case does not matter.
    pub fn all<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
        let (map, pairs) = match *self {
            Headers::None => (None, &[][..]),
            Headers::Map(map) => (Some(map), &[][..]),
            Headers::Pairs(pairs) => (None, pairs),
        };
        let mapped = map.into_iter().flat_map(move |map| map.get_all(name).iter());
        mapped.map(|value| value.as_bytes()).chain(in_pairs(pairs, name))
    }

    /// As [`Headers::get`], for a name that needs no more checking.
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
