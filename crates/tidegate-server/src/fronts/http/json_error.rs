//! Errors of JSON bodies: the field in error, and what it must be, in the words of JSON.

use serde::Deserialize;
use serde_json::error::Category;

use crate::error::RequestError;

/// The maximum length of a quotation from an invalid body in an error.
const MAX_QUOTED_BYTES: usize = 256;

/// Parses an invalid body again to find the field in error.
#[cold]
pub fn locate_error<'de, T: Deserialize<'de>>(
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
        let known = rest.split_once("`, expected ").map_or("", |(_, known)| known);
        let known = known.trim_start_matches("one of ");
        return Some(format!("is unknown: use {known}"));
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

/// Truncates quoted text: enough is left to recognize it.
fn truncate(mut text: String) -> String {
    if text.len() > MAX_QUOTED_BYTES {
        text.truncate(text.floor_char_boundary(MAX_QUOTED_BYTES));
        text.push_str("...");
    }
    text
}
