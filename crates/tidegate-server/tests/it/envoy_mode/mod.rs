//! `serve --as-envoy-ratelimit`.
//!
//! - `variables.rs`: the environment variables of envoyproxy/ratelimit;
//! - `health.rs`: configs that are missing or invalid, and a store that fails;
//! - `metrics.rs`: metrics for Prometheus and statsd;
//! - `replies.rs`: replies and their header fields.

mod health;
pub mod metrics;
mod replies;
mod variables;

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use serde_json::{Value, json};

use crate::server_harness::{Reply, Server, Start};

/// A domain with one limit of each kind.
const EDGE: &str = "
domain: edge
descriptors:
  - { key: plain, rate_limit: { unit: day, requests_per_unit: 2 } }
  - { key: named, rate_limit: { unit: hour, requests_per_unit: 2, name: per-address } }
  - { key: shadow, shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: free, rate_limit: { unlimited: true } }
  - { key: wide, rate_limit: { unit: day, requests_per_unit: 100 } }
";

/// Configures a server in the mode, with addresses and configs from variables only. `config` is the
/// one file of the directory of configs, if there is one.
fn mode(test: &str, config: Option<&str>) -> Start {
    let start = Start::new(test).without_flags().args(&["--as-envoy-ratelimit"]);
    let root = start.files().path("");
    fs::create_dir_all(start.files().path("ratelimit/config")).expect("a directory");
    if let Some(config) = config {
        start.files().write("ratelimit/config/edge.yaml", config);
    }
    let start = start.env("RUNTIME_ROOT", &root).env("RUNTIME_SUBDIRECTORY", "ratelimit");
    ["", "GRPC_", "DEBUG_"].iter().fold(start, |start, front| {
        start.env(&format!("{front}HOST"), "127.0.0.1").env(&format!("{front}PORT"), "0")
    })
}

/// Starts the program by a link named `ratelimit` and without arguments, as in the image.
pub fn as_program_named_ratelimit(start: Start) -> Start {
    let program = start.files().path("bin/ratelimit");
    fs::create_dir_all(start.files().path("bin")).expect("a directory");
    symlink(env!("CARGO_BIN_EXE_tidegate"), &program).expect("a link");
    start.wrapped(move |command| {
        let mut bare = Command::new(&program);
        bare.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        bare
    })
}

/// Sends a request with one descriptor of one entry per name to `/json`.
fn ask(server: &Server, names: &[&str]) -> Reply {
    let descriptors: Vec<Value> =
        names.iter().map(|name| json!({ "entries": [{ "key": name, "value": "v" }] })).collect();
    let body = json!({ "domain": "edge", "descriptors": descriptors });
    server.post("/json", &body.to_string())
}
