//! The `tidegate` program: one binary, one subcommand per job.
//!
//! - `commands/`: the command line. `tidegate_replay` runs `replay` and `simulate`.
//! - `serve/`: the server: settings, sockets, TLS, reloads, shutdown.
//! - `fronts/`: the protocols over which decisions are requested: `http/`, `grpc/`, `resp/`.
//! - `admin/`: health, metrics, the admin API and the dashboard.
//! - `access/`: authentication.
//! - `envoy_ratelimit/`: the environment variables of envoyproxy/ratelimit.
//! - `error.rs`: the error of a request, for every protocol.
//! - `logs/`: logging.
//! - `xds/`: the client of xDS control planes.
//! - `static_assets.rs`: files of web pages, embedded in the binary.

mod access;
mod admin;
mod commands;
mod envoy_ratelimit;
mod error;
mod fronts;
mod logs;
mod page_links;
mod serve;
mod static_assets;
mod xds;

use std::process::ExitCode;

fn main() -> ExitCode {
    commands::run(commands::parse(std::env::args_os().collect()))
}
