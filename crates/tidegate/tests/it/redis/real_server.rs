//! Decisions at the time of the server, compared with those of the core at the times that the
//! server reports.

use redis::Value;
use tidegate::unstable::redis::{ScriptMode, ScriptPlan};
use tidegate::{Check, Limit, Request, Timestamp};
use tidegate_core::{Attempt, State};

use super::client::Client;
use super::servers::on_each;
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
    let Value::Array(values) = reply else { panic!("{reply:?}") };
    let Value::Int(now) = values[0] else { panic!("{reply:?}") };
    Timestamp::from_micros(u64::try_from(now).expect("after 1970"))
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
            let verdict = plan.verdict(
                &checks,
                &plan.decode_reply(ScriptMode::Decide, &reply).expect("a sound reply"),
            );
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

/// States are stored for as long as they have an effect, and not much longer.
#[test]
fn keys_expire_with_their_state() {
    let rows = [
        // Up to a sixteenth of a window longer than a window.
        ("5 per 1h sliding-log", 3_825),
        ("5 per 1h sliding-window", 3_825),
        // Until the end of the cell and a window.
        ("100 per 1h sliding-window", 3_840),
        // Until the end of the next window: one to two windows.
        ("5 per 1h sliding-counter", 7_200),
        ("5 per 1h fixed-window", 3_600),
        // The time to repay two units, and an eighth of a window.
        ("5 per 1h token-bucket", 1_890),
        ("5 concurrent lease 1h", 3_600),
    ];
    on_each(|_, server| {
        let mut client = Client::new(server, "tg");
        for (text, most_s) in rows {
            let limit = limit(text);
            let checks = [Check::new("key", &limit, 1)];
            let request = Request::new(&checks).with_permit(tidegate::PermitId(1));
            redis::cmd("FLUSHALL").exec(&mut client.connection).expect("a server");
            let least_s = if text.contains("fixed") { 0 } else { most_s / 2 - 60 };
            // The second check keeps the expiry of the first, or sets a later one.
            for _ in 0..2 {
                let _ = client.decide(&request, None).expect("sound");
                let name = client.names.state(b"key", &limit);
                let ttl_ms = client.ttl(&name);
                let expected = least_s * 1_000..=most_s * 1_000 + 2;
                assert!(expected.contains(&ttl_ms), "{text}: {ttl_ms} ms");
            }
        }
    });
}
