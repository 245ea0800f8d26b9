//! For callers of rate-limited APIs: come back when it makes sense, and stop hammering.
//!
//! A client that retries at once makes a limit worse for everybody, itself included. This
//! crate reads what servers say about their limits and acts on it:
//!
//! - [`Fields`]: `Retry-After` and the rate limit fields of a response, in all their forms;
//! - [`Backoff`]: how long to wait before a retry;
//! - [`Budget`]: how many retries there may be at all, so that a fleet does not turn an
//!   outage into a longer one;
//! - [`Pace`]: slowing down *before* the limit, and sharing it with others;
//! - [`Call`]: these together, for one request and its retries.
//!
//! All of these are plain values: time and chance are arguments, so that any HTTP client
//! can be built on them, and tests need no clock.
//!
//! # With reqwest
//!
//! Feature `reqwest`, on by default: [`Retry`] is a middleware that does all of it.
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
//! Feature `server`, on by default: [`server::Client`] asks a tidegate server for decisions
//! and permits. A denial is a value; an error means that nobody decided.
//!
//! ```no_run
//! # #[cfg(feature = "server")]
//! # async fn run() -> Result<(), tidegate_client::server::Error> {
//! use tidegate_client::server::{Check, Client};
//!
//! let limiter = Client::new("http://127.0.0.1:8080")?;
//! let answer = limiter.check(&Check::policy("login", "alice")).await?;
//! if !answer.allowed {
//!     println!("come back in {:?}", answer.retry_after());
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
pub use fields::{Fields, LONGEST, Standing};
#[cfg(feature = "reqwest")]
pub use middleware::{IDEMPOTENCY_KEY, Retry};
pub use pace::Pace;
