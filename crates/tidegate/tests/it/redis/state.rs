//! Parses values in Redis, independently of the code of the store, and compares them with states of
//! the core.

use tidegate::{Algorithm, Limit, Timestamp};
use tidegate_core::{Cell, Entries, State, WindowForm};

use super::client::Kept;

/// A state as plain numbers.
#[derive(Debug, PartialEq, Eq)]
pub enum Plain {
    /// Window index, previous and current count.
    Counter([u64; 3]),
    /// Window index and count.
    Fixed([u64; 2]),
    /// Time, debt and the tick of the debt.
    Bucket([u64; 3]),
    /// Times and costs.
    Entries(Vec<[u64; 2]>),
    /// The log form: times.
    Times(Vec<u64>),
    /// The forms with cells: the number of cells in a window, the pace, and the index, units, lag
    /// and last hit of every cell.
    Cells(u64, u64, Vec<[u64; 4]>),
    /// The number, the cost and the end of the lease of every permit.
    Permits(Vec<[u64; 3]>),
}

/// The largest power of two whose square is at most two windows, and whose product with a
/// window is at most 2^53.
pub fn radix(limit: &Limit) -> u64 {
    let window = u128::from(limit.window_us());
    let fits = |bits: &u32| {
        let radix = 1_u128 << bits;
        radix * radix <= 2 * window && radix * window <= 1 << 53
    };
    1 << (0..53).take_while(fits).last().expect("1 always fits")
}

/// Parses the value of a key under a limit.
pub fn parse(raw: &[u8], limit: &Limit) -> Plain {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte));
    let sevens = || raw[1..22].chunks(7).map(number).collect::<Vec<_>>();
    // The time until which a bucket is kept is not a part of its state.
    assert!(raw[0] != 0x85 || raw.len() == 29, "{raw:?}");
    match (limit.algorithm(), raw[0]) {
        (Algorithm::SlidingCounter, b'0'..=b'9') => {
            let value: u64 = std::str::from_utf8(raw).expect("digits").parse().expect("a number");
            let radix = radix(limit);
            Plain::Counter([value / radix / radix, value / radix % radix, value % radix])
        }
        (Algorithm::SlidingCounter, 0x83) => Plain::Counter(sevens().try_into().expect("three")),
        (Algorithm::FixedWindow, 0x84) => Plain::Fixed([number(&raw[1..8]), number(&raw[8..15])]),
        (Algorithm::TokenBucket, 0x85) => Plain::Bucket(sevens().try_into().expect("three")),
        (Algorithm::SlidingWindow, 0x88) => {
            let newest = number(&raw[1..8]);
            let time = |time: &[u8]| newest - newest.wrapping_sub(number(time)) % 65_536;
            Plain::Times(raw[8..].chunks(2).map(time).collect())
        }
        (Algorithm::SlidingWindow, mark @ 0x89..=0x8b) => {
            let (cells, units) = [(15, 2), (7, 3), (3, 5)][usize::from(mark - 0x89)];
            let (pace, newest) = (number(&raw[1..6]), number(&raw[6..13]));
            let bytes = if cells == 15 { 4 } else { 1 + 2 * units };
            let cell = |cell: &[u8]| {
                let [index, last] = [cell[0] >> 4, cell[0] & 15].map(u64::from);
                let age = newest.wrapping_sub(index) % 16;
                [newest - age, number(&cell[1..=units]), number(&cell[1 + units..]), last]
            };
            let sum_bytes = if cells == 3 { 6 } else { units };
            let (stored, sum) = raw[13..].split_at(raw.len() - 13 - sum_bytes);
            let stored: Vec<[u64; 4]> = stored.chunks(bytes).map(cell).collect();
            assert_eq!(stored.iter().map(|[_, units, ..]| units).sum::<u64>(), number(sum));
            Plain::Cells(cells, pace, stored)
        }
        (Algorithm::SlidingLog, 0x81) => {
            let entries = parse_entries(sevens()[0], &raw[22..]);
            let total: u64 = entries.iter().map(|[_, cost]| cost).sum();
            let newest = entries.last().expect("no empty log is kept")[0];
            assert_eq!((newest, total), (sevens()[1], sevens()[2]));
            Plain::Entries(entries)
        }
        (Algorithm::Concurrency, 0x86) => Plain::Permits(
            raw[8..]
                .chunks(40)
                .map(|permit| {
                    let numbers: Vec<u64> = permit.chunks(8).map(number).collect();
                    [numbers[0], numbers[1], numbers[2] + numbers[3]]
                })
                .collect(),
        ),
        _ => panic!("not a state of {limit}: {raw:?}"),
    }
}

fn parse_entries(oldest: u64, bytes: &[u8]) -> Vec<[u64; 2]> {
    let mut numbers = Vec::new();
    let (mut number, mut shift) = (0, 0);
    for &byte in bytes {
        number |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            numbers.push(number);
            (number, shift) = (0, 0);
        }
    }
    let mut entries = Vec::<[u64; 2]>::new();
    for number in numbers {
        match entries.last_mut() {
            Some(last) if number % 2 == 1 => last[1] = number / 2,
            Some(&mut [at, _]) => entries.push([at + number / 2, 1]),
            None => entries.push([oldest, 1]),
        }
    }
    entries
}

fn plain(state: &State) -> Plain {
    let list = |entries: &Entries| {
        Plain::Entries(entries.iter().map(|entry| [entry.at.as_micros(), entry.cost]).collect())
    };
    match state {
        State::SlidingLog(log) => list(log.entries()),
        State::SlidingWindow(window) if window.form() == WindowForm::Times => {
            Plain::Times(window.times().collect())
        }
        State::SlidingWindow(window) => {
            let numbers = |(index, cell): (u64, Cell)| [index, cell.units, cell.lag, cell.steps];
            let cells = window.cells().map(numbers).collect();
            Plain::Cells(window.form().cells(), window.pace(), cells)
        }
        State::SlidingCounter(c) => Plain::Counter([c.index, c.previous, c.current]),
        State::FixedWindow(window) => Plain::Fixed([window.index, window.count]),
        State::TokenBucket(b) => Plain::Bucket([b.at.as_micros(), b.debt, b.tick_us()]),
        State::Concurrency(permits) => {
            let held = permits.held();
            Plain::Permits(held.map(|(id, cost, ends)| [id.0, cost, ends.as_micros()]).collect())
        }
    }
}

/// Compares a value with a state that was advanced to `now`. The numbers must be equal, and the key
/// must have a TTL. If the state has expired, the key must not exist.
pub fn assert_kept(kept: &Kept, limit: &Limit, state: &State, now: Timestamp) {
    let expected = (state.expires_at(limit) > now).then(|| plain(state));
    let value = kept.value.as_ref().map(|raw| parse(raw, limit));
    assert_eq!(value, expected, "{limit} at {now:?}");
    assert_eq!(expected.is_some(), kept.ttl_ms > 0, "{limit} at {now:?}");
}
