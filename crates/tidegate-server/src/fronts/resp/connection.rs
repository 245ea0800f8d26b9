//! A connection: reads what has arrived, answers all of it, and writes once.
//!
//! While a client does not read its replies, nothing more is read from it. So the memory that a
//! client can occupy is bounded by the buffers.
//!
//! The connections of a thread share buffers ([`ConnBuffers`]): one for input, one for output, and
//! a cache of limits. Most connections wait for their next command and need none. So each thread
//! keeps a few, and a connection takes them only while it answers commands. It returns them before
//! it waits for a client or a store, and the next connection finds them in the CPU cache.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tracing::debug;

use super::RespFront;
use super::arguments::LimitCache;
use super::codec::MAX_COMMAND_BYTES;
use super::pipeline::{self, Progress, RemoteBatch};
use super::session::Session;
use crate::connections::{ConnCommand, ConnectionProgress, ConnectionStream, Protocol, Stream};

impl Protocol for RespFront {
    /// As in Redis: idle connections of a pool are kept, those of an unreachable machine are not.
    const TCP_KEEPALIVE: Option<Duration> = Some(Duration::from_secs(300));
    const KEEPS_IDLE: bool = true;

    async fn serve<S: Stream>(
        self: Arc<Self>,
        stream: ConnectionStream<S>,
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

    /// Records progress for the timeouts. A connection may be idle without limit, unless its
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

/// Replies of this size are written before more commands are answered, so that long replies to many
/// short commands do not accumulate.
pub const MAX_REPLY_BYTES: usize = 64 * 1024;

/// The maximum number of buffers that a thread keeps: one in use, and one that a task took to
/// another thread.
const MAX_KEPT: usize = 2;

/// The buffers of a connection while it answers commands.
#[derive(Debug)]
pub struct ConnBuffers {
    /// The bytes that were read, and space for more.
    pub input: Box<[u8]>,
    /// The number of bytes answered.
    pub at: usize,
    /// The number of bytes read.
    pub filled: usize,
    /// Replies that are not written yet.
    pub output: Vec<u8>,
    pub limits: LimitCache,
}

/// The unfinished part of the buffers, kept while the connection waits.
#[derive(Debug, Default)]
pub struct Leftover {
    /// Bytes that were read and not answered.
    pub input: Vec<u8>,
    /// Replies that are not written yet.
    pub output: Vec<u8>,
}

thread_local! {
    static KEPT: RefCell<Vec<ConnBuffers>> = const { RefCell::new(Vec::new()) };
}

impl ConnBuffers {
    /// Takes buffers, and copies `leftover` into them.
    pub fn with(leftover: &Leftover) -> Self {
        let mut buffers = KEPT.with_borrow_mut(Vec::pop).unwrap_or_else(|| ConnBuffers {
            input: vec![0; MAX_COMMAND_BYTES].into(),
            at: 0,
            filled: 0,
            output: Vec::new(),
            limits: LimitCache::default(),
        });
        buffers.filled = leftover.input.len();
        buffers.input[..buffers.filled].copy_from_slice(&leftover.input);
        buffers.output.extend_from_slice(&leftover.output);
        buffers
    }

    /// Bytes that were read and not answered.
    pub fn unanswered(&self) -> &[u8] {
        &self.input[self.at..self.filled]
    }

    /// Returns the buffers. The unfinished part is copied out, without the first `written` bytes of
    /// the replies.
    pub fn leave(self, written: usize) -> Leftover {
        let input = self.unanswered().to_vec();
        let leftover = Leftover { input, output: self.output[written..].to_vec() };
        self.put_back();
        leftover
    }

    fn put_back(mut self) {
        (self.at, self.filled) = (0, 0);
        self.output.clear();
        self.output.shrink_to(2 * MAX_REPLY_BYTES);
        KEPT.with_borrow_mut(|kept| {
            if kept.len() < MAX_KEPT {
                kept.push(self);
            }
        });
    }

    /// Waits until bytes arrive, and returns buffers with `leftover` and these bytes. Returns
    /// `None` if the client has closed the connection, or if `stop` returns true while nothing
    /// arrives.
    ///
    /// # Errors
    /// When the connection fails.
    pub async fn read(
        stream: &mut (impl AsyncRead + Unpin),
        leftover: &mut Leftover,
        mut stop: impl FnMut() -> bool,
    ) -> io::Result<Option<Self>> {
        poll_fn(|context| {
            let mut buffers = ConnBuffers::with(leftover);
            let mut buffer = ReadBuf::new(&mut buffers.input[buffers.filled..]);
            let read = Pin::new(&mut *stream).poll_read(context, &mut buffer);
            let came = buffer.filled().len();
            match read {
                Poll::Ready(Ok(())) if came > 0 => {
                    buffers.filled += came;
                    *leftover = Leftover::default();
                    return Poll::Ready(Ok(Some(buffers)));
                }
                Poll::Pending if !stop() => {
                    buffers.put_back();
                    return Poll::Pending;
                }
                _ => {}
            }
            buffers.put_back();
            match read {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                _ => Poll::Ready(Ok(None)),
            }
        })
        .await
    }
}
