//! `descriptors` in conditions: a mapping of names to values, or a list of entries.

use std::ops::Range;

use super::policies::{fail_value, read_condition};
use super::reader::{Reader, Spot, join, shown};
use super::yaml::{Name, Value};
use crate::policy::{Condition, ConditionErrorKind, Entry, MAX_ENTRIES};

/// What to write where descriptors must stand.
const HELP: &str = "write `{ remote_address: \"*\" }` for one that is there, or a list such as \
                    `[{ generic_key: api }, remote_address]` for exactly these in this order";

/// A condition, and where its name stands; `None` if it was wrong.
pub(super) type Read = Option<(Condition, Range<usize>)>;

/// Every condition that `descriptors` stands for.
pub(super) fn read_descriptors(reader: &Reader<'_>, name: &Name, spot: &Spot) -> Vec<Read> {
    match &spot.node.value {
        Value::Map(entries) => {
            let read = entries.iter().map(|(descriptor, node)| {
                let inner = Spot { node: node.clone(), path: join(&spot.path, &descriptor.text) };
                let part = format!("descriptor:{}", descriptor.text);
                read_condition(reader, &part, descriptor, &inner)
            });
            read.collect()
        }
        Value::List(_) => vec![read_entries(reader, name, spot)],
        Value::Scalar(_) => {
            reader.fail(spot, "`descriptors` must be a mapping or a list", HELP);
            vec![None]
        }
    }
}

fn read_entries(reader: &Reader<'_>, name: &Name, spot: &Spot) -> Read {
    let items = reader.list(spot)?;
    if !(1..=MAX_ENTRIES).contains(&items.len()) {
        let message = format!("there are {} entries", items.len());
        reader.fail(spot, message, format!("use 1 to {MAX_ENTRIES}, as the gateway sends them"));
        return None;
    }
    let entries: Vec<Option<Entry>> = items.iter().map(|item| read_entry(reader, item)).collect();
    let entries: Option<Vec<Entry>> = entries.into_iter().collect();
    Some((Condition::entries(entries?).ok()?, name.span.clone()))
}

/// `remote_address`, or `{ generic_key: api }`.
fn read_entry(reader: &Reader<'_>, spot: &Spot) -> Option<Entry> {
    let Value::Map(entries) = &spot.node.value else {
        let name = reader.any_text(spot)?;
        return Entry::any(name).map_err(|kind| fail_value(reader, spot, name, &kind)).ok();
    };
    let [(name, node)] = &entries[..] else {
        let message = format!("an entry has one name, and here are {}", entries.len());
        reader.fail(spot, message, "begin a new item for each name: `[{ a: x }, { b: y }]`");
        return None;
    };
    let inner = Spot { node: node.clone(), path: join(&spot.path, &name.text) };
    let items = reader.one_or_list(&inner);
    let texts: Vec<&str> = items.iter().filter_map(|item| reader.any_text(item)).collect();
    if texts.len() < items.len() {
        return None;
    }
    let entry = Entry::new(&name.text, &texts);
    let fail = |kind| match kind {
        ConditionErrorKind::EntryName => {
            let message = format!("`{}`: {}", shown(&name.text), kind.problem());
            reader.fail_at(name.span.clone(), &spot.path, message, kind.help());
        }
        kind => fail_value(reader, &inner, &shown(&texts.join(", ")), &kind),
    };
    entry.map_err(fail).ok()
}
