//! Table, bars and JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::Outcome;
use super::client::RetryStrategy;
use super::scenario::STORM;
use crate::bars::Bar;
use crate::cli::name_of;
use crate::report::{bar_json, rounded, to_text, write_bars};

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
    write_bars(text, &bars(outcomes))
}

/// Returns the bars of the helper in the main scenario.
fn bars(outcomes: &[Outcome]) -> Vec<Bar> {
    let helper = outcomes.iter().find(|outcome| {
        outcome.strategy == RetryStrategy::Helper && outcome.scenario == STORM.name
    });
    let goodput = helper.map(|outcome| outcome.counts.goodput());
    let sent = helper.map(|outcome| outcome.counts.sent_per_success());
    vec![
        Bar {
            at_least: true,
            ..Bar::at_most("storm, helper: goodput / limit", goodput, Some(0.93), Some(0.95))
        },
        Bar::at_most("storm, helper: requests sent / success", sent, Some(1.35), Some(1.2)),
    ]
}

/// Describes the bars that are missed.
pub fn missed(outcomes: &[Outcome]) -> Vec<String> {
    let bars = bars(outcomes);
    let missed = bars.iter().filter(|bar| bar.met(bar.must) == Some(false));
    missed.map(|bar| format!("missed: {}", bar.name)).collect()
}

/// Renders JSON. `rows` and `bars` are stable.
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
    let bars: Vec<Value> = bars(outcomes).iter().map(bar_json).collect();
    json!({ "rows": rows, "bars": bars })
}
