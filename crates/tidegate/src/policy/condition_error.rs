//! What can be wrong with a condition, and what would be right.

use std::fmt;

use ipnet::IpNet;

use super::condition::MAX_VALUES;
use super::descriptor::MAX_ENTRIES;
use super::pattern::PatternError;

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
