//! The server as a process: startup, reloads, resource limits and shutdown.

mod authentication;
mod file_limits;
mod http2_and_tls;
mod reload;
mod resource_limits;
mod shutdown;
mod startup;
mod unread_output;

pub use http2_and_tls::connect_tls;
pub use resource_limits::{IDLE, IDLE_TURN, may_open_idle};

/// A policy with a low limit.
const TWO_PER_HOUR: &str = "
policies:
  - name: login
    key: \"{client_ip}\"
    limits: [\"2 per 1h sliding-log\"]
";
