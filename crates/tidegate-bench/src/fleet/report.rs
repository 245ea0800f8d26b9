//! The report of the fleet: a table, and JSON.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::json;

use super::Outcome;

/// Returns the table.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "| scene | design | decisions | admitted | fullest window, % of the limit | used, % of the \
         possible | decisions per command | Redis us per decision | p50 | p99 | p99 of cold keys |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for outcome in outcomes {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {:.2} | {:.2} | {:.1} | {:.3} | {} | {} | {} |",
            outcome.scene.name(),
            outcome.design.name(),
            outcome.decisions,
            outcome.admitted,
            outcome.fullest_percent,
            outcome.used_percent,
            per_command(outcome),
            outcome.redis_us,
            micros(outcome.p50),
            micros(outcome.p99),
            micros(outcome.cold_p99),
        );
    }
    text
}

/// Returns the outcomes as JSON.
pub fn json(outcomes: &[Outcome]) -> String {
    let rows: Vec<_> = outcomes
        .iter()
        .map(|outcome| {
            json!({
                "scene": outcome.scene.name(),
                "design": outcome.design.name(),
                "decisions": outcome.decisions,
                "admitted": outcome.admitted,
                "fullest_window_percent": outcome.fullest_percent,
                "used_percent": outcome.used_percent,
                "decisions_per_command": per_command(outcome),
                "redis_us_per_decision": outcome.redis_us,
                "p50_us": outcome.p50.as_secs_f64() * 1e6,
                "p99_us": outcome.p99.as_secs_f64() * 1e6,
                "cold_p99_us": outcome.cold_p99.as_secs_f64() * 1e6,
            })
        })
        .collect();
    json!({ "fleet": rows }).to_string()
}

fn per_command(outcome: &Outcome) -> f64 {
    outcome.decisions as f64 / outcome.commands.max(1) as f64
}

fn micros(duration: Duration) -> String {
    format!("{:.1} us", duration.as_secs_f64() * 1e6)
}
