//! Reads the files or messages of a conversion into plain values, and collects the errors and
//! notices about each.
//!
//! A config is checked as plain values without positions. The position of an error is found by its
//! path (`descriptors[3].rate_limit.unit`) in the parsed file. Errors of messages show the path
//! alone.
//!
//! Only the kinds of values and the names of fields are checked here; `check.rs` checks the rest. A
//! value that cannot be read is reported, and is missing from the result.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::super::error::{ConfigError, ConfigWarning, UnlocatedError, printable};
use super::super::reader::{LocatedNode, Reader, excerpt, join, locate};
use super::super::suggestions::{closest, suggest};
use super::super::yaml::{self, MAX_ERRORS, Name, Node, Scalar, Value};
use super::EnvoyFile;
use super::model::{DescriptorConfig, DomainConfig, RateLimitConfig, Unit};
use crate::policy::{Metadata, MetadataValue};

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

/// Reads a file; `None` if it is empty, or is not a mapping.
pub(super) fn read(source: &Source<'_>) -> Option<DomainConfig> {
    let reader = source.reader();
    if reader.has_errors() {
        return None;
    }
    let Some(root) = source.root() else {
        reader.fail_at(0..0, "", "the file is empty", "write at least `domain: NAME`");
        return None;
    };
    FileReader { reader }.root(&root)
}

struct FileReader<'r, 's> {
    reader: &'r Reader<'s>,
}

/// The fields of a mapping that have a value.
struct Fields(Vec<(Name, LocatedNode)>);

impl Fields {
    fn get(&self, name: &str) -> Option<&LocatedNode> {
        self.0.iter().find(|(key, _)| key.text == name).map(|(_, located)| located)
    }
}

impl FileReader<'_, '_> {
    fn root(&self, located: &LocatedNode) -> Option<DomainConfig> {
        if located.has_field(&["policies"]) && !located.has_field(ROOT) {
            let help = "start the server with `--config` and this file";
            let at = self.reader.start_of(located);
            self.reader.fail_at(at, "", "this is a config of tidegate", help);
            return None;
        }
        let fields = self.fields(located, ROOT)?;
        let descriptors = self.descriptors(&fields);
        let domain = self.text(&fields, "domain");
        if fields.get("domain").is_none() {
            let is_meant = |name: &Name| closest(&name.text, ["domain"].into_iter()).is_some();
            if !fields.0.iter().any(|(name, _)| is_meant(name)) {
                let span = self.reader.start_of(located);
                self.reader.fail_at(span, "domain", "there is no `domain`", "write `domain: NAME`");
            }
        }
        Some(DomainConfig { name: String::new(), domain, descriptors })
    }

    /// Reads the fields of a mapping that have a value, with merge keys resolved.
    fn fields(&self, located: &LocatedNode, known: &[&'static str]) -> Option<Fields> {
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
    fn gather(&self, located: &LocatedNode, entries: &mut Vec<(Name, LocatedNode)>) {
        let Value::Map(own) = &located.node.value else {
            let help = "write `<<: *anchor` of a mapping";
            self.reader.fail(located, "only mappings can be merged", help);
            return;
        };
        let is_merge = |name: &Name| name.text == "<<";
        for (name, node) in own.iter().filter(|(name, _)| !is_merge(name)) {
            if !entries.iter().any(|(known, _)| known.text == name.text) {
                let inner =
                    LocatedNode { node: Rc::clone(node), path: join(&located.path, &name.text) };
                entries.push((name.clone(), inner));
            }
        }
        for (_, node) in own.iter().filter(|(name, _)| is_merge(name)) {
            let merged = LocatedNode { node: Rc::clone(node), path: located.path.clone() };
            for one in self.reader.one_or_list(&merged) {
                self.gather(&LocatedNode { path: located.path.clone(), ..one }, entries);
            }
        }
    }

    /// Reads a list of descriptors; empty if there is none.
    fn descriptors(&self, fields: &Fields) -> Vec<DescriptorConfig> {
        let items = fields.get("descriptors").and_then(|located| self.reader.list(located));
        items.unwrap_or_default().iter().map(|item| self.descriptor(item)).collect()
    }

    fn descriptor(&self, located: &LocatedNode) -> DescriptorConfig {
        let Some(fields) = self.fields(located, DESCRIPTOR) else {
            return DescriptorConfig::default();
        };
        if fields.get("key").is_none() {
            let path = join(&located.path, "key");
            let span = self.reader.start_of(located);
            self.reader.fail_at(span, &path, "a descriptor has no key", "write `key: NAME`");
        }
        let metadata = fields.get("metadata").and_then(|located| self.metadata(located));
        DescriptorConfig {
            key: self.text(&fields, "key"),
            value: self.text(&fields, "value"),
            rate_limit: fields.get("rate_limit").and_then(|located| self.rate_limit(located)),
            descriptors: self.descriptors(&fields),
            shadow_mode: self.flag(&fields, "shadow_mode"),
            quota_mode: self.flag(&fields, "quota_mode"),
            share_threshold: self.flag(&fields, "share_threshold"),
            detailed_metric: self.flag(&fields, "detailed_metric"),
            value_to_metric: self.flag(&fields, "value_to_metric"),
            metadata: metadata.filter(|metadata| !metadata.is_empty()).map(Arc::new),
        }
    }

    /// Reads a text; empty if it is missing or cannot be read. Typographic quotes are a part of it,
    /// as for envoyproxy/ratelimit.
    fn text(&self, fields: &Fields, name: &str) -> String {
        let scalar = fields.get(name).and_then(|located| self.reader.scalar(located));
        scalar.map(|scalar| scalar.text.clone()).unwrap_or_default()
    }

    /// Reads a boolean, also in the forms of YAML 1.1.
    fn flag(&self, fields: &Fields, name: &str) -> bool {
        let Some(located) = fields.get(name) else { return false };
        let text = self.reader.any_text(located).unwrap_or_default();
        yaml_boolean(text).unwrap_or_else(|| {
            let message = format!("`{}` is neither `true` nor `false`", excerpt(text));
            self.reader.fail(located, message, "write `true` or `false`");
            false
        })
    }

    fn rate_limit(&self, located: &LocatedNode) -> Option<RateLimitConfig> {
        let fields = self.fields(located, RATE_LIMIT)?;
        let unlimited = self.flag(&fields, "unlimited");
        let requests = fields.get("requests_per_unit");
        if requests.is_none() && !unlimited {
            let message = "there is no `requests_per_unit`, so nothing passes";
            let help = "write `requests_per_unit: 0` if that is meant";
            self.reader.notice(self.reader.start_of(located), &located.path, message, help);
        }
        let most = u64::from(u32::MAX);
        let requests = requests.and_then(|located| self.reader.integer(located, 0..=most));
        Some(RateLimitConfig {
            unit: self.unit(&fields, unlimited),
            requests_per_unit: requests.and_then(|n| u32::try_from(n).ok()).unwrap_or_default(),
            unlimited,
            name: self.text(&fields, "name"),
            replaces: self.replaces(&fields),
        })
    }

    fn unit(&self, fields: &Fields, unlimited: bool) -> Unit {
        let Some(located) = fields.get("unit") else { return Unit::Unknown };
        let Some(text) = self.reader.any_text(located) else { return Unit::Unknown };
        let unit = Unit::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(text));
        if unit.is_none() && !unlimited {
            let names = Unit::ALL.iter().map(|unit| unit.name());
            let help = suggest(&text.to_ascii_lowercase(), names);
            self.reader.fail(located, format!("`{}` is not a unit", excerpt(text)), help);
        }
        unit.unwrap_or_default()
    }

    fn replaces(&self, fields: &Fields) -> Vec<String> {
        let items = fields.get("replaces").and_then(|located| self.reader.list(located));
        let items = items.unwrap_or_default();
        let name = |located: &LocatedNode| {
            let fields = self.fields(located, REPLACES);
            fields.map(|fields| self.text(&fields, "name")).unwrap_or_default()
        };
        items.iter().map(name).collect()
    }

    fn metadata(&self, located: &LocatedNode) -> Option<Metadata> {
        self.reader.map(located, "write values as `name: value`, one per line")?;
        let mut entries = Vec::new();
        self.gather(located, &mut entries);
        let value = |(name, inner): (Name, LocatedNode)| (name.text, self.metadata_value(&inner));
        Some(entries.into_iter().map(value).collect())
    }

    fn metadata_value(&self, located: &LocatedNode) -> MetadataValue {
        match &located.node.value {
            Value::Scalar(scalar) => metadata_scalar(scalar),
            Value::List(_) => {
                let items = self.reader.one_or_list(located);
                MetadataValue::List(items.iter().map(|item| self.metadata_value(item)).collect())
            }
            Value::Map(_) => MetadataValue::Map(self.metadata(located).unwrap_or_default()),
        }
    }
}

/// Returns the boolean that YAML 1.1 reads a text as.
fn yaml_boolean(text: &str) -> Option<bool> {
    match &*text.to_ascii_lowercase() {
        "true" | "yes" | "on" | "y" => Some(true),
        "false" | "no" | "off" | "n" => Some(false),
        _ => None,
    }
}

/// Returns the value that YAML 1.1 reads a scalar as.
fn metadata_scalar(scalar: &Scalar) -> MetadataValue {
    if scalar.is_null() {
        return MetadataValue::Null;
    }
    if !scalar.is_plain {
        return MetadataValue::Text(scalar.text.clone());
    }
    // `y` and `n` are texts in values of any kind, as in envoyproxy/ratelimit.
    let boolean = yaml_boolean(&scalar.text).filter(|_| scalar.text.len() > 1);
    let value = boolean.map(MetadataValue::Bool);
    let value = value.or_else(|| yaml_number(&scalar.text).map(MetadataValue::Number));
    value.unwrap_or_else(|| MetadataValue::Text(scalar.text.clone()))
}

/// Returns the number that YAML 1.1 reads a text as: decimal, or an integer in base 2, 8 or 16.
fn yaml_number(text: &str) -> Option<f64> {
    let (sign, digits) = match text.strip_prefix(['-', '+']) {
        Some(digits) if text.starts_with('-') => (-1.0, digits),
        Some(digits) => (1.0, digits),
        None => (1.0, text),
    };
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let digits = digits.replace('_', "");
    let based = [("0x", 16), ("0b", 2), ("0o", 8), ("0", 8)]
        .into_iter()
        .find_map(|(prefix, base)| u64::from_str_radix(digits.strip_prefix(prefix)?, base).ok());
    // An integer beyond 2^53 is rounded, as it is in a `google.protobuf.Value`.
    let number = based.map(|number| number as f64).or_else(|| digits.parse().ok())?;
    Some(sign * number)
}

/// One file or message.
pub(super) struct Source<'s> {
    name: &'s str,
    kind: Kind<'s>,
    reader: Reader<'s>,
    /// Notices about features that a written config leaves out.
    omitted: RefCell<Vec<UnlocatedError>>,
}

enum Kind<'s> {
    /// The text, and its root unless it is empty.
    File(&'s str, Option<Rc<Node>>),
    Message,
}

/// The errors, notices and omissions of a source.
pub(super) struct Findings {
    pub(super) errors: Vec<ConfigError>,
    pub(super) notices: Vec<ConfigWarning>,
    pub(super) omitted: Vec<ConfigWarning>,
}

impl<'s> Source<'s> {
    /// Parses a file. Syntax errors are recorded.
    pub(super) fn file(file: &'s EnvoyFile) -> Self {
        let mut errors = Vec::new();
        let root = yaml::parse(&file.text, &mut errors);
        let root = root.filter(|_| errors.is_empty());
        let reader = Reader::new(&file.text, errors);
        let kind = Kind::File(&file.text, root);
        Source { name: &file.name, kind, reader, omitted: RefCell::default() }
    }

    pub(super) fn message(config: &'s DomainConfig) -> Self {
        let name = if config.name.is_empty() { &config.domain } else { &config.name };
        let reader = Reader::new("", Vec::new());
        Source { name, kind: Kind::Message, reader, omitted: RefCell::default() }
    }

    pub(super) fn name(&self) -> String {
        printable(self.name)
    }

    /// Returns what the source is, for errors.
    pub(super) fn kind(&self) -> &'static str {
        match self.kind {
            Kind::File(..) => "file",
            Kind::Message => "resource",
        }
    }

    pub(super) fn reader(&self) -> &Reader<'s> {
        &self.reader
    }

    /// Returns the root of a file; `None` if it is empty or not YAML.
    pub(super) fn root(&self) -> Option<LocatedNode> {
        let Kind::File(_, Some(root)) = &self.kind else { return None };
        Some(LocatedNode { node: Rc::clone(root), path: String::new() })
    }

    /// Records an error of a field, unless the field could not be read, which was reported then.
    pub(super) fn fail(&self, path: &str, message: impl Into<String>, help: impl Into<String>) {
        if self.reader.takes_errors() && !self.reader.has_error_of(path) {
            self.reader.fail_at(self.span(path), path, message, help);
        }
    }

    pub(super) fn notice(&self, path: &str, message: impl Into<String>, help: &str) {
        if self.reader.takes_notices() {
            self.reader.notice(self.span(path), path, message, help);
        }
    }

    /// Records that a written config leaves a field out.
    pub(super) fn omit(&self, path: &str, field: &str) {
        let mut omitted = self.omitted.borrow_mut();
        if omitted.len() < MAX_ERRORS {
            omitted.push(UnlocatedError {
                span: self.span(path),
                field: path.into(),
                message: format!("`{field}` is left out: a tidegate config has no such field"),
                help: "serve the files with --envoy-config to keep it".into(),
            });
        }
    }

    /// Returns the position of a field or, if it is missing, of the value that should have it.
    fn span(&self, path: &str) -> Range<usize> {
        let Some(mut found) = self.root() else { return 0..0 };
        for step in path.split('.').filter(|step| !step.is_empty()) {
            let (name, index) = step.split_once('[').unwrap_or((step, ""));
            let Some(node) = field(&found.node, name) else { break };
            let index = index.trim_end_matches(']').parse().ok();
            let item = index.and_then(|index: usize| match &node.value {
                Value::List(items) => items.get(index).cloned(),
                _ => None,
            });
            found.node = item.unwrap_or(node);
        }
        let Value::Map(entries) = &found.node.value else { return found.node.span.clone() };
        match entries.iter().find(|(name, _)| name.text == "key") {
            Some((name, _)) => name.span.clone(),
            None => self.reader.start_of(&found),
        }
    }

    pub(super) fn into_findings(self) -> Findings {
        let (errors, notices) = self.reader.into_errors_and_notices();
        let located = |errors: Vec<UnlocatedError>| match &self.kind {
            Kind::File(text, _) => locate(text, errors),
            Kind::Message => errors.into_iter().map(ConfigError::of_field).collect(),
        };
        let noted = |notices: Vec<UnlocatedError>| {
            let notices = located(notices).into_iter();
            notices.map(|about| ConfigWarning::new(self.name, about)).collect()
        };
        Findings {
            errors: located(errors),
            notices: noted(notices),
            omitted: noted(self.omitted.into_inner()),
        }
    }
}

/// Returns the value of a field of a mapping, which may come from a mapping that it merges.
fn field(node: &Node, name: &str) -> Option<Rc<Node>> {
    let Value::Map(entries) = &node.value else { return None };
    let own = entries.iter().find(|(key, inner)| key.text == name && !inner.is_null());
    if let Some((_, inner)) = own {
        return Some(Rc::clone(inner));
    }
    let merged = entries.iter().filter(|(key, _)| key.text == "<<");
    let mut merged = merged.flat_map(|(_, inner)| match &inner.value {
        Value::List(items) => &items[..],
        _ => std::slice::from_ref(inner),
    });
    merged.find_map(|inner| field(inner, name))
}
