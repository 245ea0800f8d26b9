//! One connection: read what has come, answer all of it, write once.
//!
//! While a client does not read its replies, nothing more is read from it: what it can
//! make us hold is what lay on its desk.

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
use super::buffers::{Desk, MAX_REPLY_BYTES, Papers};
use super::pipeline::{self, Round, Turn};
use super::session::Session;
use crate::serve::{Connection, Order, Protocol, Stream, Watched};

impl Protocol for RespFront {
    /// As in Redis: connections of a pool are kept, those of a machine that is gone are not.
    const TCP_KEEPALIVE: Option<Duration> = Some(Duration::from_secs(300));
    const KEEPS_IDLE: bool = true;

    async fn serve<S: Stream>(
        self: Arc<Self>,
        stream: Watched<S>,
        peer: SocketAddr,
        marks: Arc<Connection>,
    ) {
        let session = Session::new(self.next_id.fetch_add(1, Relaxed), &self);
        let conversation = Conversation { front: self, stream, session, marks };
        if let Err(error) = conversation.hold().await {
            let expected = error.kind() == io::ErrorKind::ConnectionReset;
            debug!(%peer, %error, expected, "a connection ended early");
        }
    }
}

/// A connection, from its first byte to its last.
struct Conversation<S> {
    front: Arc<RespFront>,
    stream: S,
    session: Session,
    marks: Arc<Connection>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Conversation<S> {
    /// Answers until the other side closes, or we are told to.
    ///
    /// # Errors
    /// When the connection broke.
    async fn hold(mut self) -> io::Result<()> {
        let mut papers = Papers::default();
        poll_fn(|context| {
            self.marks.listen(context.waker());
            Poll::Ready(())
        })
        .await;
        self.mark(&papers, true);
        loop {
            let stop = || self.marks.order() != Order::Serve;
            let Some(desk) = Desk::read(&mut self.stream, &mut papers, stop).await? else { break };
            let read = desk.filled;
            let turn = self.answer(desk, &mut papers).await?;
            if turn == Turn::Ends || self.marks.order() == Order::Close {
                break;
            }
            self.mark(&papers, papers.input.len() < read);
        }
        self.stream.shutdown().await
    }

    /// What is seen from outside: it may be idle for as long as it likes, unless it owes us a
    /// secret, the rest of a command, or the `EXEC` behind its commands; drops of a command
    /// do not count.
    fn mark(&self, papers: &Papers, answered: bool) {
        if self.session.admitted && answered {
            self.marks.moved();
        }
        if !papers.input.is_empty() || self.session.waiting.is_some() {
            self.marks.heard();
        }
    }

    /// Answers what lies on a desk.
    async fn answer(&mut self, mut desk: Desk, papers: &mut Papers) -> io::Result<Turn> {
        if self.front.gate.is_shared() {
            *papers = desk.leave(0);
            return self.answer_shared(papers).await;
        }
        loop {
            let turn = pipeline::answer(&self.front, &mut self.session, &mut desk);
            let written = self.write_some(&desk.output).await?;
            if written == desk.output.len() && turn == Turn::Pauses {
                desk.output.clear();
                continue;
            }
            *papers = desk.leave(written);
            self.write_rest(papers).await?;
            if turn != Turn::Pauses {
                return Ok(turn);
            }
            desk = Desk::with(papers);
        }
    }

    /// Answers papers from a store that is elsewhere.
    async fn answer_shared(&mut self, papers: &mut Papers) -> io::Result<Turn> {
        let rules = Arc::clone(&self.front.gate.rules());
        let mut round = Round::default();
        loop {
            let mut desk = Desk::with(papers);
            let turn = round.gather(&self.front, &mut self.session, &mut desk);
            *papers = desk.leave(0);
            let in_flight = self.marks.begin();
            round.settle(&self.front, &rules, &mut papers.output).await;
            drop(in_flight);
            if turn == Turn::Pauses && papers.output.len() < MAX_REPLY_BYTES {
                continue;
            }
            self.write_rest(papers).await?;
            if turn != Turn::Pauses {
                return Ok(turn);
            }
        }
    }

    /// Writes what there is room for: nearly always all of it.
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

    /// Writes the rest, which may take its time.
    async fn write_rest(&mut self, papers: &mut Papers) -> io::Result<()> {
        let mut written = 0;
        while written < papers.output.len() {
            let rest = &papers.output[written..];
            written += poll_fn(|context| self.poll_write(context, rest)).await?;
        }
        papers.output = Vec::new();
        self.stream.flush().await
    }

    /// Writes something, unless told to close: whoever does not read is not waited for.
    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.marks.order() == Order::Close {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        match ready!(Pin::new(&mut self.stream).poll_write(context, bytes))? {
            0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            written => Poll::Ready(Ok(written)),
        }
    }
}
