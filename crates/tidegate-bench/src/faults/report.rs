//! Table, thresholds and JSON.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::unstable::stats::Decided;

use super::FaultResult;
use super::load::{self, LoadResult};
use super::nodes::Policy;
use super::oracle::{bound, max_in_window};
use crate::cli::name_of;
use crate::report::{processor, threshold_json, to_text, write_thresholds};
use crate::thresholds::Threshold;

/// Default time that a caller waits for the store.
const DEADLINE: Duration = Duration::from_millis(25);

const KINDS: [Decided; 4] =
    [Decided::Exact, Decided::Local, Decided::FailedOpen, Decided::FailedClosed];

/// Renders the readable report.
pub fn table(results: &[FaultResult], load_results: &[LoadResult]) -> String {
    to_text(|text| {
        writeln!(text, "processor: {}", processor())?;
        if !results.is_empty() {
            write_report(text, results)?;
        }
        if !load_results.is_empty() {
            write!(text, "\n{}", load::header())?;
            load_results.iter().try_for_each(|result| text.write_str(&load::table_row(result)))?;
            write_thresholds(text, &load::thresholds(load_results))?;
        }
        Ok(())
    })
}

fn write_report(text: &mut String, results: &[FaultResult]) -> std::fmt::Result {
    writeln!(
        text,
        "{:<17}{:>7}{:>10}{:>10}{:>9}{:>8}{:>8}{:>8}  {:<60}{:>6}{:>10}",
        "fault",
        "calls",
        "longest",
        "p99.9",
        "exact",
        "local",
        "open",
        "closed",
        "most in a window / bound",
        "out",
        "recovery"
    )?;
    for result in results {
        let kinds = KINDS.map(|kind| count(result, kind));
        let windows = Policy::ALL.map(|policy| {
            format!("{} {}/{}", policy.name(), max_in_window(result, policy), bound(result, policy))
        });
        writeln!(
            text,
            "{:<17}{:>7}{:>8.1}ms{:>8.1}ms{:>9}{:>8}{:>8}{:>8}  {:<60}{:>6}{:>8.0}ms",
            name_of(&result.fault),
            result.calls.len(),
            ms(latency(result, 1_000)),
            ms(latency(result, 999)),
            kinds[0],
            kinds[1],
            kinds[2],
            kinds[3],
            windows.join(" "),
            result.units_out,
            ms(result.recovery)
        )?;
    }
    writeln!(text)?;
    for result in results {
        writeln!(text, "  {:<16} {}", name_of(&result.fault), result.fault.describe())?;
    }
    write_thresholds(text, &thresholds(results))
}

fn count(result: &FaultResult, decided: Decided) -> usize {
    result.calls.iter().filter(|call| call.decided == decided).count()
}

/// Returns the latency that `of_thousand` of a thousand calls do not exceed.
fn latency(result: &FaultResult, of_thousand: usize) -> Duration {
    let mut took: Vec<Duration> =
        result.calls.iter().map(|call| call.received.saturating_sub(call.sent)).collect();
    took.sort_unstable();
    let index = (took.len() * of_thousand).div_ceil(1_000);
    took.get(index.saturating_sub(1)).copied().unwrap_or_default()
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn thresholds(results: &[FaultResult]) -> Vec<Threshold> {
    use super::Fault::{Killed, Stopped};
    let of = |fault| results.iter().find(|result| result.fault == fault);
    let worst = results.iter().map(|result| ms(result.recovery)).fold(0.0, f64::max);
    let most_ms = ms(DEADLINE) + 5.0;
    vec![
        Threshold::at_most(
            "Redis stopped: a call at p99.9, ms",
            of(Stopped).map(|stopped| ms(latency(stopped, 999))),
            Some(most_ms),
            None,
        ),
        Threshold::at_most(
            "Redis killed: a call at p99.9, ms",
            of(Killed).map(|killed| ms(latency(killed, 999))),
            Some(most_ms),
            None,
        ),
        Threshold::at_most("recovery, the longest, ms", Some(worst), Some(2_000.0), Some(500.0)),
    ]
}

/// Renders the report as JSON.
pub fn json(results: &[FaultResult], load_results: &[LoadResult]) -> Value {
    let faults: Vec<Value> = results
        .iter()
        .map(|result| {
            let kinds: serde_json::Map<String, Value> = KINDS
                .iter()
                .map(|kind| (kind.name().to_owned(), json!(count(result, *kind))))
                .collect();
            let windows: Vec<Value> = Policy::ALL
                .iter()
                .map(|&policy| {
                    json!({ "policy": policy.name(), "most": max_in_window(result, policy),
                        "bound": bound(result, policy) })
                })
                .collect();
            json!({ "fault": name_of(&result.fault), "calls": result.calls.len(),
                "longest_ms": ms(latency(result, 1_000)), "p999_ms": ms(latency(result, 999)),
                "answers": kinds, "windows": windows, "units_out": result.units_out,
                "units_left_behind": result.units_left_behind,
                "lasted_ms": ms(result.ended.saturating_sub(result.began)),
                "recovery_ms": ms(result.recovery) })
        })
        .collect();
    let mut all_thresholds = if results.is_empty() { Vec::new() } else { thresholds(results) };
    all_thresholds.extend(load::thresholds(load_results));
    let thresholds: Vec<Value> = all_thresholds.iter().map(threshold_json).collect();
    let loads: Vec<Value> = load_results.iter().map(load::json).collect();
    json!({ "faults": faults, "loads": loads, "bars": thresholds, "processor": processor() })
}
