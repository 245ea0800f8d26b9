//! Hints about suspicious input, and compressed files that are damaged.

use std::fs;

use super::{page_data, replay};
use crate::cli_harness::{Files, tidegate, tidegate_reading};

/// Input, arguments, and the expected output: malformed lines with their positions, and hints.
const ODD: &[(&str, &str, &[&str], &[&str])] = &[
    (
        "mixed formats",
        "1,a\n2,b\n{\"time_us\":3,\"key\":\"a\"}\nh - - [01/Jan/1970:00:00:02 +0000] \"GET /\" 200 5\n4,a\n",
        &[],
        &[
            "lines skipped: 2\n",
            "  -:3: no whole number of microseconds at its start (set --time-unit, or add a line with the names of the columns); the line has format jsonl, replay such lines separately with --format jsonl\n",
            "  -:4: no whole number of microseconds at its start (set --time-unit, or add a line with the names of the columns); the line has format clf, replay such lines separately with --format clf\n",
        ],
    ),
    (
        "seconds taken for microseconds",
        "1700000000,a\n1700000001,a\n",
        &[],
        &[
            "hint: -: times are read in us, so the last one is 1970-01-01 00:28:20Z; if that is wrong, set --time-unit to s, ms, us or ns, or, if the columns are not time,key, add a first line with their names\n",
        ],
    ),
    // The hint named only the unit, and no unit helps.
    (
        "the key before the time",
        "42,1700000000000000\n7,1700000001000000\n",
        &["--time-unit", "s"],
        &[
            "hint: -: times are read in s, so the last one is 1970-01-01 00:00:42Z; if that is wrong, set --time-unit to s, ms, us or ns, or, if the columns are not time,key, add a first line with their names\n",
        ],
    ),
    (
        "large keys before the time",
        "5000000000000000,1700000000000000\n",
        &[],
        &[
            "; check --time-unit, or, if the columns are not time,key, add a first line with their names\n",
        ],
    ),
    (
        "columns with names",
        "time_us,key\n42,a\n",
        &[],
        &["if that is wrong, set --time-unit to s, ms, us or ns\n"],
    ),
    (
        "milliseconds taken for microseconds",
        "1700000000000,a\n1700000001000,a\n",
        &[],
        &["hint: -: times are read in us, so the last one is 1970-01-20 16:13:20Z; if that"],
    ),
    (
        "a date in another order",
        "time,key\n2023-11-14T22:13:20Z,a\n11/14/2023 22:13,a\n",
        &[],
        &["  -:3: field `time` is `11/14/2023 22:13`: not a number or a time such as 2023-11-14T"],
    ),
    (
        "a line without a time",
        "{\"time\":1700000000,\"key\":\"a\"}\n{\"key\":\"a\"}\n",
        &[],
        &["  -:2: no time: field `time` is missing or empty\n"],
    ),
    (
        "milliseconds said to be seconds",
        "1700000000,a\n1700000001123,a\n",
        &["--time-unit", "s"],
        &["  -:2: a time after the year 2255; check --time-unit\n"],
    ),
    (
        "units that change",
        "ts,key\n1700000000,a\n1700000001123,a\n",
        &[],
        &[
            "  -:3: field `ts` is `1700000001123`: a time in ms where the first was in s; set the unit with --time-unit\n",
            "times in s, 1 event\n",
        ],
    ),
    (
        "a clock set back by an hour",
        "7200000000,a\n3600000000,a\n",
        &[],
        &[
            "events out of order, decided at their own time: 1\n",
            "hint: times step back by about 1 h 00 min",
        ],
    ),
    (
        "no zone",
        "{\"time\":\"2023-11-14T22:13:20\",\"key\":\"a\"}\n",
        &[],
        &["hint: -: 1 time had no zone: read as UTC; set the zone with --zone\n"],
    ),
    (
        "what log lines say themselves",
        "h - - [14/Nov/2023:22:13:20 +0000] \"GET / HTTP/1.1\" 200 5\n",
        &["--time-unit", "ms", "--field", "time=ts"],
        &[
            "hint: -: --field has no effect on the formats clf and combined\n",
            "hint: -: times are not numbers, so --time-unit has no effect\n",
        ],
    ),
    (
        "fields before a client without a known ident",
        "web1 nginx: h i u [14/Nov/2023:22:13:20 +0000] \"GET / HTTP/1.1\" 200 5\n",
        &[],
        &[
            "hint: -: before their [date], lines have more than the three fields `host ident user`, and no ident is `-`: the first field is read as the client; if it is not, remove what is before the client\n",
        ],
    ),
    (
        "a line without the fields that precede the others",
        "web1 nginx: h - - [14/Nov/2023:22:13:20 +0000] \"GET /\" 200 5\nh - - [14/Nov/2023:22:13:20 +0000] \"GET /\" 200 5\nweb1 nginx: h - - [14/Nov/2023:22:13:21 +0000] \"GET /\" 200 5\n",
        &[],
        &[
            "2 events of 1 key",
            "  -:2: too few fields before the [date]: no client where most of the first lines have it\n",
        ],
    ),
    (
        "the same lines",
        "1700000000000000,a\n1700000000000000,a\n1700000000000001,a\n",
        &[],
        &[
            "3 events of 1 key",
            "lines equal to the line before: 1\n  -:2: equal to the line before\n",
        ],
    ),
    (
        "the same lines left out",
        "1700000000000000,a\n1700000000000000,a\n1700000000000001,a\n",
        &["--skip-duplicates"],
        &["2 events of 1 key", "lines equal to the line before: 1\n"],
    ),
    (
        "more junk than lines",
        "1700000000000000,a\nx\ny\nz\n",
        &["--format", "csv"],
        &["lines skipped: 3\n", "hint: more lines were skipped than read; check --format\n"],
    ),
];

#[test]
fn explains_suspicious_input() {
    for (name, trace, args, parts) in ODD {
        let args = [&["--limit", "10 per 10s"], *args].concat();
        let text = replay(trace, &args).succeeded().stdout;
        for part in *parts {
            assert!(text.contains(part), "{name}: {part:?} is not in\n{text}");
        }
    }
}

/// The hint about times without a zone appeared although `--zone` names theirs.
#[test]
fn given_zone_needs_no_hint() {
    let trace = "{\"time\":\"2023-11-14T22:13:20\",\"key\":\"a\"}\n";
    for (zone, hints) in [(&[][..], 1), (&["--zone", "Europe/Berlin"], 0), (&["--zone", "Z"], 0)] {
        let args = [&["--limit", "10 per 10s", "--json"], zone].concat();
        let json = replay(trace, &args).succeeded().json();
        assert_eq!(json["hints"].as_array().map(Vec::len), Some(hints), "{zone:?}: {json}");
    }
}

/// A trace of events at these milliseconds.
fn at_ms(times: impl IntoIterator<Item = u64>) -> String {
    times.into_iter().map(|ms| format!("{},a\n", 1_700_000_000_000_000 + ms * 1_000)).collect()
}

/// A trace in reverse order had no hint, and its page said that no decision was wrong.
#[test]
fn unsorted_input_is_not_described_as_real_time() {
    let files = Files::new("unsorted");
    let page = files.path("page.html");
    let reversed = at_ms((0..50).rev().map(|at| at * 1_000));
    let sorted = at_ms((0..50).map(|at| at * 1_000));
    for (trace, is_sorted) in [(&reversed, false), (&sorted, true)] {
        let run = replay(trace, &["--limit", "10 per 1s", "--html", &page]).succeeded();
        let hint = "98.0 % of the events are earlier than an event before them by more than a tenth \
                    of the shortest window (1s): sort the input by time; the counts do not \
                    describe real time";
        assert_ne!(run.stdout.contains(&format!("hint: {hint}\n")), is_sorted, "{}", run.stdout);
        let data = page_data(&fs::read_to_string(&page).expect("a page"));
        let findings = data["findings"].to_string();
        for part in ["The largest burst", "No request was admitted above"] {
            assert_eq!(findings.contains(part), is_sorted, "{part}: {findings}");
        }
        if !is_sorted {
            assert_eq!(data["hints"][0], hint);
            assert_eq!(data["findings"][1], format!("{hint}."));
        }
    }
}

/// Every step back counted, however small. A log whose slow requests are written at their end
/// had the hint under any window.
#[test]
fn late_events_are_those_that_matter_for_the_shortest_window() {
    // Every tenth request took 600 ms, and its line is written at its end.
    let slow = || (0..200_u64).map(|at| if at % 10 == 9 { at * 100 - 600 } else { at * 100 });
    // Of 200 events in 20 s, this many are an hour late.
    let late = |count: u64| {
        (0..200).map(move |at| 3_600_000 + at * 100 - u64::from(at >= 200 - count) * 3_600_000)
    };
    let rows: &[(&str, String, &[&str], Option<&str>)] = &[
        ("slow requests, long window", at_ms(slow()), &["10 per 5s"], None),
        ("slow requests, short window", at_ms(slow()), &["10 per 4s"], Some("10.0 %")),
        ("the shortest window counts", at_ms(slow()), &["10 per 1h", "1 per 1s"], Some("10.0 %")),
        ("a hundredth", at_ms(late(2)), &["10 per 5s"], None),
        ("more than a hundredth", at_ms(late(3)), &["10 per 5s"], Some("1.5 %")),
        ("many small steps back", at_ms((0..200).rev()), &["10 per 1s"], Some("49.5 %")),
        ("small steps that add up to little", at_ms((0..200).rev()), &["10 per 2s"], None),
    ];
    for (name, trace, limits, share) in rows {
        let limits = limits.iter().flat_map(|limit| ["--limit", limit]);
        let json = replay(trace, &[vec!["--json"], limits.collect()].concat()).succeeded().json();
        let hints = json["hints"].as_array().expect("a list").iter();
        let hints =
            hints.filter_map(|hint| hint.as_str()?.split_once(" of the events are earlier"));
        assert_eq!(hints.map(|(share, _)| share).next(), *share, "{name}: {json}");
    }
}

/// The hint said "sort the file" about standard input.
#[test]
fn hint_about_order_names_what_to_sort() {
    let files = Files::new("unsorted-inputs");
    let trace = at_ms((0..50).rev().map(|at| at * 1_000));
    let (one, two) = (files.write("one.csv", &trace), files.write("two.csv", &trace));
    for (inputs, what) in [
        (&["-"][..], "sort the input by time"),
        (&[&one], "sort the file by time"),
        (&[&one, &two], "sort each file by time"),
        (&[&one, "-"], "sort each input by time"),
    ] {
        let args = [&["replay", "--limit", "10 per 1s"], inputs].concat();
        let text = tidegate_reading(&args, trace.as_bytes()).succeeded().stdout;
        assert!(text.contains(what), "{inputs:?}: {text}");
    }
}

#[test]
fn rejects_input_without_times_or_keys() {
    for (trace, args, parts) in [
        (
            "{\"user\":\"a\"}\n",
            &[][..],
            &["is known to be the time", "--field time=NAME", "its fields: user"][..],
        ),
        (
            "{\"ts\":1700000000,\"planet\":\"a\"}\n",
            &[],
            &["known to be the key", "--key NAME", "planet, ts"],
        ),
        // Its format was unknown, and the advice was to name the columns.
        (
            "time_us\n1700000000000000\n",
            &[],
            &[
                "known to be the key; name it with --key NAME, or count all requests together with --key all (its fields: time_us)",
            ],
        ),
        ("user,planet\na,b\n", &[], &["known to be the time", "user, planet"]),
        ("192.0.2.1 GET /\n", &[], &["is unknown", "192.0.2.1 GET /"]),
        (
            "{\"ts\":\"yesterday\",\"key\":\"a\"}\n",
            &[],
            &["no request to replay", "field `ts` is `yesterday`: not a number"],
        ),
    ] {
        let args = [&["--limit", "10 per 10s"], args].concat();
        replay(trace, &args).failed(1, parts);
    }
}

#[test]
fn reads_truncated_zstd_up_to_the_end() {
    let files = Files::new("zstd-cut");
    // A frame with a window of 1 MiB, with and without a checksum, of uncompressed blocks. Each is
    // shorter than the window, and the last is truncated or missing.
    let lines: String = (100..1_100).map(|n| format!("{n},a\n")).collect();
    let size = u32::try_from(lines.len()).expect("small") << 3;
    let block = [&size.to_le_bytes()[..3], lines.as_bytes()].concat();
    for (flags, cut) in [(0, block.len()), (4, block.len()), (0, 2), (4, 5), (0, 4)] {
        let frame = [b"\x28\xb5\x2f\xfd", &[flags, 0x50][..], &block, &block, &block[..cut]];
        let path = files.write("cut.zst", frame.concat());
        let args = ["replay", &path, "--limit", "2 per 1s", "--json"];
        let json = tidegate(&args).succeeded().json();
        let events = if cut == block.len() { 3_000 } else { 2_000 };
        assert_eq!(json["events"], events, "{flags}, {cut}: {json}");
        assert_eq!(json["damaged"]["count"], 1, "{flags}, {cut}");
        assert_eq!(json["skipped"]["count"], 0, "{flags}, {cut}");
    }
}

#[test]
fn reports_damaged_zstd() {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    let files = Files::new("zstd-damaged");
    let trace: String = (0..200_000_u64).map(|n| format!("{},{}\n", n, n * n % 1_009)).collect();
    let whole = compress_to_vec(trace.as_bytes(), CompressionLevel::Fastest);
    let replay = |path: &str, args: &[&str]| {
        tidegate(&[&["replay", path, "--limit", "2 per 1s"], args].concat())
    };
    let cut = files.write("cut.zst", &whole[..whole.len() / 2]);
    let json = replay(&cut, &["--json"]).succeeded().json();
    let events = json["events"].as_u64().expect("a count");
    assert!((50_000..150_000).contains(&events), "{events}");
    assert_eq!(json["files"][0]["compression"], "zstd");
    let text = replay(&cut, &[]).succeeded().stdout;
    assert!(text.contains("the zstd file is truncated: it was read up to here"), "{text}");
    replay(&cut, &["--strict"]).failed(1, &["cut.zst", "is truncated"]);
    let mut bytes = whole.clone();
    let checksum = bytes.len() - 2;
    bytes[checksum] ^= 1;
    let text = replay(&files.write("sum.zst", &bytes), &[]).succeeded().stdout;
    assert!(text.contains("the zstd file is corrupt"), "{text}");
    let stub = files.write("stub.zst", &whole[..3]);
    replay(&stub, &[]).failed(1, &["stub.zst"]);
    replay(&files.write("junk.zst", b"\x28\xb5\x2f\xfd rest"), &[])
        .failed(1, &["no request to replay", "junk.zst"]);
}
