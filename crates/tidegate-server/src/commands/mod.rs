//! The subcommands that do not serve.

pub mod config;
pub mod explain;
pub mod man_and_completions;
