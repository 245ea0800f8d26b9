//! Reads request bodies within bounds of size and time, for every front over HTTP.
//!
//! The size of a request head is bounded in `http_protocol.rs`, that of a RESP command in
//! `resp/codec.rs`.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Version;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};

use crate::error::{ErrorKind, RequestError};

/// The maximum size of a check: 100 headers as attributes, with room to spare.
pub const MAX_CHECK_BYTES: usize = 64 * 1024;

/// The maximum size of a batch of checks.
pub const MAX_BATCH_BYTES: usize = 1024 * 1024;

/// The maximum size of a request for a permit.
pub const MAX_PERMIT_BYTES: usize = 64 * 1024;

/// The maximum size of a request of Envoy, over gRPC and in JSON. Envoy passes on headers of up to
/// 60 KiB, and a dozen descriptors may hold the same header. A client must not be able to make the
/// call fail, because Envoy may let the request pass then.
pub const MAX_ENVOY_BYTES: usize = 1024 * 1024;

/// The maximum size of a scenario of the playground: the most events and samples, with long numbers
/// and spaces.
pub const MAX_SCENARIO_BYTES: usize = 128 * 1024;

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum number of bytes of an oversized body that are read and discarded before the
/// response. If the connection were closed immediately, clients that send first and read afterwards
/// would see a broken connection instead of the response.
const DRAINED_BYTES: u64 = 4 * 1024 * 1024;

/// How long to wait for the rest of a body that is discarded.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads the whole body, of at most `max_bytes`. `first` is the part that was already read.
pub async fn collect(
    body: Incoming,
    first: Option<Bytes>,
    max_bytes: usize,
) -> Result<Bytes, RequestError> {
    let collected = read(body, first, max_bytes);
    tokio::time::timeout(BODY_TIMEOUT, collected).await.unwrap_or_else(|_| Err(too_slow()))
}

async fn read(
    mut body: Incoming,
    first: Option<Bytes>,
    max_bytes: usize,
) -> Result<Bytes, RequestError> {
    // The announced length is not allocated in advance, only compared.
    if body.size_hint().lower() > max_bytes as u64 {
        return drain(body, max_bytes).await;
    }
    let first = match first {
        Some(first) => first,
        None => match next(&mut body).await? {
            Some(first) => first,
            None => return Ok(Bytes::new()),
        },
    };
    if first.len() > max_bytes {
        return drain(body, max_bytes).await;
    }
    if body.is_end_stream() {
        return Ok(first);
    }
    let mut whole = BytesMut::from(first);
    while let Some(bytes) = next(&mut body).await? {
        if whole.len() + bytes.len() > max_bytes {
            return drain(body, max_bytes).await;
        }
        whole.extend_from_slice(&bytes);
    }
    Ok(whole.freeze())
}

/// Returns the next bytes. Trailers are skipped.
async fn next(body: &mut Incoming) -> Result<Option<Bytes>, RequestError> {
    loop {
        match body.frame().await {
            None => return Ok(None),
            Some(Err(_)) => return Err(broken()),
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
        }
    }
}

/// Reads and discards a body, within bounds, before its request is rejected. Over HTTP/2, dropping
/// an unread body cancels its stream, and with it a response that is not sent yet. Over HTTP/1.1,
/// the connection handles unread bodies, and reading would request the body from clients that sent
/// `Expect: 100-continue`.
pub async fn discard(version: Version, mut body: Incoming) {
    if version != Version::HTTP_2 || body.is_end_stream() {
        return;
    }
    let mut left = DRAINED_BYTES;
    let read = async {
        while let Ok(Some(bytes)) = next(&mut body).await
            && let Some(rest) = left.checked_sub(bytes.len() as u64)
        {
            left = rest;
        }
    };
    // The response is sent even if this times out.
    let _ = tokio::time::timeout(DISCARD_TIMEOUT, read).await;
}

/// Reads and discards an oversized body, so that the client receives the error.
async fn drain(mut body: Incoming, max_bytes: usize) -> Result<Bytes, RequestError> {
    let mut left = DRAINED_BYTES;
    // If the announced length exceeds the bound, the error is sent immediately.
    while body.size_hint().lower() <= left
        && let Some(bytes) = next(&mut body).await?
        && let Some(rest) = left.checked_sub(bytes.len() as u64)
    {
        left = rest;
    }
    Err(too_large(max_bytes))
}

fn too_large(max_bytes: usize) -> RequestError {
    let detail = format!("the body is larger than {max_bytes} bytes");
    RequestError::new(ErrorKind::TooLarge, detail)
}

fn too_slow() -> RequestError {
    RequestError::new(ErrorKind::TooSlow, "the body took too long to arrive")
}

/// The error of a client that disconnected or violated the protocol.
pub fn broken() -> RequestError {
    let detail = "the body is incomplete, or its chunks are malformed";
    RequestError::new(ErrorKind::BrokenOff, detail)
}
