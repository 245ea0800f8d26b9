//! The `tidegate` binary, run as users run it.
//!
//! - `harness.rs` runs it and keeps its files; `served.rs` runs it as a server and asks it;
//! - `frames.rs`: HTTP/2 as no library would send it;
//! - `formats.rs`: what it reads; `output.rs`: what it writes; `bad_input.rs`: what it refuses;
//! - `every_format.rs`: one trace in every form; `reports.rs`: pages, policies, suggestions, hints; `simulate.rs`: made traffic;
//! - `generated.rs`: seeded traces against a naive limiter (`naive.rs`) and committed digests;
//! - `config.rs`: `config` and `explain`; `client.rs`: the Rust client;
//! - `serve/`: the server as a process; `http/`: what it answers; `admin/`: what operators see of it;
//! - `otlp.rs`: spans, as a collector gets them; with the feature `otlp`;
//! - `resp/`: what Redis clients are answered;
//! - `shared/`: counts in a store that nodes share;
//! - `envoy_config.rs`: configs of envoyproxy/ratelimit, and `/json`;
//! - `grpc/`: Envoy's rate limit service, asked with its own messages;
//! - `gateways/`: the server behind nginx, Caddy, Traefik and Envoy;
//! - `deploy/`: what is shipped to run it with; `papers.rs`: completions and manual pages;
//! - `recorded.rs`: real traces with known answers, where they are at hand.

mod admin;
mod bad_input;
mod client;
mod config;
mod deploy;
mod envoy_config;
mod every_format;
mod formats;
mod frames;
mod gateways;
mod generated;
mod grpc;
mod harness;
mod http;
mod naive;
#[cfg(feature = "otlp")]
mod otlp;
mod output;
mod papers;
mod playground;
mod recorded;
mod reports;
mod resp;
mod serve;
mod served;
mod shared;
mod simulate;
