//! The wire format of Protocol Buffers, as far as the services of this front need it.
//!
//! A message is a sequence of fields, each with a number, a wire type and a value. No memory is
//! allocated for a declared length. A length beyond the end of the message is malformed.

/// The fields of a message, in order.
#[derive(Clone, Debug)]
pub struct Fields<'a>(&'a [u8]);

/// The value of a field, by its wire type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire<'a> {
    /// A varint: a number or a flag.
    Number(u64),
    /// A length-delimited value: text, bytes or a message.
    Bytes(&'a [u8]),
    /// A fixed value of eight or four bytes, which no decoded field has.
    Fixed,
}

/// The bytes are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a valid Protocol Buffers message of this type")]
pub struct Malformed;

impl<'a> Fields<'a> {
    /// Iterates over the fields of `message`.
    pub fn new(message: &'a [u8]) -> Self {
        Fields(message)
    }

    fn field(&mut self) -> Result<(u64, Wire<'a>), Malformed> {
        let tag = self.number()?;
        let value = match tag & 7 {
            0 => Wire::Number(self.number()?),
            1 => self.take(8).map(|_| Wire::Fixed)?,
            2 => {
                let length = self.number()?;
                Wire::Bytes(self.take(usize::try_from(length).map_err(|_| Malformed)?)?)
            }
            5 => self.take(4).map(|_| Wire::Fixed)?,
            _ => return Err(Malformed),
        };
        match tag >> 3 {
            0 => Err(Malformed),
            field => Ok((field, value)),
        }
    }

    #[inline]
    fn number(&mut self) -> Result<u64, Malformed> {
        let (mut number, mut shift) = (0_u64, 0);
        loop {
            let (byte, rest) = self.0.split_first().ok_or(Malformed)?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte holds only one bit.
            if shift == 63 && bits > 1 {
                return Err(Malformed);
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
            shift += 7;
            if shift > 63 {
                return Err(Malformed);
            }
        }
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Wire<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Wire<'a> {
    /// Returns the number.
    ///
    /// # Errors
    /// When the value is not a varint.
    pub fn number(self) -> Result<u64, Malformed> {
        match self {
            Wire::Number(number) => Ok(number),
            _ => Err(Malformed),
        }
    }

    /// Returns the bytes.
    ///
    /// # Errors
    /// When the value is not length-delimited.
    pub fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Wire::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed),
        }
    }
}

const NUMBER: u64 = 0;
const FIXED_64: u64 = 1;
const BYTES: u64 = 2;

/// Appends a number. 0 is omitted, because it is the default of an absent field.
#[inline]
pub fn put_number(out: &mut Vec<u8>, field: u64, number: u64) {
    if number != 0 {
        put_varint(out, field << 3 | NUMBER);
        put_varint(out, number);
    }
}

/// Appends text or bytes. Empty values are omitted, because they are the default of an absent
/// field.
#[inline]
pub fn put_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_varint(out, field << 3 | BYTES);
        put_varint(out, bytes.len() as u64);
        out.extend_from_slice(bytes);
    }
}

/// Appends a double, even if it is 0: in a `oneof`, presence is significant.
pub fn put_double(out: &mut Vec<u8>, field: u64, number: f64) {
    put_varint(out, field << 3 | FIXED_64);
    out.extend_from_slice(&number.to_le_bytes());
}

/// Appends a nested message, which `write` writes.
#[inline]
pub fn put_nested(out: &mut Vec<u8>, field: u64, write: impl FnOnce(&mut Vec<u8>)) {
    put_varint(out, field << 3 | BYTES);
    // Nearly all messages are shorter than 128 bytes, so their length takes one byte.
    let at = out.len();
    out.push(0);
    write(out);
    let length = out.len() - at - 1;
    match u8::try_from(length) {
        Ok(short @ ..0x80) => out[at] = short,
        _ => {
            let mut prefix = Vec::with_capacity(10);
            put_varint(&mut prefix, length as u64);
            out.splice(at..=at, prefix);
        }
    }
}

#[inline]
fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push((number & 0x7f) as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_round_trips() {
        for number in [1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            put_number(&mut out, 5, number);
            let read: Vec<_> = Fields::new(&out).collect();
            assert_eq!(read, [Ok((5, Wire::Number(number)))]);
        }
        for length in [1, 127, 128, 129, 300, 20_000] {
            let text = vec![b'x'; length];
            let mut out = Vec::new();
            put_nested(&mut out, 2, |out| out.extend_from_slice(&text));
            let mut flat = Vec::new();
            put_bytes(&mut flat, 2, &text);
            assert_eq!(out, flat, "{length}");
            assert_eq!(Fields::new(&out).next(), Some(Ok((2, Wire::Bytes(&text)))));
        }
    }

    #[test]
    fn malformed_message_gives_one_error() {
        #[rustfmt::skip]
        let rows: [&[u8]; 9] = [
            // An unterminated varint, one of 65 bits, one of eleven bytes.
            &[8], &[8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2],
            &[8, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 1],
            // A text longer than the message; one of 2^63 bytes.
            &[10, 5, b'a'], &[10, 255, 255, 255, 255, 255, 255, 255, 255, 127],
            // Field 0; groups; half a double.
            &[0, 1], &[11, 8, 1, 12], &[9, 1, 2, 3], &[13, 1],
        ];
        for bytes in rows {
            assert_eq!(Fields::new(bytes).collect::<Vec<_>>(), [Err(Malformed)], "{bytes:?}");
        }
    }
}
