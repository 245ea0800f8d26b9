//! The playground: its page, and the endpoint whose results it draws.

use serde_json::{Value, json};

use crate::server_harness::{JSON, Server, Start};

const HTML: &str = include_str!("../../src/fronts/http/assets/playground.html");
const SCRIPTS: [(&str, &str); 7] = [
    ("playground.js", include_str!("../../src/fronts/http/assets/playground.js")),
    ("algorithms.js", include_str!("../../src/fronts/http/assets/algorithms.js")),
    ("settings.js", include_str!("../../src/fronts/http/assets/settings.js")),
    ("engine.js", include_str!("../../src/fronts/http/assets/engine.js")),
    ("timeline.js", include_str!("../../src/fronts/http/assets/timeline.js")),
    ("cells.js", include_str!("../../src/fronts/http/assets/cells.js")),
    ("lessons.js", include_str!("../../src/fronts/http/assets/lessons.js")),
];
const STYLE: &str = include_str!("../../src/fronts/http/assets/playground.css");

const ENDPOINT: &str = "/v1/playground";
const SECOND: u64 = 1_000_000;

fn play(server: &Server, question: &Value) -> Value {
    let reply = server.post(ENDPOINT, &question.to_string());
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

/// Returns the given numbers of requests at these tenths of a second.
fn events(requests: &[(u64, usize)]) -> Vec<Value> {
    let each = |&(tenths, times): &(u64, usize)| {
        std::iter::repeat_n(json!({ "at_us": tenths * SECOND / 10 }), times)
    };
    requests.iter().flat_map(each).collect()
}

/// The experiments of the page: for each algorithm the number of requests that passed, and the most
/// within any 15 s.
#[test]
fn lessons_give_the_documented_decisions() {
    let server = Start::new("playground-experiments").run();
    // Just before a boundary, then whenever the estimate has released one more unit.
    let aimed = [(149, 5), (151, 1), (181, 1), (211, 1), (241, 1), (271, 1)];
    #[rustfmt::skip]
    let rows: [(&[(u64, usize)], &str, u64, u64); 14] = [
        (&[(0, 8)], "sliding-counter", 5, 5),
        (&[(0, 8)], "sliding-log", 5, 5),
        (&[(0, 8)], "sliding-window", 5, 5),
        (&[(0, 8)], "fixed-window", 5, 5),
        (&[(0, 8)], "token-bucket", 5, 5),
        (&[(140, 5), (160, 5)], "fixed-window", 10, 10),
        (&[(140, 5), (160, 5)], "sliding-counter", 6, 6),
        (&[(140, 5), (160, 5)], "sliding-log", 5, 5),
        (&[(140, 5), (160, 5)], "sliding-window", 5, 5),
        (&[(140, 5), (160, 5)], "token-bucket", 5, 5),
        (&aimed, "sliding-counter", 10, 10),
        (&aimed, "sliding-window", 5, 5),
        (&aimed, "sliding-log", 5, 5),
        (&aimed, "token-bucket", 9, 9),
    ];
    for (requests, algorithm, admitted, most) in rows {
        let limit = format!("5 per 15s {algorithm}");
        let answer = play(&server, &json!({ "limits": [limit], "events": events(requests) }));
        let played = &answer["limits"][0];
        let total = events(requests).len() as u64;
        assert_eq!(played["algorithm"], algorithm);
        let counts = (&played["admitted"], &played["denied"], &played["most_in_window"]);
        assert_eq!(counts, (&json!(admitted), &json!(total - admitted), &json!(most)), "{limit}");
        let decisions = played["decisions"].as_array().expect("decisions");
        let allowed = decisions.iter().filter(|decision| decision["allowed"] == true).count();
        assert_eq!((decisions.len() as u64, allowed as u64), (total, admitted), "{limit}");
    }
}

#[test]
fn samples_contain_states_and_exact_waits() {
    let server = Start::new("playground-samples").run();
    #[rustfmt::skip]
    let rows = [
        ("sliding-counter", 0, json!({ "previous": 0, "current": 5, "weight": 1.0, "estimate": 5.0 }), json!(15_000_001)),
        ("sliding-counter", 15, json!({ "previous": 5, "current": 0, "weight": 1.0, "estimate": 5.0 }), json!(1)),
        ("sliding-counter", 24, json!({ "previous": 5, "current": 0, "weight": 0.4, "estimate": 2.0 }), json!(0)),
        ("sliding-log", 4, json!({ "count": 5 }), json!(11 * SECOND)),
        ("fixed-window", 4, json!({ "count": 5 }), json!(11 * SECOND)),
        ("token-bucket", 6, json!({ "tokens": 2.0 }), json!(0)),
        ("sliding-window", 4, json!({ "used": 5, "cell_us": 500, "pace": 0, "cells": [{ "start_us": 0, "last_hit_us": 0, "units": 5, "lag": 0, "expired": 0 }] }), json!(11 * SECOND)),
    ];
    for (algorithm, second, state, wait) in rows {
        let limit = format!("5 per 15s {algorithm}");
        let at_us = second * SECOND;
        let question =
            json!({ "limits": [limit], "events": events(&[(0, 8), (400, 1)]), "samples": [at_us] });
        let sample = &play(&server, &question)["limits"][0]["samples"][0];
        assert_eq!((&sample["at_us"], &sample["state"]), (&json!(at_us), &state), "{limit}");
        assert_eq!(sample["retry_after_us"], wait, "{limit} at {second}");
        assert_eq!(sample["allowed"], wait == json!(0), "{limit} at {second}");
    }
    let dear = json!({ "limits": ["5 per 15s"], "samples": [0], "cost": 6 });
    assert_eq!(play(&server, &dear)["limits"][0]["samples"][0]["retry_after_us"], Value::Null);
}

/// Cells of one second, in which the pace of the limit brings 4 units.
#[test]
fn samples_contain_sliding_window_cells() {
    let server = Start::new("playground-cells").run();
    let even: &[(u64, usize)] = &[(0, 1), (2, 1), (5, 1), (7, 1)];
    let late: &[(u64, usize)] = &[(149, 60)];
    let cell = |second: u64, last_hit_us: u64, units: u64, lag: u64, expired: u64| {
        let start_us = second * SECOND;
        json!({ "start_us": start_us, "last_hit_us": last_hit_us, "units": units, "lag": lag, "expired": expired })
    };
    let rows = [
        (even, 15_500_000, 2, json!([cell(0, 733_337, 4, 0, 2)])),
        (even, 15_733_337, 0, json!([])),
        (late, 29_900_000, 60, json!([cell(14, 14_933_338, 60, 3, 0)])),
        (late, 29_933_338, 0, json!([])),
    ];
    for (requests, at_us, used, cells) in rows {
        let question = json!({ "limits": ["60 per 15s sliding-window"], "events": events(requests), "samples": [at_us] });
        let state = &play(&server, &question)["limits"][0]["samples"][0]["state"];
        assert_eq!((&state["used"], &state["cells"]), (&json!(used), &cells), "at {at_us}");
    }
}

#[test]
fn rejects_invalid_scenarios_by_field() {
    let server = Start::new("playground-refusals").run();
    let most = |count| json!({ "limits": ["5 per 15s"], "events": events(&[(0, count)]) });
    let samples = |count| json!({ "limits": ["5 per 15s"], "samples": vec![0; count] });
    play(&server, &most(1_000));
    play(&server, &samples(256));
    play(&server, &json!({ "limits": vec!["5 per 15s"; 8] }));
    #[rustfmt::skip]
    let rows = [
        (json!({}), "limits", "it is missing"),
        (json!({ "limits": [] }), "limits", "it is empty: give at least one limit"),
        (json!({ "limits": vec!["5 per 15s"; 9] }), "limits", "there are 9: send at most 8"),
        (json!({ "limits": ["5 per 15s", "5 per fortnight"] }), "limits[1]", "fortnight"),
        (json!({ "limits": ["5 concurrent"] }), "limits[0]", "concurrency limits are not supported here: use a limit per window"),
        (most(1_001), "events", "there are 1001: send at most 1000"),
        (samples(257), "samples", "there are 257: send at most 256"),
        (json!({ "limits": ["5 per 15s"], "events": [{}] }), "events[0].at_us", "it is missing"),
        (json!({ "limits": ["5 per 15s"], "events": [{ "at_us": -1 }] }), "events[0].at_us", "it is out of range: use whole microseconds from 0 to 1000000000000000"),
        (json!({ "limits": ["5 per 15s"], "events": [{ "at_us": 0.5 }] }), "events[0].at_us", "it must be a whole number"),
        (json!({ "limits": ["5 per 15s"], "events": [{ "at_us": 1, "cost": 0 }] }), "events[0].cost", "it is out of range: use a whole number from 1 to 1000000000000"),
        (json!({ "limits": ["5 per 15s"], "events": [{ "at_us": 2 }, { "at_us": 1 }] }), "events[1].at_us", "earlier than the event before it: send events in order of time"),
        (json!({ "limits": ["5 per 15s"], "samples": [2, 1] }), "samples[1]", "earlier than the event before it: send events in order of time"),
        (json!({ "limits": ["5 per 15s"], "samples": [1e16] }), "samples[0]", "it is out of range"),
        (json!({ "limits": ["5 per 15s"], "cost": -1 }), "cost", "it is out of range"),
        (json!({ "limits": ["5 per 15s"], "speed": 2 }), "speed", "it is unknown: use `limits`"),
    ];
    for (question, field, part) in rows {
        server.post(ENDPOINT, &question.to_string()).refuses(400, Some(field), part);
    }
    let huge = format!(r#"{{"limits":["5 per 15s"],"events":[{}]}}"#, " ".repeat(140_000));
    server.post(ENDPOINT, &huge).refuses(413, None, "the body is larger than 131072 bytes");
    server.ask("GET", ENDPOINT, &[], "").refuses(405, None, "use POST");
}

/// Sums that would overflow with unchecked arithmetic.
#[test]
fn accepts_the_largest_values() {
    let server = Start::new("playground-largest").run();
    let last = 1_000_000_000_000_000_u64;
    let event = json!({ "at_us": last, "cost": 1_000_000_000_000_u64 });
    let limits =
        ["sliding-log", "sliding-window", "sliding-counter", "fixed-window", "token-bucket"]
            .map(|algorithm| format!("1000000000000 per 366d {algorithm}"));
    let question =
        json!({ "limits": limits, "events": vec![event; 1_000], "samples": vec![last; 256] });
    for played in play(&server, &question)["limits"].as_array().expect("limits") {
        assert_eq!(
            (&played["admitted"], &played["denied"]),
            (&json!(1), &json!(999)),
            "{played:.200}"
        );
    }
}

#[test]
fn endpoint_requires_secret_and_page_does_not() {
    let server = Start::new("playground-secret").env("TIDEGATE_TOKENS", "s3cret").run();
    let question = r#"{"limits":["5 per 15s"]}"#;
    server.post(ENDPOINT, question).refuses(401, None, "authentication required");
    let shown = [JSON, ("authorization", "Bearer s3cret")];
    assert_eq!(server.ask("POST", ENDPOINT, &shown, question).status, 200);
    assert_eq!(server.ask("GET", "/playground", &[], "").status, 200);
    let server = Start::new("playground-foreign").run();
    let foreign = [JSON, ("origin", "https://elsewhere.example")];
    server.ask("POST", ENDPOINT, &foreign, question).refuses(403, None, "another site");
}

#[test]
fn page_files_have_strict_content_policy() {
    let server = Start::new("playground-files").run();
    let mut rows = vec![
        ("/playground".to_owned(), "text/html; charset=utf-8", HTML),
        ("/playground/playground.css".to_owned(), "text/css; charset=utf-8", STYLE),
    ];
    for (name, text) in SCRIPTS {
        rows.push((format!("/playground/{name}"), "text/javascript; charset=utf-8", text));
    }
    for (path, kind, text) in &rows {
        let reply = server.ask("GET", path, &[], "");
        assert_eq!((reply.status, reply.header("content-type")), (200, Some(*kind)));
        assert_eq!(reply.text(), *text, "{path}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        let policy = reply.header("content-security-policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(server.ask("HEAD", path, &[], "").status, 200);
        server.ask("POST", path, &[JSON], "{}").refuses(405, None, "use GET, HEAD");
    }
    server.ask("GET", "/playground/none", &[], "").refuses(404, None, "not found; see /");
}

#[test]
fn page_loads_nothing_external_or_inline() {
    for (name, text) in [("html", HTML), ("style", STYLE)].into_iter().chain(SCRIPTS) {
        let elsewhere = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!elsewhere.contains("://"), "{name} loads an external resource");
    }
    assert!(HTML.matches("<script").count() == 1 && HTML.contains("<script src="));
    for inline in [" style=", " onclick=", " onload=", "javascript:", "<style"] {
        assert!(!HTML.contains(inline), "{inline} is inline");
    }
    for way in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
        let makes_markup = SCRIPTS.iter().any(|(_, text)| text.contains(way));
        assert!(!makes_markup, "{way} would insert an address as markup");
    }
}
