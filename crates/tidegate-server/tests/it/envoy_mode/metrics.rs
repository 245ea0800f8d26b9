//! Metrics for Prometheus and statsd.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, UdpSocket};

use serde_json::{Value, json};
use tidegate_testkit::redis::{Engine, RedisServer};

use super::{ask, mode};
use crate::grpc::{GrpcClient, request_for};
use crate::server_harness::{Client, PATIENCE, Server, Start, request};

const CONFIG: &str = "
domain: edge
descriptors:
  - { key: ten, rate_limit: { unit: day, requests_per_unit: 10 } }
  - { key: shadow, shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: path, detailed_metric: true, rate_limit: { unit: day, requests_per_unit: 100 } }
  - { key: ip, value: 192.0.2.1, rate_limit: { unit: day, requests_per_unit: 100 } }
  - key: tenant
    value_to_metric: true
    descriptors:
      - key: op
        descriptors:
          - { key: read, rate_limit: { unit: day, requests_per_unit: 100 } }
          - { key: write, rate_limit: { unit: day, requests_per_unit: 100 } }
";

/// Configures a server that serves metrics for Prometheus on a free port.
fn with_prometheus(test: &str) -> Start {
    let start = mode(test, Some(CONFIG)).env("USE_PROMETHEUS", "true");
    start.env("PROMETHEUS_ADDR", "127.0.0.1:0")
}

/// Returns the address of the page for Prometheus, which the log has.
fn prometheus_address(server: &Server) -> SocketAddr {
    let log = server.logged("serving metrics for Prometheus");
    let line = log.lines().find(|line| line.contains("serving metrics for Prometheus"));
    let address = line.and_then(|line| line.split_once("127.0.0.1:")).expect("an address").1;
    let port: String = address.chars().take_while(char::is_ascii_digit).collect();
    SocketAddr::from(([127, 0, 0, 1], port.parse().expect("a port")))
}

/// Returns the samples of the page, by name with labels, except those that are 0.
pub fn scrape(server: &Server, path: &str) -> BTreeMap<String, f64> {
    let mut client = Client::connect(prometheus_address(server));
    client.send(&request("GET", path, &[], ""));
    let reply = client.reply("GET");
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = reply.text();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let samples = samples.map(|line| {
        let (name, value) = line.rsplit_once(' ').expect("a sample");
        (name.to_owned(), value.parse().expect("a number"))
    });
    samples.filter(|(_, value)| *value != 0.0).collect()
}

/// Returns the counts of one limit, by the last part of their names.
fn counts(samples: &BTreeMap<String, f64>, labels: &str) -> Vec<(String, f64)> {
    let of_limit = samples.iter().filter_map(|(name, value)| {
        let name = name.strip_prefix("ratelimit_service_rate_limit_")?;
        Some((name.strip_suffix(labels)?.to_owned(), *value))
    });
    of_limit.collect()
}

#[track_caller]
fn assert_counts(samples: &BTreeMap<String, f64>, labels: &str, expected: &[(&str, f64)]) {
    let expected: Vec<_> = expected.iter().map(|(name, count)| ((*name).into(), *count)).collect();
    assert_eq!(counts(samples, labels), expected, "{labels}: {samples:#?}");
}

/// Sends a request with one descriptor.
fn send(server: &Server, entries: &[(&str, &str)], hits: u64) {
    let entries: Vec<Value> =
        entries.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect();
    let descriptors = json!([{ "entries": entries, "hitsAddend": hits }]);
    let body = json!({ "domain": "edge", "descriptors": descriptors });
    let reply = server.post("/json", &body.to_string());
    assert!([200, 429].contains(&reply.status), "{reply:?}");
}

#[test]
fn prometheus_counts_hits_by_limit() {
    counts_hits_by_limit(&with_prometheus("envoy-metrics-hits").run());
}

#[test]
fn counts_over_redis_are_the_same() {
    let redis = RedisServer::start(Engine::Redis);
    let start = with_prometheus("envoy-metrics-redis").env("REDIS_SOCKET_TYPE", "tcp");
    counts_hits_by_limit(&start.env("REDIS_URL", &redis.address()).run());
}

fn counts_hits_by_limit(server: &Server) {
    for _ in 0..13 {
        ask(server, &["ten"]);
    }
    for _ in 0..3 {
        ask(server, &["shadow"]);
    }
    let samples = scrape(server, "/metrics");
    // The reference counts hits 9 and 10 as near the limit: they exceed 80 % of it.
    let ten =
        [("near_limit", 2.0), ("over_limit", 3.0), ("total_hits", 13.0), ("within_limit", 10.0)];
    assert_counts(&samples, r#"{domain="edge",key1="ten"}"#, &ten);
    let shadow = [
        ("near_limit", 1.0),
        ("over_limit", 2.0),
        ("shadow_mode", 2.0),
        ("total_hits", 3.0),
        ("within_limit", 1.0),
    ];
    assert_counts(&samples, r#"{domain="edge",key1="shadow"}"#, &shadow);
    assert_eq!(samples.get("ratelimit_service_config_load_success"), Some(&1.0));
}

#[test]
fn hits_of_one_request_are_divided() {
    let server = with_prometheus("envoy-metrics-divided").env("NEAR_LIMIT_RATIO", "0.5").run();
    let labels = r#"{domain="edge",key1="ten"}"#;
    send(&server, &[("ten", "a")], 7);
    let expected = [("near_limit", 2.0), ("total_hits", 7.0), ("within_limit", 7.0)];
    assert_counts(&scrape(&server, "/metrics"), labels, &expected);
    // A denied request is over the limit as a whole.
    send(&server, &[("ten", "a")], 9);
    let expected =
        [("near_limit", 2.0), ("over_limit", 9.0), ("total_hits", 16.0), ("within_limit", 7.0)];
    assert_counts(&scrape(&server, "/metrics"), labels, &expected);
    // A limit that is only observed is not used up, so it is known what was left.
    send(&server, &[("shadow", "a")], 3);
    let expected = [
        ("near_limit", 1.0),
        ("over_limit", 2.0),
        ("shadow_mode", 2.0),
        ("total_hits", 3.0),
        ("within_limit", 1.0),
    ];
    assert_counts(&scrape(&server, "/metrics"), r#"{domain="edge",key1="shadow"}"#, &expected);
}

#[test]
fn prometheus_counts_calls_errors_and_configs() {
    let server = with_prometheus("envoy-metrics-calls").env("PROMETHEUS_PATH", "/a{b}").run();
    let mut client = GrpcClient::new(&server);
    assert_eq!(client.code(&request_for("edge", &[("ten", "v")])), "OK");
    assert_eq!(client.limit(&request_for("", &[("ten", "v")]))["code"], "INVALID_ARGUMENT");
    server.files.replace("ratelimit/config/edge.yaml", "domain: edge\ndescriptors: [{ key: 1 ");
    server.logged("the config was not reloaded");
    let samples = scrape(&server, "/a{b}");
    let expected = [
        (r#"ratelimit_service_total_requests{grpc_method="ShouldRateLimit"}"#, 2.0),
        (r#"ratelimit_service_should_rate_limit_error{err_type="service_error"}"#, 1.0),
        (r#"ratelimit_service_response_time_seconds_count{grpc_method="ShouldRateLimit"}"#, 2.0),
        ("ratelimit_service_config_load_success", 1.0),
        ("ratelimit_service_config_load_error", 1.0),
    ];
    for (name, count) in expected {
        assert_eq!(samples.get(name), Some(&count), "{name}: {samples:#?}");
    }
    server.files.replace("ratelimit/config/edge.yaml", CONFIG.replace("ten", "eleven"));
    server.logged("the config was reloaded");
    ask(&server, &["eleven"]);
    let samples = scrape(&server, "/a{b}");
    let eleven = [("total_hits", 1.0), ("within_limit", 1.0)];
    assert_counts(&samples, r#"{domain="edge",key1="eleven"}"#, &eleven);
    assert_eq!(samples.get("ratelimit_service_config_load_success"), Some(&2.0));
}

#[test]
fn prometheus_counts_requests_that_only_shadow_mode_allowed() {
    let server = with_prometheus("envoy-metrics-shadow").env("SHADOW_MODE", "true").run();
    for _ in 0..12 {
        assert_eq!(ask(&server, &["ten"]).status, 200);
    }
    let samples = scrape(&server, "/metrics");
    assert_eq!(samples.get("ratelimit_service_global_shadow_mode"), Some(&2.0), "{samples:#?}");
}

#[test]
fn values_of_requests_are_labels_if_configured() {
    let server = with_prometheus("envoy-metrics-values").run();
    let long = "x".repeat(5_000);
    for value in ["a", "a.b:c|d", "line\nbreak \"quoted\"", "192.0.2.7", &long] {
        send(&server, &[("path", value)], 1);
    }
    send(&server, &[("ip", "192.0.2.1")], 1);
    // The mapper has labels for two keys only.
    send(&server, &[("tenant", "blue"), ("op", "x"), ("read", "y")], 1);
    send(&server, &[("tenant", "blue"), ("op", "x"), ("write", "y")], 2);
    let samples = scrape(&server, "/metrics");
    let one = [("total_hits", 1.0), ("within_limit", 1.0)];
    let labels = [
        "path_a",
        "path_a_b_c_d",
        r#"path_line_break_\"quoted\""#,
        "path_192_0_2_7",
        &format!("path_{}", "x".repeat(128)),
        "ip_192_0_2_1",
    ];
    for label in labels {
        assert_counts(&samples, &format!(r#"{{domain="edge",key1="{label}"}}"#), &one);
    }
    let three = [("total_hits", 3.0), ("within_limit", 3.0)];
    assert_counts(&samples, r#"{domain="edge",key1="tenant_blue",key2="op"}"#, &three);
}

#[test]
fn number_of_series_is_bounded() {
    let server = with_prometheus("envoy-metrics-bound").run();
    let sent = 5_000;
    for first in (0..sent).step_by(20) {
        let descriptors: Vec<Value> = (first..first + 20)
            .map(|value| json!({ "entries": [{ "key": "path", "value": value.to_string() }] }))
            .collect();
        let body = json!({ "domain": "edge", "descriptors": descriptors }).to_string();
        assert_eq!(server.post("/json", &body).status, 200);
    }
    let samples = scrape(&server, "/metrics");
    let total = "ratelimit_service_rate_limit_total_hits";
    let totals: Vec<_> = samples.iter().filter(|(name, _)| name.starts_with(total)).collect();
    assert!(totals.len() <= 4_097, "{}", totals.len());
    assert_eq!(totals.iter().map(|(_, count)| *count).sum::<f64>(), f64::from(sent));
    let other = samples.get(&format!(r#"{total}{{domain="other",key1="other"}}"#));
    assert!(other.is_some_and(|count| *count >= 904.0), "{other:?}");
    assert_eq!(server.log().matches("too many series of metrics").count(), 1);
}

/// Adds the counts of lines in the form of statsd.
fn add_lines(text: &str, counts: &mut BTreeMap<String, u64>) {
    for line in text.lines() {
        let (name, rest) = line.split_once(':').unwrap_or_else(|| panic!("{line}"));
        let (value, kind) = rest.split_once('|').unwrap_or_else(|| panic!("{line}"));
        let suffix = kind.strip_prefix('c').unwrap_or_else(|| panic!("{line}"));
        *counts.entry(format!("{name}{suffix}")).or_default() +=
            value.parse::<u64>().expect("a number");
    }
}

/// Receives until every expected count has arrived, and checks that they are exact.
#[track_caller]
fn receive_over_udp(socket: &UdpSocket, expected: &[(&str, u64)]) -> BTreeMap<String, u64> {
    socket.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let mut counts = BTreeMap::new();
    let mut packet = [0; 65_536];
    while expected.iter().any(|(name, count)| counts.get(*name).is_none_or(|got| got < count)) {
        let length =
            socket.recv(&mut packet).unwrap_or_else(|error| panic!("{error}: {counts:#?}"));
        assert!(length <= 1432, "{length}");
        add_lines(std::str::from_utf8(&packet[..length]).expect("UTF-8"), &mut counts);
    }
    for (name, count) in expected {
        assert_eq!(counts.get(*name), Some(count), "{name}: {counts:#?}");
    }
    counts
}

/// Configures a server that sends to statsd at this port.
fn with_statsd(test: &str, port: u16) -> Start {
    let start = mode(test, Some(CONFIG)).env("STATSD_HOST", "127.0.0.1");
    start.env("STATSD_PORT", &port.to_string()).env("STATS_FLUSH_INTERVAL", "100ms")
}

#[test]
fn statsd_receives_what_was_counted() {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let port = socket.local_addr().expect("an address").port();
    let start = with_statsd("envoy-metrics-udp", port).env("STATSD_PROTOCOL", "udp");
    start.files().write("ratelimit/config/bare.yaml", "domain: bare\n");
    let mut server = start.env("SHADOW_MODE", "true").run();
    for _ in 0..13 {
        ask(&server, &["ten"]);
    }
    send(&server, &[("path", "a.b:c|d\n#@ \u{fc}")], 1);
    for value in 0..100 {
        send(&server, &[("path", &format!("{value}{}", "x".repeat(5_000)))], 1);
    }
    let in_domain =
        |domain| json!({ "domain": domain, "descriptors": [{ "entries": [{ "key": "a" }] }] });
    server.post("/json", &in_domain("no.pe").to_string());
    // A domain without limits is known.
    server.post("/json", &in_domain("bare").to_string());
    let counts = receive_over_udp(
        &socket,
        &[
            ("ratelimit.service.rate_limit.edge.ten.total_hits", 13),
            ("ratelimit.service.rate_limit.edge.ten.over_limit", 3),
            ("ratelimit.service.rate_limit.edge.ten.near_limit", 2),
            ("ratelimit.service.rate_limit.edge.ten.within_limit", 10),
            ("ratelimit.service.rate_limit.edge.path_a_b_c_d_#@_\u{fc}.total_hits", 1),
            ("ratelimit.service.rate_limit.no_pe.domain_not_found", 1),
            ("ratelimit.service.config_load_success", 1),
            ("ratelimit.service.global_shadow_mode", 3),
        ],
    );
    assert!(counts.values().all(|count| *count > 0), "{counts:#?}");
    assert!(!counts.keys().any(|name| name.contains("bare")), "{counts:#?}");
    // The last counts are sent when the server ends.
    ask(&server, &["shadow"]);
    server.signal("-TERM");
    let shadow = [("ratelimit.service.rate_limit.edge.shadow.total_hits", 1)];
    receive_over_udp(&socket, &shadow);
    assert_eq!(server.ended(), 0);
}

#[test]
fn dog_statsd_receives_tags() {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let port = socket.local_addr().expect("an address").port();
    let start = with_statsd("envoy-metrics-dog", port).env("USE_DOG_STATSD", "true");
    let server = start.env("EXTRA_TAGS", "zone:a,build:1.2").run();
    ask(&server, &["ten"]);
    let name = "ratelimit.service.rate_limit.edge.ten.total_hits|#build:1_2,zone:a";
    receive_over_udp(&socket, &[(name, 1)]);
}

#[test]
fn statsd_receives_over_tcp_by_default() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let port = listener.local_addr().expect("an address").port();
    let server = with_statsd("envoy-metrics-tcp", port).env("EXTRA_TAGS", "b:2,a:1").run();
    ask(&server, &["ten"]);
    let name = "ratelimit.service.rate_limit.edge.ten.total_hits.__a=1.__b=2";
    let mut counts = BTreeMap::new();
    while !counts.contains_key(name) {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("lines");
        add_lines(&text, &mut counts);
    }
    assert_eq!(counts.get(name), Some(&1));
}

#[test]
fn missing_receiver_changes_nothing() {
    // The port of a socket that was closed.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|one| one.local_addr());
    let server = with_statsd("envoy-metrics-none", port.expect("an address").port()).run();
    server.logged("metrics cannot be sent to statsd");
    assert_eq!(ask(&server, &["ten"]).status, 200);
    let off = mode("envoy-metrics-off", Some(CONFIG)).env("DISABLE_STATS", "true");
    let off = off.env("USE_PROMETHEUS", "true").env("PROMETHEUS_ADDR", "127.0.0.1:0").run();
    assert_eq!(ask(&off, &["ten"]).status, 200);
    assert!(!off.log().contains("serving metrics for Prometheus"));
}

#[test]
fn address_in_use_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = listener.local_addr().expect("an address").to_string();
    let start = with_prometheus("envoy-metrics-in-use").env("PROMETHEUS_ADDR", &address);
    let (code, error) = start.fails();
    assert_ne!(code, 0);
    assert!(error.contains(&format!("PROMETHEUS_ADDR={address}: ")), "{error}");
}
