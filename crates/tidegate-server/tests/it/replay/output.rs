//! The output of the binary.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::cli_harness::{Files, tidegate, tidegate_reading};

const TRACE: &str = "1000000,a\n1000001,a\n1000002,b\n1000003,a\n";

#[test]
fn writes_decisions_to_file() {
    let files = Files::new("decisions");
    let path = files.path("decisions.txt");
    let args = ["replay", "-", "--limit", "2 per 1s", "--decisions", &path];
    let run = tidegate_reading(&args, TRACE.as_bytes()).succeeded();
    assert_eq!(fs::read_to_string(&path).expect("a file"), "1110", "no newline");
    assert!(run.stdout.contains("4 events of 2 keys"), "{}", run.stdout);
}

#[test]
fn summary_moves_to_stderr_when_decisions_use_stdout() {
    for json in [None, Some("--json")] {
        let args = ["replay", "-", "--limit", "2 per 1s", "--decisions", "-"];
        let args: Vec<&str> = args.into_iter().chain(json).collect();
        let run = tidegate_reading(&args, TRACE.as_bytes()).succeeded();
        assert_eq!(run.stdout, "1110");
        assert!(run.stderr.contains("admitted"), "{}", run.stderr);
    }
}

/// `--html -` wrote a file named `-`.
#[test]
fn summary_moves_to_stderr_when_page_uses_stdout() {
    let files = Files::new("page-to-stdout");
    let trace = files.write("trace.csv", TRACE);
    let replay = ["replay", &trace, "--limit", "2 per 1s", "--html", "-"];
    let simulate = ["simulate", "--limit", "2 per 1s", "--traffic", "poisson", "--html", "-"];
    for args in [&replay[..], &simulate] {
        for json in [None, Some("--json")] {
            // The input is also standard input, which the page does not overwrite.
            let run = Command::new(env!("CARGO_BIN_EXE_tidegate"))
                .args(args.iter().copied().chain(json))
                .current_dir(files.path("."))
                .stdin(fs::File::open(&trace).expect("the trace"))
                .output()
                .expect("the binary runs");
            let [page, summary] =
                [&run.stdout, &run.stderr].map(|out| String::from_utf8_lossy(out));
            assert!(run.status.success(), "{args:?}: {summary}");
            assert!(page.starts_with("<!doctype html>"), "{args:?}: {page}");
            assert!(page.trim_end().ends_with("</html>"), "{args:?}: only the page");
            assert!(summary.contains("admitted"), "{args:?}: {summary}");
            assert!(!fs::exists(files.path("-")).expect("a directory"), "{args:?}");
        }
    }
}

#[test]
fn prints_summary_for_people() {
    let args = ["replay", "-", "--limit", "2 per 1s", "--limit", "9 per 1m", "--algorithm", "all"];
    let text = tidegate_reading(&args, TRACE.as_bytes()).succeeded().stdout;
    for part in [
        "4 events of 2 keys in 3 us",
        "from 1970-01-01 00:00:01Z to 1970-01-01 00:00:01Z",
        "-: csv, 4 events",
        "limit 2 per 1s, each key",
        "limit 9 per 1m, each key",
        "most in 1s",
        "most in 1m",
        "unlike sliding-log",
        "events/s",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    let row = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).expect(name);
        line.split_whitespace().skip(1).take(8).map(str::to_string).collect::<Vec<_>>()
    };
    for name in ["sliding-log", "sliding-window", "sliding-counter", "fixed-window", "token-bucket"]
    {
        assert_eq!(row(name), ["3", "1", "1", "2", "2", "0", "0", "0"], "{name}");
    }
}

/// The text listed at most five keys, whatever `--top` was.
#[test]
fn text_lists_as_many_keys_as_asked() {
    let trace: String =
        (0..12).map(|key| format!("1700000000000000,key-{key}\n").repeat(2)).collect();
    for (top, listed, more) in [
        (&[][..], 5, Some("  and 7 other keys; list more with --top")),
        (&["--top", "11"], 11, Some("  and 1 other key; list more with --top")),
        (&["--top", "12"], 12, None),
        (&["--top", "0"], 0, None),
    ] {
        let args = [&["replay", "-", "--limit", "1 per 1s"], top].concat();
        let text = tidegate_reading(&args, trace.as_bytes()).succeeded().stdout;
        let denied = text.split("most denied").nth(1).unwrap_or_default();
        let denied = denied.split("\n\n").next().unwrap_or_default();
        assert_eq!(denied.matches("  key-").count(), listed, "{top:?}: {text}");
        match more {
            Some(more) => assert!(denied.contains(more), "{top:?}: {text}"),
            None => assert!(!text.contains("list more"), "{top:?}: {text}"),
        }
    }
}

/// Returns the shape of a JSON value: names are kept, numbers and texts become their type.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (name.clone(), shape(value))).collect()
        }
        Value::Array(items) => items.iter().take(1).map(shape).collect(),
        Value::Number(number) if number.is_u64() => "count".into(),
        Value::String(_) => "text".into(),
        Value::Bool(_) => "bool".into(),
        other => other.clone(),
    }
}

#[test]
fn json_fields_are_stable() {
    let trace = TRACE.to_string() + "bad\n5,a\n";
    let problem = json!({"file": "text", "line": "count", "problem": "text"});
    let key = json!({"key": "text", "events": "count", "denied": "count", "near_misses": "count"});
    let mut run = json!({
        "algorithm": "text", "events": "count", "admitted": "count", "denied": "count",
        "keys": "count", "keys_denied": "count", "largest_rolling_count": "count",
        "near_misses": "count", "over_admitted": "count", "false_denials": "count",
        "decisions_per_second": "count", "states_held": "count", "entries_held": "count",
        "about_bytes_held": "count",
        "limits": [{
            "limit": "text", "count": "count", "window_us": "count",
            "largest_rolling_count": "count", "largest_at_us": "count", "largest_key": "text"
        }],
        "most_denied": [key], "nearest": [key]
    });
    for algorithm in [None, Some("all")] {
        let args = ["replay", "-", "--limit", "2 per 1s", "--limit", "3 per 1m", "--json"];
        let args: Vec<&str> = args
            .into_iter()
            .chain(algorithm.iter().flat_map(|name| ["--algorithm", name]))
            .collect();
        let output = tidegate_reading(&args, trace.as_bytes()).succeeded();
        assert_eq!(output.stderr, "", "problems are in the JSON");
        if algorithm.is_some() {
            run["differ"] = "count".into();
            run["sliding_log_admitted"] = "count".into();
            run["differ_by"] = json!({"admitted": "count", "denied": "count"});
        }
        let expected = json!({
            "events": "count", "keys": "count", "lines": "count",
            "from_us": "count", "to_us": "count", "span_us": "count",
            "elapsed_us": "count", "events_per_second": "count",
            "files": [{
                "path": "text", "format": "text", "gzip": "bool", "compression": null,
                "time_unit": "text", "lines": "count", "events": "count"
            }],
            "skipped": {"count": "count", "first": [problem]},
            "out_of_order": {"count": "count", "first": [problem]},
            "duplicates": {"count": "count", "first": []},
            "damaged": {"count": "count", "first": []},
            "hints": ["text"],
            "algorithms": [run]
        });
        assert_eq!(shape(&output.json()), expected);
    }
}

#[test]
fn json_reports_counts() {
    let args = ["replay", "-", "--limit", "2 per 1s fixed-window", "--limit", "3 per 1m", "--json"];
    let json = tidegate_reading(&args, TRACE.as_bytes()).succeeded().json();
    assert_eq!((&json["events"], &json["keys"]), (&4.into(), &2.into()));
    let run = &json["algorithms"][0];
    assert_eq!(run["algorithm"], "mixed");
    assert_eq!((&run["admitted"], &run["denied"]), (&3.into(), &1.into()));
    assert_eq!((&run["keys"], &run["keys_denied"]), (&2.into(), &1.into()));
    assert_eq!(run["limits"][0]["limit"], "2 per 1s fixed-window");
    assert_eq!(run["limits"][1]["limit"], "3 per 1m sliding-window");
    assert_eq!(run["limits"][1]["window_us"], 60_000_000);
    assert_eq!(run["limits"][1]["largest_rolling_count"], 2);
}

#[test]
fn charges_all_limits_or_none() {
    // The first limit denies the second event, so the second limit still has a unit for the third.
    // If it were charged, it would not.
    let trace = "1000000,k\n1000001,k\n2000001,k\n3000001,k\n";
    let limits = ["--limit", "1 per 1s sliding-log", "--limit", "2 per 1m sliding-log"];
    assert_eq!(crate::cli_harness::decisions(trace, &limits), "1010");
}

#[test]
fn help_mentions_examples() {
    let help = tidegate(&["--help"]).succeeded().stdout;
    assert!(help.contains("replay") && help.contains("tidegate serve --help"), "{help}");
    let help = tidegate(&["replay", "--help"]).succeeded().stdout;
    for part in ["time_us,key[,cost]", "--limit", "--decisions", "Examples:"] {
        assert!(help.contains(part), "{part:?} is not in:\n{help}");
    }
    let bare = tidegate(&[]);
    assert_eq!(bare.code, 2);
    assert!(bare.stderr.contains("Usage: tidegate"), "{}", bare.stderr);
    assert!(tidegate(&["--version"]).succeeded().stdout.starts_with("tidegate "));
}

#[test]
fn rejects_outputs_that_overwrite_inputs() {
    let files = Files::new("destroy");
    let trace = files.write("trace.csv", TRACE);
    let config = "policies: [{name: p, key: all, limits: [\"5 per 1s\"]}]";
    let config_path = files.write("c.yaml", config);
    let linked = files.path("linked.csv");
    fs::hard_link(&trace, &linked).expect("a link");
    for option in ["--html", "--decisions"] {
        let with_config = ["replay", &trace, "--config", &config_path, option, &config_path];
        let with_link = ["replay", &trace, "--limit", "1 per 1s", option, &linked];
        let message = |path: &str| {
            format!(
                "error: {option} {path} would overwrite a file that is read; name another file\n"
            )
        };
        tidegate(&with_config).failed(2, &[&message(&config_path)]);
        tidegate(&with_link).failed(2, &[&message(&linked)]);
        let redirected = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["replay", "-", "--limit", "1 per 1s", option, &trace])
            .stdin(fs::File::open(&trace).expect("the trace"))
            .output()
            .expect("the binary runs");
        assert_eq!(String::from_utf8_lossy(&redirected.stderr), message(&trace));
    }
    assert_eq!(fs::read_to_string(&config_path).expect("the file still exists"), config);
    assert_eq!(fs::read_to_string(&trace).expect("the file still exists"), TRACE);
}

#[test]
fn rejects_two_outputs_to_one_file() {
    let files = Files::new("two-outputs");
    let [one, other] = [files.path("o"), files.path("./o")];
    let args = |html, decisions| {
        ["replay", "-", "--limit", "1 per 1s", "--html", html, "--decisions", decisions]
    };
    let message = "would both be written to";
    tidegate_reading(&args(&one, &other), TRACE.as_bytes()).failed(2, &[message, "name two files"]);
    files.write("o", "before");
    tidegate_reading(&args(&one, &other), TRACE.as_bytes()).failed(2, &[message]);
    tidegate_reading(&args("/dev/null", "/dev/null"), TRACE.as_bytes()).succeeded();
    let message = "--html and --decisions would both be written to -; name two files";
    tidegate_reading(&args("-", "-"), TRACE.as_bytes()).failed(2, &[message]);
    let [page, decisions] = [files.path("page"), files.path("decisions")];
    let run = tidegate_reading(&args("-", &decisions), TRACE.as_bytes()).succeeded();
    assert!(run.stdout.starts_with("<!doctype html>"), "{}", run.stdout);
    let run = tidegate_reading(&args(&page, "-"), TRACE.as_bytes()).succeeded();
    assert_eq!(run.stdout, "1010");
}

#[test]
fn replaces_outputs_only_when_complete() {
    let files = Files::new("untouched");
    let [page, decisions] = ["page.html", "decisions"].map(|name| files.write(name, "before"));
    let args = [
        "replay",
        "-",
        "--limit",
        "2 per 1s",
        "--html",
        &page,
        "--decisions",
        &decisions,
        "--strict",
    ];
    let late = format!("{TRACE}no event\n");
    for (bad, message) in [
        ("", "empty"),
        ("no event\n", "the format of its first lines is unknown"),
        (&late, "--strict"),
    ] {
        tidegate_reading(&args, bad.as_bytes()).failed(1, &[message]);
        for path in [&page, &decisions] {
            assert_eq!(
                fs::read_to_string(path).expect("the file still exists"),
                "before",
                "{message}"
            );
        }
    }
    tidegate_reading(&args, TRACE.as_bytes()).succeeded();
    assert_eq!(fs::read_to_string(&decisions).expect("a file"), "1110");
    assert!(fs::read_to_string(&page).expect("a page").starts_with("<!doctype html>"));
    let mut left: Vec<_> = fs::read_dir(files.path("."))
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["decisions", "page.html"], "no temporary files are left");
}
