//! Bounds of the values that callers send, the same on every front.

use tidegate::unstable::bounds;
use tidegate::unstable::policy::MAX_KEY_BYTES;

use crate::error::RequestError;

/// The largest absolute cost, which equals the largest limit.
#[expect(clippy::cast_possible_wrap, reason = "10^12 is far below 2^63")]
pub const MAX_COST: i64 = bounds::MAX_COUNT as i64;

/// The maximum length of an idempotency id: two UUIDs with room to spare.
const MAX_ID_BYTES: usize = 256;

/// Validates a key.
///
/// # Errors
/// When it is empty or too long.
#[inline]
pub fn checked_key(key: &[u8]) -> Result<&[u8], RequestError> {
    match key.len() {
        0 => Err(RequestError::field("key", "it is empty: send the name of who is counted")),
        1..=MAX_KEY_BYTES => Ok(key),
        _ => {
            let detail = format!("it is longer than {MAX_KEY_BYTES} bytes: send a hash of it");
            Err(RequestError::field("key", detail))
        }
    }
}

/// Validates an idempotency id. `field` is its name in the protocol.
///
/// # Errors
/// When it is empty or too long.
pub fn checked_id<'a>(field: &'static str, id: &'a [u8]) -> Result<&'a [u8], RequestError> {
    match id.len() {
        0 => Err(RequestError::field(field, "it is empty: leave it out, or send one per request")),
        1..=MAX_ID_BYTES => Ok(id),
        _ => {
            let detail = format!("it is longer than {MAX_ID_BYTES} bytes: shorten it");
            Err(RequestError::field(field, detail))
        }
    }
}
