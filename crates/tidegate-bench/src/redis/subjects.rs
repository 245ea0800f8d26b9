//! The compared designs, as the commands that a client sends.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use redis::{Cmd, Connection, RedisResult, Value};
use tidegate::unstable::redis::{KeyNames, Script, ScriptMode, ScriptPlan};
use tidegate::{Check, Limit, Request};

/// High enough that nothing is denied: a denial is cheaper, by an amount that differs per design.
pub const LIMIT: u64 = 1_000;
/// The limit of subjects on one key, for the same reason.
const LARGE_LIMIT: u64 = 6_000_000;
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
    /// tidegate through its store, 64 concurrent callers with separate keys: a `sliding-counter`.
    Counter,
    /// A `sliding-counter` whose limit is too large for the integer form.
    LargeCounter,
    /// A `sliding-window`.
    Window,
    /// A `sliding-window` of a second, whose keys have cells of several ages.
    AgedWindow,
    /// A `token-bucket`.
    Bucket,
    /// A `sliding-log`.
    Log,
    /// Two `sliding-counter`s in every request.
    TwoLimits,
    /// Two `sliding-window`s in every request.
    TwoWindows,
    /// 64 callers on one key: a `sliding-counter`.
    HotCounter,
    /// A `sliding-window` on one key.
    HotWindow,
    /// A `token-bucket` on one key.
    HotBucket,
    /// A `sliding-log` on one key.
    HotLog,
    /// Two `sliding-counter`s on one key.
    HotTwoLimits,
}

impl Subject {
    pub fn describe(self) -> &'static str {
        match self {
            Subject::Incr => "INCR of a key, and nothing else",
            Subject::TwoKeys => "a script: GET, GET, INCRBY, EXPIRE",
            Subject::SortedSet => "a script: ZREMRANGEBYSCORE, ZCARD, ZADD, EXPIRE",
            Subject::Tidegate => "sliding-counter, one script call for each decision",
            Subject::Counter => "sliding-counter, 64 callers of one RedisStore, separate keys",
            Subject::LargeCounter => "the same, under 6,000,000 per minute",
            Subject::Window => "sliding-window, separate keys",
            Subject::AgedWindow => "sliding-window of a second: keys have cells of several ages",
            Subject::Bucket => "token-bucket, separate keys",
            Subject::Log => "sliding-log, separate keys",
            Subject::TwoLimits => "two sliding-counters per request, separate keys",
            Subject::TwoWindows => "two sliding-windows per request, separate keys",
            Subject::HotCounter => "sliding-counter, 64 callers on one key",
            Subject::HotWindow => "sliding-window, one key",
            Subject::HotBucket => "token-bucket, one key",
            Subject::HotLog => "sliding-log, one key",
            Subject::HotTwoLimits => "two sliding-counters per request, one key",
        }
    }

    /// Returns the limits of a subject that is called through the store.
    pub fn store_limits(self) -> Option<Vec<Limit>> {
        let (algorithm, has_two) = match self {
            Subject::Incr | Subject::TwoKeys | Subject::SortedSet | Subject::Tidegate => {
                return None;
            }
            Subject::Counter | Subject::LargeCounter | Subject::HotCounter => {
                ("sliding-counter", false)
            }
            Subject::Window | Subject::AgedWindow | Subject::HotWindow => ("sliding-window", false),
            Subject::Bucket | Subject::HotBucket => ("token-bucket", false),
            Subject::Log | Subject::HotLog => ("sliding-log", false),
            Subject::TwoLimits | Subject::HotTwoLimits => ("sliding-counter", true),
            Subject::TwoWindows => ("sliding-window", true),
        };
        let is_large = self == Subject::LargeCounter || self.is_hot();
        let count = if is_large { LARGE_LIMIT } else { LIMIT };
        let window_s = if self == Subject::AgedWindow { 1 } else { WINDOW_S };
        let texts = [
            format!("{count} per {window_s}s {algorithm}"),
            format!("{} per 1h {algorithm}", count * 10),
        ];
        let texts = &texts[..if has_two { 2 } else { 1 }];
        Some(texts.iter().map(|text| text.parse().expect("a limit")).collect())
    }

    /// Returns whether all callers use one key.
    pub fn is_hot(self) -> bool {
        use Subject::{HotBucket, HotCounter, HotLog, HotTwoLimits, HotWindow};
        [HotBucket, HotCounter, HotLog, HotTwoLimits, HotWindow].contains(&self)
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
            Subject::TwoKeys => Some(TWO_KEYS),
            Subject::SortedSet => Some(SORTED_SET),
            Subject::Tidegate => Some(Script::Request.source()),
            _ => None,
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
            _ => self.plan(key).call(ScriptMode::Decide, None).cmd(),
        }
    }

    fn plan(&self, key: &str) -> ScriptPlan {
        let checks = [Check::new(key, &self.limit, 1)];
        ScriptPlan::new(&Request::new(&checks), &KeyNames::new("tg")).expect("a valid request")
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
                let decided = self.plan("").decode_reply(ScriptMode::Decide, reply);
                decided.is_ok_and(|decided| decided.admitted)
            }
            _ => false,
        }
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
