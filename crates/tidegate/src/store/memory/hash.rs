//! Hashing of keys by foldhash, with a random seed in every process.
//!
//! The fast variant of foldhash is used. The other variant mixes the bits once more. It does not have
//! fewer collisions, and the table is filled evenly with either: the top bits choose the shard, and
//! others the group and the tag byte.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;

/// Hashes the keys of one store.
#[derive(Clone, Debug)]
pub(super) struct KeyHasher(SeedableRandomState);

impl KeyHasher {
    pub(super) fn new() -> Self {
        KeyHasher(SeedableRandomState::with_seed(random_bits(), shared_seed()))
    }

    #[inline(always)]
    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.0.build_hasher();
        hasher.write(key);
        hasher.finish()
    }
}

/// Random bits from the operating system, obtained through the standard library's hasher. Under the
/// model checker they are constant, because every run must be the same.
pub(super) fn random_bits() -> u64 {
    if cfg!(loom) { 0x7469_6465 } else { RandomState::new().hash_one(0x7469_6465) }
}

/// The part of the seed that is shared by all stores of the process.
fn shared_seed() -> &'static SharedSeed {
    static SEED: OnceLock<SharedSeed> = OnceLock::new();
    SEED.get_or_init(|| SharedSeed::from_u64(random_bits()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_that_differ_hash_differently() {
        let hasher = KeyHasher::new();
        let mut hashes = HashSet::new();
        let mut keys = HashSet::new();
        for length in 0..60 {
            // Zeros matter like any other byte, at every index.
            for index in 0..=length {
                for byte in [0, 1, b'.', 0xff] {
                    let mut key = vec![0; length];
                    if let Some(at) = key.get_mut(index) {
                        *at = byte;
                    }
                    hashes.insert(hasher.hash(&key));
                    keys.insert(key);
                }
            }
        }
        assert_eq!(hashes.len(), keys.len());
    }
}
