//! Reads the conditions of `match`, `when` and `exempt`, including descriptors.

use std::ops::Range;
use std::rc::Rc;

use super::policies::meant_request_field;
use super::reader::{LocatedNode, Reader, excerpt, join};
use super::suggestions::{closest, misplaced};
use super::warnings::{check_exact_value, check_method, check_pattern};
use super::yaml::{Name, Node, Value};
use crate::policy::{
    Condition, ConditionError, ConditionErrorKind, Conditions, DescriptorEntry, MAX_ENTRIES,
    PatternError, RequestField, RequestFieldError,
};

/// Conditions, and the position of each one's name.
#[derive(Default)]
pub(super) struct ReadConditions {
    pub(super) conditions: Conditions,
    pub(super) spans: Vec<Range<usize>>,
    /// Whether an invalid condition was left out, so that the list is incomplete.
    pub(super) is_partial: bool,
}

/// The help for a value that is not a mapping of conditions.
const CONDITIONS_HELP: &str = "write for example `{ path: /login }`";

/// Creates a condition from a field and its values.
type NewCondition = fn(RequestField, &[&str]) -> Result<Condition, ConditionError>;

/// Reads the conditions of `match` or `when`.
pub(super) fn read_conditions(reader: &Reader<'_>, located: &LocatedNode) -> ReadConditions {
    let Some(entries) = reader.map(located, CONDITIONS_HELP) else {
        return ReadConditions { is_partial: true, ..ReadConditions::default() };
    };
    read_each_condition(reader, located, entries, |field, values| Condition::new(field, values))
}

fn read_each_condition(
    reader: &Reader<'_>,
    located: &LocatedNode,
    entries: &[(Name, Rc<Node>)],
    new: NewCondition,
) -> ReadConditions {
    let mut read = Vec::new();
    let mut expected = 0;
    for (name, node) in entries {
        let inner = LocatedNode { node: node.clone(), path: join(&located.path, &name.text) };
        if name.text == "headers" {
            let Some(headers) = reader.map(&inner, "write for example `{ x-org: acme }`") else {
                expected += 1;
                continue;
            };
            for (header, node) in headers {
                expected += 1;
                let located =
                    LocatedNode { node: node.clone(), path: join(&inner.path, &header.text) };
                let request_field = format!("header:{}", header.text);
                read.extend(read_condition(reader, &request_field, (header, &located), new));
            }
        } else if name.text == "descriptors" {
            let all = read_descriptors(reader, (name, &inner), new);
            expected += all.len();
            read.extend(all.into_iter().flatten());
        } else {
            expected += 1;
            let request_field = if name.text == "methods" { "method" } else { &name.text };
            let is_unknown =
                request_field.parse::<RequestField>() == Err(RequestFieldError::Unknown);
            match &node.value {
                Value::Map(inside) if !is_unknown => {
                    fail_mapping(reader, name, inside, &inner.path);
                }
                _ => read.extend(read_condition(reader, request_field, (name, &inner), new)),
            }
        }
    }
    let is_partial = read.len() < expected;
    let spans = read.iter().map(|(_, span)| span.clone()).collect();
    let conditions = read.into_iter().map(|(condition, _)| condition).collect();
    ReadConditions { conditions, spans, is_partial }
}

fn read_condition(
    reader: &Reader<'_>,
    request_field: &str,
    (name, located): (&Name, &LocatedNode),
    new: NewCondition,
) -> Option<(Condition, Range<usize>)> {
    if !reader.check_quotes(&name.text, &name.span, &located.path) {
        return None;
    }
    let request_field = match request_field.parse::<RequestField>() {
        Ok(request_field) => request_field,
        // The value may be that of a field of the policy, so it is not checked.
        Err(error) => {
            fail_request_field(reader, error, name, &located.path);
            return None;
        }
    };
    let items = reader.one_or_list(located);
    let texts: Vec<&str> = items.iter().filter_map(|item| reader.any_text(item)).collect();
    if texts.len() < items.len() {
        return None;
    }
    // Values are checked one by one first, so that every invalid one is reported.
    let each = items.iter().zip(&texts);
    let wrong = each.filter(|(item, text)| {
        let error = new(request_field.clone(), &[**text]).err();
        error.map(|error| fail_value(reader, item, text, &error.kind)).is_some()
    });
    if wrong.count() > 0 {
        return None;
    }
    for (item, text) in items.iter().zip(&texts) {
        match &request_field {
            RequestField::Path | RequestField::Host => check_pattern(reader, item, text),
            RequestField::Method => check_method(reader, item, text),
            // Media ranges such as `*/*` are ordinary values.
            RequestField::Header(name) if name.as_str().starts_with("accept") => {}
            RequestField::Header(_) | RequestField::Query(_) | RequestField::Cookie(_) => {
                check_exact_value(reader, item, text);
            }
            _ => {}
        }
    }
    match new(request_field, &texts) {
        Ok(condition) => Some((condition, name.span.clone())),
        Err(error) => {
            fail_value(reader, items.get(error.index).unwrap_or(located), "", &error.kind);
            None
        }
    }
}

/// Reports a condition whose value is a mapping, such as `header: { x-org: acme }`.
fn fail_mapping(reader: &Reader<'_>, name: &Name, inside: &[(Name, Rc<Node>)], path: &str) {
    let first = inside.first().map_or("NAME", |(name, _)| &*name.text);
    let field = excerpt(&name.text);
    let help = match &*name.text {
        "header" => "write `headers`".into(),
        "descriptor" => "write `descriptors`".into(),
        "query" | "cookie" => format!("write `\"{field}:{}\"` before the value", excerpt(first)),
        _ => "write one value, or a list such as `[a, b]`".into(),
    };
    reader.fail_at(name.span.clone(), path, format!("`{field}` cannot be a mapping"), help);
}

fn fail_value(reader: &Reader<'_>, located: &LocatedNode, text: &str, kind: &ConditionErrorKind) {
    let message = match text {
        "" => kind.problem(),
        text => format!("`{}`: {}", excerpt(text), kind.problem()),
    };
    let help = match kind {
        ConditionErrorKind::Pattern(PatternError::NotRooted) if text.starts_with('^') => {
            "paths are globs, not regular expressions: write for example `/v1/**`".into()
        }
        ConditionErrorKind::Pattern(PatternError::NotRooted) if text.contains("://") => {
            "write the path alone, and the host as a condition `host`".into()
        }
        _ => kind.help(),
    };
    reader.fail(located, message, help);
}

fn fail_request_field(reader: &Reader<'_>, error: RequestFieldError, name: &Name, path: &str) {
    let meant = match (error, &*name.text) {
        (RequestFieldError::NoName, text) => Some(format!("{}:NAME", text.trim_end_matches(':'))),
        (RequestFieldError::Unknown, text)
            if closest(text, ["methods", "headers"].into_iter()).is_some() =>
        {
            closest(text, ["methods", "headers"].into_iter()).map(str::to_owned)
        }
        (_, text) => meant_request_field(text),
    };
    let within = path.strip_suffix(&*name.text).unwrap_or_default().trim_end_matches('.');
    let help = misplaced(&name.text, within)
        .or_else(|| meant.map(|request_field| format!("did you mean `{request_field}`?")))
        .unwrap_or_else(|| error.help().into());
    let message = format!("`{}`: {}", excerpt(&name.text), error.problem());
    reader.fail_at(name.span.clone(), path, message, help);
}

pub(super) fn read_exempt(reader: &Reader<'_>, located: &LocatedNode) -> Conditions {
    let help = "write for example `exempt: { client_ip: [10.0.0.0/8] }`";
    let Some(entries) = reader.map(located, help) else { return Conditions::default() };
    if entries.is_empty() {
        let message = "`exempt` is empty, so no request is exempt";
        reader.fail(located, message, format!("{help}, or remove it"));
    }
    let new: NewCondition = |field, values| Condition::exempting(field, values);
    read_each_condition(reader, located, entries, new).conditions
}

/// The help for a value that is not a mapping or list of descriptors.
const HELP: &str = "write `{ remote_address: \"*\" }` for one that is there, or a list such as \
                    `[{ generic_key: api }, remote_address]` for exactly these in this order";

/// A condition, and the position of its name; `None` if it was invalid.
pub(super) type ReadCondition = Option<(Condition, Range<usize>)>;

/// Reads the conditions of `descriptors`: one per name of a mapping, or one for a list.
pub(super) fn read_descriptors(
    reader: &Reader<'_>,
    (name, located): (&Name, &LocatedNode),
    new: NewCondition,
) -> Vec<ReadCondition> {
    match &located.node.value {
        Value::Map(entries) => {
            let read = entries.iter().map(|(descriptor, node)| {
                let inner =
                    LocatedNode { node: node.clone(), path: join(&located.path, &descriptor.text) };
                let request_field = format!("descriptor:{}", descriptor.text);
                read_condition(reader, &request_field, (descriptor, &inner), new)
            });
            read.collect()
        }
        Value::List(_) => vec![read_entries(reader, name, located)],
        Value::Scalar(_) => {
            reader.fail(located, "`descriptors` must be a mapping or a list", HELP);
            vec![None]
        }
    }
}

fn read_entries(reader: &Reader<'_>, name: &Name, located: &LocatedNode) -> ReadCondition {
    let items = reader.list(located)?;
    if !(1..=MAX_ENTRIES).contains(&items.len()) {
        let message = format!("there are {} entries", items.len());
        reader.fail(located, message, format!("use 1 to {MAX_ENTRIES}, as the gateway sends them"));
        return None;
    }
    let entries: Vec<Option<DescriptorEntry>> =
        items.iter().map(|item| read_entry(reader, item)).collect();
    let entries: Option<Vec<DescriptorEntry>> = entries.into_iter().collect();
    Some((Condition::entries(entries?).ok()?, name.span.clone()))
}

/// Reads an entry such as `remote_address` or `{ generic_key: api }`.
fn read_entry(reader: &Reader<'_>, located: &LocatedNode) -> Option<DescriptorEntry> {
    let Value::Map(entries) = &located.node.value else {
        let name = reader.any_text(located)?;
        return DescriptorEntry::any(name)
            .map_err(|kind| fail_value(reader, located, name, &kind))
            .ok();
    };
    let [(name, node)] = &entries[..] else {
        let message = format!("an entry has one name, and here are {}", entries.len());
        reader.fail(located, message, "begin a new item for each name: `[{ a: x }, { b: y }]`");
        return None;
    };
    let inner = LocatedNode { node: node.clone(), path: join(&located.path, &name.text) };
    if !reader.check_quotes(&name.text, &name.span, &inner.path) {
        return None;
    }
    let items = reader.one_or_list(&inner);
    let texts: Vec<&str> = items.iter().filter_map(|item| reader.any_text(item)).collect();
    if texts.len() < items.len() {
        return None;
    }
    let entry = DescriptorEntry::new(&name.text, &texts);
    let fail = |kind| match kind {
        ConditionErrorKind::EntryName => {
            let message = format!("`{}`: {}", excerpt(&name.text), kind.problem());
            reader.fail_at(name.span.clone(), &located.path, message, kind.help());
        }
        kind => fail_value(reader, &inner, &excerpt(&texts.join(", ")), &kind),
    };
    entry.map_err(fail).ok()
}
