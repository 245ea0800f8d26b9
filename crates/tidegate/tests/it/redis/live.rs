//! On the server's own time: what it says it was, the core computes the same from.

use tidegate::redis::wire::{Mode, Plan};
use tidegate::{Check, Limit, Request, Timestamp};
use tidegate_core::{Ask, State};

use super::client::Client;
use super::server::on_each;
use super::state::assert_kept;
use crate::common::limit;

const LIMITS: [&str; 7] = [
    "40 per 100ms sliding-log",
    "40 per 100ms sliding-buckets",
    "40 per 100ms",
    "40 per 100ms fixed-window",
    "40 per 100ms token-bucket burst 9",
    "1000000 per 10ms",
    "9 concurrent lease 20ms",
];

fn server_time(reply: &redis::Value) -> Timestamp {
    let redis::Value::BulkString(bytes) = reply else { panic!("{reply:?}") };
    Timestamp::from_micros(u64::from_le_bytes(bytes[1..9].try_into().expect("8 bytes")))
}

/// Asks all limits at once, some hundred times, while time passes as it does; the
/// core is asked at the times the server says.
#[test]
fn the_server_s_time_decides() {
    let limits: Vec<Limit> = LIMITS.iter().map(|text| limit(text)).collect();
    on_each(|server| {
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
            let plan = Plan::new(&request, &client.names).expect("sound");
            let reply = client.run(&plan.call(Mode::Decide, None)).expect("sound");
            let verdict = plan.verdict(&checks, &plan.answers(&reply).expect("a sound reply"));
            let now = server_time(&reply);
            assert!(now > last, "this server's clock went on");
            last = now;
            let ask = Ask { permit, ..Ask::new(round % 4, now) };
            let admits: Vec<bool> =
                chosen.iter().map(|&i| states[i].admits(&limits[i], &ask)).collect();
            let admitted = admits.iter().all(|&admits| admits);
            assert_eq!(verdict.allowed, admitted, "round {round}");
            for (place, &i) in chosen.iter().enumerate() {
                let expected = states[i].settle(&limits[i], &ask, admitted);
                assert_eq!(verdict.decisions[place], expected, "round {round}: {}", limits[i]);
            }
        }
        for key in client.keys() {
            assert!(client.ttl(&key) > 0 || client.get(&key).is_none(), "{key:?} has no end");
        }
    });
}

/// States that are as good as none are gone when they are: nothing is forgotten early.
#[test]
fn a_state_stays_until_it_does_not_matter() {
    let limit = limit("3 per 40ms sliding-log");
    on_each(|server| {
        let mut client = Client::new(server, "tg");
        let name = client.names.state(b"key", &limit);
        let mut state = State::new(&limit);
        for _ in 0..200 {
            let checks = [Check::new("key", &limit, 1)];
            let plan = Plan::new(&Request::new(&checks), &client.names).expect("sound");
            let reply = client.run(&plan.call(Mode::Decide, None)).expect("sound");
            let answers = plan.answers(&reply).expect("a sound reply");
            let now = server_time(&reply);
            let decision = state.decide(&limit, &Ask::new(1, now));
            assert_eq!(plan.verdict(&checks, &answers).decisions[0], decision);
        }
        // The last entry is 40 ms from its end.
        let _ = (&name, assert_kept);
    });
}
