//! Finds the policies that may match a request, without trying all of them.
//!
//! Most sets have few policies, which are tried one after another. Descriptors can require
//! hundreds, one per value, of which a request matches one. So policies that require a domain, or
//! an exact list of entries, are indexed by a hash of what they require:
//!
//! ```text
//!   a domain only                    -> by_domain[domain]
//!   [generic_key: api, user]         -> masks_by_names[domain, names] = masks 10, ..
//!                                       by_entries[domain, names, mask 10, "api"]
//! ```
//!
//! A mask has a bit for each entry that must have one exact value. A request looks up the masks for
//! the names of its entries, seldom more than three, and then the policies for each mask. These are
//! compared with the request like all others, so that a hash collision costs one comparison and has
//! no other effect.
//!
//! A set may have many policies, but the number that one request can be compared with is bounded by
//! [`MAX_COMPARED`]. Two kinds of policies count: those without an exact list of entries, and, for
//! each mask of a request's names, those that share all exact values, such as policies with a `*`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::condition::Condition;
use super::definition::Policy;
use super::descriptor::{DescriptorEntry, MAX_ENTRIES};
use super::normalized_request::NormalizedRequest;
use super::request_field::RequestField;

/// The entries of a list that must have one exact value, a bit for each.
type Mask = u16;
const _: () = assert!(MAX_ENTRIES <= 16);

/// The largest number of policies that one request can be compared with.
pub(crate) const MAX_COMPARED: usize = 1024;

/// Indices in a list of policies, ascending.
pub(super) type PolicyIndices = SmallVec<[u32; 8]>;

/// The index of a list of policies.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    hashes: RandomState,
    /// Policies that no hash finds: every request is compared with them. Ascending.
    unindexed: Vec<u32>,
    /// Policies that require a domain, but no exact list of entries, by domain.
    by_domain: HashMap<u64, Vec<u32>, RandomState>,
    /// The masks in use, by domain and names.
    masks_by_names: HashMap<u64, SmallVec<[MaskInUse; 2]>, RandomState>,
    /// Policies that require an exact list of entries, by domain, names, mask and values.
    by_entries: HashMap<u64, SmallVec<[u32; 4]>, RandomState>,
}

/// A mask, with the largest number of policies that share it and all exact values.
#[derive(Clone, Copy, Debug)]
struct MaskInUse {
    mask: Mask,
    most: usize,
}

impl Index {
    /// Creates the index.
    ///
    /// # Errors
    /// Returns the index of the first policy with which a request could be compared with more than
    /// [`MAX_COMPARED`] policies.
    pub(super) fn new(policies: &[Policy]) -> Result<Self, usize> {
        let mut index = Index::default();
        let (mut without_entries, mut most_by_entries) = (0, 0);
        for (policy_index, policy) in (0..).zip(policies) {
            match index.insert(policy_index, policy) {
                None => without_entries += 1,
                Some(compared) => most_by_entries = compared.max(most_by_entries),
            }
            if without_entries + most_by_entries > MAX_COMPARED {
                return Err(policy_index as usize);
            }
        }
        Ok(index)
    }

    /// Inserts a policy. Returns the number of policies that a request with the same names can be
    /// compared with; `None` if the policy does not require an exact list of entries.
    fn insert(&mut self, policy_index: u32, policy: &Policy) -> Option<usize> {
        let mut conditions = policy.matching().iter();
        let domains =
            conditions.clone().find(|condition| *condition.field() == RequestField::Domain);
        let domains = domains.and_then(Condition::exact_values);
        let entries = conditions.find_map(Condition::exact_entries);
        let Some(entries) = entries else {
            match domains {
                None => self.unindexed.push(policy_index),
                Some(domains) => domains.iter().for_each(|domain| {
                    let domain_hash = self.hash(Some(domain));
                    self.by_domain.entry(domain_hash).or_default().push(policy_index);
                }),
            }
            return None;
        };
        match domains {
            None => Some(self.insert_entries(policy_index, None, entries)),
            Some(domains) => domains
                .iter()
                .map(|domain| self.insert_entries(policy_index, Some(domain), entries))
                .max(),
        }
    }

    fn insert_entries(
        &mut self,
        policy_index: u32,
        domain: Option<&str>,
        entries: &[DescriptorEntry],
    ) -> usize {
        let names_hash = self.names_hash(domain, entries.iter().map(DescriptorEntry::name));
        let bits = entries.iter().enumerate();
        let mask = bits.fold(0, |mask, (bit, e)| mask | Mask::from(e.literal().is_some()) << bit);
        let entries_hash = self.entries_hash(
            names_hash,
            mask,
            entries.iter().filter_map(DescriptorEntry::literal),
        );
        let sharing = self.by_entries.entry(entries_hash).or_default();
        sharing.push(policy_index);
        let masks = self.masks_by_names.entry(names_hash).or_default();
        match masks.iter_mut().find(|known| known.mask == mask) {
            Some(known) => known.most = known.most.max(sharing.len()),
            None => masks.push(MaskInUse { mask, most: sharing.len() }),
        }
        masks.iter().map(|known| known.most).sum()
    }

    /// Returns the policies that a request may match, or `None` if these are
    /// [`Index::unindexed`].
    pub(super) fn candidates(&self, request: &NormalizedRequest<'_>) -> Option<PolicyIndices> {
        if request.domain().is_none() && request.entries().is_empty() {
            return None;
        }
        let mut indices = PolicyIndices::from_slice(&self.unindexed);
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
        // A policy that lists a domain twice is found twice.
        indices.dedup();
        Some(indices)
    }

    /// Returns the policies that every request is compared with, in order.
    pub(super) fn unindexed(&self) -> &[u32] {
        &self.unindexed
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
        for &MaskInUse { mask, .. } in self.masks_by_names.get(&names_hash).into_iter().flatten() {
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
