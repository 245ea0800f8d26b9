//! A cache of the limits that clients send with every command.
//!
//! A client of redis-cell sends the same few numbers with every command, and creating a [`Limit`]
//! from them takes several divisions, which is longer than a decision. So limits are cached by the
//! arguments that were sent. Each slot holds the last limit that mapped to it, so the cache never
//! grows, and a client that always sends new limits only pays for creating them.

use std::sync::Arc;

use tidegate::unstable::bounds;
use tidegate::unstable::policy::{MAX_LIMITS, check_counts};
use tidegate::{Algorithm, Limit, LimitError};

use super::excerpt;
use crate::error::RequestError;

/// The number of slots per kind: more than the number of limits that an application has.
const SLOTS: usize = 64;

/// The maximum length of a cached text. Longer ones are parsed each time.
const MAX_TEXT_BYTES: usize = 64;

/// A token bucket with the parameters of redis-cell and throttlecrab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The capacity.
    pub burst: i64,
    pub count: i64,
    pub period_s: i64,
}

/// Limits that were created recently.
#[derive(Debug)]
pub struct LimitCache {
    buckets: Vec<Option<(Bucket, Arc<[Limit]>)>>,
    texts: Vec<Option<(Box<[u8]>, Arc<[Limit]>)>>,
}

impl Default for LimitCache {
    fn default() -> Self {
        LimitCache { buckets: vec![None; SLOTS], texts: vec![None; SLOTS] }
    }
}

impl LimitCache {
    /// Returns the limit of a bucket.
    ///
    /// # Errors
    /// When the parameters are not a valid limit.
    #[inline]
    pub fn bucket(&mut self, bucket: Bucket) -> Result<Arc<[Limit]>, RequestError> {
        let mixed = (bucket.burst ^ bucket.count.rotate_left(21) ^ bucket.period_s.rotate_left(42))
            .cast_unsigned();
        let slot = &mut self.buckets[slot(mixed)];
        match slot {
            Some((kept, limits)) if *kept == bucket => Ok(Arc::clone(limits)),
            _ => {
                let limits = Arc::from([bucket.limit()?]);
                *slot = Some((bucket, Arc::clone(&limits)));
                Ok(limits)
            }
        }
    }

    /// Returns the limits of a text: one, or several separated by commas.
    ///
    /// # Errors
    /// When the text is not a valid list of limits.
    pub fn text(&mut self, text: &[u8]) -> Result<Arc<[Limit]>, RequestError> {
        if text.len() > MAX_TEXT_BYTES {
            return Ok(read(text)?.into());
        }
        let mixed = text.iter().fold(text.len() as u64, |mixed, byte| {
            (mixed ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let slot = &mut self.texts[slot(mixed)];
        match slot {
            Some((kept, limits)) if **kept == *text => Ok(Arc::clone(limits)),
            _ => {
                let limits = Arc::from(read(text)?);
                *slot = Some((text.into(), Arc::clone(&limits)));
                Ok(limits)
            }
        }
    }
}

/// The slot for a key with this hash.
#[inline]
fn slot(mixed: u64) -> usize {
    let spread = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    usize::try_from(spread >> (64 - SLOTS.trailing_zeros())).unwrap_or_default()
}

fn read(text: &[u8]) -> Result<Vec<Limit>, RequestError> {
    let refuse = |detail: String| RequestError::field("limit", detail);
    let text = std::str::from_utf8(text).map_err(|_| {
        refuse("not valid UTF-8: write a limit such as `5 per 1m sliding-log`".into())
    })?;
    let each = text.split(',').map(str::trim);
    let each = each.map(|one| one.parse().map_err(|error| refuse(on_one_line(one, &error))));
    let limits = each.collect::<Result<Vec<Limit>, RequestError>>()?;
    if limits.len() > MAX_LIMITS {
        return Err(refuse(format!("there are more than {MAX_LIMITS}: give fewer")));
    }
    check_counts(&limits).map_err(|error| refuse(error.to_string()))?;
    Ok(limits)
}

/// Formats the error of a text on one line, without the excerpt and caret.
fn on_one_line(text: &str, error: &LimitError) -> String {
    let word = error.span().and_then(|span| text.get(span)).unwrap_or_default();
    let word = if word.is_empty() { text } else { word };
    format!("`{}`: {}: {}", excerpt(word.as_bytes()), error.problem(), error.help())
}

impl Bucket {
    /// Converts the bucket to a `token-bucket` limit. A bucket without capacity becomes a limit of
    /// 0, which admits nothing.
    fn limit(self) -> Result<Limit, RequestError> {
        let out_of_range = |field, most| {
            RequestError::field(
                field,
                format!("it is out of range: use a whole number up to {most}"),
            )
        };
        let period_s = u64::try_from(self.period_s).unwrap_or_default();
        let longest_s = bounds::MAX_WINDOW_US / 1_000_000;
        if period_s > longest_s {
            return Err(out_of_range("period", longest_s));
        }
        let count = u64::try_from(self.count).unwrap_or_default();
        if count > bounds::MAX_COUNT {
            return Err(out_of_range("count", bounds::MAX_COUNT));
        }
        let burst = u64::try_from(self.burst).unwrap_or_default();
        if burst > bounds::MAX_COUNT {
            return Err(out_of_range("max_burst", bounds::MAX_COUNT - 1));
        }
        let window = std::time::Duration::from_secs(period_s);
        let count = if burst == 0 { 0 } else { count };
        let limit = Limit::new(count, window, Algorithm::TokenBucket);
        let limit =
            limit.and_then(|limit| if burst == 0 { Ok(limit) } else { limit.with_burst(burst) });
        limit.map_err(|error| RequestError::field("limit", error.to_string()))
    }
}
