//! The messages: decodes a `RateLimitRequest` and encodes a `RateLimitResponse`.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate::unstable::config::envoy::Unit;

use super::protobuf::{Fields, Malformed, Wire, put_bytes, put_double, put_nested, put_number};
use super::reply::{Reply, Status, Value};
use super::{MAX_DESCRIPTORS, MAX_ENTRIES};

/// Names and values, in order, in the form of
/// [`Attributes`](tidegate::unstable::attributes::Attributes).
pub type Entries<'a> = SmallVec<[(Cow<'a, str>, Cow<'a, str>); 3]>;

/// A `RateLimitRequest`: one decision about all of its descriptors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimitRequest<'a> {
    /// The domain, which selects the policies.
    pub domain: Cow<'a, str>,
    /// The descriptors to decide.
    pub descriptors: SmallVec<[Descriptor<'a>; 2]>,
    /// The cost of descriptors without a `hits_addend`; 0 if not set.
    pub hits_addend: u32,
}

/// A descriptor of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor<'a> {
    /// Names and values, in order.
    pub entries: Entries<'a>,
    /// The limit that replaces the configured ones.
    pub limit: Option<RequestLimit>,
    /// The cost.
    pub hits_addend: Option<u64>,
    /// Whether the cost is refunded.
    pub is_negative_hits: bool,
}

/// A limit that is sent with the request: a number of requests per unit of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestLimit {
    pub requests_per_unit: u32,
    /// The number of the unit in `envoy.type.v3.RateLimitUnit`.
    pub unit: u64,
}

impl<'a> RateLimitRequest<'a> {
    /// Decodes a message. At most one descriptor and one entry more than the maximum are kept, so
    /// that the excess can be detected: an empty one takes two bytes of a message and a hundred
    /// times as much here. Values are not validated.
    ///
    /// # Errors
    /// When the bytes are malformed.
    pub fn decode(message: &'a [u8]) -> Result<Self, Malformed> {
        let mut request = RateLimitRequest::default();
        for field in Fields::new(message) {
            match field? {
                (1, value) => request.domain = text(value)?,
                (2, _) if request.descriptors.len() > MAX_DESCRIPTORS => {}
                (2, value) => request.descriptors.push(Descriptor::decode(value.bytes()?)?),
                (3, value) => request.hits_addend = low_32_bits(value.number()?),
                _ => {}
            }
        }
        Ok(request)
    }
}

impl<'a> Descriptor<'a> {
    fn decode(message: &'a [u8]) -> Result<Self, Malformed> {
        let mut descriptor = Descriptor::default();
        for field in Fields::new(message) {
            match field? {
                (1, _) if descriptor.entries.len() > MAX_ENTRIES => {}
                (1, value) => descriptor.entries.push(entry(value.bytes()?)?),
                (2, value) => {
                    descriptor.limit.get_or_insert_default().read(value.bytes()?)?;
                }
                (3, value) => {
                    // The number is a nested message (a wrapper), so that 0 differs from absent.
                    let hits = descriptor.hits_addend.get_or_insert_default();
                    for field in Fields::new(value.bytes()?) {
                        if let (1, value) = field? {
                            *hits = value.number()?;
                        }
                    }
                }
                (4, value) => descriptor.is_negative_hits = value.number()? != 0,
                _ => {}
            }
        }
        Ok(descriptor)
    }
}

impl RequestLimit {
    fn read(&mut self, message: &[u8]) -> Result<(), Malformed> {
        for field in Fields::new(message) {
            match field? {
                (1, value) => self.requests_per_unit = low_32_bits(value.number()?),
                (2, value) => self.unit = value.number()?,
                _ => {}
            }
        }
        Ok(())
    }
}

fn entry(message: &[u8]) -> Result<(Cow<'_, str>, Cow<'_, str>), Malformed> {
    let (mut key, mut value) = (Cow::default(), Cow::default());
    for field in Fields::new(message) {
        match field? {
            (1, read) => key = text(read)?,
            (2, read) => value = text(read)?,
            _ => {}
        }
    }
    Ok((key, value))
}

fn text(value: Wire<'_>) -> Result<Cow<'_, str>, Malformed> {
    Ok(String::from_utf8_lossy(value.bytes()?))
}

/// Truncates a number to 32 bits, as every implementation does for a 32-bit field.
#[expect(clippy::cast_possible_truncation, reason = "that is what is meant")]
fn low_32_bits(number: u64) -> u32 {
    number as u32
}

/// Values of `RateLimitResponse.Code`.
const OK: u64 = 1;
const OVER_LIMIT: u64 = 2;

impl Reply<'_> {
    /// Appends the encoded message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_number(out, 1, if self.allowed { OK } else { OVER_LIMIT });
        for status in &self.statuses {
            put_nested(out, 2, |out| put_status(out, status));
        }
        for (name, value) in &self.headers {
            put_nested(out, 3, |out| {
                put_bytes(out, 1, name.as_str().as_bytes());
                put_bytes(out, 2, value.as_bytes());
            });
        }
        for (name, count) in &self.counts {
            put_nested(out, 3, |out| {
                put_bytes(out, 1, name.as_bytes());
                put_bytes(out, 2, count.to_string().as_bytes());
            });
        }
        if !self.metadata.is_empty() {
            put_nested(out, 6, |out| put_struct(out, &self.metadata));
        }
    }
}

fn put_status(out: &mut Vec<u8>, status: &Status<'_>) {
    put_number(out, 1, if status.denied { OVER_LIMIT } else { OK });
    let Some((name, limit)) = status.limit else {
        if status.remaining > 0 {
            put_number(out, 3, at_most_32_bits(status.remaining));
        }
        return;
    };
    put_nested(out, 2, |out| {
        put_number(out, 1, at_most_32_bits(limit.count()));
        put_number(out, 2, Unit::of_limit(limit).unwrap_or_default().number());
        put_bytes(out, 3, name.as_bytes());
    });
    put_number(out, 3, at_most_32_bits(status.remaining));
    put_nested(out, 4, |out| {
        put_number(out, 1, status.until_reset.as_secs());
        put_number(out, 2, status.until_reset.subsec_nanos().into());
    });
}

/// Appends the fields of a `google.protobuf.Struct`.
fn put_struct(out: &mut Vec<u8>, fields: &[(&str, Value<'_>)]) {
    for (name, value) in fields {
        put_nested(out, 1, |out| {
            put_bytes(out, 1, name.as_bytes());
            put_nested(out, 2, |out| put_value(out, value));
        });
    }
}

/// Appends a `google.protobuf.Value`.
fn put_value(out: &mut Vec<u8>, value: &Value<'_>) {
    match value {
        // Field 1 with the number 0, which must be present.
        Value::Null => out.extend_from_slice(&[1 << 3, 0]),
        #[expect(clippy::cast_precision_loss, reason = "limits are far below 2^53")]
        Value::Number(number) => put_double(out, 2, *number as f64),
        Value::Double(number) => put_double(out, 2, *number),
        // A field that must be present even if it is 0.
        Value::Bool(value) => out.extend_from_slice(&[4 << 3, u8::from(*value)]),
        Value::Text(text) => put_bytes(out, 3, text.as_bytes()),
        Value::OwnedText(text) => put_bytes(out, 3, text.as_bytes()),
        Value::Texts(texts) => put_nested(out, 6, |out| {
            for text in texts {
                put_nested(out, 1, |out| put_bytes(out, 3, text.as_bytes()));
            }
        }),
        Value::Map(fields) => put_nested(out, 5, |out| put_struct(out, fields)),
        Value::List(values) => put_nested(out, 6, |out| {
            for value in values {
                put_nested(out, 1, |out| put_value(out, value));
            }
        }),
    }
}

/// Saturates a number at 32 bits, the size of Envoy's fields.
fn at_most_32_bits(number: u64) -> u64 {
    number.min(u32::MAX.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fronts::envoy::protobuf::{put_bytes, put_nested, put_number};

    #[test]
    fn decodes_known_fields_and_skips_others() {
        let mut message = Vec::new();
        put_bytes(&mut message, 1, b"edge");
        put_nested(&mut message, 2, |out| {
            put_nested(out, 1, |out| {
                put_bytes(out, 1, b"path");
                put_bytes(out, 2, b"/caf\xff");
                put_bytes(out, 9, b"to come");
            });
            put_nested(out, 1, |out| put_bytes(out, 1, b"generic_key"));
            put_nested(out, 2, |out| {
                put_number(out, 1, 7);
                put_number(out, 2, 2);
            });
            put_nested(out, 3, |out| put_number(out, 1, u64::MAX));
            put_number(out, 4, 1);
        });
        put_nested(&mut message, 2, |out| put_nested(out, 3, |_| {}));
        put_number(&mut message, 3, 5);
        put_number(&mut message, 77, 1);
        let request = RateLimitRequest::decode(&message).expect("a message");
        assert_eq!((&*request.domain, request.hits_addend), ("edge", 5));
        let [first, second] = &request.descriptors[..] else { panic!("{request:?}") };
        let entry = |key: &'static str, value: &'static str| (key.into(), value.into());
        assert_eq!(first.entries[..], [entry("path", "/caf\u{fffd}"), entry("generic_key", "")]);
        assert_eq!(first.limit, Some(RequestLimit { requests_per_unit: 7, unit: 2 }));
        assert_eq!((first.hits_addend, first.is_negative_hits), (Some(u64::MAX), true));
        // Present and 0, which means a peek.
        assert_eq!(second, &Descriptor { hits_addend: Some(0), ..Descriptor::default() });
    }

    #[test]
    fn decoding_bounds_descriptors_and_entries() {
        // The maximum number of empty descriptors that fit into the largest message, then entries.
        let message = [0x12, 0].repeat(512 * 1024);
        let request = RateLimitRequest::decode(&message).expect("a message");
        assert_eq!(request.descriptors.len(), MAX_DESCRIPTORS + 1);
        let mut message = Vec::new();
        put_nested(&mut message, 2, |out| out.extend([0x0a, 0].repeat(100_000)));
        let request = RateLimitRequest::decode(&message).expect("a message");
        assert_eq!(request.descriptors[0].entries.len(), MAX_ENTRIES + 1);
    }

    #[test]
    fn decodes_any_bytes_without_panicking() {
        // A pseudo-random walk from a fixed seed, so that failures are reproducible.
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let mut read = 0;
        for _ in 0..20_000 {
            let length = next() % 40;
            // Small numbers are valid tags and lengths.
            let bytes: Vec<u8> = (0..length).map(|_| (next() % 35) as u8).collect();
            read += u32::from(RateLimitRequest::decode(&bytes).is_ok());
        }
        assert!((100..19_900).contains(&read), "{read} of 20000");
    }
}
