//! Seeded traces, decided by the binary and by a naive limiter, and compared with committed
//! digests. The digests pin the decisions, and the naive limiter explains a difference.

use std::fmt::Write as _;

use tidegate_testkit::Random;

use super::naive_limiter::{self, Event, Kind, Limit};
use crate::cli_harness::{decisions, sha256, tidegate_reading};

const EVENTS: usize = 20_000;
const KEYS: u64 = 200;
const SECOND_US: i128 = 1_000_000;

/// The contents of a trace besides ordered requests of cost 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trace {
    Steady,
    /// Costs from 0 to 4, and a clock that jumps and steps back: see [`ROUND`].
    Rough,
    /// Costs from -2 to 3.
    Refunds,
}

/// Returns bursts of one key between requests of all keys, with low numbers more often.
fn events(trace: Trace) -> Vec<Event> {
    let mut random = Random(trace as u64 + 1);
    let mut time_us: i128 = 1_700_000_000 * SECOND_US;
    let mut events = Vec::with_capacity(EVENTS);
    let mut stormy = false;
    while events.len() < EVENTS {
        if trace == Trace::Rough {
            let calm = !std::mem::replace(&mut stormy, events.len() % ROUND < STORM);
            time_us += match (stormy, calm) {
                (true, true) => ahead_us(&mut random),
                (true, false) => -back_us(&mut random),
                (false, _) => 0,
            };
        }
        let pick = random.below(KEYS);
        let key = format!("user:{}", random.below(pick + 1));
        let (burst, pace_us) = match random.below(10) {
            _ if stormy => (1 + random.below(8), 3),
            0 => (5 + random.below(30), 20_000),
            1 => (5 + random.below(10), 2),
            _ => (1, 30_000),
        };
        for _ in 0..burst {
            time_us += i128::from(random.below(pace_us));
            let cost = match trace {
                Trace::Steady => 1,
                Trace::Rough => i128::from(random.below(5)),
                Trace::Refunds => i128::from(random.below(6)) - 2,
            };
            events.push(Event { time_us, key: key.clone(), cost });
        }
    }
    events.truncate(EVENTS);
    events
}

/// The number of events from one storm to the next, and the length of a storm.
///
/// A storm begins with a jump ahead; then the clock steps back repeatedly while hardly any time
/// passes. Between storms the clock runs normally. So no state expires before the clock steps back:
/// an expired state might already be dropped.
const ROUND: usize = 2_000;
const STORM: usize = 300;

/// Returns days or years: more than a storm steps back.
fn ahead_us(random: &mut Random) -> i128 {
    let least_s = if random.below(4) == 0 { 366 * 86_400 } else { 2 * 86_400 };
    i128::from(least_s + random.below(least_s)) * SECOND_US
}

/// Returns a step back: often none, else one or a few seconds, or up to an hour.
fn back_us(random: &mut Random) -> i128 {
    let step_s = match random.below(8) {
        0 => 1,
        1 => random.below(20),
        2 => random.below(3_600),
        _ => 0,
    };
    i128::from(step_s) * SECOND_US
}

fn csv(events: &[Event]) -> String {
    let mut text = String::from("time_us,key,cost\n");
    for Event { time_us, key, cost } in events {
        writeln!(text, "{time_us},{key},{cost}").expect("memory");
    }
    text
}

fn limit(text: &str) -> Limit {
    let words: Vec<&str> = text.split(' ').collect();
    let seconds: i128 = words[2].trim_end_matches('s').parse().expect(text);
    let kind = match words[3] {
        "sliding-log" => Kind::Log,
        "sliding-window" => Kind::Window,
        "sliding-counter" => Kind::Counter,
        "fixed-window" => Kind::Fixed,
        "token-bucket" => Kind::Tokens,
        other => panic!("{other}"),
    };
    Limit { kind, count: words[0].parse().expect(text), window_us: seconds * SECOND_US }
}

/// Shows where two strings of decisions differ.
#[track_caller]
fn assert_same(ours: &str, naive: &str, events: &[Event]) {
    assert_eq!(ours.len(), naive.len());
    if let Some(at) = ours.bytes().zip(naive.bytes()).position(|(a, b)| a != b) {
        let before: Vec<_> = events[..at].iter().filter(|e| e.key == events[at].key).collect();
        let recent = &before[before.len().saturating_sub(20)..];
        panic!("event {at}, {:?}: ours {}; before it {recent:#?}", events[at], &ours[at..=at]);
    }
}

/// Traces, limits and the digests of their decisions.
const DIGESTS: &[(Trace, &[&str], &str)] = &[
    (
        Trace::Steady,
        &["10 per 10s sliding-log"],
        "057695557c6cdad0280efe927e4b287524749d15e5b4df60b2e800a3404929bb",
    ),
    (
        Trace::Steady,
        &["10 per 10s sliding-window"],
        "057695557c6cdad0280efe927e4b287524749d15e5b4df60b2e800a3404929bb",
    ),
    (
        Trace::Steady,
        &["30 per 30s sliding-window"],
        "ca3c3ec561d622e7f03f16b1cc250bc541b82da25057c154acfd21d16dc9f9ab",
    ),
    (
        Trace::Rough,
        &["30 per 30s sliding-window"],
        "b80410ee9dd12d33b1f4d491ffad8612b8bbe463859f4a4177e86c646de09a43",
    ),
    (
        Trace::Refunds,
        &["10 per 10s sliding-window"],
        "4b3751263d2787fef8eed194c4283d54d0d864e6a77d4898148576750c567d96",
    ),
    (
        Trace::Steady,
        &["10 per 10s sliding-counter"],
        "ed813861d70e3f8a243da1c642488f2bc08cafad9cdd9641a70332a2d5357d38",
    ),
    (
        Trace::Steady,
        &["10 per 10s fixed-window"],
        "d8200a5f9375de429889506c375f09d1d597f2019158d8ae4fef1c4820f45ec4",
    ),
    (
        Trace::Steady,
        &["10 per 10s token-bucket"],
        "4623295c1b2600ecf24afc94d9530720e4e6f5414f35f694f7af09e7ea367a48",
    ),
    (
        Trace::Rough,
        &["10 per 10s sliding-log"],
        "c07c95116b93f903de3d81f5fc0ddcc700f36c10f13ea8d9811b0752101b3852",
    ),
    (
        Trace::Rough,
        &["10 per 10s sliding-window"],
        "c07c95116b93f903de3d81f5fc0ddcc700f36c10f13ea8d9811b0752101b3852",
    ),
    (
        Trace::Rough,
        &["10 per 10s sliding-counter"],
        "96d51c5d416f6dc508b8966eef965ea2c4dd5ecadc959459b7fcdd57209a6724",
    ),
    (
        Trace::Rough,
        &["10 per 10s fixed-window"],
        "a9cac05c51d90f3f11d44c113cc795fd0fac4212df3b65918005516b882d2e45",
    ),
    (
        Trace::Rough,
        &["10 per 10s token-bucket"],
        "99f56d9e6bc212e14758254ecce625dc5ffded674ad17eb4e020d10216d1ab94",
    ),
    (
        Trace::Refunds,
        &["10 per 10s sliding-log"],
        "4b3751263d2787fef8eed194c4283d54d0d864e6a77d4898148576750c567d96",
    ),
    (
        Trace::Refunds,
        &["10 per 10s sliding-counter"],
        "2f35ad8b246615027a56b34d29356986ab28b7da4f5f68ac501cdfb8ffcbeeee",
    ),
    (
        Trace::Refunds,
        &["10 per 10s fixed-window"],
        "bf9436bcbb84ac6fe33b2a490a914d5991520f548ebcdbb4dacbdc7d0dbadf98",
    ),
    (
        Trace::Refunds,
        &["10 per 10s token-bucket"],
        "001779ab5b299ec79ea8e3897cd863ad8e426ea0dfe1802df6ad6bf15c51b91f",
    ),
    (
        Trace::Steady,
        &["4 per 1s sliding-log", "12 per 10s sliding-counter", "40 per 60s token-bucket"],
        "1672ff26b8beb70d5ba165e22b378f899ccee011eb6f20e30f41eba1155bc2c2",
    ),
    (
        Trace::Rough,
        &["7 per 2s sliding-window", "12 per 10s sliding-log", "30 per 60s fixed-window"],
        "ef636859f1d7d1926390b7afd07bd375803602b29060754aecd3a28a2a29c503",
    ),
];

#[test]
fn every_algorithm_matches_naive_limiter_and_digests() {
    let mut wrong = String::new();
    for &(trace, texts, digest) in DIGESTS {
        let events = events(trace);
        let limits: Vec<Limit> = texts.iter().map(|text| limit(text)).collect();
        let args: Vec<&str> = texts.iter().flat_map(|text| ["--limit", text]).collect();
        let ours = decisions(&csv(&events), &args);
        let naive = naive_limiter::decide(&events, &limits);
        let denied = naive.bytes().filter(|&decision| decision == b'0').count();
        assert!(
            (EVENTS / 50..EVENTS * 9 / 10).contains(&denied),
            "too few or too many denials: {denied}"
        );
        assert_same(&ours, &naive, &events);
        let ours = sha256(&ours);
        if ours != digest {
            writeln!(wrong, "{trace:?} {texts:?} {ours}").expect("memory");
        }
    }
    assert!(wrong.is_empty(), "other digests than committed:\n{wrong}");
}

#[test]
fn largest_rolling_count_matches_naive_sum() {
    let events = events(Trace::Steady);
    let trace = csv(&events);
    let args = ["replay", "-", "--limit", "10 per 10s", "--algorithm", "all", "--json"];
    let json = tidegate_reading(&args, trace.as_bytes()).succeeded().json();
    let runs = json["algorithms"].as_array().expect("runs");
    assert_eq!(runs.len(), 5);
    let mut exact = String::new();
    for run in runs {
        let name = run["algorithm"].as_str().expect("a name");
        let decisions = naive_limiter::decide(&events, &[limit(&format!("10 per 10s {name}"))]);
        let admitted = decisions.bytes().filter(|&decision| decision == b'1').count();
        assert_eq!(run["admitted"], admitted, "{name}");
        assert_eq!(run["denied"], EVENTS - admitted, "{name}");
        let largest = naive_limiter::largest(&events, &decisions, 10 * SECOND_US);
        assert_eq!(run["largest_rolling_count"].as_i64().map(i128::from), Some(largest), "{name}");
        if name == "sliding-log" {
            assert_eq!(largest, 10, "the log is exact");
            exact.clone_from(&decisions);
        }
        let differ = decisions.bytes().zip(exact.bytes()).filter(|(a, b)| a != b).count();
        assert_eq!(run["differ"], differ, "{name}");
    }
}

#[test]
fn late_events_see_earlier_usage() {
    // Regression: slots of keys that had expired at the time of a later event were given to new
    // keys, so that a late event found no usage, differently in every run.
    let mut trace = String::new();
    for (second, prefix) in [(100, 'a'), (111, 'b'), (105, 'a')] {
        for key in 0..1_000 {
            trace += &format!("{second}000000,{prefix}{key}\n");
        }
    }
    let decisions = decisions(&trace, &["--limit", "1 per 10s sliding-log"]);
    assert_eq!(decisions, "1".repeat(2_000) + &"0".repeat(1_000));
}
