//! Tests of the public API of the client crate.

mod backoff;
mod budget;
mod call;
mod fields;
mod hostile;
mod middleware;
mod pace;
mod scripted;
mod server;
