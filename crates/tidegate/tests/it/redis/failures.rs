//! Servers that refuse calls, which is an error with a reason and charges nothing; and logs at
//! their largest size.

use tidegate::{Check, Failure, Limit, Request, StoreError};

use super::client::Client;
use super::servers::on_each;
use super::state::{Plain, parse};
use crate::common::{NOW, at, limit};

fn config(client: &mut Client, words: &[&str]) {
    let mut cmd = redis::cmd(words[0]);
    cmd.arg(&words[1..]);
    cmd.exec(&mut client.connection).expect("a server that obeys");
}

#[test]
fn read_only_server_is_an_error() {
    let limits = ["5 per 1m", "5 per 1m sliding-log"].map(limit);
    on_each(|_, server| {
        for (refuse, words) in [
            (&["CONFIG", "SET", "maxmemory", "1"][..], "maxmemory"),
            (&["REPLICAOF", "127.0.0.1", "1"][..], "read only"),
        ] {
            let mut client = Client::new(server, "tg");
            config(&mut client, &["CONFIG", "SET", "maxmemory", "0"]);
            config(&mut client, refuse);
            for limit in &limits {
                let checks = [Check::new("key", limit, 1)];
                let request = Request::new(&checks);
                match client.decide(&request, None) {
                    Err(StoreError::Failed(Failure::Refused(reason))) => {
                        assert!(reason.contains(words), "{reason}");
                    }
                    other => panic!("{limit}, {words}: {other:?}"),
                }
            }
            assert!(client.keys().is_empty());
        }
    });
}

/// Beyond 128 KiB, the newest entry is merged into the next one. Its units count for longer, and no
/// additional units are admitted.
#[test]
fn log_size_is_bounded() {
    let limit: Limit = limit("1000000 per 1h sliding-log");
    // The entries are 10,000 us apart and take three bytes each, in all just above the bound.
    let (count, distance) = (43_700_u64, 10_000_u64);
    let first = NOW - count * distance;
    let mut raw = vec![0x81];
    for number in [first, first + (count - 1) * distance, count] {
        raw.extend_from_slice(&number.to_le_bytes()[..7]);
    }
    raw.push(0);
    for _ in 1..count {
        // varint(20,000)
        raw.extend_from_slice(&[0xa0, 0x9c, 0x01]);
    }
    on_each(|_, server| {
        let mut client = Client::new(server, "tg");
        let name = client.names.state(b"key", &limit);
        client.set(&name, &raw);
        for round in 1..=3 {
            let decision = client.check("key", &limit, 1, Some(at(NOW + round)));
            assert_eq!(decision.remaining, 1_000_000 - count - round);
            assert_eq!(decision.reset_after.as_micros(), 3_600_000_000);
            let kept = client.get(&name).expect("a log");
            let Plain::Entries(entries) = parse(&kept, &limit) else { panic!("not a log") };
            assert_eq!(entries.len() as u64, count, "no more entries than there were");
            assert_eq!(entries.last(), Some(&[NOW + round, 1 + round]));
        }
    });
}
