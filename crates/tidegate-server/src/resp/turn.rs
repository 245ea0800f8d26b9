//! Working through what lies on a desk.

use futures_util::future::join_all;
use tidegate::gate::{Gate, Rules};

use super::RespFront;
use super::ask::Asked;
use super::decode::{Args, Decoded, MAX_COMMAND_BYTES, ProtocolError, decode};
use super::desk::{Desk, MAX_REPLY_BYTES};
use super::encode::{Protocol, Replies};
use super::session::{Session, Step};

/// The most questions of one connection that a shared store is asked at once: as many as
/// it takes to travel together well, few enough that others have a turn.
const MAX_TOGETHER: usize = 256;

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
    let mut replies = Replies::new(output, session.protocol);
    let rules = front.gate.rules();
    loop {
        if replies.len() >= MAX_REPLY_BYTES {
            return Turn::Pauses;
        }
        let args = match next(&mut input[..*filled], at, session, &mut replies) {
            Ok(args) => args,
            Err(turn) => return turn,
        };
        match session.step(front, &args, limits, &mut replies) {
            Step::Done => {}
            Step::Ask(ask) => ask.answer(&front.gate, &rules, &mut replies),
            Step::Close => return Turn::Ends,
        }
    }
}

/// The next command, or how it ends: with nothing complete, or with what is no command.
#[inline]
fn next<'d>(
    input: &'d mut [u8],
    at: &mut usize,
    session: &Session,
    replies: &mut Replies<'_>,
) -> Result<Args<'d>, Turn> {
    let unanswered = &mut input[*at..];
    let is_full = unanswered.len() >= MAX_COMMAND_BYTES;
    let error = match decode(unanswered, !session.admitted) {
        Ok(Decoded::Command(args, taken)) => {
            *at += taken;
            return Ok(args);
        }
        Ok(Decoded::Incomplete) if !is_full => return Err(Turn::Answered),
        Ok(Decoded::Incomplete) => ProtocolError::TooBigCommand,
        Err(error) => error,
    };
    replies.error(format_args!("ERR {error}"));
    Err(Turn::Ends)
}

/// Questions for a shared store, with the replies to what was asked in between.
#[derive(Debug, Default)]
pub struct Round {
    asked: Vec<Placed>,
    /// Replies that are known already.
    known: Vec<u8>,
    /// A question that has to wait for those before it.
    next: Option<Placed>,
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
            if self.known.len() >= MAX_REPLY_BYTES || self.asked.len() >= MAX_TOGETHER {
                return Turn::Pauses;
            }
            let mut replies = Replies::new(&mut self.known, session.protocol);
            let args = match next(&mut input[..*filled], at, session, &mut replies) {
                Ok(args) => args,
                Err(turn) => return turn,
            };
            let ask = match session.step(front, &args, limits, &mut replies) {
                Step::Done => continue,
                Step::Ask(ask) => ask,
                Step::Close => return Turn::Ends,
            };
            let goes_along =
                self.asked.first().is_none_or(|first| first.asked.what.goes_with(ask.what));
            let placed = Placed {
                asked: Asked::from(&ask),
                protocol: session.protocol,
                behind: self.known.len(),
            };
            if !goes_along {
                self.next = Some(placed);
                return Turn::Pauses;
            }
            self.asked.push(placed);
        }
    }

    /// Asks all of it at once, and appends the replies in order. What had to wait is
    /// the first of the next round.
    pub async fn settle(&mut self, gate: &Gate, rules: &Rules, output: &mut Vec<u8>) {
        let told = self.asked.iter().map(|placed| placed.asked.tell(gate, rules));
        let told = join_all(told).await;
        let mut at = 0;
        for (placed, told) in self.asked.iter().zip(told) {
            output.extend_from_slice(&self.known[at..placed.behind]);
            at = placed.behind;
            placed.asked.reply(told, &mut Replies::new(output, placed.protocol));
        }
        output.extend_from_slice(&self.known[at..]);
        self.asked.clear();
        self.known.clear();
        self.asked.extend(self.next.take().map(|placed| Placed { behind: 0, ..placed }));
    }
}
