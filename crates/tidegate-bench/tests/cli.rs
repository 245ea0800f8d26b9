//! The benchmark as a program: what it prints is what others parse.

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
fn the_floor_takes_eight_bytes_a_key() {
    let bytes: f64 = bench(&["rss-of", "floor", "2000000"]).trim().parse().expect("a number");
    assert!((7.5..9.0).contains(&bytes), "the floor took {bytes} bytes per key");
}

#[test]
fn json_rows_have_the_promised_fields_and_every_selected_cell() {
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

#[test]
fn pauses_report_every_decision() {
    let text = bench(&["pauses", "--json", "--keys", "70000"]);
    let json: Value = serde_json::from_str(&text).expect("stdout is one JSON document");
    let rows = json["rows"].as_array().expect("rows is a list");
    for phase in ["fill", "refill"] {
        for subject in ["nothing", "floor", "governor", "tidegate"] {
            let row = rows.iter().find(|row| row["phase"] == phase && row["subject"] == subject);
            let row = row.unwrap_or_else(|| panic!("{subject} has no row for {phase}"));
            assert_eq!(row["decisions"], 70_000);
            assert!(row["p99_9_ns"].as_u64() <= row["max_ns"].as_u64(), "{row}");
        }
    }
}
