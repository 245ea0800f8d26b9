//! Facts about policies that hold for every request: policies without an effect, and keys that
//! requests share.
//!
//! The comparisons of conditions are incomplete, so an answer of `false` or `None` means that
//! nothing is certain.

use tidegate_core::{Algorithm, Limit};

use super::condition::{Condition, EXAMPLE_ADDRESS};
use super::definition::Policy;
use super::request_field::RequestField;
use super::template::{Alternative, Piece};
use super::{Mode, OnStoreFailure};

/// The requests whose key lacks a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharedBy {
    /// Every request that the policy matches.
    All,
    /// The requests that do not have the field.
    Some,
}

/// Returns whether `by` denies whenever `limit` denies, if both are limits of one policy, which
/// charges them together: its window is longer and its count is not larger. `false` if that is not
/// certain, as for algorithms that estimate.
pub(crate) fn is_implied_by(limit: &Limit, by: &Limit) -> bool {
    let (window_us, longer_us) = (limit.window_us(), by.window_us());
    let contains_window = match limit.algorithm() {
        Algorithm::SlidingLog | Algorithm::TokenBucket => longer_us > window_us,
        // A cell expires late by up to a third of the window.
        Algorithm::SlidingWindow => longer_us / 2 >= window_us,
        // Windows are aligned: each lies within one of the other limit if that is a multiple.
        Algorithm::FixedWindow => longer_us > window_us && longer_us.is_multiple_of(window_us),
        _ => false,
    };
    limit.algorithm() == by.algorithm()
        && contains_window
        && by.count() <= limit.count()
        && by.capacity() <= limit.capacity()
}

impl Policy {
    /// Returns a condition of `match` that contradicts another one, if the policy matches nothing.
    pub(crate) fn contradiction(&self) -> Option<&Condition> {
        self.matching().contradiction(self.matching()).map(|(_, condition)| condition)
    }

    /// Returns the condition of `exempt` that holds for every request that the policy matches.
    pub(crate) fn exempts_all_by(&self) -> Option<&Condition> {
        let holds = |exempt: &&Condition| {
            exempt.holds_for_all() || self.matching().iter().any(|ours| ours.implies(exempt))
        };
        self.exempt().iter().find(holds)
    }

    /// Returns whether `other` replaces the policy for every request that the policy matches.
    pub(crate) fn is_always_replaced_by(&self, other: &Policy) -> bool {
        other.replaces().iter().any(|name| **name == *self.name())
            && other.variants().iter().all(|variant| variant.mode() != Mode::Off)
            && other.exempt().is_empty()
            && self.matching().imply(other.matching())
    }

    /// Returns whether `other` denies every request that the policy denies: it matches at least the
    /// same requests, counts them under the same keys, and its limits and its `on_store_failure`
    /// are at least as strict. `other` must not be replaced by another policy.
    pub(crate) fn is_covered_by(&self, other: &Policy) -> bool {
        let is_plain = |policy: &Policy| {
            let is_only_variant = policy.variants().len() == 1;
            is_only_variant && !policy.is_quota() && !policy.has_concurrency()
        };
        let is_stricter = |limit: &Limit| {
            other.limits().iter().any(|theirs| {
                let is_lower =
                    theirs.count() <= limit.count() && theirs.capacity() <= limit.capacity();
                theirs.id() == limit.id() && is_lower
            })
        };
        let failure_strictness = |policy: &Policy| match policy.on_store_failure() {
            OnStoreFailure::Allow => 0,
            OnStoreFailure::Local => 1,
            OnStoreFailure::Deny => 2,
        };
        is_plain(self)
            && is_plain(other)
            && other.mode() == Mode::Enforce
            && self.replaces().is_empty()
            && other.exempt().is_empty()
            && self.key_template() == other.key_template()
            && self.cost() == other.cost()
            && !self.limits().is_empty()
            && self.limits().iter().all(is_stricter)
            && failure_strictness(other) >= failure_strictness(self)
            && self.matching().imply(other.matching())
    }

    /// Returns the number of values in the conditions of `match`: the product of two such numbers
    /// bounds the time of a comparison.
    pub(crate) fn match_size(&self) -> usize {
        1 + self.matching().iter().map(Condition::value_count).sum::<usize>()
    }

    /// Returns the first part of the key that a request can lack, and which requests lack it. Such
    /// requests share one key. `None` if the key contains the client's address, which keeps them
    /// apart.
    pub(crate) fn missing_key_part(&self) -> Option<(String, SharedBy)> {
        let template = self.key_template();
        let fields = || {
            template.pieces.iter().filter_map(|piece| match piece {
                Piece::Field(alternatives) => Some(&**alternatives),
                Piece::Literal(_) => None,
            })
        };
        let presences = |alternatives: &'_ [Alternative]| -> Vec<Presence> {
            alternatives.iter().map(|alternative| self.presence(&alternative.field)).collect()
        };
        let has_address = |alternatives: &[Alternative]| {
            alternatives.iter().any(|one| one.field == RequestField::ClientIp)
        };
        if fields().any(has_address) {
            return None;
        }
        fields().find_map(|alternatives| {
            let found = presences(alternatives);
            if found.contains(&Presence::Always) {
                return None;
            }
            let shared = match found.contains(&Presence::Sometimes) {
                true => SharedBy::Some,
                false => SharedBy::All,
            };
            let names: Vec<String> = alternatives.iter().map(|one| one.field.to_string()).collect();
            Some((names.join(" | "), shared))
        })
    }

    /// Returns the fields of a request that the policy matches, with their values: those of
    /// `match`, the client's address, and a header that the key needs. `None` if no such request is
    /// obvious.
    pub fn example_request(&self) -> Option<Vec<(RequestField, String)>> {
        let example = |one: &Condition| Some((one.field().clone(), one.example()?));
        let mut fields: Vec<(RequestField, String)> =
            self.matching().iter().map(example).collect::<Option<_>>()?;
        let mut add = |field: RequestField, value: &str| {
            if !fields.iter().any(|(known, _)| *known == field) {
                fields.push((field, value.into()));
            }
        };
        add(RequestField::ClientIp, EXAMPLE_ADDRESS);
        if self.missing_key_part().is_some() {
            let is_header = |field: &&RequestField| matches!(field, RequestField::Header(_));
            let headers = self.key_template().fields().filter(is_header);
            headers.for_each(|header| add(header.clone(), "alice"));
        }
        Some(fields)
    }

    /// Returns whether the requests that the policy matches have a field.
    fn presence(&self, field: &RequestField) -> Presence {
        let entries = self.matching().iter().find_map(Condition::exact_entries);
        match (field, entries) {
            // Every front knows them, or the caller of the API chose to leave them out.
            (RequestField::ClientIp | RequestField::Method, _) => Presence::Always,
            (RequestField::Path | RequestField::Host | RequestField::Domain, _) => Presence::Always,
            (RequestField::Descriptors, Some(_)) => Presence::Always,
            (RequestField::Descriptor { name, nth }, Some(entries)) => {
                let is_named = |entry: &&super::descriptor::DescriptorEntry| {
                    name.is_empty() || entry.name() == &**name
                };
                match entries.iter().filter(is_named).count() >= usize::from(*nth) {
                    true => Presence::Always,
                    false => Presence::Never,
                }
            }
            (field, _) if self.matching().iter().any(|one| one.field() == field) => {
                Presence::Always
            }
            (RequestField::Descriptors, _) if self.matches_descriptors() => Presence::Always,
            _ => Presence::Sometimes,
        }
    }

    fn matches_descriptors(&self) -> bool {
        let is_descriptor =
            |one: &Condition| matches!(one.field(), RequestField::Descriptor { .. });
        self.matching().iter().any(is_descriptor)
    }
}

/// Whether the requests that a policy matches have a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Always,
    Sometimes,
    Never,
}
