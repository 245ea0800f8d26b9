//! The table for people and the JSON for programs.

use std::fmt::Write;

use serde_json::{Value, json};

use super::load::Counted;
use super::rounds::{
    Figure, Results, Row, Subject, load_us, p50_us, p99_us, per_second, server_busy, server_us,
};
use super::soak::Soaked;
use crate::bars::Bar;
use crate::cli::name_of;
use crate::report::{bar_json, processor, rounded, write_bars, write_machine, written};

/// A server that idles more than this was not what limited its throughput.
pub const SATURATED: f64 = 0.90;

/// The whole readable report.
pub fn table(results: &Results) -> String {
    written(|text| write_report(text, results))
}

fn write_report(text: &mut String, results: &Results) -> std::fmt::Result {
    let asking = &results.asking;
    write_machine(text, [&results.load_before, &results.load_after])?;
    writeln!(
        text,
        "{} connections, {} keys, {} ms a turn, median of {} rounds; {}",
        asking.connections,
        asking.keys,
        asking.time_ms,
        results.asking.rounds,
        where_they_run(results)
    )?;
    writeln!(text)?;
    for row in &results.rows {
        writeln!(text, "  {:<31} {}", name_of(&row.subject), row.subject.describe())?;
    }
    write_rows(text, results)?;
    write_warning(text, results)?;
    writeln!(text, "\nstart to first answer, median of 20")?;
    for (host, took) in &results.starts {
        writeln!(text, "  {:<31}{:>8.1} ms", host.name(), took.as_secs_f64() * 1e3)?;
    }
    write_bars(text, &bars(results))
}

fn where_they_run(results: &Results) -> &'static str {
    if results.asking.places.server.is_some() {
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
            row.figure(per_second).median,
            with_interval(ratio(results, row, Subject::Axum, per_second)),
            with_interval(ratio(results, row, Subject::Throttlecrab, per_second)),
            row.figure(server_us).median,
            with_interval(ratio(results, row, Subject::Axum, server_us)),
            row.figure(p50_us).median,
            row.figure(p99_us).median,
            percent(row.figure(server_busy).median),
            row.figure(load_us).median,
        )?;
    }
    Ok(())
}

pub fn percent(part: f64) -> String {
    format!("{:.0}%", part * 100.0)
}

/// A ratio with the interval of its median: `0.934 (0.92-0.95)`.
pub fn with_interval(figure: Option<Figure>) -> String {
    figure.map_or_else(
        || "-".to_owned(),
        |Figure { median, low, high }| format!("{median:.3} ({low:.2}-{high:.2})"),
    )
}

/// What makes the figures doubtful.
fn write_warning(text: &mut String, results: &Results) -> std::fmt::Result {
    if results.asking.places.server.is_none() {
        return Ok(());
    }
    let turns = results.asking.rounds * results.rows.len();
    // A server that shares its processor with others idles for their sake.
    if results.disturbed * 10 > turns {
        return writeln!(
            text,
            "\nOther programs ran: {} turns were made again to get {turns}.\n\
             Trust cpu us more than req/s, and neither much.",
            results.disturbed
        );
    }
    for row in &results.rows {
        let (name, busy) = (name_of(&row.subject), row.figure(server_busy).median);
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
    measure: fn(&Counted) -> f64,
) -> Option<Figure> {
    results.row(other).map(|other| row.ratio(other, measure))
}

/// The bars of the server: one of six policies matches, and has two limits.
fn bars(results: &Results) -> Vec<Bar> {
    let bar = |subject: Subject| {
        let row = results.row(subject);
        let over = row.and_then(|row| ratio(results, row, Subject::Axum, per_second));
        let name = format!("{}: req/s / axum", name_of(&subject));
        Bar::at_least(&name, over.map(|figure| figure.median), Some(0.85), Some(0.92))
    };
    [Subject::AttributesTwoLimits, Subject::ForwardAuthTwoLimits].map(bar).into()
}

/// `rows` and `bars` are the stable part; the rest says how it was measured.
pub fn json(results: &Results) -> Value {
    let rows: Vec<Value> = results.rows.iter().map(|row| row_json(results, row)).collect();
    let bars: Vec<Value> = bars(results).iter().map(bar_json).collect();
    let starts: serde_json::Map<String, Value> = results
        .starts
        .iter()
        .map(|(host, took)| {
            (host.name().to_owned(), json!(rounded(took.as_secs_f64() * 1e3, 100.0)))
        })
        .collect();
    json!({
        "rows": rows,
        "bars": bars,
        "start_to_first_answer_ms": starts,
        "connections": results.asking.connections,
        "keys": results.asking.keys,
        "turn_ms": results.asking.time_ms,
        "rounds": results.asking.rounds,
        "disturbed_turns": results.disturbed,
        "bound": results.asking.places.server.is_some(),
        "processor": processor(),
        "load": [results.load_before, results.load_after],
    })
}

fn row_json(results: &Results, row: &Row) -> Value {
    let figure = |measure: fn(&Counted) -> f64| figure_json(&row.figure(measure));
    let over = |other, measure| ratio(results, row, other, measure).as_ref().map(figure_json);
    json!({
        "subject": name_of(&row.subject),
        "what": row.subject.describe(),
        "requests_per_second": figure(per_second),
        "requests_per_second_over_axum": over(Subject::Axum, per_second),
        "requests_per_second_over_throttlecrab": over(Subject::Throttlecrab, per_second),
        "server_cpu_us": figure(server_us),
        "server_cpu_over_axum": over(Subject::Axum, server_us),
        "server_cpu_over_throttlecrab": over(Subject::Throttlecrab, server_us),
        "p50_us": figure(p50_us),
        "p99_us": figure(p99_us),
        "server_busy": figure(server_busy),
        "queued": figure(Counted::queued),
        "load_cpu_us": figure(load_us),
    })
}

pub fn figure_json(figure: &Figure) -> Value {
    let of = |value| rounded(value, 1000.0);
    json!({ "median": of(figure.median), "low": of(figure.low), "high": of(figure.high) })
}

/// The readable report of a soak.
pub fn soak_text(soaked: &Soaked) -> String {
    let counted = &soaked.counted;
    let seconds = counted.elapsed_ns as f64 / 1e9;
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    format!(
        "{seconds:.0} s at full load, {} keys, {} reloads (slowest in effect after {:.1} ms)\n\
         {} answers ({:.0}/s), all as they must be; {} of them denials\n\
         resident: {:.1} MiB when filled; at most {:.1} in the middle third, {:.1} in the last: \
         {:.3}, {}\n",
        soaked.keys,
        soaked.reloads,
        soaked.slowest_reload.as_secs_f64() * 1e3,
        counted.answers,
        per_second(counted),
        counted.answers - counted.allowed,
        mib(soaked.filled_bytes),
        mib(soaked.middle_bytes),
        mib(soaked.last_bytes),
        soaked.growth(),
        if soaked.flat() { "flat" } else { "NOT flat" },
    )
}

/// The same for programs.
pub fn soak_json(soaked: &Soaked) -> Value {
    let counted = &soaked.counted;
    json!({
        "seconds": rounded(counted.elapsed_ns as f64 / 1e9, 10.0),
        "keys": soaked.keys,
        "answers": counted.answers,
        "denied": counted.answers - counted.allowed,
        "requests_per_second": per_second(counted).round(),
        "p50_us": p50_us(counted),
        "p99_us": p99_us(counted),
        "server_cpu_us": rounded(server_us(counted), 100.0),
        "reloads": soaked.reloads,
        "slowest_reload_ms": rounded(soaked.slowest_reload.as_secs_f64() * 1e3, 10.0),
        "resident_bytes": { "filled": soaked.filled_bytes, "middle": soaked.middle_bytes,
            "last": soaked.last_bytes },
        "flat": soaked.flat(),
    })
}
