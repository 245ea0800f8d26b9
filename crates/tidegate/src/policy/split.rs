//! Takes a key apart: which of its bytes came from which part of the request.
//!
//! Keys are injective (see `key.rs`), so a template can read back what it has written. This
//! is for people: a log must not show the credentials in a key.

use smallvec::SmallVec;

use super::key::MISSING;
use super::part::Part;
use super::template::{Alternative, Piece, Template};

/// A run of bytes in a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stretch<'t, 'k> {
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

pub(crate) type Stretches<'t, 'k> = SmallVec<[Stretch<'t, 'k>; 4]>;

impl Template {
    /// Whether its keys may hold credentials: values of headers, cookies or query parameters.
    pub(crate) fn has_credentials(&self) -> bool {
        self.parts().any(Part::may_be_credential)
    }

    /// Takes a key of this template apart; `None` if the template makes no such key. A key that
    /// was cut, and one that a caller gave in another form, are such.
    pub(crate) fn split<'t, 'k>(&'t self, key: &'k [u8]) -> Option<Stretches<'t, 'k>> {
        let mut stretches = Stretches::new();
        let mut rest = key;
        for (index, piece) in self.pieces.iter().enumerate() {
            match piece {
                Piece::Literal(text) => {
                    let (literal, behind) = rest.split_at_checked(text.len())?;
                    if literal != text.as_bytes() {
                        return None;
                    }
                    stretches.push(Stretch::Readable(literal));
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
                    stretches.push(read(slot, whole, value)?);
                    rest = &rest[whole.len()..];
                }
            }
        }
        rest.is_empty().then_some(stretches)
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

/// The value at the start of `rest` without its length, and both together first.
fn with_length(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let mark = rest.iter().position(|byte| *byte == b'#')?;
    let length: usize = std::str::from_utf8(&rest[..mark]).ok()?.parse().ok()?;
    let end = (mark + 1).checked_add(length)?;
    Some((rest.get(..end)?, rest.get(mark + 1..end)?))
}

/// What a slot has written as `value`; `whole` has its length in front.
fn read<'t, 'k>(
    slot: &'t [Alternative],
    whole: &'k [u8],
    value: &'k [u8],
) -> Option<Stretch<'t, 'k>> {
    if value == [MISSING] {
        return Some(Stretch::Readable(whole));
    }
    let chosen = slot.iter().find(|one| value.starts_with(one.tag.as_bytes()))?;
    if !chosen.part.may_be_credential() {
        return Some(Stretch::Readable(whole));
    }
    let has_length = whole.len() > value.len();
    Some(Stretch::Credential { tag: &chosen.tag, value: &value[chosen.tag.len()..], has_length })
}
