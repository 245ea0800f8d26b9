//! A `RateLimitResponse` as bytes.

use super::protobuf::{put_bytes, put_double, put_nested, put_number};
use super::reply::{Metadata, Reply, Status, Value, unit};

/// `RateLimitResponse.Code`.
const OK: u64 = 1;
const OVER_LIMIT: u64 = 2;

impl Reply<'_> {
    /// Appends the message.
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
        put_number(out, 2, unit(limit));
        put_bytes(out, 3, name.as_bytes());
    });
    put_number(out, 3, at_most_32_bits(status.remaining));
    put_nested(out, 4, |out| {
        put_number(out, 1, status.until_reset.as_secs());
        put_number(out, 2, status.until_reset.subsec_nanos().into());
    });
}

/// A `google.protobuf.Struct`.
fn put_struct(out: &mut Vec<u8>, fields: &Metadata<'_>) {
    for (name, value) in fields {
        put_nested(out, 1, |out| {
            put_bytes(out, 1, name.as_bytes());
            put_nested(out, 2, |out| match value {
                // Field 1 with the number 0, which must be there.
                Value::Null => out.extend_from_slice(&[1 << 3, 0]),
                #[expect(clippy::cast_precision_loss, reason = "limits are far below 2^53")]
                Value::Number(number) => put_double(out, 2, *number as f64),
                Value::Text(text) => put_bytes(out, 3, text.as_bytes()),
                Value::Texts(texts) => put_nested(out, 6, |out| {
                    for text in texts {
                        put_nested(out, 1, |out| put_bytes(out, 3, text.as_bytes()));
                    }
                }),
            });
        });
    }
}

/// Envoy's numbers have 32 bits; ours may be larger.
fn at_most_32_bits(number: u64) -> u64 {
    number.min(u32::MAX.into())
}
