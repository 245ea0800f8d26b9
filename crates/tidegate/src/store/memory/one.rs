//! One check on its own: the hot path, and a batch of such.

use tidegate_core::{Algorithm, Cost, Decision, Limit, Timestamp};

use super::MemoryStore;
use super::hash::ONE_WORD;
use super::lock::Backoff;
use super::rare::lacks_room;
use super::shard::Place;
use super::slot::{Fingerprint, Frame, Inline, SEIZED};
use crate::clock::Glance;
use crate::{Check, CheckError};

/// Checks of a batch whose cache misses are taken together: enough to keep the
/// memory busy, few enough that the lines are still there when it is their turn.
pub(crate) const BATCH: usize = 32;

/// A check with its hash worked out.
#[derive(Clone, Copy)]
pub(super) struct Located<'a> {
    pub(super) hash: u64,
    pub(super) shard: usize,
    pub(super) limit: &'a Limit,
    pub(super) cost: Cost,
}

impl Located<'_> {
    #[inline]
    pub(super) fn fingerprint(&self) -> Fingerprint {
        Fingerprint::new(self.hash ^ self.limit.id())
    }
}

/// A decision, and whether it is what it is for want of room alone: denied though
/// nothing is used up, or forced and not recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) decision: Decision,
    #[cfg_attr(not(feature = "policies"), expect(dead_code, reason = "the gate tells it"))]
    pub(crate) no_room: bool,
}

impl From<Decision> for Told {
    #[inline(always)]
    fn from(decision: Decision) -> Self {
        Told { decision, no_room: false }
    }
}

impl Told {
    /// For a check whose key, log entry or permit got no place.
    pub(super) fn without_room(decision: Decision, cost: Cost) -> Self {
        Told { decision, no_room: lacks_room(&decision, cost) }
    }
}

/// An ask that the hot path was not for, to go on with.
#[derive(Clone, Copy)]
struct Missed {
    hash: u64,
    elsewhere: Elsewhere,
}

/// Why a check was not decided in its slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Elsewhere {
    /// Somebody has the slot; it will be free in a moment.
    Busy,
    /// The slot holds something else, or there is none.
    Rare,
}

thread_local! {
    /// The frame this thread needed last. The coarse clock ticks once in thousands
    /// of decisions, so mostly it is the one needed next.
    static LAST_FRAME: Frame<Glance> = const { Frame::new(Glance::NONE) };
}

impl MemoryStore {
    /// Decides an ask for `units` now.
    ///
    /// The hot path is here in full and calls nothing: a key of up to 15 bytes, the
    /// coarse clock, a frame that is known, a counter in its home line, in its window,
    /// with units to spare. Whatever else there is ends in a call that begins anew.
    #[inline(always)]
    pub(crate) fn ask(&self, key: &[u8], limit: &Limit, units: u64) -> Result<Told, CheckError> {
        if key.len() > ONE_WORD {
            return self.ask_long(key, limit, units);
        }
        self.ask_hashed(self.hash(key), limit, units)
    }

    /// The same for keys of more than a word.
    #[inline(never)]
    fn ask_long(&self, key: &[u8], limit: &Limit, units: u64) -> Result<Told, CheckError> {
        self.ask_hashed(self.hash(key), limit, units)
    }

    #[inline(always)]
    fn ask_hashed(&self, hash: u64, limit: &Limit, units: u64) -> Result<Told, CheckError> {
        match LAST_FRAME.with(|frame| self.admit_quickly(frame, hash, limit, units)) {
            Ok(decision) => Ok(decision.into()),
            Err(elsewhere) => self.ask_rarely(Missed { hash, elsewhere }, limit, units),
        }
    }

    /// Whatever the hot path was not for. A slot that somebody has is waited for before
    /// it is touched again: every attempt takes its line away from who has it.
    #[inline(never)]
    fn ask_rarely(&self, missed: Missed, limit: &Limit, units: u64) -> Result<Told, CheckError> {
        let Missed { hash, mut elsewhere } = missed;
        let mut backoff = Backoff::new();
        loop {
            if elsewhere == Elsewhere::Busy {
                backoff.wait();
            }
            let glance = self.dial.glance();
            let Some(now) = glance.time() else { break };
            let admitted = LAST_FRAME.with(|frame| {
                if frame.is_of(limit, glance) || frame.set(limit, now, glance) {
                    self.admit_nearby(frame, hash, limit, units)
                } else {
                    Err(Elsewhere::Rare)
                }
            });
            match admitted {
                Ok(decision) => return Ok(decision.into()),
                Err(Elsewhere::Busy) => elsewhere = Elsewhere::Busy,
                Err(Elsewhere::Rare) => break,
            }
        }
        let shard = self.table.shard_of(hash);
        let check = Located { hash, shard, limit, cost: Cost::Ask(units) };
        self.decide_located(&check, &|| self.clock.now())
    }

    /// Decides one check at the time `time` says.
    #[inline]
    pub(crate) fn decide_one(
        &self,
        check: &Check<'_>,
        time: impl Fn() -> Timestamp,
    ) -> Result<Told, CheckError> {
        self.decide_located(&self.locate(check), &time)
    }

    /// Decides checks one by one, in order, with their cache misses overlapped:
    /// first what each will need is touched, and only then it is decided.
    pub(crate) fn decide_batch(
        &self,
        checks: &[Check<'_>],
        time: impl Fn(usize) -> Timestamp + Copy,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), CheckError> {
        if checks.iter().any(|check| check.limit.algorithm() == Algorithm::Concurrency) {
            return Err(CheckError::NeedsPermit);
        }
        decisions.reserve(checks.len());
        for (round, chunk) in checks.chunks(BATCH).enumerate() {
            let (mut hashes, mut homes) = ([0; BATCH], [0; BATCH]);
            for ((hash, home), check) in hashes.iter_mut().zip(&mut homes).zip(chunk) {
                *hash = self.hash(check.key);
                let fingerprint = Fingerprint::new(*hash ^ check.limit.id());
                *home = self.table.extent(self.table.shard_of(*hash)).home_word(fingerprint);
            }
            // In a loop of its own: the shorter it is, the more misses are under way
            // at once.
            std::hint::black_box(self.table.touch(&homes[..chunk.len()]));
            let time = move |index| time(round * BATCH + index);
            self.decide_touched(chunk, &hashes, &homes, time, decisions)?;
        }
        Ok(())
    }

    fn decide_touched(
        &self,
        checks: &[Check<'_>],
        hashes: &[u64; BATCH],
        homes: &[usize; BATCH],
        time: impl Fn(usize) -> Timestamp + Copy,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), CheckError> {
        // Mostly all checks of a batch are of one limit at one time.
        let frame = Frame::new(Timestamp::LAST);
        for (index, ((check, &hash), &home)) in checks.iter().zip(hashes).zip(homes).enumerate() {
            let now = time(index);
            let framed = frame.is_of(check.limit, now) || frame.set(check.limit, now, now);
            let decision = match check.cost {
                Cost::Ask(units) if framed => {
                    let tag = frame.tag(Fingerprint::new(hash ^ check.limit.id()));
                    let place = self.table.glimpse_at(home, tag);
                    place.and_then(|place| admit_at(place, tag, &frame, check.limit, units).ok())
                }
                _ => None,
            };
            decisions.push(match decision {
                Some(decision) => decision,
                None => {
                    self.decide_located(&self.located(hash, check), &move || time(index))?.decision
                }
            });
        }
        Ok(())
    }

    /// Touches what up to [`BATCH`] checks will need, so that their cache misses overlap.
    #[cfg(feature = "policies")]
    pub(crate) fn touch<'a>(&self, checks: impl Iterator<Item = (&'a [u8], &'a Limit)>) {
        let mut homes = [0; BATCH];
        let mut count = 0;
        for (home, (key, limit)) in homes.iter_mut().zip(checks) {
            let hash = self.hash(key);
            let fingerprint = Fingerprint::new(hash ^ limit.id());
            *home = self.table.extent(self.table.shard_of(hash)).home_word(fingerprint);
            count += 1;
        }
        std::hint::black_box(self.table.touch(&homes[..count]));
    }

    #[inline(always)]
    pub(super) fn locate<'a>(&self, check: &Check<'a>) -> Located<'a> {
        self.located(self.hash(check.key), check)
    }

    #[inline(always)]
    fn located<'a>(&self, hash: u64, check: &Check<'a>) -> Located<'a> {
        let shard = self.table.shard_of(hash);
        Located { hash, shard, limit: check.limit, cost: check.cost }
    }

    /// Admits units of a counter in its home line, of the frame's window, which is now; an
    /// error if that is not the case, or if they are none or more than there are, and
    /// then nothing has changed.
    ///
    /// Every instruction counts here: a processor overlaps the cache misses of two
    /// decisions only if both fit into what it looks ahead, and if no store in
    /// between goes to an address that depends on what was missed.
    #[inline(always)]
    fn admit_quickly(
        &self,
        frame: &Frame<Glance>,
        hash: u64,
        limit: &Limit,
        units: u64,
    ) -> Result<Decision, Elsewhere> {
        if !frame.is_of(limit, self.dial.glance()) {
            return Err(Elsewhere::Rare);
        }
        let fingerprint = Fingerprint::new(hash ^ limit.id());
        let tag = frame.tag(fingerprint);
        let extent = self.table.extent(self.table.shard_of(hash));
        let place = extent.glimpse_at_home(fingerprint, tag).ok_or(Elsewhere::Rare)?;
        admit_at(place, tag, frame, limit, units)
    }

    /// The same for a counter in its home line or one of the next.
    #[inline]
    fn admit_nearby(
        &self,
        frame: &Frame<Glance>,
        hash: u64,
        limit: &Limit,
        units: u64,
    ) -> Result<Decision, Elsewhere> {
        let fingerprint = Fingerprint::new(hash ^ limit.id());
        let tag = frame.tag(fingerprint);
        let extent = self.table.extent(self.table.shard_of(hash));
        let place = extent.glimpse(fingerprint, tag).ok_or(Elsewhere::Rare)?;
        admit_at(place, tag, frame, limit, units)
    }

    /// Decides a check wherever its state is.
    #[inline(never)]
    fn decide_located(
        &self,
        check: &Located<'_>,
        time: &dyn Fn() -> Timestamp,
    ) -> Result<Told, CheckError> {
        let mut backoff = Backoff::new();
        loop {
            match self.decide_in_place(check, time()) {
                Ok(decision) => return Ok(decision.into()),
                Err(Elsewhere::Busy) => backoff.wait(),
                Err(Elsewhere::Rare) => return self.decide_rare(check, time),
            }
        }
    }

    /// Decides on a counter in its slot, of the window we are in, whatever the
    /// answer.
    fn decide_in_place(&self, check: &Located<'_>, now: Timestamp) -> Result<Decision, Elsewhere> {
        let Located { limit, cost, .. } = *check;
        if limit.algorithm() != Algorithm::SlidingCounter {
            return Err(Elsewhere::Rare);
        }
        let now = limit.moment(now);
        let inline = Inline::counter(limit, &now).ok_or(Elsewhere::Rare)?;
        let tag = inline.tag(check.fingerprint());
        let place = self.table.extent(check.shard).glimpse(check.fingerprint(), tag);
        let place = place.ok_or(Elsewhere::Rare)?;
        let body = place.try_seize().ok_or(Elsewhere::Busy)?;
        if place.tag() == tag
            && let Some(mut counter) = inline.unpack(body)
            && let outcome = counter.step(limit, cost, &now)
            && let Some(body) = inline.pack(&counter)
        {
            place.release(body);
            return Ok(counter.report(limit, cost, &now, outcome));
        }
        place.release(body);
        Err(Elsewhere::Rare)
    }
}

/// Admits units of a counter that seems to be in this place.
#[inline(always)]
fn admit_at<T: Copy + PartialEq>(
    place: Place<'_>,
    tag: u64,
    frame: &Frame<T>,
    limit: &Limit,
    units: u64,
) -> Result<Decision, Elsewhere> {
    let body = place.exchange();
    if place.tag() == tag
        && let Some(decision) = frame.admit(body, limit, units)
    {
        place.release(body + units);
        return Ok(decision);
    }
    // Then it is theirs to release.
    if body == SEIZED {
        return Err(Elsewhere::Busy);
    }
    place.release(body);
    Err(Elsewhere::Rare)
}
