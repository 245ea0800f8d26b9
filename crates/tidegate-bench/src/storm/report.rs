//! Table, thresholds and JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::Outcome;
use super::client::RetryStrategy;
use super::scenario::STORM;
use crate::cli::name_of;
use crate::report::{rounded, threshold_json, to_text, write_thresholds};
use crate::thresholds::Threshold;

/// Renders the readable report.
pub fn table(outcomes: &[Outcome]) -> String {
    to_text(|text| write_report(text, outcomes))
}

fn write_report(text: &mut String, outcomes: &[Outcome]) -> std::fmt::Result {
    writeln!(
        text,
        "{:<22}{:<14}{:>9}{:>12}{:>10}{:>10}{:>10}",
        "scene", "way", "goodput", "sent each", "fairness", "starved", "luckiest"
    )?;
    for Outcome { scenario, strategy, counts } in outcomes {
        writeln!(
            text,
            "{scenario:<22}{:<14}{:>9.3}{:>12.2}{:>10.2}{:>10}{:>10}",
            name_of(strategy),
            counts.goodput(),
            counts.sent_per_success(),
            counts.fairness(),
            counts.starved(),
            counts.successes.iter().max().unwrap_or(&0)
        )?;
    }
    write_thresholds(text, &thresholds(outcomes))
}

/// Returns the thresholds of the helper in the main scenario.
fn thresholds(outcomes: &[Outcome]) -> Vec<Threshold> {
    let helper = outcomes.iter().find(|outcome| {
        outcome.strategy == RetryStrategy::Helper && outcome.scenario == STORM.name
    });
    let goodput = helper.map(|outcome| outcome.counts.goodput());
    let sent = helper.map(|outcome| outcome.counts.sent_per_success());
    vec![
        Threshold {
            at_least: true,
            ..Threshold::at_most("storm, helper: goodput / limit", goodput, Some(0.93), Some(0.95))
        },
        Threshold::at_most("storm, helper: requests sent / success", sent, Some(1.35), Some(1.2)),
    ]
}

/// Describes the thresholds that are missed.
pub fn missed(outcomes: &[Outcome]) -> Vec<String> {
    let thresholds = thresholds(outcomes);
    let missed = thresholds.iter().filter(|threshold| threshold.met(threshold.must) == Some(false));
    missed.map(|threshold| format!("missed: {}", threshold.name)).collect()
}

/// Renders JSON. `rows` and `bars` (the thresholds) are stable.
pub fn json(outcomes: &[Outcome]) -> Value {
    let row = |Outcome { scenario, strategy, counts }: &Outcome| {
        json!({
            "scene": scenario,
            "way": name_of(strategy),
            "goodput": rounded(counts.goodput(), 1e4),
            "sent_per_success": rounded(counts.sent_per_success(), 1e3),
            "fairness": rounded(counts.fairness(), 1e3),
            "starved": counts.starved(),
            "sent": counts.sent,
            "admitted": counts.admitted(),
            "clients": counts.successes.len(),
        })
    };
    let rows: Vec<Value> = outcomes.iter().map(row).collect();
    let thresholds: Vec<Value> = thresholds(outcomes).iter().map(threshold_json).collect();
    json!({ "rows": rows, "bars": thresholds })
}
