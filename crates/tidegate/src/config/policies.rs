//! Reads the policies and their limits, which are texts or mappings.
//!
//! An invalid field is reported and replaced by a default, so that the rest of its policy can still
//! be checked. If anything was reported, the config is rejected.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use tidegate_core::{Algorithm, Limit, LimitError, LimitErrorKind, bounds};

use super::conditions::{ReadConditions, read_conditions, read_exempt};
use super::error::printable;
use super::reader::{LocatedNode, Object, Reader, excerpt, join};
use super::schema::{
    ALGORITHMS, CONCURRENT, LEASE, LEASE_AUTO, MODES, ON_STORE_FAILURE, OVERFLOW, OVERRIDE, POLICY,
    RATE, UNLIMITED,
};
use super::suggestions::closest;
use super::yaml::{Node, Value};
use super::{Config, warnings};
use crate::Overflow;
use crate::policy::{
    CostSource, FIELD_NAMES, MAX_LIMITS, MAX_OVERRIDES, MAX_POLICIES, MAX_REPLACED,
    MAX_TEMPLATE_FIELDS, Mode, OnStoreFailure, Override, Policy, PolicyError, RequestField,
    SHARED_KEY, Template, TemplateErrorKind,
};

/// Reads a list of policies.
pub(super) fn read_policies(reader: &Reader<'_>, located: &LocatedNode) -> Vec<Policy> {
    let Some(items) = reader.list(located) else { return Vec::new() };
    if items.is_empty() {
        let message = "there are no policies, so nothing would be limited";
        reader.fail(located, message, "write at least one; docs/config.md has examples");
    }
    if items.len() > MAX_POLICIES {
        let message = format!("there are {} policies, more than {MAX_POLICIES}", items.len());
        reader.fail(located, message, "use overrides for what differs by tenant");
        return Vec::new();
    }
    let mut names = HashMap::new();
    let read = items.iter().filter_map(|item| read_policy(reader, item, &mut names));
    let policies: Vec<Policy> = read.collect();
    // If a name is invalid, the names of replaced policies cannot be resolved.
    if !reader.has_errors() {
        items.iter().zip(&policies).for_each(|(item, policy)| {
            check_replaces(reader, item, policy, &names);
        });
        warnings::check_policies(reader, &items, &policies);
    }
    policies
}

/// Checks that the policies that a policy replaces exist, and that it does not replace itself.
fn check_replaces(
    reader: &Reader<'_>,
    located: &LocatedNode,
    policy: &Policy,
    names: &HashMap<String, usize>,
) {
    let Some(located) = reader.object(located, POLICY).and_then(|object| object.get("replaces"))
    else {
        return;
    };
    for (item, name) in reader.one_or_list(&located).iter().zip(policy.replaces()) {
        let name = &**name;
        if name == policy.name() {
            reader.fail(item, "a policy cannot replace itself", "name another, or remove it");
        } else if !names.contains_key(name) {
            let help = match closest(name, names.keys().map(String::as_str)) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => "name a policy of this file".into(),
            };
            reader.fail(item, format!("there is no policy `{}`", excerpt(name)), help);
        }
    }
}

fn read_policy(
    reader: &Reader<'_>,
    located: &LocatedNode,
    names: &mut HashMap<String, usize>,
) -> Option<Policy> {
    let object = reader.object(located, POLICY)?;
    let name = read_name(reader, &object, names);
    let key = object.get("key").and_then(|located| read_template(reader, &located));
    let limits = object.get("limits").and_then(|located| match is_unlimited(&located) {
        true => Some(Vec::new()),
        false => read_limits(reader, &located),
    });
    let matching = object.get("match").map(|located| read_conditions(reader, &located));
    let exempt = object.get("exempt").map(|located| read_exempt(reader, &located));
    // This policy is used in place of an invalid one, so that its overrides can be checked.
    let mut policy = Config::default_policy();
    if let (Some(name), Some(key), Some(limits)) = (name, key, limits) {
        policy = match &limits[..] {
            [] => Policy::unlimited(&name, key).ok()?,
            _ => Policy::new(&name, key, limits).ok()?,
        };
    }
    policy = policy
        .with_match(matching.unwrap_or_default().conditions)
        .with_exempt(exempt.unwrap_or_default())
        .with_replaces(read_replaces(reader, &object))
        .with_mode(read_mode(&object).unwrap_or_default())
        .with_on_store_failure(read_on_store_failure(&object).unwrap_or_default())
        .with_deny_cache(read_flag(reader, &object, "deny_cache").unwrap_or(true))
        .with_lease(object.word("lease", &LEASE) == Some(LEASE_AUTO))
        .with_quota(read_flag(reader, &object, "quota").unwrap_or(false))
        .with_cost(read_cost(reader, &object).unwrap_or_default());
    if let Some(overflow) = read_overflow(&object) {
        policy = policy.with_overflow(overflow);
    }
    if let Some(located) = object.get("overrides") {
        policy = read_overrides(reader, &located, policy);
    }
    Some(policy)
}

fn read_name(
    reader: &Reader<'_>,
    object: &Object<'_, '_>,
    names: &mut HashMap<String, usize>,
) -> Option<String> {
    let located = object.get("name")?;
    let name = reader.text(&located)?;
    if !Policy::is_name(name) {
        let error = PolicyError::Name;
        reader.fail(
            &located,
            format!("`{}` cannot be a policy's name", excerpt(name)),
            error.help(),
        );
        return None;
    }
    if let Some(first) = names.get(name) {
        let message = format!("two policies are named `{name}`");
        let line = reader.line(*first);
        reader.fail(
            &located,
            message,
            format!("give one another name; the first is on line {line}"),
        );
        return None;
    }
    names.insert(name.to_owned(), located.node.span.start);
    Some(name.to_owned())
}

fn is_unlimited(located: &LocatedNode) -> bool {
    matches!(&located.node.value, Value::Scalar(scalar) if scalar.text == UNLIMITED)
}

fn read_replaces(reader: &Reader<'_>, object: &Object<'_, '_>) -> Vec<String> {
    let Some(located) = object.get("replaces") else { return Vec::new() };
    let items = reader.one_or_list(&located);
    if items.len() > MAX_REPLACED {
        let message = format!("there are {} names, more than {MAX_REPLACED}", items.len());
        reader.fail(&located, message, "name those that a request can meet together with this one");
        return Vec::new();
    }
    items.iter().filter_map(|item| reader.any_text(item)).map(str::to_owned).collect()
}

fn read_template(reader: &Reader<'_>, located: &LocatedNode) -> Option<Template> {
    if let Value::List(items) = &located.node.value {
        fail_list_of_templates(reader, located, items);
        return None;
    }
    let text = reader.template_text(located)?;
    match text.parse::<Template>() {
        Ok(template) => Some(template),
        Err(error) => {
            let word = text.get(error.span()).unwrap_or_default();
            let (message, meant) = match error.kind() {
                TemplateErrorKind::RequestField(_) => {
                    let meant = meant_request_field(word)
                        .map(|request_field| format!("did you mean `{request_field}`?"));
                    (format!("`{}`: {}", excerpt(word), error.problem()), meant)
                }
                TemplateErrorKind::NoField => {
                    let message = format!(
                        "`{}` is plain text: every request would share one count",
                        excerpt(text)
                    );
                    let meant = meant_template(text).map(|meant| {
                        format!(
                            "write `\"{meant}\"`, or `{SHARED_KEY}` to share one count on purpose"
                        )
                    });
                    (message, meant)
                }
                _ => (error.problem().to_owned(), None),
            };
            let help = meant.unwrap_or_else(|| error.help().into());
            reader.fail_within(located, error.span(), message, help);
            None
        }
    }
}

/// Reports a list such as `["{client_ip}", "{path}"]`, and suggests a template of its parts.
fn fail_list_of_templates(reader: &Reader<'_>, located: &LocatedNode, items: &[Rc<Node>]) {
    let text = |node: &Rc<Node>| match &node.value {
        Value::Scalar(scalar) => scalar.text.clone(),
        _ => String::new(),
    };
    let joined = items.iter().map(text).collect::<Vec<_>>().join(":");
    let help = match joined.parse::<Template>() {
        Ok(_) => format!("write one text: `\"{}\"`", excerpt(&joined)),
        Err(_) => "write one text, such as `\"{client_ip}:{path}\"`".into(),
    };
    reader.fail(located, "a key is one text, but this is a list", help);
}

/// Returns the template that was probably meant by one whose braces are missing or doubled, or
/// whose fields have the names of other systems.
pub(super) fn meant_template(text: &str) -> Option<String> {
    let inside = text.trim_matches(['{', '}', ' ']);
    let mut meant = match inside.contains(['{', '}']) {
        true => with_single_braces(text),
        false => format!("{{{inside}}}"),
    };
    // Each attempt corrects one field.
    for _ in 0..=MAX_TEMPLATE_FIELDS {
        let Err(error) = meant.parse::<Template>() else { return Some(meant) };
        let TemplateErrorKind::RequestField(_) = error.kind() else { return None };
        let request_field = meant_request_field(meant.get(error.span())?)?;
        meant.replace_range(error.span(), &request_field);
    }
    None
}

/// Replaces double braces, also with blanks inside, by single ones.
fn with_single_braces(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut single = words.join(" ");
    for (from, to) in [("{{", "{"), ("}}", "}"), ("{ ", "{"), (" }", "}")] {
        while single.contains(from) {
            single = single.replace(from, to);
        }
    }
    single
}

/// Returns the request field that was probably meant by an unknown word.
pub(super) fn meant_request_field(word: &str) -> Option<String> {
    if let Some(request_field) = RequestField::equivalent(word) {
        return Some(request_field.into());
    }
    // Header names in any case, such as `X-Api-Key`.
    if word.get(..2).is_some_and(|start| start.eq_ignore_ascii_case("x-")) {
        let header = format!("header:{}", word.to_ascii_lowercase());
        return header.parse::<RequestField>().is_ok().then_some(header);
    }
    if let Some(name) = word.strip_prefix("descriptors:") {
        return Some(format!("descriptor:{name}"))
            .filter(|one| one.parse::<RequestField>().is_ok());
    }
    let (kind, name) = match word.split_once([':', '.']) {
        Some((kind, name)) => (kind, Some(name)),
        None => (word, None),
    };
    if FIELD_NAMES.contains(&kind) && word[kind.len()..].starts_with(':') {
        return None;
    }
    let meant = closest(kind, FIELD_NAMES.into_iter())?;
    let request_field = name.map_or_else(|| meant.to_owned(), |name| format!("{meant}:{name}"));
    request_field.parse::<RequestField>().is_ok().then_some(request_field)
}

fn read_mode(object: &Object<'_, '_>) -> Option<Mode> {
    object.word("mode", &MODES)?.parse().ok()
}

fn read_on_store_failure(object: &Object<'_, '_>) -> Option<OnStoreFailure> {
    object.word("on_store_failure", &ON_STORE_FAILURE)?.parse().ok()
}

fn read_overflow(object: &Object<'_, '_>) -> Option<Overflow> {
    let name = object.word("overflow", &OVERFLOW)?;
    Overflow::ALL.into_iter().find(|overflow| overflow.name() == name)
}

fn read_flag(reader: &Reader<'_>, object: &Object<'_, '_>, name: &str) -> Option<bool> {
    object.get(name).and_then(|located| reader.boolean(&located))
}

fn read_cost(reader: &Reader<'_>, object: &Object<'_, '_>) -> Option<CostSource> {
    let located = object.get("cost")?;
    let text = reader.template_text(&located)?;
    if text.contains('{') {
        let template = read_template(reader, &located)?;
        return match CostSource::from_template(&template) {
            Ok(charge) => Some(charge),
            Err(error) => {
                reader.fail(&located, error.problem(), error.help());
                None
            }
        };
    }
    match text.parse().ok().filter(|units| *units <= bounds::MAX_COUNT) {
        Some(units) => Some(CostSource::Fixed(units)),
        None => {
            let message = format!("`{}` is not a cost", excerpt(text));
            let help = format!(
                "write a whole number from 0 to {}, or for example `\"{{header:x-cost}}\"`",
                bounds::MAX_COUNT
            );
            reader.fail(&located, message, help);
            None
        }
    }
}

fn read_overrides(reader: &Reader<'_>, located: &LocatedNode, mut policy: Policy) -> Policy {
    let Some(items) = reader.list(located) else { return policy };
    if items.len() > MAX_OVERRIDES {
        let message = format!("there are {} overrides, more than {MAX_OVERRIDES}", items.len());
        reader.fail(located, message, "have the gateway set a header that groups tenants by plan");
        return policy;
    }
    for item in &items {
        read_override(reader, item, &mut policy);
    }
    policy
}

fn read_override(reader: &Reader<'_>, located: &LocatedNode, policy: &mut Policy) {
    let Some(object) = reader.object(located, OVERRIDE) else { return };
    let nothing = ReadConditions { is_partial: true, ..ReadConditions::default() };
    let when = object.get("when").map_or(nothing, |located| read_conditions(reader, &located));
    let limits: Option<Option<Vec<Limit>>> = object.get("limits").map(|located| {
        if is_unlimited(&located) {
            reader.fail(
                &located,
                "an override cannot be unlimited",
                "write `mode: off` in its place",
            );
            return None;
        }
        read_limits(reader, &located)
    });
    let new = Override {
        when: when.conditions,
        limits: limits.clone().flatten(),
        mode: read_mode(&object),
        on_store_failure: read_on_store_failure(&object),
        cost: read_cost(reader, &object),
        overflow: read_overflow(&object),
    };
    // An invalid or unknown field was meant to replace something.
    let has_other_fields = matches!(&located.node.value, Value::Map(entries) if entries.len() > 1);
    // An override without its invalid conditions or limits would cause misleading errors.
    if when.is_partial || limits == Some(None) {
        return;
    }
    let Err(error) = policy.add_override(new) else { return };
    if error == PolicyError::ReplacesNothing && has_other_fields {
        return;
    }
    let (span, path) = match &error {
        PolicyError::NeverMatches { condition, .. } => {
            (when.spans.get(*condition).cloned(), join(&located.path, "when"))
        }
        PolicyError::NoCondition | PolicyError::Covered { .. } => {
            (None, join(&located.path, "when"))
        }
        _ => (None, located.path.clone()),
    };
    let span = span.unwrap_or_else(|| object.name_span("when"));
    reader.fail_at(span, &path, error.problem(), error.help());
}

/// Reads the limits of a policy; `None` if the list is empty or too long, a limit is invalid, or
/// two limits would share a count.
fn read_limits(reader: &Reader<'_>, located: &LocatedNode) -> Option<Vec<Limit>> {
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
            fail_limit_text(reader, located, text, &error);
            None
        }
    }
}

/// Returns limits that are separated by commas or semicolons as a list.
fn as_list(text: &str) -> Option<String> {
    let limits: Vec<&str> = text.split([',', ';']).map(str::trim).collect();
    let are_limits = (2..=MAX_LIMITS).contains(&limits.len())
        && limits.iter().all(|limit| limit.parse::<Limit>().is_ok());
    are_limits.then(|| format!("[\"{}\"]", printable(&limits.join("\", \""))))
}

fn fail_limit_text(reader: &Reader<'_>, located: &LocatedNode, text: &str, error: &LimitError) {
    if let Some(list) = as_list(text) {
        let help = format!("write each one as an item of a list: `{list}`");
        reader.fail(located, "this text has several limits", help);
        return;
    }
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
            let help = match error.kind() {
                LimitErrorKind::BurstWithoutTokens => {
                    "write `algorithm: token-bucket`, or leave `burst` out"
                }
                _ => error.help(),
            };
            reader.fail_at(object.name_span(name), &located.path, error.problem(), help);
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
