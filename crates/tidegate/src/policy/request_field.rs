//! The parts of a request that keys and conditions name.

use std::borrow::Cow;
use std::fmt;

use http::HeaderName;

use super::normalized::NormalizedRequest;
use crate::identity::IpGroup;

/// A part of a request: `client_ip`, `method`, `path`, `host`, `header:x`,
/// `query:x`, `cookie:x`, `domain`, `descriptor:x` or `descriptors`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RequestField {
    /// The client's address; in keys, the group it is counted in.
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
    /// A descriptor: `descriptor:x` is the first of that name, `descriptor:x#2` the second,
    /// `descriptor:#2` the second of all.
    Descriptor {
        /// Its name; empty for any.
        name: Box<str>,
        /// Which of that name it is, from 1.
        nth: u16,
    },
    /// All descriptors, names and values, in order.
    Descriptors,
}

/// Why a text is no part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestFieldError {
    /// No such part.
    Unknown,
    /// `header`, `query`, `cookie` or `descriptor` without a name.
    NoName,
    /// A name that cannot be one.
    BadName,
    /// A name after a part that takes none.
    NameNotTaken,
}

impl RequestFieldError {
    /// What is wrong, in a few words.
    pub const fn problem(self) -> &'static str {
        match self {
            RequestFieldError::Unknown => "unknown part of a request",
            RequestFieldError::NoName => "this part needs a name",
            RequestFieldError::BadName => "this cannot be a name",
            RequestFieldError::NameNotTaken => "this part takes no name",
        }
    }

    /// What to write instead.
    pub const fn help(self) -> &'static str {
        match self {
            RequestFieldError::Unknown => {
                "use client_ip, method, path, host, header:NAME, query:NAME, cookie:NAME, domain, descriptor:NAME or descriptors"
            }
            RequestFieldError::NoName => "write for example `header:x-api-key`",
            RequestFieldError::BadName => {
                "use letters, digits and `-`, `_` or `.`, for example `header:x-api-key`"
            }
            RequestFieldError::NameNotTaken => {
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

/// The words a part begins with, for suggestions.
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

/// Longest name of a header, parameter, cookie or descriptor.
pub(super) const MAX_NAME_BYTES: usize = 256;

impl std::str::FromStr for RequestField {
    type Err = RequestFieldError;

    fn from_str(text: &str) -> Result<Self, RequestFieldError> {
        let (kind, name) = match text.split_once(':') {
            Some((kind, name)) => (kind, Some(name)),
            None => (text, None),
        };
        let without_name = |field: RequestField| {
            if name.is_none() { Ok(field) } else { Err(RequestFieldError::NameNotTaken) }
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
                // The first needs no number, unless its name ends in what looks like one.
                let has_ordinal = *nth > 1 || name.is_empty() || ordinal(name).is_some();
                if has_ordinal { write!(f, "#{nth}") } else { Ok(()) }
            }
            RequestField::Descriptors => f.write_str("descriptors"),
        }
    }
}

/// Whether a name can stand in a template.
fn is_plain_name(name: &str) -> bool {
    let blank = |c: char| c.is_control() || c.is_whitespace() || "{}|;=&".contains(c);
    (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.contains(blank)
}

/// A name and the number behind its last `#`, if that is one.
fn ordinal(text: &str) -> Option<(&str, u16)> {
    let (name, digits) = text.rsplit_once('#')?;
    let is_number = digits.starts_with(|c: char| matches!(c, '1'..='9'));
    let nth = digits.parse().ok().filter(|_| is_number)?;
    Some((name, nth))
}

/// What a part is in one request.
pub(super) enum Value<'a> {
    Bytes(Cow<'a, [u8]>),
    Group(IpGroup),
}

impl RequestField {
    /// Whether its values may be credentials: API keys, bearer tokens, session cookies.
    pub(super) fn may_be_credential(&self) -> bool {
        matches!(self, RequestField::Header(_) | RequestField::Query(_) | RequestField::Cookie(_))
    }

    /// The descriptor that `x`, `x#2` or `#2` names.
    fn nth_descriptor(text: &str) -> Option<RequestField> {
        let (name, nth) = ordinal(text).unwrap_or((text, 1));
        let is_valid = name.is_empty() || is_plain_name(name);
        is_valid.then(|| RequestField::Descriptor { name: name.into(), nth })
    }

    /// What this part is in a request; `None` if it has none. An empty value
    /// counts as none: `x-api-key:` names nobody.
    pub(super) fn value<'f>(&self, request: &'f NormalizedRequest<'_>) -> Option<Value<'f>> {
        let bytes = match self {
            RequestField::ClientIp => return request.group().map(Value::Group),
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
        (!bytes.is_empty()).then_some(Value::Bytes(bytes))
    }
}
