//! Working through what lies on a desk.

use futures_util::future::join_all;
use smallvec::SmallVec;
use tidegate::unstable::gate::{MAX_TOGETHER, Question, Rules};
use tracing::debug;

use super::RespFront;
use super::buffers::{Desk, MAX_REPLY_BYTES};
use super::decode::{Args, MAX_COMMAND_BYTES, ProtocolError, decode};
use super::encode::{Protocol, Replies};
use super::limit_cache::Limits;
use super::query::{self, Ask, Asked};
use super::session::{Meant, Session};
use crate::admin::ReplyCounts;
use crate::error::RequestError;

/// Questions that are decided in one go: as many as memory is fetched for at once.
const MAX_BATCH: usize = 32;

/// How far a desk was worked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// All commands that are complete were answered.
    Answered,
    /// There is more, but first what there is now.
    Pauses,
    /// The connection ends once the replies are written.
    Ends,
}

/// Answers the commands on a desk from a store that is here.
pub fn answer(front: &RespFront, session: &mut Session, desk: &mut Desk) -> Turn {
    let Desk { input, at, filled, output, limits } = desk;
    let mut unread = &mut input[*at..*filled];
    let mut replies = Replies::new(output, session.protocol);
    let rules = front.gate.rules();
    let mut commands = 0;
    let turn = loop {
        let done = step(front, session, &rules, &mut unread, limits, &mut replies);
        *at = *filled - unread.len();
        commands += done.commands;
        // What `EXEC` has set going comes whole: it lies within a bound, and so do its replies.
        let mut due = std::mem::take(&mut session.due);
        let mut waited = &mut due.bytes[..];
        while !waited.is_empty() {
            commands += step(front, session, &rules, &mut waited, limits, &mut replies).commands;
        }
        match done.turn {
            None if replies.len() >= MAX_REPLY_BYTES => break Turn::Pauses,
            None => {}
            Some(turn) => break turn,
        }
    };
    front.facts.replied(&replies.counted(commands));
    turn
}

/// What a step came to.
struct Done {
    /// So many commands were answered.
    commands: u32,
    /// How the turn ends, if it does.
    turn: Option<Turn>,
}

/// Answers a batch of questions, and what comes behind them.
fn step(
    front: &RespFront,
    session: &mut Session,
    rules: &Rules,
    unread: &mut &mut [u8],
    limits: &mut Limits,
    replies: &mut Replies<'_>,
) -> Done {
    let mut batch = Batch::new();
    let then = gather(session, unread, limits, &mut batch);
    decide(&batch, front, rules, replies);
    let turn = then.answer(front, session, rules, replies);
    let questions = u32::try_from(batch.len()).unwrap_or(u32::MAX);
    Done { commands: questions + u32::from(then.is_answered()), turn }
}

/// Commands that are for a decision, in a row.
type Batch<'d> = SmallVec<[Ask<'d>; MAX_BATCH]>;

/// Takes commands that are for a decision; says what comes behind them.
fn gather<'d>(
    session: &Session,
    unread: &mut &'d mut [u8],
    limits: &mut Limits,
    batch: &mut Batch<'d>,
) -> Then<'d> {
    while batch.len() < MAX_BATCH {
        let args = match next(unread, session) {
            Ok(Some(args)) => args,
            Ok(None) => return Then::Incomplete,
            Err(error) => return Then::Error(error),
        };
        match session.understand(&args, limits) {
            Meant::Ask(ask) if ask.what.is_check() => batch.push(ask),
            meant => return Then::Command(meant, args),
        }
    }
    Then::More
}

fn decide(batch: &Batch<'_>, front: &RespFront, rules: &Rules, replies: &mut Replies<'_>) {
    let mut questions = SmallVec::<[Question<'_>; MAX_BATCH]>::new();
    batch.iter().for_each(|ask| questions.push(ask.question()));
    front.gate.check_each(rules, &questions, |index, answer| {
        query::reply(batch[index].what, answer, replies);
    });
}

/// What comes behind a batch of questions.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one, on the stack, while a batch is answered"
)]
enum Then<'d> {
    /// More of them.
    More,
    /// Something else.
    Command(Meant<'d>, Args<'d>),
    /// Nothing that is complete.
    Incomplete,
    /// No command.
    Error(ProtocolError),
}

impl Then<'_> {
    fn is_answered(&self) -> bool {
        match self {
            Then::Command(meant, _) => meant.is_answered(),
            Then::Error(_) => true,
            Then::More | Then::Incomplete => false,
        }
    }

    /// Answers it; says how the turn ends, if it does.
    fn answer(
        &self,
        front: &RespFront,
        session: &mut Session,
        rules: &Rules,
        replies: &mut Replies<'_>,
    ) -> Option<Turn> {
        match self {
            Then::More => None,
            Then::Command(Meant::Ask(ask), _) => {
                ask.look(&front.gate, rules, replies);
                None
            }
            Then::Command(meant, args) => respond(meant, args, front, session, replies),
            Then::Incomplete => Some(Turn::Answered),
            Then::Error(error) => Some(refuse(*error, replies)),
        }
    }
}

/// Answers what is not for the gate; says how the turn ends, if it does.
fn respond(
    meant: &Meant<'_>,
    args: &Args<'_>,
    front: &RespFront,
    session: &mut Session,
    replies: &mut Replies<'_>,
) -> Option<Turn> {
    match meant {
        Meant::Ask(_) | Meant::Nothing => None,
        Meant::Waits => {
            session.wait(args, replies);
            None
        }
        Meant::Other(command) => {
            let goes_on = session.answer(*command, front, args, replies);
            (!goes_on).then_some(Turn::Ends)
        }
        Meant::Refused(error) => {
            session.break_off();
            replies.error(error);
            None
        }
        Meant::Hostile => {
            debug!("a connection speaks HTTP: closed");
            Some(Turn::Ends)
        }
    }
}

/// The next command, if it is complete.
#[inline]
fn next<'d>(
    unread: &mut &'d mut [u8],
    session: &Session,
) -> Result<Option<Args<'d>>, ProtocolError> {
    match decode(unread, !session.admitted)? {
        None if unread.len() >= MAX_COMMAND_BYTES => Err(ProtocolError::TooBigCommand),
        args => Ok(args),
    }
}

/// What is no command ends the connection: nobody knows where the next would begin.
fn refuse(error: ProtocolError, replies: &mut Replies<'_>) -> Turn {
    replies.error(&RequestError::invalid(error.to_string()));
    Turn::Ends
}

/// Questions for a shared store, with the replies to what was asked in between.
#[derive(Debug, Default)]
pub struct Round {
    asked: Vec<Placed>,
    /// Replies that are known already.
    known: Vec<u8>,
    /// A question that has to wait for those before it.
    next: Option<Placed>,
    /// Replies by code that were not noted yet.
    counts: ReplyCounts,
}

/// A question, and where its reply goes.
#[derive(Debug)]
struct Placed {
    asked: Asked,
    protocol: Protocol,
    /// Behind so many bytes of the known replies.
    behind: usize,
}

impl Round {
    /// Takes as many commands from a desk as can be under way at once. Whatever asks for
    /// something else waits, so that a client finds what it reset to be reset.
    pub fn gather(&mut self, front: &RespFront, session: &mut Session, desk: &mut Desk) -> Turn {
        let Desk { input, at, filled, limits, .. } = desk;
        loop {
            // What `EXEC` has set going comes before what was read behind it.
            let mut due = std::mem::take(&mut session.due);
            if !due.is_done() {
                let turn = self.take(&mut due.bytes, &mut due.at, front, session, limits);
                if turn == Some(Turn::Pauses) {
                    session.due = due;
                    return Turn::Pauses;
                }
            }
            if let Some(turn) = self.take(&mut input[..*filled], at, front, session, limits) {
                return turn;
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
        limits: &mut Limits,
    ) -> Option<Turn> {
        let end = bytes.len();
        let mut unread = &mut bytes[*at..];
        while session.due.is_done() {
            if self.known.len() >= MAX_REPLY_BYTES || self.asked.len() >= MAX_TOGETHER {
                return Some(Turn::Pauses);
            }
            let mut replies = Replies::new(&mut self.known, session.protocol);
            let args = match next(&mut unread, session) {
                Ok(Some(args)) => args,
                Ok(None) => return Some(Turn::Answered),
                Err(error) => {
                    let turn = refuse(error, &mut replies);
                    add(&mut self.counts, replies.counted(1));
                    return Some(turn);
                }
            };
            *at = end - unread.len();
            match session.understand(&args, limits) {
                Meant::Ask(ask) => {
                    let placed = self.place(ask, session.protocol);
                    if let Some(placed) = placed {
                        self.next = Some(placed);
                        return Some(Turn::Pauses);
                    }
                }
                meant => {
                    let turn = respond(&meant, &args, front, session, &mut replies);
                    add(&mut self.counts, replies.counted(meant.is_answered().into()));
                    if turn.is_some() {
                        return turn;
                    }
                }
            }
        }
        None
    }

    /// Takes a question in, or gives it back if it does not go with the others.
    fn place(&mut self, ask: Ask<'_>, protocol: Protocol) -> Option<Placed> {
        let first = self.asked.first();
        let goes_along = first.is_none_or(|first| first.asked.what.goes_with(ask.what));
        let placed = Placed { asked: Asked::from(ask), protocol, behind: self.known.len() };
        if goes_along {
            self.asked.push(placed);
            return None;
        }
        Some(placed)
    }

    /// Asks all of it at once, and appends the replies in order. What had to wait is
    /// the first of the next round.
    pub async fn settle(&mut self, front: &RespFront, rules: &Rules, output: &mut Vec<u8>) {
        let told = self.asked.iter().map(|placed| placed.asked.tell(&front.gate, rules));
        let told = join_all(told).await;
        let mut at = 0;
        for (placed, told) in self.asked.iter().zip(told) {
            output.extend_from_slice(&self.known[at..placed.behind]);
            at = placed.behind;
            let mut replies = Replies::new(output, placed.protocol);
            placed.asked.reply(told, &mut replies);
            add(&mut self.counts, replies.counted(1));
        }
        front.facts.replied(&std::mem::take(&mut self.counts));
        output.extend_from_slice(&self.known[at..]);
        self.asked.clear();
        self.known.clear();
        self.asked.extend(self.next.take().map(|placed| Placed { behind: 0, ..placed }));
    }
}

fn add(counts: &mut ReplyCounts, more: ReplyCounts) {
    counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
}
