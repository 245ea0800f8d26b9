//! What is asked of policies.

/// Whether a policy's denials count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It denies.
    #[default]
    Enforce,
    /// It decides, counts and logs, and never denies.
    Observe,
    /// It is left out.
    Off,
}
