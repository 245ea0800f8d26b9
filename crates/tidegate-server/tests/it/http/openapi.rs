//! `/openapi.json` describes the responses correctly.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde_json::{Value, json};

use super::serve;
use crate::server_harness::Server;

/// Resolves a `$ref`.
fn resolve<'a>(description: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str() {
        Some(path) => description.pointer(&path[1..]).expect(path),
        None => value,
    }
}

/// Returns whether `value` matches `schema`, for the keywords that this description uses.
fn fits(description: &Value, schema: &Value, value: &Value) -> bool {
    let schema = resolve(description, schema);
    let is_type = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{other}"),
    };
    let type_fits = match &schema["type"] {
        Value::String(name) => is_type(name),
        Value::Array(names) => names.iter().any(|name| is_type(name.as_str().expect("a name"))),
        _ => true,
    };
    let one_of = |name: &str| {
        schema[name]
            .as_array()
            .is_none_or(|all| all.iter().any(|one| fits(description, one, value)))
    };
    let format_fits = match schema["format"].as_str() {
        Some("ipv4") => value.as_str().is_none_or(|text| text.parse::<Ipv4Addr>().is_ok()),
        Some("ipv6") => value.as_str().is_none_or(|text| text.parse::<Ipv6Addr>().is_ok()),
        _ => true,
    };
    let enum_fits = schema["enum"].as_array().is_none_or(|all| all.contains(value));
    let const_fits = schema.get("const").is_none_or(|only| only == value);
    let required = schema["required"].as_array().is_none_or(|all| {
        all.iter().all(|name| value.get(name.as_str().expect("a name")).is_some())
    });
    let fields_fit = value.as_object().is_none_or(|fields| {
        fields.iter().all(|(name, field)| match schema["properties"].get(name) {
            Some(schema) => fits(description, schema, field),
            None => schema["additionalProperties"] != Value::Bool(false),
        })
    });
    let items_fit = value.as_array().is_none_or(|items| {
        schema
            .get("items")
            .is_none_or(|schema| items.iter().all(|item| fits(description, schema, item)))
    });
    let parts_fit = required && fields_fit && items_fit;
    type_fits && one_of("anyOf") && format_fits && enum_fits && const_fits && parts_fit
}

fn description(server: &Server) -> Value {
    let reply = server.ask("GET", "/openapi.json", &[], "");
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")));
    let description = reply.json();
    assert_eq!(description["info"]["version"], env!("CARGO_PKG_VERSION"));
    description
}

#[test]
fn responses_match_openapi() {
    let server = serve("description");
    let description = description(&server);
    let id = "0".repeat(32);
    #[rustfmt::skip]
    let rows: Vec<(&str, &str, String, &str)> = vec![
        ("POST", "/v1/check", "/v1/check".into(), r#"{"policy":"login","key":"a"}"#),
        ("POST", "/v1/check", "/v1/check".into(), r#"{"policy":"login","key":"a","cost":9}"#),
        ("POST", "/v1/check", "/v1/check".into(), r#"{"attributes":{"path":"/api/x","client_ip":"192.0.2.1"}}"#),
        ("POST", "/v1/check", "/v1/check".into(), r#"{"attributes":{"path":"/none"}}"#),
        ("POST", "/v1/check", "/v1/check".into(), r#"{"key":"a","limits":["5 per 1m"]}"#),
        ("POST", "/v1/check", "/v1/check".into(), "nonsense"),
        ("POST", "/v1/check", "/v1/check".into(), r#"{"policy":"nobody","key":"a"}"#),
        ("POST", "/v1/check", "/v1/check".into(), r#"{"policy":"jobs","key":"a"}"#),
        ("POST", "/v1/check/batch", "/v1/check/batch".into(), r#"{"checks":[{"policy":"login","key":"a"}]}"#),
        ("POST", "/v1/permits", "/v1/permits".into(), r#"{"policy":"jobs","key":"a"}"#),
        ("POST", "/v1/permits", "/v1/permits".into(), r#"{"policy":"jobs","key":"a","cost":2}"#),
        ("PUT", "/v1/permits/{id}", format!("/v1/permits/{id}"), ""),
        ("DELETE", "/v1/permits/{id}", format!("/v1/permits/{id}"), ""),
        ("GET", "/v1/forward-auth", "/v1/forward-auth".into(), ""),
        ("GET", "/v1/forward-auth", "/v1/forward-auth?deny_status=9".into(), ""),
        ("POST", "/json", "/json".into(), r#"{"domain":"d","descriptors":[{"entries":[{"key":"remote_address","value":"192.0.2.1"}]}]}"#),
        ("POST", "/json", "/json".into(), r#"{"domain":"d","descriptors":[{"entries":[{"key":"a"}],"limit":{"unit":"DAY"}}]}"#),
        ("POST", "/json", "/json".into(), r#"{"domain":""}"#),
        ("POST", "/v1/playground", "/v1/playground".into(), r#"{"limits":["5 per 1s sliding-log","5 per 1s","5 per 1s sliding-window","5 per 1s token-bucket","5 per 1s fixed-window"],"events":[{"at_us":0}],"samples":[0]}"#),
        ("POST", "/v1/playground", "/v1/playground".into(), r#"{"limits":[]}"#),
        ("GET", "/openapi.json", "/openapi.json".into(), ""),
    ];
    for (method, path, target, body) in rows {
        let reply = server.ask(method, &target, &[], body);
        let responses = &description["paths"][path][method.to_lowercase()]["responses"];
        let class = format!("{}XX", reply.status / 100);
        let response = responses.get(reply.status.to_string()).or(responses.get(class));
        let response =
            resolve(&description, response.unwrap_or_else(|| panic!("{target}: {reply:?}")));
        let Some(content) = response["content"].as_object() else {
            assert!(reply.body.is_empty(), "{target}");
            continue;
        };
        let kind = reply.header("content-type").expect("a kind");
        let schema = &content.get(kind).unwrap_or_else(|| panic!("{target}: {kind}"))["schema"];
        assert!(fits(&description, schema, &reply.json()), "{target} {body}: {}", reply.text());
    }
}

/// All accepted forms of addresses are described.
#[test]
fn openapi_describes_accepted_addresses() {
    let server = serve("description-addresses");
    let description = description(&server);
    let schema = &description["components"]["schemas"]["Check"];
    for client_ip in
        ["192.0.2.1", "192.0.2.1:55", "2001:db8::1", "[2001:db8::1]:55", "fe80::1%eth0"]
    {
        let body = json!({ "attributes": { "client_ip": client_ip } });
        assert_eq!(server.check(&body.to_string()).status, 200, "{client_ip}");
        assert!(fits(&description, schema, &body), "{client_ip}");
    }
}

#[test]
fn accepts_openapi_examples() {
    let server = serve("description-examples");
    let description = description(&server);
    for path in ["/v1/check", "/v1/check/batch", "/v1/permits", "/v1/playground", "/json"] {
        let content = &description["paths"][path]["post"]["requestBody"]["content"];
        let content = &content["application/json"];
        for (name, example) in content["examples"].as_object().expect("examples") {
            let body = &example["value"];
            assert!(fits(&description, &content["schema"], body), "{path} {name}");
            let reply = server.post(path, &body.to_string());
            // Only the policy `default`, which does not exist here, may be missing.
            let unknown = reply.status == 404 && reply.text().contains("policy `default`");
            assert!(reply.status < 300 || unknown, "{path} {name}: {reply:?}");
        }
    }
}
