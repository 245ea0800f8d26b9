//! The scenarios of envoyproxy/ratelimit and of Envoy Gateway through Envoy, with
//! `--as-envoy-ratelimit`.
//!
//! The steps are those of the integration tests of envoyproxy/ratelimit, with other names
//! (`scenarios/`). Where a limit has been used up exactly, a question of 0 hits is denied here and
//! not there, which docs/envoy.md documents. So its two scenarios with such questions end one
//! request per limit earlier.

use tidegate_testkit::eventually;

use super::envoy_ratelimit::ENVOY;
use super::http_client::{Request, Response};
use super::processes::{CheckedOver, Fails, Gateway, GatewaySetup};
use super::{ALICE, login};

const REFERENCE: Gateway = Gateway {
    closed: &["../../crates/tidegate-server/tests/it/gateways/scenarios/envoy.yaml"],
    checked_over: CheckedOver::GrpcAsEnvoyRatelimit,
    ..ENVOY
};

fn start(test: &str) -> GatewaySetup {
    GatewaySetup::start(&REFERENCE, Fails::Closed, test, "")
}

fn get(setup: &GatewaySetup, path: &str, headers: &[&str]) -> Response {
    let request = Request { method: "GET", target: path.as_bytes(), body: "", ..login(ALICE) };
    let response = setup.send(&Request { headers, ..request });
    assert_eq!(response.reached_application(), response.status == 200, "{path}: {response:?}");
    response
}

/// Sends a request repeatedly, and compares the statuses.
#[track_caller]
fn expect(setup: &GatewaySetup, path: &str, headers: &[&str], statuses: &[u16]) {
    for (index, status) in statuses.iter().enumerate() {
        let response = get(setup, path, headers);
        assert_eq!(response.status, *status, "{path} {headers:?}, request {index}: {response:?}");
    }
}

#[test]
fn limit_denies_after_its_number() {
    let setup = start("reference-limit");
    expect(&setup, "/two", &["tenant: a", "feature: trial"], &[200]);
    expect(&setup, "/two", &["tenant: b", "feature: search"], &[200; 3]);
    let response = get(&setup, "/two", &["tenant: b", "feature: search"]);
    assert_eq!(response.status, 429);
    // The fields that Envoy makes of the reply, and no others.
    let limit = response.header("x-ratelimit-limit").unwrap_or_default();
    assert!(limit.starts_with("3, 3;w=") && !limit.contains("name"), "{response:?}");
    assert_eq!(response.header("x-ratelimit-remaining"), Some("0"));
    for field in ["ratelimit", "ratelimit-policy", "retry-after"] {
        assert_eq!(response.header(field), None, "{response:?}");
    }
    expect(&setup, "/two", &["tenant: b", "feature: search"], &[429]);
    expect(&setup, "/two", &["tenant: c", "feature: search"], &[200]);
}

#[test]
fn shadow_mode_never_denies() {
    let setup = start("reference-shadow");
    expect(&setup, "/two", &["tenant: a", "feature: trial"], &[200; 5]);
    let response = get(&setup, "/two", &["tenant: a", "feature: trial"]);
    assert_eq!(response.header("x-ratelimit-remaining"), Some("0"), "{response:?}");
    assert_eq!(response.status, 200);
}

#[test]
fn replaced_limits_neither_deny_nor_charge() {
    let setup = start("reference-replaces");
    // A larger limit in place of one that denies everything.
    expect(&setup, "/two", &["tenant: a", "plan: blocked"], &[429]);
    let to = |to: &'static str| ["tenant: a", "plan: blocked", "from: web", to];
    expect(&setup, "/four", &to("to: stock"), &[429]);
    expect(&setup, "/four", &to("to: appeals"), &[200, 200, 429]);
    // The replaced limit is not charged.
    let to = |to: &'static str| ["tenant: b", "plan: gold", "from: web", to];
    expect(&setup, "/four", &to("to: upgrades"), &[200, 200, 429]);
    expect(&setup, "/four", &to("to: other"), &[200, 429]);
    expect(&setup, "/four", &to("to: upgrades"), &[429]);
    // One limit in place of two.
    let partner = ["tenant: b", "plan: gold", "from: web", "to: archive", "tier: partner"];
    expect(&setup, "/five", &partner, &[200, 200, 200, 200, 429]);
    expect(&setup, "/two", &["tenant: c", "plan: gold"], &[200, 429]);
    let archive = ["tenant: d", "plan: free", "from: web", "to: archive"];
    expect(&setup, "/four", &archive, &[200, 200, 429]);
    expect(&setup, "/five", &partner, &[429]);
}

#[test]
fn values_are_in_the_names_of_detailed_metrics() {
    let setup = start("reference-metrics");
    expect(&setup, "/visitor", &["visitor: someone"], &[200, 200, 429]);
    let page = setup.tidegate.prometheus_page();
    let line = r#"ratelimit_service_rate_limit_over_limit{domain="shop",key1="visitor_someone"} 1"#;
    assert!(page.lines().any(|found| found == line), "{page}");
}

#[test]
fn quotas_deny_when_all_are_used_up() {
    let setup = start("reference-quota");
    expect(&setup, "/quota", &[], &[200, 200, 429]);
}

/// A window that has ended admits again.
#[test]
fn next_window_admits_again() {
    let setup = start("reference-window");
    eventually("a request is denied", || get(&setup, "/brief", &[]).status == 429);
    eventually("a request passes", || get(&setup, "/brief", &[]).status == 200);
}

/// Sends a request whose response is charged afterwards. `number` is the number of charges after
/// that.
fn charged(setup: &GatewaySetup, path: &str, number: u64) -> Response {
    let response = get(setup, path, &[]);
    if response.status == 200 {
        // Envoy charges after the response has been sent, without waiting for the result.
        eventually("the response is charged", || setup.tidegate.charges() >= number);
    }
    response
}

/// envoyproxy/ratelimit admits a third request, whose question of 0 hits finds the limit of 2 used
/// up exactly.
#[test]
fn token_quota_is_charged_by_responses() {
    let setup = start("reference-tokens");
    let statuses = [1, 2, 3, 4].map(|number| charged(&setup, "/tokenquota", number).status);
    assert_eq!(statuses, [200, 200, 429, 429]);
}

/// envoyproxy/ratelimit admits two requests of the first pool and three of the second.
#[test]
fn metadata_names_a_pool_with_quota() {
    let setup = start("reference-pools");
    let pools = [1, 2, 3, 4, 5].map(|number| {
        let response = charged(&setup, "/pools", number);
        let is_of = |pool: &&str| response.body.contains(&format!("\nx-pool: {pool}"));
        let pool = ["first", "second"].into_iter().find(is_of);
        assert_eq!(response.status, if pool.is_some() { 200 } else { 429 }, "{response:?}");
        pool
    });
    assert_eq!(pools, [Some("first"), Some("second"), Some("second"), None, None]);
}

/// The usage sequence of Envoy Gateway: 21 in a window and a usage of 10. The third response uses
/// up the limit, and the fourth request is denied.
#[test]
fn fourth_request_of_a_usage_limit_is_denied() {
    let setup = start("reference-usage");
    let statuses = [1, 2, 3, 4, 5].map(|number| charged(&setup, "/usage", number).status);
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
}
