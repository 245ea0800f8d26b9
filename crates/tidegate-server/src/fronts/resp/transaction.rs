//! `MULTI`, `EXEC`, `DISCARD`: what some clients put around every pipeline.
//!
//! Commands wait as the bytes they came in, within a bound, and `EXEC` answers them as if they
//! came now, behind the head of an array: in one batch, or together in one round trip where
//! the store is shared. As in Redis a transaction is no promise that all of them pass: each
//! is decided on its own, and a denial is a reply like any other. There is nothing to `WATCH`.

use super::commands::{Command, InTransaction, Spec};
use super::decode::{Args, MAX_COMMAND_BYTES};
use super::encode::Replies;
use super::session::{Meant, Session};
use super::wrong_arity;
use crate::error::{ErrorKind, RequestError};

/// The most bytes of commands that wait for `EXEC`: as many as are read at once.
const MAX_WAITING_BYTES: usize = MAX_COMMAND_BYTES;

const NOT_HERE: &str = "Command not allowed inside a transaction";
const ABORTED: &str = "Transaction discarded because of previous errors.";

/// What is wrong with an `EXEC` that has arguments.
pub const EXEC_ARITY: &str = "wrong number of arguments for 'exec' command";

/// What Redis says to an `EXEC` that cannot be, which ends the transaction.
pub fn aborted(why: &str) -> RequestError {
    RequestError::new(ErrorKind::Aborted, format!("Transaction discarded because of: {why}"))
}

/// Commands since `MULTI`.
#[derive(Debug, Default)]
pub struct Waiting {
    bytes: Vec<u8>,
    commands: usize,
    /// Whether one of them made no sense, so that none will be run.
    broken: bool,
}

/// Commands that `EXEC` has set going.
#[derive(Debug, Default)]
pub struct Due {
    pub bytes: Vec<u8>,
    /// So many bytes of them were looked at.
    pub at: usize,
}

impl Due {
    pub fn is_done(&self) -> bool {
        self.at >= self.bytes.len()
    }
}

impl Session {
    /// What a command means between `MULTI` and `EXEC`.
    #[cold]
    pub(super) fn understand_waiting<'a>(&self, spec: &Spec, args: &Args<'a>) -> Meant<'a> {
        match spec.in_transaction() {
            _ if spec.command == Command::Exec => Meant::Other(spec.command),
            _ if !spec.takes(args.len()) => Meant::Refused(wrong_arity(spec.name)),
            InTransaction::Answered => Meant::Other(spec.command),
            InTransaction::Waits => Meant::Waits,
            InTransaction::Barred => Meant::Refused(RequestError::invalid(NOT_HERE)),
        }
    }

    /// Lets a command wait for `EXEC`.
    pub(super) fn wait(&mut self, args: &Args<'_>, replies: &mut Replies<'_>) {
        let Some(waiting) = &mut self.waiting else { return };
        if waiting.broken {
            return replies.simple("QUEUED");
        }
        Replies::new(&mut waiting.bytes, replies.protocol).command(args);
        waiting.commands += 1;
        if waiting.bytes.len() > MAX_WAITING_BYTES {
            self.break_off();
            return replies.error(&RequestError::invalid(format!(
                "the commands since MULTI take more than {MAX_WAITING_BYTES} bytes: send EXEC sooner, \
                 or a pipeline without MULTI (in redis-py, `transaction=False`)"
            )));
        }
        replies.simple("QUEUED");
    }

    /// A command made no sense: none of those since `MULTI` will be run.
    pub(super) fn break_off(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            **waiting = Waiting { broken: true, ..Waiting::default() };
        }
    }

    /// `MULTI`.
    pub(super) fn multi(&mut self, replies: &mut Replies<'_>) -> Result<(), RequestError> {
        if self.waiting.is_some() {
            return Err(RequestError::invalid("MULTI calls can not be nested"));
        }
        self.waiting = Some(Box::default());
        replies.ok();
        Ok(())
    }

    /// `EXEC`: the head of the array; what is in it comes of [`Session::due`].
    pub(super) fn exec(
        &mut self,
        args: &Args<'_>,
        replies: &mut Replies<'_>,
    ) -> Result<(), RequestError> {
        let Some(waiting) = self.waiting.take() else {
            return Err(RequestError::invalid("EXEC without MULTI"));
        };
        if args.len() > 1 {
            return Err(aborted(EXEC_ARITY));
        }
        if waiting.broken {
            return Err(RequestError::new(ErrorKind::Aborted, ABORTED));
        }
        replies.array(waiting.commands);
        self.due = Due { bytes: waiting.bytes, at: 0 };
        Ok(())
    }

    /// `DISCARD`.
    pub(super) fn discard(&mut self, replies: &mut Replies<'_>) -> Result<(), RequestError> {
        match self.waiting.take() {
            Some(_) => {
                replies.ok();
                Ok(())
            }
            None => Err(RequestError::invalid("DISCARD without MULTI")),
        }
    }
}
