//! Configs: the settings read from valid ones, and the complete message for every invalid one.
//!
//! `errors/NAME.yaml` must be rejected with exactly the text of `errors/NAME.txt`. After a change
//! of wording, `TIDEGATE_BLESS=1 cargo test -p tidegate --features config --test it config`
//! rewrites the messages; review the diff.

mod errors;
mod hostile_input;
mod schema;
mod valid;
