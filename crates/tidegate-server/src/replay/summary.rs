//! What came of a replay, for people and as JSON.
//!
//! Both are written from one plain struct, so they cannot disagree.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::calendar::Utc;
use super::error::ReplayError;
use super::feed::{Problem, Problems, Report, What};
use super::run::Run;

/// Everything a replay says; serialised as it stands.
#[derive(Debug, Serialize)]
pub struct Summary {
    events: u64,
    keys: u64,
    lines: u64,
    /// The earliest and the latest time, and what lies between.
    from_us: u64,
    to_us: u64,
    span_us: u64,
    elapsed_us: u64,
    /// From the first byte read to the last decision written.
    events_per_second: u64,
    files: Vec<FileSummary>,
    /// Lines that are no events and were left out.
    skipped: ProblemsSummary,
    /// Events earlier than the one before; decided all the same.
    out_of_order: ProblemsSummary,
    /// Gzipped files that end before their end.
    damaged: ProblemsSummary,
    algorithms: Vec<AlgorithmSummary>,
}

#[derive(Debug, Serialize)]
struct FileSummary {
    path: String,
    format: Option<&'static str>,
    gzip: bool,
    lines: u64,
    events: u64,
}

#[derive(Debug, Serialize)]
struct ProblemsSummary {
    count: u64,
    /// Where it was so first.
    first: Vec<ProblemSummary>,
}

#[derive(Debug, Serialize)]
struct ProblemSummary {
    file: String,
    line: u64,
    problem: String,
}

#[derive(Debug, Serialize)]
struct AlgorithmSummary {
    /// `mixed` where the limits have different ones.
    algorithm: &'static str,
    events: u64,
    admitted: u64,
    denied: u64,
    keys: u64,
    keys_denied: u64,
    /// Of the first limit; `limits` has them all.
    largest_rolling_count: u64,
    /// How many answers differ from those of the first algorithm, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    differ: Option<u64>,
    /// While this algorithm was at work, without the reading.
    decisions_per_second: u64,
    limits: Vec<LimitSummary>,
}

#[derive(Debug, Serialize)]
struct LimitSummary {
    limit: String,
    count: u64,
    window_us: u64,
    /// The most one key was admitted within any half-open window, counted apart
    /// from the engine.
    largest_rolling_count: u64,
}

impl Summary {
    pub fn new(report: &Report, runs: &[Run], elapsed: Duration) -> Self {
        let events = report.events();
        let (from_us, to_us) = report.span.unwrap_or_default();
        let several = runs.len() > 1;
        let files = report.files.iter().map(|file| FileSummary {
            path: file.path.display().to_string(),
            format: file.format.map(|format| format.name()),
            gzip: file.gzip,
            lines: file.lines,
            events: file.events,
        });
        Summary {
            events,
            keys: report.keys,
            lines: report.lines(),
            from_us,
            to_us,
            span_us: to_us - from_us,
            elapsed_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
            events_per_second: per_second(events, elapsed),
            files: files.collect(),
            skipped: ProblemsSummary::new(&report.malformed),
            out_of_order: ProblemsSummary::new(&report.out_of_order),
            damaged: ProblemsSummary::new(&report.damaged),
            algorithms: runs
                .iter()
                .map(|run| AlgorithmSummary::new(run, report.keys, several))
                .collect(),
        }
    }

    pub fn json(&self) -> Result<String, ReplayError> {
        let mut text = serde_json::to_string_pretty(self)
            .map_err(|error| ReplayError::Output(error.into()))?;
        text.push('\n');
        Ok(text)
    }

    fn write_heading(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [events, keys] = [self.events, self.keys].map(grouped);
        writeln!(f, "{events} events of {keys} keys in {}", Span { us: self.span_us })?;
        let [from, to] = [self.from_us, self.to_us].map(|time_us| Utc { time_us });
        writeln!(f, "from {from} to {to}")?;
        for file in &self.files {
            let format = file.format.unwrap_or("unknown format");
            let gzip = if file.gzip { ", gzipped" } else { "" };
            writeln!(f, "  {}: {format}{gzip}, {} events", file.path, grouped(file.events))?;
        }
        Ok(())
    }

    fn table(&self) -> Table {
        let mut heads =
            vec![String::new(), "admitted".into(), "denied".into(), "keys denied".into()];
        let first = self.algorithms.first();
        heads.extend(
            first
                .iter()
                .flat_map(|run| &run.limits)
                .map(|limit| format!("most in {}", window_of(&limit.limit))),
        );
        if first.is_some_and(|run| run.differ.is_some()) {
            heads.push(format!("unlike {}", first.map_or("", |run| run.algorithm)));
        }
        heads.push("decisions/s".into());
        let rows = self.algorithms.iter().map(|run| {
            let numbers = [run.admitted, run.denied, run.keys_denied].into_iter();
            let largest = run.limits.iter().map(|limit| limit.largest_rolling_count);
            let numbers =
                numbers.chain(largest).chain(run.differ).chain([run.decisions_per_second]);
            [run.algorithm.to_string()].into_iter().chain(numbers.map(grouped)).collect()
        });
        Table { rows: [heads].into_iter().chain(rows).collect() }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_heading(f)?;
        let compared = self.algorithms.len() > 1;
        for limit in self.algorithms.first().iter().flat_map(|run| &run.limits) {
            let whole = limit.limit.as_str();
            // Compared, a limit has the algorithm of its row.
            let text = if compared { &whole[..end_of_window(whole)] } else { whole };
            writeln!(f, "  limit {text}, each key")?;
        }
        write!(f, "\n{}\n", self.table())?;
        f.write_str("\"most\" is what one key truly had within the window, counted apart from the limiter\n")?;
        let [milliseconds, rate] = [self.elapsed_us / 1_000, self.events_per_second];
        let seconds = format!("{}.{:03}", milliseconds / 1_000, milliseconds % 1_000);
        writeln!(
            f,
            "replayed in {seconds} s: {} events/s with reading and counting",
            grouped(rate)
        )?;
        self.skipped.write("lines skipped", f)?;
        self.out_of_order.write("events out of order, decided at their own time", f)?;
        self.damaged.write("damaged files", f)
    }
}

impl AlgorithmSummary {
    fn new(run: &Run, keys: u64, several: bool) -> Self {
        let events = run.admitted + run.denied;
        let limits: Vec<_> = run
            .limits()
            .map(|(limit, largest_rolling_count)| LimitSummary {
                limit: limit.to_string(),
                count: limit.count(),
                window_us: limit.window_us(),
                largest_rolling_count,
            })
            .collect();
        AlgorithmSummary {
            algorithm: run.algorithm().map_or("mixed", |algorithm| algorithm.name()),
            events,
            admitted: run.admitted,
            denied: run.denied,
            keys,
            keys_denied: run.keys_denied,
            largest_rolling_count: limits.first().map_or(0, |limit| limit.largest_rolling_count),
            differ: several.then_some(run.unlike_first),
            decisions_per_second: per_second(events, run.busy),
            limits,
        }
    }
}

impl ProblemsSummary {
    fn new(problems: &Problems) -> Self {
        let first = problems.first.iter().map(|Problem { path, line, what }| ProblemSummary {
            file: path.display().to_string(),
            line: *line,
            problem: What::to_string(what),
        });
        ProblemsSummary { count: problems.count, first: first.collect() }
    }

    fn write(&self, title: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.count == 0 {
            return Ok(());
        }
        writeln!(f, "\n{title}: {}", grouped(self.count))?;
        for ProblemSummary { file, line, problem } in &self.first {
            writeln!(f, "  {file}:{line}: {problem}")?;
        }
        match self.count - self.first.len() as u64 {
            0 => Ok(()),
            more => writeln!(f, "  and {} more", grouped(more)),
        }
    }
}

/// Columns as wide as their widest cell: the first to the left, numbers to the right.
struct Table {
    rows: Vec<Vec<String>>,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width =
            |column: usize| self.rows.iter().map(|row: &Vec<String>| row[column].len()).max();
        let widths: Vec<usize> = (0..columns).filter_map(width).collect();
        for row in &self.rows {
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                match column {
                    0 => write!(f, "{cell:<width$}")?,
                    _ => write!(f, "  {cell:>width$}")?,
                }
            }
            f.write_str("\n")?;
        }
        Ok(())
    }
}

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn per_second(events: u64, elapsed: Duration) -> u64 {
    let nanos = elapsed.as_nanos().max(1);
    u64::try_from(u128::from(events) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

/// Where `10 per 10s` ends in `10 per 10s sliding-log`.
fn end_of_window(limit: &str) -> usize {
    limit.match_indices(' ').nth(2).map_or(limit.len(), |(at, _)| at)
}

fn window_of(limit: &str) -> &str {
    limit[..end_of_window(limit)].rsplit(' ').next().unwrap_or_default()
}

/// A length of time for people, in its two largest units.
struct Span {
    us: u64,
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.us / 1_000_000;
        match seconds {
            0 => write!(f, "{} us", grouped(self.us)),
            1..60 => write!(f, "{seconds}.{:03} s", self.us / 1_000 % 1_000),
            60..3_600 => write!(f, "{} min {} s", seconds / 60, seconds % 60),
            3_600..86_400 => write!(f, "{} h {} min", seconds / 3_600, seconds / 60 % 60),
            _ => write!(f, "{} d {} h", seconds / 86_400, seconds / 3_600 % 24),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_threes() {
        let pairs = [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")];
        pairs.into_iter().for_each(|(number, text)| assert_eq!(grouped(number), text));
    }

    #[test]
    fn spans_have_their_largest_units() {
        for (us, text) in [
            (0, "0 us"),
            (999_999, "999,999 us"),
            (1_500_000, "1.500 s"),
            (61_000_000, "1 min 1 s"),
            (3_600_000_000, "1 h 0 min"),
            (90_000_000_000, "1 d 1 h"),
        ] {
            assert_eq!(Span { us }.to_string(), text);
        }
    }

    #[test]
    fn limits_without_their_algorithm() {
        assert_eq!(window_of("10 per 10s sliding-buckets buckets 10"), "10s");
        assert_eq!(window_of("10 per 10s"), "10s");
    }

    #[test]
    fn rates_do_not_divide_by_nothing() {
        assert_eq!(per_second(3_000_000, Duration::from_secs(2)), 1_500_000);
        assert_eq!(per_second(0, Duration::ZERO), 0);
    }
}
