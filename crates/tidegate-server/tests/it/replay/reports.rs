//! Reports of a replay besides its decisions: the summary, pages, suggestions.

use std::fs;

use super::{page_data, replay};
use crate::cli_harness::{Files, tidegate};

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

\"most\": the largest number of units of one key in any window, by a separate count
\"over\": admitted above the limit by that count; \"wrongly denied\": denied below it
admitted, compared with sliding-log: sliding-window as many, sliding-counter as many, fixed-window as many, token-bucket 4 more (10.0 %)
replayed in ...

most denied by sliding-window
         events  denied  near misses
  burst      40       4           28

nearest to a denial by sliding-window
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
    let data = page_data(&page);
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
    let page = page_data(&fs::read_to_string(&path).expect("a page"));
    assert_eq!(json["algorithms"], page["algorithms"], "the page has the same summary");
    assert_eq!(json["algorithms"].as_array().map(Vec::len), Some(1));
    assert_eq!(json["algorithms"][0]["differ_by"], serde_json::json!({"admitted": 0, "denied": 2}));
}

/// Regression: steps of 512 ms alternated between the requests of a second and none, so a short log
/// was drawn as a solid block. Steps of 1,024 ms had twice as many requests every 42 seconds.
#[test]
fn steps_contain_whole_seconds_of_coarse_times() {
    for (seconds, width_us) in
        [(1, 1_000_000), (240, 1_000_000), (480, 1_000_000), (960, 2_000_000)]
    {
        let trace: String = (0..seconds).map(|n| format!("{n}000000,a\n").repeat(3)).collect();
        let args = ["--limit", "2 per 1s sliding-log", "--json", "--timeline"];
        let json = replay(&trace, &args).succeeded().json();
        let timeline = &json["algorithms"][0]["timeline"];
        assert_eq!(timeline["width_us"], width_us, "{seconds} s");
        let in_step = width_us / 1_000_000;
        let steps = seconds / in_step;
        for (series, count) in [("admitted", 2), ("denied", 1)] {
            let counts = vec![count * in_step; usize::try_from(steps).expect("few")];
            assert_eq!(timeline[series], serde_json::json!(counts), "{seconds} s");
        }
    }
    // A time with a fraction needs narrower steps.
    let json = replay("0,a\n500000,a\n", &["--limit", "2 per 1s", "--json", "--timeline"]);
    assert_eq!(json.succeeded().json()["algorithms"][0]["timeline"]["width_us"], 15_625);
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

/// Nothing said that the suggestions for several limits do not hold together.
#[test]
fn suggestions_for_several_limits_are_for_each_alone() {
    let files = Files::new("suggest-alone");
    let trace: String = (0..20).map(|n| format!("{},a\n", n * 100_000)).collect();
    let path = files.write("trace.csv", &trace);
    let note = "\neach limit was tried alone; together they may pass fewer requests\n";
    let two = ["--limit", "5 per 1s", "--limit", "8 per 1m"];
    for (limits, suggest, noted) in [
        (&two[..], &["--suggest", "90"][..], true),
        (&two[..2], &["--suggest", "90", "--algorithm", "all"], false),
        (&two, &[], false),
    ] {
        let args = [&["replay", &path], limits, suggest].concat();
        let text = tidegate(&args).succeeded().stdout;
        assert_eq!(text.contains(note), noted, "{limits:?} {suggest:?}: {text}");
    }
}

/// A given burst that equals the count grew with the count, so a leaky bucket (burst 1) did not
/// stay one.
#[test]
fn suggestions_keep_a_given_burst() {
    let files = Files::new("suggest-burst");
    let at_once = "1000000,a\n".repeat(20);
    let apart: String = (0..20).map(|n| format!("{},a\n", n * 100_000)).collect();
    let bursts = "1 per 1s token-bucket burst 1";
    for (trace, limit, options, message) in [
        (&apart, bursts, &[][..], "10 per 1s token-bucket burst 1 (passes 20 of 20)"),
        (&apart, bursts, &["--headroom", "10%"], "with 10 % more, 11 per 1s token-bucket burst 1"),
        (&apart, bursts, &["--algorithm", "all"], "10 per 1s token-bucket burst 1 (passes 20"),
        (&apart, bursts, &["--algorithm", "all"], "10 per 1s sliding-log (passes 20 of 20)"),
        (&at_once, bursts, &[], "no number passes with burst 1, not even"),
        (&at_once, "1 per 1s token-bucket", &[], "20 per 1s token-bucket (passes 20 of 20)"),
    ] {
        let path = files.write("trace.csv", trace);
        let args = ["replay", &path, "--limit", limit, "--suggest", "100"];
        let text = tidegate(&[&args, options].concat()).succeeded().stdout;
        assert!(text.contains(message), "{limit} {options:?}: {message} is not in {text}");
    }
}

/// `--suggest 0.999` suggested a limit for 0.999 % without a hint.
#[test]
fn hints_at_percentages_that_look_like_fractions() {
    let files = Files::new("suggest-fraction");
    let path = files.write("trace.csv", "1700000000500000,a\n".repeat(20));
    for (share, headroom, hints) in [
        ("0.999", "15", &["--suggest 0.999 is read as 0.999 %; for 99.9 % write 99.9"][..]),
        ("99", "0.15", &["--headroom 0.15 is read as 0.15 %; for 15 % write 15"]),
        ("0.999%", "0.15%", &[]),
        ("1", "0", &[]),
    ] {
        let args = ["replay", &path, "--limit", "1 per 1s", "--suggest", share];
        let json =
            tidegate(&[&args[..], &["--headroom", headroom, "--json"]].concat()).succeeded().json();
        assert_eq!(json["hints"], serde_json::json!(hints), "{share} {headroom}");
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
        let page = page_data(&fs::read_to_string(&path).expect("a page"));
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
        let page = page_data(&fs::read_to_string(&path).expect("a page"));
        assert_eq!(page["findings"], serde_json::json!(expected), "{args:?}");
    }
}
