//! Tables and JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::cli::{Mode, name_of};
use crate::inprocess::{Results, Row};
use crate::rss::FULL_LOG_ENTRIES;
use crate::subjects::SubjectKind;
use crate::thresholds::{self, Threshold};

/// Fraction of time spent waiting for a processor above which the report prints a warning.
const BUSY: f64 = 0.05;

/// Renders the readable report.
pub fn table(results: &Results) -> String {
    to_text(|text| write_report(text, results))
}

/// Collects the output of `write` in a string.
pub fn to_text(write: impl FnOnce(&mut String) -> std::fmt::Result) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write(&mut text);
    text
}

/// Writes the processor and its load averages before and after the run.
pub fn write_machine(text: &mut String, [before, after]: [&str; 2]) -> std::fmt::Result {
    let processor = processor();
    writeln!(text, "processor: {processor}; load average {before}, after the run {after}")
}

fn write_report(text: &mut String, results: &Results) -> std::fmt::Result {
    write_machine(text, [&results.load_before, &results.load_after])?;
    writeln!(
        text,
        "{} decisions a pass, median of {} interleaved repeats; ns = processor time per decision",
        results.decisions, results.repeats
    )?;
    writeln!(
        text,
        "keys such as user:12345678, in cache when the call is made; each call reads its own clock;\n\
         timed after more than a window of virtual time, so that keys hold cells of several ages"
    )?;
    writeln!(text)?;
    for kind in &results.subjects {
        writeln!(text, "  {:<19} {}", name_of(kind), kind.describe())?;
    }
    write_rows(text, results)?;
    let queued = max_queued(results);
    if queued > BUSY {
        writeln!(
            text,
            "\nThe machine was busy: up to {:.0}% of the time decisions waited for a processor. That is\n\
             taken out, but caches were colder and two threads met less often than on a quiet one.",
            queued * 100.0
        )?;
    }
    if let Some(bytes) = results.full_log_bytes {
        let per_entry = bytes / f64::from(FULL_LOG_ENTRIES);
        writeln!(
            text,
            "\nsliding-log of {FULL_LOG_ENTRIES} entries, 600 ms apart: {bytes:.0} bytes per key, {per_entry:.2} per entry"
        )?;
    }
    write_thresholds(text, &thresholds::thresholds(results))
}

fn write_rows(text: &mut String, results: &Results) -> std::fmt::Result {
    let mut cell = None;
    for row in &results.rows {
        if cell != Some((row.workload, row.threads, row.mode)) {
            cell = Some((row.workload, row.threads, row.mode));
            let plural = if row.threads == 1 { "" } else { "s" };
            let title = format!(
                "{}, {} thread{plural}, {}",
                name_of(&row.workload),
                row.threads,
                name_of(&row.mode)
            );
            writeln!(
                text,
                "\n{title:<34}{:>9}{:>9}{:>11}{:>11}{:>10}{:>10}{:>8}{:>11}",
                "ns",
                "spread",
                "/governor",
                "/foldhash",
                "speed-up",
                "admitted",
                "queued",
                "bytes/key"
            )?;
        }
        writeln!(
            text,
            "  {:<32}{:>9.1}{:>8.0}%{:>11}{:>11}{:>10}{:>9.1}%{:>7.0}%{:>11}",
            name_of(&row.subject),
            row.ns_per_decision,
            row.spread * 100.0,
            number_or_dash(ratio(results, row, SubjectKind::Governor), 3),
            number_or_dash(ratio(results, row, SubjectKind::GovernorFoldhash), 3),
            number_or_dash(speed_up(results, row), 2),
            row.admitted * 100.0,
            row.queued * 100.0,
            number_or_dash(row.bytes_per_key, 1)
        )?;
    }
    Ok(())
}

fn max_queued(results: &Results) -> f64 {
    results.rows.iter().map(|row| row.queued).fold(0.0, f64::max)
}

/// Writes the thresholds that were measured, with the values and whether they are met, and the
/// number of the others.
pub fn write_thresholds(text: &mut String, thresholds: &[Threshold]) -> std::fmt::Result {
    let (measured, others): (Vec<_>, Vec<_>) =
        thresholds.iter().partition(|threshold| threshold.measured.is_some());
    if measured.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "\n{:<62}{:>10}{:>10}{:>9}{:>10}{:>9}",
        "bar", "measured", "must", "", "aim", ""
    )?;
    for threshold in measured {
        writeln!(
            text,
            "  {:<60}{:>10}{:>10}{:>9}{:>10}{:>9}",
            threshold.name,
            number_or_dash(threshold.measured, 3),
            bound_text(threshold, threshold.must),
            verdict(threshold, threshold.must),
            bound_text(threshold, threshold.aim),
            verdict(threshold, threshold.aim)
        )?;
    }
    match others.len() {
        0 => Ok(()),
        more => writeln!(text, "  and {more} that this run did not measure"),
    }
}

/// Formats one of the two bounds of a threshold.
fn bound_text(threshold: &Threshold, bound: Option<f64>) -> String {
    let sign = if threshold.at_least { ">=" } else { "<=" };
    bound.map_or_else(String::new, |bound| format!("{sign} {bound}"))
}

fn verdict(threshold: &Threshold, bound: Option<f64>) -> &'static str {
    match threshold.met(bound) {
        Some(true) => "met",
        Some(false) => "missed",
        None => "",
    }
}

/// Formats a number, or a dash for `None`.
pub fn number_or_dash(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
}

/// Returns the time relative to a single call of a peer in the same run.
fn ratio(results: &Results, row: &Row, peer: SubjectKind) -> Option<f64> {
    let peer = thresholds::find(results, row.workload, row.threads, Mode::Single, peer)?;
    Some(row.ns_per_decision / peer.ns_per_decision)
}

fn speed_up(results: &Results, row: &Row) -> Option<f64> {
    let one = thresholds::find(results, row.workload, 1, row.mode, row.subject)?;
    (row.threads > 1).then(|| row.per_second / one.per_second)
}

/// Describes the processor of this machine.
pub fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("unknown", |line| line.trim_start_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{model}, {cores} cores")
}

/// Renders JSON. `rows` is stable; the rest describes the measurement.
pub fn json(results: &Results) -> Value {
    let rows: Vec<Value> = results.rows.iter().map(row_json).collect();
    let details: Vec<Value> = results
        .rows
        .iter()
        .map(|row| {
            json!({ "workload": name_of(&row.workload), "threads": row.threads,
                "mode": name_of(&row.mode), "subject": name_of(&row.subject),
                "admitted": row.admitted, "queued": rounded(row.queued, 1000.0),
                "per_second": row.per_second.round() })
        })
        .collect();
    let subjects: serde_json::Map<String, Value> =
        results.subjects.iter().map(|kind| (name_of(kind), json!(kind.describe()))).collect();
    let thresholds: Vec<Value> =
        thresholds::thresholds(results).iter().map(threshold_json).collect();
    json!({
        "rows": rows,
        "bars": thresholds,
        "full_log_bytes_per_key": results.full_log_bytes,
        "details": details,
        "subjects": subjects,
        "processor": processor(),
        "busy": max_queued(results) > BUSY,
        "load": [results.load_before, results.load_after],
        "repeats": results.repeats,
        "decisions": results.decisions,
    })
}

fn row_json(row: &Row) -> Value {
    json!({
        "workload": name_of(&row.workload),
        "threads": row.threads,
        "mode": name_of(&row.mode),
        "subject": name_of(&row.subject),
        "ns_per_decision": rounded(row.ns_per_decision, 100.0),
        "spread": rounded(row.spread, 1000.0),
        "bytes_per_key": row.bytes_per_key.map(|bytes| rounded(bytes, 100.0)),
    })
}

/// Renders a threshold as JSON.
pub fn threshold_json(threshold: &Threshold) -> Value {
    json!({ "name": threshold.name, "measured": threshold.measured, "must": threshold.must, "aim": threshold.aim,
        "must_met": threshold.met(threshold.must), "aim_met": threshold.met(threshold.aim) })
}

/// Rounds to a multiple of 1 / `scale`; further digits are noise.
pub fn rounded(value: f64, scale: f64) -> f64 {
    (value * scale).round() / scale
}
