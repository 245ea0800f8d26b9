//! Table, thresholds and JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::apps::Subject;
use super::rounds::{CLIENTS, Results, Row};
use crate::http::Estimate;
use crate::report::{processor, rounded, threshold_json, to_text, write_machine, write_thresholds};
use crate::subjects::version;
use crate::thresholds::Threshold;

/// Renders the readable report.
pub fn table(results: &Results) -> String {
    to_text(|text| write_report(text, results))
}

fn write_report(text: &mut String, results: &Results) -> std::fmt::Result {
    write_machine(text, [&results.load_before, &results.load_after])?;
    writeln!(
        text,
        "axum {}, tower_governor {} over governor {}; median of {} processes, all requests admitted;\n\
         tidegate's limits are sliding-window, timed after more than a window",
        version("axum"),
        version("tower_governor"),
        version("governor"),
        results.processes
    )?;
    for clients in CLIENTS {
        let title = format!("{clients} client{}", if clients == 1 { "" } else { "s" });
        writeln!(text, "\n{title:<42}{:>10}{:>12}{:>20}", "ns", "added ns", "(95 %)")?;
        for row in results.rows.iter().filter(|row| row.clients == clients) {
            let total = Estimate::of(&row.ns).median;
            write!(text, "  {:<40}{total:>10.0}", row.subject.name())?;
            match added(row) {
                Some(added) => {
                    let range = format!("{:.0} .. {:.0}", added.low, added.high);
                    writeln!(text, "{:>12.0}{range:>20}", added.median)?;
                }
                None => writeln!(text)?,
            }
        }
    }
    write_thresholds(text, &thresholds(results))
}

/// Returns the cost of a layer, or `None` for the app without one.
fn added(row: &Row) -> Option<Estimate> {
    (!row.added.is_empty()).then(|| Estimate::of(&row.added))
}

fn find(results: &Results, subject: Subject, clients: u32) -> Option<&Row> {
    results.rows.iter().find(|row| row.subject == subject && row.clients == clients)
}

/// Computes ratios within each process, because some processes are slower than others whatever
/// they run.
fn thresholds(results: &Results) -> Vec<Threshold> {
    let ratio = |measured, baseline, clients| {
        let added = |subject| Some(&find(results, subject, clients)?.added);
        let pairs = added(measured)?.iter().zip(added(baseline)?);
        // A peer that seems to cost nothing was not measured. That must not count in our favour.
        let of = |(measured, baseline): (&f64, &f64)| {
            if *baseline > 0.0 { measured / baseline } else { f64::MAX }
        };
        let ratios: Vec<f64> = pairs.map(of).collect();
        (!ratios.is_empty()).then(|| Estimate::of(&ratios).median)
    };
    let pairs = [
        (Subject::OneRule, Subject::Governor, "draft-10 / tower_governor", [0.75, 0.55]),
        (Subject::OneRuleXHeaders, Subject::Governor, "x-ratelimit / tower_governor", [0.75, 0.55]),
        (Subject::TwoRules, Subject::OneRule, "2 rules of 2 limits / 1 rule", [2.8, 2.2]),
    ];
    let each = CLIENTS.into_iter().flat_map(|clients| {
        pairs.map(|(measured, baseline, description, [must, aim])| {
            let name = format!("added, {clients} clients: {description}");
            Threshold::at_most(&name, ratio(measured, baseline, clients), Some(must), Some(aim))
        })
    });
    each.collect()
}

/// Renders the report as JSON.
pub fn json(results: &Results) -> Value {
    let rows = results.rows.iter().map(|row| {
        let total = Estimate::of(&row.ns);
        let added = added(row);
        json!({ "subject": row.subject.name(), "clients": row.clients,
            "ns_per_request": rounded(total.median, 10.0),
            "added_ns": added.as_ref().map(|added| rounded(added.median, 10.0)),
            "added_low": added.as_ref().map(|added| rounded(added.low, 10.0)),
            "added_high": added.as_ref().map(|added| rounded(added.high, 10.0)) })
    });
    json!({
        "rows": rows.collect::<Vec<Value>>(),
        "bars": thresholds(results).iter().map(threshold_json).collect::<Vec<Value>>(),
        "tower_governor": version("tower_governor"),
        "axum": version("axum"),
        "processes": results.processes,
        "processor": processor(),
        "load": [results.load_before, results.load_after],
    })
}
