//! A connection that reads a bounded amount at a time.
//!
//! h2 reads every frame the socket has before it hands over the first request. Streams that
//! the peer opens and resets meanwhile pile up, and h2 bounds them by closing the connection
//! with GOAWAY. A gateway shares one connection between all its clients, any of which may
//! cancel requests: if that closed the connection, one client could take the decisions away
//! from all of them, and lift its limit where the gateway fails open.
//!
//! So the bytes read in one poll are bounded. At the end of each poll every stream has been
//! handed over, so the pile is bounded too, for each connection that is being polled and not
//! for each that is open. Then other tasks get their turn. A peer that floods a connection
//! costs as much as one that sends as many bytes of ordinary requests.
//!
//! While a write is blocked, nothing is read: otherwise a peer that reads nothing could have
//! answers and resets queued without end.

use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connections::Connection;
use super::settings::FrontName;
use crate::admin::ServerState;

/// Bytes read from a connection in one poll: about 200 calls of Envoy's.
pub const READ_PER_POLL: usize = 32 * 1024;

/// A stream of HTTP that is read [`READ_PER_POLL`] bytes at a time.
#[derive(Debug)]
pub struct PacedStream<T> {
    stream: T,
    connection: Arc<Connection>,
    front: FrontName,
    server_state: Arc<ServerState>,
    frames: Frames,
    /// A read was put off until a write goes through.
    is_waiting: bool,
}

impl<T> PacedStream<T> {
    /// Counts resets under `front`. [`Connection::begin_poll`] allows the next read.
    pub fn new(
        stream: T,
        connection: Arc<Connection>,
        front: FrontName,
        server_state: Arc<ServerState>,
    ) -> Self {
        PacedStream {
            stream,
            connection,
            front,
            server_state,
            frames: Frames::default(),
            is_waiting: false,
        }
    }

    /// Resumes reading after a write went through.
    fn resume(
        &mut self,
        context: &Context<'_>,
        written: Poll<Result<usize>>,
    ) -> Poll<Result<usize>> {
        if written.is_ready() && std::mem::take(&mut self.is_waiting) {
            context.waker().wake_by_ref();
        }
        written
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for PacedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let this = &mut *self;
        if this.connection.is_stalled() {
            // The blocked write wakes the task.
            this.is_waiting = true;
            return Poll::Pending;
        }
        let left = this.connection.left_to_read();
        if left == 0 {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = if buffer.remaining() <= left {
            Pin::new(&mut this.stream).poll_read(context, buffer)
        } else {
            let mut part = ReadBuf::new(buffer.initialize_unfilled_to(left));
            let read = Pin::new(&mut this.stream).poll_read(context, &mut part);
            let bytes = part.filled().len();
            buffer.advance(bytes);
            read
        };
        let bytes = &buffer.filled()[before..];
        this.connection.has_read(bytes.len());
        let resets = this.frames.count_resets(bytes);
        if resets > 0 {
            this.server_state.count_resets(this.front, resets);
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for PacedStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.resume(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.resume(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// What every HTTP/2 client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The type of an RST_STREAM frame.
const RST_STREAM: u8 = 3;

/// A frame begins with its length in three bytes and its type in one. Flags and stream id
/// follow, then the payload.
const REST_OF_HEAD: usize = 5;

/// Follows the frames a client sends, and counts RST_STREAM: h2 does not report them.
#[derive(Debug, Default)]
struct Frames {
    /// Bytes of the preface seen.
    preface: usize,
    /// The client did not send the preface.
    is_http1: bool,
    head: [u8; 4],
    head_bytes: usize,
    /// Bytes until the next frame.
    skip: usize,
}

impl Frames {
    /// How many RST_STREAM frames begin in these bytes, which follow those of the last call.
    fn count_resets(&mut self, mut bytes: &[u8]) -> u64 {
        if self.preface < PREFACE.len() && !self.is_http1 {
            let expected = &PREFACE[self.preface..];
            let count = bytes.len().min(expected.len());
            self.is_http1 = bytes[..count] != expected[..count];
            self.preface += count;
            bytes = &bytes[count..];
        }
        if self.is_http1 {
            return 0;
        }
        let mut resets = 0;
        while let Some(first) = bytes.first() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            self.head[self.head_bytes] = *first;
            self.head_bytes += 1;
            bytes = &bytes[1..];
            if self.head_bytes == self.head.len() {
                let [a, b, c, kind] = self.head;
                let length = u32::from_be_bytes([0, a, b, c]) as usize;
                self.skip = REST_OF_HEAD + length;
                self.head_bytes = 0;
                resets += u64::from(kind == RST_STREAM);
            }
        }
        resets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_resets_in_split_reads() {
        let mut sent = PREFACE.to_vec();
        sent.extend_from_slice(b"\0\0\0\x04\0\0\0\0\0");
        // A payload that looks like a reset.
        sent.extend_from_slice(b"\0\0\x0d\0\0\0\0\0\x01\0\0\x04\x03\0\0\0\0\x03\0\0\0\x08");
        sent.extend_from_slice(b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08".repeat(3).as_slice());
        for size in 1..sent.len() {
            let mut frames = Frames::default();
            let resets: u64 = sent.chunks(size).map(|part| frames.count_resets(part)).sum();
            assert_eq!(resets, 3, "in parts of {size} bytes");
        }
        let mut frames = Frames::default();
        let request = b"POST /v1/check HTTP/1.1\r\n\r\n\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08";
        assert_eq!(frames.count_resets(request), 0);
        assert_eq!(frames.count_resets(b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08"), 0);
    }
}
