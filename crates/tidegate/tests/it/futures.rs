//! Futures run by hand, without a runtime.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Counts how often it was woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A future that is polled when the test says.
pub struct Polled<'a, T> {
    future: Option<Pin<Box<dyn Future<Output = T> + 'a>>>,
    wakes: Arc<Wakes>,
}

/// What came of the first poll.
pub enum Started<'a, T> {
    Ready(T),
    Pending(Polled<'a, T>),
}

impl<'a, T> Polled<'a, T> {
    /// Takes a future and polls it once.
    pub fn start(future: impl Future<Output = T> + 'a) -> Started<'a, T> {
        let mut polled = Polled { future: Some(Box::pin(future)), wakes: Arc::default() };
        match polled.poll() {
            Some(ready) => Started::Ready(ready),
            None => Started::Pending(polled),
        }
    }

    /// Polls; what it is ready with, once.
    pub fn poll(&mut self) -> Option<T> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        let future = self.future.as_mut().expect("it is not ready yet");
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(ready) => {
                self.future = None;
                Some(ready)
            }
            Poll::Pending => None,
        }
    }

    /// How often it was woken so far.
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

/// Runs a future to its end on this thread.
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
