//! Envoy's rate limit service (`envoy.service.ratelimit.v3`): its messages, and their conversion to
//! and from the gate.
//!
//! ```text
//!   bytes -> messages.rs -> RateLimitRequest -> to_gate_requests.rs -> GateRequest -> Gate::check
//!   bytes <- messages.rs <- Reply            <- reply.rs            <- GateVerdict <--'
//! ```
//!
//! The messages are decoded and encoded by hand (`protobuf.rs`). A request borrows all texts from
//! the received bytes, and a reply is written into one buffer directly from the verdict. Generated
//! types would own each text, and would bring Envoy's whole API, four megabytes of source, for six
//! messages. `/json` of the HTTP front uses the same [`RateLimitRequest`] and [`Reply`] in JSON.
//!
//! The meaning of a request, also documented in docs/envoy.md:
//!
//! - Each descriptor becomes a separate [`GateRequest`]. All are decided together: all are charged
//!   or none.
//! - The `hits_addend` of a descriptor is its cost. 0 only peeks, and `is_negative_hits` refunds. A
//!   descriptor without one uses that of the request. If that is 0 too, the policy defines the
//!   cost.
//! - A descriptor with a `limit` is counted under that limit alone, regardless of the policies.
//! - In text that is not UTF-8, invalid bytes become U+FFFD. An error would be worse: Envoy may let
//!   requests pass when the call fails, so any client could cause that.
//!
//! [`GateRequest`]: tidegate::unstable::gate::GateRequest

mod messages;
mod protobuf;
mod reply;
mod to_gate_requests;

pub use messages::{Descriptor, Entries, RateLimitRequest, RequestLimit};
pub use reply::{Reply, ReplyForm, Status, Value};
pub use to_gate_requests::{
    EnvoyRequests, MAX_DESCRIPTORS, MAX_ENTRIES, RequestForm, descriptor_error,
};

use crate::error::{ErrorKind, RequestError};
use crate::server_state::ServerState;

/// Returns an error if no config was loaded yet. Without one, every request would pass.
pub fn require_config(server_state: &ServerState) -> Result<(), RequestError> {
    if server_state.lacks_config() {
        return Err(RequestError::new(
            ErrorKind::Unavailable,
            "no rate limit config is loaded yet",
        ));
    }
    Ok(())
}

/// The full name of the service.
pub const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
