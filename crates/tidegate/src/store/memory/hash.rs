//! How keys are hashed: by foldhash, seeded anew in every process.
//!
//! Keys of up to 47 bytes are hashed as numbers, not as bytes.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;

/// Bytes of a word.
const WORD: usize = 16;

/// Keys up to this long are one word, with their length in its last byte.
pub(super) const ONE_WORD: usize = WORD - 1;

/// A key of less than three words, with zeros behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Words {
    words: [u128; 3],
    length: usize,
}

impl Words {
    /// `None` if it is too long.
    #[inline(always)]
    fn new(key: &[u8]) -> Option<Self> {
        let length = key.len();
        let words = match (length / WORD, key.as_chunks().0) {
            (0, _) => [one_word(key), 0, 0],
            (1, [first, ..]) => [u128::from_le_bytes(*first), last_word(key)?, 0],
            (2, [first, second, ..]) => {
                [u128::from_le_bytes(*first), u128::from_le_bytes(*second), last_word(key)?]
            }
            _ => return None,
        };
        Some(Words { words, length })
    }
}

/// What is behind the whole words of a key that has any.
#[inline(always)]
fn last_word(key: &[u8]) -> Option<u128> {
    let last = u128::from_le_bytes(*key.last_chunk()?);
    // Without what is in the one before.
    Some((last >> 8) >> ((WORD - 1 - key.len() % WORD) * 8))
}

/// A key of less than a word, with zeros behind it.
#[inline(always)]
fn one_word(key: &[u8]) -> u128 {
    let length = key.len();
    if let (Some(first), Some(last)) = (key.first_chunk(), key.last_chunk()) {
        let (first, last) = (u64::from_le_bytes(*first), u64::from_le_bytes(*last));
        // What both have is in the first.
        let rest = (last >> 8) >> ((ONE_WORD - length) * 8);
        return u128::from(first) | (u128::from(rest) << 64);
    }
    if let (Some(first), Some(last)) = (key.first_chunk(), key.last_chunk()) {
        let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
        return u128::from(u64::from(first) | (u64::from(last) << ((length - 4) * 8)));
    }
    key.iter().rev().fold(0, |word, byte| (word << 8) | u128::from(*byte))
}

/// Hashes the keys of one store.
#[derive(Clone, Debug)]
pub(super) struct KeyHasher(SeedableRandomState);

impl KeyHasher {
    pub(super) fn new() -> Self {
        KeyHasher(SeedableRandomState::with_seed(random_bits(), shared_seed()))
    }

    #[inline(always)]
    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        if key.len() <= ONE_WORD {
            return self.hash_words(&Words { words: [one_word(key), 0, 0], length: key.len() });
        }
        self.hash_long(key)
    }

    /// The same for a key that is in words already.
    #[inline(always)]
    fn hash_words(&self, key: &Words) -> u64 {
        let mut hasher = self.0.build_hasher();
        let [first, second, third] = key.words;
        // Zeros may be part of a key; its length tells them from those behind it.
        let length = (key.length as u128) << ((WORD - 1) * 8);
        match key.length / WORD {
            0 => hasher.write_u128(first | length),
            1 => {
                hasher.write_u128(first);
                hasher.write_u128(second | length);
            }
            _ => {
                hasher.write_u128(first);
                hasher.write_u128(second);
                hasher.write_u128(third | length);
            }
        }
        hasher.finish()
    }

    #[inline(never)]
    fn hash_long(&self, key: &[u8]) -> u64 {
        if let Some(words) = Words::new(key) {
            return self.hash_words(&words);
        }
        let mut hasher = self.0.build_hasher();
        hasher.write(key);
        hasher.finish()
    }
}

/// Random bits from the operating system, by way of the standard library's hasher.
/// A model checker must see the same every time.
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
    fn words_are_the_key() {
        let all: Vec<u8> = (1..=60).collect();
        for length in 0..all.len() {
            let key = &all[..length];
            let Some(words) = Words::new(key) else {
                assert!(length >= 3 * WORD, "{length}");
                continue;
            };
            let bytes = words.words.map(u128::to_le_bytes).concat();
            assert_eq!((&bytes[..length], words.length), (key, length));
            assert!(bytes[length..].iter().all(|byte| *byte == 0), "{length}: {bytes:?}");
        }
    }

    #[test]
    fn keys_that_differ_hash_differently() {
        let hasher = KeyHasher::new();
        let mut hashes = HashSet::new();
        let mut keys = HashSet::new();
        for length in 0..60 {
            // Zeros are as good as any other byte, at every place.
            for place in 0..=length {
                for byte in [0, 1, b'.', 0xff] {
                    let mut key = vec![0; length];
                    if let Some(at) = key.get_mut(place) {
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
