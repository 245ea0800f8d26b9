//! One JSON object per line: `{"time_us":5,"key":"alice","cost":2}`, or any fields with roles.
//!
//! Dots in a name select fields of nested objects. Of an array the first value is used, because
//! logs write headers as arrays. But a key must be an array of one value, and a time or a cost must
//! not be an array. Each line is parsed once. Values that are not needed are skipped without being
//! stored.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::field_map::{FieldMap, MissingField, Values};
use super::roles::Role;
use super::{BadLine, Event, ParseOptions};

/// The maximum number of names considered to assign roles. Logs have fewer.
const MAX_NAMES: usize = 256;

/// The maximum depth of nested objects.
const MAX_DEPTH: usize = 4;

/// Parses the lines of one file.
#[derive(Clone, Debug)]
pub struct JsonlParser {
    pub field_map: FieldMap,
    /// The names of the fields in the first lines, for errors.
    pub names: Vec<String>,
    /// The fields that are needed, each as the path of names that leads to it.
    paths: Vec<Vec<Box<str>>>,
    /// The maximum length of each field that is an array.
    longest: Vec<usize>,
}

impl JsonlParser {
    /// Creates a parser from the first lines of a file.
    pub fn new<'l>(
        options: &ParseOptions,
        lines: impl Iterator<Item = &'l [u8]>,
    ) -> Result<Self, MissingField> {
        let names = names(lines);
        let field_map = FieldMap::new(options, &names)?;
        let path = |name: &str| name.split('.').map(Into::into).collect();
        let paths = field_map.fields().map(|(_, name)| path(name)).collect();
        let longest = |(role, _): (&Role, &str)| match role {
            Role::Time | Role::Date | Role::Cost => 0,
            Role::Key => 1,
            _ => usize::MAX,
        };
        let longest = field_map.fields().map(longest).collect();
        Ok(JsonlParser { field_map, names, paths, longest })
    }

    pub fn parse<'a>(&mut self, line: &'a [u8]) -> Result<Event<'a>, BadLine> {
        // serde would also accept an array, but only an object names its fields.
        if line.trim_ascii_start().first() != Some(&b'{') {
            return Err(BadLine::NotAnObject);
        }
        let mut values = Values::from_elem(None, self.paths.len());
        let options: Vec<_> = self.paths.iter().map(|path| &path[..]).enumerate().collect();
        let mut from = serde_json::Deserializer::from_slice(line);
        let mut array = None;
        let longest = &self.longest;
        let pick = Pick { options: &options, values: &mut values, longest, array: &mut array };
        pick.deserialize(&mut from).map_err(BadLine::Json)?;
        from.end().map_err(BadLine::Json)?;
        if let Some((_, name)) = array.and_then(|place| self.field_map.fields().nth(place)) {
            return Err(BadLine::Array { field: name.into() });
        }
        self.field_map.event(&mut values)
    }
}

/// Returns whether a line is a JSON object.
pub fn is_object(line: &[u8]) -> bool {
    line.trim_ascii_start().first() == Some(&b'{')
        && serde_json::from_slice::<IgnoredAny>(line).is_ok()
}

/// Returns the names of the fields in the first lines. Names of nested fields are dotted.
pub fn names<'l>(lines: impl Iterator<Item = &'l [u8]>) -> Vec<String> {
    let mut names = Vec::new();
    for line in lines {
        if let Ok(value) = serde_json::from_slice(line) {
            collect(&value, String::new(), 0, &mut names);
        }
    }
    names
}

fn collect(value: &serde_json::Value, name: String, depth: usize, names: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) if depth < MAX_DEPTH => {
            let prefix = if name.is_empty() { name } else { name + "." };
            for (field, value) in fields {
                collect(value, format!("{prefix}{field}"), depth + 1, names);
            }
        }
        serde_json::Value::Null => {}
        _ if names.len() < MAX_NAMES && !names.contains(&name) => names.push(name),
        _ => {}
    }
}

/// Extracts the needed fields from an object and its nested objects.
struct Pick<'w, 'v, 'a> {
    /// The index of each value, and the names that lead to it from this object.
    options: &'w [(usize, &'w [Box<str>])],
    values: &'v mut Values<'a>,
    /// The maximum length of each value that is an array. `array` is the index of a longer one.
    longest: &'w [usize],
    array: &'v mut Option<usize>,
}

impl<'a> DeserializeSeed<'a> for Pick<'_, '_, 'a> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'a>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'a> Visitor<'a> for Pick<'_, '_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<Name<'a>>()? {
            let leads = |(_, path): &&(usize, &[Box<str>])| {
                path.first().is_some_and(|first| **first == *name.0)
            };
            if !self.options.iter().any(|one| leads(&one)) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let raw = map.next_value::<&'a RawValue>()?.get();
            let mut deeper: Vec<(usize, &[Box<str>])> = Vec::new();
            for (place, path) in self.options.iter().filter(leads) {
                match &path[1..] {
                    [] => match scalar(raw, self.longest[*place]) {
                        Ok(value) => self.values[*place] = value,
                        Err(TooLong) => *self.array = Some(*place),
                    },
                    rest => deeper.push((*place, rest)),
                }
            }
            if !deeper.is_empty() && raw.starts_with('{') {
                let mut from = serde_json::Deserializer::from_str(raw);
                let Pick { longest, .. } = self;
                let array = &mut *self.array;
                let pick = Pick { options: &deeper, values: self.values, longest, array };
                pick.deserialize(&mut from).map_err(serde::de::Error::custom)?;
            }
        }
        Ok(())
    }
}

/// A string, borrowed unless it contains escapes.
#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// The array is longer than allowed.
struct TooLong;

/// Returns the text of a value: `None` for null and objects, and the first value of an array.
fn scalar(raw: &str, longest: usize) -> Result<Option<Cow<'_, [u8]>>, TooLong> {
    Ok(match raw.as_bytes().first() {
        Some(b'"') => match serde_json::from_str::<Name<'_>>(raw) {
            Ok(Name(Cow::Borrowed(text))) => Some(Cow::Borrowed(text.as_bytes())),
            Ok(Name(Cow::Owned(text))) => Some(Cow::Owned(text.into_bytes())),
            Err(_) => None,
        },
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(raw).unwrap_or_default();
            if items.len() > longest || longest == 0 {
                return Err(TooLong);
            }
            match items.first().filter(|item| !item.get().starts_with('[')) {
                Some(item) => scalar(item.get(), longest)?,
                None => None,
            }
        }
        None | Some(b'{' | b'n') => None,
        Some(_) => Some(Cow::Borrowed(raw.as_bytes())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse<'a>(line: &'a str, fields: &str) -> Result<Event<'a>, BadLine> {
        let mut options = ParseOptions::default();
        options.fields.extend(fields.split(',').filter_map(|field| field.parse().ok()));
        let jsonl = JsonlParser::new(&options, [line.as_bytes()].into_iter());
        jsonl.map_err(|_| BadLine::NoTime)?.parse(line.as_bytes())
    }

    #[test]
    fn parses_valid_lines() {
        let event = parse(r#"{"time_us":5,"key":"a"}"#, "").expect("an event");
        assert_eq!(event, Event { time_us: 5, key: Cow::Borrowed(b"a"), cost: 1 });
        assert!(matches!(event.key, Cow::Borrowed(_)), "a plain key is not copied");
        let event = parse(r#" {"cost":-2,"key":"\u00e9\"","x":[1],"time_us":5} "#, "");
        let event = event.expect("an event");
        assert_eq!((event.key.as_ref(), event.cost), ("\u{e9}\"".as_bytes(), -2));
    }

    #[test]
    fn maps_given_and_usual_fields() {
        const T: u64 = 1_700_000_000_500_000;
        for (line, fields, key) in [
            (r#"{"ts":1700000000.5,"remote_addr":"a"}"#, "", "a"),
            (r#"{"time":"2023-11-14T22:13:20.5Z","client_ip":"a"}"#, "", "a"),
            (r#"{"msec":"1700000000.500","key":7}"#, "", "7"),
            (r#"{"t":1700000000500,"u":{"id":"x","id2":"y"}}"#, "time=t,key=u.id", "x"),
            (r#"{"ts":1700000000500000,"ids":["p"]}"#, "key=ids", "p"),
            (r#"{"ts":1.7000000005e9,"key":"a"}"#, "", "a"),
            (r#"{"ts":17000000005E-1,"key":"a"}"#, "", "a"),
            (r#"{"ts":1700000000.5,"request":{"remote_ip":"c","headers":{}}}"#, "", "c"),
        ] {
            let event = parse(line, fields).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!((event.time_us, &*event.key), (T, key.as_bytes()), "{line}");
        }
    }

    #[test]
    fn rejects_arrays_as_times_and_keys() {
        for line in [
            r#"{"time_us":[5],"key":"a"}"#,
            r#"{"time_us":[],"key":"a"}"#,
            r#"{"time_us":5,"key":[1,2]}"#,
            r#"{"time_us":5,"key":"a","cost":[2]}"#,
        ] {
            let why = parse(line, "").expect_err(line).to_string();
            assert!(why.ends_with("` is an array; it must be a single value"), "{line}: {why}");
        }
    }

    #[test]
    fn rejects_invalid_lines() {
        for line in [
            "",
            "[5,\"a\",1]",
            "{\"time_us\":5,\"key\":\"a\"",
            "{\"time_us\":5}",
            "{\"key\":\"a\"}",
            "{\"time_us\":-5,\"key\":\"a\"}",
            "{\"time_us\":null,\"key\":\"a\"}",
            "{\"time_us\":5,\"key\":{}}",
            "{\"time_us\":5,\"key\":null}",
            "{\"time_us\":5,\"key\":\"a\",\"cost\":\"x\"}",
            "{\"time_us\":5,\"key\":\"a\",\"cost\":1.5}",
            "{\"time_us\":5,\"key\":\"a\"} {}",
        ] {
            assert!(parse(line, "").is_err(), "{line}");
        }
    }
}
