//! The JSON bodies of requests. `check_request.rs` validates their values.
//!
//! Decoding borrows from the body and stops at the first error. Only then is the body parsed again,
//! with tracking of paths, so that the error names its field, as in `checks[3].cost`. Valid
//! requests do not pay for that. The error says what the field must be in the words of JSON, not of
//! serde.

use std::borrow::Cow;
use std::fmt;
use std::iter;
use std::marker::PhantomData;

use serde::de::value::{Error as ValueError, MapAccessDeserializer, MapDeserializer};
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Unexpected, Visitor};
use serde_json::error::Category;
use tidegate::unstable::policy::RequestField;

use crate::error::RequestError;

/// A string in the body.
#[derive(Debug, serde::Deserialize)]
#[serde(transparent)]
pub struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// A whole number. `2.0` is accepted too, because JSON has only one type of number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonInt(pub i64);

impl<'de> Deserialize<'de> for JsonInt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_i64(JsonIntVisitor)
    }
}

struct JsonIntVisitor;

impl Visitor<'_> for JsonIntVisitor {
    type Value = JsonInt;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<JsonInt, E> {
        Ok(JsonInt(number))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<JsonInt, E> {
        // Larger values are out of every range.
        Ok(JsonInt(i64::try_from(number).unwrap_or(i64::MAX)))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<JsonInt, E> {
        if number.trunc() != number {
            return Err(E::invalid_type(Unexpected::Float(number), &self));
        }
        #[expect(clippy::cast_possible_truncation, reason = "whole, and beyond i64 it saturates")]
        Ok(JsonInt(number as i64))
    }
}

/// A JSON object only. By default, serde would also accept an array as the fields in their order.
#[derive(Debug, Default)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

/// An array of which at most `KEPT` elements are kept. The others are skipped without using memory.
#[derive(Debug)]
pub struct BoundedVec<T, const KEPT: usize>(pub Vec<T>);

impl<'de, T: Deserialize<'de>, const KEPT: usize> Deserialize<'de> for BoundedVec<T, KEPT> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(BoundedVecVisitor(PhantomData))
    }
}

struct BoundedVecVisitor<T, const KEPT: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const KEPT: usize> Visitor<'de> for BoundedVecVisitor<T, KEPT> {
    type Value = BoundedVec<T, KEPT>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<BoundedVec<T, KEPT>, A::Error> {
        let mut kept = Vec::new();
        while kept.len() < KEPT {
            match list.next_element()? {
                Some(element) => kept.push(element),
                None => return Ok(BoundedVec(kept)),
            }
        }
        while list.next_element::<de::IgnoredAny>()?.is_some() {}
        Ok(BoundedVec(kept))
    }
}

/// The body of a check. The attributes are boxed because they are large and the body is moved.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckBody<'a> {
    #[serde(borrow)]
    pub policy: Option<Text<'a>>,
    #[serde(borrow)]
    pub key: Option<Text<'a>>,
    pub cost: Option<JsonInt>,
    #[serde(borrow)]
    pub id: Option<Text<'a>>,
    #[serde(borrow)]
    pub attributes: Option<Box<Object<AttributesBody<'a>>>>,
    #[serde(borrow)]
    pub limits: Option<Vec<Text<'a>>>,
    pub max_wait_ms: Option<JsonInt>,
    pub force: Option<bool>,
}

/// The body of a batch.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchBody<'a> {
    #[serde(borrow)]
    pub checks: Vec<Object<CheckBody<'a>>>,
}

/// The body of a request for a permit.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PermitBody<'a> {
    #[serde(borrow)]
    pub policy: Option<Text<'a>>,
    #[serde(borrow)]
    pub key: Option<Text<'a>>,
    pub cost: Option<JsonInt>,
    #[serde(borrow)]
    pub attributes: Option<Box<Object<AttributesBody<'a>>>>,
    #[serde(borrow)]
    pub limits: Option<Vec<Text<'a>>>,
    pub ttl_ms: Option<JsonInt>,
}

/// The body of a renewal.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RenewBody {
    pub ttl_ms: Option<JsonInt>,
}

/// The attributes of a request, as a caller sends them.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AttributesBody<'a> {
    #[serde(borrow)]
    pub method: Option<Text<'a>>,
    #[serde(borrow)]
    pub path: Option<Text<'a>>,
    #[serde(borrow)]
    pub query: Option<Text<'a>>,
    #[serde(borrow)]
    pub host: Option<Text<'a>>,
    #[serde(borrow)]
    pub client_ip: Option<Text<'a>>,
    #[serde(borrow)]
    pub headers: Option<Pairs<'a>>,
    #[serde(borrow)]
    pub domain: Option<Text<'a>>,
    #[serde(borrow)]
    pub descriptors: Option<DescriptorList<'a>>,
}

/// An object of strings, in the order of the body.
#[derive(Debug, Default)]
pub struct Pairs<'a>(pub Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor { accepts_list: false })
    }
}

/// Descriptor entries: an object of strings or, because a name may occur twice, an array of objects
/// with one name each.
#[derive(Debug, Default)]
pub struct DescriptorList<'a>(pub Pairs<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for DescriptorList<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pairs = deserializer.deserialize_any(PairsVisitor { accepts_list: true });
        pairs.map(DescriptorList)
    }
}

struct PairsVisitor {
    /// Whether a list of objects with one name each is accepted too.
    accepts_list: bool,
}

impl<'de> Visitor<'de> for PairsVisitor {
    type Value = Pairs<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.accepts_list {
            true => "an object of names and texts, or a list of objects with one name each",
            false => "an object of names and texts",
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'de>, A::Error> {
        let mut pairs = Vec::new();
        while let Some((Text(name), Text(value))) = map.next_entry()? {
            pairs.push((name, value));
        }
        Ok(Pairs(pairs))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Pairs<'de>, A::Error> {
        if !self.accepts_list {
            return Err(de::Error::invalid_type(Unexpected::Seq, &self));
        }
        let mut pairs = Pairs::default();
        while let Some(Pairs(mut one)) = list.next_element::<Pairs<'de>>()? {
            match (one.pop(), one.is_empty()) {
                (Some(pair), true) => pairs.0.push(pair),
                _ => return Err(de::Error::custom("each object of the list has one name")),
            }
        }
        Ok(pairs)
    }
}

/// Decodes a body.
pub fn decode<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, RequestError> {
    // Validates the whole body once instead of every string in it.
    let Ok(body) = std::str::from_utf8(body) else {
        return Err(RequestError::invalid("the body is not UTF-8: send JSON as UTF-8"));
    };
    let decoded: Result<Object<T>, _> = serde_json::from_str(body);
    decoded.map(|Object(body)| body).map_err(|error| locate_error::<Object<T>>(body, &error))
}

/// The maximum length of a quotation from an invalid body in an error.
const MAX_QUOTED_BYTES: usize = 256;

/// Parses an invalid body again to find the field in error.
#[cold]
fn locate_error<'de, T: Deserialize<'de>>(
    body: &'de str,
    error: &serde_json::Error,
) -> RequestError {
    if body.is_empty() {
        return RequestError::invalid("the body is empty: send JSON");
    }
    let (line, column) = (error.line(), error.column());
    match error.classify() {
        Category::Eof => {
            return RequestError::invalid("the body ends before its JSON is complete");
        }
        Category::Syntax | Category::Io => {
            let detail = format!("the body is not valid JSON: see line {line}, column {column}");
            return RequestError::invalid(detail);
        }
        Category::Data => {}
    }
    let mut json = serde_json::Deserializer::from_str(body);
    let mut field = match serde_path_to_error::deserialize::<_, T>(&mut json) {
        Ok(_) => String::new(),
        // Where the name itself is missing, the path ends with a question mark.
        Err(error) => {
            error.path().to_string().trim_end_matches('?').trim_end_matches('.').to_owned()
        }
    };
    let text = error.to_string();
    let text = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text);
    // These errors are about a field inside the object that the path names.
    let inner = ["duplicate field `", "missing field `"]
        .iter()
        .find_map(|about| text.strip_prefix(about)?.split('`').next());
    if let Some(inner) = inner {
        if !field.is_empty() {
            field.push('.');
        }
        field.push_str(inner);
    }
    let subject = if field.is_empty() { "the body" } else { "it" };
    let detail = describe(text).map_or_else(|| text.into(), |what| format!("{subject} {what}"));
    let (field, detail) = (truncate(field), truncate(detail));
    if field.is_empty() {
        RequestError::invalid(detail)
    } else {
        RequestError::field(field, detail)
    }
}

/// Describes an error of serde in the words of JSON, without its subject. `None` for an error of
/// this crate, which needs no other words.
fn describe(text: &str) -> Option<String> {
    if let Some(rest) = text.strip_prefix("unknown field `") {
        let (found, known) = rest.split_once("`, expected ").unwrap_or((rest, ""));
        let known = known.trim_start_matches("one of ");
        return Some(describe_unknown(found, known));
    }
    if text.starts_with("missing field `") {
        return Some("is missing".into());
    }
    if text.starts_with("duplicate field `") {
        return Some("is given twice".into());
    }
    let wrong = text.strip_prefix("invalid type: ").or(text.strip_prefix("invalid value: "));
    let (found, expected) = wrong?.rsplit_once(", expected ")?;
    let value = |kind: &str, quote: char| {
        let value = found.strip_prefix(kind)?.strip_prefix(quote)?;
        Some(value.strip_suffix(quote).unwrap_or(value))
    };
    let number = ["integer ", "floating point ", "boolean "].into_iter();
    let found = match found {
        "map" => "an object".into(),
        "sequence" => "a list".into(),
        found => match (value("string ", '"'), number.map(|kind| value(kind, '`')).find_map(|v| v))
        {
            (Some(text), _) => format!("the string \"{text}\""),
            (None, Some(number)) => number.into(),
            (None, None) => found.to_owned(),
        },
    };
    let expected = match expected {
        "a sequence" => "a list",
        "a boolean" => "true or false",
        "i64" | "u64" | "u32" => "a whole number",
        expected => expected,
    };
    Some(format!("must be {expected}, but is {found}"))
}

/// Names this long are not compared with the known ones.
const MAX_COMPARED_BYTES: usize = 32;

/// Describes an unknown field, with the one that was probably meant. `known` lists the known fields
/// as serde does.
fn describe_unknown(found: &str, known: &str) -> String {
    let all = || known.split(", ").map(|name| name.trim_matches('`'));
    let meant = RequestField::equivalent(found).unwrap_or(found);
    if all().any(|name| name == "attributes") && is_attribute(meant) {
        let name = if meant == found { String::new() } else { format!(", as `{meant}`") };
        return format!("is unknown here: put it in `attributes`{name}");
    }
    let is_near = |name: &&str| {
        *name == meant
            || (3..=MAX_COMPARED_BYTES).contains(&found.len())
                && (name.starts_with(found) || strsim::damerau_levenshtein(name, found) == 1)
    };
    match all().find(is_near) {
        Some(near) => format!("is unknown; did you mean `{near}`?"),
        None => format!("is unknown: use {known}"),
    }
}

/// Whether [`AttributesBody`] has a field with this name. Callers also send these beside
/// `attributes`.
fn is_attribute(name: &str) -> bool {
    let body = MapDeserializer::<_, ValueError>::new(iter::once((name, ())));
    AttributesBody::deserialize(body).is_ok()
}

/// Truncates quoted text: enough is left to recognize it.
fn truncate(mut text: String) -> String {
    if text.len() > MAX_QUOTED_BYTES {
        text.truncate(text.floor_char_boundary(MAX_QUOTED_BYTES));
        text.push_str("...");
    }
    text
}
