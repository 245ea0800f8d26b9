//! `MULTI`, `EXEC` and `DISCARD`, which some clients put around every pipeline.
//!
//! Commands are queued as encoded bytes, up to a maximum. `EXEC` answers them as if they arrived
//! now, after the head of an array: in one batch, or in one round trip if the store is shared. As
//! in Redis, a transaction does not guarantee that all commands succeed: each is decided
//! separately, and a denial is an ordinary reply. `WATCH` is not supported, because clients
//! store no values.

use super::codec::Replies;
use super::codec::{Args, MAX_COMMAND_BYTES};
use super::commands::{Command, Spec, TransactionRule};
use super::session::{ParsedCommand, Session};
use super::wrong_arity;
use crate::error::{ErrorKind, RequestError};

/// The maximum size of the commands queued for `EXEC`: that of a single command.
const MAX_WAITING_BYTES: usize = MAX_COMMAND_BYTES;

const NOT_HERE: &str = "Command not allowed inside a transaction";
const ABORTED: &str = "Transaction discarded because of previous errors.";

/// The error of an `EXEC` with arguments.
pub const EXEC_ARITY: &str = "wrong number of arguments for 'exec' command";

/// The error of Redis for an invalid `EXEC`, which ends the transaction.
pub fn aborted(why: &str) -> RequestError {
    RequestError::new(ErrorKind::Aborted, format!("Transaction discarded because of: {why}"))
}

/// The commands since `MULTI`.
#[derive(Debug, Default)]
pub struct QueuedCommands {
    bytes: Vec<u8>,
    commands: usize,
    /// Whether one of them was invalid, so that none is executed.
    broken: bool,
}

/// The commands that `EXEC` executes.
#[derive(Debug, Default)]
pub struct ExecRun {
    pub bytes: Vec<u8>,
    /// The number of bytes already executed.
    pub at: usize,
}

impl ExecRun {
    pub fn is_done(&self) -> bool {
        self.at >= self.bytes.len()
    }
}

impl Session {
    /// Parses a command between `MULTI` and `EXEC`.
    #[cold]
    pub(super) fn parse_in_transaction<'a>(
        &self,
        spec: &Spec,
        args: &Args<'a>,
    ) -> ParsedCommand<'a> {
        match spec.in_transaction() {
            _ if spec.command == Command::Exec => ParsedCommand::Other(spec.command),
            _ if !spec.takes(args.len()) => ParsedCommand::Rejected(wrong_arity(spec.name)),
            TransactionRule::Immediate => ParsedCommand::Other(spec.command),
            TransactionRule::Queued => ParsedCommand::Queued,
            TransactionRule::NotAllowed => ParsedCommand::Rejected(RequestError::invalid(NOT_HERE)),
        }
    }

    /// Queues a command for `EXEC`.
    pub(super) fn queue(&mut self, args: &Args<'_>, replies: &mut Replies<'_>) {
        let Some(queued) = &mut self.queued else { return };
        if queued.broken {
            return replies.simple("QUEUED");
        }
        Replies::new(&mut queued.bytes, replies.protocol).command(args);
        queued.commands += 1;
        if queued.bytes.len() > MAX_WAITING_BYTES {
            self.abort_transaction();
            return replies.error(&RequestError::invalid(format!(
                "the commands since MULTI take more than {MAX_WAITING_BYTES} bytes: send EXEC sooner, \
                 or a pipeline without MULTI (in redis-py, `transaction=False`)"
            )));
        }
        replies.simple("QUEUED");
    }

    /// Discards the commands since `MULTI`, because one of them was invalid.
    pub(super) fn abort_transaction(&mut self) {
        if let Some(queued) = &mut self.queued {
            **queued = QueuedCommands { broken: true, ..QueuedCommands::default() };
        }
    }

    /// `MULTI`.
    pub(super) fn multi(&mut self, replies: &mut Replies<'_>) -> Result<(), RequestError> {
        if self.queued.is_some() {
            return Err(RequestError::invalid("MULTI calls can not be nested"));
        }
        self.queued = Some(Box::default());
        replies.ok();
        Ok(())
    }

    /// `EXEC`: replies with the head of the array. The elements follow from [`Session::exec_run`].
    pub(super) fn exec(
        &mut self,
        args: &Args<'_>,
        replies: &mut Replies<'_>,
    ) -> Result<(), RequestError> {
        let Some(queued) = self.queued.take() else {
            return Err(RequestError::invalid("EXEC without MULTI"));
        };
        if args.len() > 1 {
            return Err(aborted(EXEC_ARITY));
        }
        if queued.broken {
            return Err(RequestError::new(ErrorKind::Aborted, ABORTED));
        }
        replies.array(queued.commands);
        self.exec_run = ExecRun { bytes: queued.bytes, at: 0 };
        Ok(())
    }

    /// `DISCARD`.
    pub(super) fn discard(&mut self, replies: &mut Replies<'_>) -> Result<(), RequestError> {
        match self.queued.take() {
            Some(_) => {
                replies.ok();
                Ok(())
            }
            None => Err(RequestError::invalid("DISCARD without MULTI")),
        }
    }
}
