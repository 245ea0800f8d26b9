//! The roles of named fields, and the event that the values of a line make.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::fields::{KeySource, Role};
use super::line_attributes::{LineAttributes, text};
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
}

/// The role for which no field was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingField {
    Time,
    Key,
}

impl FieldMap {
    /// Assigns roles to the fields of these names, as given in the options or by their usual names.
    pub fn new(options: &ParseOptions, names: &[impl AsRef<str>]) -> Result<Self, MissingField> {
        let mut fields: Vec<(Role, Box<str>)> = Vec::new();
        for field in &options.fields {
            fields.push((field.role.clone(), field.name.clone()));
        }
        if let KeySource::Field(name) = &options.key {
            fields.retain(|(role, _)| *role != Role::Key);
            fields.push((Role::Key, name.clone()));
        }
        let usual = |fields: &mut Vec<(Role, Box<str>)>, role: Role| {
            if fields.iter().any(|(known, _)| *known == role) {
                return true;
            }
            let has = |usual: &&str| names.iter().any(|name| name.as_ref() == *usual);
            let found = role.usual_names().find(has);
            fields.extend(found.map(|name| (role, name.into())));
            found.is_some()
        };
        if !usual(&mut fields, Role::Time) {
            return Err(MissingField::Time);
        }
        usual(&mut fields, Role::Cost);
        if options.key.needs_attributes() {
            for role in [Role::ClientIp, Role::Method, Role::Host, Role::Uri, Role::Request] {
                usual(&mut fields, role);
            }
            for name in names.iter().map(AsRef::as_ref) {
                let header = Role::of_header_field(name);
                fields.extend(header.map(|role| (role, name.into())));
            }
        } else if !usual(&mut fields, Role::Key) {
            // Without a key field, the client address is the key.
            let mut client = Vec::new();
            if !usual(&mut client, Role::ClientIp) {
                return Err(MissingField::Key);
            }
            fields.extend(client.into_iter().map(|(_, name)| (Role::Key, name)));
        }
        let name = fields.iter().find(|(role, _)| *role == Role::Time).map(|(_, name)| name);
        let times =
            Times::new(options.unit, options.zone.clone()).named(name.map_or("", |name| name));
        Ok(FieldMap { fields, times, key: options.key.clone() })
    }

    /// Returns the names of the fields that are needed.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(_, name)| &**name)
    }

    /// Returns the roles of the fields, in the same order.
    pub fn roles(&self) -> impl Iterator<Item = &Role> {
        self.fields.iter().map(|(role, _)| role)
    }

    /// Returns the name of the field with this role.
    pub fn name_of(&self, role: &Role) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == role).map(|(_, name)| &**name)
    }

    /// Converts the values of a line to an event.
    pub fn event<'a>(&mut self, values: &mut Values<'a>) -> Result<Event<'a>, BadLine> {
        let mut time_us = Err(BadLine::NoTimeField);
        let mut cost = 1;
        let mut key = None;
        for ((role, _), value) in self.fields.iter().zip(values.iter_mut()) {
            let Some(given) = value else { continue };
            match role {
                Role::Time => time_us = self.times.read(given),
                Role::Cost => cost = parse_cost(given)?,
                Role::Key => key = value.take(),
                _ => {}
            }
        }
        let time_us = time_us?;
        if self.key.needs_attributes() {
            let attributes = self.attributes(values);
            return Ok(Event { time_us, key: Cow::Owned(self.key.key_of(&attributes)), cost });
        }
        Ok(Event { time_us, key: key.ok_or(BadLine::NoKey)?, cost })
    }

    fn attributes<'v>(&'v self, values: &'v Values<'_>) -> LineAttributes<'v> {
        let mut attributes = LineAttributes::default();
        for ((role, _), value) in self.fields.iter().zip(values) {
            let Some(value) = value.as_deref() else { continue };
            match role {
                Role::Time | Role::Key => {}
                Role::Cost => attributes.has_cost = true,
                Role::ClientIp => attributes.client = Some(text(value)),
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

/// Parses an integral number of units.
pub fn parse_cost(field: &[u8]) -> Result<i64, BadLine> {
    let text = std::str::from_utf8(field).map_err(|_| BadLine::BadCost)?;
    text.parse().map_err(|_| BadLine::BadCost)
}
