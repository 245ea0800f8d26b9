//! The roles of fields, and the choice of the key.

use std::fmt;
use std::str::FromStr;

use tidegate::unstable::identity::Identity;
use tidegate::unstable::policy::{Policies, Policy, Template};

use super::line_attributes::LineAttributes;

/// The role of a field of a JSON line or a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    Time,
    /// The date, if the time is a time of day.
    Date,
    Key,
    Cost,
    ClientIp,
    Method,
    Path,
    Query,
    Host,
    /// Path and query.
    Uri,
    /// Method, path and query, as in access logs.
    Request,
    Header(Box<str>),
    Descriptor(Box<str>),
}

/// The roles without a parameter.
const PLAIN: [(&str, Role); 11] = [
    ("time", Role::Time),
    ("date", Role::Date),
    ("key", Role::Key),
    ("cost", Role::Cost),
    ("client_ip", Role::ClientIp),
    ("method", Role::Method),
    ("path", Role::Path),
    ("query", Role::Query),
    ("host", Role::Host),
    ("uri", Role::Uri),
    ("request", Role::Request),
];

impl Role {
    /// Returns the usual names of such fields, the most likely first. They are compared by
    /// [`is_same_name`].
    pub fn usual_names(&self) -> impl Iterator<Item = &'static str> {
        let names = match self {
            // A field named `time` can also be a duration, so it comes after the unambiguous names.
            Role::Time => {
                "time_us timestamp @timestamp ts time_iso8601 time_local time msec datetime date \
                 start_time StartUTC requestTime eventTime EdgeStartTimestamp time_ms time_ns \
                 time_s timestamp_ms timestamp_us ts_ms ts_us"
            }
            Role::Date => "date day",
            Role::Key => "key",
            Role::Cost => "cost",
            Role::ClientIp => {
                "client_ip remote_addr remote_ip clientip ip client ClientHost ClientAddr c_ip \
                 request.client_ip request.remote_ip httpRequest.remoteIp \
                 downstream_remote_address sourceIp sourceIPAddress client.ip source.ip \
                 x_forwarded_for key"
            }
            Role::Method => {
                "method request_method verb RequestMethod request.method cs_method \
                 httpRequest.requestMethod httpMethod http.request.method ClientRequestMethod"
            }
            Role::Uri => {
                "uri request_uri url path RequestPath request.uri cs_uri_stem \
                 httpRequest.requestUrl url.path ClientRequestURI"
            }
            Role::Query => "query query_string cs_uri_query",
            Role::Host => {
                "http_host host server_name vhost RequestHost request.host x_host_header cs(Host) \
                 authority ClientRequestHost"
            }
            Role::Request => "request",
            Role::Path | Role::Header(_) | Role::Descriptor(_) => "",
        };
        names.split_ascii_whitespace()
    }

    /// Returns whether a field of this name usually holds the client's address. A field `key` can
    /// hold anything.
    pub fn is_usual_client(name: &str) -> bool {
        let mut usual = Role::ClientIp.usual_names().filter(|&usual| usual != "key");
        usual.any(|usual| is_same_name(name, usual))
    }

    /// Returns the header that a field of this name holds: `http_x_api_key`, or the names of Caddy
    /// and of W3C logs.
    pub fn of_header_field(name: &str) -> Option<Role> {
        let header = match name {
            "user_agent" | "agent" => "user-agent".to_string(),
            "referer" | "referrer" => "referer".to_string(),
            "x_forwarded_for" | "x-forwarded-for" => "x-forwarded-for".to_string(),
            "http_host" | "cs(Host)" => return None,
            _ => match name.strip_prefix("http_") {
                Some(header) => header.replace('_', "-"),
                None => {
                    let of_w3c = || name.strip_prefix("cs(")?.strip_suffix(')');
                    name.strip_prefix("request.headers.").or_else(of_w3c)?.to_ascii_lowercase()
                }
            },
        };
        Some(Role::Header(header.into()))
    }
}

impl fmt::Display for Role {
    /// Writes the role as `--field` reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Header(name) => write!(f, "header:{name}"),
            Role::Descriptor(name) => write!(f, "descriptor:{name}"),
            plain => {
                let known = PLAIN.iter().find(|(_, role)| role == plain);
                f.write_str(known.map_or("", |(name, _)| name))
            }
        }
    }
}

/// Returns whether two names differ only in case, or in `-` or a space where the other has `_`.
pub fn is_same_name(one: &str, other: &str) -> bool {
    let folded = |name: &str| -> Vec<u8> {
        let fold = |byte: u8| if matches!(byte, b'-' | b' ') { b'_' } else { byte };
        name.bytes().map(|byte| fold(byte.to_ascii_lowercase())).collect()
    };
    one.len() == other.len() && folded(one) == folded(other)
}

/// A role and the name of its field: `time=ts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleField {
    pub role: Role,
    pub name: Box<str>,
}

/// A text that gives no role to any field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "write WHAT=NAME, where WHAT is {}, header:NAME or descriptor:NAME",
    PLAIN.map(|(name, _)| name).join(", ")
)]
pub struct ParseRoleError;

impl FromStr for RoleField {
    type Err = ParseRoleError;

    fn from_str(text: &str) -> Result<Self, ParseRoleError> {
        let (what, name) = text.split_once('=').ok_or(ParseRoleError)?;
        if name.is_empty() {
            return Err(ParseRoleError);
        }
        let named = |text: &str| (!text.is_empty()).then(|| text.to_ascii_lowercase().into());
        let role = match what.split_once(':') {
            Some(("header", header)) => named(header).map(Role::Header),
            Some(("descriptor", "")) => None,
            Some(("descriptor", name)) => Some(Role::Descriptor(name.into())),
            Some(_) => None,
            None => PLAIN.iter().find(|(name, _)| *name == what).map(|(_, role)| role.clone()),
        };
        Ok(RoleField { role: role.ok_or(ParseRoleError)?, name: name.into() })
    }
}

/// The key as given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyChoice {
    /// One key for all lines.
    All,
    /// The field of this name.
    Field(Box<str>),
    /// The result of a template.
    Template(Template),
}

impl FromStr for KeyChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err(
                "write the name of a field, `all`, or a template such as {client_ip}".into()
            );
        }
        if text == "all" {
            return Ok(KeyChoice::All);
        }
        if !text.contains(['{', '}']) {
            return Ok(KeyChoice::Field(text.into()));
        }
        text.parse().map(KeyChoice::Template).map_err(
            |error: tidegate::unstable::policy::TemplateError| {
                let place = text.get(error.span()).unwrap_or_default();
                format!("`{place}`: {error}")
            },
        )
    }
}

/// The key of every line with `--key all`.
pub const ALL: &[u8] = b"all";

/// The source of keys.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// The field with the role of a key, or else the client address.
    Usual,
    /// The key of every line is [`ALL`].
    All,
    Field(Box<str>),
    Template(Box<TemplateKey>),
    /// All attributes, packed, for policies.
    Attributes,
}

impl KeySource {
    pub fn new(choice: Option<&KeyChoice>) -> Self {
        match choice {
            None => KeySource::Usual,
            Some(KeyChoice::All) => KeySource::All,
            Some(KeyChoice::Field(name)) => KeySource::Field(name.clone()),
            Some(KeyChoice::Template(template)) => match TemplateKey::new(template) {
                Some(maker) => KeySource::Template(Box::new(maker)),
                None => KeySource::Usual,
            },
        }
    }

    /// Returns whether lines must provide attributes besides a key, a time and a cost.
    pub fn needs_attributes(&self) -> bool {
        matches!(self, KeySource::Template(_) | KeySource::Attributes)
    }

    /// Returns the key of a line with these attributes.
    pub fn key_of(&self, attributes: &LineAttributes<'_>) -> Vec<u8> {
        match self {
            KeySource::Template(maker) => maker.key(attributes),
            _ => {
                let mut packed = Vec::with_capacity(128);
                attributes.pack(&mut packed);
                packed
            }
        }
    }
}

/// Makes keys as a policy with this template does, by means of such a policy.
#[derive(Clone, Debug)]
pub struct TemplateKey(Policies);

impl TemplateKey {
    fn new(template: &Template) -> Option<Self> {
        // The name is valid, and a single policy cannot conflict with another.
        let policy = Policy::unlimited("replay", template.clone()).ok()?;
        Policies::new(vec![policy], Identity::default()).ok().map(TemplateKey)
    }

    /// Returns the template of the keys.
    pub fn template(&self) -> Option<&Template> {
        self.0.iter().next().map(Policy::key_template)
    }

    fn key(&self, attributes: &LineAttributes<'_>) -> Vec<u8> {
        let selected =
            attributes.with_attributes(self.0.identity(), |attributes| self.0.select(attributes));
        let selected = selected.unwrap_or_default();
        selected.first().map_or_else(Vec::new, |selected| selected.key.as_ref().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_need_a_known_name_and_a_field() {
        for (text, role) in [
            ("time=ts", Some(Role::Time)),
            ("header:X-Api-Key=k", Some(Role::Header("x-api-key".into()))),
            ("descriptor:Tenant=t", Some(Role::Descriptor("Tenant".into()))),
            ("time", None),
            ("time=", None),
            ("header=k", None),
            ("header:=k", None),
            ("planet=k", None),
        ] {
            assert_eq!(text.parse::<RoleField>().ok().map(|field| field.role), role, "{text}");
        }
    }

    #[test]
    fn parses_key_choices() {
        let template = |text: &str| matches!(text.parse(), Ok(KeyChoice::Template(_)));
        assert!(template("{header:x-api-key | client_ip}"));
        assert_eq!("user.id".parse(), Ok(KeyChoice::Field("user.id".into())));
        let error = "{clientip}".parse::<KeyChoice>().expect_err("no such field");
        assert!(error.starts_with("`clientip`: unknown request field"), "{error}");
        assert!("".parse::<KeyChoice>().is_err());
        assert_eq!("all".parse(), Ok(KeyChoice::All));
    }

    #[test]
    fn compares_names_without_case() {
        for (one, other, same) in [
            ("TIMESTAMP", "timestamp", true),
            ("Client IP", "client_ip", true),
            ("c-ip", "c_ip", true),
            ("clientip", "client_ip", false),
            ("ts", "tz", false),
        ] {
            assert_eq!(is_same_name(one, other), same, "{one}, {other}");
        }
    }

    #[test]
    fn templates_make_policy_keys() {
        let attributes = LineAttributes {
            client: Some("2001:db8::1".into()),
            path: Some("/a".into()),
            ..LineAttributes::default()
        };
        for (template, key) in [
            ("{client_ip}", &b"2001:db8::/64"[..]),
            ("{header:x | client_ip}", b"client_ip=2001:db8::/64"),
            ("{client_ip}:{path}", b"13#2001:db8::/64:2#/a"),
            ("{header:x}", b"\0"),
        ] {
            let choice = template.parse().expect(template);
            assert_eq!(KeySource::new(Some(&choice)).key_of(&attributes), key, "{template}");
        }
    }
}
