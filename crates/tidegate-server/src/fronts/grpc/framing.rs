//! Messages in a body: a flag, a length in four bytes, and so many bytes.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::MAX_MESSAGE_BYTES;
use crate::error::{ErrorKind, RequestError};
use crate::fronts::http::body;

/// What stands before a message.
pub const PREFIX_BYTES: usize = 5;

/// How long a stream may wait for its next message: a client that explores takes seconds.
const NEXT_TIMEOUT: Duration = Duration::from_secs(60);

/// The one message of a body that is here as a whole.
pub fn only(body: &[u8]) -> Result<&[u8], RequestError> {
    let Some((prefix, message)) = body.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(RequestError::invalid("the call ended before its message: send one"));
    };
    let length = length(prefix)?;
    match message.len() {
        bytes if bytes == length => Ok(message),
        bytes if bytes < length => {
            Err(RequestError::invalid("the message broke off: send all of it"))
        }
        _ => Err(RequestError::invalid("there is more than one message: send one per call")),
    }
}

/// How long the message behind this prefix is.
fn length(prefix: &[u8; PREFIX_BYTES]) -> Result<usize, RequestError> {
    let [flag, length @ ..] = *prefix;
    match flag {
        0 => {}
        1 => {
            let message = "compressed messages are not supported: send without `grpc-encoding`";
            return Err(RequestError::new(ErrorKind::Unsupported, message));
        }
        _ => return Err(RequestError::invalid("the message does not begin as gRPC's do")),
    }
    let length = u32::from_be_bytes(length);
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > MAX_MESSAGE_BYTES {
        return Err(too_large());
    }
    Ok(length)
}

/// The whole body of a call with one message; `first` is what was read already.
pub async fn collect(body: Incoming, first: Option<Bytes>) -> Result<Bytes, RequestError> {
    body::collect(body, first, PREFIX_BYTES + MAX_MESSAGE_BYTES).await.map_err(unread)
}

/// The error of a body that could not be read, in terms of gRPC.
pub fn unread(error: RequestError) -> RequestError {
    match error.kind {
        ErrorKind::TooLarge => too_large(),
        ErrorKind::TooSlow => {
            RequestError::new(ErrorKind::TooSlow, "the message took too long to arrive")
        }
        _ => broken(),
    }
}

/// The messages of a stream, one after another.
pub struct Messages {
    body: Incoming,
    read: BytesMut,
}

impl Messages {
    pub fn new(body: Incoming) -> Self {
        Messages { body, read: BytesMut::new() }
    }

    /// The next message; `None` when the client has no more.
    pub async fn next(&mut self) -> Result<Option<Bytes>, RequestError> {
        tokio::time::timeout(NEXT_TIMEOUT, self.read_next()).await.unwrap_or_else(|_| {
            Err(RequestError::new(ErrorKind::TooSlow, "the next message took too long to arrive"))
        })
    }

    async fn read_next(&mut self) -> Result<Option<Bytes>, RequestError> {
        loop {
            if let Some(prefix) = self.read.first_chunk::<PREFIX_BYTES>() {
                let whole = PREFIX_BYTES + length(prefix)?;
                if self.read.len() >= whole {
                    let mut message = self.read.split_to(whole).freeze();
                    message.advance(PREFIX_BYTES);
                    return Ok(Some(message));
                }
            }
            match self.body.frame().await {
                None if self.read.is_empty() => return Ok(None),
                None => return Err(RequestError::invalid("the message broke off: send all of it")),
                Some(Err(_)) => return Err(broken()),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.read.extend_from_slice(&bytes);
                    }
                }
            }
        }
    }
}

fn too_large() -> RequestError {
    let message = format!(
        "the message is larger than {MAX_MESSAGE_BYTES} bytes: send fewer or shorter entries"
    );
    RequestError::new(ErrorKind::TooLarge, message)
}

fn broken() -> RequestError {
    RequestError::new(ErrorKind::BrokenOff, "the call broke off")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_one_message() {
        #[rustfmt::skip]
        let rows: [(&[u8], Result<&[u8], &str>); 8] = [
            (&[0, 0, 0, 0, 0], Ok(&[])),
            (&[0, 0, 0, 0, 2, 7, 8], Ok(&[7, 8])),
            (&[], Err("the call ended before its message: send one")),
            (&[0, 0, 0, 0], Err("the call ended before its message: send one")),
            (&[0, 0, 0, 0, 2, 7], Err("the message broke off: send all of it")),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0], Err("there is more than one message: send one per call")),
            (&[1, 0, 0, 0, 0], Err("compressed messages are not supported: send without `grpc-encoding`")),
            (&[0, 255, 255, 255, 255, 1],
             Err("the message is larger than 1048576 bytes: send fewer or shorter entries")),
        ];
        for (body, expected) in rows {
            let got = only(body).map_err(|error| error.to_string());
            assert_eq!(got, expected.map_err(str::to_owned), "{body:?}");
        }
    }
}
