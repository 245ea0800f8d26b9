//! Reports of a replay besides its decisions: pages, policies, suggestions, hints.

use std::fs;

use serde_json::Value;

use crate::cli_harness::{Files, Output, tidegate, tidegate_reading};

/// Returns a summary without the parts that differ between runs.
fn steady(text: &str) -> String {
    let mut lines = Vec::new();
    let mut in_table = false;
    for line in text.lines() {
        in_table = line.ends_with("decisions/s") || (in_table && !line.is_empty());
        let kept = match line.rsplit_once(' ') {
            Some((rest, _)) if in_table => rest.trim_end(),
            _ if line.starts_with("replayed in ") => "replayed in ...",
            _ => line,
        };
        lines.push(kept);
    }
    lines.join("\n")
}

fn replay(trace: &str, args: &[&str]) -> Output {
    tidegate_reading(&[&["replay", "-"], args].concat(), trace.as_bytes())
}

/// Returns the data of a page.
fn data(page: &str) -> Value {
    let start = page.find("id=\"data\">").expect("the data") + "id=\"data\">".len();
    let end = start + page[start..].find("</script>").expect("the end of the data");
    serde_json::from_str(&page[start..end]).expect("JSON")
}

#[test]
fn prints_full_summary() {
    let mut trace = String::new();
    for n in 0..40 {
        trace += &format!("{},burst\n", 1_700_000_000_000_000_u64 + n * 100_000);
        if n % 10 == 0 {
            trace += &format!("{},calm\n", 1_700_000_000_000_000_u64 + n * 100_000);
        }
    }
    let run = replay(&trace, &["--limit", "9 per 1s", "--algorithm", "all"]).succeeded();
    let expected = "\
44 events of 2 keys in 3.900 s
from 2023-11-14 22:13:20Z to 2023-11-14 22:13:23Z
  -: csv, 44 events
  limit 9 per 1s, each key

                 admitted  denied  keys denied  most in 1s  over  wrongly denied  unlike sliding-log
sliding-log            40       4            1           9     0               0                   0
sliding-window         40       4            1           9     0               0                   0
sliding-counter        40       4            1           9     0               1                   6
fixed-window           40       4            1           9     0               0                   0
token-bucket           44       0            0          10    31               0                   4

\"most\" is the largest number of units of one key in any window, counted apart from the limiter;
by that count, \"over\" were admitted above the limit, and \"wrongly denied\" were denied below it
replayed in ...

most denied by sliding-window
         events  denied  near misses
  burst      40       4           28

nearest to it by sliding-window
         events  denied  near misses
  burst      40       4           28";
    assert_eq!(steady(&run.stdout), expected, "{}", run.stdout);
}

#[test]
fn html_report_is_self_contained_and_escaped() {
    let files = Files::new("page");
    let path = files.path("report.html");
    let hostile = "<img src=x onerror=alert(1)></script><script>alert(2)</script>";
    let trace: String = (0..50)
        .map(|n| {
            format!(
                "{},{hostile}\n{},\u{1b}[2J\u{202e}\n",
                1_700_000_000_000_000_u64 + n,
                1_700_000_000_000_000_u64 + n
            )
        })
        .collect();
    let args = ["--limit", "5 per 1s", "--algorithm", "all", "--html", &path];
    let run = replay(&trace, &args).succeeded();
    assert!(!run.stdout.contains('\u{1b}') && !run.stdout.contains('\u{202e}'), "{}", run.stdout);
    let page = fs::read_to_string(&path).expect("a page");
    assert!(!page.contains("<img") && !page.contains("<script>alert"));
    assert_eq!(
        page.matches("<script").count(),
        3,
        "the data, the library and the script of the page"
    );
    // Nothing is fetched: the only URL is in the licence line of the library.
    for (at, _) in page.match_indices("://") {
        assert!(
            page[..at].ends_with("https") && page[at..].starts_with("://github.com/leeoniya/uPlot")
        );
    }
    for part in ["default-src 'none'", "script-src 'sha256-", "style-src 'sha256-"] {
        assert!(page.contains(part), "{part}");
    }
    let data = data(&page);
    let runs = data["algorithms"].as_array().expect("runs");
    assert_eq!(runs.len(), 5);
    for run in runs {
        let sum = |name: &str| {
            let series = run["timeline"][name].as_array().expect(name);
            series.iter().map(|n| n.as_u64().expect(name)).sum::<u64>()
        };
        assert_eq!(run["admitted"], sum("admitted"));
        assert_eq!(run["denied"], sum("denied"));
        assert_eq!(run["differ"], sum("differ"));
        assert_eq!(run["most_denied"][0]["key"], hostile);
    }
}

#[test]
fn html_report_compares_with_exact_log() {
    let files = Files::new("page-exact");
    let path = files.path("report.html");
    let trace: String = (0..40).map(|n| format!("{},a\n", n * 100_000)).collect();
    let args = ["--limit", "10 per 1s sliding-counter", "--json", "--timeline", "--html", &path];
    let json = replay(&trace, &args).succeeded().json();
    let page = data(&fs::read_to_string(&path).expect("a page"));
    assert_eq!(json["algorithms"], page["algorithms"], "the page has the same summary");
    assert_eq!(json["algorithms"].as_array().map(Vec::len), Some(1));
    assert_eq!(json["algorithms"][0]["differ_by"], serde_json::json!({"admitted": 0, "denied": 2}));
}

#[test]
fn rejects_unwritable_html_report() {
    let files = Files::new("page-bad");
    let trace = files.write("trace.csv", "1,a\n");
    let replay = |html: &str| tidegate(&["replay", &trace, "--limit", "1 per 1s", "--html", html]);
    replay(&files.path("no/such/place")).failed(1, &["no/such/place", "cannot be written"]);
    replay(&trace).failed(2, &["trace.csv", "overwrite"]);
    assert_eq!(fs::read_to_string(&trace).expect("the file still exists"), "1,a\n");
}

#[test]
fn suggests_smallest_passing_limit() {
    let files = Files::new("suggest");
    // 60 events of `calm`, a second apart, and 20 of `burst` at once.
    let mut trace: String = (0..60).map(|n| format!("{},calm\n", n * 1_000_000)).collect();
    (0..20).for_each(|_| trace += "60000000,burst\n");
    let path = files.write("trace.csv", &trace);
    for (share, algorithm, limit, more, passed) in [
        ("100", "sliding-log", 20, 23, 80),
        ("90", "sliding-log", 12, 14, 72),
        ("75", "sliding-log", 1, 2, 61),
        ("90", "fixed-window", 12, 14, 72),
        ("90", "token-bucket", 12, 14, 72),
    ] {
        let limits = format!("5 per 500ms {algorithm}");
        let args = [
            "replay",
            &path,
            "--limit",
            &limits,
            "--suggest",
            share,
            "--headroom",
            "15%",
            "--json",
        ];
        let json = tidegate(&args).succeeded().json();
        let suggestion = &json["suggestions"][0];
        assert_eq!(
            suggestion["limit"],
            format!("{limit} per 500ms {algorithm}"),
            "{share} {algorithm}"
        );
        assert_eq!(suggestion["with_headroom"], format!("{more} per 500ms {algorithm}"));
        assert_eq!((&suggestion["passed"], &suggestion["asked"]), (&passed.into(), &80.into()));
        // A replay with the limit passes that many. One less is not enough.
        let admitted = |limit: u64| {
            let limit = format!("{limit} per 500ms {algorithm}");
            let json = tidegate(&["replay", &path, "--limit", &limit, "--json"]).succeeded().json();
            json["algorithms"][0]["admitted"].as_u64().expect("a count")
        };
        assert_eq!(admitted(limit), passed);
        let enough = share.parse::<u64>().expect("a share") * 80 / 100;
        assert!(admitted(limit) >= enough && admitted(limit - 1) < enough);
    }
}

#[test]
fn reports_when_no_limit_passes() {
    let files = Files::new("suggest-none");
    let at_once = "1000000,a\n".repeat(20);
    let apart: String = (0..20).map(|n| format!("{},a\n", n * 1_000)).collect();
    let huge = "1,a,9223372036854775807\n".repeat(3);
    let over = "1,a,1000000000001\n";
    for (trace, limit, message) in [
        (
            &*at_once,
            "10 per 1s token-bucket burst 5",
            "to pass 100 %: no number passes with burst 5, not even 1000000000000 per 1s \
             token-bucket burst 5; raise the burst (passes 5 of 20)\n",
        ),
        (
            &*apart,
            "10 per 1s token-bucket burst 1",
            "to pass 100 %: 1000 per 1s token-bucket burst 1 (passes 20 of 20); with 15 % more, \
             1150 per 1s token-bucket burst 1\n",
        ),
        (
            &*huge,
            "10 per 1s sliding-log",
            "to pass 100 %: no possible limit passes, not even 1000000000000 per 1s \
             sliding-log (passes 0 of 3)\n",
        ),
        (
            over,
            "10 per 1s fixed-window",
            "to pass 100 %: no possible limit passes, not even 1000000000000 per 1s \
             fixed-window (passes 0 of 1)\n",
        ),
        (
            "1,a,1000000000000\n",
            "10 per 1s sliding-log",
            "to pass 100 %: 1000000000000 per 1s sliding-log (passes 1 of 1); with 15 % more, \
             above the largest possible limit\n",
        ),
    ] {
        let path = files.write("trace.csv", trace);
        let args = ["replay", &path, "--limit", limit, "--suggest", "100", "--headroom", "15%"];
        let text = tidegate(&args).succeeded().stdout;
        assert!(text.contains(&format!("\n{message}")), "{message:?} is not in\n{text}");
    }
}

const POLICIES: &str = "\
policies:
  - name: api
    match: { path: \"/api/**\" }
    key: \"{header:x-api-key | client_ip}\"
    limits: [\"2 per 10s sliding-log\"]
    exempt: { client_ip: [10.0.0.0/8] }
    overrides:
      - when: { method: POST }
        limits: [\"1 per 10s sliding-log\"]
  - name: watch
    key: \"{client_ip}\"
    limits: [\"1 per 1m sliding-log\"]
    mode: observe
";

/// Consumed units count neither as passed nor as wrongly denied.
#[test]
fn replays_policies_that_consume() {
    let files = Files::new("consuming");
    let trace = "1000000,a,900\n2000000,a,300\n3000000,a,1\n";
    for (overflow, decisions, largest) in [("consume", "100", 1000), ("refuse", "101", 901)] {
        let policy = format!(
            "policies: [{{ name: a, key: all, limits: 1000 per 1h sliding-log, overflow: {overflow} }}]"
        );
        let config = files.write("tidegate.yaml", policy);
        let run = replay(trace, &["--config", &config, "--decisions", "-", "--json"]).succeeded();
        assert_eq!(run.stdout, decisions, "{overflow}");
        let json: Value = serde_json::from_str(&run.stderr).expect(&run.stderr);
        let run = &json["algorithms"][0];
        assert_eq!(run["limits"][0]["largest_rolling_count"], largest, "{overflow}");
        assert_eq!(run["false_denials"], 0, "{overflow}");
    }
}

#[test]
fn replays_policies_as_served() {
    let files = Files::new("policies");
    let config = files.write("tidegate.yaml", POLICIES);
    let line = |second: u32, client: &str, request: &str| {
        format!(
            "{client} - - [14/Nov/2023:22:13:{second:02} +0000] \"{request} HTTP/1.1\" 200 5 \"-\" \"a\"\n"
        )
    };
    // (second, client, request, decision)
    let rows = [
        (0, "192.0.2.1", "GET /api/x", '1'),
        (1, "192.0.2.1", "GET /api/x?y=1", '1'),
        (2, "192.0.2.1", "GET /api/y", '0'),
        (2, "192.0.2.2", "GET /api/y", '1'),
        (2, "10.1.2.3", "GET /api/y", '1'),
        (3, "10.1.2.3", "GET /api/y", '1'),
        (3, "10.1.2.3", "GET /api/y", '1'),
        (4, "192.0.2.1", "GET /other", '1'),
        (5, "192.0.2.3", "POST /api/x", '1'),
        (6, "192.0.2.3", "POST /api/x", '0'),
        (12, "192.0.2.1", "GET /api/x", '1'),
    ];
    let trace: String =
        rows.iter().map(|(second, client, request, _)| line(*second, client, request)).collect();
    let expected: String = rows.iter().map(|row| row.3).collect();
    let args = ["--config", &config, "--decisions", "-", "--json"];
    let run = replay(&trace, &args).succeeded();
    assert_eq!(run.stdout, expected);
    let json: Value = serde_json::from_str(&run.stderr).expect(&run.stderr);
    let run = &json["algorithms"][0];
    assert_eq!(
        (&run["algorithm"], &run["admitted"], &run["denied"]),
        (&"policies".into(), &9.into(), &2.into())
    );
    let limits: Vec<_> = run["limits"].as_array().expect("limits").iter().collect();
    let count = |at: usize, name: &str| limits[at][name].as_u64().expect(name);
    assert_eq!(limits[0]["limit"], "2 per 10s sliding-log");
    assert_eq!(
        (count(0, "asked"), count(0, "denied"), count(0, "largest_rolling_count")),
        (5, 1, 2)
    );
    assert_eq!(limits[1]["limit"], "1 per 10s sliding-log");
    assert_eq!((count(1, "asked"), count(1, "denied")), (2, 1));
    assert_eq!((&limits[2]["policy"], &limits[2]["mode"]), (&"watch".into(), &"observe".into()));
    assert_eq!((count(2, "asked"), count(2, "denied")), (11, 7));
    let text = replay(&trace, &["--config", &config]).succeeded().stdout;
    let row = |name: &str| {
        let row = text.lines().find(|line| line.trim_start().starts_with(name)).expect(&text);
        row.split_whitespace().rev().map(str::to_string).collect::<Vec<_>>()
    };
    assert_eq!(row("checked"), ["most", "denied", "checked"]);
    assert_eq!(row("api: 2 per 10s")[..3], ["2", "1", "5"]);
    let first = &run["most_denied"][0];
    assert_eq!((&first["policy"], &first["key"]), (&"api".into(), &"client_ip=192.0.2.1".into()));
    // `--algorithm` changes the algorithm of all limits.
    let all =
        replay(&trace, &["--config", &config, "--algorithm", "all", "--json"]).succeeded().json();
    let names: Vec<_> =
        all["algorithms"].as_array().expect("runs").iter().map(|run| &run["algorithm"]).collect();
    assert_eq!(
        names,
        ["sliding-log", "sliding-window", "sliding-counter", "fixed-window", "token-bucket"]
    );
    assert_eq!(all["algorithms"][0]["denied"], 2);
    assert_eq!(all["algorithms"][3]["limits"][0]["limit"], "2 per 10s fixed-window");
}

#[test]
fn trace_cost_replaces_policy_cost() {
    let files = Files::new("policy-cost");
    let config = "policies: [{name: p, key: all, cost: 3, limits: [\"4 per 1s sliding-log\"]}]";
    let config = files.write("tidegate.yaml", config);
    for (trace, expected) in [
        // A missing cost is that of the policy. A given cost takes precedence, even if it is 1.
        ("time_us,client_ip,cost\n1,a,\n2,a,1\n3,a,1\n", "110"),
        ("time_us,client_ip,cost\n1,a,1\n2,a,1\n3,a,1\n4,a,1\n5,a,1\n", "11110"),
        ("time_us,client_ip\n1,a\n2,a\n", "10"),
        ("{\"time_us\":1,\"cost\":1}\n{\"time_us\":2}\n{\"time_us\":3,\"cost\":1}\n", "110"),
    ] {
        let run = replay(trace, &["--config", &config, "--decisions", "-"]).succeeded();
        assert_eq!(run.stdout, expected, "{trace}");
    }
}

#[test]
fn reports_undecidable_policies() {
    let files = Files::new("policies-odd");
    let permits = "policies: [{name: p, key: all, limits: [\"5 concurrent\"]}]";
    let costs =
        "policies: [{name: p, key: \"{client_ip}\", limits: [\"5 per 1s\"], match: {path: /a}}]";
    let log = "host.example - - [14/Nov/2023:22:13:20 +0000] \"GET /a HTTP/1.1\" 200 5\n\
               192.0.2.1 - - [14/Nov/2023:22:13:20 +0000] \"GET /b HTTP/1.1\" 200 5\n";
    for (config, hints) in [
        (permits, &["not replayed: 2 requests under a concurrency limit; a trace has"][..]),
        (
            costs,
            &[
                "1 request matched no policy and passed",
                "policy `p`: 1 request has no `client_ip` (a client that is logged by name has no address); such requests share one key",
            ],
        ),
    ] {
        let path = files.write("tidegate.yaml", config);
        let text = replay(log, &["--config", &path]).succeeded().stdout;
        for hint in hints {
            assert!(text.contains(&format!("hint: {hint}")), "{hint} is not in {text}");
        }
    }
    let path = files.write("bad.yaml", "policies: [{name: p, limits: [\"5 per 1y\"]}]");
    replay(log, &["--config", &path]).failed(1, &["bad.yaml", "5 per 1y"]);
    let path = files.write(
        "both.yaml",
        "policies: [{name: p, key: all, limits: [\"5 per 1s\", \"7 per 1s sliding-log\"]}]",
    );
    replay(log, &["--config", &path, "--algorithm", "all"])
        .failed(2, &["policy `p`", "sliding-log"]);
    replay(log, &["--config", &path, "--suggest", "99"])
        .failed(2, &["--suggest works with --limit"]);
}

/// Keys, lines, and the hint that follows the file or the policy.
#[test]
fn names_missing_parts_of_keys() {
    let files = Files::new("missing-parts");
    let log = |client: &str| {
        format!("{client} - - [14/Nov/2023:22:13:20 +0000] \"GET /a HTTP/1.1\" 200 5 \"-\" \"-\"\n")
    };
    let logs = [log("192.0.2.1"), log("192.0.2.2")].concat();
    let json = "{\"ts\":1700000000,\"path\":\"/a\"}\n{\"ts\":1700000001,\"path\":\"/b\"}\n";
    for (key, trace, keys, hint) in [
        (
            "{header:x-user}",
            &*logs,
            "2 events of 1 key",
            "2 requests have no `header:x-user`, which lines of format combined do not contain; \
             such requests share one key\n",
        ),
        (
            "user {cookie:id}",
            &logs,
            "2 events of 1 key",
            "2 requests have no `cookie:id`, which lines of format combined do not contain; such \
             requests share one key\n",
        ),
        (
            "{header:user-agent}",
            &logs,
            "2 events of 1 key",
            "2 requests have no `header:user-agent`; such requests share one key\n",
        ),
        (
            "{header:x-user}",
            json,
            "2 events of 1 key",
            "2 requests have no `header:x-user`; such requests share one key\n",
        ),
        (
            "{header:x-user}:{path}",
            json,
            "2 events of 2 keys",
            "2 requests have no value for a part of the key `{header:x-user}:{path}`; requests \
             that lack the same part share a key if their other parts are equal\n",
        ),
    ] {
        let config = format!("policies: [{{ name: p, key: \"{key}\", limits: 5 per 1m }}]");
        let config = files.write("tidegate.yaml", config);
        for (args, of) in [
            (&["--config", &*config][..], "policy `p`"),
            (&["--limit", "5 per 1m", "--key", key], "-"),
        ] {
            let text = replay(trace, args).succeeded().stdout;
            assert!(text.starts_with(keys), "{key}: {text}");
            assert!(text.contains(&format!("hint: {of}: {hint}")), "{hint} is not in {text}");
        }
    }
}

/// Requests under a concurrency limit are not denied, because a trace cannot show whether they were.
#[test]
fn leaves_out_requests_that_need_permits() {
    let files = Files::new("policies-permits");
    let config = "policies:\n  \
                  - { name: jobs, match: { path: /jobs }, key: all, limits: 5 concurrent }\n  \
                  - { name: api, match: { path: /api }, key: all, limits: 1 per 1h sliding-log }\n";
    let config = files.write("tidegate.yaml", config);
    let page = files.path("report.html");
    for (trace, row, findings) in [
        (
            "time_us,path\n1,/jobs\n2,/api\n3,/api\n4,/jobs\n5,/jobs\n",
            ["1", "1", "3", "1"],
            &[
                "The policies would have denied 50.0 % of requests: 1 of 2, from 1 of 1 keys.",
                "Not replayed: 3 requests under a concurrency limit.",
            ],
        ),
        (
            "time_us,path\n1,/jobs\n",
            ["0", "0", "1", "0"],
            &["No request was replayed.", "Not replayed: 1 request under a concurrency limit."],
        ),
    ] {
        let text = replay(trace, &["--config", &config, "--html", &page]).succeeded().stdout;
        let cells = |start: &str| -> Vec<&str> {
            let line = text.lines().find(|line| line.starts_with(start)).expect(&text);
            line.split_whitespace().collect()
        };
        assert_eq!(cells("policies")[1..5], row, "{text}");
        assert!(text.contains("admitted  denied  not replayed  keys denied"), "{text}");
        let data = data(&fs::read_to_string(&page).expect("a page"));
        assert_eq!(data["findings"].as_array().expect("findings")[..2], findings[..]);
        let run = &data["algorithms"][0];
        assert_eq!(run["not_replayed"], row[2].parse::<u64>().expect("a count"));
    }
}

/// Input, arguments, and the expected output: malformed lines with their positions, and hints.
const ODD: &[(&str, &str, &[&str], &[&str])] = &[
    (
        "mixed formats",
        "1,a\n2,b\n{\"time_us\":3,\"key\":\"a\"}\nh - - [01/Jan/1970:00:00:02 +0000] \"GET /\" 200 5\n4,a\n",
        &[],
        &[
            "lines skipped: 2\n",
            "  -:3: no whole number of microseconds at its start; the line has format jsonl, replay such lines separately with --format jsonl\n",
            "  -:4: no whole number of microseconds at its start; the line has format clf, replay such lines separately with --format clf\n",
        ],
    ),
    (
        "seconds taken for microseconds",
        "1700000000,a\n1700000001,a\n",
        &[],
        &[
            "hint: -: the last time is 1970-01-01 00:28:20Z; if times are not in microseconds, set --time-unit to s, ms or ns\n",
        ],
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
        &["hint: -: 1 time had no zone: read as UTC, or in the zone of --zone\n"],
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

#[test]
fn page_does_not_change_the_summary() {
    let files = Files::new("page-same");
    let path = files.path("report.html");
    let trace: String =
        (0..40_u64).map(|n| format!("{},a\n", 1_700_000_000_000_000 + n * 70_000)).collect();
    let config = "policies: [{ name: a, key: all, limits: 9 per 1s sliding-counter }]";
    let config = files.write("tidegate.yaml", config);
    for rules in [["--limit", "9 per 1s sliding-counter"], ["--config", &config]] {
        let text = |more: &[&str]| {
            let run = replay(&trace, &[&rules, more].concat()).succeeded();
            steady(&run.stdout)
        };
        assert_eq!(text(&["--html", &path]), text(&[]), "{rules:?}");
        let page = data(&fs::read_to_string(&path).expect("a page"));
        assert!(page["algorithms"][0]["differ"].as_u64() > Some(0), "{rules:?}");
    }
}

/// Arguments, and the first sentences of the page.
#[test]
fn html_report_begins_with_findings() {
    let files = Files::new("page-findings");
    let path = files.path("report.html");
    let trace: String = (0..15)
        .map(|n| format!("{},busy\n", 1_700_000_000_200_000_u64 + n * 60_000))
        .chain(["1700000001100000,calm\n".to_string()])
        .collect();
    let burst = "The largest burst was 15 within 10s, by the key busy, ending at \
                 2023-11-14 22:13:21Z; the limit is 10.";
    let busiest = "The key busy was denied most often: 5 of 15 requests.";
    let exact = "No request was admitted above the limit or denied wrongly.";
    for (args, expected) in [
        (
            &["--limit", "10 per 10s fixed-window", "--algorithm", "all"][..],
            &[
                "fixed-window would have denied 31.3 % of requests: 5 of 16, from 1 of 2 keys.",
                burst,
                busiest,
                exact,
                "All 5 algorithms would have denied the same number.",
            ][..],
        ),
        (
            &["--limit", "10 per 10s", "--algorithm", "token-bucket"],
            &[
                "token-bucket would have denied 31.3 % of requests: 5 of 16, from 1 of 2 keys.",
                burst,
                busiest,
                exact,
            ],
        ),
        (
            &["--limit", "15 per 10s"],
            &[
                "sliding-window would have admitted all 16 requests.",
                &burst.replace("limit is 10.", "limit is 15."),
                exact,
            ],
        ),
    ] {
        replay(&trace, &[args, &["--html", &path]].concat()).succeeded();
        let page = data(&fs::read_to_string(&path).expect("a page"));
        assert_eq!(page["findings"], serde_json::json!(expected), "{args:?}");
    }
}
