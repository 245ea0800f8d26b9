//! Reads the files into domains and trees of descriptors.
//!
//! Everything that envoyproxy/ratelimit rejects is rejected here, with its position. So is
//! everything that would have another meaning in tidegate. Fields that envoyproxy/ratelimit reads
//! and ignores are reported as notices.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use super::super::reader::{Located, Reader, closest, excerpt, join, suggest};
use super::super::yaml::{Name, Node, Value};
use crate::policy::MAX_ENTRIES;

/// One domain, with the descriptors of all its files.
pub(super) struct Domain {
    pub(super) name: String,
    pub(super) nodes: Vec<Descriptor>,
}

/// One descriptor of the tree.
pub(super) struct Descriptor {
    pub(super) key: String,
    pub(super) value: ValueMatch,
    pub(super) rate: Option<Rate>,
    pub(super) shadow: bool,
    pub(super) quota: bool,
    /// Whether all values of a wildcard share one count.
    pub(super) share: bool,
    pub(super) children: Vec<Descriptor>,
    pub(super) at: Location,
}

/// The values that an entry may have.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum ValueMatch {
    Any,
    Exact(String),
    /// A text with `*`.
    Wild(String),
}

/// The contents of `rate_limit`.
pub(super) struct Rate {
    /// The number of requests and the unit; `None` for `unlimited`.
    pub(super) limit: Option<(u64, Unit)>,
    pub(super) name: Option<String>,
    pub(super) replaces: Vec<(String, Location)>,
}

/// A unit of time: its name, and the window in tidegate's notation.
pub(super) type Unit = (&'static str, &'static str);

/// A position in a file.
#[derive(Clone)]
pub(super) struct Location {
    pub(super) file: usize,
    pub(super) span: Range<usize>,
    pub(super) path: String,
}

/// The units of time. Months have 30 days and years 365, as in envoyproxy/ratelimit.
const UNITS: [Unit; 7] = [
    ("second", "1s"),
    ("minute", "1m"),
    ("hour", "1h"),
    ("day", "1d"),
    ("week", "1w"),
    ("month", "30d"),
    ("year", "365d"),
];

const ROOT: &[&str] = &["domain", "descriptors"];
const DESCRIPTOR: &[&str] = &[
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "share_threshold",
    "detailed_metric",
    "value_to_metric",
    "metadata",
];
const RATE_LIMIT: &[&str] = &["unit", "requests_per_unit", "unlimited", "name", "replaces"];
const REPLACES: &[&str] = &["name"];

/// The largest number of requests per unit: 32 bits, as in envoyproxy/ratelimit.
const MAX_REQUESTS: u64 = u32::MAX as u64;

/// Reads the domains of all files, in their order.
pub(super) fn read(
    readers: &[Reader<'_>],
    trees: &[Option<Rc<Node>>],
    merge_domains: bool,
) -> Vec<Domain> {
    let mut domains: Vec<Domain> = Vec::new();
    for (file, (reader, tree)) in readers.iter().zip(trees).enumerate() {
        if reader.has_errors() {
            continue;
        }
        let Some(root) = tree else {
            reader.fail_at(0..0, "", "the file is empty", "write at least `domain: NAME`");
            continue;
        };
        let located = Located { node: Rc::clone(root), path: String::new() };
        let Some((name, at, nodes)) = (FileReader { reader, file }).root(&located) else {
            continue;
        };
        match domains.iter_mut().find(|domain| domain.name == name) {
            None => domains.push(Domain { name, nodes }),
            Some(domain) if merge_domains => {
                domain.nodes.extend(nodes);
                // Duplicates within one file were reported when it was read.
                let is_new =
                    |first: &Location, second: &Location| second.file == file && first.file != file;
                report_duplicates(reader, &domain.nodes, is_new);
            }
            Some(_) => {
                let message = format!("another file has the domain `{}` too", excerpt(&name));
                let help = "put both in one file, or allow it with --merge-domains";
                reader.fail_at(at.span, &at.path, message, help);
            }
        }
    }
    domains
}

/// Reads one file.
struct FileReader<'r, 's> {
    reader: &'r Reader<'s>,
    file: usize,
}

/// The fields of a mapping.
struct Fields(Vec<(Name, Located)>);

impl Fields {
    fn get(&self, name: &str) -> Option<&Located> {
        self.0.iter().find(|(key, _)| key.text == name).map(|(_, located)| located)
    }

    fn name_span(&self, name: &str) -> Option<Range<usize>> {
        self.0.iter().find(|(key, _)| key.text == name).map(|(key, _)| key.span.clone())
    }
}

impl FileReader<'_, '_> {
    fn at(&self, located: &Located) -> Location {
        Location { file: self.file, span: located.node.span.clone(), path: located.path.clone() }
    }

    fn root(&self, located: &Located) -> Option<(String, Location, Vec<Descriptor>)> {
        let fields = self.fields(located, ROOT)?;
        let nodes = self.descriptors(fields.get("descriptors"));
        let Some(domain) = fields.get("domain") else {
            let is_meant = |name: &Name| closest(&name.text, ["domain"].into_iter()).is_some();
            if fields.0.iter().any(|(name, _)| name.text != "domain" && is_meant(name)) {
                return None;
            }
            let span = self.reader.start_of(located);
            self.reader.fail_at(span, "domain", "there is no `domain`", "write `domain: NAME`");
            return None;
        };
        let name = self.reader.any_text(domain)?;
        if name.is_empty() || name.contains('*') {
            let (message, help) = match name {
                "" => ("the domain is empty", "write the `domain` of Envoy's filter"),
                _ => ("a domain with `*` in it", "tidegate would match others by it: rename it"),
            };
            self.reader.fail(domain, message, help);
            return None;
        }
        Some((name.to_owned(), self.at(domain), nodes))
    }

    /// Reads the fields of a mapping that have a value, with merge keys resolved.
    fn fields(&self, located: &Located, known: &[&'static str]) -> Option<Fields> {
        self.reader.map(located, "write fields as `name: value`, one per line")?;
        let mut entries = Vec::new();
        self.gather(located, &mut entries);
        for (name, inner) in &entries {
            let name_of = name.text.as_str();
            if known.contains(&name_of) {
                continue;
            }
            let places = [ROOT, DESCRIPTOR, RATE_LIMIT, REPLACES];
            if places.iter().any(|place| place.contains(&name_of)) {
                let message = format!("`{name_of}` does nothing here, as in envoyproxy/ratelimit");
                let help = format!("fields here are {}", known.join(", "));
                self.reader.notice(name.span.clone(), &inner.path, message, help);
            } else {
                let message = format!("unknown field `{}`", excerpt(name_of));
                let help = suggest(name_of, known.iter().copied());
                self.reader.fail_at(name.span.clone(), &inner.path, message, help);
            }
        }
        entries.retain(|(_, inner)| !inner.node.is_null());
        Some(Fields(entries))
    }

    /// Collects the entries of a mapping, then those that it merges and does not have itself.
    fn gather(&self, located: &Located, entries: &mut Vec<(Name, Located)>) {
        let Value::Map(own) = &located.node.value else {
            let help = "write `<<: *anchor` of a mapping";
            self.reader.fail(located, "only mappings can be merged", help);
            return;
        };
        let is_merge = |name: &Name| name.text == "<<";
        for (name, node) in own.iter().filter(|(name, _)| !is_merge(name)) {
            if !entries.iter().any(|(known, _)| known.text == name.text) {
                let inner =
                    Located { node: Rc::clone(node), path: join(&located.path, &name.text) };
                entries.push((name.clone(), inner));
            }
        }
        for (_, node) in own.iter().filter(|(name, _)| is_merge(name)) {
            let merged = Located { node: Rc::clone(node), path: located.path.clone() };
            for one in self.reader.one_or_list(&merged) {
                self.gather(&Located { path: located.path.clone(), ..one }, entries);
            }
        }
    }

    /// Reads a list of descriptors; empty if there is none.
    fn descriptors(&self, located: Option<&Located>) -> Vec<Descriptor> {
        let Some(items) = located.and_then(|located| self.reader.list(located)) else {
            return Vec::new();
        };
        let read: Vec<Descriptor> = items.iter().filter_map(|item| self.descriptor(item)).collect();
        report_duplicates(self.reader, &read, |_, _| true);
        read
    }

    fn descriptor(&self, located: &Located) -> Option<Descriptor> {
        let fields = self.fields(located, DESCRIPTOR)?;
        let key = self.key(located, &fields);
        let value = self.value(&fields);
        let rate = fields.get("rate_limit").map(|located| self.rate(located));
        let children = self.descriptors(fields.get("descriptors"));
        let flag = |name: &str| fields.get(name).is_some_and(|located| self.flag(located));
        let (shadow, quota) = (flag("shadow_mode"), flag("quota_mode"));
        let share = flag("share_threshold");
        let is_wild = matches!(value, Some(ValueMatch::Wild(_)));
        if let Some(place) = fields.get("share_threshold").filter(|_| share && !is_wild) {
            let help = "write `*` in its value, or remove `share_threshold`";
            self.reader.fail(place, "only the values of a wildcard can share a count", help);
        }
        if rate.is_none() && (shadow || quota) {
            let name = if shadow { "shadow_mode" } else { "quota_mode" };
            let message = format!("`{name}` does nothing without a `rate_limit` beside it");
            self.note(&fields, name, &message, "move it to the descriptor that has the limit");
        }
        self.note_unsupported(&fields);
        let at = Location {
            span: fields.name_span("key").unwrap_or_else(|| self.reader.start_of(located)),
            ..self.at(located)
        };
        let rate = rate.map_or(Some(None), |read| read.map(Some));
        let (key, value, rate) = (key?, value?, rate?);
        Some(Descriptor { key, value, rate, shadow, quota, share, children, at })
    }

    fn key(&self, located: &Located, fields: &Fields) -> Option<String> {
        let Some(place) = fields.get("key") else {
            let span = self.reader.start_of(located);
            let path = join(&located.path, "key");
            self.reader.fail_at(span, &path, "a descriptor has no key", "write `key: NAME`");
            return None;
        };
        let key = self.reader.any_text(place)?;
        let (message, help) = match key {
            "" => ("a descriptor has an empty key", "write `key: NAME`".to_owned()),
            _ if key.contains('*') => {
                ("a key with `*` in it", "keys are compared as they are: write out each".to_owned())
            }
            _ if key.len() > MAX_KEY => {
                ("a key that is too long", format!("use at most {MAX_KEY} bytes"))
            }
            _ => return Some(key.to_owned()),
        };
        self.reader.fail(place, message, help);
        None
    }

    fn value(&self, fields: &Fields) -> Option<ValueMatch> {
        let Some(place) = fields.get("value") else { return Some(ValueMatch::Any) };
        Some(match self.reader.any_text(place)? {
            "" => ValueMatch::Any,
            text if text.contains('*') => ValueMatch::Wild(text.to_owned()),
            text => ValueMatch::Exact(text.to_owned()),
        })
    }

    /// Reads a boolean, also in the forms of YAML 1.1.
    fn flag(&self, located: &Located) -> bool {
        let text = self.reader.any_text(located).unwrap_or_default();
        match &*text.to_ascii_lowercase() {
            "true" | "yes" | "on" | "y" => true,
            "false" | "no" | "off" | "n" => false,
            _ => {
                let message = format!("`{}` is neither `true` nor `false`", excerpt(text));
                self.reader.fail(located, message, "write `true` or `false`");
                false
            }
        }
    }

    fn rate(&self, located: &Located) -> Option<Rate> {
        let fields = self.fields(located, RATE_LIMIT)?;
        let unlimited = fields.get("unlimited").is_some_and(|located| self.flag(located));
        let unit = fields.get("unit").map(|located| self.unit(located, unlimited));
        let requests =
            fields.get("requests_per_unit").map(|s| self.reader.integer(s, 0..=MAX_REQUESTS));
        let name = fields.get("name").and_then(|located| self.reader.any_text(located));
        let name = name.filter(|name| !name.is_empty()).map(str::to_owned);
        let replaces = self.replaces(fields.get("replaces"), name.as_deref());
        if unlimited {
            if fields.get("requests_per_unit").is_some() {
                let message = "`requests_per_unit` does nothing beside `unlimited`";
                self.note(&fields, "requests_per_unit", message, "remove one of them");
            }
            return Some(Rate { limit: None, name, replaces: replaces? });
        }
        let unit = match unit {
            Some(unit) => unit,
            None => {
                let span = self.reader.start_of(located);
                self.reader.fail_at(
                    span,
                    &join(&located.path, "unit"),
                    "a limit has no `unit`",
                    unit_help(),
                );
                None
            }
        };
        let requests = match requests {
            Some(requests) => requests,
            None => {
                let message = "there is no `requests_per_unit`, so nothing passes";
                let span = self.reader.start_of(located);
                self.reader.notice(
                    span,
                    &located.path,
                    message,
                    "write `requests_per_unit: 0` if that is meant",
                );
                Some(0)
            }
        };
        Some(Rate { limit: Some((requests?, unit?)), name, replaces: replaces? })
    }

    fn unit(&self, located: &Located, unlimited: bool) -> Option<Unit> {
        let text = self.reader.any_text(located)?;
        let unit = UNITS.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
        match unit {
            Some(_) if unlimited => {
                let help = "remove `unit`, or `unlimited`";
                self.reader.fail(located, "what is unlimited has no unit", help);
            }
            None if !unlimited => {
                let help = match suggest(&text.to_ascii_lowercase(), UNITS.iter().map(|u| u.0)) {
                    meant if meant.starts_with("did") => meant,
                    _ => unit_help(),
                };
                self.reader.fail(located, format!("`{}` is not a unit", excerpt(text)), help);
            }
            _ => {}
        }
        unit
    }

    fn replaces(
        &self,
        located: Option<&Located>,
        own: Option<&str>,
    ) -> Option<Vec<(String, Location)>> {
        let Some(located) = located else { return Some(Vec::new()) };
        let items = self.reader.list(located)?;
        let names: Vec<Option<(String, Location)>> =
            items.iter().map(|item| self.replaced(item, own)).collect();
        names.into_iter().collect()
    }

    fn replaced(&self, located: &Located, own: Option<&str>) -> Option<(String, Location)> {
        let fields = self.fields(located, REPLACES)?;
        let place = fields.get("name");
        let name = place.and_then(|place| self.reader.any_text(place)).unwrap_or_default();
        let (message, help) = match name {
            "" => ("a limit replaces one without a name", "write `- name: NAME`"),
            _ if own == Some(name) => ("a limit cannot replace itself", "name another"),
            _ => return Some((name.to_owned(), self.at(place.unwrap_or(located)))),
        };
        self.reader.fail(place.unwrap_or(located), message, help);
        None
    }

    /// Adds notices for fields that tidegate does not support.
    fn note_unsupported(&self, fields: &Fields) {
        for name in ["detailed_metric", "value_to_metric"] {
            if fields.get(name).is_some_and(|located| self.flag(located)) {
                let message = format!("`{name}` is left out: values are never labels of metrics");
                let help = "GET /admin/v1/top tells the busiest keys, in bounded memory";
                self.note(fields, name, &message, help);
            }
        }
        if fields.get("metadata").is_some() {
            let message = "`metadata` is left out: answers carry the policy's own";
            self.note(fields, "metadata", message, "tell limits apart by their policy's name");
        }
    }

    fn note(&self, fields: &Fields, name: &str, message: &str, help: &str) {
        if let (Some(span), Some(located)) = (fields.name_span(name), fields.get(name)) {
            self.reader.notice(span, &located.path, message, help);
        }
    }
}

/// The longest key, which is the longest name of a descriptor in a policy.
const MAX_KEY: usize = 256;

fn unit_help() -> String {
    "use second, minute, hour, day, week, month or year".to_owned()
}

impl Descriptor {
    /// Returns the text by which envoyproxy/ratelimit looks up a descriptor. It is unique at each
    /// level.
    pub(super) fn composite(&self) -> String {
        match &self.value {
            ValueMatch::Any => self.key.clone(),
            ValueMatch::Exact(value) | ValueMatch::Wild(value) => format!("{}_{value}", self.key),
        }
    }
}

/// Reports descriptors that have the same composite text as an earlier one, if `is_relevant` returns
/// `true` for both positions.
fn report_duplicates(
    reader: &Reader<'_>,
    nodes: &[Descriptor],
    is_relevant: impl Fn(&Location, &Location) -> bool,
) {
    let mut seen: HashMap<String, &Descriptor> = HashMap::new();
    for node in nodes {
        let composite = node.composite();
        match seen.get(&composite) {
            None => {
                seen.insert(composite, node);
            }
            Some(first) if !is_relevant(&first.at, &node.at) => {}
            Some(first) => {
                let message = format!("the descriptor `{}` is here twice", excerpt(&composite));
                let help = if first.key == node.key {
                    format!("keep one; the other is {}", first.at.path)
                } else {
                    format!(
                        "envoyproxy/ratelimit joins key and value by `_`: rename it, or {}",
                        first.at.path
                    )
                };
                reader.fail_at(node.at.span.clone(), &node.at.path, message, help);
            }
        }
    }
}

// The nesting limit of YAML bounds the depth of a tree, which must not exceed the largest number of
// entries in a list.
const _: () = assert!(MAX_ENTRIES >= (super::super::yaml::MAX_DEPTH - 2) / 2);
