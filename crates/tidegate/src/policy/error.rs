//! What can be wrong with a policy, and what would be right.

use std::fmt;

use super::definition::{MAX_LIMITS, MAX_NAME_BYTES, MAX_OVERRIDES};

/// A policy that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyError {
    /// No name, or one with other characters than letters, digits, `.`, `_` and `-`.
    Name,
    /// It limits nothing.
    NoLimits,
    /// More than [`MAX_LIMITS`].
    TooManyLimits,
    /// Two of its limits would count in one state: same algorithm and window.
    SharedState {
        /// Index of the first.
        first: usize,
        /// Index of the second.
        second: usize,
    },
    /// Two of its limits are concurrent, and a key's places are counted once.
    BothConcurrent {
        /// Index of the first.
        first: usize,
        /// Index of the second.
        second: usize,
    },
    /// More than `MAX_OVERRIDES`.
    TooManyOverrides,
    /// An override without a condition.
    NoCondition,
    /// An override that names no field.
    ReplacesNothing,
    /// An override whose condition contradicts what the policy matches.
    NeverMatches {
        /// Index of the override's condition.
        condition: usize,
        /// What the policy matches.
        own: String,
    },
    /// An override that an earlier one always precedes.
    Covered {
        /// Index of the earlier override.
        earlier: usize,
    },
}

impl PolicyError {
    /// What is wrong, in a few words.
    pub fn problem(&self) -> String {
        match self {
            PolicyError::Name => "this cannot be a policy's name".into(),
            PolicyError::NoLimits => "a policy needs a limit".into(),
            PolicyError::TooManyLimits => "a policy has too many limits".into(),
            PolicyError::SharedState { first, second } => format!(
                "limits {} and {} have the same algorithm and window, so they would share one count",
                first + 1,
                second + 1
            ),
            PolicyError::BothConcurrent { first, second } => format!(
                "limits {} and {} are both concurrent, so they would share one count",
                first + 1,
                second + 1
            ),
            PolicyError::TooManyOverrides => "a policy has too many overrides".into(),
            PolicyError::NoCondition => "an override needs a condition".into(),
            PolicyError::ReplacesNothing => "this override replaces nothing".into(),
            PolicyError::NeverMatches { own, .. } => {
                format!("this override can never apply: its policy matches only `{own}`")
            }
            PolicyError::Covered { earlier } => format!(
                "this override can never apply: override {} holds whenever it does, and comes first",
                earlier + 1
            ),
        }
    }

    /// What to do instead.
    pub fn help(&self) -> String {
        match self {
            PolicyError::Name => {
                format!(
                    "use 1 to {MAX_NAME_BYTES} letters, digits, `.`, `_` and `-`, for example `login`"
                )
            }
            PolicyError::NoLimits => "write for example `limits: [\"100 per 1m\"]`".into(),
            PolicyError::TooManyLimits => format!("use at most {MAX_LIMITS}"),
            PolicyError::SharedState { .. } => {
                "keep the stricter one, or give them different windows or algorithms".into()
            }
            PolicyError::BothConcurrent { .. } => "keep the stricter one".into(),
            PolicyError::TooManyOverrides => format!("use at most {MAX_OVERRIDES}"),
            PolicyError::NoCondition => {
                "write for example `when: { \"header:x-org\": acme }`".into()
            }
            PolicyError::ReplacesNothing => {
                "name at least one of limits, mode, on_store_failure, cost and overflow, or remove it".into()
            }
            PolicyError::NeverMatches { .. } => "remove it, or widen the policy's `match`".into(),
            PolicyError::Covered { .. } => "remove it, or put it before the other".into(),
        }
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.problem(), self.help())
    }
}

impl std::error::Error for PolicyError {}
