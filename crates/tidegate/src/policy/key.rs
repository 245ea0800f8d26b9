//! Keys: the text that identifies who is counted.
//!
//! The naive idea is to insert the values into the template. That is ambiguous:
//! `{header:a}:{header:b}` renders both (`x`, `y:z`) and (`x:y`, `z`) as `x:y:z`; a header can
//! imitate an address; a missing header and an empty one look alike. A client that controls a value
//! could then use up, or share, the limit of another. So:
//!
//! - the key of a single field is its plain value: `{client_ip}` gives `192.0.2.1`;
//! - several fields are prefixed with their lengths: `5#alice:6#/login`;
//! - if a field has alternatives, its value is tagged with the one that was used:
//!   `client_ip=192.0.2.1`, so a header cannot imitate an address;
//! - a missing field is a NUL, and a value that begins with a NUL is prefixed with another;
//! - a key over [`MAX_KEY_BYTES`] is truncated, and ends in a SHA-256 digest of the whole key. It
//!   begins with a NUL and `#`. The only other keys that do are those of a missing field before a
//!   literal `#`, and they are shorter than [`MAX_KEY_BYTES`].

use std::borrow::Cow;
use std::fmt;
use std::fmt::Write as _;
use std::net::IpAddr;

use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use super::normalized_request::{ReadOptions, host_name};
use super::path;
use super::request_field::RequestField;
use super::template::{Alternative, Piece, Template};
use crate::text::write_escaped;

/// The longest key. Longer keys are truncated and end in a digest of the whole key. Legitimate keys
/// are far shorter; longer ones are likely an attack.
pub const MAX_KEY_BYTES: usize = 1024;

/// Represents a field that the request does not have.
pub(super) const MISSING: u8 = 0;

/// Follows the NUL at the start of a truncated key.
const TRUNCATED: u8 = b'#';

/// Identifies who is counted within a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(SmallVec<[u8; 64]>);

impl Key {
    /// Creates a key from the caller's bytes. A leading NUL is doubled, as in any value, so that
    /// the key does not represent a missing field.
    pub fn literal(key: &[u8]) -> Self {
        let mut writer = KeyWriter::default();
        writer.value(key);
        writer.finish()
    }

    /// Creates a key from the bytes of a rendered key.
    pub(crate) fn from_rendered(key: &[u8]) -> Self {
        Key(SmallVec::from_slice(key))
    }

    /// Returns the key that requests without a key share. No value renders the same key.
    pub fn missing() -> Self {
        Key(SmallVec::from_slice(&[MISSING]))
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Writes the key as text. Control and invisible characters, backslashes, and bytes that are not
/// UTF-8 are escaped, because a key can hold any bytes and a log or terminal must not interpret
/// them.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_escaped(&self.0, f)
    }
}

/// Builds a key.
#[derive(Default)]
pub(super) struct KeyWriter(SmallVec<[u8; 64]>);

impl KeyWriter {
    pub(super) fn literal(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    /// Writes a value without a tag.
    pub(super) fn value(&mut self, value: &[u8]) {
        if value.first() == Some(&MISSING) {
            self.0.push(MISSING);
        }
        self.0.extend_from_slice(value);
    }

    /// Writes a value with the tag of its alternative.
    pub(super) fn tagged(&mut self, tag: &str, value: &[u8]) {
        self.literal(tag);
        self.0.extend_from_slice(value);
    }

    pub(super) fn missing(&mut self) {
        self.0.push(MISSING);
    }

    /// Writes the length of the value that follows.
    pub(super) fn length(&mut self, bytes: usize) {
        // Writing to memory cannot fail.
        let _ = write!(self, "{bytes}#");
    }

    pub(super) fn finish(self) -> Key {
        if self.0.len() > MAX_KEY_BYTES {
            return truncate(&self.0);
        }
        Key(self.0)
    }
}

impl fmt::Write for KeyWriter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.literal(text);
        Ok(())
    }
}

/// Returns the length of a value in a key, without a tag.
pub(super) fn value_length(value: &[u8]) -> usize {
    value.len() + usize::from(value.first() == Some(&MISSING))
}

#[cold]
fn truncate(whole: &[u8]) -> Key {
    let mut writer = KeyWriter(SmallVec::from_slice(&[MISSING, TRUNCATED]));
    let digest_chars = 2 * <Sha256 as Digest>::output_size();
    writer.0.extend_from_slice(&whole[..MAX_KEY_BYTES - 3 - digest_chars]);
    writer.literal("#");
    for byte in Sha256::digest(whole) {
        let _ = write!(writer, "{byte:02x}");
    }
    Key(writer.0)
}

/// A run of bytes in a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeySegment<'t, 'k> {
    /// Literal text, or the mark of a missing value, including the length in front of it.
    Literal(&'k [u8]),
    /// The value of a request field.
    Value {
        field: &'t RequestField,
        /// Such as `header:x-api-key=`; empty for a field without alternatives.
        tag: &'t str,
        value: &'k [u8],
        /// The tag and the value, including the length in front of them, if there is one.
        whole: &'k [u8],
    },
}

pub(crate) type KeySegments<'t, 'k> = SmallVec<[KeySegment<'t, 'k>; 4]>;

impl Template {
    /// Splits a key of this template into segments. Returns `None` if the template does not make
    /// this key, as for a truncated key or for one that a caller gave in another form.
    pub(crate) fn split<'t, 'k>(&'t self, key: &'k [u8]) -> Option<KeySegments<'t, 'k>> {
        let mut segments = KeySegments::new();
        let mut rest = key;
        for (index, piece) in self.pieces.iter().enumerate() {
            match piece {
                Piece::Literal(text) => {
                    let (literal, after) = rest.split_at_checked(text.len())?;
                    if literal != text.as_bytes() {
                        return None;
                    }
                    segments.push(KeySegment::Literal(literal));
                    rest = after;
                }
                Piece::Field(alternatives) => {
                    let (whole, value) = match self.is_composite {
                        true => with_length(rest)?,
                        false => {
                            let whole = rest
                                .get(..rest.len().checked_sub(self.literal_bytes_after(index))?)?;
                            (whole, whole)
                        }
                    };
                    segments.push(read(alternatives, whole, value)?);
                    rest = &rest[whole.len()..];
                }
            }
        }
        rest.is_empty().then_some(segments)
    }

    /// Returns the keys that a plain value may represent: one per alternative of the only field.
    /// The result is empty for a template with several fields, because its keys hold several
    /// values.
    pub(super) fn possible_keys(&self, value: &[u8], options: &ReadOptions) -> Vec<Key> {
        let fields = self.pieces.iter().filter_map(|piece| match piece {
            Piece::Field(alternatives) => Some(alternatives),
            Piece::Literal(_) => None,
        });
        let alternatives = fields.filter(|_| !self.is_composite).flatten();
        let keys = alternatives.filter_map(|one| {
            let value =
                normalized_value(&one.field, value, options).filter(|value| !value.is_empty())?;
            Some(self.key_of(one, &value))
        });
        keys.collect()
    }

    /// Returns whether the template can make this key.
    #[cfg(feature = "tower")]
    pub(super) fn may_make(&self, key: &[u8], options: &ReadOptions) -> bool {
        match &*self.pieces {
            // A bare value is a key if it is in the normal form of its field.
            [Piece::Field(alternatives)] if alternatives.len() == 1 => {
                let normalized = normalized_value(&alternatives[0].field, key, options);
                key == [MISSING] || normalized.is_some_and(|value| *value == *key)
            }
            _ => self.split(key).is_some(),
        }
    }

    /// Returns whether the template makes this key, and adds something to the bare value, such as a
    /// tag. Such a text is read as a key, not as a value.
    pub(crate) fn is_full_form(&self, key: &[u8]) -> bool {
        let is_bare =
            matches!(&*self.pieces, [Piece::Field(alternatives)] if alternatives.len() == 1);
        !is_bare && self.split(key).is_some()
    }

    /// Returns the key of a request in which the only field has this value.
    fn key_of(&self, chosen: &Alternative, value: &[u8]) -> Key {
        let mut writer = KeyWriter::default();
        for piece in &self.pieces {
            match piece {
                Piece::Literal(text) => writer.literal(text),
                Piece::Field(_) if chosen.tag.is_empty() => writer.value(value),
                Piece::Field(_) => writer.tagged(&chosen.tag, value),
            }
        }
        writer.finish()
    }

    /// Returns the number of bytes of literal text after a piece.
    fn literal_bytes_after(&self, index: usize) -> usize {
        let length = |piece: &Piece| match piece {
            Piece::Literal(text) => text.len(),
            Piece::Field(_) => 0,
        };
        self.pieces[index + 1..].iter().map(length).sum()
    }
}

/// Returns a value in the form that it has in keys; `None` if the field cannot have it.
fn normalized_value<'v>(
    field: &RequestField,
    value: &'v [u8],
    options: &ReadOptions,
) -> Option<Cow<'v, [u8]>> {
    let text = || std::str::from_utf8(value).ok();
    let owned = |text: String| Cow::Owned(text.into_bytes());
    match field {
        RequestField::ClientIp => {
            let (address, prefix) = match text()?.split_once('/') {
                Some((address, prefix)) => (address, Some(prefix.parse::<u8>().ok()?)),
                None => (text()?, None),
            };
            let group = options.identity.group(address.parse::<IpAddr>().ok()?);
            prefix.is_none_or(|prefix| prefix == group.prefix()).then(|| owned(group.to_string()))
        }
        RequestField::Method => Some(owned(text()?.to_ascii_uppercase())),
        RequestField::Host => Some(owned(host_name(text()?).into_owned())),
        RequestField::Path => {
            Some(owned(path::readings(text()?, options.path_variants).merged.into_owned()))
        }
        RequestField::Header(_) => Some(Cow::Borrowed(value.trim_ascii())),
        _ => Some(Cow::Borrowed(value)),
    }
}

/// Reads the value at the start of `rest`. Returns it with its length in front, and without.
fn with_length(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let mark = rest.iter().position(|byte| *byte == b'#')?;
    let length: usize = std::str::from_utf8(&rest[..mark]).ok()?.parse().ok()?;
    let end = (mark + 1).checked_add(length)?;
    Some((rest.get(..end)?, rest.get(mark + 1..end)?))
}

/// Reads the `value` of a field; `whole` includes its length.
fn read<'t, 'k>(
    alternatives: &'t [Alternative],
    whole: &'k [u8],
    value: &'k [u8],
) -> Option<KeySegment<'t, 'k>> {
    if value == [MISSING] {
        return Some(KeySegment::Literal(whole));
    }
    let Alternative { field, tag } =
        alternatives.iter().find(|one| value.starts_with(one.tag.as_bytes()))?;
    Some(KeySegment::Value { field, tag, value: &value[tag.len()..], whole })
}
