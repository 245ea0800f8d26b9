//! Tests of the benchmark binary, whose output is parsed by other programs.

use std::process::Command;

use serde_json::Value;

fn bench(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate-bench")).args(args).output();
    let output = output.expect("the benchmark starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?} failed: {errors}");
    String::from_utf8(output.stdout).expect("it prints text")
}

#[test]
fn floor_takes_eight_bytes_per_key() {
    // With this many keys, everything else that becomes resident is far below a byte per key.
    let bytes: f64 = bench(&["rss-of", "floor", "16000000"]).trim().parse().expect("a number");
    assert!((7.5..9.0).contains(&bytes), "the floor took {bytes} bytes per key");
}

#[test]
fn json_has_every_selected_row_and_field() {
    let text = bench(&[
        "inprocess",
        "--json",
        "--quick",
        "--workload=hot",
        "--subject=tidegate,governor,floor",
    ]);
    let json: Value = serde_json::from_str(&text).expect("stdout is one JSON document");
    let rows = json["rows"].as_array().expect("rows is a list");
    let cell = |row: &Value| {
        let text = |field: &str| row[field].as_str().expect("a name").to_owned();
        (text("workload"), row["threads"].as_u64(), text("mode"), text("subject"))
    };
    let mut cells: Vec<_> = rows.iter().map(cell).collect();
    cells.sort();
    let expected = |threads, mode: &str, subject: &str| {
        ("hot".to_owned(), Some(threads), mode.to_owned(), subject.to_owned())
    };
    let mut all: Vec<_> = ["tidegate", "governor", "floor"]
        .iter()
        .flat_map(|subject| [1, 2].map(|threads| expected(threads, "single", subject)))
        .chain([1, 2].map(|threads| expected(threads, "batch32", "tidegate")))
        .collect();
    all.sort();
    assert_eq!(cells, all);
    for row in rows {
        assert!(row["ns_per_decision"].as_f64().is_some_and(|ns| ns > 0.0), "{row}");
        assert!(row["spread"].as_f64().is_some_and(|spread| spread >= 0.0), "{row}");
        assert!(row.get("bytes_per_key").is_some_and(Value::is_null), "{row}");
    }
}

/// Regression: the table had a row for each bar of all subjects and workloads, and memory was
/// measured "with [] keys".
#[test]
fn report_has_only_what_was_measured() {
    let args = ["inprocess", "--quick", "--workload=hot", "--subject=tidegate,tidegate-2limits"];
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate-bench")).args(args).output();
    let output = output.expect("the benchmark starts");
    let [report, progress] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("UTF-8"));
    let (_, bars) = report.split_once("\nbar ").expect("a table of bars");
    let lines: Vec<&str> = bars.lines().skip(1).collect();
    let [measured, others] = lines[..] else { panic!("{report}") };
    assert!(measured.starts_with("  tidegate-2limits / tidegate, hot  "), "{report}");
    assert_eq!(others, "  and 23 that this run did not measure");
    assert!(!progress.contains("memory"), "{progress}");
}

#[test]
fn pauses_count_every_decision() {
    let text = bench(&["pauses", "--json", "--keys", "70000"]);
    let json: Value = serde_json::from_str(&text).expect("stdout is one JSON document");
    let rows = json["rows"].as_array().expect("rows is a list");
    for phase in ["fill", "refill"] {
        for subject in ["nothing", "floor", "governor", "tidegate", "tidegate-counter"] {
            let row = rows.iter().find(|row| row["phase"] == phase && row["subject"] == subject);
            let row = row.unwrap_or_else(|| panic!("{subject} has no row for {phase}"));
            assert_eq!(row["decisions"], 70_000);
            assert!(row["p99_9_ns"].as_u64() <= row["max_ns"].as_u64(), "{row}");
        }
    }
}

#[test]
fn http_rows_have_ratios_with_intervals() {
    let text = bench(&["http", "--json", "--quick", "--subject=axum,axum-forward-auth"]);
    let json: Value = serde_json::from_str(&text).expect("stdout is one JSON document");
    let rows = json["rows"].as_array().expect("rows is a list");
    let subjects: Vec<_> = rows.iter().map(|row| row["subject"].as_str()).collect();
    assert_eq!(subjects, [Some("axum"), Some("axum-forward-auth")]);
    for row in rows {
        for field in ["requests_per_second", "server_cpu_us", "requests_per_second_over_axum"] {
            let of = |part: &str| row[field][part].as_f64().expect("a number");
            assert!(of("low") > 0.0 && of("low") <= of("median"), "{field}: {row}");
            assert!(of("median") <= of("high"), "{field}: {row}");
        }
        assert!(row["requests_per_second_over_throttlecrab"].is_null(), "{row}");
    }
    assert_eq!(rows[0]["server_cpu_over_axum"]["median"], 1.0, "axum over itself");
    assert!(json["start_to_first_answer_ms"]["axum"].as_f64().is_some_and(|ms| ms > 0.0));
    let bars = json["bars"].as_array().expect("bars is a list");
    assert_eq!(bars.len(), 2);
    assert!(bars.iter().all(|bar| bar["measured"].is_null() && bar["must_met"].is_null()));
}

#[test]
fn load_without_responses_fails_with_a_message() {
    // A listener that closes every connection without an answer.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let target = format!("{address}/check/{}", std::process::id());
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate-bench"))
        .args(["http-load", "fill", &target, "--connections=2", "--keys=10"])
        .output()
        .expect("the load starts");
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.starts_with("tidegate-bench: "), "{errors}");
}
