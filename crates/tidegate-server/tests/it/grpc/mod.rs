//! The gRPC front, used with common client libraries: Envoy's messages and grpcio for Python
//! (`client.py`), installed by `scripts/lib/envoy.sh`.
//!
//! - `cancellation.rs`: cancelled calls, and other errors of streams;
//! - `semantics.rs`: the meaning of requests and replies;
//! - `rejections.rs`: invalid requests, and traffic that is not gRPC;
//! - `services.rs`: health, reflection, secrets, TLS, draining, connection age;
//! - `shared_store.rs`: a store that nodes share.

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

/// A Python process that reads one JSON object per line and writes one per line.
pub struct PythonScript {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl PythonScript {
    pub fn start(path: &str) -> Self {
        let mut command = Command::new(python());
        command.arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        // grpcio would log the errors that the tests cause on purpose.
        command.env("GRPC_VERBOSITY", "NONE").env_remove("http_proxy").env_remove("https_proxy");
        let mut child = command.spawn().expect("Python");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        PythonScript { child, input, output }
    }

    /// Sends the process a signal.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &pid]).status().expect("kill");
        assert!(sent.success());
    }

    /// Calls one of the functions of the script.
    #[track_caller]
    pub fn call(&mut self, function: &str, mut with: Value) -> Value {
        with["do"] = function.into();
        writeln!(self.input, "{with}").expect("the peer reads");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a reply");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{with}: {error}: {line:?}"))
    }
}

impl Drop for PythonScript {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A Python process with a gRPC client.
pub struct GrpcClient {
    script: PythonScript,
}

impl GrpcClient {
    /// Connects to the gRPC front of a server.
    pub fn new(server: &Server) -> Self {
        let mut client = GrpcClient::start();
        client.connect(json!({ "target": server.grpc().to_string() }));
        client
    }

    pub fn start() -> Self {
        GrpcClient { script: PythonScript::start(CLIENT) }
    }

    /// Opens a new connection, to `target` and with `ca`, `cert` and `key`.
    pub fn connect(&mut self, how: Value) {
        self.ask("connect", how);
    }

    /// Calls one of the functions of the client.
    #[track_caller]
    pub fn ask(&mut self, what: &str, with: Value) -> Value {
        self.script.call(what, with)
    }

    /// Sends a rate limit request.
    #[track_caller]
    pub fn limit(&mut self, request: &Value) -> Value {
        self.ask("limit", json!({ "request": request }))
    }

    /// Sends a rate limit request that must be decided, and returns the reply.
    #[track_caller]
    pub fn reply(&mut self, request: &Value) -> Value {
        let answer = self.limit(request);
        assert_eq!(answer["code"], "OK", "{request}: {answer}");
        answer["reply"].clone()
    }

    /// Returns the overall code of a decision.
    #[track_caller]
    pub fn code(&mut self, request: &Value) -> String {
        let reply = self.reply(request);
        reply["overall_code"].as_str().unwrap_or_else(|| panic!("{reply}")).to_owned()
    }
}

/// Returns the interpreter that `scripts/lib/envoy.sh` installs.
pub fn python() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target directory");
    let python = target.join("envoy-client/bin/python");
    assert!(
        python.is_file(),
        "{} is not installed: run ./scripts/test, which installs it",
        python.display()
    );
    python
}

/// Starts a server with the gRPC front and this config.
fn serve(test: &str, config: &str) -> Server {
    Start::new(test).config(config).args(&["--grpc", "127.0.0.1:0"]).run()
}

/// Returns a request of one descriptor.
pub fn request_for(domain: &str, entries: &[(&str, &str)]) -> Value {
    json!({ "domain": domain, "descriptors": [descriptor(entries)] })
}

pub fn descriptor(entries: &[(&str, &str)]) -> Value {
    let entries: Vec<Value> =
        entries.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect();
    json!({ "entries": entries })
}
