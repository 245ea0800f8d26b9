//! Server reflection, which clients such as `grpcurl` use before a call.
//!
//! The two versions of the protocol differ only in their names.
//!
//! `descriptors.binpb` is a `FileDescriptorSet` of the services and every message they use, without
//! options and comments. `scripts/lib/envoy/descriptors.py` generates it from the packages that the
//! tests use. The tests compare it with those packages.

use std::sync::{Arc, OnceLock};

use futures_util::stream;
use hyper::body::Incoming;

use super::GrpcFront;
use super::body::{GrpcBody, GrpcResponse, Messages, StreamItem, framed};
use crate::admin::ServerState;
use crate::error::{GrpcCode, RequestError};
use crate::fronts::grpc::envoy::SERVICE;
use crate::fronts::grpc::protobuf::{Fields, Malformed, put_bytes, put_nested, put_number};
use crate::serve::InFlight;

pub const V1: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
pub const V1_ALPHA: &str = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

/// A `ServerReflectionRequest`, which sets one of these fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReflectionRequest<'a> {
    File(&'a str),
    Symbol(&'a str),
    /// Never found, because no message is extended.
    Extension,
    ExtensionsOf(&'a str),
    Services,
    /// A kind of request that this version of the protocol does not define.
    Unknown,
}

impl GrpcFront {
    /// Responds to each request of the stream, until the client ends it or the server drains.
    pub(super) fn reflect(&self, body: Incoming, in_flight: InFlight) -> GrpcResponse {
        let begun = Some((Messages::new(body), Arc::clone(&self.server_state)));
        let answers = stream::unfold(begun, |state| async move {
            let (mut messages, server_state) = state?;
            match next(&mut messages, &server_state).await {
                None => None,
                Some(Ok(response)) => Some((Ok(response), Some((messages, server_state)))),
                Some(Err(error)) => Some((Err(error), None)),
            }
        });
        GrpcBody::stream(answers, in_flight)
    }
}

async fn next(messages: &mut Messages, server_state: &ServerState) -> Option<StreamItem> {
    let message = tokio::select! {
        message = messages.next() => message,
        () = server_state.draining() => return None,
    };
    match message {
        Ok(None) => None,
        Ok(Some(message)) => Some(respond_to(&message)),
        Err(error) => Some(Err(error)),
    }
}

fn respond_to(message: &[u8]) -> StreamItem {
    let (host, request) =
        read(message).map_err(|malformed| RequestError::invalid(malformed.to_string()))?;
    Ok(framed(512, |out| {
        put_bytes(out, 1, host.as_bytes());
        put_nested(out, 2, |out| out.extend_from_slice(message));
        put_answer(request, out);
    }))
}

fn read(message: &[u8]) -> Result<(&str, ReflectionRequest<'_>), Malformed> {
    let (mut host, mut request) = ("", ReflectionRequest::Unknown);
    for field in Fields::new(message) {
        let (field, value) = field?;
        let text = || std::str::from_utf8(value.bytes()?).map_err(|_| Malformed);
        match field {
            1 => host = text()?,
            3 => request = ReflectionRequest::File(text()?),
            4 => request = ReflectionRequest::Symbol(text()?),
            5 => request = ReflectionRequest::Extension,
            6 => request = ReflectionRequest::ExtensionsOf(text()?),
            7 => request = ReflectionRequest::Services,
            _ => {}
        }
    }
    Ok((host, request))
}

fn put_answer(request: ReflectionRequest<'_>, out: &mut Vec<u8>) {
    match request {
        ReflectionRequest::File(name) => {
            put_file(files().iter().find(|file| file.name == name), out)
        }
        ReflectionRequest::Symbol(name) => put_file(defining(name), out),
        ReflectionRequest::ExtensionsOf(name) if defining(name).is_some() => {
            put_nested(out, 5, |out| put_bytes(out, 1, name.as_bytes()));
        }
        ReflectionRequest::Extension | ReflectionRequest::ExtensionsOf(_) => put_file(None, out),
        ReflectionRequest::Services => put_nested(out, 6, |out| {
            for service in SERVICES {
                put_nested(out, 1, |out| put_bytes(out, 1, service.as_bytes()));
            }
        }),
        ReflectionRequest::Unknown => {
            put_error(GrpcCode::Unimplemented, "this reflection request is not supported", out)
        }
    }
}

fn put_file(file: Option<&File>, out: &mut Vec<u8>) {
    match file {
        Some(file) => put_nested(out, 4, |out| put_bytes(out, 1, file.bytes)),
        None => put_error(GrpcCode::NotFound, "symbol not found", out),
    }
}

fn put_error(code: GrpcCode, message: &str, out: &mut Vec<u8>) {
    put_nested(out, 7, |out| {
        put_number(out, 1, code as u64);
        put_bytes(out, 2, message.as_bytes());
    });
}

/// The services that `list` returns.
pub const SERVICES: [&str; 4] = [
    SERVICE,
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
];

const DESCRIPTORS: &[u8] = include_bytes!("descriptors.binpb");

/// A `.proto` file.
#[derive(Debug, Default)]
pub struct File {
    /// The path that other files import it by.
    pub name: &'static str,
    /// The encoded `FileDescriptorProto`.
    pub bytes: &'static [u8],
    package: &'static str,
    /// The full names of its messages, enums, services and methods.
    symbols: Vec<String>,
}

/// All files of `descriptors.binpb`.
pub fn files() -> &'static [File] {
    static FILES: OnceLock<Vec<File>> = OnceLock::new();
    FILES.get_or_init(|| {
        let files = Fields::new(DESCRIPTORS);
        let files = files.flatten().filter_map(|(_, value)| File::read(value.bytes().ok()?).ok());
        files.collect()
    })
}

/// The file that defines a symbol.
pub fn defining(symbol: &str) -> Option<&'static File> {
    files().iter().find(|file| file.symbols.iter().any(|known| known == symbol))
}

/// Parsing. Field numbers are those of `google/protobuf/descriptor.proto`.
impl File {
    fn read(bytes: &'static [u8]) -> Result<Self, Malformed> {
        let mut file = File { bytes, ..File::default() };
        for field in Fields::new(bytes) {
            match field? {
                (1, value) => file.name = text(value.bytes()?),
                (2, value) => file.package = text(value.bytes()?),
                _ => {}
            }
        }
        for field in Fields::new(bytes) {
            let package = file.package;
            match field? {
                (4, value) => file.message(package, value.bytes()?)?,
                // Enum values cannot be requested, so only the enum itself is recorded.
                (5, value) => drop(file.named(package, value.bytes()?)?),
                (6, value) => {
                    let service = value.bytes()?;
                    let name = file.named(package, service)?;
                    for field in Fields::new(service) {
                        if let (2, value) = field? {
                            file.named(&name, value.bytes()?)?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(file)
    }

    fn message(&mut self, outer: &str, message: &'static [u8]) -> Result<(), Malformed> {
        let name = self.named(outer, message)?;
        for field in Fields::new(message) {
            match field? {
                (3, value) => self.message(&name, value.bytes()?)?,
                (4, value) => drop(self.named(&name, value.bytes()?)?),
                _ => {}
            }
        }
        Ok(())
    }

    /// Records and returns the full name of a descriptor, whose field 1 is its name.
    fn named(&mut self, outer: &str, what: &'static [u8]) -> Result<String, Malformed> {
        let mut name = String::new();
        for field in Fields::new(what) {
            if let (1, value) = field? {
                name = format!("{outer}.{}", text(value.bytes()?));
            }
        }
        self.symbols.push(name.clone());
        Ok(name)
    }
}

fn text(bytes: &'static [u8]) -> &'static str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_file_of_every_symbol() {
        let rls = "envoy/service/ratelimit/v3/rls.proto";
        let rows = [
            (SERVICE, Some(rls)),
            ("envoy.service.ratelimit.v3.RateLimitService.ShouldRateLimit", Some(rls)),
            ("envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus", Some(rls)),
            ("envoy.service.ratelimit.v3.RateLimitResponse.Code", Some(rls)),
            ("envoy.type.v3.RateLimitUnit", Some("envoy/type/v3/ratelimit_unit.proto")),
            ("google.protobuf.Struct", Some("google/protobuf/struct.proto")),
            ("google.protobuf", None),
            ("", None),
        ];
        for (symbol, file) in rows {
            assert_eq!(defining(symbol).map(|file| file.name), file, "{symbol}");
        }
        for service in SERVICES {
            assert!(defining(service).is_some(), "{service}");
        }
        assert_eq!(files().len(), 11);
    }
}
