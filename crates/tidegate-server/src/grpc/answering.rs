//! The future of an answer.
//!
//! Nearly all calls ask for a decision, with a message that came with the head: they are
//! answered in the first poll, from where the request lies. Everything else goes the usual,
//! boxed way, and so does all where nodes share a store.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request};
use hyper::body::{Body, Incoming};
use tidegate::gate::Together;

use super::content::{Answered, Content, code};
use super::framing::{collect, only};
use super::{GrpcFront, SHOULD_RATE_LIMIT, out_of_place};
use crate::admin::Front as FrontName;
use crate::envoy::{self, Asked, Refused, Reply};
use crate::serve::InFlight;

/// Room for a reply with one descriptor; each further one takes [`STATUS_BYTES`].
const REPLY_BYTES: usize = 320;
const STATUS_BYTES: usize = 64;

/// The header callers name their requests in.
const REQUEST_ID: &str = "x-request-id";

/// An answer on its way.
pub struct Answering {
    front: Arc<GrpcFront>,
    step: Step,
}

#[expect(clippy::large_enum_variant, reason = "nearly all answers never leave the large one")]
enum Step {
    Begun(Request<Incoming>, InFlight),
    Boxed(Pin<Box<dyn Future<Output = Answered> + Send>>),
    Done,
}

impl Answering {
    pub fn new(front: Arc<GrpcFront>, request: Request<Incoming>, in_flight: InFlight) -> Self {
        Answering { front, step: Step::Begun(request, in_flight) }
    }
}

impl Future for Answering {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answered> {
        let this = &mut *self;
        if let Step::Begun(request, _) = &mut this.step {
            let mut first = None;
            if request.uri().path() == SHOULD_RATE_LIMIT && out_of_place(request).is_none() {
                first = first_chunk(request, context);
                if let Some(body) = &first
                    && request.body().is_end_stream()
                    && !this.front.gate.is_shared()
                {
                    let answer = this.front.decide(request.headers(), body);
                    return Poll::Ready(this.done(respond(answer)));
                }
            }
            if let Step::Begun(request, in_flight) = std::mem::replace(&mut this.step, Step::Done) {
                let front = Arc::clone(&this.front);
                this.step = Step::Boxed(Box::pin(front.answer_later(request, first, in_flight)));
            }
        }
        match &mut this.step {
            Step::Boxed(answer) => match answer.as_mut().poll(context) {
                Poll::Ready(answer) => Poll::Ready(this.done(answer)),
                Poll::Pending => Poll::Pending,
            },
            Step::Begun(..) | Step::Done => Poll::Pending,
        }
    }
}

impl Answering {
    fn done(&mut self, answer: Answered) -> Answered {
        let facts = &self.front.facts;
        match answer.body() {
            // Not a call, but an answer over HTTP.
            Content::Plain(_) => facts.answered(FrontName::Grpc, answer.status()),
            Content::Empty => facts.answered_call(code(answer.headers())),
            _ => facts.answered_call(0),
        }
        answer
    }
}

impl GrpcFront {
    /// A decision in memory.
    fn decide(&self, headers: &HeaderMap, body: &[u8]) -> Result<Answered, Refused> {
        self.admit(headers)?;
        let request = decode(body)?;
        let asked = Asked::new(&request, self.algorithm)?;
        let questions = asked.questions(request_id(headers));
        let rules = self.gate.rules();
        let together = self.gate.check_together(&rules, &questions)?;
        self.reply(&together, questions.len())
    }

    /// A decision wherever the counts are.
    async fn decide_later(&self, headers: &HeaderMap, body: &[u8]) -> Result<Answered, Refused> {
        let request = decode(body)?;
        let asked = Asked::new(&request, self.algorithm)?;
        let questions = asked.questions(request_id(headers));
        let rules = self.gate.rules_owned();
        let together = self.gate.check_together_async(&rules, &questions).await?;
        self.reply(&together, questions.len())
    }

    fn reply(&self, together: &Together<'_>, descriptors: usize) -> Result<Answered, Refused> {
        let reply = Reply::new(together, descriptors, **self.forms.load(), self.gate.now())?;
        let capacity = REPLY_BYTES + STATUS_BYTES * (descriptors - 1);
        Ok(Content::message(capacity, |out| reply.encode(out)))
    }

    /// Any call; `first` is what of its body was read already.
    async fn answer_later(
        self: Arc<Self>,
        request: Request<Incoming>,
        first: Option<Bytes>,
        in_flight: InFlight,
    ) -> Answered {
        if let Some(why) = out_of_place(&request) {
            return Content::out_of_place(why);
        }
        if request.uri().path() != SHOULD_RATE_LIMIT {
            return self.route(request, in_flight).await;
        }
        let (head, body) = request.into_parts();
        // Who may not ask is told that before the body is waited for.
        if let Err(refused) = self.admit(&head.headers) {
            return Content::refuse(&refused);
        }
        let decided = match collect(body, first).await {
            Ok(body) => self.decide_later(&head.headers, &body).await,
            Err(refused) => Err(refused),
        };
        respond(decided)
    }
}

fn respond(decided: Result<Answered, Refused>) -> Answered {
    decided.unwrap_or_else(|refused| Content::refuse(&refused))
}

fn decode(body: &[u8]) -> Result<envoy::Request<'_>, Refused> {
    let message = only(body)?;
    envoy::Request::decode(message).map_err(|malformed| Refused::invalid(malformed.to_string()))
}

fn request_id(headers: &HeaderMap) -> Option<&str> {
    headers.get(REQUEST_ID)?.to_str().ok()
}

/// The beginning of the body, if it is here. A broken one is found again by whoever reads on.
fn first_chunk(request: &mut Request<Incoming>, context: &mut Context<'_>) -> Option<Bytes> {
    match Pin::new(request.body_mut()).poll_frame(context) {
        Poll::Ready(Some(Ok(frame))) => frame.into_data().ok(),
        Poll::Ready(Some(Err(_)) | None) | Poll::Pending => None,
    }
}
