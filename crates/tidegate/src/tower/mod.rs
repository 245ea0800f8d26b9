//! A [tower](https://docs.rs/tower) layer: limits in front of any HTTP service, be it axum's,
//! tonic's or hyper's.
//!
//! ```text
//!   request -> rules (key, plan, cost) ---\
//!              gate's policies (a file) ---+-> Gate::enter, once -> the service -> response + fields
//!                                                     \-> denied: 429, or 503 if the store failed
//! ```
//!
//! A [`Rule`] is a policy whose key, plan and cost are closures over the [`Head`] of a
//! request. All rules of a request, and the policies of a file if there is one, are asked as one
//! question: all are charged or none. The layer itself decides nothing.
//!
//! In memory it is decided inside `call`, and an admitted request allocates little but its
//! header fields. Dropping the response future at any time is safe: places are given back,
//! what was reserved is refunded, who waits leaves the queue. If a shared store is just deciding,
//! its answer is waited for in the background, and then the same is done.
//!
//! ```
//! use std::convert::Infallible;
//! use std::net::IpAddr;
//!
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tidegate::tower::RateLimitLayer;
//! use tower::{Layer, Service, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let hello = service_fn(|_: Request<()>| async {
//!     Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("hello"))))
//! });
//! let mut service = RateLimitLayer::new("2 per 1m sliding-log".parse()?).layer(hello);
//!
//! for status in [200, 200, 429] {
//!     let mut request = Request::new(());
//!     request.extensions_mut().insert(IpAddr::from([192, 0, 2, 1]));
//!     let response = service.ready().await?.call(request).await?;
//!     assert_eq!(response.status(), status);
//! }
//! # Ok(()) }
//! ```
//!
//! - `layer.rs`: [`RateLimitLayer`]; `builder.rs`: [`LayerBuilder`];
//! - `rule.rs`: [`Rule`] and [`Limits`]; `compiled_rule.rs`: a rule with its policies; `head.rs`: the request
//!   without its body;
//! - `core.rs`: decides with the gate; `service.rs`: [`RateLimit`], the service, and its futures;
//!   `body.rs`, `guard.rs`: state of an admitted request; `reservation.rs`: charges that are settled
//!   afterwards;
//! - `denial.rs`: what is answered instead; `error.rs`: layers that cannot be built, and requests that
//!   a rule cannot be applied to.

mod body;
mod builder;
mod compiled_rule;
mod core;
mod denial;
mod error;
mod guard;
mod head;
mod layer;
mod reservation;
mod rule;
mod service;

#[cfg(feature = "axum")]
pub use self::body::Axum;
pub use self::body::{Bodies, LimitedBody, Wrapped};
pub use self::builder::LayerBuilder;
pub use self::denial::Rejection;
pub use self::error::{KeyError, LayerError};
pub use self::head::Head;
pub use self::layer::RateLimitLayer;
pub use self::reservation::Reservation;
pub use self::rule::{Keyless, Limits, Rule, UnknownPlan};
pub use self::service::{RateLimit, ResponseFuture};
pub use crate::attributes::Headers;
#[cfg(feature = "config")]
pub use crate::config::{ConfigError, ConfigErrors};
pub use crate::headers::{Form, Forms, FormsError};
pub use crate::identity::{Identity, IpGroup, NetworkError, Source};
pub use crate::policy::{Mode, PathVariants};

/// Holds the page to what it says.
#[cfg(all(doctest, feature = "axum", feature = "config"))]
#[doc = include_str!("../../../../docs/tower.md")]
struct Page;
