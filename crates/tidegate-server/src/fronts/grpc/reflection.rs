//! Server reflection: what `grpcurl` and its kin ask before they call.
//!
//! The two versions of the protocol differ in their names alone.

use std::sync::Arc;

use futures_util::stream;
use hyper::body::Incoming;

use super::GrpcFront;
use super::body::{Answered, Content, Next, framed};
use super::file_descriptors::{File, SERVICES, defining, files};
use super::framing::Messages;
use crate::admin::Facts;
use crate::error::{GrpcCode, RequestError};
use crate::fronts::grpc::envoy::{Fields, Malformed, put_bytes, put_nested, put_number};
use crate::serve::InFlight;

pub const V1: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
pub const V1_ALPHA: &str = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

/// What is asked: one field of a `ServerReflectionRequest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question<'a> {
    File(&'a str),
    Symbol(&'a str),
    /// Nothing of ours is extended.
    Extension,
    ExtensionsOf(&'a str),
    Services,
    /// One that is not in the protocol yet.
    Unknown,
}

impl GrpcFront {
    /// Answers each question in turn, until the client has no more or the server drains.
    pub(super) fn reflect(&self, body: Incoming, in_flight: InFlight) -> Answered {
        let begun = Some((Messages::new(body), Arc::clone(&self.facts)));
        let answers = stream::unfold(begun, |state| async move {
            let (mut messages, facts) = state?;
            match next(&mut messages, &facts).await {
                None => None,
                Some(Ok(answer)) => Some((Ok(answer), Some((messages, facts)))),
                Some(Err(error)) => Some((Err(error), None)),
            }
        });
        Content::stream(answers, in_flight)
    }
}

async fn next(messages: &mut Messages, facts: &Facts) -> Option<Next> {
    let message = tokio::select! {
        message = messages.next() => message,
        () = facts.draining() => return None,
    };
    match message {
        Ok(None) => None,
        Ok(Some(message)) => Some(answer(&message)),
        Err(error) => Some(Err(error)),
    }
}

fn answer(message: &[u8]) -> Next {
    let (host, question) =
        read(message).map_err(|malformed| RequestError::invalid(malformed.to_string()))?;
    Ok(framed(512, |out| {
        put_bytes(out, 1, host.as_bytes());
        put_nested(out, 2, |out| out.extend_from_slice(message));
        put_answer(question, out);
    }))
}

fn read(message: &[u8]) -> Result<(&str, Question<'_>), Malformed> {
    let (mut host, mut question) = ("", Question::Unknown);
    for field in Fields::new(message) {
        let (field, value) = field?;
        let text = || std::str::from_utf8(value.bytes()?).map_err(|_| Malformed);
        match field {
            1 => host = text()?,
            3 => question = Question::File(text()?),
            4 => question = Question::Symbol(text()?),
            5 => question = Question::Extension,
            6 => question = Question::ExtensionsOf(text()?),
            7 => question = Question::Services,
            _ => {}
        }
    }
    Ok((host, question))
}

fn put_answer(question: Question<'_>, out: &mut Vec<u8>) {
    match question {
        Question::File(name) => put_file(files().iter().find(|file| file.name == name), out),
        Question::Symbol(name) => put_file(defining(name), out),
        Question::ExtensionsOf(name) if defining(name).is_some() => {
            put_nested(out, 5, |out| put_bytes(out, 1, name.as_bytes()));
        }
        Question::Extension | Question::ExtensionsOf(_) => put_file(None, out),
        Question::Services => put_nested(out, 6, |out| {
            for service in SERVICES {
                put_nested(out, 1, |out| put_bytes(out, 1, service.as_bytes()));
            }
        }),
        Question::Unknown => put_error(GrpcCode::Unimplemented, "this is not answered here", out),
    }
}

fn put_file(file: Option<&File>, out: &mut Vec<u8>) {
    match file {
        Some(file) => put_nested(out, 4, |out| put_bytes(out, 1, file.bytes)),
        None => put_error(GrpcCode::NotFound, "nothing here has this name", out),
    }
}

fn put_error(code: GrpcCode, message: &str, out: &mut Vec<u8>) {
    put_nested(out, 7, |out| {
        put_number(out, 1, code as u64);
        put_bytes(out, 2, message.as_bytes());
    });
}
