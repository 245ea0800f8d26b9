//! Table, thresholds and JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::rounds::{Results, Row, TurnResult};
use super::subjects::Subject;
use crate::cli::name_of;
use crate::http::{Estimate, SATURATED, estimate_json, percent, with_interval};
use crate::report::{processor, threshold_json, to_text, write_machine, write_thresholds};
use crate::thresholds::Threshold;

fn per_second(turn: &TurnResult) -> f64 {
    turn.per_second
}

fn server_us(turn: &TurnResult) -> f64 {
    turn.server_us
}

/// Renders the readable report.
pub fn table(results: &Results) -> String {
    to_text(|text| write_report(text, results))
}

fn write_report(text: &mut String, results: &Results) -> std::fmt::Result {
    write_machine(text, [&results.load_before, &results.load_after])?;
    let placement = if results.bound { "have a processor each" } else { "share the processors" };
    writeln!(
        text,
        "{} connections, {} keys, median of {} rounds; server and redis-benchmark {placement}\n",
        results.connections, results.keys, results.rounds
    )?;
    let first = results.pipelines.first();
    for row in results.rows.iter().filter(|row| Some(&row.pipeline) == first) {
        writeln!(text, "  {:<17} {}", name_of(&row.subject), row.subject.describe())?;
    }
    for &pipeline in &results.pipelines {
        write_rows(text, results, pipeline)?;
    }
    writeln!(
        text,
        "\nA server that is busy for less than {} of the time was not the limit: the load was.\n\
         Its replies of seven parts cost redis-benchmark more than a PONG does; cpu us does not\n\
         depend on that.",
        percent(SATURATED)
    )?;
    write_thresholds(text, &thresholds(results))
}

fn write_rows(text: &mut String, results: &Results, pipeline: u16) -> std::fmt::Result {
    let title = format!("pipelines of {pipeline}");
    writeln!(
        text,
        "\n{title:<20}{:>10}{:>20}{:>20}{:>8}{:>20}{:>20}{:>8}{:>6}",
        "commands/s", "/ping", "/incr", "cpu us", "/ping", "/incr", "p99 ms", "busy"
    )?;
    for row in results.rows.iter().filter(|row| row.pipeline == pipeline) {
        let over = |other, metric| with_interval(ratio(results, row, other, metric));
        writeln!(
            text,
            "  {:<18}{:>10.0}{:>20}{:>20}{:>8.3}{:>20}{:>20}{:>8.2}{:>6}",
            name_of(&row.subject),
            row.estimate(per_second).median,
            over(Subject::Ping, per_second),
            over(Subject::Incr, per_second),
            row.estimate(server_us).median,
            over(Subject::Ping, server_us),
            over(Subject::Incr, server_us),
            row.estimate(|turn| turn.p99_ms).median,
            percent(row.estimate(TurnResult::busy).median),
        )?;
    }
    Ok(())
}

fn ratio(
    results: &Results,
    row: &Row,
    other: Subject,
    metric: fn(&TurnResult) -> f64,
) -> Option<Estimate> {
    results.row(other, row.pipeline).map(|other| row.ratio(other, metric))
}

fn thresholds(results: &Results) -> Vec<Threshold> {
    let mut thresholds = Vec::new();
    for (subject, pipeline, must, aim) in [
        (Subject::Check, 16, 0.60, 0.7),
        (Subject::Check, 64, 0.45, 0.6),
        (Subject::CheckTwoLimits, 16, 0.45, 0.7),
        (Subject::CheckTwoLimits, 64, 0.35, 0.6),
        (Subject::ClThrottle, 16, 0.60, 0.7),
        (Subject::ClThrottle, 64, 0.45, 0.6),
    ] {
        let row = results.row(subject, pipeline);
        let over = row.and_then(|row| ratio(results, row, Subject::Ping, per_second));
        let name = format!("{}, pipelines of {pipeline} / redis-ping", name_of(&subject));
        let measured = over.map(|estimate| estimate.median);
        thresholds.push(Threshold::at_least(&name, measured, Some(must), Some(aim)));
    }
    thresholds
}

/// Renders JSON. `rows` and `bars` (the thresholds) are stable; the rest describes the measurement.
pub fn json(results: &Results) -> Value {
    let rows: Vec<Value> = results.rows.iter().map(|row| row_json(results, row)).collect();
    let thresholds: Vec<Value> = thresholds(results).iter().map(threshold_json).collect();
    json!({
        "rows": rows,
        "bars": thresholds,
        "connections": results.connections,
        "keys": results.keys,
        "rounds": results.rounds,
        "bound": results.bound,
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
        "pipeline": row.pipeline,
        "commands_per_second": estimate(per_second),
        "commands_per_second_over_ping": over(Subject::Ping, per_second),
        "commands_per_second_over_incr": over(Subject::Incr, per_second),
        "server_cpu_us": estimate(server_us),
        "server_cpu_over_ping": over(Subject::Ping, server_us),
        "server_cpu_over_incr": over(Subject::Incr, server_us),
        "p99_ms": estimate(|turn| turn.p99_ms),
        "server_busy": estimate(TurnResult::busy),
    })
}
