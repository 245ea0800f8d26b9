//! The stream of a connection. It records progress, lingers before it closes and, for HTTP, limits
//! the bytes read per poll.
//!
//! # Lingering
//!
//! If the server responds and closes while the client is still sending, as with a request head that
//! is too large, the kernel discards the response along with the unread bytes. A gateway then sees
//! a broken connection, considers the server down, and may let the request pass. Any client could
//! cause that. Therefore the stream keeps reading for a while after the response, before it is
//! closed.
//!
//! # Pacing
//!
//! h2 reads every frame that the socket holds before it hands over the first request. Meanwhile,
//! streams that the peer opens and resets accumulate, and h2 limits their number by closing the
//! connection with GOAWAY. A gateway shares one connection between all its clients, and any of them
//! may cancel requests. If that closed the connection, one client could interrupt the decisions for
//! all of them, and escape its limit where the gateway fails open.
//!
//! Therefore the bytes read in one poll are bounded. By the end of each poll, every stream has been
//! handed over, so the number of accumulated streams is bounded too: per connection that is being
//! polled, not per open connection. Other tasks run between polls. A peer that floods a connection
//! costs as much as one that sends the same number of bytes as ordinary requests.
//!
//! While a write is blocked, nothing is read. Otherwise a peer that reads nothing could cause an
//! unbounded queue of responses and resets.

use std::future::Future;
use std::io::{IoSlice, Result};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::timeouts::ConnectionProgress;
use crate::server_state::{FrontName, ServerState};

/// The maximum duration of lingering.
const LINGER: Duration = Duration::from_secs(2);

/// The maximum number of bytes read while lingering: twice the largest head that a Go server passes
/// on.
const LINGER_BYTES: usize = 2 * 1024 * 1024;

/// Bytes read from a paced stream in one poll: about 200 calls of Envoy.
pub const READ_PER_POLL: usize = 32 * 1024;

/// The stream of a connection, whose progress is recorded in its [`ConnectionProgress`].
#[derive(Debug)]
pub struct ConnectionStream<T> {
    stream: T,
    progress: Arc<ConnectionProgress>,
    pacing: Option<Pacing>,
    closing: Option<Linger>,
}

/// The state of a stream that reads at most [`READ_PER_POLL`] bytes per poll.
#[derive(Debug)]
struct Pacing {
    front: FrontName,
    server_state: Arc<ServerState>,
    frames: Frames,
    /// Whether a read is deferred until a write succeeds.
    is_waiting: bool,
}

/// A stream that is shut down for writing and keeps reading.
#[derive(Debug)]
struct Linger {
    until: Pin<Box<Sleep>>,
    left: usize,
}

impl<T> ConnectionStream<T> {
    pub fn new(stream: T, progress: Arc<ConnectionProgress>) -> Self {
        ConnectionStream { stream, progress, pacing: None, closing: None }
    }

    /// Limits the bytes read per poll, and counts resets of HTTP/2 under `front`. Nothing is read
    /// until [`ConnectionProgress::begin_poll`].
    #[must_use]
    pub fn paced(self, front: FrontName, server_state: Arc<ServerState>) -> Self {
        let pacing = Pacing { front, server_state, frames: Frames::default(), is_waiting: false };
        ConnectionStream { pacing: Some(pacing), ..self }
    }

    /// Records a write. Wakes the task for a deferred read once a write has succeeded.
    fn record_write(
        &mut self,
        context: &Context<'_>,
        written: Poll<Result<usize>>,
    ) -> Poll<Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => self.progress.note_written(bytes),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.progress.note_stalled(),
        }
        if written.is_ready()
            && let Some(pacing) = &mut self.pacing
            && std::mem::take(&mut pacing.is_waiting)
        {
            context.waker().wake_by_ref();
        }
        written
    }
}

impl<T: AsyncRead + Unpin> ConnectionStream<T> {
    fn read_some(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.progress.note_read();
        }
        read
    }

    /// Reads at most the bytes that are left in this poll.
    fn read_paced(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let left = self.progress.left_to_read();
        if left == 0 {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = if buffer.remaining() <= left {
            self.read_some(context, buffer)
        } else {
            let mut part = ReadBuf::new(buffer.initialize_unfilled_to(left));
            let read = self.read_some(context, &mut part);
            let bytes = part.filled().len();
            buffer.advance(bytes);
            read
        };
        let bytes = &buffer.filled()[before..];
        self.progress.consume_read_budget(bytes.len());
        if let Some(pacing) = &mut self.pacing {
            let resets = pacing.frames.count_resets(bytes);
            if resets > 0 {
                pacing.server_state.count_resets(pacing.front, resets);
            }
        }
        read
    }

    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        let Some(closing) = &mut self.closing else { return Poll::Ready(Ok(())) };
        let mut dropped = [MaybeUninit::uninit(); 4096];
        while closing.until.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::uninit(&mut dropped);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
            let read = buffer.filled().len();
            closing.left = closing.left.saturating_sub(read);
            if read == 0 || closing.left == 0 {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ConnectionStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let this = &mut *self;
        match &mut this.pacing {
            None => this.read_some(context, buffer),
            Some(pacing) if this.progress.is_stalled() => {
                // The blocked write wakes the task.
                pacing.is_waiting = true;
                Poll::Pending
            }
            Some(_) => this.read_paced(context, buffer),
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ConnectionStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.record_write(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.record_write(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        if self.closing.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
            if !self.progress.has_unread() {
                return Poll::Ready(Ok(()));
            }
            let until = Box::pin(tokio::time::sleep(LINGER));
            self.closing = Some(Linger { until, left: LINGER_BYTES });
        }
        self.poll_linger(context)
    }
}

/// The connection preface, which every HTTP/2 client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The type of an RST_STREAM frame.
const RST_STREAM: u8 = 3;

/// The rest of a frame header. The header begins with a length of three bytes and a type of one
/// byte; flags and stream id follow in these five, then the payload.
const REST_OF_HEAD: usize = 5;

/// Parses the frames that a client sends and counts RST_STREAM frames, which h2 does not report.
#[derive(Debug, Default)]
struct Frames {
    /// Bytes of the preface received so far.
    preface: usize,
    /// Whether the client did not send the preface.
    is_http1: bool,
    head: [u8; 4],
    head_bytes: usize,
    /// Bytes until the next frame header.
    skip: usize,
}

impl Frames {
    /// Returns the number of RST_STREAM frames that begin in `bytes`, which follow those of the
    /// last call.
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
