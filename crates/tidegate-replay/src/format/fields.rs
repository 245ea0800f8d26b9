//! The roles of fields, and the choice of the key.

use std::str::FromStr;

use tidegate::unstable::identity::Identity;
use tidegate::unstable::policy::{Policies, Policy, Template};

use super::line_attributes::LineAttributes;

/// The role of a field of a JSON line or a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    Time,
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
const PLAIN: [(&str, Role); 10] = [
    ("time", Role::Time),
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
    /// Returns the usual names of such fields, the most likely first.
    pub fn usual_names(&self) -> impl Iterator<Item = &'static str> {
        let names = match self {
            Role::Time => {
                "time_us time ts timestamp @timestamp time_iso8601 time_local msec datetime date \
                 start_time StartUTC requestTime time_ms time_ns time_s timestamp_ms timestamp_us \
                 ts_ms ts_us"
            }
            Role::Key => "key",
            Role::Cost => "cost",
            Role::ClientIp => {
                "client_ip remote_addr remote_ip clientip ip client ClientHost ClientAddr \
                 request.client_ip request.remote_ip httpRequest.remoteIp \
                 downstream_remote_address sourceIp client.ip source.ip key"
            }
            Role::Method => {
                "method request_method verb RequestMethod request.method \
                 httpRequest.requestMethod httpMethod http.request.method"
            }
            Role::Uri => {
                "uri request_uri url path RequestPath request.uri httpRequest.requestUrl url.path"
            }
            Role::Host => "http_host host server_name vhost RequestHost request.host",
            Role::Request => "request",
            Role::Path | Role::Query | Role::Header(_) | Role::Descriptor(_) => "",
        };
        names.split_ascii_whitespace()
    }

    /// Returns the header that a field of this name holds: `http_x_api_key`, or Caddy's names.
    pub fn of_header_field(name: &str) -> Option<Role> {
        let header = match name {
            "user_agent" | "agent" => "user-agent".to_string(),
            "referer" | "referrer" => "referer".to_string(),
            "x_forwarded_for" => "x-forwarded-for".to_string(),
            "http_host" => return None,
            _ => match name.strip_prefix("http_") {
                Some(header) => header.replace('_', "-"),
                None => name.strip_prefix("request.headers.")?.to_ascii_lowercase(),
            },
        };
        Some(Role::Header(header.into()))
    }
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
    /// The field of this name.
    Field(Box<str>),
    /// The result of a template.
    Template(Template),
}

impl FromStr for KeyChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("name a field of the line, or write a template such as {client_ip}".into());
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

/// The source of keys.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// The field with the role of a key, or else the client address.
    Usual,
    Field(Box<str>),
    Template(Box<TemplateKey>),
    /// All attributes, packed, for policies.
    Attributes,
}

impl KeySource {
    pub fn new(choice: Option<&KeyChoice>) -> Self {
        match choice {
            None => KeySource::Usual,
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
    fn parses_roles() {
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
        let error = "{clientip}".parse::<KeyChoice>().expect_err("no such part");
        assert!(error.starts_with("`clientip`: unknown part"), "{error}");
        assert!("".parse::<KeyChoice>().is_err());
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
