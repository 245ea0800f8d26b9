//! Futures that are polled by hand, without a runtime.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Counts the number of wakes.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A future that the test polls.
pub struct Polled<'a, T> {
    future: Option<Pin<Box<dyn Future<Output = T> + 'a>>>,
    wakes: Arc<Wakes>,
}

/// The result of the first poll.
pub enum Started<'a, T> {
    Ready(T),
    Pending(Polled<'a, T>),
}

impl<'a, T> Polled<'a, T> {
    /// Boxes a future and polls it once.
    pub fn start(future: impl Future<Output = T> + 'a) -> Started<'a, T> {
        let mut polled = Polled { future: Some(Box::pin(future)), wakes: Arc::default() };
        match polled.poll() {
            Some(ready) => Started::Ready(ready),
            None => Started::Pending(polled),
        }
    }

    /// Polls the future. Must not be called again after it returned a value.
    pub fn poll(&mut self) -> Option<T> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        let future = self.future.as_mut().expect("polled after completion");
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(ready) => {
                self.future = None;
                Some(ready)
            }
            Poll::Pending => None,
        }
    }

    /// Returns the number of wakes so far.
    pub fn wakes(&self) -> usize {
        self.wakes.0.load(Ordering::SeqCst)
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to completion on this thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(ready) => return ready,
            Poll::Pending => thread::park(),
        }
    }
}
