//! Buffers that the connections of a thread share: one for input, one for output, and a cache of
//! limits.
//!
//! Most connections wait for their next command and need no buffers. So each thread keeps a few,
//! and a connection takes them only while it answers commands. It returns them before it waits for
//! a client or a store, and the next connection finds them in the CPU cache.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use tokio::io::{AsyncRead, ReadBuf};

use super::decode::MAX_COMMAND_BYTES;
use super::limit_cache::LimitCache;

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
