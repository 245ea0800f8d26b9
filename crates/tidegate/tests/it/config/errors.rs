//! Every kind of mistake, with its complete error message.

use std::path::Path;

use proptest::prelude::*;
use tidegate::unstable::config::{Config, ConfigErrors};

use super::{assert_as_recorded, files};

const DIRECTORY: &str = "tests/it/config/errors";

fn message(path: &Path) -> String {
    match Config::load(path) {
        Ok(_) => "accepted\n".into(),
        Err(errors) => format!("error: {errors}\n"),
    }
}

#[test]
fn error_messages_are_as_recorded() {
    for path in files(DIRECTORY, "yaml") {
        assert_ne!(message(&path), "accepted\n", "{}", path.display());
    }
    assert_as_recorded(DIRECTORY, message);
}

#[test]
fn every_message_has_its_config() {
    assert!(files(DIRECTORY, "yaml").len() > 50);
    for path in files(DIRECTORY, "txt") {
        assert!(path.with_extension("yaml").exists(), "{}", path.display());
    }
}

/// The parts that every message must have.
#[test]
fn every_error_has_a_location_and_a_help_text() {
    for path in files(DIRECTORY, "yaml") {
        let errors = Config::load(&path).expect_err("refused");
        for error in errors.iter() {
            assert!(!error.message().is_empty() && !error.help().is_empty(), "{}", path.display());
            assert_eq!(error.line().is_some(), error.column().is_some());
        }
        let text = errors.to_string();
        assert!(text.contains("--> "), "{text}");
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    }
}

#[test]
fn missing_file_is_an_error() {
    let text = message(Path::new("no/such/file.yaml"));
    let expected = "error: the config cannot be read: No such file or directory (os error 2)\n \
                    --> no/such/file.yaml\n  help: check the path and its permissions\n";
    assert_eq!(text, expected);
}

fn parse(text: &str) -> Result<Config, ConfigErrors> {
    Config::parse(text, "config.yaml")
}

/// The error was that a URL begins with `redis://`, which it does.
#[cfg(feature = "redis")]
#[test]
fn names_the_missing_part_of_a_store_without_a_host() {
    for (url, missing) in [
        ("redis://", "the store's host is missing"),
        ("rediss://", "the store's host is missing"),
        ("redis-cluster://", "the store's host is missing"),
        ("redis+unix://", "the store's path must be that of a socket"),
    ] {
        let text = format!("store: {url}\npolicies: [{{ name: a, key: all, limits: 1/s }}]");
        let error = parse(&text).expect_err(url).to_string();
        assert!(error.contains("this store cannot be used"), "{error}");
        assert!(error.contains(missing), "{error}");
    }
}

/// Parts of configs, so that random text gets past the first line.
fn noise() -> impl Strategy<Value = String> {
    let pieces = prop_oneof![
        Just("policies:\n".to_owned()),
        Just("  - name: a\n".to_owned()),
        Just("    key: \"{client_ip}\"\n".to_owned()),
        Just("    limits: [\"1 per 1s\"]\n".to_owned()),
        Just("    limits: [{limit: 1, window: 1s}]\n".to_owned()),
        Just("    match: {path: /a, \"header:x\": [1, b]}\n".to_owned()),
        Just("    overrides: [{when: {method: GET}, mode: off}]\n".to_owned()),
        Just("    cost: \"{header:x}\"\n".to_owned()),
        Just("&a [*a, *b]".to_owned()),
        "[\\PC\n\t]{0,12}",
        "[-:{}\\[\\], \"'|>&*!%#?\n]{0,8}",
    ];
    prop::collection::vec(pieces, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in prop_oneof![noise(), any::<String>()]) {
        if let Err(errors) = parse(&text) {
            prop_assert!(errors.iter().next().is_some());
            prop_assert!(!errors.to_string().is_empty());
        }
    }

    /// A valid config with one byte range removed or repeated.
    #[test]
    fn mutated_configs_never_panic(from in 0usize..4000, length in 0usize..40, twice: bool) {
        let text = include_str!("valid/surface.yaml");
        let from = text.floor_char_boundary(from.min(text.len()));
        let to = text.floor_char_boundary((from + length).min(text.len()));
        let middle = if twice { text[from..to].repeat(2) } else { String::new() };
        let changed = format!("{}{middle}{}", &text[..from], &text[to..]);
        if let Err(errors) = parse(&changed) {
            prop_assert!(!errors.to_string().is_empty());
        }
    }
}
