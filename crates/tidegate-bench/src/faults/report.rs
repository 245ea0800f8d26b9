//! The table for people and the JSON for programs.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::unstable::stats::Decided;

use super::Outcome;
use super::load::{self, Loaded};
use super::nodes::Policy;
use super::oracle::{bound, most};
use crate::bars::Bar;
use crate::cli::name_of;
use crate::report::{bar_json, processor, to_text, write_bars};

/// How long a caller waits for the store unless told otherwise.
const DEADLINE: Duration = Duration::from_millis(25);

const KINDS: [Decided; 4] =
    [Decided::Exact, Decided::Local, Decided::FailedOpen, Decided::FailedClosed];

/// The whole readable report.
pub fn table(outcomes: &[Outcome], loaded: &[Loaded]) -> String {
    to_text(|text| {
        writeln!(text, "processor: {}", processor())?;
        if !outcomes.is_empty() {
            write_report(text, outcomes)?;
        }
        if !loaded.is_empty() {
            write!(text, "\n{}", load::heading())?;
            loaded.iter().try_for_each(|loaded| text.write_str(&load::line(loaded)))?;
            write_bars(text, &load::bars(loaded))?;
        }
        Ok(())
    })
}

fn write_report(text: &mut String, outcomes: &[Outcome]) -> std::fmt::Result {
    writeln!(
        text,
        "{:<17}{:>7}{:>10}{:>10}{:>9}{:>8}{:>8}{:>8}  {:<28}{:>10}",
        "fault",
        "calls",
        "longest",
        "p99.9",
        "exact",
        "local",
        "open",
        "closed",
        "most in a window / bound",
        "recovery"
    )?;
    for outcome in outcomes {
        let kinds = KINDS.map(|kind| count(outcome, kind));
        let windows = Policy::ALL.map(|policy| {
            format!("{} {}/{}", policy.name(), most(outcome, policy), bound(outcome.fault, policy))
        });
        writeln!(
            text,
            "{:<17}{:>7}{:>8.1}ms{:>8.1}ms{:>9}{:>8}{:>8}{:>8}  {:<28}{:>8.0}ms",
            name_of(&outcome.fault),
            outcome.events.len(),
            ms(latency(outcome, 1_000)),
            ms(latency(outcome, 999)),
            kinds[0],
            kinds[1],
            kinds[2],
            kinds[3],
            windows.join(" "),
            ms(outcome.recovery)
        )?;
    }
    writeln!(text)?;
    for outcome in outcomes {
        writeln!(text, "  {:<16} {}", name_of(&outcome.fault), outcome.fault.describe())?;
    }
    write_bars(text, &bars(outcomes))
}

fn count(outcome: &Outcome, decided: Decided) -> usize {
    outcome.events.iter().filter(|event| event.decided == decided).count()
}

/// What so many of a thousand calls took at most.
fn latency(outcome: &Outcome, of_thousand: usize) -> Duration {
    let mut took: Vec<Duration> =
        outcome.events.iter().map(|event| event.received.saturating_sub(event.sent)).collect();
    took.sort_unstable();
    let index = (took.len() * of_thousand).div_ceil(1_000);
    took.get(index.saturating_sub(1)).copied().unwrap_or_default()
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn bars(outcomes: &[Outcome]) -> Vec<Bar> {
    use super::Fault::{Killed, Stopped};
    let of = |fault| outcomes.iter().find(|outcome| outcome.fault == fault);
    let worst = outcomes.iter().map(|outcome| ms(outcome.recovery)).fold(0.0, f64::max);
    let most_ms = ms(DEADLINE) + 5.0;
    vec![
        Bar::at_most(
            "Redis stopped: a call at p99.9, ms",
            of(Stopped).map(|stopped| ms(latency(stopped, 999))),
            Some(most_ms),
            None,
        ),
        Bar::at_most(
            "Redis killed: a call at p99.9, ms",
            of(Killed).map(|killed| ms(latency(killed, 999))),
            Some(most_ms),
            None,
        ),
        Bar::at_most("recovery, the longest, ms", Some(worst), Some(2_000.0), Some(500.0)),
    ]
}

/// For programs.
pub fn json(outcomes: &[Outcome], loaded: &[Loaded]) -> Value {
    let faults: Vec<Value> = outcomes
        .iter()
        .map(|outcome| {
            let kinds: serde_json::Map<String, Value> = KINDS
                .iter()
                .map(|kind| (kind.name().to_owned(), json!(count(outcome, *kind))))
                .collect();
            let windows: Vec<Value> = Policy::ALL
                .iter()
                .map(|&policy| {
                    json!({ "policy": policy.name(), "most": most(outcome, policy),
                        "bound": bound(outcome.fault, policy) })
                })
                .collect();
            json!({ "fault": name_of(&outcome.fault), "calls": outcome.events.len(),
                "longest_ms": ms(latency(outcome, 1_000)), "p999_ms": ms(latency(outcome, 999)),
                "answers": kinds, "windows": windows,
                "lasted_ms": ms(outcome.ended.saturating_sub(outcome.began)),
                "recovery_ms": ms(outcome.recovery) })
        })
        .collect();
    let mut reached = if outcomes.is_empty() { Vec::new() } else { bars(outcomes) };
    reached.extend(load::bars(loaded));
    let bars: Vec<Value> = reached.iter().map(bar_json).collect();
    let loads: Vec<Value> = loaded.iter().map(load::json).collect();
    json!({ "faults": faults, "loads": loads, "bars": bars, "processor": processor() })
}
