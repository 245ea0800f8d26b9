//! The proof of the Redis store, on real servers.
//!
//! Where a server's program is missing these tests fail and say which. See
//! `scripts/lib/redis.sh` for where they come from.

mod client;
mod connect;
mod foreign;
mod ids;
mod live;
mod names;
mod parity;
mod permits;
mod server;
mod stand;
mod state;
mod traces;
mod vectors;
