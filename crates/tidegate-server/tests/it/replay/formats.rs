//! The input formats of the binary.

use crate::cli_harness::{Files, Output, decisions, gzip, tidegate, tidegate_reading};

const LOG: &str = "\
10.0.0.1 - alice [01/Aug/1995:00:00:01 -0400] \"GET /a HTTP/1.0\" 200 1839 \"-\" \"curl/8\"
10.0.0.1 - bob [01/Aug/1995:00:00:01 -0400] \"GET /b HTTP/1.0\" 304 0 \"-\" \"curl/8\"
10.0.0.2 - alice [01/Aug/1995:00:00:02 -0400] \"GET /c \"x\" HTTP/1.0\" 404 - \"/\\\"\" \"wget\"
10.0.0.1 - bob [01/Aug/1995:01:00:02 -0300] \"GET /d HTTP/1.0\" 200 5 \"-\" \"wget\"
";

/// Returns the log without its last two fields.
fn common_log() -> String {
    let common = LOG.lines().map(|line| {
        let end = line.match_indices('"').nth_back(3).expect("two quoted fields").0;
        line[..end].trim_end().to_string() + "\n"
    });
    common.collect()
}

fn replay(trace: impl AsRef<[u8]>, args: &[&str]) -> Output {
    let args = [&["replay", "-", "--limit", "1 per 10s sliding-log"], args].concat();
    tidegate_reading(&args, trace.as_ref())
}

#[track_caller]
fn one_per_ten_seconds(trace: impl AsRef<[u8]>, args: &[&str], expected: &str) {
    let args = [&["--decisions", "-"], args].concat();
    assert_eq!(replay(trace, &args).succeeded().stdout, expected);
}

#[test]
fn csv_may_have_a_header_quotes_and_any_bytes() {
    one_per_ten_seconds("1000,a\n2000,b\n3000,a", &[], "110");
    one_per_ten_seconds("time_us,key\n1000,a\n2000,a\n", &[], "10");
    one_per_ten_seconds("\n\ntime_us,key,cost\r\n1000,a,1\r\n\r\n2000,a,1\r\n", &[], "10");
    one_per_ten_seconds("\u{feff}time_us,key\n1000,a\n10001000,a\n", &["--format", "csv"], "11");
    one_per_ten_seconds("1000,\"a,b\"\n1001,\"a,b\"\n1002,a\n", &[], "101");
    one_per_ten_seconds(b"1,\xff\n2,\xfe\n3,\xff\n", &[], "110");
}

#[test]
fn negative_cost_refunds_and_zero_peeks() {
    let trace = "1,k,3\n2,k,0\n3,k,2\n4,k,1\n5,k,0\n6,k,1\n7,k,-2\n8,k,0\n9,k,2\n10,k,0\n";
    for algorithm in ["sliding-log", "sliding-counter", "fixed-window"] {
        let args = ["--limit", "4 per 10s", "--algorithm", algorithm];
        assert_eq!(decisions(trace, &args), "1101001110", "{algorithm}");
    }
}

#[test]
fn jsonl_fields_may_be_in_any_order() {
    let trace =
        "{\"time_us\":1000,\"key\":\"a\"}\n{\"key\":\"\\u0061\",\"cost\":1,\"time_us\":2000}\n";
    one_per_ten_seconds(trace, &[], "10");
    one_per_ten_seconds(trace, &["--format", "jsonl"], "10");
}

#[test]
fn reads_logs_with_zones_and_keys() {
    // The time of the last line is in another zone: one second after the third.
    for (log, name) in [(LOG.to_string(), "combined"), (common_log(), "clf")] {
        one_per_ten_seconds(&log, &[], "1010");
        one_per_ten_seconds(&log, &["--format", name, "--key", "host"], "1010");
        one_per_ten_seconds(&log, &["--key", "user"], "1100");
        let json = replay(&log, &["--json"]).succeeded().json();
        assert_eq!(json["files"][0]["format"], name);
        assert_eq!(json["from_us"], 807_249_601_000_000_u64);
        assert_eq!(json["span_us"], 1_000_000);
    }
    one_per_ten_seconds(LOG, &["--key", "agent"], "1010");
    one_per_ten_seconds(LOG, &["--format", "clf"], "1010");
}

#[test]
fn named_zones_follow_daylight_saving_time() {
    let trace = |times: &[&str]| {
        let lines = times.iter().map(|time| format!("{{\"ts\":\"{time}\",\"key\":\"a\"}}\n"));
        lines.collect::<String>()
    };
    // Berlin skips an hour in March 2025, and has one twice in October.
    let (march, october) = (
        ["2025-03-30 01:59:59", "2025-03-30 03:00:00"],
        ["2025-10-26 02:59:59", "2025-10-26 03:00:00"],
    );
    let log = trace(&[march, october].concat());
    let berlin = ["--zone", "Europe/Berlin"];
    one_per_ten_seconds(&log, &berlin, "1011");
    one_per_ten_seconds(&log, &["--zone", "+01:00"], "1110");
    let json = replay(&log, &["--zone", "Europe/Berlin", "--json"]).succeeded().json();
    assert_eq!(json["from_us"], 1_743_296_399_000_000_u64);
    assert_eq!(json["to_us"], 1_761_444_000_000_000_u64);
    assert_eq!(json["out_of_order"]["count"], 0);

    // A time that is skipped is an hour later. One that comes twice is the first of both, so the
    // second pass steps back.
    one_per_ten_seconds(trace(&["2025-03-30 03:30:00", "2025-03-30 02:30:05"]), &berlin, "10");
    let log = trace(&["2025-10-26 02:59:59", "2025-10-26 02:00:00"]);
    let json = replay(&log, &["--zone", "Europe/Berlin", "--json"]).succeeded().json();
    assert_eq!(json["out_of_order"]["count"], 1);
    let hints = json["hints"].to_string();
    assert!(hints.contains("\"times step back by about 1 h 00 min"), "{hints}");
}

#[test]
fn detects_gzip_by_content() {
    let files = Files::new("gzip");
    let plain = files.write("plain.gz", "1,a\n2,a\n");
    let zipped = files.write("zipped.csv", gzip("1,a\n2,a\n"));
    // A line that begins in one gzip member and ends in the next.
    let members = [gzip("1,a\n2,"), gzip("a\n3,b"), gzip("")].concat();
    let members = files.write("members.gz", members);
    for (path, events, gzipped) in [(&plain, 2, false), (&zipped, 2, true), (&members, 3, true)] {
        let json = tidegate(&["replay", path, "--limit", "1 per 1s", "--json"]).succeeded().json();
        assert_eq!(json["files"][0]["gzip"], gzipped, "{path}");
        assert_eq!(json["events"], events, "{path}");
        assert_eq!(json["keys"], events - 1, "{path}");
    }
    one_per_ten_seconds(gzip("1,a\n2,a\n"), &[], "10");
}

#[test]
fn merges_files_of_different_formats() {
    let files = Files::new("several");
    let csv = files.write("a.csv", "time_us,key\n807249600000000,10.0.0.1\n");
    let log = files.write("b.log.gz", gzip(LOG));
    let args = ["--limit", "1 per 10s sliding-log", "--decisions", "-"];
    let run =
        tidegate_reading(&[&["replay", &csv, &log, "-"], &args[..]].concat(), b"807249602000000,x");
    assert_eq!(run.succeeded().stdout, "100101");
}

#[test]
fn keeps_order_across_blocks() {
    // Long keys end blocks early, short ones late. Every key occurs twice.
    let mut trace = String::new();
    for round in 0..2 {
        for key in 0..30_000 {
            let long = if key % 1_000 == 0 { "x".repeat(60_000) } else { String::new() };
            trace += &format!("{},{long}{key}\n", 1_000_000 + round);
        }
    }
    let expected = "1".repeat(30_000) + &"0".repeat(30_000);
    assert!(decisions(&trace, &["--limit", "1 per 10s sliding-log"]) == expected);
}
