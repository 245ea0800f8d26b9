//! A decision on its way.
//!
//! Over a shared store it can be dropped while the store decides, and what that charges and
//! holds would be lost. So a decision that was asked for is taken in any case: if nobody
//! waits for it any more, in the background, and what it brings is given back at once.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::request::Parts;

use super::background::Background;
use super::core::{Core, Refusal};
use super::guard::RequestGuard;
use super::head::Head;
use crate::futures::CallTracker;

/// What becomes of a request, and the request's head again.
type Told = (Result<RequestGuard, Refusal>, Parts);

pub(super) struct Deciding {
    future: Option<Pin<Box<dyn Future<Output = Told> + Send>>>,
    tracker: Arc<CallTracker>,
    background: Background,
}

impl Deciding {
    pub(super) fn new(core: Arc<Core>, parts: Parts) -> Self {
        let background = Background::of(&core.gate);
        let tracker = Arc::<CallTracker>::default();
        let asks = Arc::clone(&tracker);
        let future = Box::pin(async move {
            let (active, mut guard) = (core.active_policies(), RequestGuard::default());
            let decided =
                core.decide(&active, &mut Head::of_parts(&parts), &asks, &mut guard).await;
            (decided.map(|()| guard), parts)
        });
        Deciding { future: Some(future), tracker, background }
    }
}

impl Future for Deciding {
    type Output = Told;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Told> {
        let this = self.get_mut();
        // It was ready before; nobody may poll it again.
        let Some(future) = &mut this.future else { return Poll::Pending };
        let told = ready!(future.as_mut().poll(context));
        this.future = None;
        Poll::Ready(told)
    }
}

impl Drop for Deciding {
    fn drop(&mut self) {
        if let Some(future) = self.future.take().filter(|_| self.tracker.is_in_flight()) {
            self.tracker.cancel();
            self.background.run(async move { drop(future.await) });
        }
    }
}
