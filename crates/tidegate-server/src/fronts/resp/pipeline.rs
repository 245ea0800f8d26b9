//! Answers the commands in the buffers of a connection, in batches.

use futures_util::future::join_all;
use smallvec::SmallVec;
use tidegate::unstable::gate::{ActivePolicies, GateRequest, MAX_CONCURRENT_CHECKS};
use tracing::debug;

use super::RespFront;
use super::arguments::LimitCache;
use super::codec::{Args, MAX_COMMAND_BYTES, ProtocolError, decode};
use super::codec::{Replies, RespVersion};
use super::connection::{ConnBuffers, MAX_REPLY_BYTES};
use super::query::{self, BorrowedQuery, OwnedQuery};
use super::session::{ParsedCommand, Session};
use crate::error::{ErrorKind, RequestError};
use crate::server_state::ReplyCounts;

/// The maximum number of checks decided in one call: as many as the store prefetches memory for.
const MAX_BATCH: usize = 32;

/// How far the commands in the buffers were answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All complete commands were answered.
    Complete,
    /// More commands follow; the replies must be written first.
    Paused,
    /// The connection is closed once the replies are written.
    Closed,
}

/// Answers the commands in the buffers from a store in memory.
pub fn answer(front: &RespFront, session: &mut Session, buffers: &mut ConnBuffers) -> Progress {
    let ConnBuffers { input, at, filled, output, limits } = buffers;
    let mut unread = &mut input[*at..*filled];
    let mut replies = Replies::new(output, session.protocol);
    let active = front.gate.active_policies();
    let mut commands = 0;
    let progress = loop {
        let outcome = step(front, session, &active, &mut unread, limits, &mut replies);
        *at = *filled - unread.len();
        commands += outcome.commands;
        // The commands of `EXEC` are answered without a pause, because they and their replies are
        // bounded.
        let mut exec_run = std::mem::take(&mut session.exec_run);
        let mut queued = &mut exec_run.bytes[..];
        while !queued.is_empty() {
            commands += step(front, session, &active, &mut queued, limits, &mut replies).commands;
        }
        match outcome.progress {
            None if replies.len() >= MAX_REPLY_BYTES => break Progress::Paused,
            None => {}
            Some(progress) => break progress,
        }
    };
    front.server_state.count_replies(&replies.counted(commands));
    progress
}

/// The result of a step.
struct StepOutcome {
    /// The number of commands answered.
    commands: u32,
    /// Set if answering ends with this step.
    progress: Option<Progress>,
}

/// Answers a batch of checks, and the command after it.
fn step(
    front: &RespFront,
    session: &mut Session,
    active: &ActivePolicies,
    unread: &mut &mut [u8],
    limits: &mut LimitCache,
    replies: &mut Replies<'_>,
) -> StepOutcome {
    let mut batch = CheckBatch::new();
    let after = gather(session, unread, limits, &mut batch);
    decide(&batch, front, active, replies);
    let progress = after.answer(front, session, active, replies);
    let queries = u32::try_from(batch.len()).unwrap_or(u32::MAX);
    StepOutcome { commands: queries + u32::from(after.is_answered()), progress }
}

/// Consecutive checks.
type CheckBatch<'d> = SmallVec<[BorrowedQuery<'d>; MAX_BATCH]>;

/// Collects checks, and returns what follows them.
fn gather<'d>(
    session: &Session,
    unread: &mut &'d mut [u8],
    limits: &mut LimitCache,
    batch: &mut CheckBatch<'d>,
) -> AfterBatch<'d> {
    while batch.len() < MAX_BATCH {
        let args = match next(unread, session) {
            Ok(Some(args)) => args,
            Ok(None) => return AfterBatch::Incomplete,
            Err(error) => return AfterBatch::Error(error),
        };
        match session.parse(&args, limits) {
            ParsedCommand::Query(query) if query.kind.is_check() => batch.push(query),
            command => return AfterBatch::Command(command, args),
        }
    }
    AfterBatch::More
}

fn decide(
    batch: &CheckBatch<'_>,
    front: &RespFront,
    active: &ActivePolicies,
    replies: &mut Replies<'_>,
) {
    let mut gate_requests = SmallVec::<[GateRequest<'_>; MAX_BATCH]>::new();
    batch.iter().for_each(|query| gate_requests.push(query.gate_request()));
    front.gate.check_each(active, &gate_requests, |index, verdict| {
        query::reply(batch[index].kind, verdict, replies);
    });
}

/// What follows a batch of checks.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one, on the stack, while a batch is answered"
)]
enum AfterBatch<'d> {
    /// More checks.
    More,
    /// Another command.
    Command(ParsedCommand<'d>, Args<'d>),
    /// No complete command.
    Incomplete,
    /// Bytes that are not a command.
    Error(ProtocolError),
}

impl AfterBatch<'_> {
    fn is_answered(&self) -> bool {
        match self {
            AfterBatch::Command(command, _) => command.is_answered(),
            AfterBatch::Error(_) => true,
            AfterBatch::More | AfterBatch::Incomplete => false,
        }
    }

    /// Answers what follows. Returns the progress if answering ends.
    fn answer(
        &self,
        front: &RespFront,
        session: &mut Session,
        active: &ActivePolicies,
        replies: &mut Replies<'_>,
    ) -> Option<Progress> {
        match self {
            AfterBatch::More => None,
            AfterBatch::Command(ParsedCommand::Query(query), _) => {
                query.execute_local(&front.gate, active, replies);
                None
            }
            AfterBatch::Command(command, args) => respond(command, args, front, session, replies),
            AfterBatch::Incomplete => Some(Progress::Complete),
            AfterBatch::Error(error) => Some(refuse(*error, replies)),
        }
    }
}

/// Answers a command that needs no decision. Returns the progress if answering ends.
fn respond(
    command: &ParsedCommand<'_>,
    args: &Args<'_>,
    front: &RespFront,
    session: &mut Session,
    replies: &mut Replies<'_>,
) -> Option<Progress> {
    match command {
        ParsedCommand::Query(_) | ParsedCommand::Empty => None,
        ParsedCommand::Queued => {
            session.queue(args, replies);
            None
        }
        ParsedCommand::Other(command) => {
            let goes_on = session.answer(*command, front, args, replies);
            (!goes_on).then_some(Progress::Closed)
        }
        ParsedCommand::Rejected(error) => {
            if error.kind == ErrorKind::Unauthenticated {
                front.log_rejection();
            }
            session.abort_transaction();
            replies.error(error);
            None
        }
        ParsedCommand::HttpRequest => {
            debug!("closed a connection that sends HTTP");
            Some(Progress::Closed)
        }
    }
}

/// Returns the next command, if it is complete.
#[inline]
fn next<'d>(
    unread: &mut &'d mut [u8],
    session: &Session,
) -> Result<Option<Args<'d>>, ProtocolError> {
    match decode(unread, !session.authenticated)? {
        None if unread.len() >= MAX_COMMAND_BYTES => Err(ProtocolError::TooBigCommand),
        args => Ok(args),
    }
}

/// Rejects bytes that are not a command. The connection is closed, because the start of the next
/// command is unknown.
fn refuse(error: ProtocolError, replies: &mut Replies<'_>) -> Progress {
    replies.error(&RequestError::invalid(error.to_string()));
    Progress::Closed
}

/// Queries for a shared store, and the replies to the commands between them.
#[derive(Debug, Default)]
pub struct RemoteBatch {
    queries: Vec<PendingQuery>,
    /// Replies to commands that need no store.
    ready: Vec<u8>,
    /// A query that must wait for those before it.
    next: Option<PendingQuery>,
    /// Replies by code that are not reported yet.
    counts: ReplyCounts,
}

/// A query, and the position of its reply.
#[derive(Debug)]
struct PendingQuery {
    query: OwnedQuery,
    protocol: RespVersion,
    /// The reply follows this many bytes of `ready`.
    behind: usize,
}

impl RemoteBatch {
    /// Collects commands that may be executed concurrently. A query of another kind waits, so that
    /// a client that resets a key and then checks it sees the reset.
    pub fn gather(
        &mut self,
        front: &RespFront,
        session: &mut Session,
        buffers: &mut ConnBuffers,
    ) -> Progress {
        let ConnBuffers { input, at, filled, limits, .. } = buffers;
        loop {
            // The commands of `EXEC` come before what was read after it.
            let mut exec_run = std::mem::take(&mut session.exec_run);
            if !exec_run.is_done() {
                let progress =
                    self.take(&mut exec_run.bytes, &mut exec_run.at, front, session, limits);
                if progress == Some(Progress::Paused) {
                    session.exec_run = exec_run;
                    return Progress::Paused;
                }
            }
            if let Some(progress) = self.take(&mut input[..*filled], at, front, session, limits) {
                return progress;
            }
        }
    }

    /// Collects commands from `at` on. Returns the progress if answering ends, or `None` if the
    /// commands of an `EXEC` must be executed first.
    fn take(
        &mut self,
        bytes: &mut [u8],
        at: &mut usize,
        front: &RespFront,
        session: &mut Session,
        limits: &mut LimitCache,
    ) -> Option<Progress> {
        let end = bytes.len();
        let mut unread = &mut bytes[*at..];
        while session.exec_run.is_done() {
            if self.ready.len() >= MAX_REPLY_BYTES || self.queries.len() >= MAX_CONCURRENT_CHECKS {
                return Some(Progress::Paused);
            }
            let mut replies = Replies::new(&mut self.ready, session.protocol);
            let args = match next(&mut unread, session) {
                Ok(Some(args)) => args,
                Ok(None) => return Some(Progress::Complete),
                Err(error) => {
                    let progress = refuse(error, &mut replies);
                    add(&mut self.counts, replies.counted(1));
                    return Some(progress);
                }
            };
            *at = end - unread.len();
            match session.parse(&args, limits) {
                ParsedCommand::Query(query) => {
                    let pending = self.place(query, session.protocol);
                    if let Some(pending) = pending {
                        self.next = Some(pending);
                        return Some(Progress::Paused);
                    }
                }
                command => {
                    let progress = respond(&command, &args, front, session, &mut replies);
                    add(&mut self.counts, replies.counted(command.is_answered().into()));
                    if progress.is_some() {
                        return progress;
                    }
                }
            }
        }
        None
    }

    /// Adds a query, or returns it if it must not run with the others.
    fn place(&mut self, query: BorrowedQuery<'_>, protocol: RespVersion) -> Option<PendingQuery> {
        let first = self.queries.first();
        let can_join = first.is_none_or(|first| first.query.kind.can_run_with(query.kind));
        let pending =
            PendingQuery { query: OwnedQuery::from(query), protocol, behind: self.ready.len() };
        if can_join {
            self.queries.push(pending);
            return None;
        }
        Some(pending)
    }

    /// Executes all queries concurrently, and appends the replies in order. The query that had to
    /// wait is the first of the next batch.
    pub async fn settle(
        &mut self,
        front: &RespFront,
        active: &ActivePolicies,
        output: &mut Vec<u8>,
    ) {
        let answers = self.queries.iter().map(|pending| pending.query.execute(&front.gate, active));
        let answers = join_all(answers).await;
        let mut at = 0;
        for (pending, answer) in self.queries.iter().zip(answers) {
            output.extend_from_slice(&self.ready[at..pending.behind]);
            at = pending.behind;
            let mut replies = Replies::new(output, pending.protocol);
            pending.query.reply(answer, &mut replies);
            add(&mut self.counts, replies.counted(1));
        }
        front.server_state.count_replies(&std::mem::take(&mut self.counts));
        output.extend_from_slice(&self.ready[at..]);
        self.queries.clear();
        self.ready.clear();
        self.queries.extend(self.next.take().map(|pending| PendingQuery { behind: 0, ..pending }));
    }
}

fn add(counts: &mut ReplyCounts, more: ReplyCounts) {
    counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
}
