//! Decisions at the time of the server, compared with those of the core at the times that the
//! server reports.

use redis::Value;
use tidegate::unstable::redis::{
    CounterEntry, CounterReply, ScriptMode, ScriptPlan, counter_call, decode_counter_reply,
};
use tidegate::{Check, Limit, Request, Timestamp};
use tidegate_core::{Attempt, State};

use super::client::{Client, Kept};
use super::servers::on_each;
use super::state::{Plain, assert_kept, parse};
use crate::common::limit;

const LIMITS: [&str; 7] = [
    "40 per 100ms sliding-log",
    "40 per 100ms sliding-window",
    "40 per 100ms sliding-counter",
    "40 per 100ms fixed-window",
    "40 per 100ms token-bucket burst 9",
    "1000000 per 10ms sliding-counter",
    "9 concurrent lease 20ms",
];

fn server_time(reply: &Value) -> Timestamp {
    let Value::BulkString(bytes) = reply else { panic!("{reply:?}") };
    Timestamp::from_micros(u64::from_le_bytes(bytes[1..9].try_into().expect("8 bytes")))
}

/// Decides up to three limits per request, 2,000 times, in real time. The core decides at the times
/// that the server reports.
#[test]
fn server_time_decides() {
    let limits: Vec<Limit> = LIMITS.iter().map(|text| limit(text)).collect();
    on_each(|_, server| {
        let mut client = Client::new(server, "tg");
        let mut states: Vec<State> = limits.iter().map(State::new).collect();
        let mut last = Timestamp::EPOCH;
        for round in 0..2_000_u64 {
            let chosen = [0, 1, 2].map(|k| ((round / 7 + k * (1 + round % 3)) % 7) as usize);
            let mut chosen = chosen.to_vec();
            chosen.sort_unstable();
            chosen.dedup();
            let checks: Vec<Check<'_>> =
                chosen.iter().map(|&i| Check::new("key", &limits[i], round % 4)).collect();
            let permit = tidegate::PermitId(round);
            let request = Request::new(&checks).with_permit(permit);
            let plan = ScriptPlan::new(&request, &client.names).expect("sound");
            let reply = client.run(&plan.call(ScriptMode::Decide, None)).expect("sound");
            let verdict = plan.verdict(&checks, &plan.decode_reply(&reply).expect("a sound reply"));
            let now = server_time(&reply);
            assert!(now > last, "this server's clock went on");
            last = now;
            let attempt = Attempt { permit, ..Attempt::new(round % 4, now) };
            let admits: Vec<bool> =
                chosen.iter().map(|&i| states[i].advance_and_check(&limits[i], &attempt)).collect();
            let admitted = admits.iter().all(|&admits| admits);
            assert_eq!(verdict.allowed, admitted, "round {round}");
            for (index, &i) in chosen.iter().enumerate() {
                let expected = states[i].finish(&limits[i], &attempt, admitted);
                assert_eq!(verdict.decisions()[index], expected, "round {round}: {}", limits[i]);
            }
        }
        for key in client.keys() {
            assert!(client.ttl(&key) > 0 || client.get(&key).is_none(), "{key:?} has no end");
        }
    });
}

/// The fast path, with one key and with five. The time of a reply is derived from the window of the
/// stored state.
#[test]
fn counter_script_decides_as_the_core() {
    let texts =
        ["40 per 50ms", "300 per 1s", "2000 per 2m"].map(|text| format!("{text} sliding-counter"));
    on_each(|_, server| {
        let mut client = Client::new(server, "tg");
        for (limit, keys) in texts.iter().flat_map(|text| [(limit(text), 1), (limit(text), 5_u8)]) {
            redis::cmd("FLUSHALL").exec(&mut client.connection).expect("a server that listens");
            let mut states: Vec<State> = (0..keys).map(|_| State::new(&limit)).collect();
            let entry =
                |key| CounterEntry { key: client.names.state(&[key], &limit), units: 1, times: 1 };
            let entries: Vec<CounterEntry> = (0..keys).map(entry).collect();
            for round in 0..3_000 {
                let names: Vec<&[u8]> = entries.iter().map(|entry| &*entry.key).collect();
                let call = counter_call(&limit, &entries, None);
                let (reply, kept) = client.run_and_read(&call, &names);
                let replies =
                    decode_counter_reply(&limit, &entries, &reply).expect("a sound reply");
                let now = time_of(&kept[0], &limit, &reply);
                for ((state, reply), kept) in states.iter_mut().zip(&replies).zip(&kept) {
                    let expected = state.decide(&limit, &Attempt::new(1, now));
                    let expected = CounterReply::Decided([expected].into_iter().collect());
                    assert_eq!(*reply, expected, "round {round}: {limit}");
                    assert_kept(kept, &limit, state, now);
                }
            }
        }
    });
}

/// The time of a reply, from its offset in the window and the index of the window in the stored
/// state.
fn time_of(kept: &Kept, limit: &Limit, reply: &Value) -> Timestamp {
    let window_us = limit.window_us();
    let elapsed_us = match reply {
        Value::Int(both) => u64::try_from(*both).expect("positive") % window_us,
        Value::Array(numbers) => match numbers[0] {
            Value::Int(elapsed_us) => u64::try_from(elapsed_us).expect("positive"),
            _ => panic!("{reply:?}"),
        },
        _ => panic!("{reply:?}"),
    };
    let raw = kept.value.as_ref().expect("something was counted in this window or the last");
    let Plain::Counter([index, ..]) = parse(raw, limit) else { panic!("{raw:?}") };
    Timestamp::from_micros(index * window_us + elapsed_us)
}

/// States are stored for as long as they have an effect, and not much longer.
#[test]
fn keys_expire_with_their_state() {
    let rows = [
        ("5 per 1h sliding-log", 3_600),
        // Up to two steps of the grid longer than a window.
        ("5 per 1h sliding-window", 3_601),
        // Until the end of the next window: one to two windows.
        ("5 per 1h sliding-counter", 7_200),
        ("5 per 1h fixed-window", 3_600),
        ("5 per 1h token-bucket", 720),
        ("5 concurrent lease 1h", 3_600),
    ];
    on_each(|_, server| {
        let mut client = Client::new(server, "tg");
        for (text, most_s) in rows {
            let limit = limit(text);
            let checks = [Check::new("key", &limit, 1)];
            let request = Request::new(&checks).with_permit(tidegate::PermitId(1));
            for quickly in [false, true] {
                redis::cmd("FLUSHALL").exec(&mut client.connection).expect("a server");
                let _ = match quickly {
                    true => client.decide_quickly(&request, None),
                    false => client.decide(&request, None),
                }
                .expect("sound");
                let least_s = if text.contains("fixed") { 0 } else { most_s / 2 - 60 };
                let name = client.names.state(b"key", &limit);
                let ttl_ms = client.ttl(&name);
                let expected = least_s * 1_000..=most_s * 1_000 + 2;
                assert!(expected.contains(&ttl_ms), "{text}: {ttl_ms} ms");
            }
        }
    });
}
