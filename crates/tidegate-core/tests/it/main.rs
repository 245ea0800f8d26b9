//! The proof of the pure core, in one binary: an oracle written apart from the
//! crate, exhaustive searches of small worlds, properties of large ones, a model
//! of the packed log, golden limit texts, and a fuzz target.

mod checked_state;
mod generators;
mod oracle;
mod window_oracle;

mod counter_states;
mod entries;
mod exhaustive;
mod fuzz;
mod properties;
mod text;
mod vectors;
mod views;
mod window;
