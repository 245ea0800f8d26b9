//! The commands of one write to a server, and the callers waiting for their replies.
//!
//! Asks that the counter script can take share a call with others under the same limit,
//! and equal asks of one key share an entry of it. Other requests that are equal are merged
//! into one that costs as much as all of them. So a hot key costs a server as much as a cold
//! one. Everything else is a separate call. All calls of a batch are pipelined, and each is
//! answered when its reply arrives.
//! See `draft.rs` for how jobs become calls.

use std::collections::VecDeque;
use std::time::Instant;

use redis::{Cmd, ServerError, Value};
use tidegate_core::{Limit, Timestamp};

use super::abandoned::Reply;
use super::breaker::{Health, Outcome};
use super::connection::{Line, Sent, load_scripts, text_of};
use super::counter::{self, Entry};
use super::draft::{Draft, Drafts};
use super::lane::{Answer, Job, Manner, Trouble, Work};
use super::plan::{Mode, Plan};
use super::queue::{Claim, Taken};
use super::stats::Tally;
use super::url::{Address, Kind};
use crate::{Failure, StoreError};

/// Calls that go together.
#[derive(Debug)]
pub(super) struct Batch {
    units: Vec<Unit>,
    asks: usize,
    coalesced: usize,
}

/// One command, and the callers that wait for its reply.
#[derive(Debug)]
pub(super) struct Unit {
    command: Cmd,
    asking: bool,
    /// Whether the scripts were loaded for it already.
    taught: bool,
    members: Members,
}

#[derive(Debug)]
pub(super) enum Members {
    One(Waiter),
    /// The callers of every entry of a counter call.
    Counted(Limit, Vec<Entry>, Vec<Vec<Waiter>>),
    Merged(Box<Merged>),
}

/// A caller that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    reply: Reply,
    /// Its part of what is in flight, for as long as it waits.
    _claim: Option<Claim>,
}

impl Waiter {
    fn is_awaited(&self) -> bool {
        !self.reply.is_closed()
    }

    fn answer(self, answer: Result<Answer, Trouble>) {
        // The caller may have given up meanwhile.
        drop(self.reply.send(answer));
    }
}

/// Equal requests, sent as one request that costs as much as the first `asked` of them.
#[derive(Debug)]
pub(super) struct Merged {
    plan: Plan,
    at: Option<Timestamp>,
    pub(super) asked: usize,
    pub(super) waiters: VecDeque<Waiter>,
}

impl Batch {
    /// Puts jobs together.
    pub(super) fn gather(jobs: impl Iterator<Item = Taken>, kind: Kind) -> Self {
        let mut drafts = Drafts::new(kind);
        let (mut asks, mut coalesced) = (0, 0);
        for Taken { job, claim, group } in jobs {
            let Job { work, manner, reply, keys, .. } = job;
            let waiter = Waiter { reply, _claim: claim };
            asks += 1;
            coalesced += usize::from(match work {
                Work::Send(command, ..) => {
                    let members = Members::One(waiter);
                    drafts.push(Draft::Whole(Unit::new(command, manner, members)), &keys);
                    false
                }
                Work::Count(quick, at) => drafts.count(quick, at, manner, waiter),
                Work::Decide(plan, at) => {
                    let plan = Merged { plan: *plan, at, asked: 1, waiters: [waiter].into() };
                    drafts.merge(plan, manner, &keys, group)
                }
            });
        }
        Batch { units: drafts.finish(), asks, coalesced }
    }

    /// How many script calls it has.
    pub(super) fn calls(&self) -> usize {
        self.units.len()
    }

    /// How many callers it is for.
    pub(super) fn asks(&self) -> usize {
        self.asks
    }

    /// How many asks share a call or an entry with an equal one before them.
    pub(super) fn coalesced(&self) -> usize {
        self.coalesced
    }

    /// Hands all calls to the connection, in order.
    pub(super) async fn send(self, line: Line, health: &Health) -> Write {
        let calls = send(&line, health, self.units).await;
        Write { line, calls, begun: Instant::now() }
    }
}

/// A batch that was sent.
pub(super) struct Write {
    line: Line,
    calls: Vec<(Option<Unit>, Sent)>,
    begun: Instant,
}

/// Sends units, the scripts first if a server has lost them. Replies to commands without a unit
/// mean nothing.
async fn send(line: &Line, health: &Health, units: Vec<Unit>) -> Vec<(Option<Unit>, Sent)> {
    let (mut commands, mut whose) = (Vec::new(), Vec::new());
    if units.iter().any(|unit| unit.taught) {
        commands.extend(load_scripts());
        whose.resize_with(commands.len(), || None);
    }
    for unit in units {
        if unit.asking {
            commands.push(redis::cmd("ASKING"));
            whose.push(None);
        }
        commands.push(unit.command.clone());
        whose.push(Some(unit));
    }
    health.sent(commands.len());
    whose.into_iter().zip(line.send(commands).await).collect()
}

impl Write {
    /// Answers every caller as soon as its reply arrives. Calls that were proven not to be
    /// carried out, or to be too large as one, are sent again.
    pub(super) async fn settle(
        self,
        asked: Option<Address>,
        health: &Health,
        tally: &Tally,
        mut note: impl FnMut(Outcome),
    ) -> Outcome {
        let Write { line, mut calls, begun } = self;
        let mut settling = Settling { asked, outcome: Outcome::Answered, tally };
        loop {
            let mut again = Vec::new();
            for (unit, sent) in calls {
                let reply = sent.reply().await;
                if reply.is_ok() {
                    health.replied();
                }
                let Some(unit) = unit else { continue };
                let before = settling.outcome;
                match reply {
                    Ok(value) => again.extend(settling.settle(unit, value)),
                    Err(_) => {
                        let is_silent = health.is_silent();
                        let failure = if is_silent { Failure::TimedOut } else { Failure::Lost };
                        settling.outcome = Outcome::Useless;
                        unit.members.trouble(&Trouble::Failed(failure));
                    }
                }
                if settling.outcome != before {
                    note(settling.outcome);
                }
            }
            if again.is_empty() || settling.outcome == Outcome::Useless {
                let down = Trouble::Failed(Failure::Down);
                again.into_iter().for_each(|unit: Unit| unit.members.trouble(&down));
                tally.round_trip(begun.elapsed());
                return settling.outcome;
            }
            Tally::add(&tally.resent, again.len());
            calls = send(&line, health, again).await;
        }
    }
}

struct Settling<'t> {
    asked: Option<Address>,
    outcome: Outcome,
    tally: &'t Tally,
}

impl Settling<'_> {
    /// Answers a unit; returns what is to be sent again.
    fn settle(&mut self, unit: Unit, value: Value) -> Option<Unit> {
        match value {
            Value::ServerError(error) if error.code() == "NOSCRIPT" && !unit.taught => {
                unit.members.is_awaited().then_some(Unit { taught: true, ..unit })
            }
            Value::ServerError(error) => {
                let trouble = self.trouble(&error);
                unit.members.trouble(&trouble);
                None
            }
            value => unit.members.answer(value).map(|merged| merged.unit(unit.asking)),
        }
    }

    /// Classifies an error. Errors that are not listed here concern one key only.
    fn trouble(&mut self, error: &ServerError) -> Trouble {
        let details = error.details().unwrap_or("");
        let address = || {
            let (_slot, address) = details.split_once(' ')?;
            Address::from_redirect(address, self.asked.as_ref()?)
        };
        match code_of(error) {
            "MOVED" => address().map_or_else(|| refused(error), Trouble::Moved),
            "ASK" => address().map_or_else(|| refused(error), Trouble::Ask),
            "TRYAGAIN" => Trouble::TryAgain,
            // The slot is nobody's: not carried out, and not this server's fault.
            "CLUSTERDOWN" => Trouble::Failed(Failure::Down),
            // Nothing is wrong with the key: no other is served either.
            "OOM" | "MISCONF" | "NOREPLICAS" | "NOPERM" | "BUSY" => self.refuses(error),
            // Not carried out: this server is the wrong one.
            "READONLY" | "LOADING" | "MASTERDOWN" => self.wrong_server(),
            _ => refused(error),
        }
    }

    fn refuses(&mut self, error: &ServerError) -> Trouble {
        if self.outcome == Outcome::Answered {
            self.outcome = Outcome::Refused;
            self.tally.set_last_error(Some(format!("the store refuses: {}", text_of(error))));
        }
        refused(error)
    }

    fn wrong_server(&mut self) -> Trouble {
        self.outcome = Outcome::Useless;
        Trouble::Failed(Failure::Down)
    }
}

/// The code of an error, also if it occurred inside a script. Servers before 7.0 put that
/// code into the text, and later ones report a missing permission in words only.
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

fn refused(error: &ServerError) -> Trouble {
    Trouble::Failed(Failure::Refused(text_of(error)))
}

impl Unit {
    pub(super) fn new(command: Cmd, manner: Manner, members: Members) -> Self {
        Unit { command, asking: manner == Manner::Asking, taught: false, members }
    }
}

impl Members {
    fn is_awaited(&self) -> bool {
        match self {
            Members::One(waiter) => waiter.is_awaited(),
            Members::Counted(_, _, waiters) => waiters.iter().flatten().any(Waiter::is_awaited),
            Members::Merged(merged) => merged.waiters.iter().any(Waiter::is_awaited),
        }
    }

    fn trouble(self, trouble: &Trouble) {
        let fail = |waiter: Waiter| waiter.answer(Err(trouble.clone()));
        match self {
            Members::One(waiter) => fail(waiter),
            Members::Counted(_, _, waiters) => waiters.into_iter().flatten().for_each(fail),
            Members::Merged(merged) => merged.waiters.into_iter().for_each(fail),
        }
    }

    /// Answers those it can; returns the rest of a merged request.
    fn answer(self, value: Value) -> Option<Merged> {
        match self {
            Members::One(waiter) => waiter.answer(Ok(Answer::Value(value))),
            Members::Merged(merged) => return merged.answer(&value),
            Members::Counted(limit, entries, waiters) => {
                match counter::answers(&limit, &entries, &value) {
                    Ok(answers) => answer_counted(answers, waiters),
                    Err(error) => {
                        Members::Counted(limit, entries, waiters).trouble(&failed(error));
                    }
                }
            }
        }
        None
    }
}

/// Why a reply could not be read.
fn failed(error: StoreError) -> Trouble {
    Trouble::Failed(match error {
        StoreError::Failed(failure) => failure,
        StoreError::Check(error) => Failure::Refused(error.to_string().into()),
    })
}

fn answer_counted(answers: Vec<counter::Answer>, waiters: Vec<Vec<Waiter>>) {
    for (answer, waiters) in answers.into_iter().zip(waiters) {
        match answer {
            counter::Answer::Decided(decisions) => {
                for (waiter, decision) in waiters.into_iter().zip(decisions) {
                    waiter.answer(Ok(Answer::Counted(decision)));
                }
            }
            counter::Answer::Elsewhere => {
                waiters.into_iter().for_each(|waiter| waiter.answer(Ok(Answer::NotCounted)));
            }
        }
    }
}

impl Merged {
    /// Answers the callers that the reply covers; returns the rest. A denial of a merged request
    /// charged nothing, so the part that still fits is sent again. A denial of a single request
    /// holds for all.
    fn answer(mut self, value: &Value) -> Option<Merged> {
        let times = self.asked as u64;
        let answers = match self.plan.times(times).answers(value) {
            Ok(answers) => answers,
            Err(error) => {
                Members::Merged(Box::new(self)).trouble(&failed(error));
                return None;
            }
        };
        let left = self.plan.times_left(&answers);
        if answers.admitted {
            let first = self.waiters.drain(..self.asked);
            for (waiter, answers) in first.zip(self.plan.each(times, &answers)) {
                waiter.answer(Ok(Answer::Decided(Box::new(answers))));
            }
        } else if self.asked == 1 {
            for waiter in self.waiters {
                waiter.answer(Ok(Answer::Decided(Box::new(answers.clone()))));
            }
            return None;
        }
        self.waiters.retain(Waiter::is_awaited);
        self.asked =
            usize::try_from(left).unwrap_or(usize::MAX).clamp(1, self.waiters.len().max(1));
        (!self.waiters.is_empty()).then_some(self)
    }

    /// Whether `one` is the same request.
    pub(super) fn is_equal(&self, one: &Merged) -> bool {
        self.plan.states() == one.plan.states() && self.at == one.at
    }

    pub(super) fn unit(self, asking: bool) -> Unit {
        let command = self.plan.times(self.asked as u64).call(Mode::Decide, self.at).cmd();
        Unit { command, asking, taught: false, members: Members::Merged(Box::new(self)) }
    }
}
