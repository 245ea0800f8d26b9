//! The values that are preferred to those of a node.

use std::cell::OnceCell;
use std::collections::HashMap;

use super::model::{DescriptorConfig, ValueMatch};
use crate::policy::{Condition, MAX_EXEMPT_VALUES, MAX_VALUES, RequestField, Wildcard};

/// The values of the siblings that have the same key, in order.
#[derive(Default)]
pub(super) struct Siblings<'c> {
    exact: Vec<&'c str>,
    wild: Vec<&'c str>,
    /// The exact values in order of text; empty until a wildcard needs them.
    sorted: OnceCell<Vec<&'c str>>,
}

/// The values that are preferred to those of a node.
pub(super) enum Preferred {
    None,
    /// The condition that holds for them, and their number.
    Values(Condition, usize),
    /// This wildcard matches everything and comes before the node.
    Everything(String),
    /// There are too many; the message.
    TooMany(String),
}

impl<'c> Siblings<'c> {
    /// Groups the descriptors of a level by key.
    pub(super) fn group(
        level: impl Iterator<Item = &'c DescriptorConfig>,
    ) -> HashMap<&'c str, Siblings<'c>> {
        let mut groups: HashMap<&'c str, Siblings<'c>> = HashMap::new();
        for config in level {
            let group = groups.entry(&config.key).or_default();
            match config.value_match() {
                ValueMatch::Any => {}
                ValueMatch::Exact(value) => group.exact.push(value),
                ValueMatch::Wild(value) => group.wild.push(value),
            }
        }
        groups
    }

    /// Returns the values that are preferred to those of a descriptor of the group, as values of
    /// `field`.
    pub(super) fn preferred(&self, config: &DescriptorConfig, field: &RequestField) -> Preferred {
        let (exact, wild) = match config.value_match() {
            ValueMatch::Exact(_) => return Preferred::None,
            _ if self.wild.len() > MAX_VALUES => {
                let message = format!("more than {MAX_VALUES} wildcards have this key");
                return Preferred::TooMany(message);
            }
            ValueMatch::Any => (self.exact.clone(), &self.wild[..]),
            ValueMatch::Wild(own) => {
                let before = self.wild.iter().position(|text| *text == own).unwrap_or_default();
                (self.matched_by(own), &self.wild[..before])
            }
        };
        if let Some(all) = wild.iter().find(|text| text.bytes().all(|byte| byte == b'*')) {
            return Preferred::Everything((*all).to_owned());
        }
        let values = [&exact[..], wild].concat();
        if values.is_empty() {
            return Preferred::None;
        }
        match Condition::exempting(field.clone(), &values) {
            Ok(condition) => Preferred::Values(condition, values.len()),
            Err(_) => {
                let message = format!("more than {MAX_EXEMPT_VALUES} values come before this one");
                Preferred::TooMany(message)
            }
        }
    }

    /// Returns the exact values that a wildcard matches, in order of text.
    fn matched_by(&self, wildcard: &str) -> Vec<&'c str> {
        let sorted = self.sorted.get_or_init(|| {
            let mut sorted = self.exact.clone();
            sorted.sort_unstable();
            sorted
        });
        let pattern = Wildcard::new(wildcard);
        let prefix = wildcard.split('*').next().unwrap_or_default();
        let first = sorted.partition_point(|text| *text < prefix);
        let begins = sorted[first..].iter().take_while(|text| text.starts_with(prefix));
        begins.copied().filter(|text| pattern.matches(text)).collect()
    }
}
