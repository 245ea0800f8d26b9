//! What goes with a request that is let through, until its response has ended.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Response};
use smallvec::SmallVec;

use super::background::Background;
use super::body::sealed::Bodies;
use super::quick::Quick;
use super::reservation::{Reservation, Unsettled};
use crate::gate::{Gate, HeldPermit};
use crate::headers::Sink;
use crate::stats::ServiceTimer;

/// Header fields put aside for the response. The newest form has two.
#[derive(Default)]
pub(super) struct FieldList(SmallVec<[(&'static HeaderName, HeaderValue); 2]>);

impl Sink for FieldList {
    fn put(&mut self, name: &'static HeaderName, value: HeaderValue) {
        self.0.push((name, value));
    }
}

/// What goes with a request that is let through; small, because it is moved about with
/// its future. Dropped before there is a response, it gives back what can be given back.
pub(super) enum Passing {
    /// It goes alone.
    Nothing,
    Quick(Quick),
    Rest(Box<Rest>),
}

/// What goes with requests that did not take the quick way.
#[derive(Default)]
pub(super) struct Rest {
    pub(super) fields: FieldList,
    pub(super) places: Option<Box<Places>>,
    pub(super) timer: Option<ServiceTimer>,
    pub(super) unsettled: Option<Unsettled>,
}

impl From<Rest> for Passing {
    fn from(rest: Rest) -> Self {
        let Rest { fields, places, timer, unsettled } = &rest;
        let nothing =
            fields.0.is_empty() && places.is_none() && timer.is_none() && unsettled.is_none();
        if nothing { Passing::Nothing } else { Passing::Rest(Box::new(rest)) }
    }
}

impl Passing {
    /// What the handler can settle, if anything was reserved.
    #[inline]
    pub(super) fn reservation(&self) -> Option<Reservation> {
        match self {
            Passing::Nothing | Passing::Quick(_) => None,
            Passing::Rest(rest) => rest.unsettled.as_ref()?.reservation(),
        }
    }
}

impl Rest {
    /// The service has answered.
    pub(super) fn arrived<K: Bodies<B>, B>(self, response: Response<B>) -> Response<K::Body> {
        let (mut parts, body) = response.into_parts();
        let places = self.settled(&mut parts.headers);
        Response::from_parts(parts, K::service(body, places))
    }

    /// Gives what is held on to until the body has ended.
    fn settled(self, fields: &mut HeaderMap) -> Option<Box<Places>> {
        if let Some(timer) = self.timer {
            timer.finish();
        }
        if let Some(unsettled) = self.unsettled {
            unsettled.keep();
        }
        // What the service says of limits is nearer to what was done: it stays.
        if !self.fields.0.iter().any(|(name, _)| fields.contains_key(*name)) {
            for (name, value) in self.fields.0 {
                fields.insert(name, value);
            }
        }
        self.places
    }
}

/// Places held under `concurrency` limits, given back on drop.
#[derive(Debug)]
pub struct Places {
    gate: Arc<Gate>,
    permit: Option<HeldPermit>,
    background: Background,
}

impl Places {
    pub(super) fn new(gate: &Arc<Gate>, permit: HeldPermit) -> Box<Self> {
        let background = Background::of(gate);
        Box::new(Places { gate: Arc::clone(gate), permit: Some(permit), background })
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        // One in this node's memory gives itself back.
        if let Some(HeldPermit::Shared(permit)) = self.permit.take() {
            let gate = Arc::clone(&self.gate);
            // A Redis store repeats a release that fails; elsewhere the lease ends the permit.
            self.background.run(async move { drop(gate.release(&permit).await) });
        }
    }
}
