//! The commands of one write to a server, and the callers waiting for their replies.
//!
//! Asks that the counter script can take share a call with others under the same limit,
//! and equal asks of one key share an entry of it: a hot key costs a server as
//! much as a cold one. Everything else is a separate call. All calls of a batch
//! are pipelined.
//!
//! Jobs that touch the same key reach the server in the order they were queued: an ask joins
//! a call only if no later call of the batch touches its key.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use redis::{Cmd, Pipeline, ServerError, Value};
use tidegate_core::{Limit, Timestamp};

use super::breaker::Outcome;
use super::connection::{Connection, add_scripts, text_of};
use super::counter::{self, Entry, MAX_TIMES, Quick};
use super::lane::{Answer, Job, Manner, Reply, Trouble, Work, key_hash};
use super::names::slot_key;
use super::script::Script;
use super::stats::Tally;
use super::topology::slot_of;
use super::url::{Address, Kind};
use crate::{Failure, StoreError};

/// Keys in one call of the counter script. Beyond this a call gains little, and
/// everybody else's has to wait for it.
const MAX_KEYS: usize = 64;

/// Work that goes together.
#[derive(Debug)]
pub(super) struct Batch {
    units: Vec<Unit>,
    /// Where redirects without a host lead.
    asked: Option<Address>,
    asks: usize,
    coalesced: usize,
}

/// One command, and whom it is for.
#[derive(Debug)]
struct Unit {
    command: Cmd,
    asking: bool,
    members: Members,
}

#[derive(Debug)]
enum Members {
    One(Reply),
    /// Per entry of a counter call, those who asked for it.
    Counted(Limit, Vec<Entry>, Vec<Vec<Reply>>),
}

/// What makes asks go in one call.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Kin {
    count: u64,
    window_us: u64,
    at: Option<Timestamp>,
    slot: u16,
}

/// A counter call while it is put together.
struct Counting {
    limit: Limit,
    at: Option<Timestamp>,
    entries: Vec<Entry>,
    replies: Vec<Vec<Reply>>,
    /// Where in `entries` a key is.
    index: HashMap<Vec<u8>, usize, RandomState>,
}

impl Batch {
    /// Puts jobs together. A caller who has given up is left out.
    pub(super) fn gather(
        jobs: impl Iterator<Item = Job>,
        kind: Kind,
        asked: Option<Address>,
    ) -> Self {
        let mut drafts = Drafts::new(kind);
        let (mut asks, mut coalesced) = (0, 0);
        for Job { work, manner, reply } in jobs.filter(|job| !job.reply.is_closed()) {
            asks += 1;
            match work {
                Work::Send(command, keys) => {
                    let asking = manner == Manner::Asking;
                    let unit = Unit { command, asking, members: Members::One(reply) };
                    drafts.push(Draft::Whole(unit), &keys);
                }
                Work::Count(quick, at) => {
                    coalesced += usize::from(drafts.count(quick, at, manner, reply));
                }
            }
        }
        Batch { units: drafts.finish(), asked, asks, coalesced }
    }

    /// How many script calls it has.
    pub(super) fn calls(&self) -> usize {
        self.units.len()
    }

    /// How many callers it is for.
    pub(super) fn asks(&self) -> usize {
        self.asks
    }

    /// How many asks share an entry with an equal one before them.
    pub(super) fn coalesced(&self) -> usize {
        self.coalesced
    }

    pub(super) fn fail(self, failure: &Failure) {
        for unit in self.units {
            unit.members.trouble(&Trouble::Failed(failure.clone()));
        }
    }

    /// Sends it and answers everybody.
    pub(super) async fn run(
        self,
        connection: &mut Connection,
        timeout: Duration,
        tally: &Tally,
    ) -> Outcome {
        let Batch { units, asked, .. } = self;
        let sent = Instant::now();
        let values = match exchange(connection, pipeline(&units), timeout).await {
            Ok(values) => values,
            Err((failure, outcome)) => {
                fail_all(units, &failure);
                return outcome;
            }
        };
        tally.round_trip(sent.elapsed());
        let mut settling =
            Settling { asked, outcome: Outcome::Answered, unknown: Vec::new(), tally };
        settling.settle(units, values, Unknown::Resend);
        let unknown = std::mem::take(&mut settling.unknown);
        if unknown.is_empty() {
            return settling.outcome;
        }
        // The server has lost the scripts: it was asked to, or it is a new one.
        Tally::add(&tally.resent, unknown.len());
        let mut again = Pipeline::new();
        add_scripts(&mut again);
        append(&mut again, &unknown);
        match exchange(connection, again, timeout).await {
            Ok(mut values) => {
                values.drain(..Script::ALL.len().min(values.len()));
                settling.settle(unknown, values, Unknown::Refuse);
                settling.outcome
            }
            Err((failure, outcome)) => {
                fail_all(unknown, &failure);
                outcome
            }
        }
    }
}

fn fail_all(units: Vec<Unit>, failure: &Failure) {
    Batch { units, asked: None, asks: 0, coalesced: 0 }.fail(failure);
}

/// Sends commands, and waits for their answers.
async fn exchange(
    connection: &mut Connection,
    commands: Pipeline,
    timeout: Duration,
) -> Result<Vec<Value>, (Failure, Outcome)> {
    match tokio::time::timeout(timeout, connection.send(&commands)).await {
        Ok(Ok(values)) if values.len() == commands.len() => Ok(values),
        Ok(_) => Err((Failure::Lost, Outcome::Useless)),
        Err(_) => Err((Failure::TimedOut, Outcome::Silent)),
    }
}

fn pipeline(units: &[Unit]) -> Pipeline {
    let mut commands = Pipeline::with_capacity(units.len());
    append(&mut commands, units);
    commands
}

fn append(commands: &mut Pipeline, units: &[Unit]) {
    for unit in units {
        if unit.asking {
            commands.cmd("ASKING");
        }
        commands.add_command(unit.command.clone());
    }
}

/// What to do with calls of scripts that a server does not know.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unknown {
    Resend,
    Refuse,
}

struct Settling<'t> {
    asked: Option<Address>,
    outcome: Outcome,
    unknown: Vec<Unit>,
    tally: &'t Tally,
}

impl Settling<'_> {
    fn settle(&mut self, units: Vec<Unit>, values: Vec<Value>, unknown: Unknown) {
        let mut values = values.into_iter();
        for unit in units {
            if unit.asking {
                values.next();
            }
            match values.next().unwrap_or_default() {
                Value::ServerError(error)
                    if error.code() == "NOSCRIPT" && unknown == Unknown::Resend =>
                {
                    if unit.members.is_awaited() {
                        self.unknown.push(unit);
                    }
                }
                Value::ServerError(error) => {
                    let trouble = self.trouble(&error);
                    unit.members.trouble(&trouble);
                }
                value => unit.members.answer(value),
            }
        }
    }

    /// What an error means. Errors that are not named here concern one key only.
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
    // Key names have no spaces, so none of them reads like one of these.
    let wrapped = WRAPPED.iter().find(|(text, _)| details.contains(text));
    match (error.code(), wrapped) {
        ("ERR", Some((_, code))) => code,
        (code, _) => code,
    }
}

fn refused(error: &ServerError) -> Trouble {
    Trouble::Failed(Failure::Refused(text_of(error)))
}

impl Members {
    /// Whether anybody still waits.
    fn is_awaited(&self) -> bool {
        match self {
            Members::One(reply) => !reply.is_closed(),
            Members::Counted(_, _, replies) => replies.iter().flatten().any(|r| !r.is_closed()),
        }
    }

    fn trouble(self, trouble: &Trouble) {
        // Somebody may have given up meanwhile: nobody is left to hear it.
        match self {
            Members::One(reply) => drop(reply.send(Err(trouble.clone()))),
            Members::Counted(_, _, replies) => {
                for reply in replies.into_iter().flatten() {
                    drop(reply.send(Err(trouble.clone())));
                }
            }
        }
    }

    fn answer(self, value: Value) {
        let (limit, entries, replies) = match self {
            Members::One(reply) => return drop(reply.send(Ok(Answer::Value(value)))),
            Members::Counted(limit, entries, replies) => (limit, entries, replies),
        };
        let answers = match counter::answers(&limit, &entries, &value) {
            Ok(answers) => answers,
            Err(error) => {
                let failure = match error {
                    StoreError::Failed(failure) => failure,
                    StoreError::Check(error) => Failure::Refused(error.to_string().into()),
                };
                let members = Members::Counted(limit, entries, replies);
                return members.trouble(&Trouble::Failed(failure));
            }
        };
        for (answer, replies) in answers.into_iter().zip(replies) {
            match answer {
                counter::Answer::Decided(decisions) => {
                    for (reply, decision) in replies.into_iter().zip(decisions) {
                        drop(reply.send(Ok(Answer::Counted(decision))));
                    }
                }
                counter::Answer::Elsewhere => {
                    for reply in replies {
                        drop(reply.send(Ok(Answer::NotCounted)));
                    }
                }
            }
        }
    }
}

/// The calls of a batch while it is put together, in the order they will be sent.
struct Drafts {
    kind: Kind,
    calls: Vec<Draft>,
    /// The newest call of a kin.
    latest: HashMap<Kin, usize, RandomState>,
    /// The last call that touches a key, by the key's hash.
    last: HashMap<u64, usize, RandomState>,
}

enum Draft {
    Whole(Unit),
    Counting(Counting),
}

impl Drafts {
    fn new(kind: Kind) -> Self {
        let (latest, last) = (HashMap::default(), HashMap::default());
        Drafts { kind, calls: Vec::new(), latest, last }
    }

    fn push(&mut self, draft: Draft, keys: &[u64]) -> usize {
        let index = self.calls.len();
        self.calls.push(draft);
        self.last.extend(keys.iter().map(|key| (*key, index)));
        index
    }

    /// Adds a counter ask; returns whether there was an equal one to join.
    fn count(
        &mut self,
        quick: Quick,
        at: Option<Timestamp>,
        manner: Manner,
        reply: Reply,
    ) -> bool {
        let key = key_hash(&quick.key);
        if manner != Manner::Together {
            let mut alone = Counting::new(quick.limit, at);
            alone.add(quick, reply);
            self.push(Draft::Whole(alone.finish(manner == Manner::Asking)), &[key]);
            return false;
        }
        let slot = if self.kind == Kind::Cluster { slot_of(slot_key(&quick.key)) } else { 0 };
        let (count, window_us) = (quick.limit.count(), quick.limit.window_us());
        let kin = Kin { count, window_us, at, slot };
        let after = self.last.get(&key).copied().unwrap_or(0);
        let latest = self.latest.get(&kin).copied().filter(|index| *index >= after);
        let fits = |calls: &[Draft], index: usize| match &calls[index] {
            Draft::Counting(counting) => counting.has_room_for(&quick),
            Draft::Whole(_) => false,
        };
        let index = latest.filter(|index| fits(&self.calls, *index)).unwrap_or_else(|| {
            self.push(Draft::Counting(Counting::new(quick.limit, at)), &[])
        });
        self.latest.insert(kin, index);
        self.last.insert(key, index);
        match &mut self.calls[index] {
            Draft::Counting(counting) => counting.add(quick, reply),
            Draft::Whole(_) => false,
        }
    }

    fn finish(self) -> Vec<Unit> {
        let finish = |draft| match draft {
            Draft::Whole(unit) => unit,
            Draft::Counting(counting) => counting.finish(false),
        };
        self.calls.into_iter().map(finish).collect()
    }
}

impl Counting {
    fn new(limit: Limit, at: Option<Timestamp>) -> Self {
        let index = HashMap::default();
        Counting { limit, at, entries: Vec::new(), replies: Vec::new(), index }
    }

    /// A key stands in a call once, so it cannot also be asked for another number of units.
    fn has_room_for(&self, quick: &Quick) -> bool {
        match self.index.get(&quick.key) {
            Some(&index) => {
                let Entry { units, times, .. } = self.entries[index];
                units == quick.units && times < MAX_TIMES
            }
            None => self.entries.len() < MAX_KEYS,
        }
    }

    /// Adds an ask; says whether there was an equal one.
    fn add(&mut self, quick: Quick, reply: Reply) -> bool {
        if let Some(&index) = self.index.get(&quick.key) {
            self.entries[index].times += 1;
            self.replies[index].push(reply);
            return true;
        }
        self.index.insert(quick.key.clone(), self.entries.len());
        self.entries.push(Entry { key: quick.key, units: quick.units, times: 1 });
        self.replies.push(vec![reply]);
        false
    }

    fn finish(self, asking: bool) -> Unit {
        let Counting { limit, at, entries, replies, .. } = self;
        Unit {
            command: counter::call(&limit, &entries, at).cmd(),
            asking,
            members: Members::Counted(limit, entries, replies),
        }
    }
}
