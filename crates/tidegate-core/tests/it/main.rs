//! The tests of the core, in one binary: an oracle that shares no code with the crate,
//! exhaustive searches of short histories, properties of random ones, a model of the
//! packed log, golden limit texts, and a fuzz target.

mod checked_state;
mod generators;
mod lease_judge;
mod lease_world;
mod oracle;
mod window_oracle;

mod counter_states;
mod entries;
mod exhaustive;
mod fuzz;
mod lease;
mod properties;
mod text;
mod vectors;
mod views;
mod window;
