//! How keys are shown to people.
//!
//! A key may contain a credential: `{header:x-api-key}`, `{cookie:session}`. Logs are copied,
//! shipped and stored, so they must not contain credentials. But an operator must be able to
//! recognise a key and to reset it. So values of headers, cookies and query parameters are masked:
//!
//! ```text
//!   header:x-api-key=sk_live_4eC39HqLyjWD   ->   header:x-api-key=sk_l...#9f86d081884c7d65
//! ```
//!
//! The masked form is a few leading characters, `...#`, and the first 64 bits of an HMAC-SHA256 of
//! the value. The hash is keyed, because a short or guessable value could otherwise be found by
//! hashing all candidates. Its key is random per process, or derived from a [`MaskSecret`] that all
//! nodes share.
//!
//! Keys are stored unmasked ([`StoredKey`]) in the bounded memory of the rankings and of the ring
//! of denials, and are masked when they are read. So a masked form can be resolved to its key for
//! as long as the key is stored there ([`Stats::unmask`](super::Stats::unmask)).

use std::fmt;
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use sha2::{Digest, Sha256};

use crate::policy::{Key, KeySegment, MAX_KEY_BYTES, RequestField, Template};
use crate::text::{floor_char_boundary, write_escaped};

/// The maximum number of characters of a value that its masked form shows. It is never more than a
/// quarter of the value.
pub const MAX_SHOWN_CHARS: usize = 4;

/// The number of bits of the hash in a masked form. The chance that two of a million keys share a
/// hash is 3 in 10^8.
const HASH_BITS: usize = 64;

/// The text between the shown characters of a value and its hash.
const MARK: &str = "...#";

/// The minimum length of a secret. A secret that can be guessed protects nothing.
pub(crate) const MIN_SECRET_BYTES: usize = 16;

/// Returns whether the values of a field are masked, because they may be credentials: API keys,
/// bearer tokens, session cookies.
fn is_masked(field: &RequestField) -> bool {
    matches!(field, RequestField::Header(_) | RequestField::Query(_) | RequestField::Cookie(_))
}

/// Returns whether the keys of a template have parts that are masked.
pub(crate) fn has_masked_parts(template: &Template) -> bool {
    template.fields().any(is_masked)
}

/// How keys appear in logs, events and rankings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LogKeys {
    /// Values of headers, cookies and query parameters are masked; the rest is readable.
    #[default]
    Masked,
    /// Keys are shown as they are counted.
    Full,
    /// Keys are omitted.
    Off,
}

impl LogKeys {
    /// Every variant.
    pub const ALL: [LogKeys; 3] = [LogKeys::Masked, LogKeys::Full, LogKeys::Off];

    /// Returns the name used in the config.
    pub const fn name(self) -> &'static str {
        match self {
            LogKeys::Masked => "masked",
            LogKeys::Full => "full",
            LogKeys::Off => "off",
        }
    }
}

/// A secret that nodes share, so that they mask a key in the same way.
#[derive(Clone, PartialEq, Eq)]
pub struct MaskSecret(Box<str>);

impl FromStr for MaskSecret {
    type Err = SecretTooShort;

    fn from_str(text: &str) -> Result<Self, SecretTooShort> {
        if text.len() < MIN_SECRET_BYTES {
            Err(SecretTooShort)
        } else {
            Ok(MaskSecret(text.into()))
        }
    }
}

/// The secret is not printed.
impl fmt::Debug for MaskSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MaskSecret")
    }
}

/// A secret of fewer than `MIN_SECRET_BYTES` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretTooShort;

impl fmt::Display for SecretTooShort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the secret is shorter than {MIN_SECRET_BYTES} bytes: use `openssl rand -hex 32`")
    }
}

impl std::error::Error for SecretTooShort {}

/// A key as it was counted, with the template that is needed to mask it.
#[derive(Clone, Default)]
pub(super) struct StoredKey {
    bytes: Vec<u8>,
    truncated: bool,
    /// The template that rendered it, if its keys may contain credentials.
    template: Option<Arc<Template>>,
}

impl StoredKey {
    /// Stores another key in the same memory. A key that has to be masked is stored whole, so that
    /// its masked form can be resolved. Of other keys only the part that is shown is stored.
    pub(super) fn set(&mut self, bytes: &[u8], template: Option<&Arc<Template>>) {
        let most = if template.is_some() { MAX_KEY_BYTES } else { MAX_TEXT_BYTES };
        self.truncated = bytes.len() > most;
        self.bytes.clear();
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(most)]);
        self.template = template.cloned();
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether this is the given key.
    pub(super) fn is(&self, key: &Key) -> bool {
        !self.truncated && *self.bytes == *key.as_ref()
    }

    /// The key without masking, truncated.
    pub(super) fn plain(&self) -> ShownText {
        let mut text = ShownText::new(&self.bytes);
        text.truncated |= self.truncated;
        text
    }
}

/// The key is not printed, because it may be a credential.
impl fmt::Debug for StoredKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredKey").finish_non_exhaustive()
    }
}

/// How keys are shown.
pub(super) struct Masking {
    pub(super) log_keys: LogKeys,
    mac: Mac,
}

impl Default for Masking {
    fn default() -> Self {
        Masking::new(LogKeys::default(), None)
    }
}

impl fmt::Debug for Masking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Masking").field("log_keys", &self.log_keys).finish_non_exhaustive()
    }
}

impl Masking {
    pub(super) fn new(log_keys: LogKeys, secret: Option<&MaskSecret>) -> Self {
        let mac = secret.map(|secret| Mac::new(secret.0.as_bytes()));
        Masking { log_keys, mac: mac.unwrap_or_else(Mac::of_process) }
    }

    /// The text that is shown for a key.
    pub(super) fn text(&self, key: &StoredKey) -> ShownText {
        match (self.log_keys, &key.template) {
            (LogKeys::Off, _) => ShownText::default(),
            (LogKeys::Masked, Some(template)) => self.mask(template, key),
            (LogKeys::Masked, None) | (LogKeys::Full, _) => key.plain(),
        }
    }

    /// The text that is shown for a key that was not stored.
    pub(super) fn text_of(&self, template: &Template, key: &[u8]) -> ShownText {
        let template = has_masked_parts(template).then(|| Arc::new(template.clone()));
        let mut stored = StoredKey::default();
        stored.set(key, template.as_ref());
        self.text(&stored)
    }

    /// Whether a text is the masked form of a key.
    pub(super) fn is_form_of(&self, text: &str, key: &StoredKey) -> bool {
        let Some(template) = key.template.as_ref().filter(|_| !key.truncated) else { return false };
        let masked = self.mask(template, key);
        masked.is_masked() && masked.to_string() == text
    }

    fn mask(&self, template: &Template, key: &StoredKey) -> ShownText {
        let mut masked_text = match template.split(&key.bytes) {
            Some(segments) if !segments.iter().any(is_masked_segment) => return key.plain(),
            Some(segments) => self.mask_segments(&segments),
            // A key that the template did not render was given by a caller. It may be the bare
            // credential.
            None => self.form(&key.bytes),
        };
        let truncated = masked_text.len() > MAX_TEXT_BYTES;
        if truncated {
            let hash = self.mac.hash(&key.bytes);
            let most = MAX_TEXT_BYTES - MARK.len() - hash.len();
            masked_text.truncate(floor_char_boundary(&masked_text, most));
            masked_text = masked_text + MARK + &hash;
        }
        ShownText { bytes: masked_text.into_bytes(), truncated, masked: true }
    }

    fn mask_segments(&self, segments: &[KeySegment<'_, '_>]) -> String {
        let mut masked_text = String::new();
        for segment in segments {
            match *segment {
                KeySegment::Value { field, tag, value, whole } if is_masked(field) => {
                    let form = format!("{tag}{}", self.form(value));
                    let has_length = whole.len() > tag.len() + value.len();
                    if has_length {
                        // Writing to memory cannot fail.
                        let _ = write!(masked_text, "{}#", form.len());
                    }
                    masked_text.push_str(&form);
                }
                KeySegment::Value { whole: shown, .. } | KeySegment::Literal(shown) => {
                    masked_text.push_str(&escaped(shown));
                }
            }
        }
        masked_text
    }

    /// The masked form of a value.
    fn form(&self, value: &[u8]) -> String {
        let most = MAX_SHOWN_CHARS.min(value.len() / 4);
        let prefix = value[..most]
            .iter()
            .take_while(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(byte));
        let prefix: String = prefix.map(|byte| char::from(*byte)).collect();
        prefix + MARK + &self.mac.hash(value)
    }
}

fn is_masked_segment(segment: &KeySegment<'_, '_>) -> bool {
    matches!(segment, KeySegment::Value { field, .. } if is_masked(field))
}

/// Whether a text contains a masked form.
pub(crate) fn looks_masked(text: &[u8]) -> bool {
    let digits = HASH_BITS / 4;
    let is_hash = |behind: &[u8]| {
        let hash = behind.get(..digits);
        hash.is_some_and(|hash| hash.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')))
    };
    let mark = MARK.as_bytes();
    (0..text.len()).any(|at| text[at..].strip_prefix(mark).is_some_and(is_hash))
}

fn escaped(bytes: &[u8]) -> String {
    let mut text = String::new();
    // Writing to memory cannot fail.
    let _ = crate::text::write_escaped(bytes, &mut text);
    text
}

/// HMAC-SHA256 (RFC 2104), with the key already absorbed.
struct Mac {
    inner: Sha256,
    outer: Sha256,
}

impl Mac {
    fn new(secret: &[u8]) -> Self {
        const BLOCK_BYTES: usize = 64;
        let mut block = [0; BLOCK_BYTES];
        match block.get_mut(..secret.len()) {
            Some(start) => start.copy_from_slice(secret),
            None => block[..Sha256::output_size()].copy_from_slice(&Sha256::digest(secret)),
        }
        let padded = |pad: u8| Sha256::new_with_prefix(block.map(|byte| byte ^ pad));
        Mac { inner: padded(0x36), outer: padded(0x5c) }
    }

    /// The secret of this process: 128 bits from the operating system.
    fn of_process() -> Self {
        static SECRET: OnceLock<[u8; 32]> = OnceLock::new();
        let secret = SECRET.get_or_init(|| {
            let random = RandomState::new();
            let mut secret = [0; 32];
            for (number, word) in (0_u64..).zip(secret.chunks_exact_mut(8)) {
                word.copy_from_slice(&random.hash_one(number).to_le_bytes());
            }
            secret
        });
        Mac::new(secret)
    }

    /// The first [`HASH_BITS`] of the HMAC, in hexadecimal.
    fn hash(&self, bytes: &[u8]) -> String {
        let inner = self.inner.clone().chain_update(bytes).finalize();
        let hash = self.outer.clone().chain_update(inner).finalize();
        hash[..HASH_BITS / 8].iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    }
}

/// The maximum number of bytes of a key or route that are stored. It is enough for a composed key
/// and most paths, and small enough for thousands of them.
pub const MAX_TEXT_BYTES: usize = 128;

/// The beginning of a key or route. The bytes may come from anyone, so it is displayed like a
/// [`Key`](crate::policy::Key): everything but plain text is escaped.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct ShownText {
    pub(super) bytes: Vec<u8>,
    pub(super) truncated: bool,
    pub(super) masked: bool,
}

impl ShownText {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let mut text = ShownText::default();
        text.set(bytes);
        text
    }

    /// Stores another text in the same memory.
    pub(super) fn set(&mut self, bytes: &[u8]) {
        self.truncated = bytes.len() > MAX_TEXT_BYTES;
        self.masked = false;
        self.bytes.clear();
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(MAX_TEXT_BYTES)]);
    }

    /// Returns the stored bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns whether the text was truncated. Two truncated texts may be equal although their
    /// names differ, unless they are masked.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// Returns whether this is the masked form of a key. [`Stats::unmask`](super::Stats::unmask)
    /// accepts it as it is displayed.
    pub fn is_masked(&self) -> bool {
        self.masked
    }
}

impl fmt::Display for ShownText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.masked {
            // It was escaped when it was masked, and a hash replaces the truncated part.
            return self.bytes.utf8_chunks().try_for_each(|chunk| f.write_str(chunk.valid()));
        }
        write_escaped(&self.bytes, f)?;
        if self.truncated { f.write_str("...") } else { Ok(()) }
    }
}

impl fmt::Debug for ShownText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231, test cases 1, 2 and 6 (a key longer than a block).
    #[test]
    fn hmac_matches_the_rfc_vectors() {
        let rows: [(&[u8], &[u8], &str); 3] = [
            (&[0x0b; 20], b"Hi There", "b0344c61d8db3853"),
            (b"Jefe", b"what do ya want for nothing?", "5bdcc146bf60754e"),
            (
                &[0xaa; 131],
                b"Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f",
            ),
        ];
        for (secret, text, expected) in rows {
            assert_eq!(Mac::new(secret).hash(text), expected);
        }
    }

    #[test]
    fn recognizes_masked_forms() {
        let rows = [
            ("sk_l...#0123456789abcdef", true),
            ("...#0123456789abcdef:6#/login", true),
            ("24#sk_l...#0123456789abcdef", true),
            ("...#0123456789abcde", false),
            ("...#0123456789ABCDEF", false),
            ("192.0.2.1", false),
            ("", false),
        ];
        for (text, expected) in rows {
            assert_eq!(looks_masked(text.as_bytes()), expected, "{text}");
        }
    }
}
