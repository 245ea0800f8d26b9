//! Several futures awaited together.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// The number of checks of one caller that are submitted to a shared store concurrently. It is
/// the share of a connection that one caller may use. Each check has its own deadline, so a
/// larger batch that is submitted in parts does not time out.
pub const MAX_TOGETHER: usize = 128;

/// Awaits all futures together, and returns their results in order.
pub(crate) async fn join_all<F: Future + ?Sized>(mut futures: Vec<Pin<Box<F>>>) -> Vec<F::Output> {
    let mut results: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(ready) = future.as_mut().poll(context)
            {
                *result = Some(ready);
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}
