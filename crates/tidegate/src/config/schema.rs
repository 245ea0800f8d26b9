//! Generates a JSON Schema from the table of fields, for editors.

use serde_json::{Map, Value, json};

use super::fields::{ALGORITHMS, CONCURRENT, CONDITIONS, Field, RATE, Shape, TOP, UNLIMITED};
use crate::policy::{MAX_ENTRIES, MAX_EXEMPT_VALUES, MAX_LIMITS, MAX_NAME_BYTES, SHARED_KEY};

/// Returns a JSON Schema (2020-12) of the config.
///
/// It describes the fields, their types and their allowed words. Rules that a schema cannot
/// express, such as whether an override can ever apply, are checked by
/// [`Config::parse`](super::Config::parse).
pub fn schema() -> Value {
    let mut top = object(TOP);
    let head = [
        ("$schema", json!("https://json-schema.org/draft/2020-12/schema")),
        ("title", json!("tidegate config")),
        ("$defs", definitions()),
    ];
    if let Some(top) = top.as_object_mut() {
        top.extend(head.map(|(name, value)| (name.to_owned(), value)));
    }
    top
}

/// Returns the definitions that are used in several places.
fn definitions() -> Value {
    let named = "^(header|query|cookie|descriptor):.+$";
    let mut conditions = object(CONDITIONS);
    conditions["patternProperties"] = json!({ named: texts() });
    conditions["properties"]["headers"] = json!({ "type": "object", "additionalProperties": texts(), "description": "Header names and the values they must have" });
    let words = ALGORITHMS.join("|");
    let units = "ms|s|m|h|d|w|milliseconds?|sec(ond)?s?|min(ute)?s?|hours?|days?|weeks?";
    let (number, time) = ("[0-9]+[kM]?", format!(r"([0-9]+\s*)?({units})"));
    let count = format!(r"{number}(\s+requests?)?");
    let per = r"(\s+per\s+|\s*/\s*)";
    let rate = format!(r"^\s*{count}{per}{time}(\s+({words}|burst\s+{number}))*\s*$");
    let held = format!(r"^\s*{count}\s+concurrent(\s+lease\s+{time})?\s*$");
    json!({
        "conditions": conditions,
        "limit": { "anyOf": [
            { "type": "string", "pattern": rate, "examples": ["10 per 1s", "5 per 1m sliding-log", "600 per 1m token-bucket burst 50"] },
            { "type": "string", "pattern": held, "examples": ["10 concurrent", "10 concurrent lease 5m"] },
            object(RATE),
            object(CONCURRENT),
        ] },
    })
}

fn object(fields: &[Field]) -> Value {
    let properties: Map<String, Value> =
        fields.iter().map(|field| (field.name.to_owned(), property(field))).collect();
    let required: Vec<&str> =
        fields.iter().filter(|field| field.is_required).map(|field| field.name).collect();
    let mut object =
        json!({ "type": "object", "additionalProperties": false, "properties": properties });
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    object
}

fn property(field: &Field) -> Value {
    let mut value = match (&field.shape, field.name) {
        (Shape::Text, "name") => {
            json!({ "type": "string", "pattern": format!("^[A-Za-z0-9._-]{{1,{MAX_NAME_BYTES}}}$") })
        }
        (shape, _) => shape_schema(shape),
    };
    value["description"] = json!(field.about);
    value
}

fn shape_schema(shape: &Shape) -> Value {
    match shape {
        Shape::Text => json!({ "type": "string" }),
        Shape::Template => {
            json!({ "type": "string", "pattern": format!(r"^{SHARED_KEY}$|\{{[^{{}}]+\}}") })
        }
        Shape::Words(words) => json!({ "enum": words }),
        Shape::WordList(words) => {
            json!({ "anyOf": [{ "enum": words }, { "type": "array", "items": { "enum": words }, "minItems": 1 }] })
        }
        Shape::Integer(least, most) => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        Shape::Boolean => json!({ "type": "boolean" }),
        Shape::Duration => json!({ "type": "string", "pattern": "^[0-9]+(ms|s|m|h|d|w)$" }),
        Shape::Texts => texts(),
        Shape::Object(fields) => object(fields),
        Shape::Objects(fields, most) => {
            json!({ "type": "array", "items": object(fields), "minItems": 1, "maxItems": most })
        }
        Shape::Limits => json!({ "anyOf": limits() }),
        Shape::LimitsOrNone => {
            let [one, several] = limits();
            json!({ "anyOf": [{ "enum": [UNLIMITED] }, one, several] })
        }
        Shape::Descriptors => {
            let named = json!({ "type": "object", "additionalProperties": texts() });
            let entry = json!({ "type": "object", "additionalProperties": texts(), "minProperties": 1, "maxProperties": 1 });
            let entry = json!({ "anyOf": [{ "type": ["string", "number", "boolean"] }, entry] });
            json!({ "anyOf": [named, { "type": "array", "items": entry, "minItems": 1, "maxItems": MAX_ENTRIES }] })
        }
        Shape::Cost => {
            json!({ "anyOf": [{ "type": "integer", "minimum": 0 }, { "type": "string", "pattern": r"^\{(header|query|cookie|descriptor):.+\}$" }] })
        }
        Shape::Conditions => json!({ "$ref": "#/$defs/conditions" }),
    }
}

/// Returns the schemas of one limit and of a list of them.
fn limits() -> [Value; 2] {
    let limit = json!({ "$ref": "#/$defs/limit" });
    let several = json!({ "type": "array", "items": limit, "minItems": 1, "maxItems": MAX_LIMITS });
    [limit, several]
}

/// Returns the schema of one value or a list of them. Numbers and booleans are read as text.
fn texts() -> Value {
    let scalar = json!({ "type": ["string", "number", "boolean"] });
    json!({ "anyOf": [scalar, { "type": "array", "items": scalar, "maxItems": MAX_EXEMPT_VALUES }] })
}
