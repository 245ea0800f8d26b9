//! Helpers that the tests of several crates share. They panic where a test would fail.
//!
//! - [`redis`]: Redis and Valkey servers, alone, watched by Sentinel or in a Cluster;
//! - [`free_port`], [`free_address`]: addresses for servers that a test starts;
//! - [`Authority`]: certificates; [`ScratchDir`]: a directory that is removed;
//! - [`eventually`], [`wait_for`]: waiting for another process;
//! - [`Random`]: numbers that are the same in every run.

mod authority;
mod ports;
mod random;
pub mod redis;
mod scratch_dir;
mod wait;

pub use crate::authority::Authority;
pub use crate::ports::{free_address, free_port};
pub use crate::random::Random;
pub use crate::scratch_dir::ScratchDir;
pub use crate::wait::{PATIENCE, eventually, wait_for};
