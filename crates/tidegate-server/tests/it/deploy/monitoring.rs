//! The alerts and the dashboard use only metrics that a running server exposes, and promtool
//! accepts them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::process::Command;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::Request;
use serde_json::Value;
use tidegate::tower::RateLimitLayer;
use tower_service::Service;

use super::promql::{self, Selector};
use super::{busy, configs, path, read};
use crate::cli_harness::Files;
use crate::server_harness::Start;

/// The labels that Prometheus adds to all scraped metrics.
const ADDED: [&str; 2] = ["job", "instance"];

/// A metric that Prometheus itself creates.
const MADE: &str = "up";

/// An expression, its location, and the labels that are shown with its results.
struct Used {
    place: String,
    expression: String,
    shown: BTreeSet<String>,
}

/// Metrics with their labels and the values of the labels.
struct Exposed(BTreeMap<String, BTreeMap<String, BTreeSet<String>>>);

impl Exposed {
    fn new(page: &str) -> Self {
        let mut metrics: BTreeMap<_, BTreeMap<_, BTreeSet<_>>> = BTreeMap::new();
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let sample = promql::read(line).selectors.swap_remove(0);
            let labels = metrics.entry(sample.metric).or_default();
            for matcher in sample.matchers {
                labels.entry(matcher.label).or_default().insert(matcher.value);
            }
        }
        Exposed(metrics)
    }

    /// Returns the mistakes in an expression.
    fn mistakes(&self, used: &Used) -> Vec<String> {
        let named = promql::read(&used.expression);
        let mut mistakes = Vec::new();
        if named.selectors.is_empty() {
            mistakes.push("no metric".to_owned());
        }
        let mut known: BTreeSet<&str> = ADDED.into();
        for selector in &named.selectors {
            match self.0.get(&selector.metric) {
                Some(labels) => {
                    known.extend(labels.keys().map(|label| &**label));
                    mistakes.extend(wrong_matchers(selector, labels));
                }
                None if selector.metric == MADE => {}
                None => mistakes.push(format!("no metric {}", selector.metric)),
            }
        }
        let grouping = named.grouping.iter().filter(|label| !known.contains(&***label));
        mistakes.extend(grouping.map(|label| format!("grouped by {label}, which nothing has")));
        // Grouping by some labels removes the others.
        let left: BTreeSet<&str> = match &named.grouping[..] {
            [] => known,
            labels => labels.iter().map(|label| &**label).collect(),
        };
        let shown = used.shown.iter().filter(|label| !left.contains(&***label));
        mistakes.extend(shown.map(|label| format!("shows {label}, which the result has not")));
        mistakes.iter().map(|mistake| format!("{}: {mistake}", used.place)).collect()
    }
}

fn wrong_matchers(selector: &Selector, labels: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let wrong = selector.matchers.iter().filter_map(|matcher| {
        let (metric, label) = (&selector.metric, &matcher.label);
        let exact = matcher.operator == "=" || matcher.operator == "!=";
        match labels.get(label) {
            None if ADDED.contains(&&**label) => None,
            None => Some(format!("{metric} has no label {label}")),
            Some(values) if exact && !values.contains(&matcher.value) => {
                Some(format!("{metric} has no {label}=\"{}\"", matcher.value))
            }
            Some(_) => None,
        }
    });
    wrong.collect()
}

/// Returns the words after each `before`, as in `{{policy}}` and `$labels.policy`.
fn words_behind(text: &str, before: &str) -> BTreeSet<String> {
    let word = |rest: &str| {
        let rest = rest.trim_start();
        rest[..rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())]
            .to_owned()
    };
    text.split(before).skip(1).map(word).collect()
}

/// Returns the expressions of the alerts.
fn alerts() -> Vec<Used> {
    let file = read("prometheus/alerts.yaml");
    let alert = |text: &str| {
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
            line.unwrap_or_else(|| panic!("{name} is missing in: {text}")).trim().to_owned()
        };
        let place = text.lines().next().expect("a name").to_owned();
        for name in ["severity:", "summary:", "description:"] {
            assert!(field(name).len() > 3, "{place}: {name}");
        }
        Used { place, expression: field("expr:"), shown: words_behind(text, "$labels.") }
    };
    file.split("- alert: ").skip(1).map(alert).collect()
}

/// Returns all Prometheus expressions of the dashboard.
fn dashboard() -> Vec<Used> {
    let file: Value = serde_json::from_str(&read("grafana/tidegate.json")).expect("JSON");
    let mut found = Vec::new();
    collect("dashboard", &file, &mut found);
    found
}

fn collect(place: &str, value: &Value, found: &mut Vec<Used>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| collect(place, value, found)),
        Value::Object(fields) => {
            let text = |name: &str| fields.get(name).and_then(Value::as_str);
            let title = text("title").or(text("name"));
            let place = title.map_or(place.to_owned(), |title| format!("{place}, {title}"));
            if let Some(expression) = text("expr") {
                let legend = text("legendFormat").or(text("textFormat")).unwrap_or_default();
                let shown = words_behind(legend, "{{");
                found.push(Used { place: place.clone(), expression: expression.into(), shown });
            }
            if let Some(query) = text("definition") {
                let inside = query.strip_prefix("label_values(").and_then(|q| q.strip_suffix(')'));
                let (series, label) = inside.and_then(|q| q.rsplit_once(", ")).expect(query);
                let shown = BTreeSet::from([label.to_owned()]);
                found.push(Used { place: place.clone(), expression: series.into(), shown });
            }
            fields.values().for_each(|value| collect(&place, value, found));
        }
        _ => {}
    }
}

/// Returns the metrics of a service with the tower layer.
pub fn layer_metrics() -> String {
    let layer = RateLimitLayer::new("1 per 1m".parse().expect("a limit"));
    let mut app = Router::new().route("/", get(|| async { "hello" })).layer(layer.clone());
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(IpAddr::from([192, 0, 2, 1]));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let response = runtime.block_on(app.call(request)).expect("it cannot fail");
    assert_eq!(response.status(), 200);
    layer.metrics()
}

#[test]
fn alerts_and_dashboard_use_existing_metrics() {
    let [(name, config), _] = configs();
    let server = busy(&format!("watching-{name}"), &config);
    // Metrics of a shared store are exposed even if the store is unreachable.
    let shared = Start::new("deploy-watching-shared").config(&config);
    let shared = shared.env("TIDEGATE_STORE", "redis://127.0.0.1:1").run();
    let pages = [server, shared].map(|server| server.admin_get("/metrics").text());
    let exposed = Exposed::new(&(pages.concat() + &layer_metrics()));
    let used: Vec<_> = alerts().into_iter().chain(dashboard()).collect();
    let mistakes: Vec<_> = used.iter().flat_map(|used| exposed.mistakes(used)).collect();
    assert!(mistakes.is_empty(), "{mistakes:#?}");
}

#[test]
fn detects_unknown_metrics_in_expressions() {
    let page = "a_total{policy=\"x\",outcome=\"denied\"} 1\nb 2\n";
    let rows = [
        ("sum by (policy) (rate(a_total{outcome=\"denied\"}[5m]))", "policy", ""),
        ("b / a_total", "outcome", ""),
        ("up{job=\"x\"} == 0", "instance", ""),
        ("rate(a_totals[5m])", "", "no metric a_totals"),
        ("a_total{key=\"x\"}", "", "a_total has no label key"),
        ("a_total{outcome=\"refused\"}", "", "a_total has no outcome=\"refused\""),
        ("sum by (limit) (a_total)", "", "grouped by limit, which nothing has"),
        ("sum by (policy) (a_total)", "outcome", "shows outcome, which the result has not"),
        ("1", "", "no metric"),
    ];
    let exposed = Exposed::new(page);
    for (expression, shown, mistake) in rows {
        let shown = shown.split_terminator(',').map(str::to_owned).collect();
        let used = Used { place: "here".into(), expression: expression.into(), shown };
        let expected: Vec<_> =
            mistake.split_terminator(';').map(|it| format!("here: {it}")).collect();
        assert_eq!(exposed.mistakes(&used), expected, "{expression}");
    }
}

#[test]
fn dashboard_panels_do_not_overlap() {
    let file: Value = serde_json::from_str(&read("grafana/tidegate.json")).expect("JSON");
    let panels = file["panels"].as_array().expect("panels");
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        let title = &panel["title"];
        assert!(
            ids.insert(panel["id"].as_u64().expect("an id")),
            "{title}: another panel has the id"
        );
        let at = |name: &str| panel["gridPos"][name].as_u64().expect("a number");
        assert!(at("x") + at("w") <= 24, "{title}: wider than the page");
        for cell in (at("y")..at("y") + at("h"))
            .flat_map(|y| (at("x")..at("x") + at("w")).map(move |x| (x, y)))
        {
            assert!(taken.insert(cell), "{title}: another panel covers {cell:?}");
        }
    }
}

#[track_caller]
fn promtool(args: &[&str]) {
    let output = Command::new("promtool").args(args).output();
    let output = output.expect("promtool is installed (scripts/test does that; apt: prometheus)");
    let printed = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&printed));
}

#[test]
fn promtool_accepts_rules_and_dashboard_expressions() {
    let file = |name: &str| path(name).into_os_string().into_string().expect("UTF-8");
    promtool(&["check", "config", &file("prometheus/prometheus.yaml")]);
    promtool(&["check", "rules", &file("prometheus/alerts.yaml")]);
    promtool(&["test", "rules", &file("prometheus/alerts_test.yaml")]);
    // promtool reads rules, so the expressions become rules, with a fixed interval instead of
    // Grafana's variable.
    let mut rules = String::from("groups:\n  - name: dashboard\n    rules:\n");
    for (number, used) in dashboard().iter().enumerate() {
        let expression = Value::from(used.expression.replace("$__rate_interval", "1m"));
        rules += &format!("      - record: dashboard:{number}\n        expr: {expression}\n");
    }
    promtool(&["check", "rules", &Files::new("deploy-dashboard").write("rules.yaml", rules)]);
}
