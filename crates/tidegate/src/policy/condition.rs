//! Conditions on a request: what a policy matches, when an override holds, who is exempt.
//!
//! One form for all three. A condition names a part of the request and what it
//! must be; a part the request does not have satisfies nothing.

use std::fmt;
use std::ops::Range;

use ipnet::IpNet;

use super::descriptor;
use super::descriptor::{
    DescriptorEntry, ExactValues, MAX_ENTRIES, Wildcard, Wildcards, all_imply, any_overlap,
};
use super::error::{ConditionError, ConditionErrorKind};
use super::normalized::{NormalizedRequest, NormalizedText};
use super::pattern::{Matched, Pattern};
use super::request_field::{RequestField, Value};
use crate::identity::{Networks, parse_network};
use crate::text::write_escaped;

/// Most values of a condition: beyond it a header or descriptor set by the
/// gateway is the better tool.
pub(crate) const MAX_VALUES: usize = 1024;

/// One condition: a part of the request, and what it must be.
///
/// ```
/// use tidegate::unstable::policy::Condition;
///
/// let office = Condition::new("client_ip".parse()?, &["192.0.2.0/24", "2001:db8::/32"])?;
/// assert_eq!(office.to_string(), "client_ip: [192.0.2.0/24, 2001:db8::/32]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    field: RequestField,
    matcher: Matcher,
    /// Where those of its patterns that need it stand in the set of all policies.
    glob_ids: Range<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Matcher {
    /// `"*"`: anything, as long as it is there; see [`Condition::is_present`].
    Present,
    Values(ExactValues),
    /// Values in which `*` stands for any run of characters.
    Wildcards(Wildcards),
    /// The descriptors, one by one.
    Entries(Box<[DescriptorEntry]>),
    /// The networks as written, and a lookup for requests.
    Networks(Box<[IpNet]>, Networks),
    Patterns(Box<[Pattern]>),
}

impl Condition {
    /// That `field` is one of `values`: networks for `client_ip`, patterns for
    /// `path` and `host`, texts with `*` in them for `domain` and `descriptor:x`, the
    /// values themselves for the others; `*` alone for any.
    ///
    /// # Errors
    /// When a value is not of its kind, or there is none.
    pub fn new(field: RequestField, values: &[impl AsRef<str>]) -> Result<Self, ConditionError> {
        let count = values.len();
        if count == 0 || count > MAX_VALUES {
            let kind =
                if count == 0 { ConditionErrorKind::NoValue } else { ConditionErrorKind::TooMany };
            return Err(ConditionError { index: 0, kind });
        }
        let values = || values.iter().map(AsRef::as_ref);
        if let Some(index) = values().position(|value| value == "*") {
            if count > 1 {
                return Err(ConditionError { index, kind: ConditionErrorKind::StarAmongOthers });
            }
            return Ok(Condition { field, matcher: Matcher::Present, glob_ids: 0..0 });
        }
        let matcher = match field {
            RequestField::ClientIp => {
                let networks = collect(values(), parse_network)?;
                let lookup = Networks::new(&networks);
                Matcher::Networks(networks, lookup)
            }
            RequestField::Path => Matcher::Patterns(collect(values(), |text| {
                Pattern::path(text).map_err(ConditionErrorKind::Pattern)
            })?),
            RequestField::Host => Matcher::Patterns(collect(values(), |text| {
                Pattern::host(text).map_err(ConditionErrorKind::Pattern)
            })?),
            RequestField::Method => Matcher::Values(ExactValues::new(collect(values(), method)?)),
            RequestField::Descriptors => {
                return Err(ConditionError { index: 0, kind: ConditionErrorKind::NotEntries });
            }
            RequestField::Domain | RequestField::Descriptor { .. } => wild(values())?,
            _ => Matcher::Values(ExactValues::new(collect(values(), |text| match text.trim() {
                "" => Err(ConditionErrorKind::Empty),
                text => Ok(text.into()),
            })?)),
        };
        Ok(Condition { field, matcher, glob_ids: 0..0 })
    }

    /// That the descriptors are exactly `entries`, in this order.
    ///
    /// # Errors
    /// When there are none, or more than [`MAX_ENTRIES`].
    pub fn entries(entries: Vec<DescriptorEntry>) -> Result<Self, ConditionError> {
        if !(1..=MAX_ENTRIES).contains(&entries.len()) {
            return Err(ConditionError { index: 0, kind: ConditionErrorKind::EntryCount });
        }
        let matcher = Matcher::Entries(entries.into());
        Ok(Condition { field: RequestField::Descriptors, matcher, glob_ids: 0..0 })
    }

    /// The entries it wants, if it wants exactly those.
    pub(super) fn exact_entries(&self) -> Option<&[DescriptorEntry]> {
        match &self.matcher {
            Matcher::Entries(entries) => Some(entries),
            _ => None,
        }
    }

    /// The values it wants, if nothing else will do.
    pub(super) fn exact_values(&self) -> Option<&[Box<str>]> {
        match &self.matcher {
            Matcher::Values(values) => Some(values.all()),
            _ => None,
        }
    }

    /// The part it is about.
    pub fn field(&self) -> &RequestField {
        &self.field
    }

    /// Adds those of its patterns that need the set to it, and keeps where they are.
    pub(super) fn register_patterns(&mut self, set: &mut Vec<Pattern>) {
        let first = set.len();
        if let Matcher::Patterns(patterns) = &self.matcher {
            set.extend(patterns.iter().filter(|pattern| pattern.needs_glob_set()).cloned());
        }
        self.glob_ids = first..set.len();
    }

    pub(super) fn matches(&self, request: &NormalizedRequest<'_>) -> bool {
        match &self.matcher {
            Matcher::Present => self.is_present(request),
            Matcher::Networks(_, lookup) => {
                request.client_ip().is_some_and(|ip| lookup.contains(ip))
            }
            Matcher::Patterns(patterns) => match self.field {
                RequestField::Host => {
                    request.normalized_host().is_some_and(|host| self.matches_any(patterns, host))
                }
                _ => request.paths().any(|path| self.matches_any(patterns, path)),
            },
            Matcher::Values(values) => match self.field.value(request) {
                Some(Value::Bytes(found)) => values.contains(&found),
                _ => false,
            },
            Matcher::Wildcards(wild) => match self.field.value(request) {
                Some(Value::Bytes(found)) => wild.matches(&found),
                Some(Value::Group(_)) => false,
                None => self.is_present(request) && wild.matches(b""),
            },
            Matcher::Entries(matcher) => descriptor::match_all(matcher, request.entries()),
        }
    }

    /// Whether it holds for every reading of the path, where `is_concurrency` is content with one.
    /// For conditions that spare a request: a reading that the application does not share must
    /// not exempt anybody.
    fn matches_every_reading(&self, request: &NormalizedRequest<'_>) -> bool {
        match (&self.matcher, &self.field) {
            (Matcher::Patterns(patterns), RequestField::Path) => {
                self.matches(request)
                    && request.paths().all(|path| self.matches_any(patterns, path))
            }
            _ => self.matches(request),
        }
    }

    fn matches_any(&self, patterns: &[Pattern], normalized: &NormalizedText<'_>) -> bool {
        patterns.iter().any(|pattern| pattern.matches_directly(&normalized.text))
            || any_within(&normalized.matched, &self.glob_ids)
    }

    /// Whether the request has the part. An empty descriptor is there all the same: a gateway
    /// sends the entry and its client chooses the value, and would choose that one to
    /// escape. (The entries of a list are taken so, too.)
    fn is_present(&self, request: &NormalizedRequest<'_>) -> bool {
        match &self.field {
            RequestField::Descriptor { name, nth } => request.descriptor(name, *nth).is_some(),
            field => field.value(request).is_some(),
        }
    }

    /// What the request has in place of what is wanted, for people.
    pub(super) fn describe_found(&self, request: &NormalizedRequest<'_>) -> String {
        let mut out = String::new();
        if let RequestField::Descriptors = self.field {
            return all_entries(request);
        }
        let bytes = match (&self.field, self.field.value(request)) {
            (RequestField::ClientIp, _) => match request.client_ip() {
                Some(address) => return address.to_string(),
                None => return "none".into(),
            },
            (_, Some(Value::Bytes(bytes))) => bytes,
            _ => return "none".into(),
        };
        // Writing to memory cannot fail.
        let _ = write_escaped(&bytes, &mut out);
        out
    }

    /// Whether whatever satisfies this satisfies `other`, as far as can be told.
    fn implies(&self, other: &Condition) -> bool {
        if self.field != other.field {
            return false;
        }
        match (&self.matcher, &other.matcher) {
            (_, Matcher::Present) => true,
            (Matcher::Values(ours), Matcher::Values(theirs)) => {
                ours.all().iter().all(|v| theirs.contains(v.as_bytes()))
            }
            (Matcher::Wildcards(ours), Matcher::Wildcards(theirs)) => {
                all_imply(ours.all(), theirs.all())
            }
            (Matcher::Values(ours), Matcher::Wildcards(theirs)) => {
                all_imply(&as_wild(ours), theirs.all())
            }
            (Matcher::Entries(ours), Matcher::Entries(theirs)) => descriptor::imply(ours, theirs),
            (Matcher::Networks(ours, _), Matcher::Networks(theirs, _)) => {
                ours.iter().all(|ours| theirs.iter().any(|theirs| theirs.contains(ours)))
            }
            (Matcher::Patterns(ours), Matcher::Patterns(theirs)) => ours.iter().all(|ours| {
                let literal = |p: &Pattern| ours.literal().is_some_and(|text| p.matches(text));
                theirs.iter().any(|theirs| theirs == ours || literal(theirs))
            }),
            _ => false,
        }
    }

    /// Whether nothing can satisfy both, as far as can be told.
    fn excludes(&self, other: &Condition) -> bool {
        if self.field != other.field {
            return false;
        }
        match (&self.matcher, &other.matcher) {
            (Matcher::Values(ours), Matcher::Values(theirs)) => {
                !ours.all().iter().any(|v| theirs.contains(v.as_bytes()))
            }
            (Matcher::Wildcards(ours), Matcher::Wildcards(theirs)) => {
                !any_overlap(ours.all(), theirs.all())
            }
            (Matcher::Values(values), Matcher::Wildcards(wild))
            | (Matcher::Wildcards(wild), Matcher::Values(values)) => {
                !any_overlap(wild.all(), &as_wild(values))
            }
            (Matcher::Entries(ours), Matcher::Entries(theirs)) => descriptor::exclude(ours, theirs),
            (Matcher::Networks(ours, _), Matcher::Networks(theirs, _)) => {
                let overlap = |a: &IpNet, b: &IpNet| a.contains(b) || b.contains(a);
                !ours.iter().any(|a| theirs.iter().any(|b| overlap(a, b)))
            }
            (Matcher::Patterns(ours), Matcher::Patterns(theirs)) => {
                !ours.iter().any(|a| theirs.iter().any(|b| may_overlap(a, b)))
            }
            _ => false,
        }
    }
}

/// Whether some text may match both; only where one has no wildcard can we say no.
fn may_overlap(a: &Pattern, b: &Pattern) -> bool {
    match (a.literal(), b.literal()) {
        (Some(text), _) => b.matches(text),
        (_, Some(text)) => a.matches(text),
        _ => true,
    }
}

/// `matched` is in ascending order.
fn any_within(matched: &Matched, range: &Range<usize>) -> bool {
    let at = matched.partition_point(|&id| id < range.start);
    matched.get(at).is_some_and(|&id| id < range.end)
}

fn collect<'v, T>(
    values: impl Iterator<Item = &'v str>,
    parse: impl Fn(&str) -> Result<T, ConditionErrorKind>,
) -> Result<Box<[T]>, ConditionError> {
    let parsed = values.enumerate();
    parsed.map(|(index, text)| parse(text).map_err(|kind| ConditionError { index, kind })).collect()
}

/// Values as they are, or with `*` in them.
fn wild<'v>(values: impl Iterator<Item = &'v str> + Clone) -> Result<Matcher, ConditionError> {
    if values.clone().any(|value| value.contains('*')) {
        let wild = collect(values, |text| not_empty(text).map(Wildcard::new))?;
        return Ok(Matcher::Wildcards(Wildcards::new(wild)));
    }
    Ok(Matcher::Values(ExactValues::new(collect(values, |text| not_empty(text).map(Box::from))?)))
}

/// A descriptor is compared as it is, blanks and all.
fn not_empty(text: &str) -> Result<&str, ConditionErrorKind> {
    if text.is_empty() { Err(ConditionErrorKind::Empty) } else { Ok(text) }
}

fn as_wild(values: &ExactValues) -> Vec<Wildcard> {
    values.all().iter().map(|value| Wildcard::new(value)).collect()
}

/// All descriptors, for people.
fn all_entries(request: &NormalizedRequest<'_>) -> String {
    if request.entries().is_empty() {
        return "none".into();
    }
    let mut out = String::new();
    for (index, (name, value)) in request.entries().iter().enumerate() {
        let gap = if index == 0 { "" } else { ", " };
        // Writing to memory cannot fail.
        let _ = write_escaped(format!("{gap}{name}={value}").as_bytes(), &mut out);
    }
    out
}

fn method(text: &str) -> Result<Box<str>, ConditionErrorKind> {
    match http::Method::from_bytes(text.as_bytes()) {
        Ok(_) => Ok(text.to_ascii_uppercase().into()),
        Err(_) => Err(ConditionErrorKind::Method),
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: Vec<String> = match &self.matcher {
            Matcher::Present => vec!["\"*\"".into()],
            Matcher::Values(values) => values.all().iter().map(ToString::to_string).collect(),
            Matcher::Wildcards(wild) => {
                wild.all().iter().map(|one| one.as_str().to_owned()).collect()
            }
            Matcher::Entries(entries) => {
                let all: Vec<String> = entries.iter().map(ToString::to_string).collect();
                return write!(f, "{}: [{}]", self.field, all.join(", "));
            }
            Matcher::Networks(networks, _) => networks.iter().map(ToString::to_string).collect(),
            Matcher::Patterns(patterns) => patterns.iter().map(|p| p.as_str().to_owned()).collect(),
        };
        match &*values {
            [value] => write!(f, "{}: {value}", self.field),
            values => write!(f, "{}: [{}]", self.field, values.join(", ")),
        }
    }
}

/// Conditions that belong together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions(Vec<Condition>);

impl Conditions {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each of them, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Condition> {
        self.0.iter()
    }

    pub(super) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Condition> {
        self.0.iter_mut()
    }

    /// Whether all hold; so it is when there are none.
    pub(super) fn all_match(&self, request: &NormalizedRequest<'_>) -> bool {
        self.0.iter().all(|condition| condition.matches(request))
    }

    /// Whether all hold, for every reading of the path.
    pub(super) fn all_match_every_reading(&self, request: &NormalizedRequest<'_>) -> bool {
        self.0.iter().all(|condition| condition.matches_every_reading(request))
    }

    /// The first that exempts a request: it holds for every reading of the path.
    pub(super) fn first_exempting(&self, request: &NormalizedRequest<'_>) -> Option<&Condition> {
        self.0.iter().find(|condition| condition.matches_every_reading(request))
    }

    /// The first that does not hold.
    pub(super) fn first_failing(&self, request: &NormalizedRequest<'_>) -> Option<&Condition> {
        self.0.iter().find(|condition| !condition.matches(request))
    }

    /// Whether whatever satisfies these satisfies `others`, as far as can be told.
    pub(super) fn imply(&self, others: &Conditions) -> bool {
        others.iter().all(|other| self.0.iter().any(|condition| condition.implies(other)))
    }

    /// The first of these that nothing which satisfies `others` can satisfy.
    pub(super) fn contradiction<'c>(
        &'c self,
        others: &'c Conditions,
    ) -> Option<(usize, &'c Condition)> {
        let excluded = |ours: &Condition| others.iter().find(|other| ours.excludes(other));
        self.0.iter().enumerate().find_map(|(index, ours)| Some((index, excluded(ours)?)))
    }
}

impl FromIterator<Condition> for Conditions {
    fn from_iter<I: IntoIterator<Item = Condition>>(conditions: I) -> Self {
        Conditions(conditions.into_iter().collect())
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&all.join(", "))
    }
}
