//! The list form of `descriptors`: exactly these entries, in this order.
//!
//! A map of names says what must be among the descriptors. An Envoy descriptor is more than
//! that: its entries have an order, a name may come twice, and (`a`), (`a`, `b`) are
//! two questions with two limits. So a list matches only a descriptor of its own
//! length, entry by entry. An entry without a value takes any, an empty one too.

use std::borrow::Cow;
use std::fmt;

use super::condition::MAX_VALUES;
use super::condition_error::ConditionErrorKind;
use super::request_field::MAX_NAME_BYTES;
use super::wildcard::{Wildcard, all_imply, any_overlap};

/// Most entries of a list: a key can name as many.
pub const MAX_ENTRIES: usize = 16;

/// One entry of a descriptor: its name, and what its value must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorEntry {
    name: Box<str>,
    /// One of these; `None` for any.
    values: Option<Box<[Wildcard]>>,
}

impl DescriptorEntry {
    /// An entry of this name with any value.
    ///
    /// # Errors
    /// When the name is empty or longer than 256 bytes.
    pub fn any(name: &str) -> Result<Self, ConditionErrorKind> {
        if !(1..=MAX_NAME_BYTES).contains(&name.len()) {
            return Err(ConditionErrorKind::EntryName);
        }
        Ok(DescriptorEntry { name: name.into(), values: None })
    }

    /// An entry of this name whose value is one of `values`; `*` in one stands for any
    /// run of characters.
    ///
    /// # Errors
    /// As [`DescriptorEntry::any`]; and when there are no values, too many, or an empty one.
    pub fn new(name: &str, values: &[impl AsRef<str>]) -> Result<Self, ConditionErrorKind> {
        let values = values.iter().map(AsRef::as_ref);
        match values.len() {
            0 => return Err(ConditionErrorKind::NoValue),
            1..=MAX_VALUES => {}
            _ => return Err(ConditionErrorKind::TooMany),
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

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The one value it takes, if it takes no other.
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
                (Some(ours), Some(theirs)) => all_imply(ours, theirs),
            }
    }

    fn may_overlap(&self, other: &DescriptorEntry) -> bool {
        self.name == other.name
            && match (&self.values, &other.values) {
                (Some(ours), Some(theirs)) => any_overlap(ours, theirs),
                _ => true,
            }
    }
}

/// Whether a descriptor is exactly these entries.
pub(super) fn match_all(
    matcher: &[DescriptorEntry],
    found: &[(Cow<'_, str>, Cow<'_, str>)],
) -> bool {
    matcher.len() == found.len() && matcher.iter().zip(found).all(|(one, found)| one.matches(found))
}

/// Whether whatever is `ours` is `theirs` too, as far as can be told.
pub(super) fn imply(ours: &[DescriptorEntry], theirs: &[DescriptorEntry]) -> bool {
    ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(ours, theirs)| ours.implies(theirs))
}

/// Whether nothing is both, as far as can be told.
pub(super) fn exclude(ours: &[DescriptorEntry], theirs: &[DescriptorEntry]) -> bool {
    ours.len() != theirs.len()
        || !ours.iter().zip(theirs).all(|(ours, theirs)| ours.may_overlap(theirs))
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
