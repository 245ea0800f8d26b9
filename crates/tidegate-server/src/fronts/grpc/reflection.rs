//! Server reflection, which clients such as `grpcurl` use before a call.
//!
//! The two versions of the protocol differ only in their names.
//!
//! `descriptors.binpb` is a `FileDescriptorSet` of the services and every message they use, without
//! options and comments. `scripts/lib/envoy/descriptors.py` generates it from the packages that the
//! tests use. The tests compare it with those packages.

use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::OnceLock;

use futures_util::{Stream, StreamExt};
use hyper::Request;
use hyper::body::Incoming;
use prost::Message as _;
use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};
use tonic::server::StreamingService;

use super::{TonicResponse, server};
use crate::error::GrpcCode;
use crate::fronts::envoy::SERVICE;

pub const V1: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
pub const V1_ALPHA: &str = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

/// The services that `list` returns.
const SERVICES: [&str; 4] = [
    SERVICE,
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
];

#[derive(Clone, PartialEq, prost::Message)]
struct ReflectionRequest {
    #[prost(string, tag = "1")]
    host: String,
    #[prost(oneof = "Question", tags = "3, 4, 5, 6, 7")]
    question: Option<Question>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Question {
    #[prost(string, tag = "3")]
    File(String),
    #[prost(string, tag = "4")]
    Symbol(String),
    /// Never found, because no message is extended.
    #[prost(message, tag = "5")]
    Extension(Extension),
    #[prost(string, tag = "6")]
    ExtensionsOf(String),
    #[prost(string, tag = "7")]
    Services(String),
}

#[derive(Clone, PartialEq, prost::Message)]
struct Extension {
    #[prost(string, tag = "1")]
    containing_type: String,
    #[prost(int32, tag = "2")]
    number: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReflectionResponse {
    #[prost(string, tag = "1")]
    host: String,
    #[prost(message, optional, tag = "2")]
    request: Option<ReflectionRequest>,
    #[prost(oneof = "Answer", tags = "4, 5, 6, 7")]
    answer: Option<Answer>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Answer {
    #[prost(message, tag = "4")]
    Files(Files),
    #[prost(message, tag = "5")]
    Extensions(Extensions),
    #[prost(message, tag = "6")]
    Services(Services),
    #[prost(message, tag = "7")]
    Error(Failure),
}

#[derive(Clone, PartialEq, prost::Message)]
struct Files {
    #[prost(bytes = "vec", repeated, tag = "1")]
    files: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Extensions {
    #[prost(string, tag = "1")]
    of: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Services {
    #[prost(message, repeated, tag = "1")]
    services: Vec<ServiceName>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ServiceName {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Failure {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

/// Responds to each request of a stream, until the client ends it.
pub async fn respond(request: Request<Incoming>) -> TonicResponse {
    server().streaming(Reflection, request).await
}

struct Reflection;

impl StreamingService<ReflectionRequest> for Reflection {
    type Response = ReflectionResponse;
    type ResponseStream =
        Pin<Box<dyn Stream<Item = Result<ReflectionResponse, tonic::Status>> + Send>>;
    type Future = Ready<Result<tonic::Response<Self::ResponseStream>, tonic::Status>>;

    fn call(
        &mut self,
        requests: tonic::Request<tonic::Streaming<ReflectionRequest>>,
    ) -> Self::Future {
        let answered = requests.into_inner().map(|request| {
            let request = request?;
            let answer = Some(answer(request.question.as_ref()));
            let host = request.host.clone();
            Ok(ReflectionResponse { host, request: Some(request), answer })
        });
        ready(Ok(tonic::Response::new(Box::pin(answered))))
    }
}

fn answer(question: Option<&Question>) -> Answer {
    let found = |file: Option<&File>| match file {
        Some(file) => Answer::Files(Files { files: vec![file.encoded.clone()] }),
        None => failure(GrpcCode::NotFound, "symbol not found"),
    };
    match question {
        Some(Question::File(name)) => found(files().iter().find(|file| file.name == *name)),
        Some(Question::Symbol(name)) => found(defining(name)),
        Some(Question::ExtensionsOf(name)) if defining(name).is_some() => {
            Answer::Extensions(Extensions { of: name.clone() })
        }
        Some(Question::Extension(_) | Question::ExtensionsOf(_)) => found(None),
        Some(Question::Services(_)) => {
            let services = SERVICES.map(|name| ServiceName { name: name.to_owned() });
            Answer::Services(Services { services: services.into() })
        }
        None => failure(GrpcCode::Unimplemented, "this reflection request is not supported"),
    }
}

fn failure(code: GrpcCode, message: &str) -> Answer {
    Answer::Error(Failure { code: code as i32, message: message.to_owned() })
}

const DESCRIPTORS: &[u8] = include_bytes!("descriptors.binpb");

/// A `.proto` file.
struct File {
    /// The path that other files import it by.
    name: String,
    /// The encoded `FileDescriptorProto`.
    encoded: Vec<u8>,
    /// The full names of its messages, enums, services and methods.
    symbols: Vec<String>,
}

/// All files of `descriptors.binpb`.
fn files() -> &'static [File] {
    static FILES: OnceLock<Vec<File>> = OnceLock::new();
    FILES.get_or_init(|| {
        // A test decodes the set, so it is valid.
        let set = FileDescriptorSet::decode(DESCRIPTORS).unwrap_or_default();
        set.file.iter().map(File::new).collect()
    })
}

/// The file that defines a symbol.
fn defining(symbol: &str) -> Option<&'static File> {
    files().iter().find(|file| file.symbols.iter().any(|known| known == symbol))
}

impl File {
    fn new(file: &FileDescriptorProto) -> Self {
        let (package, mut symbols) = (file.package(), Vec::new());
        for message in &file.message_type {
            add_message(package, message, &mut symbols);
        }
        // Enum values cannot be requested, so only the enum itself is recorded.
        symbols.extend(file.enum_type.iter().map(|one| join(package, one.name())));
        for service in &file.service {
            let name = join(package, service.name());
            symbols.extend(service.method.iter().map(|method| join(&name, method.name())));
            symbols.push(name);
        }
        File { name: file.name().to_owned(), encoded: file.encode_to_vec(), symbols }
    }
}

fn add_message(outer: &str, message: &DescriptorProto, symbols: &mut Vec<String>) {
    let name = join(outer, message.name());
    for nested in &message.nested_type {
        add_message(&name, nested, symbols);
    }
    symbols.extend(message.enum_type.iter().map(|one| join(&name, one.name())));
    symbols.push(name);
}

fn join(outer: &str, name: &str) -> String {
    if outer.is_empty() { name.to_owned() } else { format!("{outer}.{name}") }
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
            assert_eq!(defining(symbol).map(|file| &*file.name), file, "{symbol}");
        }
        for service in SERVICES {
            assert!(defining(service).is_some(), "{service}");
        }
        assert_eq!(files().len(), 11);
    }

    /// Clients receive the bytes of the set, in which nothing is lost.
    #[test]
    fn files_are_encoded_as_they_are() {
        let set = FileDescriptorSet::decode(DESCRIPTORS).expect("descriptors.binpb");
        assert_eq!(set.encode_to_vec(), DESCRIPTORS);
    }
}
