//! `/metrics`: correct, complete, and valid for Prometheus.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use tidegate_testkit::eventually;

use super::POLICIES;
use super::server::Server;
use crate::deploy::monitoring::layer_metrics;
use crate::server_harness;

/// Returns the value of a sample by its name and labels.
fn sample(page: &str, series: &str) -> Option<f64> {
    let value = |line: &str| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok();
    page.lines().find_map(value)
}

fn decisions(policy: &str, limit: &str, mode: &str, outcome: &str) -> String {
    format!(
        "tidegate_decisions_total{{policy=\"{policy}\",limit=\"{limit}\",mode=\"{mode}\",outcome=\"{outcome}\",decided=\"exact\"}}"
    )
}

fn busy(test: &str) -> Server {
    let server = Server::start(test, POLICIES);
    let logins: Vec<_> = (0..5).map(|_| server.login("203.0.113.7")).collect();
    assert_eq!(logins, [true, true, false, false, false]);
    for _ in 0..3 {
        server.check(r#"{"path":"/reports","headers":{"x-user":"secret-user"}}"#, &[]);
    }
    server.check(r#"{"path":"/api/secret-path","client_ip":"203.0.113.7"}"#, &[]);
    server
}

#[test]
fn counts_decisions_by_policy_and_limit() {
    let server = busy("counts");
    let page = server.get("/metrics");
    assert_eq!(page.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    let (log, day) = ("2 per 1h sliding-log", "100 per 1d sliding-window");
    let hour = "1 per 1h sliding-window";
    let near = |policy: &str, limit: &str, mode: &str| {
        format!(
            "tidegate_near_misses_total{{policy=\"{policy}\",limit=\"{limit}\",mode=\"{mode}\"}}"
        )
    };
    let rows = [
        (decisions("login", log, "enforce", "allowed"), 2.0),
        (decisions("login", log, "enforce", "denied"), 3.0),
        // The decision of this limit, although the other one denied the request.
        (decisions("login", day, "enforce", "allowed"), 5.0),
        (decisions("login", day, "enforce", "denied"), 0.0),
        (decisions("watched", hour, "observe", "allowed"), 1.0),
        (decisions("watched", hour, "observe", "would_deny"), 2.0),
        (near("login", log, "enforce"), 1.0),
        (near("login", day, "enforce"), 0.0),
        (near("watched", hour, "observe"), 1.0),
        ("tidegate_http_requests_total{front=\"http\",status=\"200\"}".into(), 9.0),
        ("tidegate_tracked_keys".into(), 4.0),
        ("tidegate_max_keys".into(), 1_000_000.0),
        ("tidegate_log_entries".into(), 2.0),
        ("tidegate_overflow_total".into(), 0.0),
        ("tidegate_ready".into(), 1.0),
        ("tidegate_connections{front=\"admin\"}".into(), 1.0),
        (format!("tidegate_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION")), 1.0),
    ];
    for (series, value) in rows {
        assert_eq!(sample(&page.body, &series), Some(value), "{series}");
    }
    for series in [
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
        "tidegate_start_time_seconds",
    ] {
        let there = sample(&page.body, series).is_some();
        assert!(there || !cfg!(target_os = "linux"), "{series}");
    }
}

#[test]
fn route_is_the_pattern_of_the_policy() {
    let many: Vec<_> = (0..100).map(|number| format!("/many/{number}")).collect();
    let more = format!(
        "  - {{ name: many, match: {{ path: [{}] }}, key: all, limits: 1 per 1h }}\n\
         \x20 - {{ name: any, key: all, limits: 9 per 1h }}\n\
         \x20 - {{ name: odd, match: {{ path: '/a\"b/**' }}, key: all, limits: 9 per 1h }}\n",
        many.join(", ")
    );
    let page = Server::start("routes", &format!("{POLICIES}{more}")).get("/metrics").body;
    let rows = [
        r#"{policy="login",route="/login",outcome="denied"} 0"#,
        r#"{policy="api",route="/api/**",outcome="allowed"} 0"#,
        r#"{policy="watched",route="/reports",outcome="would_deny"} 0"#,
        r#"{policy="any",outcome="allowed"} 0"#,
        r#"{policy="odd",route="/a\"b/**",outcome="allowed"} 0"#,
        r#"{policy="",outcome="allowed"} 0"#,
    ];
    for row in rows {
        assert!(page.contains(&format!("tidegate_requests_total{row}")), "{row} is not in {page}");
    }
    let many = page.lines().find(|line| line.contains(r#"{policy="many",route="[/many/0, "#));
    let many = many.expect("the policy has a route");
    assert!(many.contains("...\"") && many.len() < 220, "{many}");
}

#[test]
fn counts_inline_limits_in_one_series() {
    let server = Server::start("callers", POLICIES);
    for _ in 0..3 {
        let body = r#"{"key":"a","limits":["2 per 1h sliding-log"]}"#;
        assert_eq!(server_harness::Server::check(&server, body).status, 200);
    }
    let page = server.get("/metrics").body;
    let near =
        "tidegate_near_misses_total{policy=\"(caller)\",limit=\"(caller)\",mode=\"enforce\"}";
    assert_eq!(sample(&page, near), Some(1.0));
    let counted = |outcome| sample(&page, &decisions("(caller)", "(caller)", "enforce", outcome));
    assert_eq!((counted("allowed"), counted("denied")), (Some(2.0), Some(1.0)));
}

#[test]
fn disabled_policies_have_no_series() {
    let off = "  - { name: retired, key: '{client_ip}', limits: 7 per 1h, mode: off }\n";
    let page = Server::start("metrics-off", &format!("{POLICIES}{off}")).get("/metrics").body;
    assert!(page.contains("policy=\"login\"") && !page.contains("retired"), "{page}");
}

#[test]
fn metrics_contain_no_keys() {
    let page = busy("metrics-keys").get("/metrics").body;
    for key in ["203.0.113.7", "secret-user", "/api/secret-path"] {
        assert!(!page.contains(key), "{key} is in:\n{page}");
    }
}

/// Checked by promtool, which `scripts/test` installs.
#[test]
fn promtool_accepts_metrics() {
    for page in [busy("promtool").get("/metrics").body, layer_metrics()] {
        let mut promtool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("promtool is installed (scripts/test does that; apt: prometheus)");
        promtool.stdin.take().expect("a pipe").write_all(page.as_bytes()).expect("a reader");
        let output = promtool.wait_with_output().expect("promtool ends");
        let printed = [output.stdout, output.stderr].concat();
        let is_accepted = output.status.success() && printed.is_empty();
        assert!(is_accepted, "{}", String::from_utf8_lossy(&printed));
    }
}

#[test]
fn histogram_buckets_are_cumulative() {
    let server = Server::start("histogram", POLICIES);
    // Not every decision is timed, but some of 64 are.
    for number in 0..64 {
        server.check(&format!(r#"{{"path":"/api/x","client_ip":"192.0.2.{number}"}}"#), &[]);
    }
    let page = server.get("/metrics").body;
    let name = "tidegate_decision_duration_seconds";
    let buckets: Vec<f64> = page
        .lines()
        .filter(|line| line.starts_with(&format!("{name}_bucket")))
        .map(|line| line.rsplit_once(' ').expect("a value").1.parse().expect("a number"))
        .collect();
    assert!(buckets.is_sorted(), "{buckets:?}");
    let count = sample(&page, &format!("{name}_count"));
    assert_eq!(buckets.last().copied(), count);
    assert!(count > Some(0.0) && sample(&page, &format!("{name}_sum")) > Some(0.0), "{page}");
}

#[test]
fn counts_and_dates_reloads() {
    let server = Server::start("reloads", POLICIES);
    let result = |result: &str| {
        let series = format!("tidegate_reloads_total{{result=\"{result}\"}}");
        sample(&server.get("/metrics").body, &series).expect("the sample")
    };
    let at = || {
        let series = "tidegate_config_last_reload_success_timestamp_seconds";
        sample(&server.get("/metrics").body, series).expect("the sample")
    };
    assert_eq!((result("ok"), result("refused")), (0.0, 0.0));
    let started = at();
    let more = format!(
        "{POLICIES}  - name: late\n    key: \"{{client_ip}}\"\n    limits: [\"7 per 1h\"]\n"
    );
    fs::write(server.files.path("tidegate.yaml"), more).expect("a file");
    server.signal("-HUP");
    eventually("the new config is active", || result("ok") >= 1.0);
    assert!(at() >= started);
    assert!(server.get("/metrics").body.contains(&decisions(
        "late",
        "7 per 1h sliding-window",
        "enforce",
        "allowed"
    )));
    fs::write(server.files.path("tidegate.yaml"), "policies: nonsense\n").expect("a file");
    server.signal("-HUP");
    eventually("the bad config is refused", || result("refused") >= 1.0);
    // The old config stays active.
    assert!(server.get("/admin/v1/policies").body.contains("\"late\""));
}
