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
        let here = Handle::try_current().ok();
        if let Some(runtime) = here.as_ref().or(self.0.as_ref()) {
            runtime.spawn(work);
        }
    }
}
