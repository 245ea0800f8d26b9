//! The statistics as metrics for Prometheus.
//!
//! The text format is written by hand: a line is a name, labels and a number, and a library would
//! require its own counter types. Labels are names from the config and fixed words. A key is never
//! a label, because the number of keys is unbounded.

use std::fmt::{Display, Write};
use std::time::Duration;

use super::{
    Decided, LATENCY_BOUNDS, LatencyCounts, Outcome, RequestCounts, SERVICE_BOUNDS, SeriesCounts,
    ServiceLatency, Stats,
};
use crate::MemoryStats;
use crate::policy::{Mode, Policies, RequestField};

/// The media type of the format.
pub const PROMETHEUS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only increases.
    Counter,
    /// A number that increases and decreases.
    Gauge,
    /// Numbers of observations by their size.
    Histogram,
}

impl MetricKind {
    const fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

/// A page of metrics that is being written.
#[derive(Debug, Default)]
pub struct PrometheusText {
    text: String,
}

impl PrometheusText {
    /// Begins a family. Its samples are written through the returned value.
    pub fn family<'a>(
        &'a mut self,
        name: &'a str,
        kind: MetricKind,
        help: &str,
    ) -> MetricFamily<'a> {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {}", kind.name()));
        MetricFamily { page: self, name }
    }

    /// Writes a family of one sample without labels.
    pub fn single(&mut self, name: &str, kind: MetricKind, help: &str, value: impl Display) {
        self.family(name, kind, help).sample(&[], value);
    }

    /// Writes a histogram without labels, with the buckets of [`LATENCY_BOUNDS`].
    pub fn latency(&mut self, name: &str, help: &str, counts: &LatencyCounts) {
        let mut family = self.family(name, MetricKind::Histogram, help);
        family.histogram(&[], &LATENCY_BOUNDS, counts);
    }

    /// Returns the text.
    pub fn finish(self) -> String {
        self.text
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to memory cannot fail.
        let _ = writeln!(self.text, "{line}");
    }
}

/// A metric family, for writing its samples.
#[derive(Debug)]
pub struct MetricFamily<'a> {
    page: &'a mut PrometheusText,
    name: &'a str,
}

impl MetricFamily<'_> {
    /// Writes a sample.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.suffixed("", labels, value);
    }

    /// Writes a sample whose name has a suffix, as in histograms.
    pub fn suffixed(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let mut all = String::new();
        for (name, label) in labels {
            let comma = if all.is_empty() { "" } else { "," };
            let _ = write!(all, "{comma}{name}=\"{}\"", Escaped(label));
        }
        let name = self.name;
        if all.is_empty() {
            self.page.line(format_args!("{name}{suffix} {value}"));
        } else {
            self.page.line(format_args!("{name}{suffix}{{{all}}} {value}"));
        }
    }

    /// Writes the buckets, the sum and the count of a histogram.
    fn histogram(&mut self, labels: &[(&str, &str)], bounds: &[Duration], counts: &LatencyCounts) {
        let mut up_to = 0;
        let all = bounds.iter().map(|bound| bound.as_secs_f64().to_string());
        for (bound, count) in all.chain(["+Inf".to_owned()]).zip(counts.buckets) {
            up_to += count;
            self.suffixed("_bucket", &[labels, &[("le", &*bound)]].concat(), up_to);
        }
        self.suffixed("_sum", labels, counts.sum.as_secs_f64());
        self.suffixed("_count", labels, counts.count());
    }
}

/// A label value, escaped.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            c => f.write_char(c),
        })
    }
}

impl Stats {
    /// Writes requests, decisions and durations. `policies` are the active ones: they define the
    /// routes of requests.
    pub fn write_metrics(&self, page: &mut PrometheusText, policies: &Policies) {
        requests(page, &self.requests(), policies);
        decisions(page, &self.series());
        let help = "Time to decide a request, without the protocol around it; a sample of all.";
        page.latency("tidegate_decision_duration_seconds", help, &self.latency());
        service(page, &self.service_latency());
    }
}

fn requests(page: &mut PrometheusText, all: &[RequestCounts], policies: &Policies) {
    let help = "Requests, each counted once: under the observed policy that would have denied it, \
                or else under the policy that its answer reports.";
    let mut family = page.family("tidegate_requests_total", MetricKind::Counter, help);
    for requests in all {
        let route = route(policies, &requests.policy);
        for outcome in Outcome::ALL {
            let count = requests.outcomes[outcome as usize];
            // Possible outcomes are always listed, so that a rate can start from zero.
            if count > 0 || requests.possible[outcome as usize] {
                let policy = ("policy", &*requests.policy);
                let outcome = ("outcome", outcome.name());
                match &route {
                    Some(route) => family.sample(&[policy, ("route", route), outcome], count),
                    None => family.sample(&[policy, outcome], count),
                }
            }
        }
    }
}

/// The maximum length of a route label. A policy can have 1,024 patterns.
const MAX_ROUTE_CHARS: usize = 128;

/// The path patterns that a policy matches, as the config has them; `None` if it matches any path.
/// There is one route per policy, so the label adds no series, and no path that a client sends
/// appears in it.
fn route(policies: &Policies, policy: &str) -> Option<String> {
    let mut conditions = policies.get(policy)?.matching().iter();
    let path = conditions.find(|condition| *condition.field() == RequestField::Path)?;
    let text = path.to_string();
    let patterns = text.strip_prefix("path: ").unwrap_or(&text);
    match patterns.char_indices().nth(MAX_ROUTE_CHARS) {
        Some((end, _)) => Some(format!("{}...", &patterns[..end])),
        None => Some(patterns.to_owned()),
    }
}

fn decisions(page: &mut PrometheusText, all: &[SeriesCounts]) {
    // Policies that are off never decide. A series at 0 would look like one that could.
    let all = || all.iter().filter(|series| series.mode != Mode::Off);
    let help = "Decisions of single limits: one per limit that a request was checked against.";
    let mut family = page.family("tidegate_decisions_total", MetricKind::Counter, help);
    for series in all() {
        let outcomes =
            [(Outcome::Allowed, &series.allowed), (series.denied_outcome(), &series.denied)];
        for (outcome, counts) in outcomes {
            for (decided, count) in Decided::ALL.into_iter().zip(counts) {
                // Exact decisions are always listed, so that a rate can start from zero.
                if *count == 0 && decided != Decided::Exact {
                    continue;
                }
                let [policy, limit, mode] = names(series);
                let how = [("outcome", outcome.name()), ("decided", decided.name())];
                family.sample(&[policy, limit, mode, how[0], how[1]], count);
            }
        }
    }
    let help = "Requests that were allowed and left at most 5 % of the limit.";
    let mut family = page.family("tidegate_near_misses_total", MetricKind::Counter, help);
    for series in all() {
        family.sample(&names(series), series.near);
    }
}

fn names(series: &SeriesCounts) -> [(&'static str, &str); 3] {
    [("policy", &series.policy), ("limit", &series.limit), ("mode", series.mode.name())]
}

/// Writes the service times. Only the layer measures them, so other fronts have no such family.
fn service(page: &mut PrometheusText, all: &[ServiceLatency]) {
    if all.is_empty() {
        return;
    }
    let help = "Time until the service behind the layer responded; a sample of admitted requests.";
    let mut family = page.family("tidegate_service_duration_seconds", MetricKind::Histogram, help);
    for latency in all {
        let labels = [("policy", &*latency.policy), ("outcome", latency.outcome.name())];
        family.histogram(&labels, SERVICE_BOUNDS, &latency.counts);
    }
}

/// Writes the use of the memory store.
pub fn write_memory_metrics(page: &mut PrometheusText, store: &MemoryStats) {
    use MetricKind::{Counter, Gauge};
    let rows = [
        (
            "tidegate_tracked_keys",
            Gauge,
            "Keys tracked, counted per key and limit.",
            store.tracked_keys,
        ),
        ("tidegate_log_entries", Gauge, "Log entries and permits held.", store.log_entries),
        ("tidegate_remembered_ids", Gauge, "Idempotency ids stored.", store.remembered_ids),
        (
            "tidegate_overflow_total",
            Counter,
            "Decisions about keys that the store had no room for.",
            store.overflowed,
        ),
        (
            "tidegate_merged_entries_total",
            Counter,
            "Log entries merged for lack of room.",
            store.merged_entries,
        ),
        (
            "tidegate_forgotten_ids_total",
            Counter,
            "Idempotency ids forgotten for lack of room.",
            store.forgotten_ids,
        ),
    ];
    for (name, kind, help, value) in rows {
        page.single(name, kind, help, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_labels_and_writes_headers() {
        let mut page = PrometheusText::default();
        let mut family = page.family("a_total", MetricKind::Counter, "What a is.");
        family.sample(&[("x", "1\"2\\3\n4"), ("y", "plain")], 5);
        family.sample(&[], 0.25);
        page.single("b", MetricKind::Gauge, "What b is.", 7);
        let expected = "# HELP a_total What a is.\n# TYPE a_total counter\n\
                        a_total{x=\"1\\\"2\\\\3\\n4\",y=\"plain\"} 5\na_total 0.25\n\
                        # HELP b What b is.\n# TYPE b gauge\nb 7\n";
        assert_eq!(page.finish(), expected);
    }
}
