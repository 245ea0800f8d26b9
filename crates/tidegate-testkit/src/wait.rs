//! Waiting for another process.

use std::thread;
use std::time::{Duration, Instant};

/// The longest a test waits before it fails: far longer than anything takes on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The time between two attempts.
const INTERVAL: Duration = Duration::from_millis(10);

/// Polls until there is a value, and returns it.
#[track_caller]
pub fn wait_for<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "nothing happened within {PATIENCE:?}");
        thread::sleep(INTERVAL);
    }
}

/// Polls until the condition holds. `description` describes the condition in the failure message.
#[track_caller]
pub fn eventually(description: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "did not happen within {PATIENCE:?}: {description}");
        thread::sleep(INTERVAL);
    }
}
