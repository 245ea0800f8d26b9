//! Conditions on a request: those of a policy's `match` and `exempt`, and of an override's `when`.
//!
//! All three have the same form. A condition names a request field and the values it may have. A
//! field that the request does not have satisfies no condition.

use std::fmt;
use std::ops::Range;

use ipnet::IpNet;

use super::descriptor;
use super::descriptor::{
    DescriptorEntry, ExactValues, MAX_ENTRIES, Wildcard, Wildcards, all_imply, any_overlap,
};
use super::error::{ConditionError, ConditionErrorKind};
use super::normalized_request::{NormalizedRequest, NormalizedText};
use super::pattern::{Matched, Pattern};
use super::request_field::{FieldValue, RequestField};
use crate::identity::{Networks, parse_network};
use crate::text::write_escaped;

/// The largest number of values of a condition. For more, have the gateway set a header or
/// descriptor that groups them.
pub(crate) const MAX_VALUES: usize = 1024;

/// An address that examples use: it is reserved for documentation.
#[cfg(feature = "config")]
pub(super) const EXAMPLE_ADDRESS: &str = "192.0.2.1";

/// The largest number of exact values of an exemption. They are found by a hash, and are
/// never compared with the values of other conditions.
pub(crate) const MAX_EXEMPT_VALUES: usize = 65_536;

/// One condition: a request field, and the values it may have.
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
    /// The range of its patterns in the glob set of all policies. Patterns that are compared
    /// directly are not in the set.
    glob_ids: Range<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Matcher {
    /// `"*"`: any value, as long as the field is present; see [`Condition::is_present`].
    Present,
    Values(ExactValues),
    /// Values in which `*` matches any sequence of characters.
    Wildcards(Wildcards),
    /// The exact list of descriptors.
    Entries(Box<[DescriptorEntry]>),
    /// The networks as written, and the index used for requests.
    Networks(Box<[IpNet]>, Networks),
    Patterns(Box<[Pattern]>),
}

impl Condition {
    /// Creates the condition that `field` is one of `values`: networks for `client_ip`, patterns
    /// for `path` and `host`, values that may contain `*` for `domain` and `descriptor:x`, exact
    /// values for all others. A single `*` matches any value.
    ///
    /// # Errors
    /// Returns an error if `values` is empty or has more than 1024 elements, or if a value is not
    /// valid for the field.
    pub fn new(field: RequestField, values: &[impl AsRef<str>]) -> Result<Self, ConditionError> {
        Condition::with_most(field, values, MAX_VALUES)
    }

    /// Creates a condition for [`Policy::with_exempt`](super::Policy::with_exempt), which may have
    /// 65,536 exact values. Otherwise it is like [`Condition::new`].
    ///
    /// # Errors
    /// Returns an error if `values` is empty or has too many elements, or if a value is not valid
    /// for the field.
    pub fn exempting(
        field: RequestField,
        values: &[impl AsRef<str>],
    ) -> Result<Self, ConditionError> {
        Condition::with_most(field, values, MAX_EXEMPT_VALUES)
    }

    fn with_most(
        field: RequestField,
        values: &[impl AsRef<str>],
        most: usize,
    ) -> Result<Self, ConditionError> {
        let most = match field {
            // Patterns are tried one after another.
            RequestField::ClientIp | RequestField::Path | RequestField::Host => MAX_VALUES,
            _ => most,
        };
        let count = values.len();
        if count == 0 || count > most {
            let too_many = ConditionErrorKind::TooMany(most);
            let kind = if count == 0 { ConditionErrorKind::NoValue } else { too_many };
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
            RequestField::Domain | RequestField::Descriptor { .. } => wildcard_matcher(values())?,
            _ => Matcher::Values(ExactValues::new(collect(values(), |text| match text.trim() {
                "" => Err(ConditionErrorKind::Empty),
                text => Ok(text.into()),
            })?)),
        };
        Ok(Condition { field, matcher, glob_ids: 0..0 })
    }

    /// Creates the condition that the descriptors are exactly `entries`, in this order.
    ///
    /// # Errors
    /// Returns an error if `entries` is empty, or has more than [`MAX_ENTRIES`] elements.
    pub fn entries(entries: Vec<DescriptorEntry>) -> Result<Self, ConditionError> {
        if !(1..=MAX_ENTRIES).contains(&entries.len()) {
            return Err(ConditionError { index: 0, kind: ConditionErrorKind::EntryCount });
        }
        let matcher = Matcher::Entries(entries.into());
        Ok(Condition { field: RequestField::Descriptors, matcher, glob_ids: 0..0 })
    }

    /// Returns the values that are compared as text; empty for a condition of another kind.
    pub(crate) fn text_values(&self) -> Vec<&str> {
        match &self.matcher {
            Matcher::Values(values) => values.all().iter().map(|value| &**value).collect(),
            Matcher::Wildcards(wildcards) => wildcards.all().iter().map(Wildcard::as_str).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the entries, if it requires an exact list of them.
    pub(crate) fn exact_entries(&self) -> Option<&[DescriptorEntry]> {
        match &self.matcher {
            Matcher::Entries(entries) => Some(entries),
            _ => None,
        }
    }

    /// Returns the values, if it requires exact values.
    pub(super) fn exact_values(&self) -> Option<&[Box<str>]> {
        match &self.matcher {
            Matcher::Values(values) => Some(values.all()),
            _ => None,
        }
    }

    /// Returns the number of values, patterns or entries.
    #[cfg(feature = "config")]
    pub(super) fn value_count(&self) -> usize {
        match &self.matcher {
            Matcher::Present => 1,
            Matcher::Values(values) => values.all().len(),
            Matcher::Wildcards(wildcards) => wildcards.all().len(),
            Matcher::Entries(entries) => entries.len(),
            Matcher::Networks(networks, _) => networks.len(),
            Matcher::Patterns(patterns) => patterns.len(),
        }
    }

    /// Returns a value that satisfies the condition; `None` if that is not obvious.
    #[cfg(feature = "config")]
    pub(super) fn example(&self) -> Option<String> {
        match (&self.matcher, &self.field) {
            (Matcher::Present, RequestField::ClientIp) => Some(EXAMPLE_ADDRESS.into()),
            (Matcher::Present, RequestField::Path) => Some("/".into()),
            (Matcher::Present, RequestField::Method) => Some("GET".into()),
            (Matcher::Present, _) => Some("example".into()),
            (Matcher::Values(values), _) => values.all().first().map(ToString::to_string),
            (Matcher::Networks(networks, _), _) => {
                networks.first().map(|net| net.addr().to_string())
            }
            (Matcher::Patterns(patterns), _) => patterns.iter().find_map(Pattern::example),
            (Matcher::Wildcards(_) | Matcher::Entries(_), _) => None,
        }
    }

    /// Returns the request field.
    pub fn field(&self) -> &RequestField {
        &self.field
    }

    /// Adds the patterns that need the glob set to `set`, and stores their range in it.
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
                Some(FieldValue::Bytes(found)) => values.contains(&found),
                _ => false,
            },
            Matcher::Wildcards(wildcards) => match self.field.value(request) {
                Some(FieldValue::Bytes(found)) => wildcards.matches(&found),
                Some(FieldValue::Group(_)) => false,
                None => self.is_present(request) && wildcards.matches(b""),
            },
            Matcher::Entries(matcher) => descriptor::match_all(matcher, request.entries()),
        }
    }

    /// Returns whether it holds for every reading of the path, where `matches` requires only one.
    /// Conditions that exempt a request use it: a reading that the application does not share must
    /// not exempt the request.
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

    /// Returns whether the request has the field. A descriptor with an empty value is present: the
    /// gateway sends the entry and the client chooses the value, so a client could otherwise evade
    /// the condition with an empty value. Entries of an exact list are treated the same way.
    fn is_present(&self, request: &NormalizedRequest<'_>) -> bool {
        match &self.field {
            RequestField::Descriptor { name, nth } => request.descriptor(name, *nth).is_some(),
            field => field.value(request).is_some(),
        }
    }

    /// Returns the value that the request has for this field, for display.
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
            (_, Some(FieldValue::Bytes(bytes))) => bytes,
            _ => return "none".into(),
        };
        // Writing to memory cannot fail.
        let _ = write_escaped(&bytes, &mut out);
        out
    }

    /// Returns whether every request that satisfies this condition also satisfies `other`. `false`
    /// if that is not certain.
    pub(super) fn implies(&self, other: &Condition) -> bool {
        if self.field != other.field {
            return false;
        }
        match (&self.matcher, &other.matcher) {
            (_, Matcher::Present) => true,
            (Matcher::Values(own), Matcher::Values(other)) => {
                own.all().iter().all(|v| other.contains(v.as_bytes()))
            }
            (Matcher::Wildcards(own), Matcher::Wildcards(other)) => {
                all_imply(own.all(), other.all())
            }
            (Matcher::Values(own), Matcher::Wildcards(other)) => {
                all_imply(&as_wild(own), other.all())
            }
            (Matcher::Entries(own), Matcher::Entries(other)) => descriptor::imply(own, other),
            (Matcher::Networks(own, _), Matcher::Networks(other, _)) => {
                own.iter().all(|own| other.iter().any(|other| other.contains(own)))
            }
            (Matcher::Patterns(own), Matcher::Patterns(other)) => own.iter().all(|own| {
                let literal = |p: &Pattern| own.literal().is_some_and(|text| p.matches(text));
                other.iter().any(|other| other == own || other.matches_all() || literal(other))
            }),
            _ => false,
        }
    }

    /// Returns whether it holds for every path or host, or for every client address.
    pub(super) fn holds_for_all(&self) -> bool {
        match &self.matcher {
            Matcher::Patterns(patterns) => patterns.iter().any(Pattern::matches_all),
            Matcher::Networks(networks, _) => {
                let holds_all = |is_v4: bool| {
                    networks
                        .iter()
                        .any(|net| net.prefix_len() == 0 && net.addr().is_ipv4() == is_v4)
                };
                holds_all(true) && holds_all(false)
            }
            _ => false,
        }
    }

    /// Returns whether no request can satisfy both conditions. `false` if that is not certain.
    fn excludes(&self, other: &Condition) -> bool {
        if self.field != other.field {
            return false;
        }
        match (&self.matcher, &other.matcher) {
            (Matcher::Values(own), Matcher::Values(other)) => {
                !own.all().iter().any(|v| other.contains(v.as_bytes()))
            }
            (Matcher::Wildcards(own), Matcher::Wildcards(other)) => {
                !any_overlap(own.all(), other.all())
            }
            (Matcher::Values(values), Matcher::Wildcards(wildcards))
            | (Matcher::Wildcards(wildcards), Matcher::Values(values)) => {
                !any_overlap(wildcards.all(), &as_wild(values))
            }
            (Matcher::Entries(own), Matcher::Entries(other)) => descriptor::exclude(own, other),
            (Matcher::Networks(own, _), Matcher::Networks(other, _)) => {
                let overlap = |a: &IpNet, b: &IpNet| a.contains(b) || b.contains(a);
                !own.iter().any(|a| other.iter().any(|b| overlap(a, b)))
            }
            (Matcher::Patterns(own), Matcher::Patterns(other)) => {
                !own.iter().any(|a| other.iter().any(|b| may_overlap(a, b)))
            }
            _ => false,
        }
    }
}

/// Returns whether some text may match both patterns. `true` if both have wildcards, because their
/// overlap is not computed.
fn may_overlap(a: &Pattern, b: &Pattern) -> bool {
    match (a.literal(), b.literal()) {
        (Some(text), _) => b.matches(text),
        (_, Some(text)) => a.matches(text),
        _ => true,
    }
}

/// Returns whether an element of `matched`, which is ascending, is within the range.
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

/// Returns the matcher of values that may contain `*`.
fn wildcard_matcher<'v>(
    values: impl Iterator<Item = &'v str> + Clone,
) -> Result<Matcher, ConditionError> {
    if values.clone().any(|value| value.contains('*')) {
        let wildcards = collect(values, |text| not_empty(text).map(Wildcard::new))?;
        let wildcards = Wildcards::new(wildcards);
        if wildcards.wildcard_count() > MAX_VALUES {
            return Err(ConditionError { index: 0, kind: ConditionErrorKind::TooManyWildcards });
        }
        return Ok(Matcher::Wildcards(wildcards));
    }
    Ok(Matcher::Values(ExactValues::new(collect(values, |text| not_empty(text).map(Box::from))?)))
}

/// Rejects empty values. Descriptors are compared without trimming.
fn not_empty(text: &str) -> Result<&str, ConditionErrorKind> {
    if text.is_empty() { Err(ConditionErrorKind::Empty) } else { Ok(text) }
}

fn as_wild(values: &ExactValues) -> Vec<Wildcard> {
    values.all().iter().map(|value| Wildcard::new(value)).collect()
}

/// Formats all descriptors of a request for display.
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
            Matcher::Values(_) | Matcher::Wildcards(_) => {
                self.text_values().into_iter().map(str::to_owned).collect()
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

/// A list of conditions. The context defines whether all or any of them must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions(Vec<Condition>);

impl Conditions {
    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the conditions in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Condition> {
        self.0.iter()
    }

    pub(super) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Condition> {
        self.0.iter_mut()
    }

    /// Returns whether all conditions hold; `true` for an empty list.
    pub(super) fn all_match(&self, request: &NormalizedRequest<'_>) -> bool {
        self.0.iter().all(|condition| condition.matches(request))
    }

    /// Returns whether all conditions hold for every reading of the path.
    pub(super) fn all_match_every_reading(&self, request: &NormalizedRequest<'_>) -> bool {
        self.0.iter().all(|condition| condition.matches_every_reading(request))
    }

    /// Returns the first condition that exempts a request: it holds for every reading of the path.
    pub(super) fn first_exempting(&self, request: &NormalizedRequest<'_>) -> Option<&Condition> {
        self.0.iter().find(|condition| condition.matches_every_reading(request))
    }

    /// Returns the first condition that does not hold.
    pub(super) fn first_failing(&self, request: &NormalizedRequest<'_>) -> Option<&Condition> {
        self.0.iter().find(|condition| !condition.matches(request))
    }

    /// Returns whether every request that satisfies these conditions also satisfies `others`.
    /// `false` if that is not certain.
    pub(crate) fn imply(&self, others: &Conditions) -> bool {
        others.iter().all(|other| self.0.iter().any(|condition| condition.implies(other)))
    }

    /// Returns the first of these conditions that contradicts one of `others`: its index, and the
    /// other condition.
    pub(super) fn contradiction<'c>(
        &'c self,
        others: &'c Conditions,
    ) -> Option<(usize, &'c Condition)> {
        let excluded = |own: &Condition| others.iter().find(|other| own.excludes(other));
        self.0.iter().enumerate().find_map(|(index, own)| Some((index, excluded(own)?)))
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
