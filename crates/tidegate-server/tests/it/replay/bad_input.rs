//! Input that the binary rejects, and input that it reports and skips.

use std::fs;
use std::io::Write as _;
use std::ops::Range;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cli_harness::{Files, Output, gzip, tidegate, tidegate_reading};

fn replay(path: &str, args: &[&str]) -> Output {
    tidegate(&[&["replay", path, "--limit", "2 per 1s"], args].concat())
}

fn replay_text(trace: impl AsRef<[u8]>, args: &[&str]) -> Output {
    tidegate_reading(&[&["replay", "-", "--limit", "2 per 1s"], args].concat(), trace.as_ref())
}

/// Returns the line numbers shown for a kind of problem.
fn lines(problems: &Value) -> Vec<u64> {
    let first = problems["first"].as_array().expect("problems");
    first.iter().map(|problem| problem["line"].as_u64().expect("a line")).collect()
}

#[test]
fn rejects_missing_file() {
    let files = Files::new("missing");
    let good = files.write("good.csv", "1,a\n");
    let path = files.path("missing.csv");
    replay(&path, &[]).failed(1, &["missing.csv", "no such file"]);
    // Detected before any work, and before the file of decisions is created.
    let decisions = files.path("decisions");
    replay(&good, &[&path, "--decisions", &decisions]).failed(1, &["missing.csv"]);
    assert!(!fs::exists(&decisions).expect("a directory"));
}

/// The error was only that there is no file `report.json`.
#[test]
fn names_redirection_for_file_after_json() {
    let files = Files::new("json-file");
    let trace = files.write("good.csv", "1,a\n");
    let (report, other) = (files.path("report.json"), files.path("report.jsonl"));
    let help = format!(
        "there is no such file; check the path, or use `-` to read standard input; \
                        `--json` takes no file: write `--json > {report}`\n"
    );
    replay(&trace, &["--json", &report]).failed(1, &[&format!("error: {report}: {help}")]);
    // These are misspelt names of input files.
    for args in [&[&*trace, &*report][..], &[&trace, &other, "--json"], &[&report, "--json"]] {
        let run = tidegate(&[&["replay", "--limit", "2 per 1s"], args].concat());
        assert!(!run.stderr.contains("takes no file"), "{}", run.stderr);
        run.failed(1, &["there is no such file"]);
    }
}

#[test]
fn rejects_missing_rules() {
    tidegate(&["replay", "-"]).failed(2, &["required", "--limit <LIMIT>", "--config <FILE>"]);
}

#[test]
fn suggests_quotes_for_limit_that_shell_split() {
    let hint = "put the whole limit in quotes: --limit \"10 per 1s\"";
    tidegate(&["replay", "a.csv", "--limit", "10", "per", "10s"]).failed(2, &[hint]);
}

/// The suggestion was `--timeline`, which prints counts over time.
#[test]
fn suggests_field_for_time_flag() {
    for flag in [&["--time", "ts"][..], &["--time=ts"]] {
        let run = replay_text("{\"ts\":1,\"key\":\"a\"}\n", flag);
        assert!(!run.stderr.contains("--timeline"), "{}", run.stderr);
        run.failed(
            2,
            &["unexpected argument '--time", "tip: name the field with --field time=NAME"],
        );
    }
    let help = tidegate(&["replay", "--help"]).succeeded().stdout;
    assert!(!help.contains("--time "), "{help}");
}

/// The tips were `--top`, and to pass the option as a value, which would be read as a file name.
#[test]
fn suggests_options_for_those_of_other_programs() {
    let outputs = "tip: use '--json', which prints to standard output, or '--html FILE'\n";
    let limit = "tip: use '--limit'\n";
    let rows = [
        ("--output", outputs),
        ("--out", outputs),
        ("-o", outputs),
        ("--rate", limit),
        ("--limits", limit),
    ];
    for command in [&["replay", "a.csv"][..], &["simulate"]] {
        for (option, tip) in rows {
            let run = tidegate(&[command, &[option, "x"]].concat());
            assert_eq!(run.stderr.matches("tip: ").count(), 1, "{}", run.stderr);
            run.failed(2, &[&format!("unexpected argument '{option}'"), tip]);
        }
    }
    for option in ["--colour", "-x"] {
        let run = tidegate(&["replay", "a.csv", option]);
        assert!(!run.stderr.contains("tip: "), "{}", run.stderr);
        run.failed(2, &[&format!("unexpected argument '{option}'")]);
    }
    let period = "tip: all requests of a log are replayed: select a period before";
    for option in ["--since", "--from", "--start", "--until", "--date"] {
        tidegate(&["replay", "a.csv", option, "2026-11-19"]).failed(2, &[period]);
    }
    tidegate(&["replay", "a.csv", "--form", "csv"]).failed(2, &["'--format'"]);
    // Similar names of options are still suggested.
    tidegate(&["replay", "a.csv", "--htm", "x"])
        .failed(2, &["tip: a similar argument", "'--html'"]);
}

#[test]
fn rejects_directory() {
    let files = Files::new("directory");
    replay(&files.path(""), &[]).failed(1, &["is a directory", "name its files"]);
}

#[test]
fn rejects_empty_file() {
    let files = Files::new("empty");
    let empty = files.write("empty.csv", "");
    replay(&empty, &[]).failed(1, &["empty.csv", "is empty"]);
    replay(&files.write("empty.gz", gzip("")), &[]).failed(1, &["empty.gz", "is empty"]);
    replay(&files.write("blank.csv", "\n\r\n\n"), &[]).failed(1, &["blank.csv", "is empty"]);
    replay_text("", &[]).failed(1, &["is empty"]);
    replay_text("time_us,key\n", &[]).failed(1, &["no request to replay"]);
}

#[test]
fn rejects_unknown_format() {
    let files = Files::new("unknown");
    let path = files.write("notes.txt", "dear \u{1b}[31mdiary\n");
    replay(&path, &[]).failed(1, &["notes.txt", "--format", "dear \\x1b[31mdiary"]);
    replay(&path, &["--format", "csv"]).failed(1, &["no request to replay", "notes.txt:1"]);
    replay(&path, &["--format", "xml"]).failed(2, &["xml", "combined"]);
    let binary = files.write("noise", [0_u8, 1, 2, 255, 10, 0, 0].repeat(1_000));
    replay(&binary, &[]).failed(1, &["noise: is a binary file; name a text file"]);
    // The error had 80 escaped bytes, and advised to set --time-unit.
    let program = files.write("program", b"\x7fELF\x02,\x01\x00\x00\n,\x00");
    replay(&program, &[]).failed(1, &["program: is a binary file; name a text file"]);
}

#[test]
fn names_format_of_file_if_option_names_another() {
    let files = Files::new("other-format");
    let csv = files.write("named.csv", "time_us,key\n1,a\n2,a\n");
    let plain = files.write("plain.csv", "1,a\n2,a\n");
    let line =
        "192.0.2.1 - - [01/Aug/1995:00:00:01 -0400] \"GET / HTTP/1.0\" 200 5 \"-\" \"curl\"\n";
    let log = files.write("access.log", line.repeat(3));
    let objects = files.write("app.jsonl", "{\"time_us\":1,\"key\":\"a\"}\n");
    let rows = [
        (&csv, "clf", "csv"),
        (&csv, "jsonl", "csv"),
        (&csv, "w3c", "csv"),
        (&plain, "combined", "csv"),
        (&log, "csv", "combined"),
        (&log, "jsonl", "combined"),
        (&log, "envoy", "combined"),
        (&objects, "csv", "jsonl"),
        (&objects, "clf", "jsonl"),
    ];
    for (path, format, looks_like) in rows {
        let message = format!(
            "{path}: does not have the format {format}; it looks like {looks_like}: use --format \
             {looks_like}, or leave out --format\n"
        );
        replay(path, &["--format", format]).failed(1, &[&message]);
    }
    // A field that is missing from the right format is still named.
    replay(&csv, &["--format", "csv", "--key", "user"]).failed(1, &["--key user", "time_us, key"]);
}

#[test]
fn rejects_unsupported_compression() {
    let files = Files::new("compressed");
    for (magic, program) in [
        (&b"\xfd7zXZ\0 rest"[..], "xz -dc"),
        (b"BZh91AY rest", "bzip2 -dc"),
        (
            b"PK\x03\x04 rest",
            "with zip; only gzip and zstd are read directly, so use `unzip -p FILE",
        ),
    ] {
        replay(&files.write("trace", magic), &[]).failed(1, &["trace", program]);
    }
}

#[test]
fn skips_and_reports_malformed_csv_lines() {
    let mut trace = "1,a\n".repeat(20);
    for bad in ["junk", "x,a", "5", "6,", "7,a,b", "8,a,1,2", "9,\"a", "99999999999999999999,a"] {
        trace += bad;
        trace += "\n2,b\n";
    }
    trace += "15219117208";
    let json = replay_text(&trace, &["--json"]).succeeded().json();
    assert_eq!(json["events"], 28);
    assert_eq!(json["lines"], 37);
    assert_eq!(json["skipped"]["count"], 9);
    assert_eq!(lines(&json["skipped"]), [21, 23, 25, 27, 29]);
    let text = replay_text(&trace, &[]).succeeded().stdout;
    assert!(text.contains("lines skipped: 9\n  -:21: no whole number"), "{text}");
    assert!(text.contains("  -:29: the cost is not a whole number\n  and 4 more\n"), "{text}");
    replay_text(&trace, &["--strict"]).failed(1, &["-:21: no whole number", "--strict"]);
}

#[test]
fn skips_and_reports_malformed_log_and_json_lines() {
    let log = "h - - [01/Aug/1995:00:00:01 -0400] \"GET / HTTP/1.0\" 200 1839";
    let bad =
        ["h - - [01/Aug/1995:00:00", "h - - [32/Aug/1995:00:00:01 -0400] \"GET /\" 200 5", "h"];
    let trace = format!("{log}\n{}\n{log}\n", bad.join("\n"));
    let json = replay_text(&trace, &["--json"]).succeeded().json();
    assert_eq!((&json["events"], lines(&json["skipped"])), (&2.into(), vec![2, 3, 4]));

    let line = "{\"time_us\":1,\"key\":\"a\"}";
    let trace =
        format!("{line}\n{{\"time_us\":1}}\n[1,\"a\"]\n{{\"time_us\":1,\"key\":\"a\n{line}");
    let json = replay_text(&trace, &["--json"]).succeeded().json();
    assert_eq!((&json["events"], lines(&json["skipped"])), (&2.into(), vec![2, 3, 4]));
    assert_eq!(json["skipped"]["first"][0]["problem"], "no key: field `key` is missing or empty");
}

#[test]
fn handles_empty_long_and_binary_keys() {
    let longest = "k".repeat(64 * 1024 - 2);
    let trace = format!("1,{longest}\n2,{longest}\n3,{longest}x\n4,\n5,\"\"\n6,{longest}\n");
    let json = replay_text(&trace, &["--json"]).succeeded().json();
    assert_eq!((&json["events"], &json["keys"]), (&3.into(), &1.into()));
    assert_eq!(lines(&json["skipped"]), [3, 4, 5]);
    assert_eq!(json["algorithms"][0]["denied"], 1, "the long key is one key");
    let json = replay_text(b"1,\xff\xff\n2,\xff\xff\n3,\xff\xff\n4,\xff\n", &["--json"]);
    let json = json.succeeded().json();
    assert_eq!((&json["keys"], &json["algorithms"][0]["denied"]), (&2.into(), &1.into()));
}

#[test]
fn skips_overlong_line() {
    let mut trace = b"1,a\n2,".to_vec();
    trace.resize(20 << 20, b'x');
    let json = replay_text(&trace, &["--json"]).succeeded().json();
    assert_eq!((&json["events"], lines(&json["skipped"])), (&1.into(), vec![2]));
    trace.extend(b"\n3,b");
    let json = replay_text(&trace, &["--json"]).succeeded().json();
    assert_eq!((&json["events"], lines(&json["skipped"])), (&2.into(), vec![2]));
}

#[test]
fn reports_times_out_of_order() {
    let hour = 3_600_000_000_u64;
    let year = 365 * 24 * hour;
    let start = 1_700_000_000_000_000;
    let times = [start, start + 1, start - hour, start - hour + 1, start + year, start + year];
    let trace: String = times.iter().map(|time| format!("{time},k\n")).collect();
    for algorithm in
        ["sliding-log", "sliding-window", "sliding-counter", "fixed-window", "token-bucket"]
    {
        let args = ["--algorithm", algorithm, "--json", "--decisions", "-"];
        let run = replay_text(&trace, &args).succeeded();
        assert_eq!(run.stdout, "110011", "{algorithm}: used units count at the earlier time");
        let json: Value = serde_json::from_str(&run.stderr).expect(&run.stderr);
        assert_eq!(json["out_of_order"]["count"], 1);
        assert_eq!(lines(&json["out_of_order"]), [3]);
        let problem = "3600.000001 s earlier than the event before it";
        assert_eq!(json["out_of_order"]["first"][0]["problem"], problem);
        assert_eq!(json["algorithms"][0]["largest_rolling_count"], 2, "{algorithm}");
    }
    let text = replay_text(&trace, &[]).succeeded().stdout;
    assert!(text.contains("events out of order, decided at their own time: 1"), "{text}");
    replay_text(&trace, &["--strict"]).failed(1, &["-:3: 3600.000001 s earlier"]);
}

#[test]
fn accepts_times_up_to_the_maximum() {
    let last = 1_u64 << 53;
    let trace = format!(
        "0,k\n0,k\n0,k\n{last},k\n{last},k\n{last},k\n{},k\n1700000000000000000,k\n",
        last + 1
    );
    for algorithm in
        ["sliding-log", "sliding-window", "sliding-counter", "fixed-window", "token-bucket"]
    {
        let run = replay_text(&trace, &["--algorithm", algorithm, "--decisions", "-"]).succeeded();
        assert_eq!(run.stdout, "110110", "{algorithm}");
        assert!(run.stderr.contains("lines skipped: 2"), "{}", run.stderr);
        assert!(run.stderr.contains("check --time-unit"), "{}", run.stderr);
    }
}

#[test]
fn accepts_extreme_costs() {
    let trace =
        format!("1,k,{0}\n2,k,-{0}\n3,k,2\n4,k,3\n5,k,-9223372036854775808\n6,k,2\n", i64::MAX);
    for algorithm in
        ["sliding-log", "sliding-window", "sliding-counter", "fixed-window", "token-bucket"]
    {
        let run = replay_text(&trace, &["--algorithm", algorithm, "--decisions", "-"]).succeeded();
        assert_eq!(run.stdout, "011011", "{algorithm}");
    }
}

#[test]
fn reads_damaged_gzip_up_to_the_damage() {
    let files = Files::new("damaged");
    let trace: String = (0..200_000_u64).map(|n| format!("{},{}\n", n, n * n % 1_009)).collect();
    let whole = gzip(&trace);
    let cut = files.write("cut.gz", &whole[..whole.len() / 2]);
    let json = replay(&cut, &["--json"]).succeeded().json();
    let events = json["events"].as_u64().expect("a count");
    assert!((50_000..150_000).contains(&events), "{events}");
    assert_eq!((&json["skipped"]["count"], &json["damaged"]["count"]), (&0.into(), &1.into()));
    assert_eq!(lines(&json["damaged"]), [events]);
    let text = replay(&cut, &[]).succeeded().stdout;
    assert!(text.contains("damaged files: 1") && text.contains("is truncated"), "{text}");
    replay(&cut, &["--strict"]).failed(1, &["cut.gz", "is truncated"]);

    let mut bytes = whole.clone();
    let checksum = bytes.len() - 8;
    bytes[checksum] ^= 1;
    let json = replay(&files.write("sum.gz", &bytes), &["--json"]).succeeded().json();
    assert_eq!(json["damaged"]["count"], 1);
    assert!(json["damaged"]["first"][0]["problem"].as_str().expect("a text").contains("corrupt"));

    // Nothing could be decompressed.
    let stub = files.write("stub.gz", &whole[..5]);
    replay(&stub, &[]).failed(1, &["no request to replay", "stub.gz", "truncated"]);
    // Files after a damaged one are still read.
    let good = files.write("good.csv", "1,a\n");
    let json = replay(&stub, &[&good, "--json"]).succeeded().json();
    assert_eq!((&json["events"], &json["damaged"]["count"]), (&1.into(), &1.into()));
    assert_eq!(json["files"][0]["format"], Value::Null);
}

#[test]
fn rejects_invalid_limits_and_algorithms() {
    let refuse = |args: &[&str], parts: &[&str]| {
        let args = [&["replay", "-"], args].concat();
        tidegate_reading(&args, b"1,a\n").failed(2, parts);
    };
    refuse(&[], &["--limit"]);
    refuse(&["--limit", "10 per 1y"], &["10 per 1y", "use ms, s, m, h, d or w", "^"]);
    refuse(&["--limit", "10 per 0s"], &["out of range"]);
    refuse(&["--limit", "10 per 400d"], &["out of range"]);
    refuse(&["--limit", "10 per 1s sliding-buckets"], &["write `sliding-window`"]);
    refuse(&["--limit", "10 per 1s gcra"], &["write `token-bucket`"]);
    for (name, ours) in [
        ("gcra", "token-bucket"),
        ("leaky-bucket", "token-bucket"),
        ("sliding-buckets", "sliding-window"),
    ] {
        let help = format!("use {ours}, which takes its place here");
        refuse(&["--limit", "10 per 1s", "--algorithm", name], &[&help]);
    }
    refuse(&["--limit", "10 per 1s token-bucket burst 0"], &["burst is missing or out of range"]);
    refuse(&["--limit", "10 concurrent"], &["10 concurrent", "cannot be replayed"]);
    let limit = ["--limit", "10 per 1s"];
    let with = |more: &[&'static str]| [&limit[..], more].concat();
    refuse(&with(&["--algorithm", "leaky"]), &["leaky", "sliding-log", "or all"]);
    refuse(&with(&["--algorithm", "concurrency"]), &["token-bucket, or all"]);
    refuse(&with(&["--limit", "20 per 1s"]), &["10 per 1s", "20 per 1s", "one state"]);
    refuse(
        &with(&["--limit", "20 per 1s sliding-log", "--algorithm", "all"]),
        &["same algorithm and window"],
    );
    refuse(&with(&["--algorithm", "all", "--decisions", "-"]), &["--decisions", "one algorithm"]);
    refuse(&with(&["-"]), &["only once"]);
    refuse(&with(&["--key", "{planet}"]), &["`planet`: unknown request field", "client_ip"]);
    refuse(&with(&["--key", ""]), &["name of a field"]);
    refuse(&with(&["--field", "planet=x"]), &["planet=x", "client_ip", "header:NAME"]);
    refuse(&with(&["--zone", "Mars/Olympus"]), &["Mars/Olympus", "+02:00", "Europe/Berlin"]);
    refuse(&with(&["--suggest", "101"]), &["101", "99.9"]);
    refuse(&with(&["--suggest", "99"]), &["standard input", "save it to a file"]);
    refuse(&with(&["--headroom", "15%"]), &["--suggest"]);
    refuse(&["--config", "x.yaml", "--limit", "1 per 1s"], &["--config", "--limit"]);
}

#[test]
fn decides_by_extreme_limits() {
    let decisions =
        |limit: &str| crate::cli_harness::decisions("1,a\n2,a,2\n3,a\n", &["--limit", limit]);
    assert_eq!(decisions("0 per 1s"), "000");
    assert_eq!(decisions("1 per 366d sliding-log"), "100", "a cost above the limit never passes");
    assert_eq!(decisions("1000000000000 per 366d"), "111");
}

#[test]
fn rejects_key_fields_missing_from_format() {
    replay_text("1,a\n", &["--key", "user"]).failed(1, &["format csv", "--key user"]);
    let log = "h - - [01/Aug/1995:00:00:01 -0400] \"GET / HTTP/1.0\" 200 1839\n";
    replay_text(log, &["--key", "agent"]).failed(1, &["format clf", "--key agent: "]);
    replay_text(log, &["--key", "planet"])
        .failed(1, &["--key planet: ", "its fields: host, user, method, path, status"]);
    let text = "ts,user\n1700000000,a\n";
    replay_text(text, &["--key", "planet"]).failed(1, &["--key planet: ", "its fields: ts, user"]);
}

#[test]
fn rejects_unwritable_decisions_file() {
    let files = Files::new("unwritable");
    let trace = files.write("trace.csv", "1,a\n");
    replay(&trace, &["--decisions", &files.path("no/such/place")]).failed(1, &["no/such/place"]);
    replay(&trace, &["--decisions", &trace]).failed(2, &["trace.csv", "overwrite"]);
    assert_eq!(fs::read_to_string(&trace).expect("the file still exists"), "1,a\n");
}

#[test]
fn overlong_first_line_is_malformed() {
    // Regression: such a file was reported as empty.
    let trace = "x".repeat(2_000_000) + "\n1000000,a\n2000000,a\n";
    let args = ["replay", "-", "--format", "csv", "--limit", "1 per 10s", "--json"];
    let summary = tidegate_reading(&args, trace.as_bytes()).succeeded().json();
    assert_eq!(summary["events"], 2, "{summary}");
    let args = ["replay", "-", "--limit", "1 per 10s"];
    tidegate_reading(&args, trace.as_bytes()).failed(1, &["xxxx"]);
}

#[test]
fn rejects_negative_limit() {
    let rejected = tidegate_reading(&["replay", "-", "--limit", "-1 per 1s"], b"");
    assert_eq!(rejected.code, 2);
    assert!(rejected.stderr.contains("digits only"), "{}", rejected.stderr);
}

#[test]
fn rejects_same_file_by_two_paths() {
    let files = Files::new("twice");
    let trace = files.write("trace.csv", "1,a\n");
    let [linked, hard] = [files.path("linked.csv"), files.path("hard.csv")];
    std::os::unix::fs::symlink(&trace, &linked).expect("a link");
    fs::hard_link(&trace, &hard).expect("a link");
    for other in [&trace, &files.path("./trace.csv"), &linked, &hard] {
        let message = format!("error: {other} is named twice; its events would count twice\n");
        replay(&trace, &[other]).failed(2, &[&message]);
    }
}

/// A file of any size is read as a stream: the longer one takes no more memory.
#[cfg(target_os = "linux")]
#[test]
fn memory_does_not_grow_with_the_length_of_the_input() {
    let files = Files::new("long-stream");
    let report = files.path("report.html");
    let args = ["replay", "-", "--limit", "10 per 10s", "--format", "csv", "--html", &report];
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let status = format!("/proc/{}/status", child.id());
    let mut pipe = child.stdin.take().expect("a pipe");
    let mut write = |events: Range<u64>| {
        for block in events.step_by(1_000) {
            let lines: String = (block..block + 1_000)
                .map(|event| format!("{},key-{}\n", 1_000_000 + 500 * event, event % 1_000))
                .collect();
            pipe.write_all(lines.as_bytes()).expect("it reads");
        }
        let status = fs::read_to_string(&status).expect("a running process");
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        peak.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    };
    let (short, long) = (write(0..100_000), write(100_000..600_000));
    assert!(long < short + 4_096, "{short} KiB after 100,000 events, {long} after 600,000");
    drop(pipe);
    assert!(child.wait().expect("it ends").success());
    let page = fs::read_to_string(report).expect("a report");
    assert!(page.contains("600,000"), "all events are in the report");
}

#[test]
fn rejects_suggest_with_pipes() {
    for path in ["/dev/stdin", "/dev/fd/0"] {
        let args = ["replay", path, "--limit", "1 per 1s", "--suggest", "99"];
        tidegate_reading(&args, b"1,a\n").failed(
            2,
            &["which is impossible for standard input and pipes; save it to a file first"],
        );
    }
}

#[test]
fn rejects_binary_files() {
    let files = Files::new("no-text");
    let zstd = |bytes: &[u8]| {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    };
    let utf_16: Vec<u8> = "\u{feff}1,a\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let twice = "is compressed twice, gzip inside";
    let array = "is a JSON array; write one object per line: `jq -c '.[]' FILE | tidegate replay";
    // The start of the first header of an archive, as in `access.tar.gz`.
    let mut archive = b"logs/access,1.csv".to_vec();
    archive.resize(257, 0);
    archive.extend(b"ustar  \0");
    archive.resize(512, 0);
    archive.extend(b"1,a\n");
    let tar = "is a tar archive; extract its files and name them";
    let formats = "the known formats are combined, clf, envoy, alb, w3c, csv, jsonl: set one with \
                   --format, or see `tidegate replay --help`\n";
    let rows: [(&[u8], &str); 15] = [
        (&archive, tar),
        (&gzip(&archive), tar),
        (&zstd(&archive), tar),
        (b"10.0.0.1 GET /\n", &format!("(it begins `10.0.0.1 GET /`); {formats}")),
        (
            b"1700000000.5,a\n",
            &format!(
                "csv without column names is time_us,key[,cost]: set --time-unit (s for seconds and \
                 dates, or ms or ns), or add a first line with the names of the columns; {formats}"
            ),
        ),
        (
            &gzip(gzip("1,a\n")),
            &format!("{twice} gzip; use `gzip -dc FILE | tidegate replay - ...`"),
        ),
        (
            &zstd(&gzip("1,a\n")),
            &format!("{twice} zstd; use `zstd -dc FILE | tidegate replay - ...`"),
        ),
        (&utf_16, "is text in UTF-16; make it UTF-8 first, e.g. `iconv -f UTF-16 -t UTF-8 FILE"),
        (&gzip(&utf_16), "is text in UTF-16"),
        (b"[{\"time_us\":1,\"key\":\"a\"},\n{\"time_us\":2,\"key\":\"a\"}]\n", array),
        (b"[\n  {\n    \"time_us\": 1,\n    \"key\": \"a\"\n  }\n]\n", array),
        (b"time_us,key\n", "the input has column names and no lines below them\n"),
        (b"ts,client_ip\n", "column names and no lines below them\n"),
        (
            b"{\"ts\":1,\"key\":\n",
            "begins as JSON, but its first line is broken: EOF while parsing a value (column 14); \
             each line must be one whole object\n",
        ),
        (b"{\n\"ts\": 1\n}\n", "its first line is broken: EOF while parsing an object"),
    ];
    for (bytes, message) in rows {
        replay(&files.write("trace", bytes), &[]).failed(1, &[message]);
    }
    let broken = files.write("broken", "{\"ts\":1,\n");
    replay(&broken, &["--format", "jsonl"]).failed(1, &["begins as JSON", "broken: "]);
}

#[test]
fn escapes_paths_in_reports() {
    let files = Files::new("hostile-path");
    let path = files.write("a\u{1b}[2J\u{202e}.csv", "1,a\njunk\n");
    let text = replay(&path, &[]).succeeded().stdout;
    assert!(text.contains("a\\x1b[2J\\xe2\\x80\\xae.csv: csv, 1 event"), "{text}");
    assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
}
