//! Decodes states as `request.lua` replies with them.
//!
//! For most algorithms the reply is the stored value, which the file of the algorithm in `lua/`
//! describes. A log or permits can be large, so the reply is a summary for each run of equal
//! requests: the sum of the costs, the newest time, and the time at which the missing units are
//! freed. From these [`Summary::equivalent_state`] builds a state that decides as the whole log
//! would, so the code of the core computes the decision.
//!
//! A value with open grants is always replied whole, and is decoded to a [`LeasedState`].

use smallvec::SmallVec;
use tidegate_core::{
    Algorithm, Cell, Entries, Entry, FixedWindow, Grant, GrantId, LeasedState, Limit, Permits,
    SlidingCounter, SlidingLog, SlidingWindow, State, Timestamp, TokenBucket, WindowForm, bounds,
};

/// The first byte of a value with open grants; see `lua/leased.lua`.
const GRANTED: u8 = 0x8c;
/// The bytes of an open grant.
const GRANT_BYTES: usize = 24;
/// The bytes of a log before its entries.
const LOG_HEADER: usize = 22;

/// Whether the reply for a state is a list of summaries.
pub(super) fn is_summarized(limit: &Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::SlidingLog | Algorithm::Concurrency)
}

/// The radix of a `sliding-counter` that is stored as an integer: the largest power of two for
/// which states stay below 2^53 until the year 2112, and a count times the window does, too. It
/// depends only on the window, so a limit whose number changes still reads the same counts.
pub(super) fn radix(limit: &Limit) -> u64 {
    let window_us = limit.window_us();
    let squared = 1_u64 << ((2 * window_us).ilog2() / 2);
    let most = bounds::MAX_PRODUCT / window_us;
    squared.min(1 << most.ilog2())
}

/// Whether a value in a reply has open grants. The last byte of a summary is 0, because it belongs
/// to a time below 2^53.
pub(super) fn has_grants(limit: &Limit, value: &[u8]) -> bool {
    match is_summarized(limit) {
        true => value.last().is_some_and(|last| *last != 0),
        false => value.first() == Some(&GRANTED),
    }
}

/// Decodes a stored value with or without open grants; `None` if it is not a state.
pub(super) fn decode_leased(limit: &Limit, value: Option<&[u8]>) -> Option<LeasedState> {
    let (state, grants) = match value {
        Some([GRANTED, rest @ .., number]) => {
            let grant_bytes = usize::from(*number) * GRANT_BYTES;
            let (state, grants) = rest.split_at_checked(rest.len().checked_sub(grant_bytes)?)?;
            let grants = grants.chunks(GRANT_BYTES).map(decode_grant).collect();
            ((!state.is_empty()).then_some(state), grants)
        }
        state => (state, Vec::new()),
    };
    let state = match (limit.algorithm(), state) {
        (Algorithm::SlidingLog, Some(state)) => State::SlidingLog(decode_log(state)?),
        (_, state) => decode(limit, state)?,
    };
    LeasedState::from_parts(state, grants)
}

fn decode_grant(bytes: &[u8]) -> Grant {
    let [id, units, deadline, duration_us] =
        [&bytes[..7], &bytes[7..14], &bytes[14..21], &bytes[21..]].map(number);
    Grant { id: GrantId(id), units, deadline: Timestamp::from_micros(deadline), duration_us }
}

fn decode_log(value: &[u8]) -> Option<SlidingLog> {
    let (header, mut bytes) = value.split_at_checked(LOG_HEADER)?;
    if header[0] != 0x81 {
        return None;
    }
    let mut entries = Entries::new();
    let (mut at, mut is_first) = (number(&header[1..8]), true);
    while !bytes.is_empty() {
        let distance = take_varint(&mut bytes)? >> 1;
        // The distance of the oldest entry is ignored.
        at = if is_first { at } else { at.checked_add(distance)? };
        is_first = false;
        let mut after = bytes;
        let cost = match take_varint(&mut after) {
            Some(number) if number % 2 == 1 => {
                bytes = after;
                number >> 1
            }
            _ => 1,
        };
        entries.push(Entry { at: Timestamp::from_micros(at), cost });
    }
    Some(SlidingLog::from(entries))
}

/// Takes the number of seven bits a byte that is at the start of `bytes`.
fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let length = bytes.iter().position(|byte| *byte < 0x80)? + 1;
    let (digits, rest) = bytes.split_at_checked(length).filter(|_| length <= 9)?;
    *bytes = rest;
    Some(digits.iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f)))
}

/// Decodes a stored value without grants that is not summarized; `None` if it is not a state.
pub(super) fn decode(limit: &Limit, value: Option<&[u8]>) -> Option<State> {
    let Some(value) = value else { return Some(State::new(limit)) };
    Some(match limit.algorithm() {
        Algorithm::SlidingCounter => State::SlidingCounter(decode_counter(limit, value)?),
        Algorithm::FixedWindow => {
            let [index, count] = numbers(0x84, value)?;
            State::FixedWindow(FixedWindow { index, count })
        }
        Algorithm::TokenBucket => {
            // The last number is the time until which the value is kept.
            let [at, debt, tick_us, _] = numbers(0x85, value)?;
            State::TokenBucket(TokenBucket::new(Timestamp::from_micros(at), debt, tick_us))
        }
        Algorithm::SlidingWindow => State::SlidingWindow(decode_window(value)?),
        Algorithm::SlidingLog | Algorithm::Concurrency => return None,
    })
}

fn decode_counter(limit: &Limit, value: &[u8]) -> Option<SlidingCounter> {
    if !value.first()?.is_ascii_digit() {
        let [index, previous, current] = numbers(0x83, value)?;
        return Some(SlidingCounter { index, previous, current });
    }
    let number: u64 = std::str::from_utf8(value).ok()?.parse().ok()?;
    let (radix, counts) = (radix(limit), number % (radix(limit) * radix(limit)));
    let index = number / radix / radix;
    Some(SlidingCounter { index, previous: counts / radix, current: counts % radix })
}

/// The numbers of seven bytes each behind a mark.
fn numbers<const N: usize>(mark: u8, value: &[u8]) -> Option<[u64; N]> {
    let (&first, rest) = value.split_first()?;
    let (chunks, rest) = rest.as_chunks::<7>();
    let chunks: &[[u8; 7]; N] = chunks.try_into().ok()?;
    (first == mark && rest.is_empty()).then(|| chunks.map(|bytes| number(&bytes)))
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

fn decode_window(value: &[u8]) -> Option<SlidingWindow> {
    let (&mark, rest) = value.split_first()?;
    let (form, unit_bytes, lag_bytes, sum_bytes) = match mark {
        0x88 => {
            let (newest, times) = rest.split_at_checked(7)?;
            let newest = number(newest);
            let times: Option<SmallVec<[u64; 20]>> =
                times.chunks(2).map(|time| latest(newest, number(time), 1 << 16)).collect();
            return SlidingWindow::from_times(&times?);
        }
        0x89 => (WindowForm::Cells15, 2, 1, 2),
        0x8a => (WindowForm::Cells7, 3, 3, 3),
        0x8b => (WindowForm::Cells3, 5, 5, 6),
        _ => return None,
    };
    let (head, rest) = rest.split_at_checked(12)?;
    let (cells, sum) = rest.split_at_checked(rest.len().checked_sub(sum_bytes)?)?;
    let (pace, newest) = (number(&head[..5]), number(&head[5..]));
    let mut list = SmallVec::<[(u64, Cell); 16]>::new();
    for cell in cells.chunks(1 + unit_bytes + lag_bytes) {
        let (units, lag) = cell.get(1..)?.split_at_checked(unit_bytes)?;
        let index = latest(newest, u64::from(cell[0] >> 4), 16)?;
        let steps = u64::from(cell[0] & 0xf);
        list.push((index, Cell { units: number(units), lag: number(lag), steps }));
    }
    let units: u64 = list.iter().map(|(_, cell)| cell.units).sum();
    let window = SlidingWindow::from_cells(form, pace, &list);
    window.filter(|_| units == number(sum))
}

/// The largest number up to `newest` with this remainder; `None` if there is none.
fn latest(newest: u64, remainder: u64, modulus: u64) -> Option<u64> {
    let distance = (newest % modulus + modulus - remainder) % modulus;
    newest.checked_sub(distance)
}

/// The summary of a log or of permits for one run of equal requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Summary {
    /// The sum of the costs.
    pub(super) total: u64,
    /// The time of the newest entry, or the end of the last lease.
    newest_us: u64,
    /// The time at which a denied request of the run has room.
    freeing_us: u64,
}

impl Summary {
    /// Decodes the first summary of a reply. Returns it and the rest.
    pub(super) fn decode(reply: &[u8]) -> Option<(Self, &[u8])> {
        let (numbers, rest) = reply.split_first_chunk::<24>()?;
        let (numbers, _) = numbers.as_chunks::<8>();
        let [total, newest_us, freeing_us] =
            [numbers[0], numbers[1], numbers[2]].map(u64::from_le_bytes);
        Some((Summary { total, newest_us, freeing_us }, rest))
    }

    /// A state of two entries that decides as the whole state. The first entry frees the units that
    /// a denied request lacks, and the second one holds the rest.
    pub(super) fn equivalent_state(&self, limit: &Limit, now: Timestamp, lacking: u64) -> State {
        let mut entries = Entries::new();
        let lacking = lacking.min(self.total);
        for (micros, cost) in [(self.freeing_us, lacking), (self.newest_us, self.total - lacking)] {
            entries.push(Entry { at: Timestamp::from_micros(micros), cost });
        }
        if limit.algorithm() == Algorithm::SlidingLog {
            return State::SlidingLog(SlidingLog::from(entries));
        }
        let held = entries.iter().map(|entry| (entry.cost, entry.at));
        State::Concurrency(Permits::until(now, held))
    }
}
