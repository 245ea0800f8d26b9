//! A config of envoyproxy/ratelimit as plain values, as its messages
//! (`ratelimit.config.ratelimit.v3.RateLimitConfig`) define it. Files are read into the same
//! values. Empty texts, `false` and 0 mean that a field is missing. Which descriptor a value
//! belongs to depends on its siblings, some of which are preferred to others.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Algorithm, Limit};

use crate::policy::{Condition, MAX_EXEMPT_VALUES, MAX_VALUES, Metadata, RequestField, Wildcard};

/// The limits of one domain.
///
/// ```
/// use tidegate::unstable::config::envoy::{
///     DescriptorConfig, DomainConfig, Options, RateLimitConfig, Unit, convert_domains,
/// };
///
/// let limit = RateLimitConfig { unit: Unit::Day, requests_per_unit: 100, ..Default::default() };
/// let descriptor = DescriptorConfig {
///     key: "to_number".into(),
///     rate_limit: Some(limit),
///     ..DescriptorConfig::default()
/// };
/// let domain = DomainConfig {
///     name: "messaging-limits".into(),
///     domain: "messaging".into(),
///     descriptors: vec![descriptor],
/// };
/// let converted = convert_domains(&[domain], &Options::default())?;
/// assert!(converted.config().policies.get("messaging.to_number").is_some());
/// # Ok::<(), tidegate::unstable::config::envoy::EnvoyErrors>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainConfig {
    /// The name of the file or resource, which errors show.
    pub name: String,
    /// The domain that requests name.
    pub domain: String,
    /// The descriptors at the root of the tree.
    pub descriptors: Vec<DescriptorConfig>,
}

/// A descriptor: an entry of a request, the limit of requests that end with it, and the descriptors
/// that may follow it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescriptorConfig {
    /// The key of the entry.
    pub key: String,
    /// The value of the entry, in which `*` matches any sequence of characters; empty for any value
    /// that no sibling matches.
    pub value: String,
    /// The limit.
    pub rate_limit: Option<RateLimitConfig>,
    /// The descriptors that may follow.
    pub descriptors: Vec<DescriptorConfig>,
    /// Whether the limit is observed and never denies.
    pub shadow_mode: bool,
    /// Whether the limit is a quota: a request is denied only if all its quotas are used up.
    pub quota_mode: bool,
    /// Whether all values that a wildcard matches share one count.
    pub share_threshold: bool,
    /// Whether the metrics of the limit are named by the values of the request.
    pub detailed_metric: bool,
    /// Whether metrics are named by the value of the request at this level.
    pub value_to_metric: bool,
    /// Values for the `dynamic_metadata` of responses.
    pub metadata: Option<Arc<Metadata>>,
}

/// A limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimitConfig {
    /// The unit of time; [`Unit::Unknown`] for an unlimited one.
    pub unit: Unit,
    /// The number of requests per unit of time.
    pub requests_per_unit: u32,
    /// Whether nothing is limited.
    pub unlimited: bool,
    /// The name by which other limits replace this one.
    pub name: String,
    /// The names of the limits that this one replaces.
    pub replaces: Vec<String>,
}

/// A unit of time, with its number in Envoy's messages. Months have 30 days and years 365, as in
/// envoyproxy/ratelimit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Unit {
    /// The unit is missing.
    #[default]
    Unknown = 0,
    /// A second.
    Second = 1,
    /// A minute.
    Minute = 2,
    /// An hour.
    Hour = 3,
    /// A day.
    Day = 4,
    /// 30 days.
    Month = 5,
    /// 365 days.
    Year = 6,
    /// A week.
    Week = 7,
}

impl Unit {
    /// All units of time.
    pub const ALL: [Unit; 7] =
        [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];

    /// Returns the unit with this number in Envoy's messages. 0 is [`Unit::Unknown`].
    pub fn from_number(number: u64) -> Option<Unit> {
        Unit::all_and_unknown().find(|unit| unit.number() == number)
    }

    /// Returns the unit with this name in Envoy's messages, such as `SECOND`.
    pub fn from_message_name(name: &str) -> Option<Unit> {
        Unit::all_and_unknown().find(|unit| unit.message_name() == name)
    }

    /// Returns the unit that is as long as the window of a limit. `concurrency` has no window.
    pub fn of_limit(limit: &Limit) -> Option<Unit> {
        let window = Duration::from_micros(limit.window_us());
        let has_window = limit.algorithm() != Algorithm::Concurrency;
        Unit::ALL.into_iter().find(|unit| has_window && unit.duration() == window)
    }

    fn all_and_unknown() -> impl Iterator<Item = Unit> {
        iter::once(Unit::Unknown).chain(Unit::ALL)
    }

    /// Returns the number in Envoy's messages.
    pub const fn number(self) -> u64 {
        self as u64
    }

    /// Returns the name in Envoy's messages.
    pub fn message_name(self) -> String {
        self.name().to_ascii_uppercase()
    }

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Unknown => "unknown",
            Unit::Second => "second",
            Unit::Minute => "minute",
            Unit::Hour => "hour",
            Unit::Day => "day",
            Unit::Week => "week",
            Unit::Month => "month",
            Unit::Year => "year",
        }
    }

    /// Returns the length; zero for [`Unit::Unknown`].
    pub const fn duration(self) -> Duration {
        const DAY: u64 = 86_400;
        Duration::from_secs(match self {
            Unit::Unknown => 0,
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 3_600,
            Unit::Day => DAY,
            Unit::Week => 7 * DAY,
            Unit::Month => 30 * DAY,
            Unit::Year => 365 * DAY,
        })
    }
}

/// The values that a descriptor matches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueMatch<'c> {
    Any,
    Exact(&'c str),
    /// A text with `*`.
    Wild(&'c str),
}

impl DescriptorConfig {
    pub(super) fn value_match(&self) -> ValueMatch<'_> {
        match &*self.value {
            "" => ValueMatch::Any,
            text if text.contains('*') => ValueMatch::Wild(text),
            text => ValueMatch::Exact(text),
        }
    }

    /// Returns the text by which envoyproxy/ratelimit looks up a descriptor. It is unique at each
    /// level.
    pub(super) fn composite(&self) -> Cow<'_, str> {
        match &*self.value {
            "" => Cow::Borrowed(&self.key),
            value => Cow::Owned([&self.key, "_", value].concat()),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers and names of `envoy.type.v3.RateLimitUnit`.
    #[test]
    fn units_have_the_numbers_of_messages() {
        let names = ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"];
        for (number, name) in (0..).zip(names) {
            let unit = Unit::from_number(number).expect(name);
            assert_eq!(unit.message_name(), name);
            assert_eq!(Unit::from_message_name(name), Some(unit));
            assert_eq!(unit.number(), number);
        }
        assert_eq!(Unit::from_number(8), None);
        assert_eq!(Unit::from_message_name("second"), None);
    }

    #[test]
    fn unit_of_a_limit_is_its_window() {
        let unit = |text: &str| Unit::of_limit(&text.parse().expect(text));
        assert_eq!(unit("5 per 1m"), Some(Unit::Minute));
        assert_eq!(unit("5 per 30d fixed-window"), Some(Unit::Month));
        assert_eq!(unit("5 per 2m"), None);
        assert_eq!(unit("5 concurrent lease 1m"), None);
    }
}
