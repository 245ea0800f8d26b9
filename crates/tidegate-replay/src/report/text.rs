//! The report as text.

use std::fmt;

use super::summary::{
    AlgorithmSummary, KeySummary, LimitSummary, ProblemSummary, ProblemsSummary, Summary,
};
use crate::utc::Utc;

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_heading(f)?;
        self.write_limits(f)?;
        write!(f, "\n{}\n", self.table())?;
        self.write_policies(f)?;
        f.write_str("\"most\": the largest number of units of one key in any window, by a separate count\n\"over\": admitted above the limit by that count; \"wrongly denied\": denied below it\n")?;
        self.write_net_differences(f)?;
        let [milliseconds, rate] = [(self.elapsed_us + 500) / 1_000, self.events_per_second];
        let seconds = format!("{}.{:03}", milliseconds / 1_000, milliseconds % 1_000);
        let made = if self.traffic.is_some() { "making" } else { "reading" };
        writeln!(
            f,
            "replayed in {seconds} s: {} events/s with {made} and counting",
            grouped(rate)
        )?;
        self.write_keys(f)?;
        self.write_suggestions(f)?;
        self.skipped.write("lines skipped", f)?;
        self.out_of_order.write("events out of order, decided at their own time", f)?;
        self.duplicates.write("lines equal to the line before", f)?;
        self.damaged.write("damaged files", f)?;
        if !self.hints.is_empty() {
            f.write_str("\n")?;
        }
        self.hints.iter().try_for_each(|hint| writeln!(f, "hint: {hint}"))
    }
}

impl Summary {
    fn write_heading(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [events, keys] = [counted(self.events, "event"), counted(self.keys, "key")];
        write!(f, "{events} of {keys} in {}", Span { us: self.span_us })?;
        match self.algorithms.get(self.main).filter(|_| self.has_different_requests()) {
            Some(run) => writeln!(f, " under {}", run.algorithm)?,
            None => f.write_str("\n")?,
        }
        if let Some(traffic) = &self.traffic {
            return writeln!(f, "  {}: {}; seed {}", traffic.name, traffic.about, traffic.seed);
        }
        let [from, to] = [self.from_us, self.to_us].map(|time_us| Utc { time_us });
        writeln!(f, "from {from} to {to}")?;
        for file in &self.files {
            let format = file.format.unwrap_or("unknown format");
            let compression = match file.compression {
                Some("gzip") => ", gzipped".to_string(),
                Some(name) => format!(", {name}"),
                None => String::new(),
            };
            let unit = file.time_unit.filter(|unit| *unit != "us" || file.format != Some("csv"));
            let unit = unit.map_or_else(String::new, |unit| format!(", times in {unit}"));
            let events = counted(file.events, "event");
            writeln!(f, "  {}: {format}{compression}{unit}, {events}", file.path)?;
        }
        Ok(())
    }

    fn write_limits(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let compared = self.algorithms.len() > 1;
        let limits = self.algorithms.first().into_iter().flat_map(|run| &run.limits);
        for limit in limits.filter(|limit| limit.policy.is_none()) {
            let whole = limit.limit.as_str();
            // In a comparison, each row shows the algorithm.
            let text = if compared { &whole[..end_of_window(whole)] } else { whole };
            writeln!(f, "  limit {text}, each key")?;
        }
        Ok(())
    }

    /// Writes the limits of policies, which do not all see the same events.
    fn write_policies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for run in self.algorithms.iter().filter(|run| run.has_policies()) {
            let heads = ["", "checked", "denied", "most"].map(String::from).to_vec();
            let row = |limit: &LimitSummary| {
                let policy = limit.policy.as_deref().unwrap_or_default();
                let [asked, denied] = [limit.asked, limit.denied].map(|n| grouped(n.unwrap_or(0)));
                let most = grouped(limit.largest_rolling_count);
                let mode = match limit.mode {
                    Some("observe") => " (observed)",
                    Some("off") => " (off)",
                    _ => "",
                };
                vec![format!("{policy}: {}{mode}", limit.limit), asked, denied, most]
            };
            let rows = [heads].into_iter().chain(run.limits.iter().map(row)).collect();
            writeln!(f, "{}", Table { rows })?;
        }
        Ok(())
    }

    fn table(&self) -> Table {
        let mut heads = vec![String::new()];
        let different = self.has_different_requests();
        heads.extend(different.then(|| "events".to_string()));
        heads.extend(["admitted".to_string(), "denied".to_string()]);
        // The runs have the same policies, so none or all of them leave requests out.
        let not_replayed = |run: &AlgorithmSummary| run.not_replayed.filter(|&count| count > 0);
        let leaves_out = self.algorithms.iter().any(|run| not_replayed(run).is_some());
        heads.extend(leaves_out.then(|| "not replayed".to_string()));
        heads.push("keys denied".into());
        let first = self.algorithms.first();
        let windows = first.iter().flat_map(|run| run.shared_limits());
        heads.extend(windows.map(|limit| format!("most in {}", window_of(&limit.limit))));
        heads.extend(["over".to_string(), "wrongly denied".to_string()]);
        // For a page, a single run is compared too. The text is the same with and without a page.
        let differ = |run: &AlgorithmSummary| run.differ.filter(|_| self.algorithms.len() > 1);
        let compared = self.algorithms.iter().any(|run| differ(run).is_some());
        heads.extend(compared.then(|| "unlike sliding-log".to_string()));
        heads.push("decisions/s".into());
        let row = |run: &AlgorithmSummary| {
            let numbers = different.then_some(run.events).into_iter();
            let numbers = numbers.chain([run.admitted, run.denied]);
            let numbers = numbers.chain(not_replayed(run)).chain([run.keys_denied]);
            let largest = run.shared_limits().map(|limit| limit.largest_rolling_count);
            let numbers = numbers.chain(largest).chain([run.over_admitted, run.false_denials]);
            let numbers = numbers.chain(differ(run)).chain([run.decisions_per_second]);
            [run.algorithm.clone()].into_iter().chain(numbers.map(grouped)).collect()
        };
        Table { rows: [heads].into_iter().chain(self.algorithms.iter().map(row)).collect() }
    }

    /// Writes how many more or fewer requests than the exact log each algorithm of a comparison
    /// admitted.
    fn write_net_differences(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // For a page, a single run is compared too. The text is the same with and without a page.
        let runs = self.algorithms.iter().filter(|_| self.algorithms.len() > 1);
        let net = runs.filter_map(|run| {
            run.net_difference().map(|net| format!("{} {}", run.algorithm, net.short))
        });
        let net: Vec<String> = net.collect();
        if net.is_empty() {
            return Ok(());
        }
        writeln!(f, "admitted, compared with sliding-log: {}", net.join(", "))
    }

    /// Writes the keys denied most by the requested algorithm.
    fn write_keys(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(run) = self.algorithms.get(self.main) else { return Ok(()) };
        let lists = [
            ("most denied", &run.most_denied, run.keys_denied),
            ("nearest to a denial", &run.nearest, run.keys_near),
        ];
        for (title, keys, all) in lists {
            let keys = &keys[..keys.len().min(self.keys_in_text)];
            if keys.is_empty() {
                continue;
            }
            writeln!(f, "\n{title} by {}", run.algorithm)?;
            let row = |key: &KeySummary| {
                let name = match &key.policy {
                    Some(policy) => format!("  {policy} {}", key.key),
                    None => format!("  {}", key.key),
                };
                let numbers = [key.events, key.denied, key.near_misses].map(grouped);
                [name].into_iter().chain(numbers).collect()
            };
            let heads = ["", "events", "denied", "near misses"].map(String::from).to_vec();
            let rows = [heads].into_iter().chain(keys.iter().map(row));
            write!(f, "{}", Table { rows: rows.collect() })?;
            match all.saturating_sub(keys.len() as u64) {
                0 => {}
                more => writeln!(f, "  and {}; list more with --top", counted(more, "other key"))?,
            }
        }
        Ok(())
    }

    fn write_suggestions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, one) in self.suggestions.iter().enumerate() {
            if index == 0 {
                f.write_str("\n")?;
            }
            let [passed, asked] = [one.passed, one.asked].map(grouped);
            let found = one.limit.as_ref().or(one.why_nothing.as_ref());
            let found = found.map_or("", String::as_str);
            write!(f, "to pass {}: {found} (passes {passed} of {asked})", one.pass)?;
            match (&*one.headroom, &one.with_headroom) {
                ("0 %", _) => f.write_str("\n")?,
                (_, None) if one.limit.is_none() => f.write_str("\n")?,
                (headroom, None) => {
                    writeln!(f, "; with {headroom} more, above the largest possible limit")?
                }
                (headroom, Some(more)) => writeln!(f, "; with {headroom} more, {more}")?,
            }
        }
        // All runs have the same number of limits.
        let several = self.algorithms.first().is_some_and(|run| run.limits.len() > 1);
        if several && !self.suggestions.is_empty() {
            f.write_str("each limit was tried alone; together they may pass fewer requests\n")?;
        }
        Ok(())
    }
}

impl AlgorithmSummary {
    fn has_policies(&self) -> bool {
        self.limits.iter().any(|limit| limit.policy.is_some())
    }

    /// Returns the limits that apply to every event.
    fn shared_limits(&self) -> impl Iterator<Item = &LimitSummary> {
        self.limits.iter().filter(|limit| limit.policy.is_none())
    }
}

impl ProblemsSummary {
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

/// A table whose columns are as wide as their widest cell. The first column is aligned left, and
/// numbers are aligned right.
pub struct Table {
    pub rows: Vec<Vec<String>>,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| {
            self.rows.iter().map(|row: &Vec<String>| row[column].chars().count()).max()
        };
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

/// Formats `1234567` as `1,234,567`.
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

/// Formats a number with its noun: `1 key`, `2 keys`.
pub fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(number))
}

/// Returns where `10 per 10s` ends in `10 per 10s sliding-log`.
fn end_of_window(limit: &str) -> usize {
    limit.match_indices(' ').nth(2).map_or(limit.len(), |(at, _)| at)
}

pub fn window_of(limit: &str) -> &str {
    limit[..end_of_window(limit)].rsplit(' ').next().unwrap_or_default()
}

/// A duration for display, in its two largest units.
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
    fn groups_digits_by_three() {
        let pairs = [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")];
        pairs.into_iter().for_each(|(number, text)| assert_eq!(grouped(number), text));
    }

    #[test]
    fn counts_nouns_in_singular_and_plural() {
        for (number, text) in [(0, "0 keys"), (1, "1 key"), (2, "2 keys"), (1_000, "1,000 keys")] {
            assert_eq!(counted(number, "key"), text);
        }
    }

    #[test]
    fn formats_spans_in_largest_units() {
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
    fn formats_limits_without_algorithm() {
        assert_eq!(window_of("10 per 10s sliding-window"), "10s");
        assert_eq!(window_of("10 per 10s"), "10s");
    }
}
