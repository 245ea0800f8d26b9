//! The commands of one write to a server, and the callers that wait for their replies.
//!
//! Requests for the counter script under one limit share a call, and equal ones on one key share an
//! entry of it. Other equal requests are merged into one with the sum of their costs. So a hot key
//! costs a server no more than a cold one. Every other job is a separate call. All calls of a batch
//! are pipelined, and the callers of each are answered when its reply arrives.
//!
//! `batch_builder.rs` assembles the calls from jobs.

use std::collections::VecDeque;
use std::time::Instant;

use redis::{Cmd, ServerError, Value};
use tidegate_core::{Limit, Timestamp};

use super::batch_builder::{BatchBuilder, BatchEntry};
use super::breaker::{ConnectionHealth, WriteOutcome};
use super::connection::{CommandSender, PendingReply, script_load_commands, text_of};
use super::counter::{self, CounterEntry};
use super::deferred_release::ReplySender;
use super::plan::{ScriptMode, ScriptPlan};
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
    scripts_loaded: bool,
    waiters: Waiters,
}

#[derive(Debug)]
pub(super) enum Waiters {
    One(Waiter),
    /// The callers of every entry of a counter call.
    Counted(Limit, Vec<CounterEntry>, Vec<Vec<Waiter>>),
    MergedRequests(Box<MergedRequests>),
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

/// Equal requests, sent as one request that costs as much as the first `sent_count` of them.
#[derive(Debug)]
pub(super) struct MergedRequests {
    plan: ScriptPlan,
    at: Option<Timestamp>,
    pub(super) sent_count: usize,
    pub(super) waiters: VecDeque<Waiter>,
}

impl Batch {
    /// Builds the batch of the selected jobs.
    pub(super) fn gather(jobs: impl Iterator<Item = SelectedJob>, deployment: Deployment) -> Self {
        let mut builder = BatchBuilder::new(deployment);
        let (mut requests, mut coalesced) = (0, 0);
        for SelectedJob { job, claim, group } in jobs {
            let Job { work, send_mode, reply, keys, .. } = job;
            let waiter = Waiter { reply, _claim: claim };
            requests += 1;
            coalesced += usize::from(match work {
                Work::Send(cmd, ..) => {
                    let waiters = Waiters::One(waiter);
                    builder.push(
                        BatchEntry::Whole(BatchedCommand::new(cmd, send_mode, waiters)),
                        &keys,
                    );
                    false
                }
                Work::Count(fast_check, at) => builder.count(fast_check, at, send_mode, waiter),
                Work::Decide(plan, at) => {
                    let plan =
                        MergedRequests { plan: *plan, at, sent_count: 1, waiters: [waiter].into() };
                    builder.merge(plan, send_mode, &keys, group)
                }
            });
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

    /// The number of jobs that were merged with an equal one before them.
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
    if commands.iter().any(|command| command.scripts_loaded) {
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
    /// Answers every caller as soon as its reply arrives. A command whose reply proves that it was
    /// not carried out is sent again, and so is the part of a denied merged request that may still
    /// fit.
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
            Value::ServerError(error) if error.code() == "NOSCRIPT" && !command.scripts_loaded => {
                command
                    .waiters
                    .is_awaited()
                    .then_some(BatchedCommand { scripts_loaded: true, ..command })
            }
            Value::ServerError(error) => {
                let error = self.error(&error);
                command.waiters.error(&error);
                None
            }
            value => command.waiters.deliver(value).map(|merged| merged.command(command.asking)),
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
        BatchedCommand {
            cmd,
            asking: send_mode == SendMode::Asking,
            scripts_loaded: false,
            waiters,
        }
    }
}

impl Waiters {
    fn is_awaited(&self) -> bool {
        match self {
            Waiters::One(waiter) => waiter.is_awaited(),
            Waiters::Counted(_, _, waiters) => waiters.iter().flatten().any(Waiter::is_awaited),
            Waiters::MergedRequests(merged) => merged.waiters.iter().any(Waiter::is_awaited),
        }
    }

    fn error(self, error: &CallError) {
        let fail = |waiter: Waiter| waiter.deliver(Err(error.clone()));
        match self {
            Waiters::One(waiter) => fail(waiter),
            Waiters::Counted(_, _, waiters) => waiters.into_iter().flatten().for_each(fail),
            Waiters::MergedRequests(merged) => merged.waiters.into_iter().for_each(fail),
        }
    }

    /// Answers the callers that the reply covers. Returns the rest of a merged request.
    fn deliver(self, value: Value) -> Option<MergedRequests> {
        match self {
            Waiters::One(waiter) => waiter.deliver(Ok(CallReply::Value(value))),
            Waiters::MergedRequests(merged) => return merged.deliver(&value),
            Waiters::Counted(limit, entries, waiters) => {
                match counter::decode_reply(&limit, &entries, &value) {
                    Ok(script_reply) => deliver_counted(script_reply, waiters),
                    Err(error) => {
                        Waiters::Counted(limit, entries, waiters).error(&failed(error));
                    }
                }
            }
        }
        None
    }
}

/// The failure of a job whose reply could not be decoded.
fn failed(error: StoreError) -> CallError {
    CallError::Failed(match error {
        StoreError::Failed(failure) => failure,
        StoreError::Check(error) => Failure::Refused(error.to_string().into()),
    })
}

fn deliver_counted(replies: Vec<counter::CounterReply>, waiters: Vec<Vec<Waiter>>) {
    for (reply, waiters) in replies.into_iter().zip(waiters) {
        match reply {
            counter::CounterReply::Decided(decisions) => {
                for (waiter, decision) in waiters.into_iter().zip(decisions) {
                    waiter.deliver(Ok(CallReply::Counted(decision)));
                }
            }
            counter::CounterReply::NotCompact => {
                waiters.into_iter().for_each(|waiter| waiter.deliver(Ok(CallReply::NotCounted)));
            }
        }
    }
}

impl MergedRequests {
    /// Answers the callers that the reply covers, and returns the rest. A denial of a merged
    /// request charged nothing, so the part that still fits is sent again. A denial of a single
    /// request applies to all that are left.
    fn deliver(mut self, value: &Value) -> Option<MergedRequests> {
        let times = self.sent_count as u64;
        let script_reply = match self.plan.repeated(times).decode_reply(value) {
            Ok(script_reply) => script_reply,
            Err(error) => {
                Waiters::MergedRequests(Box::new(self)).error(&failed(error));
                return None;
            }
        };
        let left = self.plan.repeats_left(&script_reply);
        if script_reply.admitted {
            let first = self.waiters.drain(..self.sent_count);
            for (waiter, script_reply) in first.zip(self.plan.each(times, &script_reply)) {
                waiter.deliver(Ok(CallReply::Decided(Box::new(script_reply))));
            }
        } else if self.sent_count == 1 {
            for waiter in self.waiters {
                waiter.deliver(Ok(CallReply::Decided(Box::new(script_reply.clone()))));
            }
            return None;
        }
        self.waiters.retain(Waiter::is_awaited);
        self.sent_count =
            usize::try_from(left).unwrap_or(usize::MAX).clamp(1, self.waiters.len().max(1));
        (!self.waiters.is_empty()).then_some(self)
    }

    /// Whether `one` is an equal request.
    pub(super) fn is_equal(&self, one: &MergedRequests) -> bool {
        self.plan.states() == one.plan.states() && self.at == one.at
    }

    pub(super) fn command(self, asking: bool) -> BatchedCommand {
        let cmd =
            self.plan.repeated(self.sent_count as u64).call(ScriptMode::Decide, self.at).cmd();
        BatchedCommand {
            cmd,
            asking,
            scripts_loaded: false,
            waiters: Waiters::MergedRequests(Box::new(self)),
        }
    }
}
