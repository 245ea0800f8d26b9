//! A [tower](https://docs.rs/tower) layer that limits the requests to any HTTP service: axum, tonic
//! or hyper.
//!
//! ```text
//!   request -> rules (key, plan, cost) ---\
//!              gate's policies (a file) ---+-> Gate::admit, once -> the service -> response + fields
//!                                                     \-> denied: 429, or 503 if the store failed
//! ```
//!
//! A [`Rule`] is a policy whose key, plan and cost are closures over the [`Head`] of a request. The
//! gate decides all rules of a request, and the policies of a file if there is one, as one request:
//! all are charged or none.
//!
//! In memory a request is decided inside `call`, and an admitted request allocates little except
//! its header fields. Dropping the response future at any time is safe: permits are released,
//! reservations are refunded, and a request that waits leaves the queue. A call to a shared store
//! that is in progress is completed in the background, and its result is then undone in the same
//! manner.
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
//! - `layer.rs`: [`RateLimitLayer`] and its [`LayerBuilder`];
//! - `rule.rs`: [`Rule`] and [`Limits`]; `compiled_rule.rs`: a rule with its policies;
//! - `request.rs`: a request without its body, and the state of an admitted one; `decide.rs`: the
//!   decision about a request;
//! - `service.rs`: [`RateLimit`], the service, and its futures;
//! - `body.rs`: bodies that hold permits; `reservation.rs`: charges that are settled afterwards;
//! - `denial.rs`: responses to rejected requests; `error.rs`: errors of building a layer and of
//!   applying a rule to a request.

mod body;
mod compiled_rule;
mod decide;
mod denial;
mod error;
mod layer;
mod request;
mod reservation;
mod rule;
mod service;

#[cfg(feature = "axum")]
pub use self::body::Axum;
pub use self::body::{Bodies, LimitedBody, Wrapped};

pub use self::denial::Rejection;
pub use self::error::{KeyError, LayerError};
pub use self::layer::{LayerBuilder, RateLimitLayer};
pub use self::request::Head;
pub use self::reservation::Reservation;
pub use self::rule::{Keyless, Limits, Rule, UnknownPlan};
pub use self::service::{RateLimit, ResponseFuture};
pub use crate::attributes::Headers;
#[cfg(feature = "config")]
pub use crate::config::{ConfigError, ConfigErrors};
pub use crate::headers::{Form, Forms, FormsError};
pub use crate::identity::{Identity, IpGroup, NetworkError, Source};
pub use crate::policy::{Mode, PathVariants};

/// Compiles and runs the Rust code of the page.
#[cfg(all(doctest, feature = "axum", feature = "config"))]
#[doc = include_str!("../../../../docs/tower.md")]
struct Page;
