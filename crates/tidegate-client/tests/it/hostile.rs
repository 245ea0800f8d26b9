//! Random and hostile header fields: nothing panics, and every time is bounded.

use tidegate_client::{Fields, LONGEST};

/// Parts of valid fields, and parts that make them invalid.
const PIECES: &[&str] = &[
    "\"",
    "api",
    ";",
    "r",
    "=",
    "0",
    "t",
    "30",
    ",",
    " ",
    "-",
    ".",
    "9999999999999999999999",
    "limit=",
    "remaining=",
    "reset=",
    "q=",
    "w=",
    "\\",
    "(",
    ")",
    ":",
    "?1",
    "@",
    "%\"",
    "Tue, ",
    "14 Nov 2023 ",
    "14-Nov-23 ",
    "22:13:20",
    " GMT",
    "Tue Nov ",
    " 1 ",
    "2023",
    "\u{fc}",
    "\u{0}",
    "\t",
    "1.5",
    "*",
    "\"api\";r=",
    "\"api\";r=0;t=30",
    "remaining=0, reset=",
];

const NAMES: &[&str] = &[
    "Retry-After",
    "Date",
    "RateLimit",
    "RateLimit-Policy",
    "RateLimit-Limit",
    "RateLimit-Remaining",
    "RateLimit-Reset",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
];

/// A small random number generator with a fixed seed, so that failures are reproducible.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }
}

#[test]
fn bounds_every_time_for_random_fields() {
    let mut chance = Chance(7);
    let mut read_something = 0;
    for round in 0..200_000 {
        let mut fields = Vec::new();
        for _ in 0..=chance.below(4) {
            // Mostly short, because long ones are hardly ever valid.
            let pieces = 1 + chance.below(3) * chance.below(5);
            let value: String = (0..pieces).map(|_| PIECES[chance.below(PIECES.len())]).collect();
            fields.push((NAMES[chance.below(NAMES.len())], value));
        }
        let status = [200, 429, 503][chance.below(3)];
        let now_ms = [0, 1_700_000_000_000, u64::MAX][chance.below(3)];
        let bytes = fields.iter().map(|(name, value)| (*name, value.as_bytes()));
        let read = Fields::read(status, bytes, now_ms);
        read_something += u32::from(read != Fields::default());
        for time in [read.wait, read.pause].into_iter().flatten() {
            assert!(time <= LONGEST, "round {round}: {fields:?} gave {read:?}");
        }
    }
    assert!(read_something > 1000, "only {read_something} rounds read anything");
}

#[test]
fn ignores_invalid_utf8_and_oversized_fields() {
    let long = "1".repeat(9000);
    let rows: &[&[(&str, &[u8])]] = &[
        &[("Retry-After", b"\xff\xfe")],
        &[("Retry-After", long.as_bytes())],
        &[("RateLimit", b"\"a\";r=0;t=\xe4")],
    ];
    for fields in rows {
        assert_eq!(Fields::read(429, fields.iter().copied(), 0), Fields::default());
    }
    let many = std::iter::repeat_n(("Retry-After", &b"1"[..]), 100_000);
    assert_eq!(Fields::read(429, many, 0), Fields::default());
}
