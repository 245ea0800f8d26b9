//! Envoy's rate limit service (`envoy.service.ratelimit.v3`): its messages, and what they
//! mean to the gate.
//!
//! ```text
//!   bytes --decode.rs--> Request --to_questions.rs--> questions --Gate::check--> Answer
//!         <--encode.rs-- Reply   <---------------------------reply.rs--------------'
//! ```
//!
//! The messages are read and written by hand (`protobuf.rs`): a request borrows every text from
//! the bytes it came in, and a reply is written into one buffer from where the answer lies.
//! Generated types would own each text, and bring Envoy's whole API, four megabytes of source,
//! for six messages. `/json` of the HTTP front has the same [`Request`] and [`Reply`] in JSON.
//!
//! What a question means, here and in docs/envoy.md:
//!
//! - each descriptor is a question of its own, all are decided as one request: all are
//!   charged or none;
//! - a descriptor's `hits_addend` is its cost: 0 only looks, `is_negative_hits` gives back;
//!   without one the request's holds, and where that is 0 too, what the policy says;
//! - a descriptor with a `limit` is counted under that alone, whatever the policies say;
//! - text that is not UTF-8 is taken with U+FFFD in place of what cannot be read. A refusal
//!   would be worse: Envoy lets requests pass when its question fails, so any client could
//!   arrange for that.

mod messages;
mod protobuf;
mod reply;
mod to_questions;

pub use messages::{Descriptor, Request, RequestLimit};
pub use protobuf::{Fields, Malformed, put_bytes, put_nested, put_number};
pub use reply::{Reply, Status, Value, unit};
pub use to_questions::{EnvoyQuestions, MAX_DESCRIPTORS, MAX_ENTRIES, descriptor_error};

/// The service's full name.
pub const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
