//! Files with parts removed, repeated and inserted: every file converts to a valid config, or
//! yields an error with a location.

use proptest::prelude::*;
use tidegate::unstable::config::Config;
use tidegate::unstable::config::envoy::{Converted, EnvoyFile, Options, convert};
use tidegate::unstable::policy::Policy;

const GOOD: &str = include_str!("good.yaml");

fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("  - key: a\n".to_owned()),
        Just("    value: \"x*\"\n".to_owned()),
        Just("    rate_limit: {unit: day, requests_per_unit: 1}\n".to_owned()),
        Just("    rate_limit: {unlimited: yes, name: n, replaces: [{name: m}]}\n".to_owned()),
        Just("    share_threshold: true\n".to_owned()),
        Just("    descriptors: &x [*x]\n".to_owned()),
        Just("<<: *anchor\n".to_owned()),
        Just("\u{85}\u{0}\u{7f}\u{202e}".to_owned()),
        "[\\PC\n\t]{0,8}",
        "[-:{}\\[\\], \"'|>&*!%#?~\n]{0,6}",
    ]
}

/// Returns a random change: the position, the number of bytes removed and the text inserted.
fn change() -> impl Strategy<Value = (usize, usize, String)> {
    (0..GOOD.len(), 0usize..30, prop_oneof![Just(String::new()), piece()])
}

#[expect(clippy::incompatible_msrv, reason = "tests run with the current Rust")]
fn changed(changes: &[(usize, usize, String)]) -> String {
    changes.iter().fold(GOOD.to_owned(), |text, (from, length, new)| {
        let from = text.floor_char_boundary((*from).min(text.len()));
        let to = text.floor_char_boundary((from + length).min(text.len()));
        format!("{}{new}{}", &text[..from], &text[to..])
    })
}

/// Checks that the written config has the same policies, except for details that it cannot have.
pub fn same_policies(converted: &Converted) -> Result<(), TestCaseError> {
    let yaml = converted.yaml().map_err(|errors| TestCaseError::fail(errors.to_string()))?;
    let read = Config::parse(&yaml, "converted.yaml");
    let read = read.map_err(|errors| TestCaseError::fail(format!("{errors}\n{yaml}")))?;
    let written: Vec<Policy> =
        read.policies.iter().filter(|policy| policy.name() != "nothing").cloned().collect();
    let built = converted.config().policies.iter().cloned();
    let built: Vec<Policy> = built.map(|policy| policy.with_envoy_details(None)).collect();
    prop_assert_eq!(written, built, "{}", yaml);
    Ok(())
}

fn check(text: &str) -> Result<(), TestCaseError> {
    let files = [EnvoyFile::new("a.yaml", text), EnvoyFile::new("b.yaml", "domain: other")];
    match convert(&files, &Options::default()) {
        Ok(converted) => {
            same_policies(&converted)?;
            for notice in converted.notices() {
                prop_assert!(notice.about().line().is_some() && !notice.to_string().is_empty());
            }
        }
        Err(errors) => {
            for error in errors.iter().flat_map(|errors| errors.iter()) {
                let has_message = !error.message().is_empty() && !error.help().is_empty();
                prop_assert!(has_message && error.line().is_some(), "{}\n{}", errors, text);
            }
            prop_assert!(!errors.to_string().contains("converted config"), "{}\n{}", errors, text);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files_convert_or_fail_with_an_error(changes in prop::collection::vec(change(), 1..4)) {
        check(&changed(&changes))?;
    }

    #[test]
    fn arbitrary_text_never_panics(text in prop::collection::vec(piece(), 0..12)) {
        check(&format!("domain: d\ndescriptors:\n{}", text.concat()))?;
    }
}
