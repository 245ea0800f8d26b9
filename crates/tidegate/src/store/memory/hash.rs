//! Hashing of keys by foldhash, with a random seed in every process.
//!
//! The quality variant of foldhash is used, which multiplies once more than the fast one. With the
//! fast variant, the hashes of keys that differ in one word only, such as numbered users, are
//! nearly multiples of one number. With some seeds their shards and tag bytes are then far from
//! random: the largest shard of a million keys had up to 750 of them instead of 580, and one lookup
//! in ten found the tag byte of another key instead of one in eighty.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;

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

    /// The largest of 400 shards, for keys that differ in a few digits. A shard of random keys
    /// exceeds seven standard deviations less often than once in 10^11.
    #[test]
    fn shards_of_numbered_keys_have_similar_sizes() {
        const SHARDS: u64 = 400;
        const MEAN: u64 = 480;
        let most = MEAN + 7 * MEAN.isqrt();
        let keys: Vec<_> = (0..SHARDS * MEAN).map(|number| format!("user:{number:08}")).collect();
        for _ in 0..64 {
            let hasher = KeyHasher::new();
            let mut shards = [0; SHARDS as usize];
            for key in &keys {
                let hash = u128::from(hasher.hash(key.as_bytes()));
                shards[((hash * u128::from(SHARDS)) >> 64) as usize] += 1;
            }
            let largest = shards.iter().max().copied().unwrap_or(0);
            assert!(largest <= most, "a shard has {largest} keys, the mean is {MEAN}");
        }
    }

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
