//! What it takes to answer a connection: a buffer to read into, one to write into, and
//! limits that were made before.
//!
//! A connection that waits for its next command needs none of it, and most connections
//! wait. So each thread keeps a desk for whoever has something to say. It is given back
//! before anybody waits, for a client or for a store, and the next one finds it warm.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use tokio::io::{AsyncRead, ReadBuf};

use super::decode::MAX_COMMAND_BYTES;
use super::limit_cache::LimitCache;

/// Replies that are written before more commands are answered, so that a long reply to
/// each of many short commands does not add up.
pub const MAX_REPLY_BYTES: usize = 64 * 1024;

/// The most desks a thread keeps: one is in use, and those a task took elsewhere come back.
const MAX_KEPT: usize = 2;

/// Where a connection is answered.
#[derive(Debug)]
pub struct ConnBuffers {
    /// What was read, and room for more.
    pub input: Box<[u8]>,
    /// How much of it was answered.
    pub at: usize,
    /// How much of it was read.
    pub filled: usize,
    /// Replies that were not written yet.
    pub output: Vec<u8>,
    pub limits: LimitCache,
}

/// What lay on a desk, while its owner waits.
#[derive(Debug, Default)]
pub struct Leftover {
    /// What was read and not answered.
    pub input: Vec<u8>,
    /// Replies that were not written yet.
    pub output: Vec<u8>,
}

thread_local! {
    static KEPT: RefCell<Vec<ConnBuffers>> = const { RefCell::new(Vec::new()) };
}

impl ConnBuffers {
    /// A desk with these papers on it.
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

    /// What was read and not answered.
    pub fn unanswered(&self) -> &[u8] {
        &self.input[self.at..self.filled]
    }

    /// Gives it back; what lay on it is kept, without the first `written` bytes of the replies.
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

    /// Waits until something comes, then sits down with that behind `leftover`. `None` if the
    /// other side has closed, or if `stop` says so while nothing comes.
    ///
    /// # Errors
    /// When the connection broke.
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
