//! The result of a report in sentences, the most important first.

use super::summary::{AlgorithmSummary, LimitSummary, ProblemsSummary, Summary};
use super::text::{counted, grouped, window_of};
use crate::utc::Utc;

impl Summary {
    /// Returns what was found, as sentences. The first is about all requests.
    pub fn findings(&self) -> Vec<String> {
        let Some(run) = self.algorithms.get(self.main) else { return Vec::new() };
        let mut findings = vec![denied(run)];
        findings.extend(run.not_replayed.filter(|&count| count > 0).map(|count| {
            format!("Not replayed: {} under a concurrency limit.", counted(count, "request"))
        }));
        findings.extend(run.limits.iter().filter_map(observed_denials));
        findings.extend(self.largest_burst(run));
        // With a single key, the first sentence is about it.
        findings.extend(run.most_denied.first().filter(|_| run.keys > 1).map(|key| {
            let name = match &key.policy {
                Some(policy) => format!("{} under policy {policy}", key.key),
                None => key.key.clone(),
            };
            let [denied, events] = [key.denied, key.events].map(grouped);
            format!("The key {name} was denied most often: {denied} of {events} requests.")
        }));
        findings.extend(exactness(run));
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

    /// Returns which algorithms denied the fewest and the most requests.
    fn comparison(&self) -> Option<String> {
        let runs = || self.algorithms.iter();
        let fewest = runs().min_by_key(|run| run.denied)?;
        let most = runs().max_by_key(|run| run.denied)?;
        let count = self.algorithms.len();
        match count {
            1 => None,
            _ if fewest.denied == most.denied => {
                Some(format!("All {count} algorithms would have denied the same number."))
            }
            _ => Some(format!(
                "Of {count} algorithms, {} would have denied the fewest requests ({}) and {} the \
                 most ({}).",
                fewest.algorithm,
                grouped(fewest.denied),
                most.algorithm,
                grouped(most.denied)
            )),
        }
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
    findings
}

/// Formats a share as a percentage with one decimal.
fn share(part: u64, all: u64) -> String {
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
