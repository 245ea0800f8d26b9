//! The files or messages of a conversion, with the errors and notices about each.
//!
//! A config is checked as plain values without positions. The position of an error is found by its
//! path (`descriptors[3].rate_limit.unit`) in the parsed file. Errors of messages show the path
//! alone.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use super::super::error::{ConfigError, ConfigWarning, UnlocatedError, printable};
use super::super::reader::{LocatedNode, Reader, locate};
use super::super::yaml::{self, MAX_ERRORS, Node, Value};
use super::{DomainConfig, EnvoyFile};

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
