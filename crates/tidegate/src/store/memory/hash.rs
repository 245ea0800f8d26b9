//! How keys are hashed: by foldhash, seeded anew in every process.
//!
//! Keys of up to 31 bytes are hashed as numbers, not as bytes. Who puts a key together in
//! registers can so hash it there: bytes that were just stored in pieces cannot be loaded across
//! them before all are out of the processor, and to wait for that takes longer than to hash.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;

#[cfg(feature = "tower")]
use crate::short::{Short, ShortPrefix};

/// Bytes of a word.
const WORD: usize = 16;

/// Keys up to this long are one word, with their length in its last byte.
pub(super) const ONE_WORD: usize = WORD - 1;

/// A key of less than two words: its first bytes and the rest, with zeros behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Words {
    first: u128,
    rest: u128,
    length: usize,
}

impl Words {
    /// `None` if it is too long.
    #[inline(always)]
    fn new(key: &[u8]) -> Option<Self> {
        let length = key.len();
        if length <= ONE_WORD {
            return Some(Words { first: one_word(key), rest: 0, length });
        }
        let (first, last) = (key.first_chunk()?, key.last_chunk()?);
        let twice = (2 * WORD).checked_sub(length).filter(|twice| *twice > 0)?;
        // What both have is in the first.
        let rest = (u128::from_le_bytes(*last) >> 8) >> ((twice - 1) * 8);
        Some(Words { first: u128::from_le_bytes(*first), rest, length })
    }

    /// A text behind a prefix, which is not empty.
    #[cfg(feature = "tower")]
    #[inline(always)]
    pub(crate) fn join(prefix: &ShortPrefix, text: &Short<16>) -> Self {
        let (begin, word) = (prefix.length(), text.word());
        debug_assert!(begin > 0, "a word cannot be moved by as much as a word");
        const { assert!(ShortPrefix::MAX < WORD, "nor by more") };
        Words {
            first: prefix.word() | (word << (begin * 8)),
            rest: word >> ((WORD - begin) * 8),
            length: begin + text.length(),
        }
    }

    /// The key again.
    #[cfg(feature = "tower")]
    #[inline(always)]
    pub(crate) fn text(&self) -> Short<32> {
        Short::of_words(self.first, self.rest, self.length)
    }
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
        match Words::new(key) {
            Some(words) => self.hash_words(&words),
            None => self.hash_long(key),
        }
    }

    /// The same for a key that is in words already.
    #[inline(always)]
    pub(super) fn hash_words(&self, words: &Words) -> u64 {
        let mut hasher = self.0.build_hasher();
        // Zeros may be part of a key; its length tells them from those behind it.
        let length = (words.length as u128) << ((WORD - 1) * 8);
        if words.length <= ONE_WORD {
            hasher.write_u128(words.first | length);
        } else {
            hasher.write_u128(words.first);
            hasher.write_u128(words.rest | length);
        }
        hasher.finish()
    }

    fn hash_long(&self, key: &[u8]) -> u64 {
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
        let all: Vec<u8> = (1..=40).collect();
        for length in 0..all.len() {
            let key = &all[..length];
            let Some(words) = Words::new(key) else {
                assert!(length >= 2 * WORD, "{length}");
                continue;
            };
            let bytes = [words.first.to_le_bytes(), words.rest.to_le_bytes()].concat();
            assert_eq!((&bytes[..length], words.length), (key, length));
            assert!(bytes[length..].iter().all(|byte| *byte == 0), "{length}: {bytes:?}");
        }
    }

    #[test]
    fn keys_that_differ_hash_differently() {
        let hasher = KeyHasher::new();
        let mut hashes = HashSet::new();
        let mut keys = HashSet::new();
        for length in 0..48 {
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

    #[cfg(feature = "tower")]
    #[test]
    fn joined_is_one_behind_the_other() {
        let hasher = KeyHasher::new();
        let all = b"abcdefghijklmnopqrstuvwxyz-01234";
        for (first, second) in (1..16).flat_map(|first| (0..=16).map(move |second| (first, second)))
        {
            let (first, second) = (&all[..first], &all[..second]);
            let prefix = Short::new(first).expect("no longer than that");
            let words = Words::join(&prefix, &Short::new(second).expect("no longer than that"));
            let key = [first, second].concat();
            assert_eq!(Some(words), Words::new(&key));
            assert_eq!(hasher.hash_words(&words), hasher.hash(&key));
            assert_eq!(words.text().as_bytes(), key);
        }
    }
}
