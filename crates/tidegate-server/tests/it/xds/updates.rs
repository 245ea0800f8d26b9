//! Accepted and rejected configs.

use serde_json::{Value, json};

use super::{ControlPlane, becomes_ready, config, limit, start};
use crate::server_harness::wait_for;

const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

#[test]
fn configs_are_added_changed_and_removed() {
    let mut plane = ControlPlane::new(json!({}));
    let server = start("xds-updates", &plane).run();
    assert!(server.printed.contains("from the control plane at 127.0.0.1:"), "{}", server.printed);
    let first = plane.subscribed();
    assert_eq!((&first["type_url"], &first["node"]["id"]), (&json!(TYPE_URL), &json!("default")));
    assert_eq!(server.admin_get("/readyz").text(), "no config is loaded\n");
    let body = json!({ "domain": "a", "descriptors": [{ "entries": [{ "key": "user" }] }] });
    let early = server.post("/json", &body.to_string());
    assert!(early.status == 503 && early.text().contains("no rate limit config"), "{early:?}");

    plane.accepted("1", &[config("a", 10)]);
    becomes_ready(&server, true);
    assert_eq!((limit(&server, "a"), limit(&server, "b")), (Some(10), None));
    plane.accepted("2", &[config("a", 20), config("b", 5)]);
    assert_eq!((limit(&server, "a"), limit(&server, "b")), (Some(20), Some(5)));
    plane.accepted("3", &[config("b", 5)]);
    assert_eq!((limit(&server, "a"), limit(&server, "b")), (None, Some(5)));
    plane.accepted("4", &[]);
    assert_eq!(limit(&server, "b"), None);
    assert_eq!(server.admin_get("/readyz").status, 200);
}

/// Counts stay when a config is replaced.
#[test]
fn counts_survive_updates() {
    let mut plane = ControlPlane::new(json!({}));
    let server = start("xds-counts", &plane).run();
    plane.subscribed();
    plane.accepted("1", &[config("a", 3)]);
    let body = json!({ "domain": "a", "descriptors": [{ "entries": [{ "key": "user" }] }] });
    let ask = || server.post("/json", &body.to_string()).status;
    assert_eq!([ask(), ask(), ask(), ask()], [200, 200, 200, 429]);
    plane.accepted("2", &[config("a", 4), config("b", 1)]);
    assert_eq!([ask(), ask()], [200, 429]);
}

#[test]
fn bad_configs_are_rejected_with_the_reason() {
    let mut plane = ControlPlane::new(json!({}));
    let server = start("xds-rejected", &plane).run();
    plane.subscribed();
    plane.accepted("good", &[config("a", 10)]);
    let with = |limit: Value| {
        let descriptors = json!([{ "key": "user" }, { "key": "x", "rate_limit": limit }]);
        json!({ "name": "bad-limits", "domain": "bad", "descriptors": descriptors })
    };
    let unit = with(json!({ "requests_per_unit": 5 }));
    let twice = json!({ "name": "twice", "domain": "a", "descriptors": [{ "key": "user" }] });
    let no_domain = json!({ "name": "nameless", "descriptors": [] });
    #[rustfmt::skip]
    let rows: [(Value, &[&str]); 8] = [
        (json!({ "configs": [unit] }), &["bad-limits", "descriptors[1].rate_limit"]),
        // A valid config beside an invalid one is rejected too.
        (json!({ "configs": [config("a", 99), unit] }), &["bad-limits"]),
        (json!({ "configs": [config("a", 99), twice] }), &["domain"]),
        (json!({ "configs": [no_domain] }), &["nameless", "domain"]),
        (json!({ "configs": [config("a", 99), { "descriptors": [] }] }), &["resources[1]", "domain"]),
        (json!({ "raw": [["type.googleapis.com/other.Type", ""]] }), &["resources[0]", "other.Type"]),
        (json!({ "raw": [[TYPE_URL, "ffffffff"]] }), &["resources[0]", "not a RateLimitConfig"]),
        (json!({ "type_url": "type.googleapis.com/x.Y", "configs": [] }), &["x.Y", TYPE_URL]),
    ];
    for (index, (mut response, parts)) in rows.into_iter().enumerate() {
        response["version"] = json!(format!("bad-{index}"));
        let request = plane.push_raw(response.clone());
        assert_eq!(request["version_info"], "good", "the last accepted one: {request}");
        assert_eq!(request["error_detail"]["code"], 3, "INVALID_ARGUMENT: {request}");
        let reason = request["error_detail"]["message"].as_str().expect("a reason");
        assert!(parts.iter().all(|part| reason.contains(part)), "{response}: {reason}");
        assert_eq!(limit(&server, "a"), Some(10), "the old config stays");
        assert_eq!(limit(&server, "bad"), None);
    }
    let metrics = server.admin_get("/metrics").text();
    assert!(metrics.contains("tidegate_reloads_total{result=\"refused\"} 8\n"), "{metrics}");
    plane.accepted("mended", &[config("a", 11)]);
    assert_eq!(limit(&server, "a"), Some(11));
}

/// A config that is rejected only because the config file is broken is applied when the file is
/// repaired: the control plane does not send it again.
#[test]
fn rejected_config_is_applied_when_the_config_file_is_repaired() {
    let mut plane = ControlPlane::new(json!({}));
    let server = start("xds-repaired", &plane).config("max_keys: 1000\n").run();
    plane.subscribed();
    plane.accepted("1", &[config("a", 10)]);
    server.files.replace("tidegate.yaml", "max_keys: many\n");
    server.logged("the config was not reloaded");
    let request = plane.push("2", &[config("a", 20)]);
    let reason = request["error_detail"]["message"].as_str().expect("a reason");
    assert!(reason.contains("max_keys"), "{reason}");
    assert_eq!(limit(&server, "a"), Some(10));
    server.files.replace("tidegate.yaml", "max_keys: 1000\n");
    wait_for(|| (limit(&server, "a") == Some(20)).then_some(()));
}

/// The message of a long reason is cut.
#[test]
fn long_reasons_are_cut() {
    let mut plane = ControlPlane::new(json!({}));
    let _server = start("xds-long-reason", &plane).run();
    plane.subscribed();
    let configs: Vec<Value> = (0..50)
        .map(|number| {
            let name = format!("{number}-{}", "x".repeat(500));
            json!({ "name": name, "domain": "", "descriptors": [] })
        })
        .collect();
    let request = plane.push("long", &configs);
    let reason = request["error_detail"]["message"].as_str().expect("a reason");
    assert!(reason.len() <= 4200 && reason.ends_with(" ..."), "{}", reason.len());
}

#[test]
fn every_field_of_a_descriptor_is_converted() {
    let mut plane = ControlPlane::new(json!({}));
    let server = start("xds-fields", &plane).run();
    plane.subscribed();
    let limit = |unit: &str, more: Value| {
        let mut limit = json!({ "unit": unit, "requests_per_unit": 1 });
        limit
            .as_object_mut()
            .expect("an object")
            .extend(more.as_object().cloned().unwrap_or_default());
        limit
    };
    let descriptors = json!([
        { "key": "second", "rate_limit": limit("SECOND", json!({})) },
        { "key": "minute", "rate_limit": limit("MINUTE", json!({})), "shadow_mode": true },
        { "key": "hour", "rate_limit": limit("HOUR", json!({})), "quota_mode": true },
        { "key": "week", "rate_limit": limit("WEEK", json!({ "name": "weekly" })) },
        { "key": "month", "rate_limit": limit("MONTH", json!({})) },
        { "key": "year", "rate_limit": limit("YEAR", json!({ "replaces": [{ "name": "weekly" }] })) },
        { "key": "free", "rate_limit": { "unlimited": true } },
        { "key": "outer", "value": "v", "descriptors": [
            { "key": "inner", "value": "w", "rate_limit": limit("DAY", json!({})) },
        ] },
    ]);
    plane.accepted("1", &[json!({ "name": "d", "domain": "d", "descriptors": descriptors })]);
    let page = server.admin_get("/rlconfig").text();
    for line in [
        "d.second: unit=SECOND requests_per_unit=1, shadow_mode: false, quota_mode: false",
        "d.minute: unit=MINUTE requests_per_unit=1, shadow_mode: true, quota_mode: false",
        "d.hour: unit=HOUR requests_per_unit=1, shadow_mode: false, quota_mode: true",
        "d.week: unit=WEEK requests_per_unit=1, shadow_mode: false, quota_mode: false",
        "d.month: unit=MONTH requests_per_unit=1, shadow_mode: false, quota_mode: false",
        "d.year: unit=YEAR requests_per_unit=1, shadow_mode: false, quota_mode: false",
        "d.free: unlimited",
        "d.outer_v.inner_w: unit=DAY requests_per_unit=1, shadow_mode: false, quota_mode: false",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in:\n{page}");
    }
    assert!(server.admin_get("/admin/v1/policies").text().contains("weekly"));
}
