//! The commands of one write to a server, and the callers that wait for their replies.
//!
//! Requests share calls of `request.lua`, and requests on the same states share an entry of a call.
//! So a hot key costs a server little more than a cold one. Every other job is a separate command.
//! All commands of a batch are pipelined, and the callers of each are answered when its reply
//! arrives.
//!
//! `batch_builder.rs` assembles the calls from jobs.

use redis::{Cmd, ServerError, Value};
use tokio::time::Instant;

use super::batch_builder::{BatchBuilder, BatchedRequest};
use super::breaker::{ConnectionHealth, WriteOutcome};
use super::connection::{CommandSender, PendingReply, script_load_commands, text_of};
use super::deferred_release::ReplySender;
use super::entry::{CallBuilder, Entry, EntryError};
use super::queue::{Claim, SelectedJob};
use super::server::{CallError, CallReply, Job, SendMode, Work};
use super::stats::StoreCounters;
use super::url::{Address, Deployment};
use crate::{Failure, StoreError};

/// The commands of one write.
#[derive(Debug)]
pub(super) struct Batch {
    commands: Vec<BatchedCommand>,
    requests: usize,
    coalesced: usize,
}

/// One command, and the callers that wait for its reply.
#[derive(Debug)]
pub(super) struct BatchedCommand {
    cmd: Cmd,
    asking: bool,
    /// Whether this is the second attempt, before which the scripts are loaded again.
    is_resent: bool,
    waiters: Waiters,
}

#[derive(Debug)]
pub(super) enum Waiters {
    One(Waiter),
    /// The entries of a call, in order.
    Entries(Vec<AwaitedEntry>),
}

/// An entry of a call, and the callers of its requests, in order.
#[derive(Debug)]
pub(super) struct AwaitedEntry {
    pub(super) entry: Entry,
    pub(super) waiters: Vec<Waiter>,
}

/// A caller that waits for a reply.
#[derive(Debug)]
pub(super) struct Waiter {
    reply: ReplySender,
    /// The job's part of the weight in flight, held until the caller is answered.
    _claim: Option<Claim>,
}

impl Waiter {
    fn is_awaited(&self) -> bool {
        !self.reply.is_closed()
    }

    fn deliver(self, result: Result<CallReply, CallError>) {
        // The caller may have given up.
        drop(self.reply.send(result));
    }
}

impl Batch {
    /// Builds the batch of the selected jobs.
    pub(super) fn gather(jobs: impl Iterator<Item = SelectedJob>, deployment: Deployment) -> Self {
        let mut builder = BatchBuilder::new(deployment);
        let (mut requests, mut coalesced) = (0, 0);
        for SelectedJob { job, claim, first_job } in jobs {
            let Job { work, send_mode, reply, keys, .. } = job;
            let waiter = Waiter { reply, _claim: claim };
            requests += 1;
            match work {
                Work::Send(cmd, _) => {
                    let waiters = Waiters::One(waiter);
                    builder.send(BatchedCommand::new(cmd, send_mode, waiters), &keys);
                }
                Work::Decide(plan, mode, at, _) => {
                    let request = BatchedRequest { plan: *plan, mode, at, send_mode, waiter };
                    coalesced += usize::from(builder.decide(request, &keys, first_job));
                }
            }
        }
        Batch { commands: builder.finish(), requests, coalesced }
    }

    /// The number of commands.
    pub(super) fn calls(&self) -> usize {
        self.commands.len()
    }

    /// The number of jobs.
    pub(super) fn requests(&self) -> usize {
        self.requests
    }

    /// The number of requests that share an entry with one before them.
    pub(super) fn coalesced(&self) -> usize {
        self.coalesced
    }

    /// Passes all commands to the connection, in order.
    pub(super) async fn send(self, sender: CommandSender, health: &ConnectionHealth) -> Write {
        let calls = send(&sender, health, self.commands).await;
        Write { sender, calls, started: Instant::now() }
    }
}

/// A batch that was sent.
pub(super) struct Write {
    sender: CommandSender,
    calls: Vec<(Option<BatchedCommand>, PendingReply)>,
    started: Instant,
}

/// Sends commands. If one of them failed because the server has lost the scripts, these are loaded
/// first. The replies to `SCRIPT LOAD` and `ASKING` belong to no caller, and are ignored.
async fn send(
    sender: &CommandSender,
    health: &ConnectionHealth,
    commands: Vec<BatchedCommand>,
) -> Vec<(Option<BatchedCommand>, PendingReply)> {
    let (mut cmds, mut owners) = (Vec::new(), Vec::new());
    if commands.iter().any(|command| command.is_resent) {
        cmds.extend(script_load_commands());
        owners.resize_with(cmds.len(), || None);
    }
    for command in commands {
        if command.asking {
            cmds.push(redis::cmd("ASKING"));
            owners.push(None);
        }
        cmds.push(command.cmd.clone());
        owners.push(Some(command));
    }
    health.sent(cmds.len());
    owners.into_iter().zip(sender.send(cmds).await).collect()
}

impl Write {
    /// Answers every caller as soon as its reply arrives. A command that was not carried out
    /// because the server has lost the scripts is sent again.
    pub(super) async fn settle(
        self,
        queried: Option<Address>,
        health: &ConnectionHealth,
        counters: &StoreCounters,
        mut note: impl FnMut(WriteOutcome),
    ) -> WriteOutcome {
        let Write { sender, mut calls, started } = self;
        let mut handler = ReplyHandler { queried, outcome: WriteOutcome::Answered, counters };
        loop {
            let mut again = Vec::new();
            for (command, sent) in calls {
                let reply = sent.reply().await;
                if reply.is_ok() {
                    health.replied();
                }
                let Some(command) = command else { continue };
                let before = handler.outcome;
                match reply {
                    Ok(value) => again.extend(handler.settle(command, value)),
                    Err(_) => {
                        let is_silent = health.is_silent();
                        let failure = if is_silent { Failure::TimedOut } else { Failure::Lost };
                        handler.outcome = WriteOutcome::Unusable;
                        command.waiters.error(&CallError::Failed(failure));
                    }
                }
                if handler.outcome != before {
                    note(handler.outcome);
                }
            }
            if again.is_empty() || handler.outcome == WriteOutcome::Unusable {
                let down = CallError::Failed(Failure::Down);
                again.into_iter().for_each(|command: BatchedCommand| command.waiters.error(&down));
                counters.round_trip(started.elapsed());
                return handler.outcome;
            }
            StoreCounters::add(&counters.resent, again.len());
            calls = send(&sender, health, again).await;
        }
    }
}

struct ReplyHandler<'t> {
    queried: Option<Address>,
    outcome: WriteOutcome,
    counters: &'t StoreCounters,
}

impl ReplyHandler<'_> {
    /// Answers the callers of a command. Returns the command that is to be sent again, if any.
    fn settle(&mut self, command: BatchedCommand, value: Value) -> Option<BatchedCommand> {
        match value {
            Value::ServerError(error) if error.code() == "NOSCRIPT" && !command.is_resent => {
                command
                    .waiters
                    .is_awaited()
                    .then_some(BatchedCommand { is_resent: true, ..command })
            }
            Value::ServerError(error) => {
                let error = self.error(&error);
                command.waiters.error(&error);
                None
            }
            value => {
                match command.waiters {
                    Waiters::One(waiter) => waiter.deliver(Ok(CallReply::Value(value))),
                    Waiters::Entries(entries) => self.deliver(entries, &value),
                }
                None
            }
        }
    }

    /// Answers the callers of the entries of a call.
    fn deliver(&mut self, entries: Vec<AwaitedEntry>, value: &Value) {
        let decoded = CallBuilder::decode(value, entries.iter().map(|awaited| &awaited.entry));
        let decoded = match decoded {
            Ok(decoded) => decoded,
            Err(failure) => {
                return Waiters::Entries(entries).error(&CallError::Failed(failure));
            }
        };
        for (awaited, replies) in entries.into_iter().zip(decoded) {
            match replies {
                Ok(replies) => {
                    for (waiter, script_reply) in awaited.waiters.into_iter().zip(replies) {
                        waiter.deliver(Ok(CallReply::Decided(Box::new(script_reply))));
                    }
                }
                Err(error) => {
                    let error = match error {
                        EntryError::Server(error) => self.error(&error),
                        EntryError::Store(StoreError::Failed(failure)) => {
                            CallError::Failed(failure)
                        }
                        EntryError::Store(StoreError::Check(error)) => CallError::Invalid(error),
                    };
                    Waiters::Entries(vec![awaited]).error(&error);
                }
            }
        }
    }

    /// Classifies an error. Errors that are not listed concern one key only.
    fn error(&mut self, error: &ServerError) -> CallError {
        let details = error.details().unwrap_or("");
        let address = || {
            let (_slot, address) = details.split_once(' ')?;
            Address::from_redirect(address, self.queried.as_ref()?)
        };
        match code_of(error) {
            "MOVED" => address().map_or_else(|| refused(error), CallError::Moved),
            "ASK" => address().map_or_else(|| refused(error), CallError::Ask),
            "TRYAGAIN" => CallError::TryAgain,
            // Not carried out: no server has the slot, or the cluster is down. This server is
            // usable.
            "CLUSTERDOWN" => CallError::Failed(Failure::Down),
            // The error does not depend on the key: the server refuses all of them.
            "OOM" | "MISCONF" | "NOREPLICAS" | "NOPERM" | "BUSY" => self.refuses(error),
            // Not carried out: this server is the wrong one.
            "READONLY" | "LOADING" | "MASTERDOWN" => self.wrong_server(),
            _ => refused(error),
        }
    }

    fn refuses(&mut self, error: &ServerError) -> CallError {
        if self.outcome == WriteOutcome::Answered {
            self.outcome = WriteOutcome::Refused;
            self.counters.set_last_error(Some(format!("the store refuses: {}", text_of(error))));
        }
        refused(error)
    }

    fn wrong_server(&mut self) -> CallError {
        self.outcome = WriteOutcome::Unusable;
        CallError::Failed(Failure::Down)
    }
}

/// The code of an error, also if it occurred inside a script. Servers before 7.0 put such a code
/// into the text, and later ones report a missing permission without its code.
fn code_of(error: &ServerError) -> &str {
    const WRAPPED: [(&str, &str); 9] = [
        ("ACL failure in script", "NOPERM"),
        ("The user executing the script can't", "NOPERM"),
        ("-NOPERM ", "NOPERM"),
        ("-OOM ", "OOM"),
        ("-MISCONF ", "MISCONF"),
        ("-NOREPLICAS ", "NOREPLICAS"),
        ("-READONLY ", "READONLY"),
        ("-LOADING ", "LOADING"),
        ("-MASTERDOWN ", "MASTERDOWN"),
    ];
    let details = error.details().unwrap_or("");
    // Key names contain no spaces, so a key name cannot match.
    let wrapped = WRAPPED.iter().find(|(text, _)| details.contains(text));
    match (error.code(), wrapped) {
        ("ERR", Some((_, code))) => code,
        (code, _) => code,
    }
}

fn refused(error: &ServerError) -> CallError {
    CallError::Failed(Failure::Refused(text_of(error)))
}

impl BatchedCommand {
    pub(super) fn new(cmd: Cmd, send_mode: SendMode, waiters: Waiters) -> Self {
        BatchedCommand { cmd, asking: send_mode == SendMode::Asking, is_resent: false, waiters }
    }
}

impl Waiters {
    fn is_awaited(&self) -> bool {
        match self {
            Waiters::One(waiter) => waiter.is_awaited(),
            Waiters::Entries(entries) => {
                entries.iter().flat_map(|entry| &entry.waiters).any(Waiter::is_awaited)
            }
        }
    }

    fn error(self, error: &CallError) {
        let fail = |waiter: Waiter| waiter.deliver(Err(error.clone()));
        match self {
            Waiters::One(waiter) => fail(waiter),
            Waiters::Entries(entries) => {
                entries.into_iter().flat_map(|entry| entry.waiters).for_each(fail);
            }
        }
    }
}
