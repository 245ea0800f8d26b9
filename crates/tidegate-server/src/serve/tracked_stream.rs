//! A stream that records its reads and writes, and lingers before it closes.
//!
//! If the server responds and closes while the client is still sending, as with a request head that
//! is too large, the kernel discards the response along with the unread bytes. A gateway then sees
//! a broken connection, considers the server down, and may let the request pass. Any client could
//! cause that. Therefore the stream keeps reading for a while after the response, before it is
//! closed.

use std::future::Future;
use std::io::{IoSlice, Result};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::connections::ConnectionProgress;

/// The maximum duration of lingering.
const LINGER: Duration = Duration::from_secs(2);

/// The maximum number of bytes read while lingering: twice the largest head that a Go server passes
/// on.
const LINGER_BYTES: usize = 2 * 1024 * 1024;

/// A stream whose progress is recorded in its [`ConnectionProgress`].
#[derive(Debug)]
pub struct TrackedStream<T> {
    stream: T,
    progress: Arc<ConnectionProgress>,
    closing: Option<Linger>,
}

/// A stream that is shut down for writing and keeps reading.
#[derive(Debug)]
struct Linger {
    until: Pin<Box<Sleep>>,
    left: usize,
}

impl<T> TrackedStream<T> {
    pub fn new(stream: T, progress: Arc<ConnectionProgress>) -> Self {
        TrackedStream { stream, progress, closing: None }
    }

    fn record(&self, written: Poll<Result<usize>>) -> Poll<Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => self.progress.note_written(bytes),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.progress.note_stalled(),
        }
        written
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for TrackedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
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
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TrackedStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.record(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.record(written)
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

impl<T: AsyncRead + Unpin> TrackedStream<T> {
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
