//! The client crate as its users see it.

mod backoff;
mod budget;
mod call;
mod fields;
mod hostile;
mod middleware;
mod pace;
mod scripted;
mod server;
