//! Fronts: the protocols over which decisions are requested. Each front decodes a request, calls
//! the gate and encodes the response.

pub mod grpc;
pub mod http;
mod request_bounds;
pub mod resp;
pub mod response_future;
