//! A progress line on the terminal during a long replay.

use std::io::{IsTerminal, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::input::BytesRead;
use crate::report::counted;

/// Replays shorter than `QUIET` show nothing. Longer ones are redrawn ten times a second.
const QUIET: Duration = Duration::from_millis(300);
const BETWEEN: Duration = Duration::from_millis(100);

const BAR_CHARS: u64 = 30;

/// Draws on standard error if that is a terminal. The line is erased on drop.
pub struct Progress {
    enabled: bool,
    started: Instant,
    next: Instant,
    drawn: bool,
    /// `None` if a pipe is read, whose size is unknown.
    total_bytes: Option<u64>,
    bytes_read: BytesRead,
}

impl Progress {
    pub fn new(total_bytes: Option<u64>, bytes_read: BytesRead) -> Self {
        let started = Instant::now();
        Progress {
            enabled: std::io::stderr().is_terminal(),
            started,
            next: started + QUIET,
            drawn: false,
            total_bytes,
            bytes_read,
        }
    }

    /// Resets the progress for another pass over the files.
    pub fn restart(&mut self) {
        self.bytes_read.store(0, Ordering::Relaxed);
        self.started = Instant::now();
    }

    pub fn show(&mut self, events: u64) {
        if !self.enabled {
            return;
        }
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + BETWEEN;
        self.drawn = true;
        let bytes = self.bytes_read.load(Ordering::Relaxed);
        let line = line(bytes, self.total_bytes, events, now - self.started);
        // A failure to show progress must not stop the replay.
        let _ = write!(std::io::stderr(), "\r{line}\x1b[K");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(bytes: u64, total: Option<u64>, events: u64, elapsed: Duration) -> String {
    let events = counted(events, "event");
    match total {
        Some(total) if total > 0 => {
            let done = bytes.min(total);
            let filled = usize::try_from(done * BAR_CHARS / total).unwrap_or(0);
            let empty = usize::try_from(BAR_CHARS).unwrap_or(0) - filled;
            let percent = done * 100 / total;
            let left = u128::from(total - done) * elapsed.as_millis() / u128::from(done.max(1));
            let seconds = left.div_ceil(1_000);
            let bar = format!("{:#<filled$}{:.<empty$}", "", "");
            format!("[{bar}] {percent:3}%  {events}, {seconds} s left")
        }
        _ => format!("{events}, {} s", elapsed.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_progress_bar() {
        let second = Duration::from_secs(1);
        let at = |bytes| line(bytes, Some(60), 1_234, second);
        assert_eq!(at(0), "[..............................]   0%  1,234 events, 60 s left");
        assert_eq!(at(30), "[###############...............]  50%  1,234 events, 1 s left");
        assert_eq!(at(60), "[##############################] 100%  1,234 events, 0 s left");
        assert_eq!(at(61), at(60), "a file that grew");
        assert_eq!(line(5, None, 7, second), "7 events, 1 s");
    }
}
