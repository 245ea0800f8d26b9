//! Table, thresholds and JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::memory::LOGS;
use super::rounds::{Results, Row};
use super::subjects::Subject;
use crate::cli::name_of;
use crate::report::{processor, rounded, threshold_json, to_text, write_machine, write_thresholds};
use crate::thresholds::Threshold;

/// Renders the readable report.
pub fn table(results: &Results) -> String {
    to_text(|text| write_report(text, results))
}

fn write_report(text: &mut String, results: &Results) -> std::fmt::Result {
    write_machine(text, [&results.load_before, &results.load_after])?;
    writeln!(
        text,
        "{}; {} decisions a turn in pipelines of {}, median of {} rounds\n",
        results.server, results.decisions, results.pipeline, results.rounds
    )?;
    for row in &results.rows {
        writeln!(text, "  {:<21} {}", name_of(&row.subject), row.subject.describe())?;
    }
    writeln!(
        text,
        "\n{:<23}{:>22}{:>9}{:>9}{:>11}{:>13}{:>11}",
        "", "per Redis CPU-second", "spread", "/ incr", "/ two-keys", "/ sorted-set", "per entry"
    )?;
    for row in &results.rows {
        let over = |peer| crate::report::number_or_dash(ratio(results, row.subject, peer), 3);
        writeln!(
            text,
            "  {:<21}{:>22.0}{:>8.0}%{:>9}{:>11}{:>13}{:>11}",
            name_of(&row.subject),
            row.median(),
            row.spread() * 100.0,
            over(Subject::Incr),
            over(Subject::TwoKeys),
            over(Subject::SortedSet),
            crate::report::number_or_dash(row.per_entry(), 1)
        )?;
    }
    let bytes = &results.bytes;
    writeln!(text, "\nbytes per key, a user of 13 bytes, everything included")?;
    writeln!(text, "  sliding-counter {:.0}", bytes.sliding_counter)?;
    for (entries, (tidegate, peer)) in LOGS.iter().zip(&bytes.logs) {
        writeln!(text, "  log of {entries} entries {tidegate:.0}; sorted set {peer:.0}")?;
    }
    write_thresholds(text, &thresholds(results))
}

fn row(results: &Results, subject: Subject) -> Option<&Row> {
    results.rows.iter().find(|row| row.subject == subject)
}

/// Returns the ratio of the decisions of two subjects in the same run.
fn ratio(results: &Results, tidegate: Subject, peer: Subject) -> Option<f64> {
    Some(row(results, tidegate)?.median() / row(results, peer)?.median())
}

fn thresholds(results: &Results) -> Vec<Threshold> {
    use Subject::{
        Bucket, Counter, HotBucket, HotCounter, HotLog, HotTwoLimits, HotWindow, Incr,
        LargeCounter, SortedSet, Tidegate, TwoKeys, TwoLimits, Window,
    };
    let faster = |name: &str, tidegate, peer, must, aim| Threshold {
        at_least: true,
        ..Threshold::at_most(name, ratio(results, tidegate, peer), Some(must), Some(aim))
    };
    let mut thresholds = vec![
        faster("single / INCR", Tidegate, Incr, 0.18, 0.25),
        faster("single / two-key script", Tidegate, TwoKeys, 1.15, 1.4),
        faster("single / sorted-set script", Tidegate, SortedSet, 1.3, 1.6),
        faster("64 callers, counter / INCR", Counter, Incr, 0.35, 0.45),
        faster("64 callers, large counter / INCR", LargeCounter, Incr, 0.35, 0.45),
        faster("64 callers, sliding-window / INCR", Window, Incr, 0.25, 0.35),
        faster("64 callers, two limits / INCR", TwoLimits, Incr, 0.22, 0.3),
        faster("64 callers, token-bucket / INCR", Bucket, Incr, 0.3, 0.4),
        Threshold::at_most(
            "bytes per key, sliding-counter",
            Some(results.bytes.sliding_counter),
            Some(170.0),
            Some(150.0),
        ),
    ];
    for subject in [HotCounter, HotWindow, HotBucket, HotLog, HotTwoLimits] {
        let name = format!("decisions per entry, {}", name_of(&subject));
        let measured = row(results, subject).and_then(Row::per_entry);
        thresholds.push(Threshold {
            at_least: true,
            ..Threshold::at_most(&name, measured, Some(20.0), Some(40.0))
        });
    }
    let limits = [(0.30, 0.27), (0.05, 0.035)];
    for ((entries, (tidegate, peer)), (must, aim)) in
        LOGS.iter().zip(&results.bytes.logs).zip(limits)
    {
        let name = format!("bytes of a log of {entries} / sorted set");
        thresholds.push(Threshold::at_most(&name, Some(tidegate / peer), Some(must), Some(aim)));
    }
    thresholds
}

/// Renders the report as JSON.
pub fn json(results: &Results) -> Value {
    let rows: Vec<Value> = results.rows.iter().map(row_json).collect();
    let thresholds: Vec<Value> = thresholds(results).iter().map(threshold_json).collect();
    let logs = LOGS.iter().zip(&results.bytes.logs).map(|(entries, (tidegate, peer))| {
        json!({ "entries": entries, "tidegate": tidegate.round(), "sorted_set": peer.round() })
    });
    json!({
        "rows": rows,
        "bars": thresholds,
        "bytes_per_key": { "sliding_counter": rounded(results.bytes.sliding_counter, 10.0),
            "logs": logs.collect::<Vec<_>>() },
        "server": results.server,
        "pipeline": results.pipeline,
        "decisions": results.decisions,
        "rounds": results.rounds,
        "processor": processor(),
        "load": [results.load_before, results.load_after],
    })
}

fn row_json(row: &Row) -> Value {
    json!({ "subject": name_of(&row.subject), "per_cpu_second": row.median().round(),
        "spread": rounded(row.spread(), 1000.0),
        "per_entry": row.per_entry().map(|per_entry| rounded(per_entry, 100.0)) })
}
