//! The state of a connection, and the commands that use it.

use super::RespFront;
use super::arguments::LimitCache;
use super::codec::{Args, whole_number};
use super::codec::{Replies, RespVersion};
use super::commands::{Command, Spec};
use super::query::{BorrowedQuery, QueryKind};
use super::transaction::{EXEC_ARITY, ExecRun, QueuedCommands, aborted};
use super::{arguments, introspection};
use super::{excerpt, wrong_arity};
use crate::error::{ErrorKind, RequestError};

/// The maximum length of the name of a connection, which is kept for as long as it is open.
const MAX_NAME_BYTES: usize = 128;

/// The number of wrong secrets after which a connection is closed, so that an attacker has to
/// reconnect.
const MAX_WRONG_SECRETS: u8 = 16;

const NO_SECRET: &str = "Authentication required.";
const NO_SECRET_IN_HELLO: &str = "HELLO must be called with the client already \
    authenticated, otherwise the HELLO AUTH <user> <pass> option can be used to authenticate \
    the client and select the RESP protocol version at the same time";
const WRONG_SECRET: &str = "invalid username-password pair or user is disabled.";
const NO_SECRETS: &str = "AUTH <password> called without any password configured for the \
    default user. Are you sure your configuration is correct?";
const BAD_NAME: &str = "Client names cannot contain spaces, newlines or special characters.";

/// The state of a connection.
#[derive(Debug)]
pub struct Session {
    pub id: u64,
    pub protocol: RespVersion,
    /// Whether it may send commands: it is authenticated, or no secret is required.
    pub authenticated: bool,
    wrong_secrets: u8,
    pub name: Box<[u8]>,
    /// Commands since `MULTI`, queued for `EXEC`.
    pub queued: Option<Box<QueuedCommands>>,
    /// The commands that `EXEC` executes before the next command is parsed.
    pub exec_run: ExecRun,
}

/// A parsed command.
#[derive(Debug)]
pub enum ParsedCommand<'a> {
    /// It is a query to the gate.
    Query(BorrowedQuery<'a>),
    /// The session answers it.
    Other(Command),
    /// It is queued for `EXEC`.
    Queued,
    /// It is invalid.
    Rejected(RequestError),
    /// It is an empty line or array, which gets no reply.
    Empty,
    /// It is a line of an HTTP request, which a web page could make a browser send. The connection
    /// is closed.
    HttpRequest,
}

impl ParsedCommand<'_> {
    /// Whether it has a reply.
    pub fn is_answered(&self) -> bool {
        !matches!(self, ParsedCommand::Empty | ParsedCommand::HttpRequest)
    }
}

impl Session {
    /// Creates the state of a new connection.
    pub fn new(id: u64, front: &RespFront) -> Self {
        Session {
            id,
            protocol: RespVersion::default(),
            authenticated: !front.requires_secret(),
            wrong_secrets: 0,
            name: Box::default(),
            queued: None,
            exec_run: ExecRun::default(),
        }
    }

    /// Parses a command without executing it.
    #[inline]
    pub fn parse<'a>(&self, args: &Args<'a>, limits: &mut LimitCache) -> ParsedCommand<'a> {
        let Some(name) = args.first() else { return ParsedCommand::Empty };
        let query = match Spec::find(name) {
            Some(spec) if self.queued.is_some() => return self.parse_in_transaction(spec, args),
            Some(spec) if spec.takes(args.len()) && (self.authenticated || spec.open) => {
                match spec.command {
                    Command::TgCheck => arguments::check(args),
                    Command::ClThrottle => arguments::cell(args, limits),
                    Command::Throttle => arguments::crab(args, limits),
                    Command::TgLimit => arguments::limit(args, limits),
                    Command::TgPeek => arguments::named(QueryKind::Peek, args[1], args[2]),
                    Command::TgReset => arguments::named(QueryKind::Reset, args[1], args[2]),
                    command => return ParsedCommand::Other(command),
                }
            }
            Some(spec) => Err(self.rejection(spec, args.len())),
            None if is_http_request(args) => return ParsedCommand::HttpRequest,
            None => Err(unknown(args)),
        };
        query.map_or_else(ParsedCommand::Rejected, ParsedCommand::Query)
    }

    /// Why a known command is rejected.
    #[cold]
    fn rejection(&self, spec: &Spec, args: usize) -> RequestError {
        match (spec.command, spec.takes(args)) {
            (Command::Exec, true) => aborted(&format!("NOAUTH {NO_SECRET}")),
            (Command::Exec, false) => aborted(EXEC_ARITY),
            (_, true) => RequestError::new(ErrorKind::Unauthenticated, NO_SECRET),
            (_, false) => wrong_arity(spec.name),
        }
    }

    /// Answers a command that needs no decision. Returns whether the connection stays open.
    pub fn answer(
        &mut self,
        command: Command,
        front: &RespFront,
        args: &Args<'_>,
        replies: &mut Replies<'_>,
    ) -> bool {
        let done = match command {
            Command::Ping => ping(args, replies),
            Command::Echo => {
                replies.bulk(args[1]);
                Ok(())
            }
            Command::Auth => self.auth(front, args, replies),
            Command::Hello => self.hello(front, args, replies),
            Command::Select => select(args[1], replies),
            Command::Client => self.client(args, replies),
            Command::Commands => introspection::command(args, replies),
            Command::Config => introspection::config(args, replies),
            Command::Info => {
                introspection::info(front, args, replies);
                Ok(())
            }
            Command::Multi => self.multi(replies),
            Command::Exec => self.exec(args, replies),
            Command::Discard => self.discard(replies),
            Command::Reset => {
                *self =
                    Session { wrong_secrets: self.wrong_secrets, ..Session::new(self.id, front) };
                replies.protocol = self.protocol;
                replies.simple("RESET");
                Ok(())
            }
            Command::Quit => {
                replies.ok();
                return false;
            }
            // Queries to the gate, which are parsed as such. Without a wildcard, a command that
            // nobody replies to does not compile.
            Command::TgCheck
            | Command::ClThrottle
            | Command::Throttle
            | Command::TgLimit
            | Command::TgPeek
            | Command::TgReset => Ok(()),
        };
        if let Err(error) = done {
            replies.error(&error);
        }
        self.wrong_secrets < MAX_WRONG_SECRETS
    }

    /// `AUTH [user] secret`. Any user name is accepted.
    fn auth(
        &mut self,
        front: &RespFront,
        args: &Args<'_>,
        replies: &mut Replies<'_>,
    ) -> Result<(), RequestError> {
        match args[1..] {
            [_] if !front.requires_secret() => return Err(RequestError::invalid(NO_SECRETS)),
            [secret] | [_, secret] => self.authenticate(front, secret)?,
            _ => return Err(RequestError::invalid("syntax error")),
        }
        replies.ok();
        Ok(())
    }

    fn authenticate(&mut self, front: &RespFront, secret: &[u8]) -> Result<(), RequestError> {
        if front.accepts_secret(secret) {
            self.authenticated = true;
            return Ok(());
        }
        front.log_rejection();
        self.wrong_secrets = self.wrong_secrets.saturating_add(1);
        Err(RequestError::new(ErrorKind::Forbidden, WRONG_SECRET))
    }

    /// `HELLO [2|3 [AUTH user secret] [SETNAME name]]`.
    fn hello(
        &mut self,
        front: &RespFront,
        args: &Args<'_>,
        replies: &mut Replies<'_>,
    ) -> Result<(), RequestError> {
        let protocol = match args.get(1) {
            None => self.protocol,
            Some(version) => match whole_number(version) {
                Some(2) => RespVersion::Resp2,
                Some(3) => RespVersion::Resp3,
                Some(_) => {
                    return Err(RequestError::new(
                        ErrorKind::Unsupported,
                        "unsupported protocol version",
                    ));
                }
                None => {
                    let text = "Protocol version is not an integer or out of range";
                    return Err(RequestError::invalid(text));
                }
            },
        };
        let mut name = None;
        let mut options = args.get(2..).unwrap_or_default();
        while let [option, rest @ ..] = options {
            options = match rest {
                [_user, secret, rest @ ..] if option.eq_ignore_ascii_case(b"AUTH") => {
                    self.authenticate(front, secret)?;
                    rest
                }
                [given, rest @ ..] if option.eq_ignore_ascii_case(b"SETNAME") => {
                    name = Some(checked_name(given)?);
                    rest
                }
                _ => {
                    let option = excerpt(option);
                    return Err(RequestError::invalid(format!(
                        "Syntax error in HELLO option '{option}'"
                    )));
                }
            };
        }
        if !self.authenticated {
            return Err(RequestError::new(ErrorKind::Unauthenticated, NO_SECRET_IN_HELLO));
        }
        self.name = name.map_or_else(|| std::mem::take(&mut self.name), Into::into);
        self.protocol = protocol;
        replies.protocol = protocol;
        introspection::hello(self, replies);
        Ok(())
    }

    /// `CLIENT`: the subcommands that connection pools and monitoring use.
    fn client(&mut self, args: &Args<'_>, replies: &mut Replies<'_>) -> Result<(), RequestError> {
        let is = |name: &str| args[1].eq_ignore_ascii_case(name.as_bytes());
        let takes = |count: usize, name: &str| match args.len() == count {
            true => Ok(()),
            false => Err(wrong_arity(&format!("client|{name}"))),
        };
        if is("setname") {
            takes(3, "setname")?;
            self.name = checked_name(args[2])?.into();
            replies.ok();
        } else if is("getname") {
            takes(2, "getname")?;
            match self.name.is_empty() {
                true => replies.nil(),
                false => replies.bulk(&self.name),
            }
        } else if is("id") {
            takes(2, "id")?;
            replies.count(self.id);
        } else if is("help") {
            introspection::help("CLIENT", &introspection::CLIENT_SUBCOMMANDS, replies);
        } else if is("info") || is("list") {
            introspection::client(self, replies);
        } else if is("setinfo") {
            takes(4, "setinfo")?;
            replies.ok();
        } else if is("no-evict") || is("no-touch") {
            takes(3, if is("no-evict") { "no-evict" } else { "no-touch" })?;
            on_or_off(args[2])?;
            replies.ok();
        } else if is("reply") && args.len() == 3 && args[2].eq_ignore_ascii_case(b"ON") {
            replies.ok();
        } else {
            return Err(unknown_subcommand("CLIENT", args[1]));
        }
        Ok(())
    }
}

fn on_or_off(word: &[u8]) -> Result<(), RequestError> {
    match word.eq_ignore_ascii_case(b"ON") || word.eq_ignore_ascii_case(b"OFF") {
        true => Ok(()),
        false => Err(RequestError::invalid("syntax error")),
    }
}

fn checked_name(name: &[u8]) -> Result<&[u8], RequestError> {
    if name.iter().all(u8::is_ascii_graphic) && name.len() <= MAX_NAME_BYTES {
        return Ok(name);
    }
    Err(RequestError::invalid(BAD_NAME))
}

fn ping(args: &Args<'_>, replies: &mut Replies<'_>) -> Result<(), RequestError> {
    match args[1..] {
        [] => replies.put(b"+PONG\r\n"),
        [message] => replies.bulk(message),
        _ => return Err(wrong_arity("ping")),
    }
    Ok(())
}

fn select(index: &[u8], replies: &mut Replies<'_>) -> Result<(), RequestError> {
    match whole_number(index) {
        Some(0) => {
            replies.ok();
            Ok(())
        }
        Some(_) => Err(RequestError::invalid("DB index is out of range")),
        None => Err(RequestError::invalid("value is not an integer or out of range")),
    }
}

/// Whether a line belongs to an HTTP request. A web page can make a browser send one to this port,
/// and the lines of its body would be executed as commands.
#[cold]
fn is_http_request(args: &Args<'_>) -> bool {
    let is = |word: &str| args[0].eq_ignore_ascii_case(word.as_bytes());
    is("POST") || is("Host:") || matches!(args[..], [_, _, last] if last.starts_with(b"HTTP/"))
}

/// The error of an unknown command, with the beginning of its arguments.
#[cold]
fn unknown(args: &Args<'_>) -> RequestError {
    const MAX_SHOWN_BYTES: usize = 128;
    let mut with = String::new();
    for arg in &args[1..] {
        if with.len() >= MAX_SHOWN_BYTES {
            break;
        }
        let room = MAX_SHOWN_BYTES - with.len();
        with += &format!("'{}' ", String::from_utf8_lossy(&arg[..arg.len().min(room)]));
    }
    let name = excerpt(args[0]);
    let mut detail = format!("unknown command '{name}', with args beginning with: {with}");
    if let Some(meant) = Spec::nearest(&name) {
        detail += &format!("(did you mean {}?)", meant.name.to_ascii_uppercase());
    }
    RequestError::invalid(detail)
}

/// The error of an unknown subcommand.
pub fn unknown_subcommand(command: &str, name: &[u8]) -> RequestError {
    let name = excerpt(name);
    RequestError::invalid(format!("unknown subcommand '{name}'. Try {command} HELP."))
}
