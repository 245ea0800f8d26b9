//! Any bytes can be a key, and no two keys share a name.

use std::collections::HashMap;

use proptest::prelude::*;
use tidegate::unstable::redis::{KeyNames, slot_key};
use tidegate::{Check, Limit, Request};

use super::client::Client;
use super::servers::on_each;
use crate::common::{NOW, at, limit};
use crate::generators::{any_limit, cases};

/// The rows are keys, limits and their names.
#[test]
fn names_are_short_and_readable() {
    let rows: &[(&[u8], &str, &str)] = &[
        (b"alice", "5 per 1m", "tg:2:{alice}w1m"),
        (b"api\x00192.0.2.1", "5 per 1m sliding-counter", "tg:2:{192.0.2.1}api/c1m"),
        (b"api\x00192.0.2.1", "9 per 60s sliding-counter", "tg:2:{192.0.2.1}api/c1m"),
        (b"api\0", "5 per 1500ms sliding-log", "tg:2:{%}api/l1500ms"),
        (b"", "5 per 1h sliding-window", "tg:2:{%}w1h"),
        (b"\0", "5 per 1d fixed-window", "tg:2:{%}/f1d"),
        (b"a b", "5 per 1s token-bucket", "tg:2:{a%20b}t1s"),
        (b"/login", "5 concurrent lease 3s", "tg:2:{/login}p"),
        (b"a/b\0x", "5 concurrent", "tg:2:{x}a%2fb/p"),
        (b"{x}%\r\n", "5 per 1m", "tg:2:{%7bx%7d%25%0d%0a}w1m"),
        (b"p\0\0", "5 per 1m", "tg:2:{%00}p/w1m"),
    ];
    let names = KeyNames::new("tg");
    for (key, text, name) in rows {
        let made = names.state(key, &limit(text));
        assert_eq!(std::str::from_utf8(&made).expect("names are text"), *name);
    }
    let long = names.state(&[b'x'; 97], &limit("5 per 1m"));
    assert!(long.starts_with(b"tg:2:{%%") && long.len() == "tg:2:{%%}w1m".len() + 32, "a digest");
}

proptest! {
    #![proptest_config(cases(2_000))]

    /// The text in braces depends only on the key, and the whole name on the key and the limit.
    #[test]
    fn no_two_keys_share_a_name(
        keys in prop::collection::vec(prop::collection::vec(prop_oneof![Just(0), Just(b'%'), Just(b'/'), Just(b'~'), any::<u8>()], 0..6), 2..6),
        limits in prop::collection::vec(any_limit(), 1..4),
    ) {
        let names = KeyNames::new("tg");
        let mut known = HashMap::<Vec<u8>, (Vec<u8>, u64, bool)>::new();
        for key in &keys {
            let mut slots = Vec::new();
            for limit in &limits {
                for observed in [false, true] {
                    let name = if observed { names.observed(key, limit) } else { names.state(key, limit) };
                    slots.push(slot_key(&name).to_vec());
                    prop_assert!(name.iter().all(|byte| byte.is_ascii_graphic()));
                    let of = (key.clone(), limit.id(), observed);
                    prop_assert_eq!(known.entry(name).or_insert_with(|| of.clone()), &of);
                }
            }
            prop_assert!(slots.windows(2).all(|pair| pair[0] == pair[1]));
        }
    }
}

#[test]
fn keys_can_be_any_bytes() {
    let keys: [&[u8]; 12] = [
        b"",
        b" ",
        b"a b",
        b"\r\n",
        b"*1\r\n$8\r\nFLUSHALL\r\n",
        b"{",
        b"}",
        b"{}",
        b"{a}b",
        b"\0",
        b"a\0\0b",
        &[b'k'; 65_536],
    ];
    let limits: [Limit; 2] = [limit("5 per 1m sliding-counter"), limit("5 per 1m sliding-log")];
    on_each(|_, server| {
        let mut client = Client::new(server, "tg");
        for limit in &limits {
            for (index, key) in keys.iter().enumerate() {
                let checks = [Check::new(*key, limit, index as u64 % 3 + 1)];
                for _ in 0..2 {
                    let _ = client.decide(&Request::new(&checks), Some(at(NOW))).expect("sound");
                }
            }
            for (index, key) in keys.iter().enumerate() {
                let remaining = client.check(key, limit, 0, Some(at(NOW))).remaining;
                assert_eq!(remaining, 5_u64.saturating_sub([2, 4, 3][index % 3]), "{limit}");
            }
        }
        assert_eq!(client.keys().len(), 24);
    });
}
