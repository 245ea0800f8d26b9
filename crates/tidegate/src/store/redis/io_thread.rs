//! The thread on which a store talks to its servers.
//!
//! The tasks of a store must run while the runtime of its callers is busy. A tokio worker whose
//! own queue is never empty takes only one task from the queue that all workers share every 200
//! microseconds or so. With 1,000 callers that are always ready, a task of the store waited in
//! the shared queue for up to 80 ms: Redis had answered within a millisecond, nobody read the
//! reply, and callers of all keys timed out. On a separate thread the store's tasks compete with
//! the callers for processors only, and there the kernel favours the thread that mostly sleeps.
//!
//! A caller that is woken late finds its answer ready, because a deadline is compared only after
//! the answer was looked for.

use std::io;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A thread with a separate runtime. It ends when this is dropped, and so do its tasks.
#[derive(Debug)]
pub(super) struct IoThread {
    runtime: Handle,
    _running: oneshot::Sender<()>,
}

impl IoThread {
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (running, dropped) = oneshot::channel::<()>();
        thread::Builder::new().name("tidegate-redis".into()).spawn(move || {
            // An error is expected: the sender is dropped and sends nothing.
            let _ = runtime.block_on(dropped);
            // A name that is being resolved is not waited for.
            runtime.shutdown_background();
        })?;
        Ok(IoThread { runtime: handle, _running: running })
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}
