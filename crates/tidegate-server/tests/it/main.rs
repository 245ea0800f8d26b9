//! The `tidegate` binary, run as users run it.
//!
//! - `cli_harness.rs` runs it once; `server_harness.rs` runs it as a server, with a test client;
//! - `http2_frames.rs`: HTTP/2 frames that no library would send;
//! - `replay/`: `replay` and `simulate`; `config.rs`: `config` and `explain`;
//!   `man_and_completions.rs`: `man` and `completions`;
//! - `serve/`: the server as a process; `http/`, `grpc/`, `resp/`, `admin/`: its fronts;
//! - `playground.rs`: the playground; `otlp.rs`: exported spans, with the feature `otlp`;
//! - `shared_store/`: counts in a store that nodes share;
//! - `envoy_config.rs`: configs of envoyproxy/ratelimit, and `/json`;
//! - `envoy_mode/`: `serve --as-envoy-ratelimit`;
//! - `xds/`: configs from an xDS control plane;
//! - `gateways/`: the server behind nginx, Caddy, Traefik and Envoy;
//! - `rust_client.rs`: the Rust client;
//! - `deploy/`: the files in `deploy/`.

mod admin;
mod cli_harness;
mod config;
mod deploy;
mod envoy_config;
mod envoy_mode;
mod gateways;
mod grpc;
mod http;
mod http2_frames;
mod man_and_completions;
#[cfg(feature = "otlp")]
mod otlp;
mod playground;
mod replay;
mod resp;
mod rust_client;
mod serve;
mod server_harness;
mod shared_store;
mod xds;
