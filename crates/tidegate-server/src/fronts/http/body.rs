//! Request bodies: collected within bounds of size and time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Version;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};

use crate::error::{ErrorKind, RequestError};

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Of a body that is too large so much is read and dropped before the answer: if we
/// closed at once, clients that send first and read afterwards would see a
/// broken connection in place of the answer.
const DRAINED_BYTES: u64 = 4 * 1024 * 1024;

/// How long we wait for the rest of a body that nobody wants.
const UNWANTED_TIMEOUT: Duration = Duration::from_secs(1);

/// The whole body, if it has at most `max_bytes`; `first` is what was read already.
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
    // What is announced is not allocated, only refused if it is too much.
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

/// The next bytes; trailers are passed over.
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

/// Reads a body that nobody wants, within bounds, before its request is refused. Over HTTP/2 a
/// body that is dropped unread cancels its stream, and the answer with it if that was not sent
/// yet. Over HTTP/1.1 the connection sees to it, and reading would ask those for the body who
/// wait to be asked.
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
    // Late or not, it is answered.
    let _ = tokio::time::timeout(UNWANTED_TIMEOUT, read).await;
}

/// Reads on for a while, to be able to say why not.
async fn drain(mut body: Incoming, max_bytes: usize) -> Result<Bytes, RequestError> {
    let mut left = DRAINED_BYTES;
    // A client that announces far too much is told at once.
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

/// The client went away or broke the protocol.
pub fn broken() -> RequestError {
    let detail = "the body broke off, or its chunks are malformed, before it was complete";
    RequestError::new(ErrorKind::BrokenOff, detail)
}
