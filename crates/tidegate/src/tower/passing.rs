//! What goes with a request that is let through, until its response has ended.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, Response};
use smallvec::SmallVec;

use super::body::LimitedBody;
use super::reservation::Unsettled;
use crate::gate::{Gate, HeldPermit};
use crate::headers::Sink;
use crate::stats::ServiceTimer;

/// Header fields put aside for the response. The newest form has two.
#[derive(Debug, Default)]
pub(super) struct FieldList(SmallVec<[(&'static HeaderName, HeaderValue); 2]>);

impl Sink for FieldList {
    fn put(&mut self, name: &'static HeaderName, value: HeaderValue) {
        self.0.push((name, value));
    }
}

/// What goes with a request that is let through; small, because it is moved with its
/// future. Dropped before there is a response, it
/// gives back what can be given back.
#[derive(Debug, Default)]
pub(super) struct Passing {
    pub(super) fields: FieldList,
    pub(super) places: Option<Box<Places>>,
    pub(super) timer: Option<ServiceTimer>,
    pub(super) unsettled: Option<Unsettled>,
}

impl Passing {
    /// The service has answered.
    #[inline(always)]
    pub(super) fn arrived<B>(self, response: Response<B>) -> Response<LimitedBody<B>> {
        let Passing { fields, places, timer, unsettled } = self;
        if let Some(timer) = timer {
            timer.finish();
        }
        if let Some(unsettled) = unsettled {
            unsettled.keep();
        }
        let mut response = response.map(|body| LimitedBody::service(body, places));
        let headers = response.headers_mut();
        for (name, value) in fields.0 {
            headers.insert(name, value);
        }
        response
    }
}

/// Places held under `concurrency` limits, given back on drop.
#[derive(Debug)]
pub(super) struct Places {
    gate: Arc<Gate>,
    permit: Option<HeldPermit>,
}

impl Places {
    pub(super) fn new(gate: &Arc<Gate>, permit: HeldPermit) -> Box<Self> {
        Box::new(Places { gate: Arc::clone(gate), permit: Some(permit) })
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        // One in this node's memory gives itself back.
        if let Some(HeldPermit::Shared(permit)) = self.permit.take() {
            let gate = Arc::clone(&self.gate);
            // A store that fails now ends the lease later.
            in_background(async move { drop(gate.release(&permit).await) });
        }
    }
}

/// Does what a drop cannot wait for. Off a runtime nobody can, and what was to be given back
/// ends by itself: a place with its lease, a charge with its window.
pub(super) fn in_background(work: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(work);
    }
}
