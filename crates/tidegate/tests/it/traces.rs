//! Recorded traffic, if the traces are available: decisions compared with digests.
//!
//! The traces are not part of the repository. Without them the test reports that it was not run.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};
use tidegate::{Limit, Limiter, Timestamp};

use crate::common::{S, at, limit};

/// Trace, limit, number of admitted events, digest of the decisions as '1' and '0'.
const DIGESTS: [(&str, &str, usize, &str); 18] = [
    (
        "nasa",
        "10 per 10s sliding-log",
        33_897,
        "20e93a062e0dae17046c751813155d04f4a01dce7acd5bdb9c1e4bf342dd1c10",
    ),
    (
        "nasa",
        "10 per 10s sliding-counter",
        33_923,
        "22e06f2a41c41ed5ef7d81410f87e0091723306a44068fb5a2e18cdf5125288e",
    ),
    (
        "nasa",
        "10 per 10s fixed-window",
        33_954,
        "36233bb6165dddfb63d8062b3ae5323123b7823ecf9724e3c1615435bb66e482",
    ),
    (
        "nasa",
        "20 per 60s sliding-log",
        33_954,
        "7f65d22f656906daaee8267ceef87e44af1d1860461543aa47fc393f11509fe8",
    ),
    (
        "nasa",
        "20 per 60s sliding-counter",
        33_967,
        "6defbf71c22f5dd33cf5a2267f35fd0b92bab2b994ce41c1f6b4106a89cdf192",
    ),
    (
        "zeek-dns",
        "10 per 10s sliding-log",
        15_115,
        "f634193fa25e402705b7d7a430edd86d7c9e7e53721280cc3c3a7874bf892f4b",
    ),
    (
        "zeek-dns",
        "10 per 10s sliding-counter",
        15_968,
        "c544dee1d3d45c02ac7d6ff5f80eae12daf61bf5f6f5090f1078e718c6cf214c",
    ),
    (
        "zeek-dns",
        "60 per 60s sliding-log",
        24_654,
        "34f03b79d020557425806b740728bd7a72f5d914930b57c21869a74042ea6b09",
    ),
    (
        "zeek-dns",
        "60 per 60s sliding-counter",
        24_063,
        "bdf8e444c0e143d187e878ac37696c8b746ff35490108f7cdd3d16f56e0e8d31",
    ),
    (
        "zeek-dns",
        "60 per 60s fixed-window",
        27_084,
        "7e4faa351bebef44ef2396f4bbb2b7ecdb522a0c67306101efe267ad951de5f5",
    ),
    (
        "nasa",
        "10 per 10s sliding-window",
        33_897,
        "20e93a062e0dae17046c751813155d04f4a01dce7acd5bdb9c1e4bf342dd1c10",
    ),
    (
        "nasa",
        "20 per 60s sliding-window",
        33_954,
        "7f65d22f656906daaee8267ceef87e44af1d1860461543aa47fc393f11509fe8",
    ),
    (
        "nasa",
        "21 per 60s sliding-window",
        33_961,
        "cff966da2e9186df9ceace8693614e1a84cda8894d2f516e85f394b4f7980d56",
    ),
    (
        "zeek-dns",
        "10 per 10s sliding-window",
        15_102,
        "1a8be40f29227c218146a59ce063d88240ebe174c1c1af38f6e8be3642a705e1",
    ),
    (
        "zeek-dns",
        "60 per 60s sliding-window",
        24_322,
        "ab30cd7f1c729651b94af6271c135ee5d21849d7f1aa42b514bc828422effce4",
    ),
    (
        "zeek-dns",
        "100 per 60s sliding-window",
        33_566,
        "c91ee30d568776ee73d10fbe6670fc09a166c8272ed3fb44f7b142f48fe75ad8",
    ),
    (
        "zeek-dns",
        "21 per 60s sliding-window",
        10_982,
        "57bd7a202931115582406ffc1752679251c1f9223ee675576d1bdde14276fc45",
    ),
    (
        "zeek-dns",
        "3000 per 3600s sliding-window",
        45_563,
        "edfb31b07e6b8bc4ce01a3a6bfb17bc98c9dba9178e41de48ecb92ed938216ab",
    ),
];

pub struct Event {
    pub at: Timestamp,
    pub key: Vec<u8>,
}

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces")
}

fn lines(file: &str) -> Option<Vec<Vec<u8>>> {
    let file = File::open(traces().join(file)).ok()?;
    let lines = BufReader::new(GzDecoder::new(file)).split(b'\n');
    Some(lines.map(|line| line.expect("a readable trace")).collect())
}

/// Parses `host - - [01/Aug/1995:00:00:01 -0400] "GET ..."`: the events of a day, with times in
/// seconds.
fn nasa() -> Option<Vec<Event>> {
    let event = |line: Vec<u8>| {
        let text = String::from_utf8_lossy(&line).into_owned();
        let key = line.split(|&byte| byte == b' ').next()?.to_vec();
        let time = text.split_once('[')?.1.split_once(']')?.0;
        let mut parts = time.split([':', ' ']).skip(1).map_while(|part| part.parse::<u64>().ok());
        let (hour, minute, second) = (parts.next()?, parts.next()?, parts.next()?);
        // 1995-08-01 is day 9,343, and its zone is four hours behind UTC.
        let day = 9_343 * 86_400 + 4 * 3_600;
        Some(Event { at: at((day + hour * 3_600 + minute * 60 + second) * S), key })
    };
    Some(lines("nasa-1995-08-01.log.gz")?.into_iter().filter_map(event).collect())
}

/// Parses `time_us,key` after a header line.
fn zeek() -> Option<Vec<Event>> {
    let event = |line: Vec<u8>| {
        let comma = line.iter().position(|&byte| byte == b',')?;
        let micros = std::str::from_utf8(&line[..comma]).ok()?.parse().ok()?;
        Some(Event { at: at(micros), key: line[comma + 1..].to_vec() })
    };
    Some(lines("zeek-dns.csv.gz")?.into_iter().filter_map(event).collect())
}

/// Returns the events of both traces by name, or `None` if they are not available.
fn events() -> Option<HashMap<&'static str, Vec<Event>>> {
    let (Some(nasa), Some(zeek)) = (nasa(), zeek()) else {
        eprintln!("NOT RUN: the recorded traces are not beside this checkout (shared/traces)");
        return None;
    };
    assert_eq!((nasa.len(), zeek.len()), (33_996, 53_615));
    Some(HashMap::from([("nasa", nasa), ("zeek-dns", zeek)]))
}

/// Compares decisions on the traces with the digests that `is_run` selects by their number and
/// limit.
pub fn compare(
    is_run: impl Fn(usize, &str) -> bool,
    mut decide: impl FnMut(&Limit, &[Event]) -> Vec<bool>,
) {
    let Some(traces) = events() else { return };
    for (number, (trace, text, admitted, digest)) in DIGESTS.into_iter().enumerate() {
        if !is_run(number, text) {
            continue;
        }
        let decisions = decide(&limit(text), &traces[trace]);
        assert_eq!(
            decisions.iter().filter(|&&allowed| allowed).count(),
            admitted,
            "{trace} {text}"
        );
        let letters: Vec<u8> = decisions.iter().map(|&allowed| b'0' + u8::from(allowed)).collect();
        let hex: String =
            Sha256::digest(&letters).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, digest, "{trace} {text}");
    }
}

#[test]
fn recorded_traffic_is_decided_as_published() {
    compare(
        |_, _| true,
        |limit, events| {
            let limiter = Limiter::new();
            let decide = |event: &Event| {
                limiter.check_at(event.at, &event.key, limit, 1).expect("valid").allowed
            };
            events.iter().map(decide).collect()
        },
    );
}
