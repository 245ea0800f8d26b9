//! Writes to standard error without blocking the caller.
//!
//! A write to a pipe blocks while nobody reads it. Request handlers log, so a blocked write would
//! stop a runtime worker, and with it every connection on that worker. Lines therefore go into a
//! bounded buffer, and one thread writes them. When the buffer is full, lines are dropped and
//! counted. The thread logs the count once it can write again.
//!
//! The thread is never joined, because it may be blocked in `write` forever. At exit, the process
//! waits for at most [`FLUSH_TIMEOUT`] until the last lines are written.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The maximum size of the buffer in bytes: several thousand lines, so that a short pause of the
/// reader loses nothing. The thread holds at most as many bytes while it writes them.
const MAX_WAITING_BYTES: usize = 1024 * 1024;

/// How long the process waits at exit for the last lines to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// How long [`print()`] waits for its message to be written.
const PRINT_TIMEOUT: Duration = Duration::from_secs(1);

/// Lines dropped since the process started. Global, as logging is.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// The number of log lines dropped since the process started.
pub fn dropped() -> u64 {
    DROPPED.load(Relaxed)
}

/// Lines that wait to be written to standard error.
#[derive(Debug, Default)]
pub struct Lines {
    pending: Mutex<PendingLines>,
    /// Wakes the writing thread when lines are added, and [`Lines::flush`] when all are written.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PendingLines {
    bytes: Vec<u8>,
    lines: u64,
    /// Whether a line was dropped since the thread last took the buffer. All following lines are
    /// dropped until it does, so that dropped lines form one gap in the log.
    overflowed: bool,
    /// Whether the thread is writing the lines it took.
    writing: bool,
}

impl Lines {
    /// Starts the thread that writes to standard error.
    ///
    /// # Errors
    /// When the system is out of descriptors or threads.
    pub fn start() -> io::Result<Arc<Self>> {
        // `io::stderr` would hold its lock during a blocked write.
        let to = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        let lines = Arc::new(Lines::default());
        let taken = Arc::clone(&lines);
        thread::Builder::new().name("log".to_owned()).spawn(move || taken.write_to(to))?;
        Ok(lines)
    }

    /// Waits until all lines are written, for at most [`FLUSH_TIMEOUT`].
    pub fn flush(&self) {
        let is_busy = |pending: &mut PendingLines| pending.writing || !pending.bytes.is_empty();
        let pending = self.pending();
        // After the timeout, the remaining lines are lost.
        let _ = self.changed.wait_timeout_while(pending, FLUSH_TIMEOUT, is_busy);
    }

    fn push(&self, line: &[u8]) {
        let mut pending = self.pending();
        if pending.overflowed || pending.bytes.len() + line.len() > MAX_WAITING_BYTES {
            // If the buffer is empty, the line alone is too long, and the thread has nothing to
            // take.
            pending.overflowed = !pending.bytes.is_empty();
            DROPPED.fetch_add(1, Relaxed);
            return;
        }
        pending.bytes.extend_from_slice(line);
        pending.lines += 1;
        drop(pending);
        self.changed.notify_all();
    }

    /// Writes lines as they arrive. Never returns.
    fn write_to(&self, mut to: impl Write) {
        let mut bytes = Vec::new();
        let mut reported = dropped();
        let mut is_read = true;
        loop {
            let lines = self.take(&mut bytes);
            let total = dropped();
            // The report is the first line after the gap, because the buffer is empty now. If the
            // last write failed, nothing is reported: the report would fail too, and be counted as
            // dropped.
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

    /// Waits for lines, moves them to `bytes`, which is empty, and returns their number.
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

/// Each call to `write` is one line, because the formatter passes whole lines.
impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a message to a standard stream and waits for at most [`PRINT_TIMEOUT`]. A stalled or
/// closed reader does not stop the process.
pub fn print(mut to: impl Write + Send + 'static, text: String) {
    let (done, finished) = mpsc::channel();
    let write = move || {
        let written = to.write_all(text.as_bytes()).and_then(|()| to.flush());
        // The receiver is gone after the timeout.
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
