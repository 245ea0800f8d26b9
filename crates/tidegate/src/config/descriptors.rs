//! `descriptors` in conditions: a mapping of names to values, or a list of entries.

use std::ops::Range;

use super::policies::{fail_value, read_condition};
use super::reader::{Located, Reader, join, shown};
use super::yaml::{Name, Value};
use crate::policy::{Condition, ConditionErrorKind, DescriptorEntry, MAX_ENTRIES};

/// What to write where descriptors must stand.
const HELP: &str = "write `{ remote_address: \"*\" }` for one that is there, or a list such as \
                    `[{ generic_key: api }, remote_address]` for exactly these in this order";

/// A condition, and where its name stands; `None` if it was wrong.
pub(super) type Read = Option<(Condition, Range<usize>)>;

/// Every condition that `descriptors` stands for.
pub(super) fn read_descriptors(reader: &Reader<'_>, name: &Name, located: &Located) -> Vec<Read> {
    match &located.node.value {
        Value::Map(entries) => {
            let read = entries.iter().map(|(descriptor, node)| {
                let inner =
                    Located { node: node.clone(), path: join(&located.path, &descriptor.text) };
                let request_field = format!("descriptor:{}", descriptor.text);
                read_condition(reader, &request_field, descriptor, &inner)
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

fn read_entries(reader: &Reader<'_>, name: &Name, located: &Located) -> Read {
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

/// `remote_address`, or `{ generic_key: api }`.
fn read_entry(reader: &Reader<'_>, located: &Located) -> Option<DescriptorEntry> {
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
    let inner = Located { node: node.clone(), path: join(&located.path, &name.text) };
    let items = reader.one_or_list(&inner);
    let texts: Vec<&str> = items.iter().filter_map(|item| reader.any_text(item)).collect();
    if texts.len() < items.len() {
        return None;
    }
    let entry = DescriptorEntry::new(&name.text, &texts);
    let fail = |kind| match kind {
        ConditionErrorKind::EntryName => {
            let message = format!("`{}`: {}", shown(&name.text), kind.problem());
            reader.fail_at(name.span.clone(), &located.path, message, kind.help());
        }
        kind => fail_value(reader, &inner, &shown(&texts.join(", ")), &kind),
    };
    entry.map_err(fail).ok()
}
