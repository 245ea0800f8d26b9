//! A fuzz target that runs as an ordinary test on the stable toolchain.
//!
//! Each iteration generates bytes from a seed and interprets them as a limit text, as
//! operations on the packed queue, or as a limit and operations on its state. The last
//! two are compared with their models. The seeds are the same in every run.
//!
//! - `TIDEGATE_FUZZ_ITERS`: the number of iterations of each target;
//! - `TIDEGATE_FUZZ_SEED`: the first seed. A failure prints the seed that reproduces it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tidegate_core::{Algorithm, Cost, Limit, bounds};

use crate::checked_state::CheckedState;
use crate::entries::{Operation, Queues};

fn from_env(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => otherwise,
    }
}

fn fuzz(iterations: u64, target: fn(&mut Bytes)) {
    let first = from_env("TIDEGATE_FUZZ_SEED", 0);
    for seed in first..first + from_env("TIDEGATE_FUZZ_ITERS", iterations) {
        let outcome = catch_unwind(AssertUnwindSafe(|| target(&mut Bytes { state: seed })));
        assert!(outcome.is_ok(), "TIDEGATE_FUZZ_SEED={seed} TIDEGATE_FUZZ_ITERS=1 reproduces it");
    }
}

/// An endless sequence of bytes determined by its seed (a mixed Weyl sequence).
struct Bytes {
    state: u64,
}

impl Bytes {
    fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ (word >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        word = (word ^ (word >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        word ^ (word >> 32)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.word() % end
    }

    fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).expect("below a usize")
    }

    fn byte(&mut self) -> u8 {
        self.word().to_le_bytes()[7]
    }

    fn short(&mut self, end: u16) -> u16 {
        u16::try_from(self.below(end.into())).expect("below a u16")
    }

    /// A number that is mostly small, sometimes of any size, and sometimes at an edge.
    fn number(&mut self) -> u64 {
        match self.below(8) {
            0 => self.word(),
            1 => u64::MAX - self.below(3),
            2 => 1 << self.below(64),
            3 | 4 => self.word() >> self.below(64),
            _ => self.below(5),
        }
    }
}

const WORDS: [&str; 24] = [
    "0",
    "1",
    "5",
    "64",
    "65",
    "1000000000000",
    "1000000000001",
    "99999999999999999999",
    "per",
    "concurrent",
    "lease",
    "buckets",
    "burst",
    "1ms",
    "10s",
    "366d",
    "53w",
    "1y",
    "sliding-log",
    "sliding-window",
    "sliding-counter",
    "fixed-window",
    "token-bucket",
    "concurrency",
];

const SEEDS: [&str; 6] = [
    "10 per 1s",
    "5 per 90m sliding-log",
    "7 per 1d sliding-window",
    "600 per 1m token-bucket burst 50",
    "9 per 2w fixed-window",
    "3 concurrent lease 30s",
];

/// A valid text with a few bytes changed, or random words, or random bytes.
fn text(bytes: &mut Bytes) -> String {
    let mut text = match bytes.below(4) {
        0 => {
            let words: Vec<&str> =
                (0..bytes.below(9)).map(|_| WORDS[bytes.index(WORDS.len())]).collect();
            words.join(" ").into_bytes()
        }
        1 => (0..bytes.below(40)).map(|_| bytes.byte()).collect(),
        _ => SEEDS[bytes.index(SEEDS.len())].as_bytes().to_vec(),
    };
    for _ in 0..bytes.below(4) {
        let index = bytes.index(text.len() + 1);
        match bytes.below(6) {
            0 => text.insert(index, bytes.byte()),
            1 => text.insert(index, b"0123456789 -.\t\n"[bytes.index(15)]),
            2 => text.truncate(index),
            3 => {
                let word = WORDS[bytes.index(WORDS.len())];
                text.splice(index..index, format!(" {word} ").into_bytes());
            }
            4 => text.extend_from_within(index..),
            _ if index < text.len() => drop(text.remove(index)),
            _ => {}
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn limit_texts(bytes: &mut Bytes) {
    let text = text(bytes);
    match text.parse::<Limit>() {
        Ok(limit) => {
            assert!(limit.count() <= bounds::MAX_COUNT, "{text:?}");
            let windows = bounds::MIN_WINDOW_US..=bounds::MAX_WINDOW_US;
            assert!(windows.contains(&limit.window_us()), "{text:?}");
            assert_eq!(limit.to_string().parse::<Limit>(), Ok(limit), "{text:?}");
        }
        Err(error) => {
            let message = error.to_string();
            let lines: Vec<&str> = message.split('\n').collect();
            assert_eq!(lines.len(), 3, "{text:?}: {message}");
            assert!(lines[1].chars().count() <= 82, "{text:?}: {message}");
            assert_eq!(lines[2].trim().trim_matches('^'), "", "{text:?}: {message}");
            let start = error.span().expect("a text has places").start;
            assert!(start <= text.len(), "{text:?}: {start}");
        }
    }
}

fn packed_queue(bytes: &mut Bytes) {
    let mut queues = Queues::default();
    for _ in 0..bytes.below(60) {
        let operation = match bytes.below(12) {
            0 => Operation::Fill(bytes.below(1 << 30), 1 + bytes.below(200), bytes.short(1_500)),
            1 => Operation::Fill(1, 1, bytes.short(5_000)),
            2 => Operation::PushEarlier(bytes.number(), bytes.number()),
            3 => Operation::PopNewest(bytes.short(6)),
            4 => Operation::PopNewest(bytes.short(2_500)),
            5 | 6 => Operation::DropThrough(bytes.short(3_000), bytes.below(2) == 0),
            7 => Operation::DropFurther(bytes.number()),
            _ => Operation::Push(bytes.number(), bytes.number()),
        };
        queues.apply(operation);
        queues.check();
    }
}

fn limit(bytes: &mut Bytes) -> Limit {
    let algorithm = Algorithm::ALL[bytes.index(Algorithm::ALL.len())];
    let count = match bytes.below(3) {
        0 => bytes.number() % (bounds::MAX_COUNT + 1),
        _ => bytes.below(12),
    };
    let longest = bounds::MAX_WINDOW_US - bounds::MIN_WINDOW_US;
    let window_us = bounds::MIN_WINDOW_US + bytes.number() % longest;
    let window = Duration::from_micros(window_us);
    let limit = Limit::new(count, window, algorithm).expect("within bounds");
    match algorithm {
        Algorithm::TokenBucket if bytes.below(2) == 0 => {
            limit.with_burst(1 + bytes.number() % bounds::MAX_COUNT).expect("within bounds")
        }
        _ => limit,
    }
}

fn states(bytes: &mut Bytes) {
    let limit = limit(bytes);
    let mut checked = CheckedState::new(limit);
    let window = limit.window_us();
    let mut now = bytes.number() / 2;
    for _ in 0..bytes.below(50) {
        now = match bytes.below(8) {
            0 => now.saturating_sub(bytes.number() % (3 * window)),
            1 => now + window - 1 + bytes.below(3),
            2 => now / window * window + window - bytes.below(2),
            3 | 4 => now + bytes.below(window),
            _ => now + bytes.below(1 + window / 16),
        };
        let capacity = limit.capacity();
        let units = match bytes.below(4) {
            0 => bytes.number(),
            1 => capacity.saturating_sub(1) + bytes.below(3),
            2 => bytes.below(capacity + 1),
            _ => bytes.below(3),
        };
        let cost = match bytes.below(8) {
            0 => Cost::Force(units),
            1 => Cost::Refund(units),
            _ => Cost::Ask(units),
        };
        let _ = checked.step(cost, now);
        checked.check_costs([0, 1, units, capacity, capacity + 1].into_iter(), now);
    }
}

#[test]
fn fuzz_limit_texts() {
    fuzz(200_000, limit_texts);
}

#[test]
fn fuzz_the_packed_queue() {
    fuzz(500, packed_queue);
}

#[test]
fn fuzz_states() {
    fuzz(10_000, states);
}
