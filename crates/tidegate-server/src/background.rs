//! Threads for work that takes milliseconds or longer, so that it does not delay decisions. Those
//! for work that no caller waits for have a low priority.
//!
//! On a server with few processors, such work would take them from the threads that make decisions.
//! A separate thread alone does not prevent that: the scheduler lets a thread that computes run
//! until its time slice ends, for up to 4 ms. A thread of higher priority that becomes ready
//! usually replaces it at once.

use std::io;
use std::thread;

/// The number by which the nice value of the threads exceeds that of the others. Where the others
/// keep the processors busy, these threads get about a tenth of one, so their work still ends.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// Starts a thread that ends with the process: nothing waits for it.
///
/// # Errors
/// When the operating system refuses to start a thread.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let run = || {
        lower_priority();
        work();
    };
    thread::Builder::new().name(name.to_owned()).spawn(run)?;
    Ok(())
}

/// Runs work that takes milliseconds on a thread that makes no decisions, and returns its result.
/// Returns the default while the process ends.
pub async fn run<T: Default + Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap_or_default()
}

/// Lowers the priority of the current thread. Linux has a nice value per thread; elsewhere it is
/// that of the process, which keeps its priority.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::nice(NICE) {
        tracing::info!(%error, "a background thread keeps the priority of the others");
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_the_new_thread_has_a_low_priority() {
        let own = || rustix::process::getpriority_process(None);
        let before = own();
        let (sender, receiver) = std::sync::mpsc::channel();
        spawn("test", move || sender.send(own()).expect("a receiver")).expect("a thread");
        let niced = receiver.recv().expect("a priority").expect("a priority");
        assert_eq!(niced, (before.expect("a priority") + NICE).min(19));
        assert_eq!(own(), before);
    }
}
