//! Structured fields (RFC 9651), parsed by the crate `sfv`.
//!
//! A field with a mistake anywhere in it is ignored as a whole, as the RFC requires.

use sfv::{BareItem, Dictionary, Item, List, ListEntry, Parser};

/// Returns the Items of a List, without its inner lists. Empty if the text is malformed.
pub fn list(text: &str) -> Vec<Item> {
    let entries: List = Parser::new(text).parse().unwrap_or_default();
    let item = |entry| match entry {
        ListEntry::Item(item) => Some(item),
        ListEntry::InnerList(_) => None,
    };
    entries.into_iter().filter_map(item).collect()
}

/// Returns a Dictionary. Empty if the text is malformed.
pub fn dictionary(text: &str) -> Dictionary {
    Parser::new(text).parse().unwrap_or_default()
}

/// Returns a member that is a non-negative Integer.
pub fn member(dictionary: &Dictionary, key: &str) -> Option<u64> {
    match dictionary.get(key)? {
        ListEntry::Item(item) => integer(&item.bare_item),
        ListEntry::InnerList(_) => None,
    }
}

/// Returns a parameter that is a non-negative Integer.
pub fn parameter(item: &Item, key: &str) -> Option<u64> {
    integer(item.params.get(key)?)
}

/// Returns a non-negative Integer.
pub fn integer(value: &BareItem) -> Option<u64> {
    u64::try_from(i64::from(value.as_integer()?)).ok()
}
