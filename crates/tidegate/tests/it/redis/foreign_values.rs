//! A value that is not a state of tidegate is an error, never a decision, and is not overwritten.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use tidegate::unstable::redis::{
    CounterEntry, CounterReply, ScriptMode, ScriptPlan, counter_call, decode_counter_reply,
    is_fast, permit_call,
};
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
                let quick = client
                    .decide_quickly(&Request::new(&checks[1..]).with_permit(PermitId(1)), None);
                refused(quick);
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
            assert!(refused(client.decide_quickly(&request, None)).contains("WRONGTYPE"), "{text}");
            let length: u64 =
                redis::cmd("LLEN").arg(&name).query(&mut client.connection).expect("a list");
            assert_eq!(length, 1);
            let operation = PermitOperation::Release(PermitId(1));
            let call = permit_call(&client.names, b"key", &limit, operation, None);
            assert!(refused(client.run(&call)).contains("WRONGTYPE"), "{text}");
        }
    });
}

/// In a call with many keys, foreign values are reported as such, and the other keys are decided.
#[test]
fn foreign_value_fails_only_its_own_key() {
    let limit = limit("10 per 1m sliding-counter");
    assert!(is_fast(&limit));
    on_each(|_, server| {
        let mut client = Client::new(server, "tg");
        let entries: Vec<CounterEntry> = (0..8_u8)
            .map(|key| CounterEntry { key: client.names.state(&[key], &limit), units: 1, times: 1 })
            .collect();
        client.set(&entries[1].key, b"hello");
        client.set(&entries[3].key, b"9223372036854775807");
        client.set(&entries[5].key, b"-5");
        client.set(&entries[6].key, b"9007199254740993");
        let reply = client.run(&counter_call(&limit, &entries, None)).expect("sound");
        let replies = decode_counter_reply(&limit, &entries, &reply).expect("a sound reply");
        let not_compact: Vec<usize> =
            (0..8).filter(|&index| replies[index] == CounterReply::NotCompact).collect();
        assert_eq!(not_compact, [1, 3, 5, 6]);
        for (index, value) in
            [(1, "hello"), (3, "9223372036854775807"), (5, "-5"), (6, "9007199254740993")]
        {
            assert_eq!(client.get(&entries[index].key), Some(value.as_bytes().to_vec()));
        }
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
                let _ = client
                    .decide_quickly(&Request::new(&checks[..1]).with_permit(PermitId(1)), None)
                    .expect("sound");
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
