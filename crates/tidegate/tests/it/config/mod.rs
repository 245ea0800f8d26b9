//! Configs: what is read from good ones, and the whole message of every bad one.
//!
//! `bad/NAME.yaml` must be refused with exactly `bad/NAME.txt`. After a change
//! of wording, `TIDEGATE_BLESS=1 cargo test -p tidegate --features config --test it config`
//! writes the messages anew; read the diff.

mod errors;
mod hostile_input;
mod schema;
mod valid;
