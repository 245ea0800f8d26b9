//! The `tidegate` program: one binary, one subcommand per job.
//!
//! - `commands/`: the command line. `tidegate_replay` runs `replay` and `simulate`.
//! - `serve/`: the server: settings, start, reloads, shutdown.
//! - `connections/`: sockets, TLS, and the timeouts of connections.
//! - `fronts/`: the protocols over which decisions are requested: `http/`, `grpc/`, `resp/`.
//! - `admin/`: health, metrics, the admin API and the dashboard.
//! - `authentication.rs`: which callers a front accepts.
//! - `background.rs`: threads with a low priority.
//! - `envoy_ratelimit/`: the environment variables of envoyproxy/ratelimit.
//! - `error.rs`: the error of a request, for every protocol.
//! - `logs/`: logging.
//! - `xds/`: the client of xDS control planes.
//! - `server_state.rs`: readiness and counters of the server, which the fronts update.
//! - `web_pages.rs`: files of web pages, embedded in the binary, and links between them.

mod admin;
mod authentication;
mod background;
mod commands;
mod connections;
mod envoy_ratelimit;
mod error;
mod fronts;
mod logs;
mod serve;
mod server_state;
mod web_pages;
mod xds;

use std::process::ExitCode;

fn main() -> ExitCode {
    commands::run(commands::parse(std::env::args_os().collect()))
}
