//! The table of commands.
//!
//! The number of arguments, the requirement of a secret and the replies to `COMMAND` come from one
//! table.

/// A command. Its discriminant is its index in [`ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    TgCheck,
    TgPeek,
    TgReset,
    TgLimit,
    ClThrottle,
    Throttle,
    Auth,
    Client,
    Commands,
    Config,
    Discard,
    Echo,
    Exec,
    Hello,
    Info,
    Multi,
    Ping,
    Quit,
    Reset,
    Select,
}

/// The specification of a command.
#[derive(Debug)]
pub struct Spec {
    pub command: Command,
    pub name: &'static str,
    /// The number of arguments, including the name. If negative, its absolute value is the minimum.
    pub arity: i64,
    /// The position of the key; 0 if there is none.
    pub key: i64,
    /// Whether it is allowed before authentication.
    pub open: bool,
    pub summary: &'static str,
}

/// All commands: first those that are queries to the gate, then the others by name.
#[rustfmt::skip]
pub const ALL: [Spec; 20] = [
    spec(Command::TgCheck, "tg.check", -3, 2, "Checks a key against a policy, and charges the cost if it is admitted."),
    spec(Command::TgPeek, "tg.peek", 3, 2, "Returns what a key has left of a policy's limits."),
    spec(Command::TgReset, "tg.reset", 3, 2, "Resets the counts of a key under a policy."),
    spec(Command::TgLimit, "tg.limit", -3, 2, "Checks a key against the given limits, and charges the cost if it is admitted."),
    // Their usage is in their own error messages, so any number of arguments is accepted here.
    spec(Command::ClThrottle, "cl.throttle", -1, 1, "Checks a key in the form of redis-cell."),
    spec(Command::Throttle, "throttle", -1, 1, "Checks a key in the form of throttlecrab."),
    open("auth", Command::Auth, -2, "Authenticates the connection."),
    spec(Command::Client, "client", -2, 0, "Sets or returns the name of the connection, and details about it."),
    spec(Command::Commands, "command", -1, 0, "Returns the commands."),
    spec(Command::Config, "config", -2, 0, "Returns settings that clients read."),
    spec(Command::Discard, "discard", 1, 0, "Discards the commands since MULTI."),
    spec(Command::Echo, "echo", 2, 0, "Returns its argument."),
    spec(Command::Exec, "exec", 1, 0, "Runs the commands since MULTI."),
    open("hello", Command::Hello, -1, "Selects the version of the protocol."),
    spec(Command::Info, "info", -1, 0, "Returns information about the server."),
    spec(Command::Multi, "multi", 1, 0, "Starts a transaction."),
    spec(Command::Ping, "ping", -1, 0, "Returns PONG, or its argument."),
    open("quit", Command::Quit, -1, "Closes the connection."),
    open("reset", Command::Reset, 1, "Resets the connection."),
    spec(Command::Select, "select", 2, 0, "Selects database 0, which is the only one."),
];

const fn spec(
    command: Command,
    name: &'static str,
    arity: i64,
    key: i64,
    summary: &'static str,
) -> Spec {
    Spec { command, name, arity, key, open: false, summary }
}

const fn open(name: &'static str, command: Command, arity: i64, summary: &'static str) -> Spec {
    Spec { open: true, ..spec(command, name, arity, 0, summary) }
}

impl Spec {
    /// Finds a command by name, ignoring case.
    #[inline]
    pub fn find(name: &[u8]) -> Option<&'static Spec> {
        // The most frequent commands first.
        if name.eq_ignore_ascii_case(b"tg.check") {
            return Some(&ALL[Command::TgCheck as usize]);
        }
        if name.eq_ignore_ascii_case(b"cl.throttle") {
            return Some(&ALL[Command::ClThrottle as usize]);
        }
        ALL.iter().find(|spec| name.eq_ignore_ascii_case(spec.name.as_bytes()))
    }

    /// Finds the command that decides and has a similar name, for errors.
    #[cold]
    pub fn nearest(name: &str) -> Option<&'static Spec> {
        const MAX_DISTANCE: usize = 2;
        const MAX_COMPARED_BYTES: usize = 16;
        if name.len() > MAX_COMPARED_BYTES {
            return None;
        }
        let name = name.to_ascii_lowercase();
        let distance = |spec: &&Spec| strsim::damerau_levenshtein(&name, spec.name);
        let decides = ALL.iter().filter(|spec| spec.key > 0);
        decides.min_by_key(distance).filter(|spec| distance(spec) <= MAX_DISTANCE)
    }

    /// Whether the command takes this number of arguments, including its name.
    #[inline]
    pub fn takes(&self, args: usize) -> bool {
        let args = i64::try_from(args).unwrap_or(i64::MAX);
        if self.arity < 0 { args >= -self.arity } else { args == self.arity }
    }

    /// How the command is handled between `MULTI` and `EXEC`.
    pub fn in_transaction(&self) -> TransactionRule {
        match self.command {
            Command::Discard | Command::Exec | Command::Multi => TransactionRule::Immediate,
            Command::Quit | Command::Reset => TransactionRule::Immediate,
            Command::Echo | Command::Ping | Command::Select => TransactionRule::Queued,
            _ if self.key > 0 => TransactionRule::Queued,
            _ => TransactionRule::NotAllowed,
        }
    }

    /// The group that `COMMAND DOCS` reports.
    pub fn group(&self) -> &'static str {
        match self.command {
            Command::Discard | Command::Exec | Command::Multi => "transactions",
            _ if self.key > 0 => "module",
            _ => "connection",
        }
    }

    /// The flags that `COMMAND` reports.
    pub fn flags(&self) -> &'static [&'static str] {
        match (self.key, self.open) {
            (0, true) => &["noscript", "loading", "stale", "fast", "no_auth"],
            (0, false) => &["loading", "stale", "fast"],
            _ => &["write", "denyoom", "fast"],
        }
    }
}

/// How a command is handled between `MULTI` and `EXEC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionRule {
    /// It is answered immediately, because it ends or discards the transaction.
    Immediate,
    /// It is queued for `EXEC`.
    Queued,
    /// It is not allowed, because it concerns the connection or its reply is long.
    NotAllowed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_every_command_by_name() {
        for (index, spec) in ALL.iter().enumerate() {
            assert_eq!(spec.command as usize, index, "{}", spec.name);
            let upper = spec.name.to_ascii_uppercase();
            for name in [spec.name, &upper] {
                assert_eq!(Spec::find(name.as_bytes()).map(|found| found.name), Some(spec.name));
            }
        }
        assert!(Spec::find(b"get").is_none() && Spec::find(b"").is_none());
    }

    #[test]
    fn suggests_commands_with_similar_names() {
        for (name, meant) in [
            ("TG.CHEK", Some("tg.check")),
            ("tg_check", Some("tg.check")),
            ("TG.PEAK", Some("tg.peek")),
            ("CL.THROTLE", Some("cl.throttle")),
            ("THROTLE", Some("throttle")),
            ("GET", None),
            ("EVAL", None),
            ("", None),
        ] {
            assert_eq!(Spec::nearest(name).map(|spec| spec.name), meant, "{name}");
        }
    }
}
