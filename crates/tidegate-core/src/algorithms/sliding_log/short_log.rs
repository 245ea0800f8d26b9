//! A short log as a store packs it: the times of a few units, decided on in place.
//!
//! A log of any length is a queue on the heap ([`Entries`]). But most clients are far below their
//! limit, so most logs are short, and reading one from the heap would take longer than deciding. A
//! short log therefore fits a packed state:
//!
//! ```text
//!   head    newest time 20 | entries 6 | units 6
//!   words   a time for each unit, newest first, without gaps
//! ```
//!
//! All times are at most a window before the newest one, so the words keep only as many of their
//! low bits as the window has. For a minute these are 26 bits, and 14 units fit. The head keeps the
//! low bits of the newest time, and the deadline determines the others.
//!
//! A new time is shifted in at the low end. An expired one needs no change to the words: it is no
//! longer among the first `units`.

use super::SlidingLog;
use crate::algorithms::AlgorithmState;
use crate::limit::WindowPosition;
use crate::packed::with_low_bits;
use crate::{
    Attempt, Cost, Decision, Entries, Entry, Limit, Packed, PackedWords, ResetAfter, Timestamp,
};

/// The number of low bits of the newest time in the head. A deadline step is 2^19 us.
const NEWEST_BITS: u32 = 20;
/// The number of bits of each number of units and entries. The shortest window takes 10 bits for a
/// time, so at most 38 units fit.
const COUNT_BITS: u32 = 6;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
const WORDS: usize = Packed::WORDS;
/// The number of bits for the times of all units.
const TIMES_BITS: u64 = WORDS as u64 * u64::BITS as u64;

/// The number of log entries of a packed log, from its head.
pub(crate) fn packed_entries(head: u64) -> u64 {
    head >> COUNT_BITS & COUNT_MASK
}

impl SlidingLog {
    /// Packs the log. Returns `None` if it is too long.
    pub(crate) fn pack(&self, limit: &Limit) -> Option<Packed> {
        let mut short = ShortLog::empty(limit, [0; WORDS]);
        let Some(oldest) = self.entries.iter().next() else { return Some(Packed::default()) };
        let newest_at = self.entries.newest_at()?;
        let is_within_window = newest_at.as_micros() - oldest.at.as_micros() < short.window_us;
        if !is_within_window || !short.has_room(self.entries.total()) {
            return None;
        }
        for entry in self.entries.iter() {
            short.push(entry.cost, entry.at.as_micros());
        }
        Packed::until(short.expires_at(limit), short.head(), short.words)
    }

    /// Packs the log if it takes at most half of the room that a packed log has. A log that was
    /// packed whenever it fits could change its form with every other request.
    #[inline]
    pub fn pack_if_short(&self, limit: &Limit) -> Option<Packed> {
        let room = ShortLog::empty(limit, [0; WORDS]);
        let is_short = room.has_room(self.entries.total().saturating_mul(2));
        is_short.then(|| self.pack(limit)).flatten()
    }

    /// Restores a log that was packed.
    pub(crate) fn unpack(limit: &Limit, packed: &Packed) -> Self {
        let short = ShortLog::unpack(limit, packed.head(), packed.deadline_us(), packed.words);
        let mut entries = Entries::new();
        for number in (0..short.units).rev() {
            entries.push(Entry { at: Timestamp::from_micros(short.time_us(number)), cost: 1 });
        }
        SlidingLog { entries }
    }
}

/// Decides on a packed log in place. Returns `None`, and leaves it unchanged, if it has to be
/// unpacked: if it does not have room for the units, if it would become empty, or if its newest
/// time is later than now, because the clock stepped back.
#[inline(always)]
pub(crate) fn decide_short_log<W: PackedWords>(
    packed: &mut Packed<W>,
    limit: &Limit,
    attempt: Attempt,
    admitted: bool,
) -> Option<Decision> {
    let Cost::Ask(units) = attempt.cost else { return None };
    if !packed.may_be_charged(limit, attempt.now.as_micros()) {
        return None;
    }
    let now = limit.window_position(attempt.now);
    let (head, deadline_us) = (packed.head(), packed.deadline_us());
    let mut log = ShortLog::unpack(limit, head, deadline_us, &mut packed.words);
    if log.newest_us > now.at.as_micros() {
        return None;
    }
    log.advance(limit, &now);
    let is_charged = admitted && units <= log.available(limit, &now);
    if is_charged && !log.has_room(units) {
        return None;
    }
    let decision = log.apply_and_report(limit, &Attempt::new(units, now.at), &now, admitted);
    if log.units == 0 {
        // The deadline would become earlier.
        return None;
    }
    let (head, deadline) = (log.head(), Packed::deadline_at(log.expires_at(limit))?);
    packed.body = Packed::body(deadline, head);
    Some(decision)
}

/// The units of a short log, with access to the words of their times.
struct ShortLog<W> {
    units: u64,
    /// The number of different times.
    entries: u64,
    newest_us: u64,
    window_us: u64,
    /// The number of bits of each time.
    bits: u32,
    words: W,
}

impl<W: PackedWords> ShortLog<W> {
    #[inline(always)]
    fn empty(limit: &Limit, words: W) -> Self {
        let window_us = limit.window_us();
        let bits = u64::BITS - window_us.leading_zeros();
        ShortLog { units: 0, entries: 0, newest_us: 0, window_us, bits, words }
    }

    #[inline(always)]
    fn unpack(limit: &Limit, head: u64, deadline_us: u64, words: W) -> Self {
        let mut log = ShortLog::empty(limit, words);
        log.units = head & COUNT_MASK;
        log.entries = packed_entries(head);
        if log.units > 0 {
            // The newest is a window old by the deadline, and was not a deadline step earlier.
            let latest_us = deadline_us - log.window_us;
            log.newest_us = with_low_bits(latest_us, head >> (2 * COUNT_BITS), NEWEST_BITS);
        }
        log
    }

    #[inline(always)]
    fn head(&self) -> u64 {
        let newest = self.newest_us & ((1 << NEWEST_BITS) - 1);
        newest << (2 * COUNT_BITS) | self.entries << COUNT_BITS | self.units
    }

    /// Whether that many units more fit.
    #[inline(always)]
    fn has_room(&self, units: u64) -> bool {
        units <= TIMES_BITS && (self.units + units) * u64::from(self.bits) <= TIMES_BITS
    }

    /// The time of the unit with this number, counted from the newest.
    #[inline(always)]
    fn time_us(&self, number: u64) -> u64 {
        let at = number * u64::from(self.bits);
        let (word, shift) = ((at / 64) as usize, at % 64);
        // No time extends beyond the last word. A shift by 64 is not defined, so it is done in two
        // steps.
        let after = self.words.get((word + 1).min(WORDS - 1));
        let low = self.words.get(word) >> shift | after << 1 << (63 - shift);
        self.newest_us - (self.newest_us.wrapping_sub(low) & ((1 << self.bits) - 1))
    }

    /// Adds units at a time that is not before the newest. They must fit.
    #[inline(always)]
    fn push(&mut self, units: u64, at_us: u64) {
        let is_new = self.units == 0 || at_us > self.newest_us;
        self.entries += u64::from(is_new && units > 0);
        let bits = self.bits;
        for _ in 0..units {
            let mut carried = at_us & ((1 << bits) - 1);
            for number in 0..WORDS {
                let word = self.words.get(number);
                self.words.set(number, word << bits | carried);
                carried = word >> (u64::BITS - bits);
            }
            self.newest_us = at_us;
        }
        self.units += units;
    }
}

impl<W: PackedWords> AlgorithmState for ShortLog<W> {
    #[inline(always)]
    fn advance(&mut self, _limit: &Limit, now: &WindowPosition) {
        let now_us = now.at.as_micros();
        let mut before_us = None;
        while self.units > 0 {
            let oldest_us = self.time_us(self.units - 1);
            if oldest_us + self.window_us > now_us {
                break;
            }
            self.units -= 1;
            self.entries -= u64::from(before_us != Some(oldest_us));
            before_us = Some(oldest_us);
        }
    }

    #[inline(always)]
    fn available(&self, limit: &Limit, _now: &WindowPosition) -> u64 {
        limit.count().saturating_sub(self.units)
    }

    #[inline(always)]
    fn wait_us(&self, limit: &Limit, cost: u64, now: &WindowPosition) -> u64 {
        match (self.units + cost).saturating_sub(limit.count()) {
            0 => 0,
            to_free => {
                let freed_by_us = self.time_us(self.units - to_free);
                self.window_us - (now.at.as_micros() - freed_by_us)
            }
        }
    }

    #[inline(always)]
    fn reset_after(&self, limit: &Limit, now: &WindowPosition) -> ResetAfter {
        let counts = self.units > 0 && limit.count() > 0;
        let passed_us = now.at.as_micros() - self.newest_us;
        ResetAfter::from_micros(if counts { self.window_us - passed_us } else { 0 })
    }

    #[inline(always)]
    fn charge(&mut self, _limit: &Limit, units: u64, attempt: &Attempt, _now: &WindowPosition) {
        self.push(units, attempt.now.as_micros());
    }

    /// Refunds are made on the unpacked log.
    fn refund(&mut self, _limit: &Limit, _units: u64) {
        debug_assert!(false, "a packed log is only charged in place");
    }

    #[inline(always)]
    fn expires_at(&self, _limit: &Limit) -> Timestamp {
        Timestamp::from_micros(self.newest_us).plus_micros(self.window_us)
    }
}
