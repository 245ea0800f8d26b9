//! One table of every algorithm on every traffic, as Markdown.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use super::{PageCounts, SimulateArgs, SimulationRun};
use crate::algorithms::Algorithms;
use crate::error::ReplayError;
use crate::replay;
use crate::report::{AlgorithmSummary, Summary, SummaryOptions, grouped};
use crate::run;
use crate::simulate::traffic::TrafficSpec;

/// The columns. Bytes are an estimate of the most that the store held.
const HEADS: [&str; 9] = [
    "traffic",
    "algorithm",
    "requests",
    "denied",
    "over-admitted",
    "wrongly denied",
    "unlike sliding-log",
    "most / limit",
    "bytes per key",
];

/// Generates every traffic and prints the table.
pub fn print(args: &SimulateArgs, specs: &[TrafficSpec]) -> Result<(), ReplayError> {
    let algorithms = args.algorithm.unwrap_or(Algorithms::All);
    let mut out = std::io::stdout().lock();
    let mut line =
        |cells: &[String]| writeln!(out, "| {} |", cells.join(" | ")).map_err(ReplayError::Output);
    line(&HEADS.map(String::from))?;
    line(&HEADS.map(|_| "---".into()))?;
    for spec in specs {
        let simulated = SimulationRun::new(
            spec,
            run::limits_per_run(&args.limits, Some(algorithms))?,
            PageCounts::default(),
        )?;
        let options =
            SummaryOptions { elapsed: Duration::ZERO, top: Some(0), compared: simulated.compared };
        for row in rows(spec.traffic.name(), &simulated.summary(spec, options)) {
            line(&row)?;
        }
    }
    for path in &args.traces {
        let runs = run::limits_per_run(&args.limits, Some(algorithms))?;
        let summary = replay::replay_file(path, runs)?;
        for row in rows(&name(path), &summary) {
            line(&row)?;
        }
    }
    Ok(())
}

/// Returns the name of a trace: its file name without extensions.
pub fn name(path: &Path) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let name = file.split('.').next().unwrap_or_default();
    // A bar would end the cell.
    name.replace(['|', '\n'], "_")
}

fn rows(traffic: &str, summary: &Summary) -> Vec<Vec<String>> {
    let row = |run: &AlgorithmSummary| {
        let share = |count: u64| percent(count, run.events);
        let most = |limit: &crate::report::LimitSummary| {
            format!("{} / {}", grouped(limit.largest_rolling_count), grouped(limit.count))
        };
        let most: Vec<String> = run.limits.iter().map(most).collect();
        vec![
            traffic.into(),
            run.algorithm.clone(),
            grouped(run.events),
            share(run.denied),
            share(run.over_admitted),
            share(run.false_denials),
            run.differ.map_or_else(|| "-".into(), share),
            most.join(", "),
            grouped(run.about_bytes_held / run.states_held.max(1)),
        ]
    };
    summary.algorithms.iter().map(row).collect()
}

/// Formats a share with as many decimals as distinguish it from 0.
fn percent(count: u64, of: u64) -> String {
    if count == 0 || of == 0 {
        return "0".into();
    }
    let (count, of) = (u128::from(count), u128::from(of));
    let places = match count * 10_000 / of {
        100.. => 2,
        1.. => 3,
        0 => 6,
    };
    let one = 10_u128.pow(places);
    // Half is rounded up.
    let rounded = (count * 100 * one * 2 + of) / (of * 2);
    match rounded {
        0 => "< 0.000001 %".into(),
        _ => format!("{}.{:0width$} %", rounded / one, rounded % one, width = places as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_shares_keep_significant_digits() {
        for (count, of, text) in [
            (0, 0, "0"),
            (0, 7, "0"),
            (1, 3, "33.33 %"),
            (2, 3, "66.67 %"),
            (1, 8_000, "0.013 %"),
            (199_999, 10_000_000, "2.00 %"),
            (99_999, 10_000_000, "1.000 %"),
            (9_999, 100_000_000, "0.009999 %"),
            (6, 1_000_000_000, "0.000001 %"),
            (7, 7, "100.00 %"),
            (1, 1_000, "0.100 %"),
            (3, 100_000, "0.003000 %"),
            (1, 10_000_000_000, "< 0.000001 %"),
        ] {
            assert_eq!(percent(count, of), text);
        }
    }

    #[test]
    fn shortens_trace_names() {
        assert_eq!(name(Path::new("/a/zeek-dns.csv.gz")), "zeek-dns");
        assert_eq!(name(Path::new("a|b.log")), "a_b");
    }
}
