//! The parts of a request that keys and conditions name.

use std::borrow::Cow;
use std::fmt;

use http::HeaderName;

use super::facts::Facts;
use crate::identity::IpGroup;

/// A part of a request: `client_ip`, `method`, `path`, `host`, `header:x`,
/// `query:x`, `cookie:x`, `domain`, `descriptor:x` or `descriptors`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Part {
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
pub enum PartError {
    /// No such part.
    Unknown,
    /// `header`, `query`, `cookie` or `descriptor` without a name.
    NoName,
    /// A name that cannot be one.
    BadName,
    /// A name after a part that takes none.
    NameNotTaken,
}

impl PartError {
    /// What is wrong, in a few words.
    pub const fn problem(self) -> &'static str {
        match self {
            PartError::Unknown => "unknown part of a request",
            PartError::NoName => "this part needs a name",
            PartError::BadName => "this cannot be a name",
            PartError::NameNotTaken => "this part takes no name",
        }
    }

    /// What to write instead.
    pub const fn help(self) -> &'static str {
        match self {
            PartError::Unknown => {
                "use client_ip, method, path, host, header:NAME, query:NAME, cookie:NAME, domain, descriptor:NAME or descriptors"
            }
            PartError::NoName => "write for example `header:x-api-key`",
            PartError::BadName => {
                "use letters, digits and `-`, `_` or `.`, for example `header:x-api-key`"
            }
            PartError::NameNotTaken => {
                "write `client_ip`, `method`, `path`, `host`, `domain` or `descriptors` alone"
            }
        }
    }
}

impl fmt::Display for PartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.problem(), self.help())
    }
}

impl std::error::Error for PartError {}

/// The words a part begins with, for suggestions.
#[cfg(feature = "config")]
pub(crate) const PART_NAMES: [&str; 10] = [
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

impl std::str::FromStr for Part {
    type Err = PartError;

    fn from_str(text: &str) -> Result<Self, PartError> {
        let (kind, name) = match text.split_once(':') {
            Some((kind, name)) => (kind, Some(name)),
            None => (text, None),
        };
        let alone =
            |part: Part| if name.is_none() { Ok(part) } else { Err(PartError::NameNotTaken) };
        let named = |make: fn(Box<str>) -> Part| {
            let name = name.filter(|name| !name.is_empty()).ok_or(PartError::NoName)?;
            if is_plain_name(name) { Ok(make(name.into())) } else { Err(PartError::BadName) }
        };
        match kind {
            "client_ip" => alone(Part::ClientIp),
            "method" => alone(Part::Method),
            "path" => alone(Part::Path),
            "host" => alone(Part::Host),
            "header" => {
                let name = name.filter(|name| !name.is_empty()).ok_or(PartError::NoName)?;
                let name = HeaderName::from_bytes(name.as_bytes()).ok();
                let name = name.filter(|name| name.as_str().len() <= MAX_NAME_BYTES);
                name.map(Part::Header).ok_or(PartError::BadName)
            }
            "query" => named(Part::Query),
            "cookie" => named(Part::Cookie),
            "domain" => alone(Part::Domain),
            "descriptors" => alone(Part::Descriptors),
            "descriptor" => {
                let name = name.filter(|name| !name.is_empty()).ok_or(PartError::NoName)?;
                Part::nth_descriptor(name).ok_or(PartError::BadName)
            }
            _ => Err(PartError::Unknown),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::ClientIp => f.write_str("client_ip"),
            Part::Method => f.write_str("method"),
            Part::Path => f.write_str("path"),
            Part::Host => f.write_str("host"),
            Part::Header(name) => write!(f, "header:{name}"),
            Part::Query(name) => write!(f, "query:{name}"),
            Part::Cookie(name) => write!(f, "cookie:{name}"),
            Part::Domain => f.write_str("domain"),
            Part::Descriptor { name, nth } => {
                write!(f, "descriptor:{name}")?;
                // The first needs no number, unless its name ends in what looks like one.
                let is_told = *nth > 1 || name.is_empty() || ordinal(name).is_some();
                if is_told { write!(f, "#{nth}") } else { Ok(()) }
            }
            Part::Descriptors => f.write_str("descriptors"),
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

impl Part {
    /// Whether its values may be credentials: API keys, bearer tokens, session cookies.
    pub(super) fn may_be_credential(&self) -> bool {
        matches!(self, Part::Header(_) | Part::Query(_) | Part::Cookie(_))
    }

    /// The descriptor that `x`, `x#2` or `#2` names.
    fn nth_descriptor(text: &str) -> Option<Part> {
        let (name, nth) = ordinal(text).unwrap_or((text, 1));
        let stands = name.is_empty() || is_plain_name(name);
        stands.then(|| Part::Descriptor { name: name.into(), nth })
    }

    /// What this part is in a request; `None` if it has none. An empty value
    /// counts as none: `x-api-key:` names nobody.
    pub(super) fn value<'f>(&self, facts: &'f Facts<'_>) -> Option<Value<'f>> {
        let bytes = match self {
            Part::ClientIp => return facts.group().map(Value::Group),
            Part::Method => facts.method()?,
            Part::Path => Cow::Borrowed(facts.path()?.as_bytes()),
            Part::Host => Cow::Borrowed(facts.host()?.as_bytes()),
            Part::Header(name) => Cow::Borrowed(facts.header(name)?),
            Part::Query(name) => facts.query(name)?,
            Part::Cookie(name) => Cow::Borrowed(facts.cookie(name)?),
            Part::Domain => Cow::Borrowed(facts.domain()?.as_bytes()),
            Part::Descriptor { name, nth } => Cow::Borrowed(facts.descriptor(name, *nth)?),
            Part::Descriptors => facts.descriptors()?,
        };
        (!bytes.is_empty()).then_some(Value::Bytes(bytes))
    }
}
