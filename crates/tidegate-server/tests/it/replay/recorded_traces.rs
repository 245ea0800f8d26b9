//! Real traces with known decisions. They are not part of the repository. Without them these tests
//! report that they were not run, and only `generated_traces.rs` applies.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

use super::format_equivalence;
use crate::cli_harness::{sha256, tidegate};

const NASA: &str = "nasa-1995-08-01.log.gz";
const ZEEK: &str = "zeek-dns.csv.gz";

/// Trace, limit, algorithm, number admitted, largest true rolling count, digest of the decisions.
const ANSWERS: [(&str, &str, &str, u64, u64, &str); 18] = [
    (
        NASA,
        "10 per 10s",
        "sliding-log",
        33_897,
        10,
        "20e93a062e0dae17046c751813155d04f4a01dce7acd5bdb9c1e4bf342dd1c10",
    ),
    (
        NASA,
        "10 per 10s",
        "sliding-counter",
        33_923,
        13,
        "22e06f2a41c41ed5ef7d81410f87e0091723306a44068fb5a2e18cdf5125288e",
    ),
    (
        NASA,
        "10 per 10s",
        "fixed-window",
        33_954,
        16,
        "36233bb6165dddfb63d8062b3ae5323123b7823ecf9724e3c1615435bb66e482",
    ),
    (
        NASA,
        "20 per 60s",
        "sliding-log",
        33_954,
        20,
        "7f65d22f656906daaee8267ceef87e44af1d1860461543aa47fc393f11509fe8",
    ),
    (
        NASA,
        "20 per 60s",
        "sliding-counter",
        33_967,
        27,
        "6defbf71c22f5dd33cf5a2267f35fd0b92bab2b994ce41c1f6b4106a89cdf192",
    ),
    (
        ZEEK,
        "10 per 10s",
        "sliding-log",
        15_115,
        10,
        "f634193fa25e402705b7d7a430edd86d7c9e7e53721280cc3c3a7874bf892f4b",
    ),
    (
        ZEEK,
        "10 per 10s",
        "sliding-counter",
        15_968,
        20,
        "c544dee1d3d45c02ac7d6ff5f80eae12daf61bf5f6f5090f1078e718c6cf214c",
    ),
    (
        ZEEK,
        "60 per 60s",
        "sliding-log",
        24_654,
        60,
        "34f03b79d020557425806b740728bd7a72f5d914930b57c21869a74042ea6b09",
    ),
    (
        ZEEK,
        "60 per 60s",
        "sliding-counter",
        24_063,
        109,
        "bdf8e444c0e143d187e878ac37696c8b746ff35490108f7cdd3d16f56e0e8d31",
    ),
    (
        ZEEK,
        "60 per 60s",
        "fixed-window",
        27_084,
        120,
        "7e4faa351bebef44ef2396f4bbb2b7ecdb522a0c67306101efe267ad951de5f5",
    ),
    (
        NASA,
        "10 per 10s",
        "sliding-window",
        33_897,
        10,
        "20e93a062e0dae17046c751813155d04f4a01dce7acd5bdb9c1e4bf342dd1c10",
    ),
    (
        NASA,
        "20 per 60s",
        "sliding-window",
        33_954,
        20,
        "7f65d22f656906daaee8267ceef87e44af1d1860461543aa47fc393f11509fe8",
    ),
    (
        NASA,
        "21 per 60s",
        "sliding-window",
        33_961,
        21,
        "cff966da2e9186df9ceace8693614e1a84cda8894d2f516e85f394b4f7980d56",
    ),
    (
        ZEEK,
        "10 per 10s",
        "sliding-window",
        15_102,
        10,
        "1a8be40f29227c218146a59ce063d88240ebe174c1c1af38f6e8be3642a705e1",
    ),
    (
        ZEEK,
        "60 per 60s",
        "sliding-window",
        24_322,
        60,
        "ab30cd7f1c729651b94af6271c135ee5d21849d7f1aa42b514bc828422effce4",
    ),
    (
        ZEEK,
        "100 per 60s",
        "sliding-window",
        33_566,
        100,
        "c91ee30d568776ee73d10fbe6670fc09a166c8272ed3fb44f7b142f48fe75ad8",
    ),
    (
        ZEEK,
        "21 per 60s",
        "sliding-window",
        10_982,
        21,
        "57bd7a202931115582406ffc1752679251c1f9223ee675576d1bdde14276fc45",
    ),
    (
        ZEEK,
        "3000 per 3600s",
        "sliding-window",
        45_563,
        3_000,
        "edfb31b07e6b8bc4ce01a3a6bfb17bc98c9dba9178e41de48ecb92ed938216ab",
    ),
];

fn trace(name: &str) -> Option<String> {
    let traces = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let path = traces.join(name);
    path.is_file().then(|| path.into_os_string().into_string().expect("UTF-8"))
}

#[test]
fn recorded_traces_give_known_decisions() {
    for (name, limit, algorithm, admitted, largest, digest) in ANSWERS {
        let Some(path) = trace(name) else {
            eprintln!("NOT CHECKED: {name} is not in ../shared/traces beside this repository");
            continue;
        };
        let args = ["replay", &path, "--limit", limit, "--algorithm", algorithm];
        let run = tidegate(&[&args[..], &["--decisions", "-"]].concat()).succeeded();
        assert_eq!(sha256(&run.stdout), digest, "{name} {limit} {algorithm}");
        assert!(!run.stderr.contains("skipped"), "{}", run.stderr);
        let json = tidegate(&[&args[..], &["--json"]].concat()).succeeded().json();
        let run = &json["algorithms"][0];
        assert_eq!(run["admitted"], admitted, "{name} {limit} {algorithm}");
        assert_eq!(run["largest_rolling_count"], largest, "{name} {limit} {algorithm}");
        let (events, keys) = if name == NASA { (33_996, 2_582) } else { (53_615, 77) };
        assert_eq!((&json["events"], &json["keys"]), (&events.into(), &keys.into()));
        assert_eq!(json["files"][0]["format"], if name == NASA { "clf" } else { "csv" });
    }
}

/// Returns the events of a trace.
fn events(name: &str, path: &str) -> Vec<format_equivalence::Event> {
    let mut text = String::new();
    let file = File::open(path).expect("a trace");
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).expect("a whole trace");
    let of_csv = |line: &str| {
        let (us, key) = line.split_once(',').expect(line);
        (us.parse().expect(line), key.to_string())
    };
    // All events are of one day, in one zone.
    let of_log = |line: &str| {
        let (host, rest) = line.split_once(' ').expect(line);
        let (_, clock) = rest.split_once("[01/Aug/1995:").expect(line);
        let part = |at: usize| clock[at..at + 2].parse::<u64>().expect(line);
        let second = part(0) * 3_600 + part(3) * 60 + part(6);
        ((807_249_600 + second) * 1_000_000, host.to_string())
    };
    let lines = text.lines().filter(|line| !line.is_empty());
    if name == NASA { lines.map(of_log).collect() } else { lines.map(of_csv).collect() }
}

#[test]
fn recorded_traces_agree_in_every_format() {
    for at in [1, 6] {
        let (name, limit, algorithm, _, _, digest) = ANSWERS[at];
        let Some(path) = trace(name) else {
            eprintln!("NOT CHECKED: {name} is not in ../shared/traces beside this repository");
            continue;
        };
        let limit = format!("{limit} {algorithm}");
        format_equivalence::check(&events(name, &path), &limit, digest);
    }
}
