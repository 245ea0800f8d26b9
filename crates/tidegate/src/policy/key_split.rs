//! Takes a key apart: which of its bytes came from which part of the request.
//!
//! Keys are injective (see `key.rs`), so a template can read back what it has written. This
//! is for people: a log must not show the credentials in a key.
//!
//! The reverse: the keys that a plain value, such as `k-live-2`, may stand for.

use std::borrow::Cow;
use std::net::IpAddr;

use smallvec::SmallVec;

use super::key::{Key, KeyWriter, MISSING};
use super::normalized::{ReadOptions, host_name};
use super::path;
use super::request_field::RequestField;
use super::template::{Alternative, Piece, Template};

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
