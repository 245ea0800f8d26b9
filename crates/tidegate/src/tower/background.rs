//! What a drop cannot wait for: telling a shared store that something is given back.

use tokio::runtime::Handle;

use crate::gate::Gate;

/// Where such work is done: on the runtime it is asked for on or, off any, on the one where
/// the request was let in. Where there is neither nobody can do it, and what was to be given back
/// ends by itself: a place with its lease, a charge with its window.
#[derive(Debug)]
pub(super) struct Background(Option<Handle>);

impl Background {
    /// For what this gate lets in now. In memory there is nothing to wait for.
    pub(super) fn of(gate: &Gate) -> Self {
        Background(gate.is_shared().then(Handle::try_current).and_then(Result::ok))
    }

    pub(super) fn run(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = self.runtime() {
            runtime.spawn(work);
        }
    }

    /// Runs work to its end, also if this future is dropped meanwhile. `None` if the runtime shuts
    /// down before.
    pub(super) async fn complete<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        match self.runtime() {
            Some(runtime) => runtime.spawn(work).await.ok(),
            None => Some(work.await),
        }
    }

    fn runtime(&self) -> Option<Handle> {
        Handle::try_current().ok().or_else(|| self.0.clone())
    }
}
