//! The bars: what the ratios must be, and what they aim at.

use crate::cli::Mode;
use crate::inprocess::{Results, Row};
use crate::rss::FULL_LOG_ENTRIES;
use crate::subjects::Kind;
use crate::workloads::Workload;

/// One bar with what was measured, if it was.
pub struct Bar {
    pub name: String,
    pub measured: Option<f64>,
    pub must: Option<f64>,
    pub aim: Option<f64>,
    /// Whether more is better; most bars are costs.
    pub at_least: bool,
}

impl Bar {
    /// A cost: `must` and `aim` are the most it may be.
    pub fn at_most(name: &str, measured: Option<f64>, must: Option<f64>, aim: Option<f64>) -> Self {
        Bar { name: name.to_owned(), measured, must, aim, at_least: false }
    }

    /// Whether a threshold is met; `None` if there is nothing to compare.
    pub fn met(&self, threshold: Option<f64>) -> Option<bool> {
        let (measured, threshold) = (self.measured?, threshold?);
        Some(if self.at_least { measured >= threshold } else { measured <= threshold })
    }
}

/// All bars of in-process decisions, in the order they were set.
pub fn bars(results: &Results) -> Vec<Bar> {
    use Workload::{Hot, MillionUniform, MillionZipf, TenMillionUniform, TenThousand};
    let to_governor = |workload, threads| {
        let ours = find(results, workload, threads, Mode::Single, Kind::Tidegate)?;
        let theirs = find(results, workload, threads, Mode::Single, Kind::Governor)?;
        Some(ours.ns_per_decision / theirs.ns_per_decision)
    };
    let mut bars = vec![
        Bar::at_most("hot / governor", to_governor(Hot, 1), Some(0.60), Some(0.35)),
        Bar::at_most("10k / governor", to_governor(TenThousand, 1), Some(0.60), Some(0.35)),
        Bar::at_most(
            "1m-uniform / governor",
            to_governor(MillionUniform, 1),
            Some(0.25),
            Some(0.12),
        ),
        Bar::at_most("1m-zipf / governor", to_governor(MillionZipf, 1), Some(0.30), Some(0.17)),
        Bar::at_most(
            "10m-uniform / governor",
            to_governor(TenMillionUniform, 1),
            Some(0.30),
            Some(0.14),
        ),
        Bar::at_most("2 threads, hot / governor", to_governor(Hot, 2), Some(0.45), None),
        Bar::at_most(
            "2 threads, 1m-uniform / governor",
            to_governor(MillionUniform, 2),
            Some(0.30),
            None,
        ),
        Bar {
            name: "2 threads, 1m-uniform: aggregate / one thread".to_owned(),
            measured: speed_up(results, MillionUniform, Kind::Tidegate),
            must: None,
            aim: Some(1.7),
            at_least: true,
        },
    ];
    for workload in [MillionUniform, TenMillionUniform] {
        bars.extend(batch_bars(results, workload));
    }
    bars.extend(memory_bars(results));
    bars
}

fn batch_bars(results: &Results, workload: Workload) -> [Bar; 2] {
    let name = crate::cli::name_of(&workload);
    let batch = find(results, workload, 1, Mode::Batch32, Kind::Tidegate);
    let over = |single: Option<&Row>| Some(batch?.ns_per_decision / single?.ns_per_decision);
    let ours = find(results, workload, 1, Mode::Single, Kind::Tidegate);
    let governor = find(results, workload, 1, Mode::Single, Kind::Governor);
    [
        Bar::at_most(&format!("batch32, {name} / our single call"), over(ours), Some(0.5), None),
        Bar::at_most(&format!("batch32, {name} / governor"), over(governor), None, Some(0.08)),
    ]
}

fn memory_bars(results: &Results) -> [Bar; 3] {
    let bytes = |workload| {
        let rows = results.rows.iter();
        let mut ours = rows.filter(|row| row.subject == Kind::Tidegate && row.workload == workload);
        ours.find_map(|row| row.bytes_per_key)
    };
    let million = bytes(Workload::MillionUniform).or(bytes(Workload::MillionZipf));
    let full_log = f64::from(4 * FULL_LOG_ENTRIES + 64);
    [
        Bar::at_most("bytes per key at 1M", million, Some(40.0), Some(34.0)),
        Bar::at_most(
            "bytes per key at 10M",
            bytes(Workload::TenMillionUniform),
            Some(32.0),
            Some(27.0),
        ),
        Bar::at_most(
            "bytes per key, sliding-log of 100 entries",
            results.full_log_bytes,
            Some(full_log),
            None,
        ),
    ]
}

/// How much faster two threads decide together than one alone.
pub fn speed_up(results: &Results, workload: Workload, subject: Kind) -> Option<f64> {
    let one = find(results, workload, 1, Mode::Single, subject)?;
    let two = find(results, workload, 2, Mode::Single, subject)?;
    Some(two.per_second / one.per_second)
}

/// The row of one cell of the table, if it was measured.
pub fn find(
    results: &Results,
    workload: Workload,
    threads: u8,
    mode: Mode,
    subject: Kind,
) -> Option<&Row> {
    results.rows.iter().find(|row| {
        (row.workload, row.threads, row.mode, row.subject) == (workload, threads, mode, subject)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_met_on_its_own_side() {
        let cost = Bar::at_most("cost", Some(0.3), Some(0.3), Some(0.1));
        assert_eq!((cost.met(cost.must), cost.met(cost.aim)), (Some(true), Some(false)));
        let gain = Bar { at_least: true, ..Bar::at_most("gain", Some(1.6), None, Some(1.7)) };
        assert_eq!((gain.met(gain.must), gain.met(gain.aim)), (None, Some(false)));
        let unmeasured = Bar::at_most("unmeasured", None, Some(1.0), None);
        assert_eq!(unmeasured.met(unmeasured.must), None);
    }
}
