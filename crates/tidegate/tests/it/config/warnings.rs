//! Every kind of warning, with its complete message, and configs without any.

use std::path::Path;

use regex_lite::Regex;
use tidegate::unstable::config::{Config, ConfigErrors};

use super::{assert_as_recorded, files};
use crate::policy::TestRequest;

const DIRECTORY: &str = "tests/it/config/warnings";

fn warnings(text: &str) -> Vec<String> {
    let config = Config::parse(text, "config.yaml").unwrap_or_else(|errors| panic!("{errors}"));
    config.warnings.iter().map(|warning| warning.about().message().to_owned()).collect()
}

#[test]
fn warnings_are_as_recorded() {
    let message = |path: &Path| {
        let config = Config::load(path).unwrap_or_else(|errors| panic!("{errors}"));
        let shown = config.warnings.iter().map(|warning| format!("warning: {warning}\n"));
        shown.collect::<Vec<_>>().join("\n")
    };
    for path in files(DIRECTORY, "yaml") {
        assert_ne!(message(&path), "", "{}", path.display());
    }
    assert_as_recorded(DIRECTORY, message);
}

/// Conditions and keys that look similar to those with warnings.
#[test]
fn does_not_warn_of_ordinary_policies() {
    let policy = |rest: &str| format!("policies: [{{ name: a, limits: 5 per 1m, {rest} }}]");
    let address = |rest: &str| policy(&format!("key: '{{client_ip}}', {rest}"));
    let rows = [
        address(
            "match: { path: [/v1/**, '/*.*', /report.*, '/.well-known/*', '/[a-z]*', '/\\.*'] }",
        ),
        address("match: { path: ['/odata/$metadata', '/f(1)', /a+b, '/login{,/}'] }"),
        address(
            "match: { path: ['/a/{b,c}', '/a/{b:x,c}', '/a/*large', '/a/*-path', '/a?', '/?', '/a/[!/]'] }",
        ),
        address("match: { host: ['*.example.com', 'api.example.com'] }"),
        address("match: { path: /x }, exempt: { path: /x/y }"),
        address("match: { path: /x }, exempt: { path: /x }, mode: 'off'"),
        address("match: { methods: [GET, POST], path: /x }, exempt: { method: GET }"),
        policy("key: '{header:x-key | client_ip}'"),
        policy("key: '{header:x-org}:{client_ip}'"),
        policy("key: '{header:x-key}', match: { 'header:x-key': '*' }"),
        policy("key: '{header:x-key}', match: { headers: { x-key: [a, b] } }"),
        policy("key: '{path}:{method}:{host}'"),
        policy("key: all"),
        policy("key: all, cost: 5"),
        policy("key: all, cost: 9, mode: 'off'"),
        "policies: [{ name: a, key: all, limits: 0 per 1m, cost: 9 }]".into(),
        "trusted_proxies: [10.0.0.0/8, '::1']\npolicies: [{ name: a, key: all, limits: 5 per 1m }]"
            .into(),
        policy("key: '{descriptor:ip}', match: { descriptors: [ip] }"),
        policy("key: '{descriptor:#2}', match: { descriptors: [{ a: b }, ip] }"),
        policy("key: '{descriptor:ip}', match: { descriptors: { ip: '*' } }"),
        policy("key: '{descriptors}', match: { descriptors: { ip: '*' } }"),
    ];
    for text in rows {
        assert_eq!(warnings(&text), Vec::<String>::new(), "{text}");
    }
}

fn config_of_path(path: &str) -> Config {
    let text = format!(
        "policies: [{{ name: a, key: all, limits: 5 per 1m, match: {{ path: '{path}' }} }}]"
    );
    Config::parse(&text, "config.yaml").unwrap_or_else(|errors| panic!("{errors}"))
}

/// Asserts that the warning about a path suggests `glob`, which matches `samples` and has no
/// warning.
#[track_caller]
fn assert_suggests(path: &str, glob: &str, samples: &[&str]) {
    let warnings = config_of_path(path).warnings;
    let help: Vec<_> = warnings.iter().map(|warning| warning.about().help()).collect();
    assert_eq!(help, [format!("write `{glob}`")], "{path}");
    let suggested = config_of_path(glob);
    assert!(suggested.warnings.is_empty(), "{glob}");
    for sample in samples {
        let request = TestRequest::new(sample);
        let selected = suggested.policies.select(&request.attributes()).expect("no cost");
        assert_eq!(selected.len(), 1, "`{glob}` does not match {sample}");
    }
}

/// `/login/?$` suggested `/login/?`, which matches neither `/login` nor `/login/`.
#[test]
fn suggested_globs_match_what_the_regular_expression_matches() {
    let rows: [(&str, &str, &[&str]); 23] = [
        ("/login/?", "/login{,/}", &["/login", "/login/"]),
        ("/login/?$", "/login{,/}", &["/login", "/login/"]),
        ("/login$", "/login", &["/login"]),
        ("/v1/(items|things)/?", "/v1/{items,things}{,/}", &["/v1/items", "/v1/things/"]),
        ("/v1/(items|things)?$", "/v1/{,items,things}", &["/v1/", "/v1/things"]),
        ("/v1/items(/.*)?", "/v1/items{,/**}", &["/v1/items", "/v1/items/", "/v1/items/a/b"]),
        ("/v1/items(?:/.*)?$", "/v1/items{,/**}", &["/v1/items", "/v1/items/a/b"]),
        ("/v1(/items)?", "/v1{,/items}", &["/v1", "/v1/items"]),
        ("/v1(/items)?/[0-9]+", "/v1{,/items}/*", &["/v1/7", "/v1/items/7"]),
        ("/v1(/|/.*)?", "/v1{,/,/**}", &["/v1", "/v1/", "/v1/a/b"]),
        ("/v1/.*", "/v1/**", &["/v1/", "/v1/a", "/v1/a/b"]),
        ("/v1/(.*)", "/v1/**", &["/v1/", "/v1/a", "/v1/a/b"]),
        ("/v1/.+", "/v1/**", &["/v1/a", "/v1/a/b"]),
        ("/v1/.*/items", "/v1/**/items", &["/v1/a/items", "/v1/a/b/items"]),
        ("/.*\\.json$", "/**/*.json", &["/a.json", "/a/b.json"]),
        ("/.*\\.(png|jpg)$", "/**/*.{png,jpg}", &["/a.png", "/a/b.jpg"]),
        ("/users/[0-9]+", "/users/*", &["/users/7"]),
        ("/users/[^/]+/posts", "/users/*/posts", &["/users/ann/posts"]),
        ("/users/[A-Za-z0-9_-]+", "/users/*", &["/users/ann_b-7"]),
        ("/users/[\\w-]+$", "/users/*", &["/users/ann-b"]),
        ("/users/\\d+/\\w*", "/users/*/*", &["/users/7/ann"]),
        ("/v\\d/a$", "/v[0-9]/a", &["/v1/a"]),
        ("/v[12]/.*", "/v[12]/**", &["/v1/a", "/v2/a/b"]),
    ];
    for (regex, glob, samples) in rows {
        let anchored = Regex::new(&format!("^{}$", regex.trim_end_matches('$'))).expect(regex);
        for sample in samples {
            assert!(anchored.is_match(sample), "`{regex}` does not match {sample}");
        }
        assert_suggests(regex, glob, samples);
    }
}

#[test]
fn suggests_no_glob_for_regular_expressions_without_an_equivalent() {
    for regex in [
        "/a?/b$",
        "/ab*$",
        "/a+$",
        "/(a|b)+",
        "/(a|b)*",
        "/((a|b)|c)",
        "/(a|b)|/c",
        "/(a|.*)",
        "/a/.*?",
        "/a/.*?b$",
        "/a.*$",
        "/[0-9]{4}$",
        "/\\d{4}",
        "/[^a]+",
        "/[a-z/]+",
        "/[\\d]$",
        "/a(/|$)(.*)",
        "/(?i)a",
        "/a,b$",
    ] {
        let warnings = config_of_path(regex).warnings;
        let help: Vec<_> = warnings.iter().map(|warning| warning.about().help()).collect();
        assert!(help.len() == 1 && help[0].starts_with("write `*` for"), "{regex}: {help:?}");
    }
}

#[test]
fn suggested_globs_match_what_the_route_template_matches() {
    let rows: [(&str, &str, &[&str]); 20] = [
        ("/a/{id}", "/a/*", &["/a/7"]),
        ("/a/:id/b", "/a/*/b", &["/a/7/b"]),
        ("/a/{id:int}", "/a/*", &["/a/7"]),
        ("/a/{id:[0-9]+}", "/a/*", &["/a/7"]),
        ("/a/{id:[0-9]{1,3}}", "/a/*", &["/a/7"]),
        ("/a/{id:[^/]+}/b", "/a/*/b", &["/a/7/b"]),
        ("/a/{rest:.*}", "/a/**", &["/a/7", "/a/7/8"]),
        ("/a/{rest:path}", "/a/**", &["/a/7", "/a/7/8"]),
        ("/a/{*rest}", "/a/**", &["/a/7", "/a/7/8"]),
        ("/a/{**rest}", "/a/**", &["/a/7", "/a/7/8"]),
        ("/a/{rest...}", "/a/**", &["/a/7", "/a/7/8"]),
        ("/a/<id>", "/a/*", &["/a/7"]),
        ("/a/<int:id>/b", "/a/*/b", &["/a/7/b"]),
        ("/a/<path:rest>", "/a/**", &["/a/7", "/a/7/8"]),
        ("/a/*path", "/a/**", &["/a/7", "/a/7/8"]),
        ("/a/*rest", "/a/**", &["/a/7", "/a/7/8"]),
        ("/a/{id}/.*", "/a/*/**", &["/a/7/8/9"]),
        ("/a/{id}/?", "/a/*{,/}", &["/a/7", "/a/7/"]),
        ("/{a,b}/{id}", "/{a,b}/*", &["/a/7", "/b/7"]),
        ("/{a/b,c}/:id", "/{a/b,c}/*", &["/a/b/7", "/c/7"]),
    ];
    for (template, glob, samples) in rows {
        assert_suggests(template, glob, samples);
    }
}

/// Limits of one policy that both deny, or of which it is not certain that one never does.
#[test]
fn does_not_warn_of_limits_that_complement_each_other() {
    for limits in [
        "[10 per 1s, 100 per 1m]",
        "[100 per 1s, 50 per 1500ms]",
        "[100 per 1s, 50 per 1m sliding-log]",
        "[100 per 1s sliding-counter, 50 per 1m sliding-counter]",
        "[100 per 2s fixed-window, 50 per 3s fixed-window]",
        "[5 per 1s token-bucket burst 5, 5 per 1m token-bucket burst 9]",
        "[100 per 1s, 50 concurrent]",
        "[100 per 1s, 50 per 1m], overflow: consume",
    ] {
        let text = format!("policies: [{{ name: a, key: all, limits: {limits} }}]");
        assert_eq!(warnings(&text), Vec::<String>::new(), "{text}");
    }
}

/// Pairs of policies of which both have an effect.
#[test]
fn does_not_warn_of_policies_that_complement_each_other() {
    let rows = [
        // The second matches fewer requests, but is stricter.
        ("limits: 100 per 1m", "match: { path: /a }, limits: 5 per 1m"),
        // The windows, algorithms, keys, costs or modes differ.
        ("limits: 5 per 1m", "match: { path: /a }, limits: 5 per 1h"),
        ("limits: 5 per 1m", "match: { path: /a }, limits: 5 per 1m sliding-log"),
        ("limits: 5 per 1m", "match: { path: /a }, limits: 5 per 1m, cost: '{header:x}'"),
        ("limits: 5 per 1m, mode: observe", "match: { path: /a }, limits: 5 per 1m"),
        ("limits: 5 per 1m, exempt: { method: GET }", "match: { path: /a }, limits: 5 per 1m"),
        // The second denies when the store fails, or still counts then.
        ("limits: 5 per 1m", "match: { path: /a }, limits: 5 per 1m, on_store_failure: deny"),
        ("limits: 5 per 1m, on_store_failure: allow", "match: { path: /a }, limits: 5 per 1m"),
        // The replaced policy also matches other requests, or the other one is off.
        ("limits: 9 per 1m", "match: { path: /a }, limits: 5 per 1h, replaces: a"),
        ("limits: 9 per 1m", "limits: 5 per 1h, replaces: a, mode: 'off'"),
        ("limits: 9 per 1m", "limits: 5 per 1h, replaces: a, exempt: { method: GET }"),
    ];
    for (first, second) in rows {
        let key = "key: '{client_ip}'";
        let text =
            format!("policies: [{{ name: a, {key}, {first} }}, {{ name: b, {key}, {second} }}]");
        assert_eq!(warnings(&text), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn warnings_become_errors() {
    let text = "policies: [{ name: a, key: '{header:x}', limits: 5 per 1m }]";
    let config = Config::parse(text, "config.yaml").expect("a valid config");
    let errors = ConfigErrors::from_warnings(&config.warnings).expect("a warning");
    assert_eq!(errors.to_string(), config.warnings[0].to_string());
    assert_eq!(ConfigErrors::from_warnings(&[]), None);
}
