//! Simulated traffic.

use std::fs;

use serde_json::Value;

use super::page_data;
use crate::cli_harness::{Files, tidegate, tidegate_reading};

fn simulate(args: &[&str]) -> Value {
    tidegate(&[&["simulate", "--limit", "10 per 10s", "--json"], args].concat()).succeeded().json()
}

#[test]
fn table_matches_golden_file() {
    let args =
        ["simulate", "--limit", "10 per 10s", "--traffic", "all", "--table", "--windows", "10"];
    let table = tidegate(&args).succeeded().stdout;
    assert_eq!(table, GOLDEN, "{table}");
}

#[test]
fn same_seed_gives_same_traffic() {
    let run = |seed: &str| {
        let mut json =
            simulate(&["--traffic", "poisson", "--windows", "5", "--seed", seed, "--timeline"]);
        for name in ["elapsed_us", "events_per_second"] {
            json[name] = 0.into();
        }
        json["algorithms"][0]["decisions_per_second"] = 0.into();
        json
    };
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7"), run("8"));
}

#[test]
fn each_traffic_shows_its_effect() {
    // Traffic, algorithm, and the range of the largest true count of one key.
    for (traffic, algorithm, least, most) in [
        ("boundary", "sliding-log", 10, 10),
        ("boundary", "sliding-window", 10, 10),
        ("boundary", "sliding-counter", 19, 20),
        ("boundary", "fixed-window", 20, 20),
        ("bursts", "sliding-window", 10, 10),
        ("zipf", "sliding-log", 10, 10),
        ("hot-tenant", "fixed-window", 11, 20),
        ("retry-storm", "sliding-log", 10, 10),
    ] {
        let json = simulate(&["--traffic", traffic, "--algorithm", algorithm, "--windows", "20"]);
        let run = &json["algorithms"][0];
        let largest = run["largest_rolling_count"].as_u64().expect("a count");
        assert!((least..=most).contains(&largest), "{traffic} {algorithm}: {largest}");
        assert_eq!(run["over_admitted"] == 0, largest <= 10, "{traffic} {algorithm}");
    }
}

/// Regression: all algorithms had the number of events of the first one, although clients that
/// react to denials send each a different number.
#[test]
fn retry_storm_counts_the_events_of_each_algorithm() {
    let args = ["--traffic", "retry-storm", "--windows", "20", "--algorithm", "all"];
    let json = simulate(&args);
    let runs = json["algorithms"].as_array().expect("algorithms");
    let events = |run: &Value| run["events"].as_u64().expect("a number");
    for run in runs {
        assert_eq!(run["most_denied"][0]["events"], run["events"], "{run}");
    }
    let main = runs.iter().find(|run| run["algorithm"] == "sliding-window").expect("the default");
    assert_ne!(events(main), events(&runs[0]));
    assert_eq!(json["events"], main["events"], "those of the requested algorithm");

    let files = Files::new("storm");
    let page = files.path("page.html");
    let args = [&["simulate", "--limit", "10 per 10s", "--html", &page], &args[..]].concat();
    let text = tidegate(&args).succeeded().stdout;
    let heading = text.lines().next().expect("a heading");
    assert!(heading.ends_with(" of 1 key in 3 min 20 s under sliding-window"), "{heading}");
    let row = |name: &str| {
        let mut rows = text.lines().filter(|line| line.starts_with(name));
        let words = rows.next().expect(name).split_whitespace().map(|word| word.replace(',', ""));
        words.collect::<Vec<_>>()
    };
    for run in runs {
        let name = run["algorithm"].as_str().expect("a name");
        assert_eq!(row(name)[1], events(run).to_string(), "{text}");
    }
    assert_eq!(row("  tenant")[1], events(main).to_string(), "{text}");
    let page = fs::read_to_string(&page).expect("a page");
    assert!(page.contains("each algorithm received different requests: from "), "{page}");
}

/// Every attempt that was denied while capacity returned late counted as wrong, and nothing showed
/// that in total the same number was admitted.
#[test]
fn wrong_decisions_stand_beside_the_net_difference() {
    let files = Files::new("net");
    let path = files.path("page.html");
    let limit = ["simulate", "--limit", "20 per 10s", "--html", &path];
    let net = |args: &[&str]| {
        let text = tidegate(&[&limit, args].concat()).succeeded().stdout;
        let page = page_data(&fs::read_to_string(&path).expect("a page"));
        (text, page)
    };
    let (text, page) = net(&["--traffic", "retry-storm", "--algorithm", "all"]);
    let line = "admitted, compared with sliding-log: sliding-window as many, sliding-counter as many, \
                fixed-window as many, token-bucket 19 more (1.0 %)\n";
    assert!(text.contains(line), "{text}");
    let sentences = page["findings"].as_array().expect("sentences");
    let at = |text: &str| sentences.iter().position(|one| one == text).expect(text);
    assert_eq!(
        at("Requests that were denied although they fitted: 2,185.") + 1,
        at("In total: as many admitted as sliding-log.")
    );
    assert_eq!(page["net"][1]["phrase"], "as many admitted as sliding-log");
    assert_eq!(page["net"][0], Value::Null);

    // The page compares a single algorithm too, where the requests are the same.
    let (text, page) = net(&["--traffic", "bursts", "--algorithm", "fixed-window"]);
    assert!(!text.contains("compared with"), "{text}");
    let run = &page["algorithms"][0];
    let [admitted, exact] = ["admitted", "sliding_log_admitted"].map(|name| run[name].as_u64());
    let log = net(&["--traffic", "bursts", "--algorithm", "sliding-log"]).1;
    assert_eq!(exact, log["algorithms"][0]["admitted"].as_u64());
    let more = admitted.zip(exact).map(|(admitted, exact)| admitted - exact).expect("counts");
    let phrase = page["net"][0]["phrase"].as_str().expect("a difference");
    assert!(phrase.replace(',', "").starts_with(&format!("{more} more admitted")), "{phrase}");
    let page = net(&["--traffic", "retry-storm"]).1;
    assert_eq!(page["net"], serde_json::json!([null]), "sliding-log was not run");
}

#[test]
fn simulation_writes_the_same_reports() {
    let files = Files::new("simulated");
    let page = files.path("page.html");
    let args = ["simulate", "--limit", "10 per 10s", "--traffic", "hot-tenant", "--html", &page];
    let text = tidegate(&args).succeeded().stdout;
    for part in ["  hot-tenant: 500 tenants, one of which sends half", "seed 1\n", "  tenant-0 "] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains("unlike sliding-log"), "only the page compares a single algorithm");
    let page = fs::read_to_string(&page).expect("a page");
    assert!(page.contains("\"name\":\"hot-tenant\"") && page.contains("\"differ_by\":"));
}

#[test]
fn rejects_invalid_simulations() {
    let refuse = |args: &[&str], parts: &[&str]| {
        tidegate(&[&["simulate"], args].concat()).failed(2, parts);
    };
    let limit = ["--limit", "10 per 10s"];
    let with = |more: &[&'static str]| [&limit[..], more].concat();
    refuse(&["--traffic", "poisson"], &["--limit"]);
    refuse(&limit, &["--traffic"]);
    refuse(&with(&["--traffic", "flood"]), &["flood", "poisson", "hot-tenant or all"]);
    refuse(&with(&["--traffic", "all"]), &["--traffic all requires --table"]);
    refuse(&with(&["--traffic", "poisson", "--load", "0"]), &["0.001 to 1000"]);
    refuse(&with(&["--traffic", "poisson", "--clients", "0"]), &["number from 1 to 10000000"]);
    refuse(&with(&["--traffic", "poisson", "--top", "x"]), &["whole number from 0 to 1000"]);
    refuse(&with(&["--traffic", "poisson", "--top", "-1"]), &["whole number from 0 to 1000"]);
    refuse(&with(&["--traffic", "poisson", "--load", "-1"]), &["0.001 to 1000"]);
    refuse(&with(&["--traffic", "poisson", "--seed", "abc"]), &["whole number from 0 to 184467"]);
    refuse(
        &with(&["--traffic", "poisson", "--windows", "400000000"]),
        &["more than a billion requests", "--windows"],
    );
    refuse(&["--limit", "1000000000000 per 1ms", "--traffic", "zipf"], &["more than a billion"]);
    refuse(
        &with(&["--traffic", "boundary", "--load", "2"]),
        &["--load has no effect on the traffic boundary", "leave it out"],
    );
    for traffic in ["poisson", "bursts", "hot-tenant", "diurnal", "retry-storm-jitter", "zipf"] {
        let args = ["--limit", "1 per 366d", "--traffic", traffic, "--load", "0.001"];
        let long = ["--clients", "1", "--windows", "4294967295"];
        let message = "error: --windows 4294967295 with --limit `1 per 366d sliding-window` is more \
                    than 200 years; lower --windows, or use a limit with a shorter window\n";
        refuse(&[&args[..], &long].concat(), &[message]);
        let longest = ["--clients", "2", "--windows", "200", "--top", "0"];
        tidegate(&[&["simulate"], &args[..], &longest].concat()).succeeded();
    }
    let storm = ["--limit", "1 per 1ms", "--traffic", "retry-storm", "--load", "0.001"];
    refuse(
        &[&storm[..], &["--windows", "100000000", "--clients", "1000"]].concat(),
        &["more than a billion requests", "--windows"],
    );
    refuse(&["--limit", "5 concurrent", "--traffic", "poisson"], &["cannot be replayed"]);
    refuse(&with(&["--traffic", "all", "--table", "--json"]), &["--table", "--json"]);
    let missing = [
        "simulate",
        "--limit",
        "1 per 1s",
        "--traffic",
        "boundary",
        "--table",
        "--trace",
        "no-such",
    ];
    let run = tidegate(&missing);
    assert_eq!(run.code, 1);
    assert!(run.stderr.contains("no-such: there is no such file"), "{}", run.stderr);
}

/// Returns the accuracy table of one limit, which takes a fraction of the time of the whole table.
fn accuracy(args: &[&str]) -> String {
    tidegate(&[&["simulate", "--accuracy"], args].concat()).succeeded().stdout
}

#[test]
fn accuracy_table_matches_golden_file() {
    let table = accuracy(&["--limit", "30 per 10s", "--trace", SAMPLE]);
    assert_eq!(table, ACCURACY, "{table}");
    assert_ne!(accuracy(&["--limit", "30 per 10s", "--seed", "2"]), table);
    // Limits are measured separately, including those that would share a count.
    let two = accuracy(&["--limit", "10 per 10s", "--limit", "30 per 10s"]);
    assert!(two.contains("steady client at 100 % of the limit | 98.5 to 100.0 (0) |"), "{two}");
}

#[test]
fn accuracy_table_keeps_sliding_window_within_limit() {
    // A log, both ends of 15 cells, 7 cells, and traffic that begins at other times.
    for (limit, seed) in [
        ("3 per 1s", "1"),
        ("20 per 1m", "2"),
        ("21 per 1m", "3"),
        ("2000 per 1s", "4"),
        ("2001 per 1001ms", "5"),
    ] {
        let table = accuracy(&["--limit", limit, "--seed", seed]);
        let rows: Vec<Vec<&str>> =
            table.lines().skip(2).map(|line| line.split(" | ").collect()).collect();
        assert_eq!(rows.len(), 4, "{table}");
        for row in rows {
            let [_, window, _, buckets] = &row[..] else { panic!("{table}") };
            assert!(window.ends_with(" (0)"), "{limit}, seed {seed}:\n{table}");
            assert!(buckets.ends_with(" (0) |"), "{limit}, seed {seed}:\n{table}");
            // The sliding window admits at most as much as the log, and not much less.
            let admitted = window.split([' ', '.']).filter_map(|part| part.parse::<u32>().ok());
            assert!(admitted.clone().all(|part| part <= 100), "{table}");
            assert!(admitted.into_iter().any(|part| part > 90), "{table}");
        }
    }
}

#[test]
fn accuracy_rejects_unused_options() {
    for option in [
        &["--traffic", "poisson"][..],
        &["--algorithm", "all"],
        &["--clients", "5"],
        &["--load", "2"],
        &["--windows", "3"],
        &["--table"],
        &["--json"],
    ] {
        let args = [&["simulate", "--accuracy"], option].concat();
        tidegate(&args).failed(2, &["cannot be used with", option[0]]);
    }
    let refuse = |args: &[&str], parts: &[&str]| {
        tidegate(&[&["simulate", "--accuracy"], args].concat()).failed(2, parts);
    };
    refuse(&["--limit", "5 concurrent"], &["cannot be replayed"]);
    refuse(&["--limit", "1000000000 per 1s"], &["more than a billion requests"]);
    tidegate(&["simulate", "--accuracy", "--trace", "no-such"])
        .failed(1, &["no-such: there is no such file"]);
    // Nothing passes under a limit of 0, so there is no ratio.
    let none = tidegate(&["simulate", "--accuracy", "--limit", "0 per 1s"]).succeeded().stdout;
    assert!(none.contains("| bursts | - | - | - |"), "{none}");
}

const ACCURACY: &str = include_str!("golden/accuracy.md");

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/traces/sample.csv");

/// The recorded table. Other versions must generate the same traffic and make the same decisions.
const GOLDEN: &str = include_str!("golden/simulated.md");

/// Regression: standard input was read once for each limit, so the second limit found no events.
#[test]
fn accuracy_reads_standard_input_for_every_limit() {
    let trace: String =
        (0..200).map(|n| format!("{},key\n", 1_700_000_000_000_000_u64 + n)).collect();
    let args = ["simulate", "--accuracy", "--trace", "-"];
    let table = tidegate_reading(&args, trace.as_bytes()).succeeded().stdout;
    assert!(table.lines().last().is_some_and(|row| row.contains("100.0 (0)")), "{table}");
}
