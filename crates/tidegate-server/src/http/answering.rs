//! The future of an answer.
//!
//! Nearly all requests are checks whose body came with the head, or come from a
//! gateway and need no body: they are answered in the first poll, from where the
//! request lies. Everything else goes the usual, boxed way, and so does all where nodes
//! share a store: beside its round trip a box is nothing. As `async` functions this would
//! be one large state machine, copied whole for every request: more work than the decision.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Method, Request};
use hyper::body::{Body, Incoming};

use super::body::BodyError;
use super::request_id::RequestId;
use super::{Answered, HttpFront, Refusal, turn_away};
use crate::admin::Front as FrontName;
use crate::serve::{InFlight, host_error};

/// An answer on its way.
pub struct Answering {
    front: Arc<HttpFront>,
    step: Step,
    _in_flight: InFlight,
}

#[expect(clippy::large_enum_variant, reason = "nearly all answers never leave the large one")]
enum Step {
    Begun(Request<Incoming>, SocketAddr),
    Boxed(Pin<Box<dyn Future<Output = Answered> + Send>>),
    Done,
}

impl Answering {
    pub fn new(
        front: Arc<HttpFront>,
        request: Request<Incoming>,
        peer: SocketAddr,
        in_flight: InFlight,
    ) -> Self {
        let step = match host_error(&request) {
            None => Step::Begun(request, peer),
            Some(detail) => {
                Step::Boxed(Box::pin(
                    async move { turn_away(request, &Refusal::bad(detail)).await },
                ))
            }
        };
        Answering { front, step, _in_flight: in_flight }
    }

    /// The usual way.
    fn boxed(&self, request: Request<Incoming>, peer: SocketAddr, first: Option<Bytes>) -> Step {
        let front = Arc::clone(&self.front);
        Step::Boxed(Box::pin(async move {
            match first {
                // A check that was begun: it did not come in one piece, or must wait for
                // the store.
                Some(first) => front.check(request, Some(first)).await,
                None if front.gate.is_shared() => {
                    match front.forward_auth_shared(&request, peer).await {
                        Some(answer) => answer,
                        None => front.route(request).await,
                    }
                }
                None => front.route(request).await,
            }
        }))
    }
}

impl Future for Answering {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answered> {
        let this = &mut *self;
        if let Step::Begun(request, peer) = &mut this.step {
            let first = if is_check(request) { first_chunk(request, context) } else { Ok(None) };
            let first = match first {
                Ok(first) => first,
                Err(broken) => {
                    let id = RequestId::of(request.headers());
                    // Who may not ask is told that, and nothing about the body.
                    let admitted = this.front.admit(request.headers());
                    let refusal = admitted.err().unwrap_or_else(|| broken.into());
                    let answer = refusal.respond(&id);
                    return Poll::Ready(self.done(answer));
                }
            };
            let peer = *peer;
            if let Some(answer) = self.at_once(first.as_deref(), peer) {
                return Poll::Ready(self.done(answer));
            }
            if let Step::Begun(request, _) = std::mem::replace(&mut self.step, Step::Done) {
                self.step = self.boxed(request, peer, first);
            }
        }
        match &mut self.step {
            Step::Boxed(answer) => match answer.as_mut().poll(context) {
                Poll::Ready(answer) => Poll::Ready(self.done(answer)),
                Poll::Pending => Poll::Pending,
            },
            Step::Begun(..) | Step::Done => Poll::Pending,
        }
    }
}

impl Answering {
    /// The answer that needs nothing more; `body` is the beginning of that of a check.
    fn at_once(&self, body: Option<&[u8]>, peer: SocketAddr) -> Option<Answered> {
        let Step::Begun(request, _) = &self.step else { return None };
        if self.front.gate.is_shared() {
            return None;
        }
        match body {
            Some(body) if request.body().is_end_stream() => {
                self.front.check_whole(request.headers(), body)
            }
            Some(_) => None,
            None => self.front.forward_auth(request, peer),
        }
    }

    fn done(&mut self, answer: Answered) -> Answered {
        self.front.facts.answered(FrontName::Http, answer.status());
        answer
    }
}

fn is_check(request: &Request<Incoming>) -> bool {
    request.uri().path() == "/v1/check" && request.method() == Method::POST
}

/// The beginning of the body, if it is here. What is wrong with it is told only once:
/// who asked again would take it for a body that has ended.
fn first_chunk(
    request: &mut Request<Incoming>,
    context: &mut Context<'_>,
) -> Result<Option<Bytes>, BodyError> {
    match Pin::new(request.body_mut()).poll_frame(context) {
        Poll::Ready(Some(Ok(frame))) => Ok(frame.into_data().ok()),
        Poll::Ready(Some(Err(_))) => Err(BodyError::Broken),
        Poll::Ready(None) | Poll::Pending => Ok(None),
    }
}
