//! The schema for editors: it accepts what the parser accepts, rejects the mistakes that a schema
//! can express, and the documentation names every field of it.

use std::fs;

use granit_parser::{Event, Parser, ScalarStyle, Span};
use regex_lite::Regex;
use serde_json::{Map, Value, json};
use tidegate::Limit;
use tidegate::unstable::config::schema;

type Events<'e> = dyn Iterator<Item = (Event<'e>, Span)> + 'e;

/// Converts YAML to JSON, independently of the parser under test. Aliases are not followed.
fn json_of(yaml: &str) -> Value {
    let events = Parser::new_from_str(yaml).map(|event| event.expect("YAML"));
    let mut events = events
        .skip_while(|(event, _)| matches!(event, Event::StreamStart | Event::DocumentStart(..)));
    let (first, _) = events.next().expect("a value");
    value(first, &mut events)
}

fn value<'e>(event: Event<'e>, events: &mut Events<'e>) -> Value {
    match event {
        Event::Scalar(text, ScalarStyle::Plain, ..) => {
            serde_json::from_str(&text.replace('_', "")).unwrap_or_else(|_| json!(text))
        }
        Event::Scalar(text, ..) => json!(text),
        Event::SequenceStart(..) => {
            let mut items = Vec::new();
            loop {
                match events.next().expect("an item").0 {
                    Event::SequenceEnd => return Value::Array(items),
                    event => items.push(value(event, events)),
                }
            }
        }
        Event::MappingStart(..) => {
            let mut entries = Map::new();
            loop {
                let name = match events.next().expect("a name").0 {
                    Event::MappingEnd => return Value::Object(entries),
                    Event::Scalar(name, ..) => name.into_owned(),
                    event => panic!("{event:?}"),
                };
                let (event, _) = events.next().expect("a value");
                entries.insert(name, value(event, events));
            }
        }
        event => panic!("{event:?}"),
    }
}

/// Validates against the part of JSON Schema that the schema uses.
fn validates(root: &Value, schema: &Value, value: &Value) -> bool {
    let keywords = schema.as_object().expect("a schema");
    keywords.iter().all(|(keyword, constraint)| match (keyword.as_str(), value) {
        ("$ref", _) => {
            let name = constraint.as_str().and_then(|path| path.strip_prefix('#')).expect("a path");
            validates(root, root.pointer(name).expect("a definition"), value)
        }
        ("anyOf", _) => {
            constraint.as_array().expect("a list").iter().any(|one| validates(root, one, value))
        }
        ("enum", _) => constraint.as_array().expect("a list").contains(value),
        ("type", _) => match constraint {
            Value::Array(names) => names.iter().any(|name| is_type(name, value)),
            name => is_type(name, value),
        },
        ("pattern", Value::String(text)) => {
            Regex::new(constraint.as_str().expect("a pattern")).expect("a regex").is_match(text)
        }
        ("minimum", Value::Number(number)) => number.as_f64() >= constraint.as_f64(),
        ("maximum", Value::Number(number)) => number.as_f64() <= constraint.as_f64(),
        ("required", Value::Object(entries)) => {
            let names = constraint.as_array().expect("a list").iter();
            names.flat_map(Value::as_str).all(|name| entries.contains_key(name))
        }
        ("properties", Value::Object(entries)) => entries.iter().all(|(name, value)| {
            constraint.get(name).is_none_or(|schema| validates(root, schema, value))
        }),
        ("additionalProperties", Value::Object(entries)) => {
            let known = |name: &str| {
                let listed = keywords.get("properties").is_some_and(|all| all.get(name).is_some());
                let patterns = keywords.get("patternProperties").and_then(Value::as_object);
                listed
                    || patterns.is_some_and(|all| {
                        all.keys().any(|p| Regex::new(p).expect("a regex").is_match(name))
                    })
            };
            let mut rest = entries.iter().filter(|(name, _)| !known(name));
            rest.all(|(_, value)| constraint != &json!(false) && validates(root, constraint, value))
        }
        ("patternProperties", Value::Object(entries)) => {
            let patterns = constraint.as_object().expect("patterns");
            patterns.iter().all(|(pattern, schema)| {
                let pattern = Regex::new(pattern).expect("a regex");
                let mut matching = entries.iter().filter(|(name, _)| pattern.is_match(name));
                matching.all(|(_, value)| validates(root, schema, value))
            })
        }
        ("items", Value::Array(items)) => {
            items.iter().all(|item| validates(root, constraint, item))
        }
        ("minProperties", Value::Object(entries)) => {
            entries.len() as u64 >= constraint.as_u64().expect("a number")
        }
        ("maxProperties", Value::Object(entries)) => {
            entries.len() as u64 <= constraint.as_u64().expect("a number")
        }
        ("minItems", Value::Array(items)) => {
            items.len() as u64 >= constraint.as_u64().expect("a number")
        }
        ("maxItems", Value::Array(items)) => {
            items.len() as u64 <= constraint.as_u64().expect("a number")
        }
        ("$schema" | "$defs" | "title" | "description" | "examples", _) => true,
        (
            "pattern" | "minimum" | "maximum" | "required" | "properties" | "additionalProperties",
            _,
        ) => true,
        ("patternProperties" | "items" | "minItems" | "maxItems", _) => true,
        ("minProperties" | "maxProperties", _) => true,
        (keyword, _) => panic!("the schema uses {keyword}, which this test does not know"),
    })
}

fn is_type(name: &Value, value: &Value) -> bool {
    match name.as_str().expect("a type") {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        "boolean" => value.is_boolean(),
        name => panic!("the schema uses the type {name}, which this test does not know"),
    }
}

fn accepted(yaml: &str) -> bool {
    let schema = schema();
    validates(&schema, &schema, &json_of(yaml))
}

#[test]
fn good_configs_validate() {
    assert!(accepted(include_str!("valid/surface.yaml")));
    assert!(accepted(include_str!("../../../../../examples/tidegate.yaml")));
    // `json_of` does not follow aliases, so the value itself is inserted.
    let everything =
        include_str!("valid/everything.yaml").replace("match: *downloads", "match: { path: /x }");
    assert!(accepted(&everything));
}

#[test]
fn limit_texts_validate_if_the_parser_reads_them() {
    let texts = [
        "10 per 1s",
        "10/s",
        "100 requests per hour",
        "10 / 30s",
        "10 per 90 minutes",
        "10 per min",
        "1k per 1s",
        "2M/d token-bucket burst 10k",
        "5 concurrent lease 30 sec",
        "10 per 1.5s",
        "10 per month",
        "1m per 1s",
        "10 per",
        "10//s",
        "10 per 1 s x",
    ];
    for text in texts {
        let yaml = format!("policies: [{{ name: a, key: all, limits: [\"{text}\"] }}]");
        assert_eq!(accepted(&yaml), text.parse::<Limit>().is_ok(), "{text:?}");
    }
}

/// Mistakes that an editor with the schema reports.
#[test]
fn bad_configs_do_not_validate() {
    let names = [
        "bad-settings",
        "cost-fraction",
        "cost-negative",
        "cost-of-domain",
        "cost-of-path",
        "cost-text",
        "descriptors-empty-list",
        "descriptors-is-text",
        "descriptors-nested",
        "descriptors-too-many",
        "descriptors-two-names-in-an-entry",
        "domain-with-name",
        "empty-policies",
        "exempt-is-list",
        "headers-empty",
        "key-is-list",
        "key-unquoted",
        "limit-empty",
        "limit-is-number",
        "limit-mapping",
        "limit-no-number",
        "limit-per",
        "limit-unit",
        "limits-too-many",
        "match-header-without-name",
        "match-headers-list",
        "match-is-text",
        "match-nested",
        "match-unknown",
        "missing-fields",
        "misspelt-algorithm",
        "misspelt-mode",
        "mode-far",
        "name-is-list",
        "name-is-number",
        "name-too-long",
        "name-with-blank",
        "no-policies",
        "null-policies",
        "override-unlimited",
        "override-without-when",
        "overrides-is-mapping",
        "policies-is-mapping",
        "policy-is-text",
        "replaces-is-mapping",
        "tls",
        "top-is-list",
        "top-is-text",
        "unknown-field",
        "unknown-override-field",
        "unknown-policy-field",
    ];
    for name in names {
        let text = fs::read_to_string(format!("tests/it/config/errors/{name}.yaml")).expect(name);
        assert!(!accepted(&text), "{name} validates");
    }
}

/// Collects every name under `properties`, at any depth.
fn names(schema: &Value, found: &mut Vec<String>) {
    match schema {
        Value::Object(entries) => {
            if let Some(Value::Object(properties)) = entries.get("properties") {
                found.extend(properties.keys().cloned());
            }
            entries.values().for_each(|value| names(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| names(item, found)),
        _ => {}
    }
}

#[test]
fn documentation_names_every_field() {
    let page = fs::read_to_string("../../docs/config.md").expect("the page");
    let mut all = Vec::new();
    names(&schema(), &mut all);
    assert!(all.len() > 40, "{all:?}");
    for name in all {
        assert!(page.contains(&format!("`{name}`")), "docs/config.md does not name `{name}`");
    }
}
