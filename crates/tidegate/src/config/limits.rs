//! Reads limits, as text or as mappings.

use std::time::Duration;

use tidegate_core::{Algorithm, Limit, LimitError, LimitErrorKind, bounds};

use super::fields::{ALGORITHMS, CONCURRENT, RATE, UNLIMITED};
use super::reader::{LocatedNode, Object, Reader, closest, excerpt};
use super::yaml::Value;
use crate::policy::MAX_LIMITS;

/// Reads the limits of a policy; `None` if the list is empty or too long, a limit is invalid, or
/// two limits would share a count.
pub(super) fn read_limits(reader: &Reader<'_>, located: &LocatedNode) -> Option<Vec<Limit>> {
    let items = reader.one_or_list(located);
    if items.is_empty() {
        reader.fail(
            located,
            "a policy needs a limit",
            "write for example `limits: [\"100 per 1m\"]`",
        );
        return None;
    }
    if items.len() > MAX_LIMITS {
        let message = format!("there are {} limits, more than {MAX_LIMITS}", items.len());
        reader.fail(located, message, "keep the strictest for each window");
        return None;
    }
    let read: Vec<Option<Limit>> = items.iter().map(|item| read_limit(reader, item)).collect();
    for (second, limit) in read.iter().enumerate() {
        let Some(limit) = limit else { continue };
        let is_same = |other: &Option<Limit>| other.is_some_and(|other| other.id() == limit.id());
        if let Some(first) = read[..second].iter().position(is_same) {
            let (same, help) = match limit.algorithm() {
                Algorithm::Concurrency => ("are both concurrent", "keep the stricter one"),
                _ => (
                    "have the same algorithm and window",
                    "keep the stricter one, or give them different windows or algorithms",
                ),
            };
            let message =
                format!("this limit and limit {} {same}, so they would share one count", first + 1);
            reader.fail(&items[second], message, help);
            return None;
        }
    }
    read.into_iter().collect()
}

fn read_limit(reader: &Reader<'_>, located: &LocatedNode) -> Option<Limit> {
    if let Value::Map(entries) = &located.node.value {
        let is_concurrent =
            entries.iter().any(|(name, _)| name.text == "concurrent" || name.text == "lease");
        return match is_concurrent {
            true => read_concurrent(reader, &reader.object(located, CONCURRENT)?),
            false => read_rate(reader, &reader.object(located, RATE)?),
        };
    }
    if matches!(located.node.value, Value::List(_)) {
        let help = "write for example `5 per 1m` or `{ limit: 5, window: 1m }`";
        reader.fail(located, "a limit is a text or a mapping", help);
        return None;
    }
    let text = reader.any_text(located)?;
    if text == UNLIMITED {
        let help = "write `limits: unlimited`, or leave out this entry";
        reader.fail(located, "`unlimited` cannot be one limit of a list", help);
        return None;
    }
    match text.parse::<Limit>() {
        Ok(limit) => Some(limit),
        Err(error) => {
            fail_text(reader, located, text, &error);
            None
        }
    }
}

fn fail_text(reader: &Reader<'_>, located: &LocatedNode, text: &str, error: &LimitError) {
    let span = error.span().unwrap_or(0..text.len());
    let word = text.get(span.clone()).unwrap_or_default();
    let meant = match error.kind() {
        LimitErrorKind::UnknownWord => closest(word, ALGORITHMS.into_iter().chain(["burst"])),
        LimitErrorKind::ExpectedPer => closest(word, ["per", "concurrent"].into_iter()),
        _ => None,
    };
    let help =
        meant.map_or_else(|| error.help().to_owned(), |word| format!("did you mean `{word}`?"));
    let message = match word {
        "" => error.problem().to_owned(),
        word => format!("`{}`: {}", excerpt(word), error.problem()),
    };
    reader.fail_within(located, span, message, help);
}

fn read_rate(reader: &Reader<'_>, object: &Object<'_, '_>) -> Option<Limit> {
    let count = object.integer("limit", 0..=bounds::MAX_COUNT);
    let window = object.duration("window", window_range());
    let algorithm = match object.has("algorithm") {
        true => object.word("algorithm", &ALGORITHMS).and_then(Algorithm::from_name),
        false => Some(Algorithm::default()),
    };
    let burst = object.integer("burst", 1..=bounds::MAX_COUNT);
    let placed = |name: &'static str| {
        move |error: LimitError| {
            let located = object.get(name).unwrap_or_else(|| object.located().clone());
            reader.fail_at(object.name_span(name), &located.path, error.problem(), error.help());
        }
    };
    let mut limit = Limit::new(count?, window?, algorithm?).map_err(placed("window")).ok()?;
    if object.has("burst") {
        limit = limit.with_burst(burst?).map_err(placed("burst")).ok()?;
    }
    Some(limit)
}

fn read_concurrent(reader: &Reader<'_>, object: &Object<'_, '_>) -> Option<Limit> {
    let count = object.integer("concurrent", 0..=bounds::MAX_COUNT);
    let lease = match object.has("lease") {
        true => object.duration("lease", window_range()),
        false => Some(Duration::from_micros(bounds::DEFAULT_LEASE_US)),
    };
    let limit = Limit::concurrent(count?, lease?);
    limit.map_err(|error| reader.fail(object.located(), error.problem(), error.help())).ok()
}

fn window_range() -> std::ops::RangeInclusive<Duration> {
    Duration::from_micros(bounds::MIN_WINDOW_US)..=Duration::from_micros(bounds::MAX_WINDOW_US)
}
