//! How a permit is named in a path.
//!
//! A permit in this node's memory is known here only, so its name is a random number
//! (`local_permits.rs`). One in a shared store must be found from any node, and no node knows
//! what another handed out; so its name is all there is to know about it: `1.` and
//! the bytes of the permit in base64url. It cannot be guessed either, for the permit's
//! number in it is random.

use std::fmt;

use tidegate::unstable::gate::SharedPermit;

use super::local_permits::PermitId;

/// Before the bytes of a shared permit: the version of what follows.
const SHARED: &str = "1.";

/// The name of a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PermitToken {
    /// In this node's memory.
    Local(PermitId),
    /// In the store that nodes share.
    Shared(SharedPermit),
}

impl PermitToken {
    /// The name in a path.
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix(SHARED) {
            Some(encoded) => {
                let permit = SharedPermit::from_bytes(&decode(encoded.as_bytes())?);
                permit.map(PermitToken::Shared)
            }
            None => PermitId::parse(text).map(PermitToken::Local),
        }
    }
}

impl fmt::Display for PermitToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PermitToken::Local(id) => id.fmt(f),
            PermitToken::Shared(permit) => write!(f, "{SHARED}{}", encode(&permit.to_bytes())),
        }
    }
}

/// The letters of base64url, without padding: all of them may stand in a path.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let place = |index: usize| u32::from(group.get(index).copied().unwrap_or_default());
        let bits = place(0) << 16 | place(1) << 8 | place(2);
        for index in 0..=group.len() {
            let letter = (bits >> (18 - 6 * index)) & 0x3f;
            text.push(char::from(LETTERS[letter as usize]));
        }
    }
    text
}

/// The bytes of a text; `None` if it is not exactly what [`encode`] makes of them.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.chunks(4) {
        let mut bits = 0;
        for (index, letter) in group.iter().enumerate() {
            let value = LETTERS.iter().position(|known| known == letter)?;
            bits |= u32::try_from(value).ok()? << (18 - 6 * index);
        }
        let [_, first, second, third] = bits.to_be_bytes();
        let (held, rest) = match group.len() {
            2 => (1, second | third),
            3 => (2, third),
            4 => (3, 0),
            _ => return None,
        };
        // Bits that stand for nothing must be nothing, or a permit had several names.
        if rest != 0 {
            return None;
        }
        bytes.extend_from_slice(&[first, second, third][..held]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64url_round_trips_canonically() {
        let rows: [(&[u8], &str); 6] = [
            (b"", ""),
            (b"f", "Zg"),
            (b"fo", "Zm8"),
            (b"foo", "Zm9v"),
            (b"foob", "Zm9vYg"),
            (&[0xff, 0xfe, 0x00, 0xfb], "__4A-w"),
        ];
        for (bytes, text) in rows {
            assert_eq!(encode(bytes), text);
            assert_eq!(decode(text.as_bytes()).as_deref(), Some(bytes), "{text}");
        }
        for text in ["Z", "Zg==", "Zh", "Zm9", "Zm9vY", "Zm+v", "Zm/v", "Zm 9", "Zmé"] {
            assert_eq!(decode(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn rejects_malformed_permit_tokens() {
        for text in ["", "1.", "1.!", "1.AAAA", "2.Zm9v", "x", &"0".repeat(31), &"A".repeat(32)] {
            assert_eq!(PermitToken::parse(text), None, "{text}");
        }
    }
}
