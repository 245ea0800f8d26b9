//! The result of a report in sentences, the most important first.

use serde::Serialize;
use tidegate::Algorithm;

use super::summary::{AlgorithmSummary, KeySummary, LimitSummary, ProblemsSummary, Summary};
use super::text::{counted, grouped, window_of};
use crate::utc::Utc;

/// How many more or fewer requests an algorithm admitted than the exact log. Attempts that are
/// denied wrongly are far more where clients try again while capacity returns late.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct NetDifference {
    /// For a row about the algorithm: `137 fewer (0.8 %)`.
    pub short: String,
    /// `137 fewer admitted than sliding-log, 0.8 %`.
    pub phrase: String,
}

impl AlgorithmSummary {
    pub fn is_sliding_log(&self) -> bool {
        self.algorithm == Algorithm::SlidingLog.name()
    }

    /// Returns the difference from the exact log, if that was run. The share is that of the
    /// requests which the exact log admitted.
    pub fn net_difference(&self) -> Option<NetDifference> {
        let exact = self.sliding_log_admitted.filter(|_| !self.is_sliding_log())?;
        let difference = self.admitted.abs_diff(exact);
        if difference == 0 {
            let phrase = "as many admitted as sliding-log".into();
            return Some(NetDifference { short: "as many".into(), phrase });
        }
        let word = if self.admitted < exact { "fewer" } else { "more" };
        let share = (exact > 0).then(|| share(difference, exact));
        let [in_brackets, after_comma] = match share {
            Some(share) => [format!(" ({share})"), format!(", {share}")],
            None => [String::new(), String::new()],
        };
        let difference = grouped(difference);
        Some(NetDifference {
            short: format!("{difference} {word}{in_brackets}"),
            phrase: format!("{difference} {word} admitted than sliding-log{after_comma}"),
        })
    }
}

impl Summary {
    /// Returns what was found, as sentences. The first is about all requests.
    pub fn findings(&self) -> Vec<String> {
        let Some(run) = self.algorithms.get(self.main) else { return Vec::new() };
        let mut findings = vec![denied(run)];
        findings.extend(run.not_replayed.filter(|&count| count > 0).map(|count| {
            format!("Not replayed: {} under a concurrency limit.", counted(count, "request"))
        }));
        findings.extend(run.limits.iter().filter_map(observed_denials));
        // The largest burst, and whether decisions were right, depend on the order of the events.
        findings.extend(self.disorder.as_ref().map(|hint| format!("{hint}.")));
        findings.extend(self.largest_burst(run).filter(|_| self.disorder.is_none()));
        // With a single key, the first sentence is about it.
        findings.extend(most_denied(&run.most_denied, run.keys_denied).filter(|_| run.keys > 1));
        if self.disorder.is_none() {
            findings.extend(exactness(run));
        }
        findings.extend(self.comparison());
        findings.extend(self.different_requests());
        findings.extend(self.input_problems());
        findings
    }

    fn largest_burst(&self, run: &AlgorithmSummary) -> Option<String> {
        let burst = self.burst.as_ref()?;
        let limit = run.limits.first()?;
        let [count, most] = [burst.count, limit.count].map(grouped);
        let (window, at) = (window_of(&limit.limit), Utc { time_us: burst.at_us });
        Some(format!(
            "The largest burst was {count} within {window}, by the key {}, ending at {at}; the limit is {most}.",
            burst.key
        ))
    }

    fn comparison(&self) -> Option<String> {
        let denied: Vec<(&str, u64)> =
            self.algorithms.iter().map(|run| (run.algorithm.as_str(), run.denied)).collect();
        compare(&denied)
    }

    fn different_requests(&self) -> Option<String> {
        let events = || self.algorithms.iter().map(|run| run.events);
        let [fewest, most] = [events().min()?, events().max()?].map(grouped);
        self.has_different_requests().then(|| {
            format!(
                "Clients react to denials, so each algorithm received different requests: from \
                 {fewest} to {most}."
            )
        })
    }

    fn input_problems(&self) -> Option<String> {
        let kinds: [(&ProblemsSummary, &str, &str); 3] = [
            (&self.skipped, "skipped line", ""),
            (&self.out_of_order, "event", " out of order"),
            (&self.damaged, "damaged file", ""),
        ];
        let found = kinds.iter().filter(|(problems, ..)| problems.count > 0);
        let found: Vec<String> =
            found.map(|(problems, noun, rest)| counted(problems.count, noun) + rest).collect();
        (!found.is_empty()).then(|| format!("The input has {}.", found.join(", ")))
    }
}

fn denied(run: &AlgorithmSummary) -> String {
    let subject = match run.algorithm.as_str() {
        "policies" => "The policies",
        "mixed" => "The limits",
        name => name,
    };
    let decided = run.admitted + run.denied;
    let (events, keys) = (grouped(decided), counted(run.keys, "key"));
    match (run.denied, decided) {
        (0, 0) => return "No request was replayed.".into(),
        (0, 1) => return format!("{subject} would have admitted the only request."),
        (0, _) => return format!("{subject} would have admitted all {events} requests."),
        _ => {}
    }
    let [denied, keys_denied] = [run.denied, run.keys_denied].map(grouped);
    let share = share(run.denied, decided);
    format!(
        "{subject} would have denied {share} of requests: {denied} of {events}, from {keys_denied} \
         of {keys}."
    )
}

/// Returns which key was denied most often, and whether others were denied as often. `keys` are the
/// listed ones of all `keys_denied`, in descending order.
fn most_denied(keys: &[KeySummary], keys_denied: u64) -> Option<String> {
    let first = keys.first()?;
    let name = match &first.policy {
        Some(policy) => format!("{} under policy {policy}", first.key),
        None => first.key.clone(),
    };
    let [denied, events] = [first.denied, first.events].map(grouped);
    let equal = keys.iter().take_while(|key| key.denied == first.denied).count();
    // Keys that are not listed may have been denied as often as the last one that is.
    let is_open = equal == keys.len() && keys_denied > keys.len() as u64;
    let others = counted(equal as u64 - 1, "other key");
    Some(match (equal, is_open) {
        (1, false) => {
            format!("The key {name} was denied most often: {denied} of {events} requests.")
        }
        (1, true) => {
            format!("No key was denied more often than {name}: {denied} of {events} requests.")
        }
        (_, false) => format!(
            "The key {name} was denied {denied} of {events} requests; {others} had as many denials, \
             and none had more."
        ),
        (_, true) => format!(
            "The key {name} was denied {denied} of {events} requests; at least {others} had as many \
             denials, and none had more."
        ),
    })
}

/// Returns which algorithms denied the fewest and the most requests.
fn compare(denied: &[(&str, u64)]) -> Option<String> {
    let counts = || denied.iter().map(|&(_, count)| count);
    let (fewest, most) = (counts().min()?, counts().max()?);
    let all = denied.len();
    if all == 1 {
        return None;
    }
    if fewest == most {
        return Some(format!("All {all} algorithms would have denied the same number."));
    }
    let with = |count| {
        let equal = denied.iter().filter(|&&(_, other)| other == count);
        listed(&equal.map(|&(name, _)| name).collect::<Vec<_>>())
    };
    Some(format!(
        "Of {all} algorithms, {} would have denied the fewest requests ({}), and {} the most ({}).",
        with(fewest),
        grouped(fewest),
        with(most),
        grouped(most)
    ))
}

/// Formats names as `a`, `a and b`, or `a, b and c`.
fn listed(names: &[&str]) -> String {
    match names {
        [rest @ .., last] if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

/// Returns what a limit of an observed policy would have denied.
fn observed_denials(limit: &LimitSummary) -> Option<String> {
    let denied = limit.denied.filter(|&denied| denied > 0 && limit.mode == Some("observe"))?;
    let (policy, [denied, checked]) = (limit.policy.as_ref()?, [denied, limit.asked?].map(grouped));
    Some(format!(
        "The policy {policy} is only observed; its limit {} would have denied {denied} of {checked} \
         requests.",
        limit.limit
    ))
}

/// Returns whether decisions agree with the count that is kept separately from the limiter.
fn exactness(run: &AlgorithmSummary) -> Vec<String> {
    let excess = |limit: &&LimitSummary| limit.largest_rolling_count.saturating_sub(limit.count);
    let worst = run.limits.iter().max_by_key(excess).filter(|limit| excess(limit) > 0);
    let mut findings = Vec::new();
    if run.over_admitted == 0 && run.false_denials == 0 {
        return vec!["No request was admitted above the limit or denied wrongly.".into()];
    }
    if run.over_admitted > 0 {
        let largest = worst.map(|limit| {
            let [count, most] = [limit.largest_rolling_count, limit.count].map(grouped);
            let window = window_of(&limit.limit);
            format!("; one key had {count} within {window}, where the limit is {most}")
        });
        let over = grouped(run.over_admitted);
        let largest = largest.unwrap_or_default();
        findings.push(format!("Requests that were admitted above the limit: {over}{largest}."));
    }
    if run.false_denials > 0 {
        let wrongly = grouped(run.false_denials);
        findings.push(format!("Requests that were denied although they fitted: {wrongly}."));
    }
    findings.extend(run.net_difference().map(|net| format!("In total: {}.", net.phrase)));
    findings
}

/// Formats a share as a percentage with one decimal.
pub fn share(part: u64, all: u64) -> String {
    let permille = u128::from(part) * 2_000 / u128::from(all.max(1));
    match permille.div_ceil(2) {
        _ if permille < 1 => "less than 0.1 %".into(),
        1000 if part < all => "99.9 %".into(),
        1000 => "100 %".into(),
        tenths => format!("{}.{} %", tenths / 10, tenths % 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparison_names_all_tied_algorithms() {
        for (denied, text) in [
            (&[("a", 1)][..], None),
            (&[("a", 1), ("b", 1)], Some("All 2 algorithms would have denied the same number.")),
            (
                &[("a", 1_000), ("b", 2)],
                Some(
                    "Of 2 algorithms, b would have denied the fewest requests (2), and a the most \
                     (1,000).",
                ),
            ),
            (
                &[("a", 233), ("b", 0), ("c", 233), ("d", 0), ("e", 5), ("f", 0)],
                Some(
                    "Of 6 algorithms, b, d and f would have denied the fewest requests (0), and a \
                     and c the most (233).",
                ),
            ),
        ] {
            assert_eq!(compare(denied).as_deref(), text, "{denied:?}");
        }
    }

    #[test]
    fn most_denied_key_is_not_singled_out_from_equals() {
        let only = "The key k0 was denied most often: 2 of 3 requests.";
        let unknown = "No key was denied more often than k0: 2 of 3 requests.";
        let [one, two, many] = ["1 other key", "2 other keys", "at least 1 other key"].map(|rest| {
            format!(
                "The key k0 was denied 2 of 3 requests; {rest} had as many denials, and none had \
                 more."
            )
        });
        // The denials of the listed keys, the number of denied keys, and the sentence.
        for (denied, keys_denied, text) in [
            (&[2][..], 1, only),
            (&[2, 1], 2, only),
            (&[2, 1], 9, only),
            (&[2, 2, 1], 9, &*one),
            (&[2, 2, 2], 3, &*two),
            (&[2, 2], 3, &*many),
            (&[2], 2, unknown),
        ] {
            let key = |(index, &denied): (usize, &u64)| KeySummary {
                key: format!("k{index}"),
                policy: None,
                events: 3,
                denied,
                near_misses: 0,
            };
            let keys: Vec<KeySummary> = denied.iter().enumerate().map(key).collect();
            assert_eq!(most_denied(&keys, keys_denied).as_deref(), Some(text), "{denied:?}");
        }
    }

    #[test]
    fn net_difference_is_relative_to_the_exact_log() {
        let net = |admitted, exact| {
            let run = AlgorithmSummary {
                algorithm: "sliding-window".into(),
                admitted,
                sliding_log_admitted: exact,
                ..AlgorithmSummary::default()
            };
            run.net_difference().map(|net| [net.short, net.phrase].join("; "))
        };
        for (admitted, exact, text) in [
            (5, None, None),
            (5, Some(5), Some("as many; as many admitted as sliding-log")),
            (
                16_037,
                Some(16_174),
                Some("137 fewer (0.8 %); 137 fewer admitted than sliding-log, 0.8 %"),
            ),
            (3, Some(2), Some("1 more (50.0 %); 1 more admitted than sliding-log, 50.0 %")),
            (3, Some(0), Some("3 more; 3 more admitted than sliding-log")),
        ] {
            assert_eq!(net(admitted, exact).as_deref(), text);
        }
    }

    #[test]
    fn shares_are_rounded_but_never_to_zero_or_all() {
        for (part, all, text) in [
            (12, 1_000, "1.2 %"),
            (1, 3, "33.3 %"),
            (2, 3, "66.7 %"),
            (1, 1_000_000, "less than 0.1 %"),
            (999_999, 1_000_000, "99.9 %"),
            (5, 5, "100 %"),
            (u64::MAX, u64::MAX, "100 %"),
        ] {
            assert_eq!(share(part, all), text);
        }
    }
}
