//! A value that is not a state of tidegate is an error, never a decision, and is not overwritten.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use tidegate::unstable::redis::{Entry, ScriptMode, ScriptPlan, permit_call};
use tidegate::{Algorithm, Check, Failure, Limit, PermitId, PermitOperation, Request, StoreError};

use super::client::Client;
use super::servers::on_each;
use crate::common::{NOW, at, limit};

const LIMITS: [&str; 6] = [
    "10 per 1m sliding-log",
    "10 per 1m sliding-window",
    "10 per 1m sliding-counter",
    "10 per 1m fixed-window",
    "10 per 1m token-bucket",
    "10 concurrent",
];

/// Values that other programs store, and malformed states.
fn foreign_values(limit: &Limit) -> Vec<Vec<u8>> {
    let mut values: Vec<Vec<u8>> = [
        "",
        "hello",
        "{\"a\": 1}",
        "-5",
        "1.5",
        "1e5",
        "0x10",
        " 7",
        "99999999999999999999",
        "9223372036854775807",
        "9007199254740993",
        "nan",
        "\u{e9}t\u{e9}",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    if limit.algorithm() != Algorithm::SlidingCounter {
        values.push(b"123456".to_vec());
    }
    for mark in 0x80..=0x8c_u8 {
        values.push(vec![mark]);
        values.push(vec![mark; 15]);
        values.push([vec![mark], vec![0xff; 21]].concat());
        values.push([vec![mark], vec![0; 21]].concat());
        values.push([vec![mark], vec![0; 21], vec![0x80, 0x80]].concat());
        values.push([vec![mark], vec![0xff; 60]].concat());
    }
    values
}

fn refused(outcome: Result<impl std::fmt::Debug, StoreError>) -> String {
    match outcome {
        Err(StoreError::Failed(Failure::Refused(text))) => text.into(),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn foreign_values_are_errors_and_unchanged() {
    on_each(|_, server| {
        let mut client = Client::new(server, "tg");
        for text in LIMITS {
            let limit = limit(text);
            let name = client.names.state(b"key", &limit);
            redis::cmd("FLUSHALL").exec(&mut client.connection).expect("a server that listens");
            for value in foreign_values(&limit) {
                if matches_form(&value, &limit) {
                    continue;
                }
                client.set(&name, &value);
                // The other states of the request are not changed either.
                let other = crate::common::limit("10 per 1h");
                let checks = [Check::new("other", &other, 1), Check::new("key", &limit, 1)];
                let request = Request::new(&checks).with_permit(PermitId(1));
                let reason = refused(client.decide(&request, Some(at(NOW))));
                assert!(reason.contains("is not a state"), "{text}, {value:?}: {reason}");
                let alone = Request::new(&checks[1..]).with_permit(PermitId(1));
                refused(client.decide(&alone, None));
                assert_eq!(client.get(&name), Some(value));
                assert_eq!(client.keys(), std::slice::from_ref(&name));
            }
        }
    });
}

/// Whether a value is a valid state by chance. Zeros after the right mark, for example, are an old
/// and empty state.
fn matches_form(value: &[u8], limit: &Limit) -> bool {
    let zeros = |mark, length| value.len() == length && value[0] == mark;
    match limit.algorithm() {
        Algorithm::SlidingCounter => zeros(0x83, 22),
        Algorithm::FixedWindow => zeros(0x84, 15),
        // Seven units at the epoch.
        Algorithm::SlidingWindow => zeros(0x88, 22) && value[1..] == [0; 21],
        _ => false,
    }
}

#[test]
fn values_of_another_type_are_errors_and_unchanged() {
    on_each(|_, server| {
        let mut client = Client::new(server, "tg");
        for text in LIMITS {
            let limit = limit(text);
            let name = client.names.state(b"key", &limit);
            redis::cmd("LPUSH").arg(&name).arg("x").exec(&mut client.connection).expect("a list");
            let checks = [Check::new("key", &limit, 1)];
            let request = Request::new(&checks).with_permit(PermitId(1));
            assert!(refused(client.decide(&request, None)).contains("WRONGTYPE"), "{text}");
            let length: u64 =
                redis::cmd("LLEN").arg(&name).query(&mut client.connection).expect("a list");
            assert_eq!(length, 1);
            let operation = PermitOperation::Release(PermitId(1));
            let call = permit_call(&client.names, b"key", &limit, operation, None);
            assert!(refused(client.run(&call)).contains("WRONGTYPE"), "{text}");
        }
    });
}

/// In a call with many entries, an entry with a foreign value fails and charges nothing, and the
/// others are decided.
#[test]
fn foreign_value_fails_only_its_own_entry() {
    on_each(|_, server| {
        let mut client = Client::new(server, "tg");
        for text in LIMITS {
            let limit = limit(text);
            redis::cmd("FLUSHALL").exec(&mut client.connection).expect("a server that listens");
            let foreign = client.names.state(b"foreign", &limit);
            client.set(&foreign, b"hello");
            let list = client.names.state(b"list", &limit);
            redis::cmd("LPUSH").arg(&list).arg("x").exec(&mut client.connection).expect("a list");
            let entry = |keys: &[&str]| {
                let checks: Vec<_> = keys.iter().map(|key| Check::new(key, &limit, 1)).collect();
                let request = Request::new(&checks).with_permit(PermitId(1));
                let plan = ScriptPlan::new(&request, &client.names).expect("sound");
                Entry::new(plan, ScriptMode::Decide)
            };
            let groups = [
                vec![entry(&["a"]), entry(&["foreign"]), entry(&["b"]), entry(&["list"])],
                vec![entry(&["c", "foreign"]), entry(&["a", "b"])],
                vec![entry(&["a"])],
            ];
            let replies = client.decide_entries(&groups, None);
            let is_decided: Vec<bool> = replies.iter().map(Result::is_ok).collect();
            assert_eq!(is_decided, [true, false, true, false, false, true, true], "{text}");
            let reasons: Vec<String> =
                replies.into_iter().filter(Result::is_err).map(refused).collect();
            assert!(reasons[0].contains("is not a state"), "{text}: {}", reasons[0]);
            assert!(reasons[1].contains("WRONGTYPE"), "{text}: {}", reasons[1]);
            assert!(reasons[2].contains("is not a state"), "{text}: {}", reasons[2]);
            assert_eq!(client.get(&foreign), Some(b"hello".to_vec()), "{text}");
            assert_eq!(client.get(&client.names.state(b"c", &limit)), None, "{text}");
        }
    });
}

/// The cells of a `sliding-window` of 15 cells, as `sliding_window.lua` describes them: the cells
/// are their index, units and last hit.
fn stored_cells(pace: u64, cells: &[(u64, u16, u8)], sum: u16) -> Vec<u8> {
    let newest = cells.last().expect("a cell").0;
    let mut value = [&[0x89][..], &pace.to_le_bytes()[..5], &newest.to_le_bytes()[..7]].concat();
    for &(index, units, last) in cells {
        value.push((index % 16) as u8 * 16 + last);
        value.extend(units.to_le_bytes());
        value.push(0);
    }
    value.extend(sum.to_le_bytes());
    value
}

/// Regression: a damaged state with grants left the clock of the call at a deadline of the past.
#[test]
fn damaged_state_with_grants_does_not_move_the_clock_of_others() {
    on_each(|_, server| {
        let mut client = Client::new(server, "tg");
        let limit = limit("100 per 15s");
        let (now, cell) = (1_700_000_000_000_000, 1_700_000_000);
        // The cell without units is not read before the clock is at the deadline.
        let cells = stored_cells(100, &[(cell - 5, 1, 0), (cell - 3, 0, 0), (cell, 1, 0)], 2);
        let deadline = 2_000_000_u64.to_le_bytes();
        let grant = [&[1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0], &deadline[..7], &[0, 0x40, 0]];
        let damaged = [&[0x8c][..], &cells, &grant.concat(), &[1]].concat();
        let name = client.names.state(b"damaged", &limit);
        client.set(&name, &damaged);
        let now = Some(at(now));
        assert_eq!(client.check(b"sound", &limit, 95, now).remaining, 5);
        let entry = |key: &str| {
            let checks = [Check::new(key, &limit, 1)];
            let plan = ScriptPlan::new(&Request::new(&checks), &client.names).expect("sound");
            Entry::new(plan, ScriptMode::Decide)
        };
        let groups = [vec![entry("damaged")], vec![entry("sound")]];
        let replies = client.decide_entries(&groups, now);
        assert_eq!(replies.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true]);
        assert_eq!(client.check(b"sound", &limit, 0, now).remaining, 4);
        assert_eq!(client.get(&name), Some(damaged));
    });
}

/// Regression: a state was written before the charge of another one failed.
#[test]
fn damaged_state_that_fails_when_charged_leaves_others_unchanged() {
    on_each(|_, server| {
        let mut client = Client::new(server, "tg");
        let limit = limit("2000 per 15s");
        let (now, cell) = (1_700_000_000_500_000, 1_700_000_000);
        // A part of the oldest cell has expired, so there is room. The newest one is full, so a
        // charge reads all cells, and finds that the sum is wrong.
        let damaged = stored_cells(2000, &[(cell - 15, 2000, 15), (cell, 2047, 8)], 2047);
        let name = client.names.state(b"damaged", &limit);
        client.set(&name, &damaged);
        let now = Some(at(now));
        let checks = [Check::new("sound", &limit, 1), Check::new("damaged", &limit, 1)];
        let plan = ScriptPlan::new(&Request::new(&checks), &client.names).expect("sound");
        let groups = [vec![Entry::new(plan, ScriptMode::Decide)]];
        let replies = client.decide_entries(&groups, now);
        assert!(replies.iter().all(Result::is_err), "{replies:?}");
        assert_eq!(client.get(&client.names.state(b"sound", &limit)), None);
        assert_eq!(client.get(&name), Some(damaged));
    });
}

/// Every key that is written expires, and no script touches a key that was not declared.
#[test]
fn keys_expire_and_only_declared_keys_are_used() {
    on_each(|_, server| {
        let mut client = Client::new(server, "tg");
        let mut monitor = TcpStream::connect(server.address()).expect("a second connection");
        monitor.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        monitor.write_all(b"MONITOR\r\n").expect("a listening server");
        let mut lines = BufReader::new(monitor).lines();
        assert_eq!(lines.next().expect("a reply").expect("in time"), "+OK");
        let mut declared = Vec::new();
        for text in LIMITS {
            let limit = limit(text);
            for (key, id) in [("a", None), ("b", Some("id")), ("c", Some("id"))] {
                let checks = [Check::new(key, &limit, 1), Check::new(key, &limit, 1).observed()];
                let mut request = Request::new(&checks).with_permit(PermitId(1));
                request.id = id.map(str::as_bytes);
                let plan = ScriptPlan::new(&request, &client.names).expect("sound");
                let call = plan.call(ScriptMode::Decide, None);
                declared
                    .extend(call.keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()));
                client.run(&call).expect("sound");
            }
        }
        let keys = client.keys();
        assert!(keys.len() >= 6 * 3 * 2, "{} keys", keys.len());
        for key in &keys {
            assert!(client.ttl(key) > 0, "{} has no end", String::from_utf8_lossy(key));
        }
        let mut touched = 0;
        for line in lines {
            let line = line.expect("in time");
            if line.contains("\"PTTL\"") {
                break;
            }
            let words: Vec<&str> = line.split(' ').collect();
            if words[2] != "lua]" || words[3] == "\"TIME\"" {
                continue;
            }
            let key = words[4].trim_matches('"');
            assert!(declared.iter().any(|known| known == key), "{line}");
            touched += 1;
        }
        assert!(touched > 50, "only {touched} commands were seen");
    });
}
