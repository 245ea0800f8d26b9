//! Fronts: the protocols in which decisions are requested. Each decodes a request, calls the gate and
//! encodes the answer.

pub mod grpc;
pub mod http;
pub mod resp;
pub mod response_future;
