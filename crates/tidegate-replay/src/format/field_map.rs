//! The roles of named fields, and the event that the values of a line make.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate::unstable::identity::parse_address;
use tidegate::unstable::policy::RequestField;

use super::line_attributes::{LineAttributes, text};
use super::roles::{ALL, KeySource, Role, RoleField, is_same_name};
use super::time::Times;
use super::{BadLine, Event, ParseOptions};

/// The values of a line, one for each of [`FieldMap::fields`].
pub type Values<'a> = SmallVec<[Option<Cow<'a, [u8]>>; 8]>;

/// The roles of the fields of a file.
#[derive(Clone, Debug)]
pub struct FieldMap {
    fields: Vec<(Role, Box<str>)>,
    pub times: Times,
    key: KeySource,
    /// Whether the key is the client's address, which is then without the port and earlier hops.
    is_key_client: bool,
}

/// The field that was not found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingField {
    Time,
    Key,
    /// The field that this option names.
    Named(String),
}

impl FieldMap {
    /// Assigns roles to the fields of these names, as given in the options or by their usual names.
    pub fn new(options: &ParseOptions, names: &[impl AsRef<str>]) -> Result<Self, MissingField> {
        let mut fields: Vec<(Role, Box<str>)> = Vec::new();
        for field in &options.fields {
            fields.push((field.role.clone(), field.name.clone()));
        }
        match &options.key {
            KeySource::All => fields.retain(|(role, _)| *role != Role::Key),
            KeySource::Field(name) => {
                fields.retain(|(role, _)| *role != Role::Key);
                fields.push((Role::Key, name.clone()));
            }
            _ => {}
        }
        let usual = |fields: &mut Vec<(Role, Box<str>)>, role: Role| {
            if fields.iter().any(|(known, _)| *known == role) {
                return true;
            }
            let named = |usual| names.iter().find(|name| is_same_name(name.as_ref(), usual));
            let found = role.usual_names().find_map(named);
            fields.extend(found.map(|name| (role, name.as_ref().into())));
            found.is_some()
        };
        if !usual(&mut fields, Role::Time) {
            return Err(MissingField::Time);
        }
        usual(&mut fields, Role::Date);
        usual(&mut fields, Role::Cost);
        if options.key.needs_attributes() {
            for role in
                [Role::ClientIp, Role::Method, Role::Host, Role::Uri, Role::Query, Role::Request]
            {
                usual(&mut fields, role);
            }
            for name in names.iter().map(AsRef::as_ref) {
                let header = Role::of_header_field(name);
                fields.extend(header.map(|role| (role, name.into())));
            }
        } else if !matches!(options.key, KeySource::All) {
            // The client address is the key of a file without a key field.
            if usual(&mut fields, Role::Key) {
                fields.retain(|(role, _)| *role != Role::ClientIp);
            } else if !usual(&mut fields, Role::ClientIp) {
                return Err(MissingField::Key);
            }
        }
        let name = fields.iter().find(|(role, _)| *role == Role::Time).map(|(_, name)| name);
        let times =
            Times::new(options.unit, options.zone.clone()).named(name.map_or("", |name| name));
        let is_client = |name: &str| {
            let given = |field: &RoleField| field.role == Role::ClientIp && *field.name == *name;
            options.fields.iter().any(given) || Role::is_usual_client(name)
        };
        let is_key_client = fields.iter().any(|(role, name)| match role {
            Role::Key => is_client(name),
            _ => *role == Role::ClientIp,
        });
        Ok(FieldMap { fields, times, key: options.key.clone(), is_key_client })
    }

    /// Returns the roles and names of the fields that are needed.
    pub fn fields(&self) -> impl Iterator<Item = (&Role, &str)> {
        self.fields.iter().map(|(role, name)| (role, &**name))
    }

    /// Returns the name of the field with this role.
    pub fn name_of(&self, role: &Role) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == role).map(|(_, name)| &**name)
    }

    /// Converts the values of a line to an event.
    pub fn event<'a>(&mut self, values: &mut Values<'a>) -> Result<Event<'a>, BadLine> {
        let (mut time, mut date, mut key, mut client) = (None, None, None, None);
        let mut cost = 1;
        for (at, ((role, name), value)) in self.fields.iter().zip(values.iter()).enumerate() {
            let Some(value) = value.as_deref() else { continue };
            match role {
                Role::Time => time = Some(value),
                Role::Date => date = Some(value),
                Role::Cost => cost = parse_cost(value).map_err(|why| why.in_field(name, value))?,
                Role::Key => key = Some(at),
                Role::ClientIp => client = Some(at),
                _ => {}
            }
        }
        let time_us = self.times.read_parts(date, time);
        let time_us = time_us.map_err(|why| self.in_time_field(why, time))?;
        let key = match &self.key {
            KeySource::All => Cow::Borrowed(ALL),
            source if source.needs_attributes() => {
                Cow::Owned(source.key_of(&self.attributes(values)))
            }
            _ => {
                let key = key.or(client).and_then(|at| values[at].take());
                let key = key.ok_or_else(|| self.no_key())?;
                if self.is_key_client { client_address(key) } else { key }
            }
        };
        Ok(Event { time_us, key, cost })
    }

    #[cold]
    fn in_time_field(&self, why: BadLine, value: Option<&[u8]>) -> BadLine {
        let name = self.name_of(&Role::Time).unwrap_or_default();
        match value {
            None => BadLine::EmptyField { role: "time", name: name.into() },
            Some(value) => why.in_field(name, value),
        }
    }

    #[cold]
    fn no_key(&self) -> BadLine {
        let name = self.name_of(&Role::Key).or(self.name_of(&Role::ClientIp));
        BadLine::EmptyField { role: "key", name: name.unwrap_or_default().into() }
    }

    fn attributes<'v>(&'v self, values: &'v Values<'_>) -> LineAttributes<'v> {
        let mut attributes = LineAttributes::default();
        for ((role, _), value) in self.fields.iter().zip(values) {
            let Some(value) = value.as_deref() else { continue };
            match role {
                Role::Time | Role::Date | Role::Key => {}
                Role::Cost => attributes.has_cost = true,
                Role::ClientIp => attributes.client = Some(text(last_hop(value))),
                Role::Method => attributes.method = Some(text(value)),
                Role::Path => attributes.path = Some(text(value)),
                Role::Query => attributes.query = Some(text(value)),
                Role::Host => attributes.host = Some(text(value)),
                Role::Uri => attributes.set_uri(value),
                Role::Request => attributes.set_request(value),
                Role::Header(name) => attributes.set_header(&**name, text(value)),
                Role::Descriptor(name) => attributes.set_descriptor(&**name, text(value)),
            }
        }
        attributes
    }
}

/// Returns whether fields of these names provide a part of a request, for templates.
pub fn provide(options: &ParseOptions, names: &[String], part: &RequestField) -> bool {
    let options = ParseOptions { key: KeySource::Attributes, ..options.clone() };
    let Ok(map) = FieldMap::new(&options, names) else { return false };
    let has = |role: &Role| map.name_of(role).is_some();
    match part {
        RequestField::ClientIp => has(&Role::ClientIp),
        RequestField::Method => has(&Role::Method) || has(&Role::Request),
        RequestField::Path => [Role::Path, Role::Uri, Role::Request].iter().any(has),
        RequestField::Host => has(&Role::Host),
        RequestField::Query(_) => [Role::Query, Role::Uri, Role::Request].iter().any(has),
        RequestField::Header(name) => has(&Role::Header(name.as_str().into())),
        _ => false,
    }
}

/// Returns the last address of a list such as X-Forwarded-For, which the nearest proxy appended.
fn last_hop(list: &[u8]) -> &[u8] {
    memchr::memrchr(b',', list).map_or(list, |at| list[at + 1..].trim_ascii())
}

/// Returns the client of a field in a form that is the same for all of its connections: without the
/// port and without earlier hops. Names stay as they are.
pub fn client_address(client: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    let last = last_hop(&client);
    if last.len() == client.len() && memchr::memchr(b':', last).is_none() {
        return client;
    }
    match std::str::from_utf8(last).ok().and_then(parse_address) {
        Some(address) => Cow::Owned(address.to_string().into_bytes()),
        None => client,
    }
}

/// Parses an integral number of units.
pub fn parse_cost(field: &[u8]) -> Result<i64, BadLine> {
    let text = std::str::from_utf8(field).map_err(|_| BadLine::BadCost)?;
    text.parse().map_err(|_| BadLine::BadCost)
}
