//! Reads typed values from the tree, and collects errors.
//!
//! A getter that finds an error records it and returns `None`, and the caller continues with the
//! next field. So one pass finds all errors.

use std::cell::RefCell;
use std::ops::{Range, RangeInclusive};
use std::rc::Rc;
use std::time::Duration;

use tidegate_core::Limit;

use super::error::{ConfigError, SourceLocation, UnlocatedError, printable};
use super::schema::Field;
use super::set_elsewhere::set_elsewhere;
use super::suggestions::{equivalent, meant, misplaced, named_item, named_policies, suggest};
use super::syntax_errors::{
    SPACE_AFTER_COLON, colon_without_space, find_odd_character, in_quotes,
    is_in_typographic_quotes, template_in_quotes,
};
use super::yaml::{MAX_ERRORS, Name, Node, Scalar, Value};

/// The source of a config, with the errors found so far.
pub(super) struct Reader<'s> {
    source: &'s str,
    errors: RefCell<Vec<UnlocatedError>>,
    /// Messages about values that are valid, but may not have the intended effect.
    notices: RefCell<Vec<UnlocatedError>>,
}

/// A value, and the path of its field, such as `policies[1].limits`.
#[derive(Clone)]
pub(super) struct LocatedNode {
    pub(super) node: Rc<Node>,
    pub(super) path: String,
}

impl LocatedNode {
    /// Returns whether the value is a mapping with one of these fields.
    pub(super) fn has_field(&self, names: &[&str]) -> bool {
        matches!(&self.node.value, Value::Map(entries) if entries.iter().any(|(key, _)| names.contains(&&*key.text)))
    }
}

/// A mapping whose field names have been checked.
pub(super) struct Object<'s, 'r> {
    reader: &'r Reader<'s>,
    located: LocatedNode,
}

/// Units of time, as in limits.
const UNITS_MS: [(&str, u64); 6] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
    ("w", 604_800_000),
];

impl<'s> Reader<'s> {
    pub(super) fn new(source: &'s str, errors: Vec<UnlocatedError>) -> Self {
        Reader { source, errors: RefCell::new(errors), notices: RefCell::default() }
    }

    pub(super) fn fail(
        &self,
        located: &LocatedNode,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.fail_at(located.node.span.clone(), &located.path, message, help);
    }

    pub(super) fn fail_at(
        &self,
        span: Range<usize>,
        path: &str,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        let (message, mut help) = (message.into(), help.into());
        let is_line = !self.source.get(span.clone()).unwrap_or_default().contains('\n');
        if let Some((_, odd)) = find_odd_character(self.source, &span).filter(|_| is_line) {
            help = odd.help();
        }
        let mut errors = self.errors.borrow_mut();
        if errors.len() < MAX_ERRORS {
            errors.push(UnlocatedError { span, field: path.into(), message, help });
        }
    }

    /// Records a message about a value that is valid, but may not have the intended effect.
    pub(super) fn notice(
        &self,
        span: Range<usize>,
        path: &str,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        let (message, help) = (message.into(), help.into());
        let mut notices = self.notices.borrow_mut();
        if notices.len() < MAX_ERRORS {
            notices.push(UnlocatedError { span, field: path.into(), message, help });
        }
    }

    /// Records an error like [`Reader::fail`], at a byte range of the text of `located`.
    pub(super) fn fail_within(
        &self,
        located: &LocatedNode,
        within: Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.fail_at(self.inside(located, within), &located.path, message, help);
    }

    /// Returns the position in the source of a byte range of a text. If the text has escapes or
    /// folded lines, that is unknown, and the position of the whole text is returned.
    fn inside(&self, located: &LocatedNode, within: Range<usize>) -> Range<usize> {
        let span = located.node.span.clone();
        let Value::Scalar(scalar) = &located.node.value else { return span };
        let written = self.source.get(span.clone()).unwrap_or_default();
        let start = usize::from(!scalar.is_plain);
        if written.get(start..start + scalar.text.len()) != Some(&scalar.text) {
            return span;
        }
        let start = span.start + start;
        let end = (start + within.end).min(span.end);
        (start + within.start).min(end)..end
    }

    /// Returns the position of a value, for errors that are found after the config was read.
    pub(super) fn location(&self, located: &LocatedNode) -> SourceLocation {
        SourceLocation::new(self.source, located.node.span.clone())
    }

    /// Returns the line of a byte of the source, from 1.
    pub(super) fn line(&self, start: usize) -> usize {
        self.source[..start].matches('\n').count() + 1
    }

    pub(super) fn has_errors(&self) -> bool {
        !self.errors.borrow().is_empty()
    }

    /// Returns whether a further error would be recorded.
    pub(super) fn takes_errors(&self) -> bool {
        self.errors.borrow().len() < MAX_ERRORS
    }

    /// Returns whether a further notice would be recorded.
    pub(super) fn takes_notices(&self) -> bool {
        self.notices.borrow().len() < MAX_ERRORS
    }

    /// Returns whether an error of this field was recorded, or of a value that contains it.
    pub(super) fn has_error_of(&self, path: &str) -> bool {
        let is_within = |field: &str| {
            let rest = path.strip_prefix(field).filter(|_| !field.is_empty());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.errors.borrow().iter().any(|error| is_within(&error.field))
    }

    /// Returns the errors and the notices in the order in which they were recorded.
    pub(super) fn into_errors_and_notices(self) -> (Vec<UnlocatedError>, Vec<UnlocatedError>) {
        (self.errors.into_inner(), self.notices.into_inner())
    }

    /// Reads a mapping. Reports fields that are not in `fields`, and required fields that are
    /// missing.
    pub(super) fn object(&self, located: &LocatedNode, fields: &[Field]) -> Option<Object<'s, '_>> {
        self.object_requiring(located, fields, |field| field.is_required)
    }

    /// Reads a mapping like [`Reader::object`], with `is_needed` to define the required fields.
    pub(super) fn object_requiring(
        &self,
        located: &LocatedNode,
        fields: &[Field],
        is_required: impl Fn(&Field) -> bool,
    ) -> Option<Object<'s, '_>> {
        let entries = self.map(located, "write fields as `name: value`, one per line")?;
        let mut meant = Vec::new();
        for (name, _) in entries {
            // Finding a suggestion takes time, and further errors are not shown.
            if self.errors.borrow().len() >= MAX_ERRORS {
                break;
            }
            if !fields.iter().any(|field| field.name == name.text) {
                meant.extend(self.unknown_field(located, name, fields));
            }
        }
        for field in fields.iter().filter(|field| is_required(field)) {
            let is_present = entries.iter().any(|(name, _)| name.text == field.name);
            if !is_present && !meant.contains(&field.name) {
                let message = format!("`{}` is missing", field.name);
                let help = format!("add `{}`: {}", field.name, lower(field.about));
                self.fail_at(self.start_of(located), &located.path, message, help);
            }
        }
        Some(Object { reader: self, located: located.clone() })
    }

    /// Reports an unknown field, and returns the field that was probably meant.
    fn unknown_field(
        &self,
        located: &LocatedNode,
        name: &Name,
        fields: &[Field],
    ) -> Option<&'static str> {
        let names = fields.iter().map(|field| field.name);
        let message = format!("unknown field `{}`", excerpt(&name.text));
        let path = join(&located.path, &name.text);
        let help = if name.text == "<<" {
            "merge keys are not read: write the fields out, or use an alias for a whole value"
                .into()
        } else if let Some((before, _)) = name.text.split_once(':')
            && names.clone().any(|known| known == before)
        {
            SPACE_AFTER_COLON.into()
        } else if located.path.is_empty()
            && let Some(how) = set_elsewhere(&name.text)
        {
            format!("it is not set in the config: {how}")
        } else if equivalent(&name.text, names.clone()).is_none()
            && let Some(help) = misplaced(&name.text, &located.path)
        {
            help
        } else if let Some(help) = named_item(located, name) {
            self.fail_at(name.span.clone(), &path, message, help);
            return Some("name");
        } else {
            suggest(&name.text, names.clone())
        };
        self.fail_at(name.span.clone(), &path, message, help);
        meant(&name.text, names)
    }

    /// Returns the position of the first name in a mapping, or of the value if it is not a mapping.
    pub(super) fn start_of(&self, located: &LocatedNode) -> Range<usize> {
        match &located.node.value {
            Value::Map(entries) => entries.first().map(|(name, _)| name.span.clone()),
            _ => None,
        }
        .unwrap_or_else(|| located.node.span.clone())
    }

    /// Reads a mapping, and returns its entries.
    pub(super) fn map<'n>(
        &self,
        located: &'n LocatedNode,
        help: &str,
    ) -> Option<&'n [(Name, Rc<Node>)]> {
        match &located.node.value {
            Value::Map(entries) => Some(entries),
            _ => {
                self.wrong_kind(located, "a mapping", help);
                None
            }
        }
    }

    /// Reads a list, and returns its items.
    pub(super) fn list(&self, located: &LocatedNode) -> Option<Vec<LocatedNode>> {
        match &located.node.value {
            Value::List(items) => Some(list_items(located, items)),
            _ => {
                let help = named_policies(located)
                    .unwrap_or_else(|| "write `- ` before each item, or `[a, b]`".into());
                self.wrong_kind(located, "a list", &help);
                None
            }
        }
    }

    /// Returns the items of a list, or any other value as the only item.
    pub(super) fn one_or_list(&self, located: &LocatedNode) -> Vec<LocatedNode> {
        match &located.node.value {
            Value::List(items) => list_items(located, items),
            _ => vec![located.clone()],
        }
    }

    /// Reads a scalar that is not null.
    pub(super) fn scalar<'n>(&self, located: &'n LocatedNode) -> Option<&'n Scalar> {
        match &located.node.value {
            Value::Scalar(scalar) if !scalar.is_null() => Some(scalar),
            Value::Scalar(_) => {
                self.fail(located, "there is no value here", "write one, or remove the field");
                None
            }
            _ => {
                self.wrong_kind(located, "a single value", "write it without `[`, `{` or `-`");
                None
            }
        }
    }

    /// Reads a text. Numbers and booleans without quotes are errors.
    pub(super) fn text<'n>(&self, located: &'n LocatedNode) -> Option<&'n str> {
        let scalar = self.scalar(located)?;
        if scalar.is_number_or_boolean() {
            let text = excerpt(&scalar.text);
            self.fail(located, format!("`{text}` is not a text"), in_quotes(&scalar.text));
            return None;
        }
        self.any_text(located)
    }

    /// Reads a scalar as text. `2` and `true` are accepted without quotes.
    pub(super) fn any_text<'n>(&self, located: &'n LocatedNode) -> Option<&'n str> {
        let scalar = self.scalar(located)?;
        let is_accepted = self.check_quotes(&scalar.text, &located.node.span, &located.path);
        is_accepted.then_some(&*scalar.text)
    }

    /// Reports typographic quotes around a value or a name, which may be a secret. Returns whether
    /// there are none, or ordinary quotes around them.
    pub(super) fn check_quotes(&self, text: &str, span: &Range<usize>, path: &str) -> bool {
        let written = self.source.get(span.clone()).unwrap_or_default();
        let is_accepted = !is_in_typographic_quotes(text) || written.starts_with(['"', '\'']);
        if !is_accepted {
            let message = "YAML does not know these quotes, and takes them for a part of the text";
            self.fail_at(span.clone(), path, message, "write `\"`");
        }
        is_accepted
    }

    /// Reads a text that may contain `{fields}`. Without quotes YAML reads `{` as a mapping.
    pub(super) fn template_text<'n>(&self, located: &'n LocatedNode) -> Option<&'n str> {
        if matches!(located.node.value, Value::Map(_)) {
            let written = self.source.get(located.node.span.clone()).unwrap_or_default();
            let message = "without quotes YAML takes `{` for a mapping";
            remove_within(&mut self.errors.borrow_mut(), &located.node.span);
            self.fail(located, message, template_in_quotes(written.trim()));
            return None;
        }
        self.any_text(located)
    }

    pub(super) fn integer(&self, located: &LocatedNode, range: RangeInclusive<u64>) -> Option<u64> {
        let scalar = self.scalar(located)?;
        let text = excerpt(&scalar.text);
        let digits = scalar.text.replace('_', "");
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if is_number && !scalar.is_plain {
            self.fail_quoted(located, "a number");
            return None;
        }
        if !is_number {
            let message = format!("`{text}` is not a whole number");
            self.fail(located, message, "write digits only, without quotes");
            return None;
        }
        let number = digits.parse::<u64>().ok().filter(|number| range.contains(number));
        if number.is_none() {
            let help = format!("use {} to {}", range.start(), range.end());
            self.fail(located, format!("`{text}` is out of range"), help);
        }
        number
    }

    /// Reads `true` or `false`.
    pub(super) fn boolean(&self, located: &LocatedNode) -> Option<bool> {
        let scalar = self.scalar(located)?;
        match &*scalar.text {
            "true" if scalar.is_plain => Some(true),
            "false" if scalar.is_plain => Some(false),
            "true" | "false" => {
                self.fail_quoted(located, "`true` or `false`");
                None
            }
            text => {
                let message = format!("`{}` is neither `true` nor `false`", excerpt(text));
                self.fail(located, message, "write `true` or `false`, without quotes");
                None
            }
        }
    }

    /// Reports a number or boolean in quotes, which make it a text.
    fn fail_quoted(&self, located: &LocatedNode, expected: &str) {
        let written = excerpt(self.source.get(located.node.span.clone()).unwrap_or_default());
        let bare = excerpt(written.trim_matches(['"', '\'']));
        let message = format!("`{written}` is a text, not {expected}");
        self.fail(located, message, format!("remove the quotes: `{bare}`"));
    }

    /// Reads one of `words`.
    pub(super) fn word<'w>(&self, located: &LocatedNode, words: &[&'w str]) -> Option<&'w str> {
        let text = self.any_text(located)?;
        let found = words.iter().find(|word| **word == text);
        if found.is_none() {
            let message = format!("`{}` cannot be `{}`", field_name(&located.path), excerpt(text));
            self.fail(located, message, suggest(text, words.iter().copied()));
        }
        found.copied()
    }

    /// Reads a duration such as `25ms`.
    pub(super) fn duration(
        &self,
        located: &LocatedNode,
        range: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        let text = self.scalar(located)?.text.as_str();
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (amount, unit) = text.split_at(digits);
        let unit_ms = UNITS_MS.iter().find(|(name, _)| *name == unit).map(|(_, ms)| ms);
        let Some((unit_ms, amount)) = unit_ms.zip(amount.parse::<u64>().ok()) else {
            if let Some(help) = with_unit(text, &range) {
                let message = format!("`{}` has no unit of time", excerpt(text));
                self.fail(located, message, help);
                return None;
            }
            let message = format!("`{}` is not a length of time", excerpt(text));
            self.fail(located, message, meant_duration(text, &range));
            return None;
        };
        let duration = amount.checked_mul(*unit_ms).map(Duration::from_millis);
        let within = duration.filter(|duration| range.contains(duration));
        if within.is_none() {
            let (least, most) = (format_duration(*range.start()), format_duration(*range.end()));
            self.fail(
                located,
                format!("`{}` is out of range", excerpt(text)),
                format!("use {least} to {most}"),
            );
        }
        within
    }

    fn wrong_kind(&self, located: &LocatedNode, expected: &str, help: &str) {
        let found = match &located.node.value {
            Value::Scalar(scalar) if scalar.is_null() => "there is nothing".into(),
            Value::Scalar(scalar) => format!("it is `{}`", excerpt(&scalar.text)),
            Value::List(_) => "it is a list".into(),
            Value::Map(_) => "it is a mapping".into(),
        };
        let subject = match located.path.rsplit('.').next() {
            None | Some("") => "the config".into(),
            Some(name) => format!("`{name}`"),
        };
        let is_unspaced = |scalar: &Scalar| {
            scalar.is_plain
                && expected == "a mapping"
                && colon_without_space(&scalar.text).is_some()
        };
        let help = match &located.node.value {
            Value::Scalar(scalar) if is_unspaced(scalar) => SPACE_AFTER_COLON,
            _ => help,
        };
        let message = format!("{subject} must be {expected}, but {found}");
        self.fail_at(self.start_of(located), &located.path, message, help);
    }
}

impl<'s> Object<'s, '_> {
    /// Returns a field, if it is present. A field without a value is an error.
    pub(super) fn get(&self, name: &str) -> Option<LocatedNode> {
        let Value::Map(entries) = &self.located.node.value else { return None };
        let (key, node) = entries.iter().find(|(key, _)| key.text == name)?;
        let path = join(&self.located.path, name);
        if node.is_null() {
            let help = "write a value after the `:`, or remove the field";
            self.reader.fail_at(key.span.clone(), &path, format!("`{name}` has no value"), help);
            return None;
        }
        Some(LocatedNode { node: Rc::clone(node), path })
    }

    /// Returns whether the field is present, with or without a value.
    pub(super) fn has(&self, name: &str) -> bool {
        self.located.has_field(&[name])
    }

    pub(super) fn located(&self) -> &LocatedNode {
        &self.located
    }

    /// Returns the position of a field's name or, if it is missing, the start of the mapping.
    pub(super) fn name_span(&self, name: &str) -> Range<usize> {
        let Value::Map(entries) = &self.located.node.value else {
            return self.located.node.span.clone();
        };
        let found = entries.iter().find(|(key, _)| key.text == name).or(entries.first());
        found.map_or_else(|| self.located.node.span.clone(), |(key, _)| key.span.clone())
    }

    pub(super) fn integer(&self, name: &str, range: RangeInclusive<u64>) -> Option<u64> {
        self.get(name).and_then(|located| self.reader.integer(&located, range))
    }

    pub(super) fn word<'w>(&self, name: &str, words: &[&'w str]) -> Option<&'w str> {
        self.get(name).and_then(|located| self.reader.word(&located, words))
    }

    pub(super) fn duration(&self, name: &str, range: RangeInclusive<Duration>) -> Option<Duration> {
        self.get(name).and_then(|located| self.reader.duration(&located, range))
    }
}

/// Removes the errors about parts of a text that an error about all of it replaces.
pub(super) fn remove_within(errors: &mut Vec<UnlocatedError>, span: &Range<usize>) {
    errors.retain(|one| one.span.start < span.start || span.end < one.span.end);
}

/// Returns errors with their positions in the source, in its order.
pub(super) fn locate(source: &str, mut errors: Vec<UnlocatedError>) -> Vec<ConfigError> {
    errors.sort_by_key(|one| one.span.start);
    errors.into_iter().map(|one| ConfigError::at(source, one)).collect()
}

fn list_items(located: &LocatedNode, items: &[Rc<Node>]) -> Vec<LocatedNode> {
    let items = items.iter().enumerate();
    let at = |(index, node): (usize, &Rc<Node>)| LocatedNode {
        node: Rc::clone(node),
        path: format!("{}[{index}]", located.path),
    };
    items.map(at).collect()
}

/// Appends a field to a path.
pub(super) fn join(path: &str, name: &str) -> String {
    let name = excerpt(name);
    // Quotes show that a name with a dot or colon is a single name.
    match (path.is_empty(), name.contains(['.', ':'])) {
        (true, _) => name,
        (false, false) => format!("{path}.{name}"),
        (false, true) => format!("{path}.\"{name}\""),
    }
}

/// Returns the last field of a path, without its index.
pub(super) fn field_name(path: &str) -> &str {
    let name = path.rsplit('.').next().unwrap_or_default();
    name.split('[').next().unwrap_or_default()
}

/// Returns a text as errors show it: printable, and truncated after 60 characters.
pub(super) fn excerpt(text: &str) -> String {
    const MOST: usize = 60;
    let mut shown: String = printable(text).chars().take(MOST).collect();
    if text.chars().nth(MOST).is_some() {
        shown.push_str("...");
    }
    shown
}

fn lower(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

/// Returns the help for a length of time without a unit: those that it may have in seconds and
/// milliseconds.
fn with_unit(text: &str, range: &RangeInclusive<Duration>) -> Option<String> {
    let amount = text.parse().ok()?;
    let units = [("s", Duration::from_secs(amount)), ("ms", Duration::from_millis(amount))];
    let possible = units.into_iter().filter(|(_, duration)| range.contains(duration));
    let possible: Vec<String> = possible.map(|(unit, _)| format!("`{amount}{unit}`")).collect();
    (!possible.is_empty()).then(|| format!("write {}", possible.join(" or ")))
}

/// Returns the help for a text that is not a length of time. Limits have more names for units:
/// `minute`, `60 seconds`.
fn meant_duration(text: &str, range: &RangeInclusive<Duration>) -> String {
    let limit = format!("1 per {text}").parse::<Limit>();
    if let Some(meant) = limit.map(|limit| limit.window()).ok().filter(|it| range.contains(it)) {
        return format!("write `{}`", format_duration(meant));
    }
    let usual = [Duration::from_secs(60), Duration::from_millis(25)];
    let example = usual.into_iter().find(|usual| range.contains(usual)).unwrap_or(*range.start());
    let example = format_duration(example);
    format!("write a whole number and ms, s, m, h, d or w, for example `{example}`")
}

fn format_duration(duration: Duration) -> String {
    let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let unit = UNITS_MS.iter().take(5).rev().find(|(_, unit)| ms.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{ms}ms"), |(name, unit)| format!("{}{name}", ms / unit))
}
