//! Table, thresholds and JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::rounds::{KEYS, Results, Row};
use crate::http::{
    Estimate, LOOSE_LIMITS, TurnResult, estimate_json, load_us, p50_us, p99_us, per_second,
    server_busy, server_us, with_interval,
};
use crate::report::{processor, threshold_json, to_text, write_machine, write_thresholds};
use crate::subjects::version;
use crate::thresholds::Threshold;

/// Renders the readable report.
pub fn table(results: &Results) -> String {
    to_text(|text| write_report(text, results))
}

fn write_report(text: &mut String, results: &Results) -> std::fmt::Result {
    write_machine(text, [&results.load_before, &results.load_after])?;
    let placement = if results.placement.server.is_some() {
        "server and load have a processor each"
    } else {
        "server and load share the processors"
    };
    writeln!(text, "{KEYS} keys, median of {} rounds; {placement}", results.rounds)?;
    writeln!(
        text,
        "tonic {}: a service of the same proto that always answers OK",
        version("tonic")
    )?;
    writeln!(
        text,
        "tidegate: one of six policies, with {} or with {} beside it",
        LOOSE_LIMITS[0], LOOSE_LIMITS[1]
    )?;
    writeln!(text, "\nconnections x in flight: tidegate, tonic, and the ratios of their rounds")?;
    writeln!(
        text,
        "{:<17}{:>9}{:>9}{:>20}{:>8}{:>8}{:>20}{:>14}{:>14}{:>12}{:>9}",
        "",
        "req/s",
        "tonic",
        "ratio",
        "cpu us",
        "tonic",
        "ratio",
        "p50 us",
        "p99 us",
        "busy",
        "load us"
    )?;
    for row in &results.rows {
        let [tidegate, tonic] = [&row.tidegate, &row.tonic];
        let median = |turns: &[TurnResult], metric| Estimate::over(turns, metric).median;
        let both = |metric: fn(&TurnResult) -> f64| {
            format!("{:.0} / {:.0}", median(tidegate, metric), median(tonic, metric))
        };
        writeln!(
            text,
            "{:<17}{:>9.0}{:>9.0}{:>20}{:>8.2}{:>8.2}{:>20}{:>14}{:>14}{:>12}{:>9.2}",
            name(row),
            median(tidegate, per_second),
            median(tonic, per_second),
            with_interval(Some(ratio(row, per_second))),
            median(tidegate, server_us),
            median(tonic, server_us),
            with_interval(Some(ratio(row, server_us))),
            both(p50_us),
            both(p99_us),
            both(|turn| server_busy(turn) * 100.0),
            median(tidegate, load_us),
        )?;
        // `disturbed` counts the turns of three worker groups. The rows with one and with two
        // limits share it.
        if row.limits == 2 && row.disturbed * 10 > 3 * results.rounds {
            writeln!(text, "  other programs ran: {} turns were made again", row.disturbed)?;
        }
    }
    writeln!(
        text,
        "\nWhere a server is busy less than 90 % of the time the load is the limit, and the ratio of\n\
         req/s says less than that of cpu us."
    )?;
    write_thresholds(text, &thresholds(results))
}

fn name(row: &Row) -> String {
    let plural = if row.limits == 1 { "" } else { "s" };
    format!("{}x{}, {} limit{plural}", row.shape.connections, row.shape.in_flight, row.limits)
}

fn ratio(row: &Row, metric: fn(&TurnResult) -> f64) -> Estimate {
    Estimate::ratio(&row.tidegate, &row.tonic, metric)
}

fn thresholds(results: &Results) -> Vec<Threshold> {
    let threshold = |row: &Row| {
        let measured = Some(ratio(row, per_second).median);
        Threshold::at_least(
            &format!("{}: req/s / tonic", name(row)),
            measured,
            Some(0.85),
            Some(0.95),
        )
    };
    results.rows.iter().map(threshold).collect()
}

/// Renders JSON. `rows` and `bars` (the thresholds) are stable; the rest describes the measurement.
pub fn json(results: &Results) -> Value {
    let thresholds: Vec<Value> = thresholds(results).iter().map(threshold_json).collect();
    json!({
        "rows": results.rows.iter().map(row_json).collect::<Vec<_>>(),
        "bars": thresholds,
        "tonic": version("tonic"),
        "keys": KEYS,
        "rounds": results.rounds,
        "bound": results.placement.server.is_some(),
        "processor": processor(),
        "load": [results.load_before, results.load_after],
    })
}

fn row_json(row: &Row) -> Value {
    let side = |turns: &[TurnResult]| {
        let estimate = |metric| estimate_json(&Estimate::over(turns, metric));
        json!({
            "requests_per_second": estimate(per_second),
            "server_cpu_us": estimate(server_us),
            "p50_us": estimate(p50_us),
            "p99_us": estimate(p99_us),
            "server_busy": estimate(server_busy),
            "load_cpu_us": estimate(load_us),
        })
    };
    json!({
        "connections": row.shape.connections,
        "in_flight": row.shape.in_flight,
        "limits": row.limits,
        "tidegate": side(&row.tidegate),
        "tonic": side(&row.tonic),
        "requests_per_second_over_tonic": estimate_json(&ratio(row, per_second)),
        "server_cpu_over_tonic": estimate_json(&ratio(row, server_us)),
        "disturbed_turns": row.disturbed,
    })
}
