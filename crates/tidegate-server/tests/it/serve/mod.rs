//! The server as a process: how it starts, reloads, protects itself and ends.

mod bounds;
mod ends;
mod files;
mod reloads;
mod secrets;
mod stalled;
mod starts;
mod streams;

pub use bounds::{IDLE, IDLE_TURN, may_open_idle};
pub use streams::Authority;

/// One policy that lets little through.
const TWO_PER_HOUR: &str = "
policies:
  - name: login
    key: \"{client_ip}\"
    limits: [\"2 per 1h sliding-log\"]
";
