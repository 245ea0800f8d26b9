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
use super::entry::{Entry, MAX_ENTRIES};
use super::facts::Facts;
use super::part::Part;
use super::rule::Policy;

/// Which entries of a list have one value only, a bit each.
type Mask = u16;
const _: () = assert!(MAX_ENTRIES <= 16);

/// Places in a list of policies, ascending.
pub(super) type Places = SmallVec<[u32; 8]>;

/// Where policies are filed.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    hashes: RandomState,
    /// Those that any request may meet, in order.
    anyone: Vec<u32>,
    /// Those that want one of some domains, by domain.
    loose: HashMap<u64, Vec<u32>, RandomState>,
    /// The masks there are, by domain and names.
    shapes: HashMap<u64, SmallVec<[Mask; 4]>, RandomState>,
    /// Those that want exactly some entries, by domain, names, mask and values.
    filed: HashMap<u64, SmallVec<[u32; 4]>, RandomState>,
}

impl Index {
    pub(super) fn new(policies: &[Policy]) -> Self {
        let mut index = Index::default();
        for (place, policy) in (0..).zip(policies) {
            index.file(place, policy);
        }
        index
    }

    fn file(&mut self, place: u32, policy: &Policy) {
        let mut conditions = policy.matching().iter();
        let domains = conditions.clone().find(|condition| *condition.part() == Part::Domain);
        let domains = domains.and_then(Condition::wanted_values);
        let entries = conditions.find_map(Condition::wanted_entries);
        let Some(entries) = entries else {
            let Some(domains) = domains else { return self.anyone.push(place) };
            for domain in domains {
                let name = self.hash(Some(domain));
                self.loose.entry(name).or_default().push(place);
            }
            return;
        };
        match domains {
            None => self.file_entries(place, None, entries),
            Some(domains) => {
                domains.iter().for_each(|domain| self.file_entries(place, Some(domain), entries))
            }
        }
    }

    fn file_entries(&mut self, place: u32, domain: Option<&str>, entries: &[Entry]) {
        let shape = self.shape(domain, entries.iter().map(Entry::name));
        let bits = entries.iter().enumerate();
        let mask = bits.fold(0, |mask, (bit, e)| mask | Mask::from(e.literal().is_some()) << bit);
        let masks = self.shapes.entry(shape).or_default();
        if !masks.contains(&mask) {
            masks.push(mask);
        }
        let name = self.name(shape, mask, entries.iter().filter_map(Entry::literal));
        self.filed.entry(name).or_default().push(place);
    }

    /// The policies that a request may meet, if not simply [`Index::anyone`].
    pub(super) fn candidates(&self, facts: &Facts<'_>) -> Option<Places> {
        if facts.domain().is_none() && facts.entries().is_empty() {
            return None;
        }
        let mut places = Places::from_slice(&self.anyone);
        if let Some(loose) = facts.domain().and_then(|d| self.loose.get(&self.hash(Some(d)))) {
            places.extend_from_slice(loose);
        }
        self.find(None, facts.entries(), &mut places);
        if facts.domain().is_some() {
            self.find(facts.domain(), facts.entries(), &mut places);
        }
        places.sort_unstable();
        // A policy that names a domain twice is met once.
        places.dedup();
        Some(places)
    }

    /// Those that any request may meet, in order.
    pub(super) fn anyone(&self) -> &[u32] {
        &self.anyone
    }

    fn find(
        &self,
        domain: Option<&str>,
        found: &[(Cow<'_, str>, Cow<'_, str>)],
        places: &mut Places,
    ) {
        if found.is_empty() || found.len() > MAX_ENTRIES || self.shapes.is_empty() {
            return;
        }
        let shape = self.shape(domain, found.iter().map(|(name, _)| &**name));
        for &mask in self.shapes.get(&shape).into_iter().flatten() {
            let values = found.iter().enumerate().filter(|(bit, _)| mask & (1 << bit) != 0);
            let name = self.name(shape, mask, values.map(|(_, (_, value))| &**value));
            places.extend_from_slice(self.filed.get(&name).map_or(&[], |filed| &filed[..]));
        }
    }

    fn hash(&self, domain: Option<&str>) -> u64 {
        self.hashes.hash_one(domain)
    }

    fn shape<'n>(&self, domain: Option<&str>, names: impl Iterator<Item = &'n str>) -> u64 {
        let mut hasher = self.hashes.build_hasher();
        domain.hash(&mut hasher);
        names.for_each(|name| name.hash(&mut hasher));
        hasher.finish()
    }

    fn name<'v>(&self, shape: u64, mask: Mask, values: impl Iterator<Item = &'v str>) -> u64 {
        let mut hasher = self.hashes.build_hasher();
        (shape, mask).hash(&mut hasher);
        values.for_each(|value| value.hash(&mut hasher));
        hasher.finish()
    }
}
