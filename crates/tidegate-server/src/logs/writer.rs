//! Standard error without waiting for its reader.
//!
//! A write to a pipe that nobody reads blocks. Request handlers log, so a blocked write
//! would stop a runtime worker, and with it every connection on that worker. Lines therefore
//! go into a bounded buffer, and one thread writes them. When the buffer is full, lines are
//! dropped and counted; the thread logs the count as soon as the reader is back.
//!
//! The thread is never joined: it may be blocked in `write` for ever. At exit the last
//! lines get [`FLUSH_TIMEOUT`] to go out.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Bytes of lines that wait to be written: several thousand lines, so that a reader that
/// pauses for a moment loses nothing. The thread holds at most as many again.
const MAX_WAITING_BYTES: usize = 1024 * 1024;

/// How long the process waits at exit for the last lines to be read.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the process waits for a message to be read that is printed outside the log.
const PRINT_TIMEOUT: Duration = Duration::from_secs(1);

/// Lines dropped since the process started. Logging is global, and so is its count.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// The number of log lines dropped since the process started.
pub fn dropped() -> u64 {
    DROPPED.load(Relaxed)
}

/// Lines on their way to standard error.
#[derive(Debug, Default)]
pub struct Lines {
    pending: Mutex<PendingLines>,
    /// Signals the writing thread that lines wait, and [`Lines::flush`] that none do.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PendingLines {
    bytes: Vec<u8>,
    lines: u64,
    /// A line was dropped since the thread last took the buffer. All that follow are dropped
    /// until it does, so that the lines on both sides of a gap are complete.
    overflowed: bool,
    /// The thread is writing what it took.
    writing: bool,
}

impl Lines {
    /// Starts the thread that writes to standard error.
    ///
    /// # Errors
    /// When the system is out of descriptors or threads.
    pub fn start() -> io::Result<Arc<Self>> {
        // Not `io::stderr`, whose lock would be held during a blocked write.
        let to = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        let lines = Arc::new(Lines::default());
        let taken = Arc::clone(&lines);
        thread::Builder::new().name("log".to_owned()).spawn(move || taken.write_to(to))?;
        Ok(lines)
    }

    /// Waits until everything is written, for at most [`FLUSH_TIMEOUT`].
    pub fn flush(&self) {
        let is_busy = |pending: &mut PendingLines| pending.writing || !pending.bytes.is_empty();
        let pending = self.pending();
        // After the time-out the rest is lost: nobody reads it.
        let _ = self.changed.wait_timeout_while(pending, FLUSH_TIMEOUT, is_busy);
    }

    fn push(&self, line: &[u8]) {
        let mut pending = self.pending();
        if pending.overflowed || pending.bytes.len() + line.len() > MAX_WAITING_BYTES {
            // A line that is too long for an empty buffer leaves nothing for the thread to take.
            pending.overflowed = !pending.bytes.is_empty();
            DROPPED.fetch_add(1, Relaxed);
            return;
        }
        pending.bytes.extend_from_slice(line);
        pending.lines += 1;
        drop(pending);
        self.changed.notify_all();
    }

    /// Writes lines as they come, for ever.
    fn write_to(&self, mut to: impl Write) {
        let mut bytes = Vec::new();
        let mut reported = dropped();
        let mut is_read = true;
        loop {
            let lines = self.take(&mut bytes);
            let total = dropped();
            // The report is the first line behind the gap, because the buffer is empty now.
            // Where writing fails there is none: it would fail too, and cause another.
            if is_read && total > reported {
                let lines = total - reported;
                tracing::warn!(
                    lines,
                    total,
                    "log lines were dropped: standard error was not read fast enough"
                );
                reported = total;
            }
            is_read = to.write_all(&bytes).and_then(|()| to.flush()).is_ok();
            if !is_read {
                DROPPED.fetch_add(lines, Relaxed);
            }
            bytes.clear();
        }
    }

    /// Waits for lines and moves them to `bytes`, which is empty; returns how many there are.
    fn take(&self, bytes: &mut Vec<u8>) -> u64 {
        let mut pending = self.pending();
        pending.writing = false;
        self.changed.notify_all();
        while pending.bytes.is_empty() {
            pending = self.changed.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::swap(&mut pending.bytes, bytes);
        pending.writing = true;
        pending.overflowed = false;
        std::mem::take(&mut pending.lines)
    }

    fn pending(&self) -> MutexGuard<'_, PendingLines> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One call is one line: the formatter hands over whole lines.
impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a message to a standard stream, and waits for at most [`PRINT_TIMEOUT`] for it to
/// be taken. A reader that is stalled or gone does not stop the process.
pub fn print(mut to: impl Write + Send + 'static, text: String) {
    let (done, finished) = mpsc::channel();
    let write = move || {
        let written = to.write_all(text.as_bytes()).and_then(|()| to.flush());
        // Nobody waits any longer.
        let _ = done.send(written);
    };
    if thread::Builder::new().name("print".to_owned()).spawn(write).is_ok() {
        let _ = finished.recv_timeout(PRINT_TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_buffer_drops_lines_until_written() {
        let lines = Lines::default();
        let long = vec![b'x'; MAX_WAITING_BYTES];
        lines.push(b"first\n");
        lines.push(&long);
        lines.push(b"would fit, but comes after a gap\n");
        let mut bytes = Vec::new();
        assert_eq!(lines.take(&mut bytes), 1);
        assert_eq!(bytes, b"first\n");
        bytes.clear();
        lines.push(b"second\n");
        assert_eq!(lines.take(&mut bytes), 1);
        assert_eq!(bytes, b"second\n");
        bytes.clear();
        lines.push(&vec![b'x'; MAX_WAITING_BYTES + 1]);
        lines.push(b"third\n");
        assert_eq!(lines.take(&mut bytes), 1);
    }
}
