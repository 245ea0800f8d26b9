//! Which policies are worth holding against a request.
//!
//! Most policies are few, and are tried one after another. Policies for descriptors can be
//! thousands, one per value, and a request meets one of them. So those that want a
//! domain, or exactly some entries, are filed under a hash of what they want:
//!
//! ```text
//!   domain alone                     -> loose[domain]
//!   [generic_key: api, user]         -> shapes[domain, names] = masks 10, ..
//!                                       filed[domain, names, mask 10, "api"]
//! ```
//!
//! A mask says which of the entries have one value only. A request looks up the masks there
//! are for its names, seldom more than three, and then one place for each. What is
//! found is held against the request like any other policy, so that a hash that two share
//! costs a comparison and nothing else.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::condition::Condition;
use super::definition::Policy;
use super::descriptor::{DescriptorEntry, MAX_ENTRIES};
use super::normalized::NormalizedRequest;
use super::request_field::RequestField;

/// Which entries of a list have one value only, a bit each.
type Mask = u16;
const _: () = assert!(MAX_ENTRIES <= 16);

/// Places in a list of policies, ascending.
pub(super) type PolicyIndices = SmallVec<[u32; 8]>;

/// Where policies are filed.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    hashes: RandomState,
    /// Those that any request may meet, in order.
    unconditional: Vec<u32>,
    /// Those that want one of some domains, by domain.
    by_domain: HashMap<u64, Vec<u32>, RandomState>,
    /// The masks there are, by domain and names.
    masks_by_names: HashMap<u64, SmallVec<[Mask; 4]>, RandomState>,
    /// Those that want exactly some entries, by domain, names, mask and values.
    by_entries: HashMap<u64, SmallVec<[u32; 4]>, RandomState>,
}

impl Index {
    pub(super) fn new(policies: &[Policy]) -> Self {
        let mut index = Index::default();
        for (policy_index, policy) in (0..).zip(policies) {
            index.insert(policy_index, policy);
        }
        index
    }

    fn insert(&mut self, policy_index: u32, policy: &Policy) {
        let mut conditions = policy.matching().iter();
        let domains =
            conditions.clone().find(|condition| *condition.field() == RequestField::Domain);
        let domains = domains.and_then(Condition::exact_values);
        let entries = conditions.find_map(Condition::exact_entries);
        let Some(entries) = entries else {
            let Some(domains) = domains else { return self.unconditional.push(policy_index) };
            for domain in domains {
                let entries_hash = self.hash(Some(domain));
                self.by_domain.entry(entries_hash).or_default().push(policy_index);
            }
            return;
        };
        match domains {
            None => self.insert_entries(policy_index, None, entries),
            Some(domains) => domains
                .iter()
                .for_each(|domain| self.insert_entries(policy_index, Some(domain), entries)),
        }
    }

    fn insert_entries(
        &mut self,
        policy_index: u32,
        domain: Option<&str>,
        entries: &[DescriptorEntry],
    ) {
        let names_hash = self.names_hash(domain, entries.iter().map(DescriptorEntry::name));
        let bits = entries.iter().enumerate();
        let mask = bits.fold(0, |mask, (bit, e)| mask | Mask::from(e.literal().is_some()) << bit);
        let masks = self.masks_by_names.entry(names_hash).or_default();
        if !masks.contains(&mask) {
            masks.push(mask);
        }
        let entries_hash = self.entries_hash(
            names_hash,
            mask,
            entries.iter().filter_map(DescriptorEntry::literal),
        );
        self.by_entries.entry(entries_hash).or_default().push(policy_index);
    }

    /// The policies that a request may meet, if not simply [`Index::unconditional`].
    pub(super) fn candidates(&self, request: &NormalizedRequest<'_>) -> Option<PolicyIndices> {
        if request.domain().is_none() && request.entries().is_empty() {
            return None;
        }
        let mut indices = PolicyIndices::from_slice(&self.unconditional);
        if let Some(by_domain) =
            request.domain().and_then(|d| self.by_domain.get(&self.hash(Some(d))))
        {
            indices.extend_from_slice(by_domain);
        }
        self.find(None, request.entries(), &mut indices);
        if request.domain().is_some() {
            self.find(request.domain(), request.entries(), &mut indices);
        }
        indices.sort_unstable();
        // A policy that names a domain twice is met once.
        indices.dedup();
        Some(indices)
    }

    /// Those that any request may meet, in order.
    pub(super) fn unconditional(&self) -> &[u32] {
        &self.unconditional
    }

    fn find(
        &self,
        domain: Option<&str>,
        found: &[(Cow<'_, str>, Cow<'_, str>)],
        indices: &mut PolicyIndices,
    ) {
        if found.is_empty() || found.len() > MAX_ENTRIES || self.masks_by_names.is_empty() {
            return;
        }
        let names_hash = self.names_hash(domain, found.iter().map(|(name, _)| &**name));
        for &mask in self.masks_by_names.get(&names_hash).into_iter().flatten() {
            let values = found.iter().enumerate().filter(|(bit, _)| mask & (1 << bit) != 0);
            let entries_hash =
                self.entries_hash(names_hash, mask, values.map(|(_, (_, value))| &**value));
            indices.extend_from_slice(
                self.by_entries.get(&entries_hash).map_or(&[], |by_entries| &by_entries[..]),
            );
        }
    }

    fn hash(&self, domain: Option<&str>) -> u64 {
        self.hashes.hash_one(domain)
    }

    fn names_hash<'n>(&self, domain: Option<&str>, names: impl Iterator<Item = &'n str>) -> u64 {
        let mut hasher = self.hashes.build_hasher();
        domain.hash(&mut hasher);
        names.for_each(|name| name.hash(&mut hasher));
        hasher.finish()
    }

    fn entries_hash<'v>(
        &self,
        names_hash: u64,
        mask: Mask,
        values: impl Iterator<Item = &'v str>,
    ) -> u64 {
        let mut hasher = self.hashes.build_hasher();
        (names_hash, mask).hash(&mut hasher);
        values.for_each(|value| value.hash(&mut hasher));
        hasher.finish()
    }
}
