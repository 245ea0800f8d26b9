//! The fields of a request that keys and conditions use.

use std::borrow::Cow;
use std::fmt;

use http::HeaderName;

use super::normalized_request::NormalizedRequest;
use crate::identity::IpGroup;

/// A field of a request: `client_ip`, `method`, `path`, `host`, `header:x`, `query:x`, `cookie:x`,
/// `domain`, `descriptor:x` or `descriptors`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RequestField {
    /// The client's address; in keys, the network by which it is counted.
    ClientIp,
    /// The method, in capitals.
    Method,
    /// The normalised path.
    Path,
    /// The host in lower case, without port.
    Host,
    /// The first value of a header.
    Header(HeaderName),
    /// The first value of a query parameter, decoded.
    Query(Box<str>),
    /// The first value of a cookie.
    Cookie(Box<str>),
    /// The domain that descriptors belong to.
    Domain,
    /// A descriptor: `descriptor:x` is the first with that name, `descriptor:x#2` the second, and
    /// `descriptor:#2` the second of all descriptors.
    Descriptor {
        /// The name; empty for any.
        name: Box<str>,
        /// Its position among the descriptors with that name, from 1.
        nth: u16,
    },
    /// All descriptors in order, with names and values.
    Descriptors,
}

/// The error of a text that is not a request field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestFieldError {
    /// There is no text.
    Missing,
    /// The field does not exist.
    Unknown,
    /// The name after `header`, `query`, `cookie` or `descriptor` is missing.
    NoName,
    /// The name is not valid.
    BadName,
    /// The field does not take a name.
    UnexpectedName,
}

impl RequestFieldError {
    /// Returns a short description of the error.
    pub const fn problem(self) -> &'static str {
        match self {
            RequestFieldError::Missing => "a request field is missing",
            RequestFieldError::Unknown => "unknown request field",
            RequestFieldError::NoName => "this field needs a name",
            RequestFieldError::BadName => "this cannot be a name",
            RequestFieldError::UnexpectedName => "this field takes no name",
        }
    }

    /// Returns how to fix it.
    pub const fn help(self) -> &'static str {
        match self {
            RequestFieldError::Missing => {
                "write one, such as `client_ip`; a single `|` separates alternatives"
            }
            RequestFieldError::Unknown => {
                "use client_ip, method, path, host, header:NAME, query:NAME, cookie:NAME, domain, descriptor:NAME or descriptors"
            }
            RequestFieldError::NoName => "write for example `header:x-api-key`",
            RequestFieldError::BadName => {
                "use letters, digits and `-`, `_` or `.`, for example `header:x-api-key`"
            }
            RequestFieldError::UnexpectedName => {
                "write `client_ip`, `method`, `path`, `host`, `domain` or `descriptors` alone"
            }
        }
    }
}

impl fmt::Display for RequestFieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.problem(), self.help())
    }
}

impl std::error::Error for RequestFieldError {}

/// The words that a field begins with, for suggestions.
#[cfg(feature = "config")]
pub(crate) const FIELD_NAMES: [&str; 10] = [
    "client_ip",
    "method",
    "path",
    "host",
    "header",
    "query",
    "cookie",
    "domain",
    "descriptor",
    "descriptors",
];

/// The longest name of a header, query parameter, cookie or descriptor.
pub(super) const MAX_NAME_BYTES: usize = 256;

impl std::str::FromStr for RequestField {
    type Err = RequestFieldError;

    fn from_str(text: &str) -> Result<Self, RequestFieldError> {
        let (kind, name) = match text.split_once(':') {
            Some((kind, name)) => (kind, Some(name)),
            None => (text, None),
        };
        let without_name = |field: RequestField| {
            if name.is_none() { Ok(field) } else { Err(RequestFieldError::UnexpectedName) }
        };
        let named = |make: fn(Box<str>) -> RequestField| {
            let name = name.filter(|name| !name.is_empty()).ok_or(RequestFieldError::NoName)?;
            if is_plain_name(name) {
                Ok(make(name.into()))
            } else {
                Err(RequestFieldError::BadName)
            }
        };
        match kind {
            "client_ip" => without_name(RequestField::ClientIp),
            "method" => without_name(RequestField::Method),
            "path" => without_name(RequestField::Path),
            "host" => without_name(RequestField::Host),
            "header" => {
                let name = name.filter(|name| !name.is_empty()).ok_or(RequestFieldError::NoName)?;
                let name = HeaderName::from_bytes(name.as_bytes()).ok();
                let name = name.filter(|name| name.as_str().len() <= MAX_NAME_BYTES);
                name.map(RequestField::Header).ok_or(RequestFieldError::BadName)
            }
            "query" => named(RequestField::Query),
            "cookie" => named(RequestField::Cookie),
            "domain" => without_name(RequestField::Domain),
            "descriptors" => without_name(RequestField::Descriptors),
            "descriptor" => {
                let name = name.filter(|name| !name.is_empty()).ok_or(RequestFieldError::NoName)?;
                RequestField::nth_descriptor(name).ok_or(RequestFieldError::BadName)
            }
            "" => Err(RequestFieldError::Missing),
            _ => Err(RequestFieldError::Unknown),
        }
    }
}

impl fmt::Display for RequestField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestField::ClientIp => f.write_str("client_ip"),
            RequestField::Method => f.write_str("method"),
            RequestField::Path => f.write_str("path"),
            RequestField::Host => f.write_str("host"),
            RequestField::Header(name) => write!(f, "header:{name}"),
            RequestField::Query(name) => write!(f, "query:{name}"),
            RequestField::Cookie(name) => write!(f, "cookie:{name}"),
            RequestField::Domain => f.write_str("domain"),
            RequestField::Descriptor { name, nth } => {
                write!(f, "descriptor:{name}")?;
                // The first needs no number, unless its name ends in `#` and a number.
                let has_ordinal = *nth > 1 || name.is_empty() || ordinal(name).is_some();
                if has_ordinal { write!(f, "#{nth}") } else { Ok(()) }
            }
            RequestField::Descriptors => f.write_str("descriptors"),
        }
    }
}

/// Returns whether a name can be part of a template.
fn is_plain_name(name: &str) -> bool {
    let is_reserved = |c: char| c.is_control() || c.is_whitespace() || "{}|;=&".contains(c);
    (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.contains(is_reserved)
}

/// Splits a text into a name and the number after its last `#`, if there is one.
fn ordinal(text: &str) -> Option<(&str, u16)> {
    let (name, digits) = text.rsplit_once('#')?;
    let is_number = digits.starts_with(|c: char| matches!(c, '1'..='9'));
    let nth = digits.parse().ok().filter(|_| is_number)?;
    Some((name, nth))
}

/// The value of a field in a request.
pub(super) enum FieldValue<'a> {
    Bytes(Cow<'a, [u8]>),
    Group(IpGroup),
}

impl RequestField {
    /// Returns the field that takes the place of a name in other systems. Only names that are too
    /// short or too different to be found by their spelling are known.
    pub fn equivalent(name: &str) -> Option<&'static str> {
        match name {
            "ip" | "client" | "remote_addr" | "remote_ip" | "remote_address" | "addr" => {
                Some("client_ip")
            }
            "uri" | "url" | "route" => Some("path"),
            "user_agent" | "user-agent" => Some("header:user-agent"),
            _ => None,
        }
    }

    /// Returns the descriptor that `x`, `x#2` or `#2` refers to.
    fn nth_descriptor(text: &str) -> Option<RequestField> {
        let (name, nth) = ordinal(text).unwrap_or((text, 1));
        let is_valid = name.is_empty() || is_plain_name(name);
        is_valid.then(|| RequestField::Descriptor { name: name.into(), nth })
    }

    /// Returns the value of this field in a request; `None` if the request does not have it. An
    /// empty value counts as missing: `x-api-key:` identifies nobody.
    pub(super) fn value<'f>(&self, request: &'f NormalizedRequest<'_>) -> Option<FieldValue<'f>> {
        let bytes = match self {
            RequestField::ClientIp => return request.group().map(FieldValue::Group),
            RequestField::Method => request.method()?,
            RequestField::Path => Cow::Borrowed(request.path()?.as_bytes()),
            RequestField::Host => Cow::Borrowed(request.host()?.as_bytes()),
            RequestField::Header(name) => Cow::Borrowed(request.header(name)?),
            RequestField::Query(name) => request.query(name)?,
            RequestField::Cookie(name) => Cow::Borrowed(request.cookie(name)?),
            RequestField::Domain => Cow::Borrowed(request.domain()?.as_bytes()),
            RequestField::Descriptor { name, nth } => {
                Cow::Borrowed(request.descriptor(name, *nth)?)
            }
            RequestField::Descriptors => request.descriptors()?,
        };
        (!bytes.is_empty()).then_some(FieldValue::Bytes(bytes))
    }
}
