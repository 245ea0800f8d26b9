//! Table, thresholds and JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::load::TurnResult;
use super::rounds::{
    Estimate, Results, Row, Subject, load_us, p50_us, p99_us, per_second, server_busy, server_us,
};
use super::soak::SoakResult;
use crate::cli::name_of;
use crate::report::{processor, rounded, threshold_json, to_text, write_machine, write_thresholds};
use crate::thresholds::Threshold;

/// Fraction of busy time below which the throughput was limited by the load and not the server.
pub const SATURATED: f64 = 0.90;

/// Renders the readable report.
pub fn table(results: &Results) -> String {
    to_text(|text| write_report(text, results))
}

fn write_report(text: &mut String, results: &Results) -> std::fmt::Result {
    let settings = &results.settings;
    write_machine(text, [&results.load_before, &results.load_after])?;
    writeln!(
        text,
        "{} connections, {} keys, {} ms a turn, median of {} rounds; {}",
        settings.connections,
        settings.keys,
        settings.time_ms,
        results.settings.rounds,
        where_they_run(results)
    )?;
    writeln!(text)?;
    for row in &results.rows {
        writeln!(text, "  {:<31} {}", name_of(&row.subject), row.subject.describe())?;
    }
    write_rows(text, results)?;
    write_warning(text, results)?;
    writeln!(text, "\nstart to first answer, median of 20")?;
    for (server_kind, took) in &results.starts {
        writeln!(text, "  {:<31}{:>8.1} ms", server_kind.name(), took.as_secs_f64() * 1e3)?;
    }
    write_thresholds(text, &thresholds(results))
}

fn where_they_run(results: &Results) -> &'static str {
    if results.settings.placement.server.is_some() {
        "server and load have a processor each"
    } else {
        "server and load share the processors"
    }
}

fn write_rows(text: &mut String, results: &Results) -> std::fmt::Result {
    writeln!(
        text,
        "\n{:<33}{:>7}{:>20}{:>20}{:>8}{:>20}{:>8}{:>8}{:>6}{:>9}",
        "",
        "req/s",
        "/axum",
        "/throttlecrab",
        "cpu us",
        "/axum",
        "p50 us",
        "p99 us",
        "busy",
        "load us"
    )?;
    for row in &results.rows {
        writeln!(
            text,
            "  {:<31}{:>7.0}{:>20}{:>20}{:>8.2}{:>20}{:>8.0}{:>8.0}{:>6}{:>9.2}",
            name_of(&row.subject),
            row.estimate(per_second).median,
            with_interval(ratio(results, row, Subject::Axum, per_second)),
            with_interval(ratio(results, row, Subject::Throttlecrab, per_second)),
            row.estimate(server_us).median,
            with_interval(ratio(results, row, Subject::Axum, server_us)),
            row.estimate(p50_us).median,
            row.estimate(p99_us).median,
            percent(row.estimate(server_busy).median),
            row.estimate(load_us).median,
        )?;
    }
    Ok(())
}

pub fn percent(fraction: f64) -> String {
    format!("{:.0}%", fraction * 100.0)
}

/// Formats a ratio with the interval of its median: `0.934 (0.92-0.95)`.
pub fn with_interval(estimate: Option<Estimate>) -> String {
    estimate.map_or_else(
        || "-".to_owned(),
        |Estimate { median, low, high }| format!("{median:.3} ({low:.2}-{high:.2})"),
    )
}

/// Writes a warning if the figures are unreliable.
fn write_warning(text: &mut String, results: &Results) -> std::fmt::Result {
    if results.settings.placement.server.is_none() {
        return Ok(());
    }
    let turns = results.settings.rounds * results.rows.len();
    // A server that shares its processor with other programs is idle while they run.
    if results.disturbed * 10 > turns {
        return writeln!(
            text,
            "\nOther programs ran: {} turns were made again to get {turns}.\n\
             Trust cpu us more than req/s, and neither much.",
            results.disturbed
        );
    }
    for row in &results.rows {
        let (name, busy) = (name_of(&row.subject), row.estimate(server_busy).median);
        if busy < SATURATED {
            writeln!(
                text,
                "\n{name} was busy only {} of the time: the load was the limit.",
                percent(busy)
            )?;
        }
    }
    Ok(())
}

fn ratio(
    results: &Results,
    row: &Row,
    other: Subject,
    metric: fn(&TurnResult) -> f64,
) -> Option<Estimate> {
    results.row(other).map(|other| row.ratio(other, metric))
}

/// Returns the thresholds of the server, for policies with two limits of which one in six matches.
fn thresholds(results: &Results) -> Vec<Threshold> {
    let threshold = |subject: Subject| {
        let row = results.row(subject);
        let over = row.and_then(|row| ratio(results, row, Subject::Axum, per_second));
        let name = format!("{}: req/s / axum", name_of(&subject));
        Threshold::at_least(&name, over.map(|estimate| estimate.median), Some(0.85), Some(0.92))
    };
    [Subject::AttributesTwoLimits, Subject::ForwardAuthTwoLimits].map(threshold).into()
}

/// Renders JSON. `rows` and `bars` (the thresholds) are stable; the rest describes the measurement.
pub fn json(results: &Results) -> Value {
    let rows: Vec<Value> = results.rows.iter().map(|row| row_json(results, row)).collect();
    let thresholds: Vec<Value> = thresholds(results).iter().map(threshold_json).collect();
    let starts: serde_json::Map<String, Value> = results
        .starts
        .iter()
        .map(|(server_kind, took)| {
            (server_kind.name().to_owned(), json!(rounded(took.as_secs_f64() * 1e3, 100.0)))
        })
        .collect();
    json!({
        "rows": rows,
        "bars": thresholds,
        "start_to_first_answer_ms": starts,
        "connections": results.settings.connections,
        "keys": results.settings.keys,
        "turn_ms": results.settings.time_ms,
        "rounds": results.settings.rounds,
        "disturbed_turns": results.disturbed,
        "bound": results.settings.placement.server.is_some(),
        "processor": processor(),
        "load": [results.load_before, results.load_after],
    })
}

fn row_json(results: &Results, row: &Row) -> Value {
    let estimate = |metric: fn(&TurnResult) -> f64| estimate_json(&row.estimate(metric));
    let over = |other, metric| ratio(results, row, other, metric).as_ref().map(estimate_json);
    json!({
        "subject": name_of(&row.subject),
        "what": row.subject.describe(),
        "requests_per_second": estimate(per_second),
        "requests_per_second_over_axum": over(Subject::Axum, per_second),
        "requests_per_second_over_throttlecrab": over(Subject::Throttlecrab, per_second),
        "server_cpu_us": estimate(server_us),
        "server_cpu_over_axum": over(Subject::Axum, server_us),
        "server_cpu_over_throttlecrab": over(Subject::Throttlecrab, server_us),
        "p50_us": estimate(p50_us),
        "p99_us": estimate(p99_us),
        "server_busy": estimate(server_busy),
        "queued": estimate(TurnResult::queued),
        "load_cpu_us": estimate(load_us),
    })
}

pub fn estimate_json(estimate: &Estimate) -> Value {
    let of = |value| rounded(value, 1000.0);
    json!({ "median": of(estimate.median), "low": of(estimate.low), "high": of(estimate.high) })
}

/// Renders the readable report of a soak.
pub fn soak_text(result: &SoakResult) -> String {
    let counted = &result.counted;
    let seconds = counted.elapsed_ns as f64 / 1e9;
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    format!(
        "{seconds:.0} s at full load, {} keys, {} reloads (slowest in effect after {:.1} ms)\n\
         {} answers ({:.0}/s), all as they must be; {} of them denials\n\
         resident: {:.1} MiB when filled; at most {:.1} in the middle third, {:.1} in the last: \
         {:.3}, {}\n",
        result.keys,
        result.reloads,
        result.slowest_reload.as_secs_f64() * 1e3,
        counted.answers,
        per_second(counted),
        counted.answers - counted.allowed,
        mib(result.filled_bytes),
        mib(result.middle_bytes),
        mib(result.last_bytes),
        result.growth(),
        if result.flat() { "flat" } else { "NOT flat" },
    )
}

/// Renders the report of a soak as JSON.
pub fn soak_json(result: &SoakResult) -> Value {
    let counted = &result.counted;
    json!({
        "seconds": rounded(counted.elapsed_ns as f64 / 1e9, 10.0),
        "keys": result.keys,
        "answers": counted.answers,
        "denied": counted.answers - counted.allowed,
        "requests_per_second": per_second(counted).round(),
        "p50_us": p50_us(counted),
        "p99_us": p99_us(counted),
        "server_cpu_us": rounded(server_us(counted), 100.0),
        "reloads": result.reloads,
        "slowest_reload_ms": rounded(result.slowest_reload.as_secs_f64() * 1e3, 10.0),
        "resident_bytes": { "filled": result.filled_bytes, "middle": result.middle_bytes,
            "last": result.last_bytes },
        "flat": result.flat(),
    })
}
