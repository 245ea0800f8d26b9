//! The compared designs, as the commands that a client sends.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use redis::{Cmd, Connection, RedisResult, Value};
use tidegate::Limit;
use tidegate::unstable::redis::{
    CounterEntry, CounterReply, KeyNames, Script, counter_call, decode_counter_reply,
};

/// High enough that nothing is denied: a denial is cheaper, by an amount that differs per design.
pub const LIMIT: u64 = 1_000;
/// The window of all designs, in seconds.
pub const WINDOW_S: u64 = 60;
const TWO_KEYS: &str = include_str!("scripts/two_keys.lua");
const SORTED_SET: &str = include_str!("scripts/sorted_set.lua");

/// A design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Subject {
    /// A counter without a limit: the lower bound.
    Incr,
    /// Two counters, one for each window.
    TwoKeys,
    /// A log in a sorted set.
    SortedSet,
    /// tidegate, one script call per decision.
    Tidegate,
    /// tidegate through its store: 64 concurrent, independent callers.
    TidegateCoalesced,
}

impl Subject {
    pub fn describe(self) -> &'static str {
        match self {
            Subject::Incr => "INCR of a key, and nothing else",
            Subject::TwoKeys => "a script: GET, GET, INCRBY, EXPIRE",
            Subject::SortedSet => "a script: ZREMRANGEBYSCORE, ZCARD, ZADD, EXPIRE",
            Subject::Tidegate => "sliding-counter, one script call for each decision",
            Subject::TidegateCoalesced => "sliding-counter, 64 callers of one RedisStore",
        }
    }
}

/// Builds the commands of a subject; creating it loads the script of the subject, if it has one.
pub struct CommandBuilder {
    subject: Subject,
    sha: String,
    limit: Limit,
    built: u64,
}

impl CommandBuilder {
    pub fn new(subject: Subject, connection: &mut Connection) -> RedisResult<Self> {
        let limit = format!("{LIMIT} per {WINDOW_S}s sliding-counter").parse().expect("a limit");
        let script = match subject {
            Subject::Incr | Subject::TidegateCoalesced => None,
            Subject::TwoKeys => Some(TWO_KEYS),
            Subject::SortedSet => Some(SORTED_SET),
            Subject::Tidegate => Some(Script::Counter.source()),
        };
        let sha = match script {
            Some(script) => redis::cmd("SCRIPT").arg("LOAD").arg(script).query(connection)?,
            None => String::new(),
        };
        Ok(CommandBuilder { subject, sha, limit, built: 0 })
    }

    /// Builds the command for one decision about `key`.
    pub fn command(&mut self, key: &str) -> Cmd {
        self.built += 1;
        match self.subject {
            Subject::Incr => {
                let mut command = redis::cmd("INCR");
                command.arg(format!("tg:{key}"));
                command
            }
            Subject::TwoKeys => self.two_keys(key),
            Subject::SortedSet => self.sorted_set(key, now_ms()),
            Subject::Tidegate | Subject::TidegateCoalesced => {
                counter_call(&self.limit, &[self.entry(key)], None).cmd()
            }
        }
    }

    fn entry(&self, key: &str) -> CounterEntry {
        let key = KeyNames::new("tg").state(key.as_bytes(), &self.limit);
        CounterEntry { key, units: 1, times: 1 }
    }

    fn two_keys(&self, key: &str) -> Cmd {
        let (now_ms, window_ms) = (now_ms(), WINDOW_S * 1_000);
        let window = now_ms / window_ms;
        let weight = 1.0 - (now_ms % window_ms) as f64 / window_ms as f64;
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha).arg(2);
        command.arg(format!("tg:{{{key}}}:{window}")).arg(format!("tg:{{{key}}}:{}", window - 1));
        command.arg(LIMIT).arg(weight).arg(1).arg(2 * WINDOW_S);
        command
    }

    /// Builds the command for a given time. Callers of this design always pass the time.
    pub fn sorted_set(&self, key: &str, now_ms: u64) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha).arg(1).arg(format!("tg:{key}")).arg(LIMIT);
        command.arg(now_ms).arg(now_ms - WINDOW_S * 1_000);
        command.arg(format!("{now_ms}-{}", self.built)).arg(WINDOW_S);
        command
    }

    /// Returns whether an answer is a decision that admits.
    pub fn admitted(&self, reply: &Value) -> bool {
        match (self.subject, reply) {
            (Subject::Incr, Value::Int(count)) => *count > 0,
            (Subject::TwoKeys | Subject::SortedSet, Value::Array(reply)) => {
                matches!(reply[..], [Value::Int(1), Value::Int(_)])
            }
            (Subject::Tidegate, reply) => {
                let replies = decode_counter_reply(&self.limit, &[self.entry("")], reply);
                matches!(replies.as_deref(), Ok([CounterReply::Decided(decisions)]) if decisions[0].allowed)
            }
            _ => false,
        }
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
