//! Replays of the policies of a config.

use std::fs;

use serde_json::Value;

use super::{page_data, replay};
use crate::cli_harness::Files;

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

/// A request that one quota admitted was counted as admitted above the limits of the quotas that
/// were used up, although those were skipped and not charged.
#[test]
fn used_up_quotas_do_not_make_admissions_wrong() {
    let files = Files::new("quotas");
    let quota = |name: &str, limits: &str| {
        format!("  - {{ name: {name}, key: all, quota: true, limits: [{limits}] }}\n")
    };
    let exact = ["2 per 10s sliding-log", "4 per 1m sliding-log"];
    let required = "  - { name: r, key: all, limits: [3 per 1h sliding-log] }\n";
    let fixed = ["2 per 10s fixed-window", "3 per 10s fixed-window"];
    // A skipped quota is not charged, not even under its limit that has room.
    let twice = ["1 per 10s sliding-log, 2 per 1h sliding-log", "3 per 1h sliding-log"];
    let [exact, fixed, twice] =
        [exact, fixed, twice].map(|[a, b]| [quota("a", a), quota("b", b)].concat());
    let bucket = [quota("a", "2 per 1h"), quota("b", "2 per 10s token-bucket burst 1")].concat();
    // Policies, times in seconds, decisions, and the numbers of admissions above the limit and of
    // wrong denials.
    for (policies, times, decisions, over, wrongly) in [
        (exact.clone(), &[0, 0, 0, 0, 0, 10, 10, 10, 60][..], "111101101", 0, 0),
        (exact + required, &[0, 0, 0, 0], "1110", 0, 0),
        // Both quotas are wrong at 10 s: they were charged, and the exact counts have no room.
        (fixed, &[9, 9, 9, 10, 10, 10, 10], "1111110", 3, 0),
        (twice, &[0, 0, 0, 0, 10, 10], "111010", 0, 0),
        // The second quota denies although it has room: its burst is below its count.
        (bucket, &[0, 0, 0, 0], "1100", 0, 2),
    ] {
        let config = files.write("tidegate.yaml", format!("policies:\n{policies}"));
        let trace: String = times.iter().map(|second| format!("{second}000000,a\n")).collect();
        let run = replay(trace, &["--config", &config, "--decisions", "-", "--json"]).succeeded();
        assert_eq!(run.stdout, decisions, "{policies}");
        let json: Value = serde_json::from_str(&run.stderr).expect(&run.stderr);
        let run = &json["algorithms"][0];
        assert_eq!(run["over_admitted"], over, "{policies}");
        assert_eq!(run["false_denials"], wrongly, "{policies}");
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
    assert_eq!(row("watch: ")[1..4], ["7", "11", "(observed)"]);
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

/// A limit and the one that an override puts in its place share the count of a key, as in the
/// server. Each was compared with a separate count, so correct denials were reported as wrong ones,
/// and wrong admissions were not reported.
#[test]
fn overrides_share_the_count_of_a_key() {
    let files = Files::new("shared-counts");
    let field = ["--field", "header:x-team=team", "--json"];
    // Algorithm, requests of teams `c` (20 per 10s) and `a` (5 per 10s), admissions above the
    // limit, wrong denials, and for both limits the largest count and the number of denials.
    for (algorithm, requests, over, wrongly, limits) in [
        ("sliding-log", &[(0, "c", 10), (1, "a", 3)][..], 0, 0, [(0, 3), (10, 0)]),
        ("sliding-log", &[(0, "a", 5), (1, "c", 30)], 0, 0, [(5, 0), (20, 15)]),
        ("fixed-window", &[(9, "c", 20), (10, "a", 5)], 5, 0, [(25, 0), (20, 0)]),
    ] {
        let config = format!(
            "policies:\n- {{ name: p, key: all, limits: [5 per 10s {algorithm}], overrides: \
             [{{ when: {{ \"header:x-team\": c }}, limits: [20 per 10s {algorithm}] }}] }}\n"
        );
        let config = files.write("tidegate.yaml", config);
        let lines = requests.iter().flat_map(|(second, team, times)| {
            let line = format!(
                "{{\"ts\": {second}, \"client_ip\": \"192.0.2.1\", \"team\": \"{team}\"}}\n"
            );
            std::iter::repeat_n(line, *times)
        });
        let trace: String = lines.collect();
        let arguments = [&["--config", &config, "--format", "jsonl"][..], &field].concat();
        let text = replay(trace, &arguments).succeeded().stdout;
        let json: Value = serde_json::from_str(&text).expect(&text);
        let run = &json["algorithms"][0];
        assert_eq!((&run["over_admitted"], &run["false_denials"]), (&over.into(), &wrongly.into()));
        let found = [0, 1].map(|at| {
            let number = |field: &str| run["limits"][at][field].as_u64();
            (number("largest_rolling_count"), number("denied"))
        });
        assert_eq!(found, limits.map(|(largest, denied)| (Some(largest), Some(denied))), "{text}");
    }
}

/// The numbers of a limit are those of requests that it denied, and a denial counts for the key of
/// every policy that denied.
#[test]
fn denials_are_counted_for_those_who_denied() {
    let files = Files::new("denied");
    let rows = |policies: &str, requests: usize| {
        let config = files.write("tidegate.yaml", format!("policies:\n{policies}"));
        let trace = "0,a\n".repeat(requests);
        let run = replay(trace, &["--config", &config, "--json"]).succeeded();
        let json: Value = serde_json::from_str(&run.stdout).expect(&run.stdout);
        let run = &json["algorithms"][0];
        let of = |field: &str, name: &str| -> Vec<String> {
            let rows = run[field].as_array().expect("rows").iter();
            rows.map(|row| format!("{} {}", row[name].as_str().unwrap_or("-"), row["denied"]))
                .collect()
        };
        (run["denied"].as_u64(), of("limits", "mode"), of("most_denied", "policy"))
    };
    // A quota that is used up and skipped denies nothing.
    let quotas = "  - { name: free, key: all, quota: true, limits: [1 per 1m] }\n\
                  \x20 - { name: paid, key: all, quota: true, limits: [5 per 1m] }\n";
    let (denied, limits, keys) = rows(quotas, 3);
    assert_eq!((denied, keys), (Some(0), vec![]));
    assert_eq!(limits, ["enforce 0", "enforce 0"]);
    // Two policies that deny.
    let both = "  - { name: a, key: all, limits: [1 per 1m] }\n\
                \x20 - { name: b, key: all, limits: [1 per 1h] }\n";
    let (denied, limits, keys) = rows(both, 3);
    assert_eq!(denied, Some(2));
    assert_eq!(limits, ["enforce 2", "enforce 2"]);
    assert_eq!(keys, ["a 2", "b 2"]);
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
                "1 request passed because no policy applies (none matches, or `exempt` or `mode: off`)",
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

/// Conditions on fields that the trace does not contain: a policy that was not tested is not taken
/// for a harmless one.
#[test]
fn names_missing_fields_of_conditions() {
    let files = Files::new("missing-fields");
    let log =
        "192.0.2.1 - - [14/Nov/2023:22:13:20 +0000] \"GET /a?x=1 HTTP/1.1\" 200 5 \"-\" \"-\"\n";
    let json = "{\"ts\":1700000000,\"path\":\"/a\",\"host\":\"a.example\"}\n";
    let never = "so conditions on it never hold\n";
    for (conditions, trace, hint) in [
        ("match: { host: a.example }", log, Some(format!("no request has a `host`, {never}"))),
        ("match: { host: a.example }", json, None),
        (
            "match: { \"header:x-org\": a }",
            log,
            Some(format!(
                "no request has a `header:x-org`, which lines of format combined do not contain, \
                 {never}"
            )),
        ),
        (
            "exempt: { \"header:x-org\": a }",
            json,
            Some(format!("no request has a `header:x-org`, {never}")),
        ),
        (
            "overrides: [{ when: { \"cookie:plan\": a }, limits: 9 per 1m }]",
            json,
            Some(format!("no request has a `cookie:plan`, {never}")),
        ),
        ("match: { \"query:y\": a, path: /b }", log, None),
    ] {
        let config = format!("policies: [{{ name: p, key: all, limits: 5 per 1m, {conditions} }}]");
        let config = files.write("tidegate.yaml", config);
        let text = replay(trace, &["--config", &config]).succeeded().stdout;
        match hint {
            Some(hint) => {
                assert!(text.contains(&format!("hint: policy `p`: {hint}")), "{hint}: {text}");
            }
            None => assert!(!text.contains("never hold"), "{conditions}: {text}"),
        }
    }
}

/// Requests under a concurrency limit are not denied, because a trace cannot show whether they
/// were.
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
                "The policies would have denied 50.0 % of requests: 1 of 2, from 1 of 1 key.",
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
        let data = page_data(&fs::read_to_string(&page).expect("a page"));
        assert_eq!(data["findings"].as_array().expect("findings")[..2], findings[..]);
        let run = &data["algorithms"][0];
        assert_eq!(run["not_replayed"], row[2].parse::<u64>().expect("a count"));
    }
}
