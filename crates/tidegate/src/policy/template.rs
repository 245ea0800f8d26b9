//! Key templates: `{client_ip}`, `{header:x-api-key | client_ip}`, `{header:x-user}:{path}`.
//!
//! A template without a field would count all requests together, which is nearly always a forgotten
//! pair of braces. So only one such text is accepted: [`SHARED_KEY`].
//!
//! `key.rs` describes how templates are rendered, so that requests with different values never have
//! the same key.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::str::FromStr;

use smallvec::SmallVec;

use super::key::{Key, KeyWriter, value_length};
use super::normalized_request::NormalizedRequest;
use super::request_field::{FieldValue, RequestField, RequestFieldError};
use crate::identity::IpGroup;

/// The longest template, in bytes.
pub(crate) const MAX_TEMPLATE_BYTES: usize = 1024;

/// The largest number of fields in a template, including alternatives.
pub(crate) const MAX_TEMPLATE_FIELDS: usize = 16;

/// The only template without fields: all requests share one count.
pub const SHARED_KEY: &str = "all";

/// A template from which the keys of a policy are made.
///
/// ```
/// use tidegate::unstable::policy::Template;
///
/// let template: Template = "{header:x-api-key | client_ip}".parse()?;
/// assert_eq!(template.to_string(), "{header:x-api-key | client_ip}");
/// let error = "{client-ip}".parse::<Template>().unwrap_err();
/// assert_eq!(error.span(), 1..10);
/// // Without braces, all requests would share one count. To do that on purpose, write `all`.
/// assert!("client_ip".parse::<Template>().is_err());
/// assert!("all".parse::<Template>().is_ok());
/// # Ok::<(), tidegate::unstable::policy::TemplateError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: Box<str>,
    pub(super) pieces: Box<[Piece]>,
    /// Whether there are several fields, whose values are prefixed with their lengths.
    pub(super) is_composite: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Literal(Box<str>),
    /// A pair of braces, with one or more request fields. The first that has a value is used.
    Field(Box<[Alternative]>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Alternative {
    pub(super) field: RequestField,
    /// Such as `header:x-api-key=`; empty for a field without alternatives.
    pub(super) tag: Box<str>,
}

impl Template {
    /// Returns all fields in order, including alternatives.
    pub fn fields(&self) -> impl Iterator<Item = &RequestField> {
        let fields = self.pieces.iter().filter_map(|piece| match piece {
            Piece::Field(alternatives) => Some(alternatives),
            Piece::Literal(_) => None,
        });
        fields.flat_map(|alternatives| alternatives.iter().map(|alternative| &alternative.field))
    }

    /// Returns the template `{client_ip}`.
    pub fn client_ip() -> Self {
        let alternative = Alternative { field: RequestField::ClientIp, tag: "".into() };
        let pieces = [Piece::Field([alternative].into())].into();
        Template { text: "{client_ip}".into(), pieces, is_composite: false }
    }

    /// Returns the template as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the field, if the template is a single field without alternatives or literal text.
    pub fn single(&self) -> Option<&RequestField> {
        match &*self.pieces {
            [Piece::Field(alternatives)] if alternatives.len() == 1 => Some(&alternatives[0].field),
            _ => None,
        }
    }

    /// Renders the key of a request.
    pub(super) fn render(&self, request: &NormalizedRequest<'_>) -> Key {
        let mut writer = KeyWriter::default();
        for piece in &self.pieces {
            match piece {
                Piece::Literal(text) => writer.literal(text),
                Piece::Field(alternatives) => self.render_field(alternatives, request, &mut writer),
            }
        }
        writer.finish()
    }

    fn render_field(
        &self,
        alternatives: &[Alternative],
        request: &NormalizedRequest<'_>,
        writer: &mut KeyWriter,
    ) {
        let mut found =
            alternatives.iter().filter_map(|a| Some((&*a.tag, a.field.value(request)?)));
        let Some((tag, value)) = found.next() else {
            if self.is_composite {
                writer.length(1);
            }
            return writer.missing();
        };
        let mut text = SmallVec::<[u8; 64]>::new();
        let value = match &value {
            FieldValue::Bytes(bytes) => &**bytes,
            FieldValue::Group(group) => {
                write_group(*group, |piece| text.extend_from_slice(piece));
                &text
            }
        };
        if self.is_composite {
            let escaped = if tag.is_empty() { value_length(value) } else { value.len() };
            writer.length(tag.len() + escaped);
        }
        match tag {
            "" => writer.value(value),
            tag => writer.tagged(tag, value),
        }
    }

    /// Returns the alternatives of each field whose value the request lacks.
    pub(super) fn missing(&self, request: &NormalizedRequest<'_>) -> Vec<String> {
        self.empty_fields(request).map(|alternatives| names(alternatives).join(" | ")).collect()
    }

    /// Returns whether the request has a value for every field.
    #[cfg(feature = "tower")]
    pub(super) fn has_all_fields(&self, request: &NormalizedRequest<'_>) -> bool {
        self.empty_fields(request).next().is_none()
    }

    fn empty_fields(
        &self,
        request: &NormalizedRequest<'_>,
    ) -> impl Iterator<Item = &[Alternative]> {
        let fields = self.pieces.iter().filter_map(|piece| match piece {
            Piece::Field(alternatives) => Some(&**alternatives),
            Piece::Literal(_) => None,
        });
        fields.filter(|alternatives| alternatives.iter().all(|a| a.field.value(request).is_none()))
    }
}

fn names(alternatives: &[Alternative]) -> Vec<String> {
    alternatives.iter().map(|alternative| alternative.field.to_string()).collect()
}

/// Every octet as text followed by a dot, and the length of that text.
static OCTETS: [([u8; 4], u8); 256] = {
    let mut octets = [([0; 4], 0); 256];
    let mut octet = 0_u8;
    loop {
        let [a, b, c] = [b'0' + octet / 100, b'0' + octet / 10 % 10, b'0' + octet % 10];
        octets[octet as usize] = match octet {
            100.. => ([a, b, c, b'.'], 4),
            10.. => ([b, c, b'.', 0], 3),
            _ => ([c, b'.', 0, 0], 2),
        };
        if octet == u8::MAX {
            break octets;
        }
        octet += 1;
    }
};

/// Passes an address as text to `put`, perhaps in pieces.
pub(crate) fn write_group(group: IpGroup, mut put: impl FnMut(&[u8])) {
    if let IpAddr::V4(address) = group.network() {
        let mut text = [0; 16];
        let length = write_ipv4(address, &mut text);
        put(&text[..length]);
    } else {
        // Writing to memory cannot fail.
        let _ = fmt::Write::write_fmt(&mut WriteBytes(put), format_args!("{group}"));
    }
}

/// Writes an address as text and returns its length. Most keys are such addresses. Four bytes are
/// copied for each octet, because branches on the number of its digits would be mispredicted.
#[inline]
pub(crate) fn write_ipv4(address: Ipv4Addr, text: &mut [u8; 16]) -> usize {
    let mut length = 0;
    for octet in address.octets() {
        let (digits, width) = OCTETS[usize::from(octet)];
        text[length..length + 4].copy_from_slice(&digits);
        length += usize::from(width);
    }
    length - 1
}

struct WriteBytes<P>(P);

impl<P: FnMut(&[u8])> fmt::Write for WriteBytes<P> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        (self.0)(text.as_bytes());
        Ok(())
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

/// The kinds of invalid templates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TemplateErrorKind {
    /// The template is empty.
    Empty,
    /// The template is without a field in braces, and is not [`SHARED_KEY`].
    NoField,
    /// The template is longer than `MAX_TEMPLATE_BYTES`, or has more than `MAX_TEMPLATE_FIELDS`
    /// fields.
    TooLong,
    /// A `{` is not closed.
    Unclosed,
    /// A `}` is not opened.
    Unopened,
    /// The template has a control character.
    Control,
    /// A request field is listed twice among the alternatives of a field.
    Twice,
    /// The text between the braces is not a request field.
    RequestField(RequestFieldError),
}

/// The error of an invalid template: its kind, its position and how to fix it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    kind: TemplateErrorKind,
    span: Range<usize>,
}

impl TemplateError {
    /// Returns the kind of error.
    pub const fn kind(&self) -> TemplateErrorKind {
        self.kind
    }

    /// Returns the byte range of the error in the template.
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Returns a short description of the error.
    pub const fn problem(&self) -> &'static str {
        match self.kind {
            TemplateErrorKind::Empty => "the key is empty: all requests would share one count",
            TemplateErrorKind::NoField => {
                "the key is plain text: every request would share one count"
            }
            TemplateErrorKind::TooLong => "the key template is too long",
            TemplateErrorKind::Unclosed => "this `{` is not closed",
            TemplateErrorKind::Unopened => "this `}` closes nothing",
            TemplateErrorKind::Control => "a key template has no control characters",
            TemplateErrorKind::Twice => "this part is an alternative already",
            TemplateErrorKind::RequestField(error) => error.problem(),
        }
    }

    /// Returns how to fix it.
    pub const fn help(&self) -> &'static str {
        match self.kind {
            TemplateErrorKind::Empty => {
                "write `\"{client_ip}\"`, or `all` to share one count on purpose"
            }
            TemplateErrorKind::NoField => {
                "write a part in braces, such as `{client_ip}`, or `all` to share one count on purpose"
            }
            TemplateErrorKind::TooLong => "use at most 16 parts and 1024 bytes",
            TemplateErrorKind::Unclosed => {
                "write `}` after the part, or `{{` for the character itself"
            }
            TemplateErrorKind::Unopened => "write `}}` for the character itself",
            TemplateErrorKind::Control => "write visible characters only",
            TemplateErrorKind::Twice => "leave it out",
            TemplateErrorKind::RequestField(error) => error.help(),
        }
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.problem(), self.help())
    }
}

impl std::error::Error for TemplateError {}

// The texts above contain this word.
const _: () = assert!(matches!(SHARED_KEY.as_bytes(), b"all"));

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        let fail = |kind, span| Err(TemplateError { kind, span });
        if text.is_empty() {
            return fail(TemplateErrorKind::Empty, 0..0);
        }
        if text.len() > MAX_TEMPLATE_BYTES {
            return fail(TemplateErrorKind::TooLong, 0..text.len());
        }
        if let Some((at, c)) = text.char_indices().find(|(_, c)| c.is_control()) {
            return fail(TemplateErrorKind::Control, at..at + c.len_utf8());
        }
        let pieces = Pieces { text, at: 0, literal: String::new(), pieces: Vec::new() }.parse()?;
        let fields = pieces.iter().filter(|piece| matches!(piece, Piece::Field(_))).count();
        if fields == 0 && text != SHARED_KEY {
            return fail(TemplateErrorKind::NoField, 0..text.len());
        }
        let template =
            Template { text: text.into(), pieces: pieces.into(), is_composite: fields > 1 };
        if template.fields().count() > MAX_TEMPLATE_FIELDS {
            return fail(TemplateErrorKind::TooLong, 0..text.len());
        }
        Ok(template)
    }
}

struct Pieces<'t> {
    text: &'t str,
    at: usize,
    literal: String,
    pieces: Vec<Piece>,
}

impl Pieces<'_> {
    fn parse(mut self) -> Result<Vec<Piece>, TemplateError> {
        while let Some(c) = self.text[self.at..].chars().next() {
            let twice = self.text[self.at + c.len_utf8()..].starts_with(c);
            match c {
                '{' | '}' if twice => {
                    self.literal.push(c);
                    self.at += 2;
                }
                '{' => self.field()?,
                '}' => {
                    let span = self.at..self.at + 1;
                    return Err(TemplateError { kind: TemplateErrorKind::Unopened, span });
                }
                c => {
                    self.literal.push(c);
                    self.at += c.len_utf8();
                }
            }
        }
        self.end_literal();
        Ok(self.pieces)
    }

    fn end_literal(&mut self) {
        if !self.literal.is_empty() {
            let literal = std::mem::take(&mut self.literal);
            self.pieces.push(Piece::Literal(literal.into()));
        }
    }

    fn field(&mut self) -> Result<(), TemplateError> {
        let start = self.at + 1;
        let Some(length) = self.text[start..].find('}') else {
            let span = self.at..self.text.len();
            return Err(TemplateError { kind: TemplateErrorKind::Unclosed, span });
        };
        self.end_literal();
        let inside = &self.text[start..start + length];
        let mut fields: Vec<RequestField> = Vec::new();
        let mut at = start;
        for word in inside.split('|') {
            let blanks = word.len() - word.trim_start().len();
            let name = word.trim();
            let span = at + blanks..at + blanks + name.len();
            at += word.len() + 1;
            let error = |kind| TemplateError { kind, span: span.clone() };
            let field: RequestField =
                name.parse().map_err(|e| error(TemplateErrorKind::RequestField(e)))?;
            if fields.contains(&field) {
                return Err(error(TemplateErrorKind::Twice));
            }
            fields.push(field);
        }
        let is_choice = fields.len() > 1;
        let tag =
            |field: &RequestField| if is_choice { format!("{field}=") } else { String::new() };
        let alternatives =
            fields.into_iter().map(|field| Alternative { tag: tag(&field).into(), field });
        self.pieces.push(Piece::Field(alternatives.collect()));
        self.at = start + length + 1;
        Ok(())
    }
}
