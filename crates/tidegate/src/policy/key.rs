//! The text of who is counted.
//!
//! Naive idea: put the values into the template and be done. It breaks at once:
//! `{header:a}:{header:b}` makes `x:y:z` of both (`x`, `y:z`) and (`x:y`, `z`);
//! a header can spell an address; a missing header and an empty one are alike.
//! Whoever controls a value could then spend, or share, another's limit. So:
//!
//! - a single part is its plain value: `{client_ip}` gives `192.0.2.1`;
//! - several parts carry their lengths: `5#alice:6#/login`;
//! - where there is a choice, the value says what it is: `client_ip=192.0.2.1`,
//!   so a header cannot pass for an address;
//! - a missing part is a NUL; a value that begins with a NUL gets one more;
//! - a key over [`MAX_KEY_BYTES`] is cut, and a SHA-256 of all of it takes the
//!   place of the rest, behind a NUL and `#`, which begins no other key.

use std::borrow::Cow;
use std::fmt;
use std::fmt::Write as _;
use std::net::IpAddr;

use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use super::normalized::{ReadOptions, host_name};
use super::path;
use super::request_field::RequestField;
use super::template::{Alternative, Piece, Template};
use crate::text::write_escaped;

/// The longest a key is: longer ones are cut and carry a digest of the whole.
/// Real keys are far shorter; what is longer is somebody trying.
pub const MAX_KEY_BYTES: usize = 1024;

/// Stands for a part the request does not have.
pub(super) const MISSING: u8 = 0;

/// Behind a NUL: what follows is a cut key and its digest.
const CUT: u8 = b'#';

/// Who is counted, within a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(SmallVec<[u8; 64]>);

impl Key {
    /// A key a caller gives as it is. A leading NUL is doubled, as in any value,
    /// so that it names no missing part.
    pub fn literal(key: &[u8]) -> Self {
        let mut writer = KeyWriter::default();
        writer.value(key);
        writer.finish()
    }

    /// A key that was made before, byte for byte.
    pub(crate) fn from_rendered(key: &[u8]) -> Self {
        Key(SmallVec::from_slice(key))
    }

    /// The key of requests that do not say whose they are: no value makes the same.
    pub fn missing() -> Self {
        Key(SmallVec::from_slice(&[MISSING]))
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Control characters, quotes' kin and what is not UTF-8 are shown as `\xNN`:
/// a key can hold anything, and a log or terminal must not obey it.
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

    /// A value that stands alone.
    pub(super) fn value(&mut self, value: &[u8]) {
        if value.first() == Some(&MISSING) {
            self.0.push(MISSING);
        }
        self.0.extend_from_slice(value);
    }

    /// A value that says what it is.
    pub(super) fn tagged(&mut self, tag: &str, value: &[u8]) {
        self.literal(tag);
        self.0.extend_from_slice(value);
    }

    pub(super) fn missing(&mut self) {
        self.0.push(MISSING);
    }

    /// The length of what comes next.
    pub(super) fn length(&mut self, bytes: usize) {
        // Writing to memory cannot fail.
        let _ = write!(self, "{bytes}#");
    }

    pub(super) fn finish(self) -> Key {
        if self.0.len() > MAX_KEY_BYTES {
            return cut(&self.0);
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

/// How long a value is once it stands in a key.
pub(super) fn value_length(value: &[u8]) -> usize {
    value.len() + usize::from(value.first() == Some(&MISSING))
}

#[cold]
fn cut(whole: &[u8]) -> Key {
    let mut writer = KeyWriter(SmallVec::from_slice(&[MISSING, CUT]));
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
    /// Literal text, or a part that may be shown; with its length in front if it has one.
    Readable(&'k [u8]),
    /// The value of a header, cookie or query parameter.
    Credential {
        /// `header:x-api-key=`; empty where the template leaves no choice.
        tag: &'t str,
        value: &'k [u8],
        /// Whether its length stands in front of it.
        has_length: bool,
    },
}

pub(crate) type KeySegments<'t, 'k> = SmallVec<[KeySegment<'t, 'k>; 4]>;

impl Template {
    /// Whether its keys may hold credentials: values of headers, cookies or query parameters.
    pub(crate) fn has_credentials(&self) -> bool {
        self.fields().any(RequestField::may_be_credential)
    }

    /// Takes a key of this template apart; `None` if the template makes no such key. A key that
    /// was cut, and one that a caller gave in another form, are such.
    pub(crate) fn split<'t, 'k>(&'t self, key: &'k [u8]) -> Option<KeySegments<'t, 'k>> {
        let mut segments = KeySegments::new();
        let mut rest = key;
        for (index, piece) in self.pieces.iter().enumerate() {
            match piece {
                Piece::Literal(text) => {
                    let (literal, behind) = rest.split_at_checked(text.len())?;
                    if literal != text.as_bytes() {
                        return None;
                    }
                    segments.push(KeySegment::Readable(literal));
                    rest = behind;
                }
                Piece::Slot(slot) => {
                    let (whole, value) = match self.is_composite {
                        true => with_length(rest)?,
                        false => {
                            let whole = rest.get(..rest.len().checked_sub(self.behind(index))?)?;
                            (whole, whole)
                        }
                    };
                    segments.push(read(slot, whole, value)?);
                    rest = &rest[whole.len()..];
                }
            }
        }
        rest.is_empty().then_some(segments)
    }

    /// The keys that a plain value may stand for: one per alternative of the only slot. There are
    /// none for a template with several slots, whose keys hold several values.
    pub(super) fn readings(&self, value: &[u8], options: &ReadOptions) -> Vec<Key> {
        let slots = self.pieces.iter().filter_map(|piece| match piece {
            Piece::Slot(slot) => Some(slot),
            Piece::Literal(_) => None,
        });
        let alternatives = slots.filter(|_| !self.is_composite).flatten();
        let readings = alternatives.filter_map(|one| {
            let value =
                normalized_value(&one.field, value, options).filter(|value| !value.is_empty())?;
            Some(self.key_of(one, &value))
        });
        readings.collect()
    }

    /// Whether the template can make this key.
    #[cfg(feature = "tower")]
    pub(super) fn may_make(&self, key: &[u8], options: &ReadOptions) -> bool {
        match &*self.pieces {
            // A bare value is a key if it has the form that values of its kind have in keys.
            [Piece::Slot(slot)] if slot.len() == 1 => {
                let normalized = normalized_value(&slot[0].field, key, options);
                key == [MISSING] || normalized.is_some_and(|value| *value == *key)
            }
            _ => self.split(key).is_some(),
        }
    }

    /// Whether the template makes this key and adds something to the bare value, such as a tag.
    /// Such a text is read as a key, not as a value.
    pub(crate) fn is_full_form(&self, key: &[u8]) -> bool {
        let is_bare = matches!(&*self.pieces, [Piece::Slot(slot)] if slot.len() == 1);
        !is_bare && self.split(key).is_some()
    }

    /// The key of a request in which the only slot has this value.
    fn key_of(&self, chosen: &Alternative, value: &[u8]) -> Key {
        let mut writer = KeyWriter::default();
        for piece in &self.pieces {
            match piece {
                Piece::Literal(text) => writer.literal(text),
                Piece::Slot(_) if chosen.tag.is_empty() => writer.value(value),
                Piece::Slot(_) => writer.tagged(&chosen.tag, value),
            }
        }
        writer.finish()
    }

    /// How many bytes of literal text follow a piece.
    fn behind(&self, index: usize) -> usize {
        let length = |piece: &Piece| match piece {
            Piece::Literal(text) => text.len(),
            Piece::Slot(_) => 0,
        };
        self.pieces[index + 1..].iter().map(length).sum()
    }
}

/// A value as keys spell it; `None` if the part cannot have it.
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

/// The value at the start of `rest` without its length, and both together first.
fn with_length(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let mark = rest.iter().position(|byte| *byte == b'#')?;
    let length: usize = std::str::from_utf8(&rest[..mark]).ok()?.parse().ok()?;
    let end = (mark + 1).checked_add(length)?;
    Some((rest.get(..end)?, rest.get(mark + 1..end)?))
}

/// Reads the `value` that a slot has written; `whole` includes its length.
fn read<'t, 'k>(
    slot: &'t [Alternative],
    whole: &'k [u8],
    value: &'k [u8],
) -> Option<KeySegment<'t, 'k>> {
    if value == [MISSING] {
        return Some(KeySegment::Readable(whole));
    }
    let chosen = slot.iter().find(|one| value.starts_with(one.tag.as_bytes()))?;
    if !chosen.field.may_be_credential() {
        return Some(KeySegment::Readable(whole));
    }
    let has_length = whole.len() > value.len();
    Some(KeySegment::Credential { tag: &chosen.tag, value: &value[chosen.tag.len()..], has_length })
}
