//! Retries and pacing for callers of rate-limited APIs.
//!
//! A client that retries immediately makes a limit worse for every client, itself included.
//! This crate reads the limits that servers report and acts on them:
//!
//! - [`Fields`]: reads `Retry-After` and the rate limit fields of a response, in every form;
//! - [`Backoff`]: computes the wait before a retry;
//! - [`Budget`]: bounds the number of retries, so that many clients do not prolong an outage;
//! - [`Pace`]: slows down *before* the limit is reached, and shares it with other clients;
//! - [`Call`]: combines these for one request and its retries.
//!
//! All of these are plain values. Time and randomness are arguments, so any HTTP client can
//! use them, and tests need no clock.
//!
//! # With reqwest
//!
//! Feature `reqwest`, on by default: [`Retry`] is a middleware that applies all of this.
//!
//! ```no_run
//! # #[cfg(feature = "reqwest")]
//! # async fn run() -> Result<(), reqwest_middleware::Error> {
//! use reqwest_middleware::ClientBuilder;
//! use tidegate_client::Retry;
//!
//! let client = ClientBuilder::new(reqwest::Client::new()).with(Retry::default()).build();
//! let response = client.get("http://localhost:3000/orders").send().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # The tidegate server
//!
//! Feature `server`, on by default: [`server::Client`] requests decisions and permits from a
//! tidegate server. A denial is a value; an error means that the server did not decide.
//!
//! ```no_run
//! # #[cfg(feature = "server")]
//! # async fn run() -> Result<(), tidegate_client::server::Error> {
//! use tidegate_client::server::{Check, Client};
//!
//! let limiter = Client::new("http://127.0.0.1:8080")?;
//! let answer = limiter.check(&Check::policy("login", "alice")).await?;
//! if !answer.allowed {
//!     println!("retry in {:?}", answer.retry_after());
//! }
//! # Ok(())
//! # }
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

/// Runs the Rust of the pages as doctests. Their fences are tildes: `scripts/test docs-rust` runs
/// fences of backticks, with `tidegate` as the only dependency.
#[cfg(all(doctest, feature = "reqwest", feature = "server"))]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/clients.md")]
    struct Clients;
}

mod backoff;
mod budget;
mod call;
mod fields;
#[cfg(feature = "reqwest")]
mod middleware;
mod pace;
#[cfg(feature = "server")]
pub mod server;

pub use backoff::Backoff;
pub use budget::Budget;
pub use call::{Call, End, Outcome, Paused, Peer, RetryRules};
pub use fields::{Fields, LONGEST, Usage};
#[cfg(feature = "reqwest")]
pub use middleware::{IDEMPOTENCY_KEY, Retry};
pub use pace::Pace;
