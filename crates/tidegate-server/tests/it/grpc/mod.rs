//! The gRPC front, asked by the libraries others use: Envoy's messages and grpcio for Python
//! (`client.py`), installed by `scripts/lib/envoy.sh`.
//!
//! - `cancelled.rs`: calls that are cancelled, and other errors of streams;
//! - `semantics.rs`: what a question means, and what is answered;
//! - `refusals.rs`: questions without sense, and what is no question at all;
//! - `services.rs`: health, reflection, secrets, TLS, draining, age;
//! - `shared.rs`: a store that nodes share.

mod cancellation;
mod rejections;
mod semantics;
mod services;
mod shared_store;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::server_harness::{Server, Start};

const CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/grpc/client.py");

/// A Python process that asks.
struct GrpcClient {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl GrpcClient {
    /// Connected to the gRPC front of a server.
    fn new(server: &Server) -> Self {
        let mut client = GrpcClient::start();
        client.connect(json!({ "target": server.grpc().to_string() }));
        client
    }

    fn start() -> Self {
        let mut command = Command::new(python());
        command.arg(CLIENT).stdin(Stdio::piped()).stdout(Stdio::piped());
        // It would speak of what the tests do on purpose.
        command.env("GRPC_VERBOSITY", "NONE").env_remove("http_proxy").env_remove("https_proxy");
        let mut child = command.spawn().expect("Python");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        GrpcClient { child, input, output }
    }

    /// Connects anew, to `target` and with `ca`, `cert` and `key`.
    fn connect(&mut self, how: Value) {
        self.ask("connect", how);
    }

    /// Has one of the functions of the client called.
    #[track_caller]
    fn ask(&mut self, what: &str, mut with: Value) -> Value {
        with["do"] = what.into();
        writeln!(self.input, "{with}").expect("it reads");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it answers");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{with}: {error}: {line:?}"))
    }

    /// Asks for a decision.
    #[track_caller]
    fn limit(&mut self, request: &Value) -> Value {
        self.ask("limit", json!({ "request": request }))
    }

    /// The same, for what must be decided.
    #[track_caller]
    fn reply(&mut self, request: &Value) -> Value {
        let answer = self.limit(request);
        assert_eq!(answer["code"], "OK", "{request}: {answer}");
        answer["reply"].clone()
    }

    /// The overall code of a decision.
    #[track_caller]
    fn code(&mut self, request: &Value) -> String {
        let reply = self.reply(request);
        reply["overall_code"].as_str().unwrap_or_else(|| panic!("{reply}")).to_owned()
    }
}

impl Drop for GrpcClient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The interpreter, where `scripts/lib/envoy.sh` puts it.
fn python() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target directory");
    let python = target.join("envoy-client/bin/python");
    assert!(
        python.is_file(),
        "{} is not there: run ./scripts/test, which installs it",
        python.display()
    );
    python
}

/// A server with the gRPC front on, and this config.
fn serve(test: &str, config: &str) -> Server {
    Start::new(test).config(config).args(&["--grpc", "127.0.0.1:0"]).run()
}

/// A question of one descriptor.
fn request_for(domain: &str, entries: &[(&str, &str)]) -> Value {
    json!({ "domain": domain, "descriptors": [descriptor(entries)] })
}

fn descriptor(entries: &[(&str, &str)]) -> Value {
    let entries: Vec<Value> =
        entries.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect();
    json!({ "entries": entries })
}
