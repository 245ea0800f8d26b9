//! Tests of names, of the table of series and of packets.

use std::sync::Arc;

use tidegate::unstable::policy::{EnvoyDetails, EnvoyLevel};

use super::series::{MAX_NAME_BYTES, MAX_SERIES, Registry, limit_name, request_limit_name};
use super::settings::{StatsdForm, StatsdSettings};
use super::*;
use crate::fronts::envoy::Entries;

/// Levels as `key=value` of the config, then `v` for `value_to_metric` and `s` for
/// `share_threshold`.
fn details(domain: &str, levels: &[(&str, &str)], detailed_metric: bool) -> EnvoyDetails {
    let level = |(level, flags): &(&str, &str)| {
        let (key, value) = level.split_once('=').unwrap_or((level, ""));
        Arc::new(EnvoyLevel {
            key: key.into(),
            value: value.into(),
            value_to_metric: flags.contains('v'),
            share_threshold: flags.contains('s'),
        })
    };
    let levels = levels.iter().map(level).collect();
    EnvoyDetails { domain: domain.into(), levels, name: "".into(), detailed_metric, metadata: None }
}

fn entries(values: &[&'static str]) -> Entries<'static> {
    values.iter().map(|value| ("k".into(), (*value).into())).collect()
}

#[test]
fn names_are_those_of_envoyproxy_ratelimit() {
    #[rustfmt::skip]
    let rows: [(&str, &[(&str, &str)], bool, &[&'static str], Option<&str>, &str); 11] = [
        // The config has the whole name.
        ("d", &[("a", "")], false, &["1"], Some("d.a"), "d.a"),
        ("d", &[("a=1", "v"), ("b", "")], false, &["1", "2"], Some("d.a_1.b"), "d.a_1.b"),
        ("d", &[("a=x*", "")], false, &["xy"], Some("d.a_x*"), "d.a_x*"),
        ("d", &[("a=x*", "vs")], true, &["xy"], Some("d.a_x*"), "d.a_x*"),
        ("a.b:c", &[("h=x.y", ""), ("ip=10.0.0.1/8", "")], true, &["x.y", ""], Some("a.b_c.h_x.y.ip_10_0_0_1/8"), "a.b_c.h_x.y.ip_10_0_0_1/8"),
        // The request has a part of it.
        ("d", &[("a", "v"), ("b", "")], false, &["1", "2"], None, "d.a_1.b"),
        ("d", &[("a=x*", "v")], false, &["xy"], None, "d.a_xy"),
        ("d", &[("a", ""), ("b", "")], true, &["1", "2"], None, "d.a_1.b_2"),
        ("d", &[("a=x*", "s"), ("b", "")], true, &["xy", "2"], None, "d.a_x*.b_2"),
        ("d", &[("a", "")], true, &[""], None, "d.a"),
        ("d", &[("a", "")], true, &["x.y:z|\n\t\u{0} 1.2"], None, "d.a_x_y_z_____1_2"),
    ];
    for (domain, levels, detailed, values, fixed, expected) in rows {
        let details = details(domain, levels, detailed);
        assert_eq!(limit_name(&details, None).as_deref(), fixed, "{levels:?}");
        let name = limit_name(&details, Some(&entries(values)));
        assert_eq!(name.as_deref(), Some(expected), "{levels:?}");
    }
    assert_eq!(request_limit_name("d", &entries(&["1.5", ""])), "d.k_1_5.k");
}

#[test]
fn names_are_bounded() {
    let long: Entries<'_> =
        (0..100).map(|_| ("k".repeat(999).into(), "ü".repeat(999).into())).collect();
    let name = request_limit_name("d", &long);
    assert!((MAX_NAME_BYTES - 3..=MAX_NAME_BYTES).contains(&name.len()), "{}", name.len());
    let levels = vec![("key=value", ""); 200];
    let name = limit_name(&details("d", &levels, false), None);
    assert_eq!(name.map(|name| name.len()), Some(MAX_NAME_BYTES));
}

#[test]
fn full_table_counts_the_rest_together_until_a_reload() {
    let registry = Registry::default();
    for index in 0..MAX_SERIES {
        assert_eq!(registry.get(&format!("d.{index}")).name, format!("d.{index}"));
    }
    assert_eq!(registry.get("d.more").name, "other.other");
    assert_eq!(registry.get("d.7").name, "d.7");
    assert_eq!(registry.all().len(), MAX_SERIES + 1);
    registry.make_room(["d.7", "d.more"].into_iter());
    assert_eq!(registry.get("d.more").name, "d.more");
    let mut names: Vec<_> = registry.all().iter().map(|series| series.name.clone()).collect();
    names.sort();
    assert_eq!(names, ["d.7", "d.more", "other.other"]);
}

/// A receiver that accepts and never reads holds up one flush for a while, and nothing is kept.
#[tokio::test]
async fn silent_receiver_is_given_up() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
    let settings = StatsdSettings {
        host: "127.0.0.1".to_owned(),
        port: listener.local_addr().expect("an address").port(),
        form: StatsdForm::Tcp,
        interval: Duration::from_secs(1),
        tags: Vec::new(),
    };
    let metrics = Arc::new(EnvoyMetrics::new(0.8, false));
    // More than the buffers of a connection hold.
    for index in 0..MAX_SERIES {
        let series = metrics.registry.get(&format!("d.{index}.{}", "x".repeat(480)));
        (0..Hits::ALL.len()).for_each(|which| series.counters.add(which, 1));
    }
    let statsd = Statsd::new(settings.clone(), Arc::clone(&metrics));
    statsd.flush().await;
    assert!(statsd.has_failed());
    assert_eq!(statsd::packets(&metrics, &settings), [""; 0]);
}

#[test]
fn packets_have_what_was_added_since_the_last() {
    let metrics = EnvoyMetrics::new(0.8, false);
    let tags = vec![("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())];
    let mut settings = StatsdSettings {
        host: "localhost".to_owned(),
        port: 1,
        form: StatsdForm::Udp,
        interval: Duration::from_secs(1),
        tags,
    };
    metrics.count_rejected_config();
    let name = "ratelimit.service.config_load_error";
    assert_eq!(statsd::packets(&metrics, &settings), [format!("{name}.__a=1.__b=2:1|c\n")]);
    assert_eq!(statsd::packets(&metrics, &settings), [""; 0]);
    metrics.count_rejected_config();
    metrics.count_rejected_config();
    settings.form = StatsdForm::DogStatsd;
    assert_eq!(statsd::packets(&metrics, &settings), [format!("{name}:2|c|#a:1,b:2\n")]);
}
