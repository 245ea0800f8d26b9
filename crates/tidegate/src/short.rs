//! Short texts, put together by copies whose length is known when this is compiled.
//!
//! What is put into a vector a few bytes at a time takes a call for each part, and where a whole
//! decision takes fifty nanoseconds those calls are most of it. Here every part has a
//! length that is a constant, and is written whole: the zeros behind its text are written over
//! by the next part. Who has longer parts is told so, and goes the usual way.

/// Up to `N` bytes of text, with zeros behind it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Short<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Short<N> {
    #[inline(always)]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        // It is never longer; the compiler has to be told.
        &self.bytes[..self.length.min(N)]
    }
}

// Addresses alone are written everywhere.
#[cfg(feature = "tower")]
impl<const N: usize> Short<N> {
    pub(crate) const EMPTY: Self = Short { bytes: [0; N], length: 0 };

    /// `None` if it is longer.
    pub(crate) const fn new(text: &[u8]) -> Option<Self> {
        if text.len() > N {
            return None;
        }
        let mut bytes = [0; N];
        bytes.split_at_mut(text.len()).0.copy_from_slice(text);
        Some(Short { bytes, length: text.len() })
    }

    #[inline(always)]
    pub(crate) const fn length(&self) -> usize {
        self.length
    }

    /// Adds a text; `None` if there is no room for as much as there could be of it.
    #[inline(always)]
    pub(crate) fn put<const M: usize>(&mut self, text: &Short<M>) -> Option<()> {
        *self.bytes.get_mut(self.length..)?.first_chunk_mut()? = text.bytes;
        self.length += text.length;
        Some(())
    }
}

impl Short<16> {
    /// An IPv4 address.
    ///
    /// Nearly every key is one of these, and formatting them takes longer than all the rest. The
    /// text is put together in a register: what is stored in pieces cannot be loaded at once.
    #[inline(always)]
    pub(crate) fn address(address: std::net::Ipv4Addr) -> Self {
        let [a, b, c, d] = address.octets();
        let (first, first_bits) = two_octets(a, b);
        let (second, second_bits) = two_octets(c, d);
        // The last point is not part of it.
        let second = second ^ (u64::from(b'.') << (second_bits - 8));
        let text = u128::from(first) | (u128::from(second) << first_bits);
        Short { bytes: text.to_le_bytes(), length: ((first_bits + second_bits) / 8 - 1) as usize }
    }
}

/// Two octets as text, with a point behind each, and how many bits that takes.
#[inline(always)]
fn two_octets(first: u8, second: u8) -> (u64, u32) {
    let (first, first_length) = OCTETS[usize::from(first)];
    let (second, second_length) = OCTETS[usize::from(second)];
    let bits = u32::from(first_length) * 8;
    let text = u64::from(u32::from_le_bytes(first)) | u64::from(u32::from_le_bytes(second)) << bits;
    (text, bits + u32::from(second_length) * 8)
}

#[cfg(feature = "tower")]
impl Short<16> {
    /// All of it, as a number whose lowest byte is the first.
    #[inline(always)]
    pub(crate) fn word(&self) -> u128 {
        u128::from_le_bytes(self.bytes)
    }
}

#[cfg(feature = "tower")]
impl Short<48> {
    /// What such numbers are, one behind the other; zeros behind `length` bytes.
    #[inline(always)]
    pub(crate) fn of_words(words: [u128; 3], length: usize) -> Self {
        let mut bytes = [0; 48];
        for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        debug_assert!(bytes[length..].iter().all(|byte| *byte == 0), "zeros are behind the text");
        Short { bytes, length }
    }
}

#[cfg(feature = "tower")]
impl Short<8> {
    /// A number of up to eight digits; `None` if it has more.
    ///
    /// All digits are worked out at once, in one register: first both halves of four, then the
    /// pairs of each, then the digits of each pair.
    #[inline(always)]
    pub(crate) fn number(number: u64) -> Option<Self> {
        if number >= 100_000_000 {
            return None;
        }
        let fours = (number / 10_000) | ((number % 10_000) << 32);
        // Divided by 100 by way of 2^20, which is exact for four digits; then by 10 by way of 2^10.
        let hundreds = ((fours * 10_486) >> 20) & 0x7F_0000_007F;
        let pairs = hundreds | ((fours - 100 * hundreds) << 16);
        let tens = ((pairs * 103) >> 10) & 0x000F_000F_000F_000F;
        let digits = tens | ((pairs - 10 * tens) << 8);
        // The first digit is the lowest byte. One is written even if all are zero.
        let zeros = digits.trailing_zeros().min(63) / 8;
        let text = (digits | 0x3030_3030_3030_3030) >> (zeros * 8);
        Some(Short { bytes: text.to_le_bytes(), length: 8 - zeros as usize })
    }
}

/// Every octet as text, with a point behind it, and how long that is.
static OCTETS: [([u8; 4], u8); 256] = {
    let mut all = [([0; 4], 0); 256];
    let mut octet = 0_u8;
    loop {
        let [a, b, c] = [b'0' + octet / 100, b'0' + octet / 10 % 10, b'0' + octet % 10];
        all[octet as usize] = match octet {
            100.. => ([a, b, c, b'.'], 4),
            10.. => ([b, c, b'.', 0], 3),
            _ => ([c, b'.', 0, 0], 2),
        };
        if octet == u8::MAX {
            break all;
        }
        octet += 1;
    }
};

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[cfg(feature = "tower")]
    #[test]
    fn parts_follow_one_another() {
        let put = |parts: &[&str]| {
            let mut text = Short::<16>::EMPTY;
            for part in parts {
                text.put(&Short::<8>::new(part.as_bytes())?)?;
            }
            Some(String::from_utf8_lossy(text.as_bytes()).into_owned())
        };
        let rows: [(&[&str], Option<&str>); 6] = [
            (&[], Some("")),
            (&["", "tide", "", "gate"], Some("tidegate")),
            (&["12345678", "12345678"], Some("1234567812345678")),
            // Room is what a part could take, not what it takes.
            (&["12345678", "1", "2"], None),
            (&["12345678", "12345678", ""], None),
            (&["123456789"], None),
        ];
        for (parts, expected) in rows {
            assert_eq!(put(parts).as_deref(), expected, "{parts:?}");
        }
    }

    #[test]
    fn addresses_are_as_usual() {
        for octet in 0..=u8::MAX {
            for address in [[octet; 4], [1, octet, 22, 0], [octet, 100, 0, 9]].map(Ipv4Addr::from) {
                let text = Short::address(address);
                assert_eq!(text.as_bytes(), address.to_string().as_bytes());
                assert!(text.bytes[text.length..].iter().all(|byte| *byte == 0), "{address}");
            }
        }
    }

    #[cfg(feature = "tower")]
    #[test]
    fn numbers_are_as_usual() {
        let powers = (0..8).flat_map(|power| (0..3).map(move |near| 10_u64.pow(power) + near - 1));
        let spread = (0..100_000).map(|step| step * 999 + step % 7);
        for number in (0..20_000).chain(powers).chain(spread).chain([99_999_999]) {
            let text = Short::number(number).expect("up to eight digits");
            assert_eq!(text.as_bytes(), number.to_string().as_bytes());
        }
        assert!(Short::number(100_000_000).is_none());
        assert!(Short::number(u64::MAX).is_none());
    }
}
