//! Short texts, put together by copies whose length is known when this is compiled.
//!
//! What is put into a vector a few bytes at a time takes a call for each part, and where a whole
//! decision takes fifty nanoseconds those calls are most of it. Here every part has a
//! length that is a constant, and is written whole: what is not text is written over by the
//! next part. Who has longer parts is told so, and goes the usual way.

/// Up to `N` bytes of text.
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
        let (mut text, mut bits) = (0_u128, 0_u32);
        for octet in address.octets() {
            let (written, length) = OCTETS[usize::from(octet)];
            text |= u128::from(u32::from_le_bytes(written)) << bits;
            bits += u32::from(length) * 8;
        }
        // The last point is not part of it.
        Short { bytes: text.to_le_bytes(), length: (bits / 8 - 1) as usize }
    }
}

/// What keys begin with, where that is not long.
#[cfg(feature = "tower")]
pub(crate) type ShortPrefix = Short<32>;

/// The key most have: an address behind such a prefix.
#[cfg(feature = "tower")]
pub(crate) type ShortKey = Short<48>;

#[cfg(feature = "tower")]
impl ShortKey {
    /// An address behind a prefix from [`Short::new`], which has zeros behind its text.
    ///
    /// What is loaded from across two parts that were just stored has to wait until both are out
    /// of the processor. So what fits into sixteen bytes, which are hashed at once, is joined
    /// in registers.
    #[inline(always)]
    pub(crate) fn join(&mut self, first: &ShortPrefix, second: &Short<16>) {
        let (begin, text) = (first.length, u128::from_le_bytes(second.bytes));
        debug_assert!(
            first.bytes[begin..].iter().all(|byte| *byte == 0),
            "text is joined to zeros"
        );
        self.length = begin + second.length;
        if let (1..16, Some(head)) = (begin, first.bytes.first_chunk()) {
            let joined = u128::from_le_bytes(*head) | (text << (begin * 8));
            let rest = text >> ((16 - begin) * 8);
            self.bytes[..16].copy_from_slice(&joined.to_le_bytes());
            self.bytes[16..32].copy_from_slice(&rest.to_le_bytes());
        } else {
            self.bytes[..32].copy_from_slice(&first.bytes);
            self.bytes[begin.min(32)..][..16].copy_from_slice(&second.bytes);
        }
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

    #[cfg(feature = "tower")]
    #[test]
    fn joined_is_one_behind_the_other() {
        let all = "abcdefghijklmnopqrstuvwxyz-01234";
        for (first, second) in
            (0..=32).flat_map(|first| (0..=16).map(move |second| (first, second)))
        {
            let (first, second) = (&all[..first], &all[..second]);
            let mut joined = Short::EMPTY;
            let part = Short::new(first.as_bytes()).expect("no longer than that");
            joined.join(&part, &Short::new(second.as_bytes()).expect("no longer than that"));
            assert_eq!(joined.as_bytes(), [first, second].concat().as_bytes());
        }
    }

    #[test]
    fn addresses_are_as_usual() {
        for octet in 0..=u8::MAX {
            for address in [[octet; 4], [1, octet, 22, 0], [octet, 100, 0, 9]].map(Ipv4Addr::from) {
                assert_eq!(Short::address(address).as_bytes(), address.to_string().as_bytes());
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
