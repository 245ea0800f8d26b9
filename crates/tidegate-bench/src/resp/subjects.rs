//! The measured commands, as arguments of `redis-benchmark`.

use clap::ValueEnum;

use crate::http::LOOSE_LIMITS;
use crate::subjects::version;

/// A key; `redis-benchmark` replaces the placeholder by a number of twelve digits.
const KEY: &str = "key:__rand_int__";

/// The measured commands, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Subject {
    #[value(name = "tg-check")]
    Check,
    #[value(name = "tg-check-2limits")]
    CheckTwoLimits,
    #[value(name = "cl-throttle")]
    ClThrottle,
    #[value(name = "redis-ping")]
    Ping,
    #[value(name = "redis-incr")]
    Incr,
    #[value(name = "throttlecrab")]
    Throttlecrab,
}

/// The servers that run the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    Tidegate,
    Redis,
    Throttlecrab,
}

impl Subject {
    pub fn server_kind(self) -> ServerKind {
        match self {
            Subject::Check | Subject::CheckTwoLimits | Subject::ClThrottle => ServerKind::Tidegate,
            Subject::Ping | Subject::Incr => ServerKind::Redis,
            Subject::Throttlecrab => ServerKind::Throttlecrab,
        }
    }

    /// Returns the command and its arguments. Every decision admits.
    pub fn arguments(self) -> &'static [&'static str] {
        match self {
            Subject::Check => &["TG.CHECK", "one-limit", KEY],
            Subject::CheckTwoLimits => &["TG.CHECK", "two-limits", KEY],
            Subject::ClThrottle => &["CL.THROTTLE", KEY, "1000000", "1000000", "1"],
            Subject::Ping => &["PING"],
            Subject::Incr => &["INCR", KEY],
            Subject::Throttlecrab => &["THROTTLE", KEY, "1000000", "1000000", "1"],
        }
    }

    /// Returns the number of commands per turn for this pipeline depth: a few hundred milliseconds.
    pub fn requests(self, pipeline: u16, quick: bool) -> u64 {
        let all = match pipeline {
            0..=1 => 20_000,
            2..=16 => 200_000,
            _ => 500_000,
        };
        let all = if quick { all / 2 } else { all };
        // The server answers one command at a time and waits for the network each time.
        if self == Subject::Throttlecrab { all / 20 } else { all }
    }

    /// Describes the limits of the policy.
    fn limits(self) -> String {
        match self {
            Subject::Check => format!("; {}", LOOSE_LIMITS[0]),
            Subject::CheckTwoLimits => format!("; {} and {}", LOOSE_LIMITS[0], LOOSE_LIMITS[1]),
            _ => String::new(),
        }
    }

    /// Describes the subject in one line.
    pub fn describe(self) -> String {
        let command = self.arguments().join(" ");
        match self.server_kind() {
            ServerKind::Tidegate => format!("tidegate: {command}{}", self.limits()),
            ServerKind::Redis => format!("Redis: {command}"),
            ServerKind::Throttlecrab => {
                let version = version("throttlecrab");
                format!("throttlecrab-server {version}: {command}, built with our release profile")
            }
        }
    }
}
