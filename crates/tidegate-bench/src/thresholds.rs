//! Thresholds for measured figures, required ("must") and desired ("aim"). Tables and JSON call
//! them bars.

use crate::cli::{Mode, name_of};
use crate::inprocess::{Results, Row};
use crate::subjects::SubjectKind;
use crate::workloads::Workload;

/// One threshold, with the measured value if there is one.
pub struct Threshold {
    pub name: String,
    pub measured: Option<f64>,
    pub must: Option<f64>,
    pub aim: Option<f64>,
    /// Whether larger values are better. Most thresholds are costs, where smaller values are
    /// better.
    pub at_least: bool,
}

impl Threshold {
    /// Creates a threshold for a cost: `must` and `aim` are upper bounds.
    pub fn at_most(name: &str, measured: Option<f64>, must: Option<f64>, aim: Option<f64>) -> Self {
        Threshold { name: name.to_owned(), measured, must, aim, at_least: false }
    }

    /// Creates a threshold for a gain: `must` and `aim` are lower bounds.
    pub fn at_least(
        name: &str,
        measured: Option<f64>,
        must: Option<f64>,
        aim: Option<f64>,
    ) -> Self {
        Threshold { at_least: true, ..Threshold::at_most(name, measured, must, aim) }
    }

    /// Returns whether one of the two bounds is met, or `None` if either value is missing.
    pub fn met(&self, bound: Option<f64>) -> Option<bool> {
        let (measured, bound) = (self.measured?, bound?);
        Some(if self.at_least { measured >= bound } else { measured <= bound })
    }
}

/// A threshold on the time of a subject relative to a single call of another subject in the same
/// run.
struct Ratio {
    subject: SubjectKind,
    against: SubjectKind,
    mode: Mode,
    threads: u8,
    workload: Workload,
    must: f64,
    aim: f64,
}

impl Ratio {
    const fn new(
        subject: SubjectKind,
        against: SubjectKind,
        workload: Workload,
        [must, aim]: [f64; 2],
    ) -> Self {
        Ratio { subject, against, mode: Mode::Single, threads: 1, workload, must, aim }
    }

    const fn on_two_threads(self) -> Self {
        Ratio { threads: 2, ..self }
    }

    const fn in_batches(self) -> Self {
        Ratio { mode: Mode::Batch32, ..self }
    }

    fn threshold(&self, results: &Results) -> Threshold {
        let &Ratio { subject, against, mode, threads, workload, must, aim } = self;
        let tidegate = find(results, workload, threads, mode, subject);
        let peer = find(results, workload, threads, Mode::Single, against);
        let measured = tidegate.zip(peer).map(|(a, b)| a.ns_per_decision / b.ns_per_decision);
        let conditions = match (mode, threads) {
            (Mode::Batch32, _) => ", batch32",
            (Mode::Single, 1) => "",
            (Mode::Single, _) => ", 2 threads",
        };
        let [subject, against] = [subject, against].map(|kind| name_of(&kind));
        let name = format!("{subject} / {against}, {}{conditions}", name_of(&workload));
        Threshold::at_most(&name, measured, Some(must), Some(aim))
    }
}

/// Returns all thresholds of in-process decisions.
pub fn thresholds(results: &Results) -> Vec<Threshold> {
    let mut thresholds: Vec<Threshold> =
        ratios().iter().map(|ratio| ratio.threshold(results)).collect();
    thresholds.extend(memory_thresholds(results));
    thresholds
}

fn ratios() -> [Ratio; 21] {
    use SubjectKind::{
        Governor, Tidegate, TidegateCounter, TidegateFourLimits, TidegateLog100, TidegateTwoLimits,
    };
    use Workload::{Hot, MillionUniform, MillionZipf, TenMillionUniform, TenThousand};
    [
        Ratio::new(Tidegate, Governor, Hot, [0.9, 0.55]),
        Ratio::new(Tidegate, Governor, TenThousand, [0.85, 0.6]),
        Ratio::new(Tidegate, Governor, MillionUniform, [0.55, 0.35]),
        Ratio::new(Tidegate, Governor, MillionZipf, [0.6, 0.45]),
        Ratio::new(Tidegate, Governor, TenMillionUniform, [0.7, 0.45]),
        Ratio::new(Tidegate, Governor, Hot, [1.0, 0.7]).on_two_threads(),
        Ratio::new(Tidegate, Governor, MillionUniform, [0.55, 0.4]).on_two_threads(),
        Ratio::new(TidegateTwoLimits, Tidegate, Hot, [2.3, 1.8]),
        Ratio::new(TidegateTwoLimits, Tidegate, MillionUniform, [2.3, 1.8]),
        Ratio::new(TidegateFourLimits, Tidegate, Hot, [4.6, 3.6]),
        Ratio::new(TidegateFourLimits, Tidegate, MillionUniform, [4.6, 3.6]),
        Ratio::new(TidegateLog100, Governor, Hot, [1.5, 1.0]),
        Ratio::new(TidegateLog100, Governor, MillionUniform, [1.0, 0.7]),
        Ratio::new(TidegateCounter, Governor, Hot, [0.45, 0.31]),
        Ratio::new(TidegateCounter, Governor, TenThousand, [0.42, 0.28]),
        Ratio::new(TidegateCounter, Governor, MillionUniform, [0.24, 0.16]),
        Ratio::new(TidegateCounter, Governor, TenMillionUniform, [0.22, 0.15]),
        Ratio::new(Tidegate, Governor, MillionUniform, [0.35, 0.22]).in_batches(),
        Ratio::new(Tidegate, Governor, TenMillionUniform, [0.35, 0.22]).in_batches(),
        Ratio::new(TidegateCounter, Governor, MillionUniform, [0.12, 0.1]).in_batches(),
        Ratio::new(TidegateCounter, Governor, TenMillionUniform, [0.12, 0.1]).in_batches(),
    ]
}

/// Returns the thresholds on memory. `sliding-window` takes the same memory for any limit.
fn memory_thresholds(results: &Results) -> Vec<Threshold> {
    let bytes = |kind, workload| {
        let mut rows = results.rows.iter();
        let row = rows.find(|row| row.subject == kind && row.workload == workload);
        row.and_then(|row| row.bytes_per_key)
    };
    let sizes = [
        (SubjectKind::Tidegate, Workload::MillionUniform, "mean of 0.7M, 1M, 1.4M keys"),
        (SubjectKind::TidegateSmall, Workload::MillionUniform, "mean of 0.7M, 1M, 1.4M keys"),
        (SubjectKind::Tidegate, Workload::TenMillionUniform, "10M keys"),
    ];
    let threshold = |(kind, workload, keys)| {
        let name = format!("{}: bytes per key, {keys}", name_of(&kind));
        Threshold::at_most(&name, bytes(kind, workload), Some(100.0), Some(84.0))
    };
    sizes.map(threshold).into()
}

/// Returns the row of one table cell, if it was measured.
pub fn find(
    results: &Results,
    workload: Workload,
    threads: u8,
    mode: Mode,
    subject: SubjectKind,
) -> Option<&Row> {
    results.rows.iter().find(|row| {
        (row.workload, row.threads, row.mode, row.subject) == (workload, threads, mode, subject)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_have_upper_and_gains_lower_bounds() {
        let cost = Threshold::at_most("cost", Some(0.3), Some(0.3), Some(0.1));
        assert_eq!((cost.met(cost.must), cost.met(cost.aim)), (Some(true), Some(false)));
        let gain = Threshold::at_least("gain", Some(1.6), None, Some(1.7));
        assert_eq!((gain.met(gain.must), gain.met(gain.aim)), (None, Some(false)));
        let unmeasured = Threshold::at_most("unmeasured", None, Some(1.0), None);
        assert_eq!(unmeasured.met(unmeasured.must), None);
    }
}
