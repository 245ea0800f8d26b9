//! Descriptors of Envoy: the list form of `descriptors`, which matches exactly these entries in
//! this order, and the place of a limit in a config of envoyproxy/ratelimit.
//!
//! The mapping form of `descriptors` lists names that must be among the entries. An Envoy
//! descriptor is stricter: its entries have an order, a name may occur twice, and (`a`) and (`a`,
//! `b`) are different descriptors with different limits. So a list matches only a descriptor of the
//! same length, entry by entry. An entry without a value matches any value, including an empty one.
//!
//! [`EnvoyDetails`] do not affect decisions: they say where a limit is in the tree of descriptors,
//! how its metrics are named, and which metadata it has.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::BuildHasher as _;
use std::sync::Arc;

use foldhash::fast::FixedState;

use super::condition::MAX_VALUES;
use super::error::ConditionErrorKind;

/// The largest number of entries of a list: a key template has at most as many fields.
pub const MAX_ENTRIES: usize = 16;

/// The longest name of an entry. Envoy Gateway sends the name of a route, which has a namespace, a
/// resource and a host of up to 253 bytes each.
pub(crate) const MAX_ENTRY_NAME_BYTES: usize = 1024;

/// One entry of a descriptor: its name, and the values it may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorEntry {
    name: Box<str>,
    /// The values that match; `None` for any.
    values: Option<Box<[Wildcard]>>,
}

impl DescriptorEntry {
    /// Creates an entry with this name and any value.
    ///
    /// # Errors
    /// Returns an error if the name is empty or longer than 1024 bytes.
    pub fn any(name: &str) -> Result<Self, ConditionErrorKind> {
        if !(1..=MAX_ENTRY_NAME_BYTES).contains(&name.len()) {
            return Err(ConditionErrorKind::EntryName);
        }
        Ok(DescriptorEntry { name: name.into(), values: None })
    }

    /// Creates an entry with this name whose value is one of `values`, in which `*` matches any
    /// sequence of characters.
    ///
    /// # Errors
    /// Returns an error if the name is empty or longer than 1024 bytes, if `values` is empty or has
    /// more than 1024 elements, if a value is empty, or if `*` alone is listed with others.
    pub fn new(name: &str, values: &[impl AsRef<str>]) -> Result<Self, ConditionErrorKind> {
        let values = values.iter().map(AsRef::as_ref);
        match values.len() {
            0 => return Err(ConditionErrorKind::NoValue),
            1..=MAX_VALUES => {}
            _ => return Err(ConditionErrorKind::TooMany(MAX_VALUES)),
        }
        if values.clone().any(str::is_empty) {
            return Err(ConditionErrorKind::Empty);
        }
        let is_any = values.clone().any(|value| value == "*");
        if is_any && values.len() > 1 {
            return Err(ConditionErrorKind::StarAmongOthers);
        }
        let any = DescriptorEntry::any(name)?;
        if is_any {
            return Ok(any);
        }
        Ok(DescriptorEntry { values: Some(values.map(Wildcard::new).collect()), ..any })
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the texts of the values that match; `None` for any.
    #[cfg(feature = "config")]
    pub(crate) fn values(&self) -> Option<impl Iterator<Item = &str>> {
        self.values.as_deref().map(|values| values.iter().map(Wildcard::as_str))
    }

    /// Returns the value, if it matches exactly one.
    pub(super) fn literal(&self) -> Option<&str> {
        match self.values.as_deref() {
            Some([only]) => only.literal(),
            _ => None,
        }
    }

    fn matches(&self, (name, value): &(Cow<'_, str>, Cow<'_, str>)) -> bool {
        let matcher = self.values.as_deref();
        *self.name == **name && matcher.is_none_or(|all| all.iter().any(|one| one.matches(value)))
    }

    fn implies(&self, other: &DescriptorEntry) -> bool {
        self.name == other.name
            && match (&self.values, &other.values) {
                (_, None) => true,
                (None, Some(_)) => false,
                (Some(own), Some(other)) => all_imply(own, other),
            }
    }

    fn may_overlap(&self, other: &DescriptorEntry) -> bool {
        self.name == other.name
            && match (&self.values, &other.values) {
                (Some(own), Some(other)) => any_overlap(own, other),
                _ => true,
            }
    }
}

/// Returns whether a descriptor consists of exactly these entries.
pub(super) fn match_all(
    matcher: &[DescriptorEntry],
    found: &[(Cow<'_, str>, Cow<'_, str>)],
) -> bool {
    matcher.len() == found.len() && matcher.iter().zip(found).all(|(one, found)| one.matches(found))
}

/// Returns whether every descriptor that matches `own` also matches `other`. `false` if that is
/// not certain.
pub(super) fn imply(own: &[DescriptorEntry], other: &[DescriptorEntry]) -> bool {
    own.len() == other.len() && own.iter().zip(other).all(|(own, other)| own.implies(other))
}

/// Returns whether no descriptor can match both lists. `false` if that is not certain.
pub(super) fn exclude(own: &[DescriptorEntry], other: &[DescriptorEntry]) -> bool {
    own.len() != other.len() || !own.iter().zip(other).all(|(own, other)| own.may_overlap(other))
}

impl fmt::Display for DescriptorEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.values.as_deref() {
            None => f.write_str(&self.name),
            Some([only]) => write!(f, "{}: {}", self.name, only.as_str()),
            Some(all) => {
                let all: Vec<&str> = all.iter().map(Wildcard::as_str).collect();
                write!(f, "{}: [{}]", self.name, all.join(", "))
            }
        }
    }
}

/// A text in which each `*` matches any sequence of characters; without `*`, an exact text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wildcard {
    text: Box<str>,
    is_literal: bool,
}

impl Wildcard {
    pub(crate) fn new(text: &str) -> Self {
        Wildcard { text: text.into(), is_literal: !text.contains('*') }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the text, if it is without `*`.
    pub(super) fn literal(&self) -> Option<&str> {
        self.is_literal.then_some(&*self.text)
    }

    pub(crate) fn matches(&self, value: &str) -> bool {
        let Some((first, rest)) = self.text.split_once('*') else { return *self.text == *value };
        let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        let Some(value) = value.strip_prefix(first) else { return false };
        let Some(mut value) = value.strip_suffix(last) else { return false };
        for piece in middle.split('*') {
            let Some((_, after)) = value.split_once(piece) else { return false };
            value = after;
        }
        true
    }

    /// Returns whether every value that this matches is also matched by `other`. `false` if that is
    /// not certain.
    pub(super) fn implies(&self, other: &Wildcard) -> bool {
        self == other || self.literal().is_some_and(|text| other.matches(text))
    }

    /// Returns whether some value may match both. `true` if both have a `*`, because their overlap
    /// is not computed.
    pub(super) fn may_overlap(&self, other: &Wildcard) -> bool {
        match (self.literal(), other.literal()) {
            (Some(text), _) => other.matches(text),
            (_, Some(text)) => self.matches(text),
            _ => true,
        }
    }
}

/// The largest number of values for which a linear scan is the fastest search.
const LINEAR_SCAN_MAX: usize = 16;

/// A set of exact values, with a hash table if there are many. Copies share the values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExactValues {
    all: Arc<[Box<str>]>,
    /// Indices of `all`, each at the first free slot from that of its hash on; empty if a linear
    /// scan is used. The number of slots is a power of two, and at least half of them are free.
    table: Arc<[u32]>,
}

/// A slot of a table without an index.
const FREE: u32 = u32::MAX;

impl ExactValues {
    pub(super) fn new(all: Box<[Box<str>]>) -> Self {
        let is_small = all.len() <= LINEAR_SCAN_MAX;
        let slots = if is_small { 0 } else { (all.len() * 2).next_power_of_two() };
        let mut table = vec![FREE; slots];
        if !is_small {
            for (index, value) in (0..).zip(&all) {
                let mut slot = first_slot(value.as_bytes(), slots);
                while table[slot] != FREE {
                    slot = (slot + 1) & (slots - 1);
                }
                table[slot] = index;
            }
        }
        ExactValues { table: table.into(), all: all.into() }
    }

    pub(super) fn all(&self) -> &[Box<str>] {
        &self.all
    }

    pub(super) fn contains(&self, value: &[u8]) -> bool {
        let slots = self.table.len();
        if slots == 0 {
            return self.all.iter().any(|one| one.as_bytes() == value);
        }
        let mut slot = first_slot(value, slots);
        while self.table[slot] != FREE {
            if self.all[self.table[slot] as usize].as_bytes() == value {
                return true;
            }
            slot = (slot + 1) & (slots - 1);
        }
        false
    }
}

/// Returns the slot where the search for a value begins. The hash is the same in every process, so
/// that equal sets have equal tables; the values come from a config, not from requests.
fn first_slot(value: &[u8], slots: usize) -> usize {
    let slot = FixedState::default().hash_one(value) & (slots as u64 - 1);
    usize::try_from(slot).unwrap_or_default()
}

/// A set of values in which `*` matches any sequence of characters. Copies share the values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wildcards {
    all: Arc<[Wildcard]>,
    /// The values without `*`. Those with it are in `wildcards`.
    exact: ExactValues,
    wildcards: Arc<[Wildcard]>,
}

impl Wildcards {
    pub(super) fn new(all: Box<[Wildcard]>) -> Self {
        let exact = all.iter().filter_map(Wildcard::literal).map(Box::from);
        let wildcards = all.iter().filter(|one| !one.is_literal).cloned();
        let (exact, wildcards) = (ExactValues::new(exact.collect()), wildcards.collect());
        Wildcards { exact, wildcards, all: all.into() }
    }

    pub(super) fn all(&self) -> &[Wildcard] {
        &self.all
    }

    /// Returns the number of values with `*`.
    pub(super) fn wildcard_count(&self) -> usize {
        self.wildcards.len()
    }

    /// Returns whether a value matches. Only text matches values with `*`.
    pub(super) fn matches(&self, value: &[u8]) -> bool {
        let text = || std::str::from_utf8(value).ok();
        self.exact.contains(value)
            || text().is_some_and(|value| self.wildcards.iter().any(|one| one.matches(value)))
    }
}

/// Returns whether each of `own` implies one of `other`.
pub(super) fn all_imply(own: &[Wildcard], other: &[Wildcard]) -> bool {
    own.iter().all(|own| other.iter().any(|other| own.implies(other)))
}

/// Returns whether some value may match one of each.
pub(super) fn any_overlap(own: &[Wildcard], other: &[Wildcard]) -> bool {
    own.iter().any(|own| other.iter().any(|other| own.may_overlap(other)))
}

/// The place of a limit in an envoyproxy/ratelimit config, and its settings for metrics and
/// metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyDetails {
    /// The domain.
    pub domain: Arc<str>,
    /// The descriptors from the root of the tree to the limit.
    pub levels: Box<[Arc<EnvoyLevel>]>,
    /// The `name` of the limit; empty if it has none. The policy may have another name.
    pub name: Box<str>,
    /// Whether metrics are named by the values of the request (`detailed_metric`).
    pub detailed_metric: bool,
    /// The `metadata` of the descriptor that has the limit.
    pub metadata: Option<Arc<Metadata>>,
}

impl EnvoyDetails {
    /// Returns the path to the limit, as envoyproxy/ratelimit writes it: `domain.key_value.key`.
    pub fn path(&self) -> String {
        let mut path = self.domain.to_string();
        for level in &self.levels {
            path.push('.');
            path.push_str(&level.key);
            if !level.value.is_empty() {
                path.push('_');
                path.push_str(&level.value);
            }
        }
        path
    }
}

/// One descriptor on the path to a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyLevel {
    /// The key.
    pub key: Box<str>,
    /// The value, which may contain `*`; empty for any value.
    pub value: Box<str>,
    /// Whether metrics are named by the value of the request at this level (`value_to_metric`).
    pub value_to_metric: bool,
    /// Whether all values that the wildcard matches share one count (`share_threshold`).
    pub share_threshold: bool,
}

/// Named values, in order of name: a `google.protobuf.Struct`.
pub type Metadata = BTreeMap<String, MetadataValue>;

/// A value of [`Metadata`].
#[derive(Clone, Debug)]
pub enum MetadataValue {
    /// Null.
    Null,
    /// A boolean.
    Bool(bool),
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
    /// A list of values.
    List(Vec<MetadataValue>),
    /// Named values.
    Map(Metadata),
}

/// Numbers are equal if their bits are, so that every value equals itself.
impl PartialEq for MetadataValue {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (MetadataValue::Null, MetadataValue::Null) => true,
            (MetadataValue::Bool(ours), MetadataValue::Bool(theirs)) => ours == theirs,
            (MetadataValue::Number(ours), MetadataValue::Number(theirs)) => {
                ours.to_bits() == theirs.to_bits()
            }
            (MetadataValue::Text(ours), MetadataValue::Text(theirs)) => ours == theirs,
            (MetadataValue::List(ours), MetadataValue::List(theirs)) => ours == theirs,
            (MetadataValue::Map(ours), MetadataValue::Map(theirs)) => ours == theirs,
            _ => false,
        }
    }
}

impl Eq for MetadataValue {}

#[cfg(test)]
mod tests {
    use super::{ExactValues, Wildcard, Wildcards};

    #[test]
    fn star_matches_any_run_of_characters() {
        let rows = [
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("*", "", true),
            ("*", "x", true),
            ("a*", "a", true),
            ("a*", "ba", false),
            ("*a", "ba", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("/api/*/action", "/api/1/action", true),
            ("/api/*/action", "/api/action", false),
            ("/api/*/r/*/end", "/api/v1/r/2/end", true),
            ("/api/*/r/*/end", "/api/v1/x/2/end", false),
            ("a**b", "ab", true),
            ("a*b*c", "abbcbc", true),
            ("a*bc*c", "abcc", true),
            ("a*bc*c", "abc", false),
            ("\u{e9}*", "\u{e9}t\u{e9}", true),
        ];
        for (pattern, value, expected) in rows {
            assert_eq!(Wildcard::new(pattern).matches(value), expected, "{pattern} {value}");
        }
    }

    #[test]
    fn lookup_of_many_values_agrees_with_a_scan() {
        for count in [0, 1, super::LINEAR_SCAN_MAX, super::LINEAR_SCAN_MAX + 1, 1000] {
            let text = |number: usize| format!("w{number}");
            let exact =
                ExactValues::new((0..count).map(|number| text(number * 7 % 1009).into()).collect());
            for number in 0..1009 {
                let is_present = exact.all().iter().any(|word| **word == *text(number));
                assert_eq!(exact.contains(text(number).as_bytes()), is_present, "{count} {number}");
            }
            let all = exact.all().iter().map(|word| Wildcard::new(word));
            let mixed = Wildcards::new(all.chain([Wildcard::new("x*")]).collect());
            assert!(mixed.matches(b"xyz") && !mixed.matches(b"wx") && !mixed.matches(b"w7\xff"));
            assert_eq!(mixed.matches(b"w7"), exact.contains(b"w7"));
        }
    }
}
