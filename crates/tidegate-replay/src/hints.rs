//! Hints about input that looks wrong as a whole, with a remedy.

use crate::calendar::Utc;
use crate::policy_replay::Undecided;
use crate::reader_thread::ReadReport;
use crate::report::grouped;
use crate::trace_file::FileReport;

/// Times before the second day of 1970 are probably not in microseconds.
const EARLY_US: u64 = 86_400_000_000;

/// Zones differ by multiples of a quarter of an hour. Times in logs are out of order by some
/// seconds.
const QUARTER_US: u64 = 900_000_000;
const WAVER_US: u64 = 60_000_000;

/// Times after the year 2100 are probably not in the given unit.
const LATE_US: u64 = 4_102_444_800_000_000;

/// The hint for keys with parts that a line does not have.
const INCOMPLETE: &str = "keys lack a part, for example the address of a client that the log has \
                          by name; those that lack the same share a count";

impl ReadReport {
    /// Returns the hints, each of one or two sentences.
    pub fn hints(&self) -> Vec<String> {
        let mut hints: Vec<String> = self.files.iter().flat_map(of_file).collect();
        let step_us = self.problems.largest_step_us;
        let beside_us = step_us % QUARTER_US;
        if step_us >= 2 * QUARTER_US
            && (beside_us <= WAVER_US || beside_us >= QUARTER_US - WAVER_US)
        {
            let minutes = (step_us + QUARTER_US / 2) / QUARTER_US * 15;
            let (hours, minutes) = (minutes / 60, minutes % 60);
            hints.push(format!(
                "times step back by about {hours} h {minutes:02} min, as where the clock was set or \
                 the zone is not said; --zone is for times without a zone"
            ));
        }
        if self.files.len() > 1 && self.apart() {
            hints.push(
                "some files have no time in common with the others, and lie more than a year apart; \
                 is one in another unit (--time-unit) or year?"
                    .into(),
            );
        }
        if self.problems.malformed.count > self.events() {
            hints.push("more lines were skipped than read; is --format right?".into());
        }
        hints
    }

    /// Returns whether some file lies more than a year from all others.
    fn apart(&self) -> bool {
        const YEAR_US: u64 = 366 * EARLY_US;
        let mut spans: Vec<_> = self.files.iter().filter_map(|file| file.span).collect();
        spans.sort_unstable();
        spans.windows(2).any(|pair| pair[1].0.saturating_sub(pair[0].1) > YEAR_US)
    }
}

fn of_file(file: &FileReport) -> Vec<String> {
    let mut hints = Vec::new();
    let path = file.path.display();
    if let Some((_, last_us)) = file.span {
        if last_us < EARLY_US && file.unit.is_some() {
            let last = Utc { time_us: last_us };
            hints.push(format!(
                "{path}: its last time is {last}; if its times are not microseconds, say --time-unit s or ms"
            ));
        } else if last_us > LATE_US {
            let last = Utc { time_us: last_us };
            hints.push(format!("{path}: its last time is {last}; is --time-unit right?"));
        }
    }
    if file.field_unused {
        hints.push(format!("{path}: --field is for csv and jsonl, and did nothing for its lines"));
    }
    if file.unit_unused {
        hints.push(format!("{path}: its times are no numbers, so --time-unit did nothing"));
    }
    if file.incomplete > 0 {
        let count = grouped(file.incomplete);
        hints.push(format!("{path}: {count} {INCOMPLETE}"));
    }
    if file.zoneless > 0 {
        let count = grouped(file.zoneless);
        hints.push(format!(
            "{path}: {count} times name no zone; they were taken as --zone says, UTC if it does not"
        ));
    }
    hints
}

impl Undecided {
    /// Returns hints about requests that were not decided as usual, each of one or two sentences.
    pub fn hints(&self) -> Vec<String> {
        let first = self.first.as_deref().unwrap_or_default();
        let rows = [
            (self.unmatched, "requests met no policy and passed".to_string()),
            (
                self.need_permit,
                format!(
                    "requests met a concurrency limit, which a trace cannot decide: it says when \
                     requests begin, not when they end; they count as denied ({first})"
                ),
            ),
            (self.refused, format!("requests would be refused as bad input ({first})")),
            (self.incomplete, INCOMPLETE.to_string()),
            (self.no_room, "requests found no room for their key: max_keys is too low".to_string()),
        ];
        let told = rows.into_iter().filter(|(count, _)| *count > 0);
        told.map(|(count, text)| format!("{} {text}", grouped(count))).collect()
    }
}
