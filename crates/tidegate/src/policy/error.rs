//! Errors of policies and conditions, each with its problem and how to fix it.

use std::fmt;

use ipnet::IpNet;

use super::condition::MAX_VALUES;
use super::definition::{MAX_LIMITS, MAX_NAME_BYTES, MAX_OVERRIDES};
use super::descriptor::MAX_ENTRIES;
use super::pattern::PatternError;

/// The error of an invalid policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyError {
    /// The name is empty, is longer than [`MAX_NAME_BYTES`], or has characters other than letters,
    /// digits, `.`, `_` and `-`.
    Name,
    /// The list of limits is empty.
    NoLimits,
    /// There are more than [`MAX_LIMITS`] limits.
    TooManyLimits,
    /// Two limits have the same algorithm and window, so they would share one state.
    SharedState {
        /// The index of the first.
        first: usize,
        /// The index of the second.
        second: usize,
    },
    /// Two limits are concurrent, so they would share one count of permits.
    BothConcurrent {
        /// The index of the first.
        first: usize,
        /// The index of the second.
        second: usize,
    },
    /// There are more than `MAX_OVERRIDES` overrides.
    TooManyOverrides,
    /// An override lacks a condition.
    NoCondition,
    /// An override sets no field.
    ReplacesNothing,
    /// A condition of an override contradicts one of the policy, so the override can never apply.
    NeverMatches {
        /// The index of the override's condition.
        condition: usize,
        /// The policy's condition that it contradicts.
        policy_condition: String,
    },
    /// An earlier override applies whenever this one would, so this one can never apply.
    Covered {
        /// The index of the earlier override.
        earlier: usize,
        /// Whether this one also applies whenever the earlier one does.
        is_same: bool,
    },
}

impl PolicyError {
    /// Returns a short description of the error.
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
            PolicyError::NeverMatches { policy_condition, .. } => {
                format!(
                    "this override can never apply: its policy matches only `{policy_condition}`"
                )
            }
            PolicyError::Covered { earlier, .. } => format!(
                "this override can never apply: override {} holds whenever it does, and comes first",
                earlier + 1
            ),
        }
    }

    /// Returns how to fix it.
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
            PolicyError::Covered { is_same: true, .. } => "remove one of the two".into(),
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

/// The error of an invalid condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionError {
    /// The index of the invalid value.
    pub index: usize,
    /// The kind of error.
    pub kind: ConditionErrorKind,
}

/// The kinds of invalid conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConditionErrorKind {
    /// The list of values is empty, so no request satisfies the condition.
    NoValue,
    /// There are more values than this.
    TooMany(usize),
    /// More than `MAX_VALUES` values have a `*`.
    TooManyWildcards,
    /// A value is empty. An empty field counts as missing, so the value would never match.
    Empty,
    /// `*` is listed with other values.
    StarAmongOthers,
    /// A method has characters that are not allowed in one.
    Method,
    /// A value is neither an address nor a network.
    Network,
    /// The address of a network has bits beyond the prefix. Contains the network without them.
    HostBits(IpNet),
    /// A network is an IPv4-mapped one. Contains the IPv4 network.
    Mapped(IpNet),
    /// A value is not a valid pattern.
    Pattern(PatternError),
    /// The descriptors as a whole were compared with a text.
    NotEntries,
    /// The name of a descriptor is empty or too long.
    EntryName,
    /// A list of descriptors is empty, or has more than [`MAX_ENTRIES`] elements.
    EntryCount,
}

impl ConditionErrorKind {
    /// Returns a short description of the error.
    pub fn problem(&self) -> String {
        match self {
            Self::NoValue => "there is no value, so no request can satisfy it".into(),
            Self::TooMany(_) => "too many values".into(),
            Self::TooManyWildcards => "too many values with `*`".into(),
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

    /// Returns how to fix it.
    pub fn help(&self) -> String {
        match self {
            Self::NoValue => "write at least one value, or `\"*\"` for any".into(),
            Self::TooMany(most) => format!("use at most {most}"),
            Self::TooManyWildcards => format!("use at most {MAX_VALUES} of them"),
            Self::Empty => "write a value, or `\"*\"` for any".into(),
            Self::StarAmongOthers => "write `\"*\"` alone, or leave it out".into(),
            Self::Method => "write for example `POST`".into(),
            Self::Network => {
                "write for example `10.0.0.0/8`, `192.0.2.1` or `2001:db8::/32`".into()
            }
            Self::HostBits(net) | Self::Mapped(net) => format!("write `{net}`"),
            Self::Pattern(error) => error.help().into(),
            Self::NotEntries => "write for example `{ remote_address: \"*\" }`".into(),
            Self::EntryName => "use 1 to 1024 bytes, for example `remote_address`".into(),
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
