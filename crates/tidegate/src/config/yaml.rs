//! Parses YAML into a tree in which every node has its position.
//!
//! Deserialising directly into structs stops at the first error, and the position of a value is
//! lost by the time the value turns out to be invalid. So the file is first parsed into a tree with
//! the byte range of every key and value, and the config is read from the tree.
//!
//! YAML can be a bomb: nested aliases grow exponentially, and deep nesting overflows the stack. The
//! size of the file, the depth, and the number of nodes *after* aliases are expanded are bounded.
//! An aliased node is shared, not copied.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use granit_parser::{Event, Parser, ScalarStyle, Span, StrInput};

use super::error::UnlocatedError;
use super::reader::remove_within;
use super::syntax_errors::syntax;

/// The largest config: several times the size of ten thousand policies of a few lines each.
pub const MAX_CONFIG_BYTES: usize = 4 << 20;

/// The deepest nesting. A config needs six levels.
pub(super) const MAX_DEPTH: usize = 32;

/// The largest number of nodes after aliases are expanded: more than any reasonable config of
/// [`MAX_CONFIG_BYTES`] has.
const MAX_NODES: usize = 500_000;

/// The largest number of errors that are collected. More would not be read.
pub(super) const MAX_ERRORS: usize = 100;

/// A value and its position.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) span: Range<usize>,
    pub(super) value: Value,
    /// The number of nodes in this subtree, after aliases are expanded.
    size: usize,
}

#[derive(Debug)]
pub(super) enum Value {
    /// A text, number, boolean or null. The reader of the field decides which.
    Scalar(Scalar),
    List(Vec<Rc<Node>>),
    Map(Vec<(Name, Rc<Node>)>),
}

#[derive(Debug)]
pub(super) struct Scalar {
    pub(super) text: String,
    /// Whether it is written without quotes, so that it may be a number, boolean or null.
    pub(super) is_plain: bool,
}

/// The key of a mapping.
#[derive(Clone, Debug)]
pub(super) struct Name {
    pub(super) text: String,
    pub(super) span: Range<usize>,
}

impl Node {
    /// Returns whether the value is null.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar(scalar) if scalar.is_null())
    }
}

impl Scalar {
    /// Returns whether it is null: empty, `~` or `null`, without quotes.
    pub(super) fn is_null(&self) -> bool {
        self.is_plain && matches!(&*self.text, "" | "~" | "null" | "Null" | "NULL")
    }

    /// Returns whether YAML reads it as a number or boolean.
    pub(super) fn is_number_or_boolean(&self) -> bool {
        let boolean = ["true", "True", "TRUE", "false", "False", "FALSE"];
        let looks_numeric =
            self.text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
        self.is_plain
            && (boolean.contains(&&*self.text)
                || (looks_numeric && self.text.parse::<f64>().is_ok())
                || self.text.starts_with("0x")
                || self.text.starts_with("0o"))
    }
}

/// Parses a file; `None` if it is empty. Errors are added to `errors`. After a syntax error the
/// result is `None`.
pub(super) fn parse(source: &str, errors: &mut Vec<UnlocatedError>) -> Option<Rc<Node>> {
    let options = granit_parser::options! {
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
        disallow_directives: true,
    };
    let events = Parser::new_from_str_with_options(source, options);
    let mut builder =
        TreeBuilder { source, events, anchors: HashMap::new(), nodes: 0, errors: Vec::new() };
    let tree = builder.document();
    errors.append(&mut builder.errors);
    match tree {
        Ok(tree) => tree,
        Err(stop) => {
            remove_within(errors, &stop.span);
            errors.push(*stop);
            None
        }
    }
}

/// An error after which parsing cannot continue.
pub(super) type Stop = Box<UnlocatedError>;

struct TreeBuilder<'s> {
    source: &'s str,
    events: Parser<'s, StrInput<'s>>,
    /// Complete nodes by anchor; `None` while a node is still open.
    anchors: HashMap<usize, Option<Rc<Node>>>,
    nodes: usize,
    errors: Vec<UnlocatedError>,
}

impl<'s> TreeBuilder<'s> {
    fn next(&mut self) -> Result<(Event<'s>, Range<usize>), Stop> {
        match self.events.next() {
            Some(Ok((event, span))) => {
                if let Some(tag) = span.tag_span() {
                    self.report(bytes(&tag), "tags are not read", "remove the `!...`");
                }
                Ok((event, bytes(&span)))
            }
            Some(Err(error)) => Err(syntax(self.source, &error)),
            None => Ok((Event::StreamEnd, self.source.len()..self.source.len())),
        }
    }

    fn document(&mut self) -> Result<Option<Rc<Node>>, Stop> {
        let mut tree = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => return Ok(tree),
                Event::StreamStart | Event::DocumentEnd => {}
                Event::DocumentStart(..) if tree.is_none() => {
                    let (event, span) = self.next()?;
                    let node = self.node(event, span)?;
                    tree = Some(node);
                }
                _ => {
                    let message = "a second document begins here";
                    return Err(stop(span, message, "keep one document, and remove the `---`"));
                }
            }
        }
    }

    fn node(&mut self, event: Event<'s>, span: Range<usize>) -> Result<Rc<Node>, Stop> {
        let anchor = match &event {
            Event::Scalar(_, _, anchor, _)
            | Event::SequenceStart(_, anchor, _)
            | Event::MappingStart(_, anchor, _) => *anchor,
            Event::Alias(anchor) => return self.alias(*anchor, span),
            _ => return Err(stop(span, "expected a value", "write a value")),
        };
        if anchor > 0 {
            self.anchors.insert(anchor, None);
        }
        let node = match event {
            Event::Scalar(text, style, ..) => {
                let is_plain = style == ScalarStyle::Plain;
                let text = text.into_owned();
                let value = Value::Scalar(Scalar { text, is_plain });
                Node { span, value, size: 1 }
            }
            Event::SequenceStart(..) => self.list(span)?,
            _ => self.map(span)?,
        };
        self.count(1, &node.span)?;
        let node = Rc::new(node);
        if anchor > 0 {
            self.anchors.insert(anchor, Some(Rc::clone(&node)));
        }
        Ok(node)
    }

    fn alias(&mut self, anchor: usize, span: Range<usize>) -> Result<Rc<Node>, Stop> {
        let Some(node) = self.anchors.get(&anchor).cloned().flatten() else {
            let message = "this alias stands inside what it names";
            return Err(stop(span, message, "write the value out"));
        };
        self.count(node.size, &span)?;
        Ok(node)
    }

    fn count(&mut self, more: usize, span: &Range<usize>) -> Result<(), Stop> {
        self.nodes = self.nodes.saturating_add(more);
        if self.nodes <= MAX_NODES {
            return Ok(());
        }
        let message =
            format!("the config has more than {MAX_NODES} values once aliases are followed");
        Err(stop(span.clone(), &message, "use fewer aliases, and policies with overrides"))
    }

    fn list(&mut self, mut span: Range<usize>) -> Result<Node, Stop> {
        let mut items = Vec::new();
        let mut size = 1usize;
        loop {
            let (event, at) = self.next()?;
            if matches!(event, Event::SequenceEnd) {
                span.end = at.end.max(span.end);
                return Ok(Node { span, value: Value::List(items), size });
            }
            let node = self.node(event, at)?;
            size = size.saturating_add(node.size);
            items.push(node);
        }
    }

    fn map(&mut self, mut span: Range<usize>) -> Result<Node, Stop> {
        let mut entries: Vec<(Name, Rc<Node>)> = Vec::new();
        let mut seen: HashMap<String, Range<usize>> = HashMap::new();
        let mut size = 1usize;
        loop {
            let (event, at) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                span.end = at.end.max(span.end);
                return Ok(Node { span, value: Value::Map(entries), size });
            }
            let key = self.node(event, at.clone())?;
            let (event, value_at) = self.next()?;
            let value = self.node(event, value_at)?;
            size = size.saturating_add(key.size).saturating_add(value.size);
            let Value::Scalar(Scalar { text, .. }) = &key.value else {
                let message = "a field's name is a text";
                self.report(key.span.clone(), message, "write a name before the `:`");
                continue;
            };
            if let Some(first) = seen.get(text) {
                let line = self.source[..first.start].matches('\n').count() + 1;
                let message = format!("`{}` is here twice", super::error::printable(text));
                self.report(at, &message, &format!("keep one; the first is on line {line}"));
                continue;
            }
            seen.insert(text.clone(), at.clone());
            entries.push((Name { text: text.clone(), span: at }, value));
        }
    }

    fn report(&mut self, span: Range<usize>, message: &str, help: &str) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(*stop(span, message, help));
        }
    }
}

fn bytes(span: &Span) -> Range<usize> {
    span.byte_range().unwrap_or(0..0)
}

pub(super) fn stop(span: Range<usize>, message: &str, help: &str) -> Stop {
    Box::new(UnlocatedError {
        span,
        field: String::new(),
        message: message.into(),
        help: help.into(),
    })
}
