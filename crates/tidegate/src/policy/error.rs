//! What can be wrong with a policy, and what would be right.

use std::fmt;

use ipnet::IpNet;

use super::condition::MAX_VALUES;
use super::definition::{MAX_LIMITS, MAX_NAME_BYTES, MAX_OVERRIDES};
use super::descriptor::MAX_ENTRIES;
use super::pattern::PatternError;

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

/// A condition that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionError {
    /// Which of the values is wrong.
    pub index: usize,
    /// What is wrong with it.
    pub kind: ConditionErrorKind,
}

/// What can be wrong with a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConditionErrorKind {
    /// There is no value, so nothing satisfies it.
    NoValue,
    /// More than `MAX_VALUES`.
    TooMany,
    /// An empty text, which no part ever is.
    Empty,
    /// `*` beside other values.
    StarAmongOthers,
    /// A method with characters no method has.
    Method,
    /// No address and no network.
    Network,
    /// A network whose address has bits beyond the prefix; the network that is meant.
    HostBits(IpNet),
    /// A mapped IPv4 network; the IPv4 one that is meant.
    Mapped(IpNet),
    /// No pattern.
    Pattern(PatternError),
    /// The descriptors as a whole, held against a text.
    NotEntries,
    /// A descriptor without a name, or with one that is too long.
    EntryName,
    /// A list of no descriptors, or of more than [`MAX_ENTRIES`].
    EntryCount,
}

impl ConditionErrorKind {
    /// What is wrong, in a few words.
    pub fn problem(&self) -> String {
        match self {
            Self::NoValue => "there is no value, so no request can satisfy it".into(),
            Self::TooMany => "too many values".into(),
            Self::Empty => "an empty value matches nothing".into(),
            Self::StarAmongOthers => {
                "`*` matches anything, so the other values mean nothing".into()
            }
            Self::Method => "this is not a method".into(),
            Self::Network => "this is not an address or network".into(),
            Self::HostBits(_) => "the address has bits beyond its prefix".into(),
            Self::Mapped(_) => {
                "mapped IPv4 addresses are taken as IPv4, so this never matches".into()
            }
            Self::Pattern(error) => error.problem(),
            Self::NotEntries => "descriptors are names with values".into(),
            Self::EntryName => "this cannot be a descriptor's name".into(),
            Self::EntryCount => "a list has one entry at least, and not too many".into(),
        }
    }

    /// What to write instead.
    pub fn help(&self) -> String {
        match self {
            Self::NoValue => "write at least one value, or `\"*\"` for any".into(),
            Self::TooMany => format!("use at most {MAX_VALUES}"),
            Self::Empty => "write a value, or `\"*\"` for any".into(),
            Self::StarAmongOthers => "write `\"*\"` alone, or leave it out".into(),
            Self::Method => "write for example `POST`".into(),
            Self::Network => {
                "write for example `10.0.0.0/8`, `192.0.2.1` or `2001:db8::/32`".into()
            }
            Self::HostBits(net) | Self::Mapped(net) => format!("write `{net}`"),
            Self::Pattern(error) => error.help().into(),
            Self::NotEntries => "write for example `{ remote_address: \"*\" }`".into(),
            Self::EntryName => "use 1 to 256 bytes, for example `remote_address`".into(),
            Self::EntryCount => format!("use 1 to {MAX_ENTRIES}"),
        }
    }
}

impl fmt::Display for ConditionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.problem(), self.kind.help())
    }
}

impl std::error::Error for ConditionError {}
