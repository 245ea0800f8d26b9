//! The token of a permit, used in paths.
//!
//! A permit in the memory of this node is known only here, so its token is a random number
//! (`local_permits.rs`). A permit in a shared store must be found by any node, and no node knows
//! which permits another has issued. Its token therefore contains the whole permit: `1.` and the
//! bytes of the permit in base64url. It cannot be guessed either, because the id of the permit in
//! it is random.

use std::fmt;

use tidegate::unstable::gate::SharedPermit;

use super::local_permits::LocalPermitId;

/// The prefix of the token of a shared permit: a version of the encoding.
const SHARED: &str = "1.";

/// The token of a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PermitToken {
    /// A permit in the memory of this node.
    Local(LocalPermitId),
    /// A permit in the store that nodes share.
    Shared(SharedPermit),
}

impl PermitToken {
    /// Parses the token in a path.
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix(SHARED) {
            Some(encoded) => {
                let permit = SharedPermit::from_bytes(&decode(encoded.as_bytes())?);
                permit.map(PermitToken::Shared)
            }
            None => LocalPermitId::parse(text).map(PermitToken::Local),
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

/// The alphabet of base64url, without padding: all characters are valid in a path.
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

/// Decodes a text; `None` if it is not exactly what [`encode`] returns.
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
        // Unused bits must be zero, else a permit would have several tokens.
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
