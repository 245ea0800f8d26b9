//! A connection: reads what has arrived, answers all of it, and writes once.
//!
//! While a client does not read its replies, nothing more is read from it. So the memory that a
//! client can occupy is bounded by the buffers.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tracing::debug;

use super::RespFront;
use super::buffers::{ConnBuffers, Leftover, MAX_REPLY_BYTES};
use super::pipeline::{self, Progress, RemoteBatch};
use super::session::Session;
use crate::serve::{ConnCommand, ConnectionProgress, Protocol, Stream, TrackedStream};

impl Protocol for RespFront {
    /// As in Redis: idle connections of a pool are kept, those of an unreachable machine are not.
    const TCP_KEEPALIVE: Option<Duration> = Some(Duration::from_secs(300));
    const KEEPS_IDLE: bool = true;

    async fn serve<S: Stream>(
        self: Arc<Self>,
        stream: TrackedStream<S>,
        peer: SocketAddr,
        connection_progress: Arc<ConnectionProgress>,
    ) {
        let session = Session::new(self.next_id.fetch_add(1, Relaxed), &self);
        let connection = RespConnection { front: self, stream, session, connection_progress };
        if let Err(error) = connection.serve_connection().await {
            let expected = error.kind() == io::ErrorKind::ConnectionReset;
            debug!(%peer, %error, expected, "a connection ended early");
        }
    }
}

struct RespConnection<S> {
    front: Arc<RespFront>,
    stream: S,
    session: Session,
    connection_progress: Arc<ConnectionProgress>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> RespConnection<S> {
    /// Serves until the client closes the connection, or the server commands it to close.
    ///
    /// # Errors
    /// When the connection fails.
    async fn serve_connection(mut self) -> io::Result<()> {
        let mut leftover = Leftover::default();
        poll_fn(|context| {
            self.connection_progress.set_waker(context.waker());
            Poll::Ready(())
        })
        .await;
        self.record_progress(&leftover, true);
        loop {
            let stop = || self.connection_progress.command() != ConnCommand::Serve;
            let Some(buffers) = ConnBuffers::read(&mut self.stream, &mut leftover, stop).await?
            else {
                break;
            };
            let read = buffers.filled;
            let progress = self.answer(buffers, &mut leftover).await?;
            if progress == Progress::Closed
                || self.connection_progress.command() == ConnCommand::Close
            {
                break;
            }
            self.record_progress(&leftover, leftover.input.len() < read);
        }
        self.stream.shutdown().await
    }

    /// Records progress for the deadlines. A connection may be idle without limit, unless its
    /// secret, the rest of a command or the `EXEC` of a transaction is missing. Part of a command
    /// is not progress.
    fn record_progress(&self, leftover: &Leftover, answered: bool) {
        if self.session.authenticated && answered {
            self.connection_progress.note_answered();
        }
        if !leftover.input.is_empty() || self.session.queued.is_some() {
            self.connection_progress.note_read();
        }
    }

    /// Answers the commands in the buffers.
    async fn answer(
        &mut self,
        mut buffers: ConnBuffers,
        leftover: &mut Leftover,
    ) -> io::Result<Progress> {
        if self.front.gate.is_shared() {
            *leftover = buffers.leave(0);
            return self.answer_shared(leftover).await;
        }
        loop {
            let progress = pipeline::answer(&self.front, &mut self.session, &mut buffers);
            let written = self.write_some(&buffers.output).await?;
            if written == buffers.output.len() && progress == Progress::Paused {
                buffers.output.clear();
                continue;
            }
            *leftover = buffers.leave(written);
            self.write_rest(leftover).await?;
            if progress != Progress::Paused {
                return Ok(progress);
            }
            buffers = ConnBuffers::with(leftover);
        }
    }

    /// Answers the commands with a shared store.
    async fn answer_shared(&mut self, leftover: &mut Leftover) -> io::Result<Progress> {
        let active = Arc::clone(&self.front.gate.active_policies());
        let mut remote_batch = RemoteBatch::default();
        loop {
            let mut buffers = ConnBuffers::with(leftover);
            let progress = remote_batch.gather(&self.front, &mut self.session, &mut buffers);
            *leftover = buffers.leave(0);
            let in_flight = self.connection_progress.begin();
            remote_batch.settle(&self.front, &active, &mut leftover.output).await;
            drop(in_flight);
            if progress == Progress::Paused && leftover.output.len() < MAX_REPLY_BYTES {
                continue;
            }
            self.write_rest(leftover).await?;
            if progress != Progress::Paused {
                return Ok(progress);
            }
        }
    }

    /// Writes without waiting, which nearly always writes everything. Returns the number of bytes
    /// written.
    async fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut written = 0;
        poll_fn(|context| {
            while written < bytes.len() {
                match self.poll_write(context, &bytes[written..]) {
                    Poll::Ready(Ok(more)) => written += more,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => break,
                }
            }
            Poll::Ready(Ok(written))
        })
        .await
    }

    /// Writes the rest, and waits for the client if necessary.
    async fn write_rest(&mut self, leftover: &mut Leftover) -> io::Result<()> {
        let mut written = 0;
        while written < leftover.output.len() {
            let rest = &leftover.output[written..];
            written += poll_fn(|context| self.poll_write(context, rest)).await?;
        }
        leftover.output = Vec::new();
        self.stream.flush().await
    }

    /// Writes some bytes. Fails if the connection has the command to close, so that a client that
    /// does not read is not waited for.
    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.connection_progress.command() == ConnCommand::Close {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        match ready!(Pin::new(&mut self.stream).poll_write(context, bytes))? {
            0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            written => Poll::Ready(Ok(written)),
        }
    }
}
