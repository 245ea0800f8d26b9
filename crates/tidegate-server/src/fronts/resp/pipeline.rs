//! Working through what lies on a desk.

use futures_util::future::join_all;
use smallvec::SmallVec;
use tidegate::unstable::gate::{MAX_TOGETHER, Question, Rules};
use tracing::debug;

use super::RespFront;
use super::buffers::{ConnBuffers, MAX_REPLY_BYTES};
use super::decode::{Args, MAX_COMMAND_BYTES, ProtocolError, decode};
use super::encode::{Protocol, Replies};
use super::limit_cache::LimitCache;
use super::query::{self, BorrowedQuery, OwnedQuery};
use super::session::{ParsedCommand, Session};
use crate::admin::ReplyCounts;
use crate::error::RequestError;

/// Questions that are decided in one go: as many as memory is fetched for at once.
const MAX_BATCH: usize = 32;

/// How far a desk was worked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All commands that are complete were answered.
    Complete,
    /// There is more, but first what there is now.
    Paused,
    /// The connection ends once the replies are written.
    Closed,
}

/// Answers the commands on a desk from a store that is here.
pub fn answer(front: &RespFront, session: &mut Session, buffers: &mut ConnBuffers) -> Progress {
    let ConnBuffers { input, at, filled, output, limits } = buffers;
    let mut unread = &mut input[*at..*filled];
    let mut replies = Replies::new(output, session.protocol);
    let rules = front.gate.rules();
    let mut commands = 0;
    let progress = loop {
        let outcome = step(front, session, &rules, &mut unread, limits, &mut replies);
        *at = *filled - unread.len();
        commands += outcome.commands;
        // What `EXEC` has set going comes whole: it lies within a bound, and so do its replies.
        let mut exec_run = std::mem::take(&mut session.exec_run);
        let mut queued = &mut exec_run.bytes[..];
        while !queued.is_empty() {
            commands += step(front, session, &rules, &mut queued, limits, &mut replies).commands;
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

/// What a step came to.
struct StepOutcome {
    /// So many commands were answered.
    commands: u32,
    /// How the turn ends, if it does.
    progress: Option<Progress>,
}

/// Answers a batch of questions, and what comes behind them.
fn step(
    front: &RespFront,
    session: &mut Session,
    rules: &Rules,
    unread: &mut &mut [u8],
    limits: &mut LimitCache,
    replies: &mut Replies<'_>,
) -> StepOutcome {
    let mut batch = Batch::new();
    let after = gather(session, unread, limits, &mut batch);
    decide(&batch, front, rules, replies);
    let progress = after.answer(front, session, rules, replies);
    let questions = u32::try_from(batch.len()).unwrap_or(u32::MAX);
    StepOutcome { commands: questions + u32::from(after.is_answered()), progress }
}

/// Commands that are for a decision, in a row.
type Batch<'d> = SmallVec<[BorrowedQuery<'d>; MAX_BATCH]>;

/// Takes commands that are for a decision; says what comes behind them.
fn gather<'d>(
    session: &Session,
    unread: &mut &'d mut [u8],
    limits: &mut LimitCache,
    batch: &mut Batch<'d>,
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

fn decide(batch: &Batch<'_>, front: &RespFront, rules: &Rules, replies: &mut Replies<'_>) {
    let mut questions = SmallVec::<[Question<'_>; MAX_BATCH]>::new();
    batch.iter().for_each(|query| questions.push(query.question()));
    front.gate.check_each(rules, &questions, |index, answer| {
        query::reply(batch[index].kind, answer, replies);
    });
}

/// What comes behind a batch of questions.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one, on the stack, while a batch is answered"
)]
enum AfterBatch<'d> {
    /// More of them.
    More,
    /// Something else.
    Command(ParsedCommand<'d>, Args<'d>),
    /// Nothing that is complete.
    Incomplete,
    /// No command.
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

    /// Answers it; says how the turn ends, if it does.
    fn answer(
        &self,
        front: &RespFront,
        session: &mut Session,
        rules: &Rules,
        replies: &mut Replies<'_>,
    ) -> Option<Progress> {
        match self {
            AfterBatch::More => None,
            AfterBatch::Command(ParsedCommand::Query(query), _) => {
                query.execute_local(&front.gate, rules, replies);
                None
            }
            AfterBatch::Command(command, args) => respond(command, args, front, session, replies),
            AfterBatch::Incomplete => Some(Progress::Complete),
            AfterBatch::Error(error) => Some(refuse(*error, replies)),
        }
    }
}

/// Answers what is not for the gate; says how the turn ends, if it does.
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
            session.wait(args, replies);
            None
        }
        ParsedCommand::Other(command) => {
            let goes_on = session.answer(*command, front, args, replies);
            (!goes_on).then_some(Progress::Closed)
        }
        ParsedCommand::Rejected(error) => {
            session.abort_transaction();
            replies.error(error);
            None
        }
        ParsedCommand::HttpRequest => {
            debug!("a connection speaks HTTP: closed");
            Some(Progress::Closed)
        }
    }
}

/// The next command, if it is complete.
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

/// What is no command ends the connection: nobody knows where the next would begin.
fn refuse(error: ProtocolError, replies: &mut Replies<'_>) -> Progress {
    replies.error(&RequestError::invalid(error.to_string()));
    Progress::Closed
}

/// Questions for a shared store, with the replies to what was asked in between.
#[derive(Debug, Default)]
pub struct RemoteBatch {
    queries: Vec<PendingReply>,
    /// Replies that are known already.
    ready: Vec<u8>,
    /// A question that has to wait for those before it.
    next: Option<PendingReply>,
    /// Replies by code that were not noted yet.
    counts: ReplyCounts,
}

/// A question, and where its reply goes.
#[derive(Debug)]
struct PendingReply {
    query: OwnedQuery,
    protocol: Protocol,
    /// Behind so many bytes of the known replies.
    behind: usize,
}

impl RemoteBatch {
    /// Takes as many commands from a desk as can be under way at once. Whatever asks for
    /// something else waits, so that a client finds what it reset to be reset.
    pub fn gather(
        &mut self,
        front: &RespFront,
        session: &mut Session,
        buffers: &mut ConnBuffers,
    ) -> Progress {
        let ConnBuffers { input, at, filled, limits, .. } = buffers;
        loop {
            // What `EXEC` has set going comes before what was read behind it.
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

    /// Takes commands from `at` on; says how the turn ends, if no `EXEC` has to be looked
    /// after first.
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
            if self.ready.len() >= MAX_REPLY_BYTES || self.queries.len() >= MAX_TOGETHER {
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

    /// Takes a question in, or gives it back if it does not go with the others.
    fn place(&mut self, query: BorrowedQuery<'_>, protocol: Protocol) -> Option<PendingReply> {
        let first = self.queries.first();
        let can_join = first.is_none_or(|first| first.query.kind.can_run_with(query.kind));
        let pending =
            PendingReply { query: OwnedQuery::from(query), protocol, behind: self.ready.len() };
        if can_join {
            self.queries.push(pending);
            return None;
        }
        Some(pending)
    }

    /// Asks all of it at once, and appends the replies in order. What had to wait is
    /// the first of the next round.
    pub async fn settle(&mut self, front: &RespFront, rules: &Rules, output: &mut Vec<u8>) {
        let answers = self.queries.iter().map(|pending| pending.query.execute(&front.gate, rules));
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
        self.queries.extend(self.next.take().map(|pending| PendingReply { behind: 0, ..pending }));
    }
}

fn add(counts: &mut ReplyCounts, more: ReplyCounts) {
    counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
}
