//! The exact result of a conversion, and the warnings.

use std::fs;
use std::path::Path;

use tidegate::Algorithm;
use tidegate::unstable::config::Config;
use tidegate::unstable::config::envoy::{EnvoyFile, Listing, Options, convert};
use tidegate::unstable::policy::Mode;

use super::fuzzed::same_policies;
use super::{Fixture, converted};

const DIRECTORY: &str = "tests/it/envoy";

/// The conversion of a file with every field. Review the recorded result when it changes.
#[test]
fn every_field_is_converted() {
    let text = fs::read_to_string(format!("{DIRECTORY}/good.yaml")).expect("the file");
    let file = EnvoyFile::new("good.yaml", text);
    let converted = convert(&[file], &Options::default()).unwrap_or_else(|e| panic!("{e}"));
    let notices = converted.notices().iter().chain(converted.omitted());
    let notices: Vec<String> = notices.map(|notice| format!("warning: {notice}\n")).collect();
    let yaml = converted.yaml().unwrap_or_else(|e| panic!("{e}"));
    let found = format!("{yaml}---\n{}", notices.join("\n"));
    let golden = format!("{DIRECTORY}/good.txt");
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        fs::write(&golden, &found).expect("written");
    }
    assert_eq!(found, fs::read_to_string(&golden).unwrap_or_default());
}

#[test]
fn algorithm_option_is_applied() {
    let text =
        "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day, requests_per_unit: 9 } }]";
    for (algorithm, expected) in [
        (Algorithm::SlidingCounter, "9 per 1d sliding-counter"),
        (Algorithm::FixedWindow, "9 per 1d fixed-window"),
        (Algorithm::SlidingLog, "9 per 1d sliding-log"),
        (Algorithm::TokenBucket, "9 per 1d token-bucket"),
        (Algorithm::SlidingWindow, "9 per 1d sliding-window"),
    ] {
        let options = Options { algorithm, ..Options::default() };
        let converted = convert(&[EnvoyFile::new("a.yaml", text)], &options).expect("converted");
        let policy = converted.config().policies.get("d.a").expect("a policy");
        assert_eq!(policy.limits()[0].to_string(), expected);
    }
}

/// Envoy Gateway sends the name of a route as key and value. For a route without a host it ends in
/// `*`.
#[test]
fn names_of_routes_may_have_a_star() {
    let text = "domain: default/eg/http
descriptors:
  - key: httproute/default/web/rule/0/match/0/*
    value: httproute/default/web/rule/0/match/0/*
    descriptors:
      - key: rule-0-match-0
        value: rule-0-match-0
        rate_limit: { unit: hour, requests_per_unit: 2 }
";
    same_policies(&converted(text).unwrap_or_else(|errors| panic!("{errors}"))).expect("the same");
    let fixture = Fixture::new(text);
    let check = |route: &str| {
        let name = format!("httproute/default/{route}/rule/0/match/0/*");
        let verdict = fixture.check(&format!("{name}={name} rule-0-match-0=rule-0-match-0"));
        verdict.split_once(' ').map_or(verdict.clone(), |(outcome, _)| outcome.to_owned())
    };
    assert_eq!(["web"; 3].map(check), ["OK", "OK", "OVER_LIMIT"]);
    assert_eq!(check("other"), "OK");
    // The names of entries are compared as they are.
    let host = "httproute/default/web/rule/0/match/0/www";
    assert_eq!(fixture.check(&format!("{host}={host} rule-0-match-0=rule-0-match-0")), "OK");
    let other = text.replace("    value: httproute", "    value: x");
    assert!(converted(&other).is_err(), "a `*` in a key with another value");
}

/// A domain without limits limits nothing, but converts to a valid config.
#[test]
fn files_without_limits_convert() {
    for text in ["domain: d", "domain: d\ndescriptors:", "domain: d\ndescriptors: [{ key: a }]"] {
        let converted = converted(text).unwrap_or_else(|errors| panic!("{errors}"));
        assert!(converted.config().policies.is_empty());
        let yaml = converted.yaml().expect("a config");
        let config = Config::parse(&yaml, "converted.yaml").unwrap_or_else(|e| panic!("{e}"));
        assert!(config.policies.iter().all(|policy| policy.mode() == Mode::Off));
    }
}

#[test]
fn several_files_are_merged() {
    let file = |name: &str, domain: &str, key: &str| {
        let text = format!(
            "domain: {domain}\ndescriptors: [{{ key: {key}, rate_limit: {{ unit: day, requests_per_unit: 1, \
             name: n }} }}]"
        );
        EnvoyFile::new(name, text)
    };
    let names = |files: &[EnvoyFile], merge_domains: bool| {
        let converted = convert(files, &Options { merge_domains, ..Options::default() });
        converted.map(|converted| {
            let names = converted.config().policies.iter().map(|policy| policy.name().to_owned());
            names.collect::<Vec<_>>()
        })
    };
    let (a, b) = (file("a.yaml", "one", "k"), file("b.yaml", "two", "k"));
    assert_eq!(names(&[a.clone(), b], false), Ok(vec!["one.k".into(), "two.k".into()]));
    let again = file("c.yaml", "one", "other");
    assert_eq!(
        names(&[a.clone(), again.clone()], true),
        Ok(vec!["one.k".into(), "one.other".into()])
    );
    let twice = names(&[a.clone(), again], false).expect_err("a domain twice");
    assert_eq!(
        twice.to_string(),
        "another file has the domain `one` too\n --> c.yaml:1:9\n  |\n1 | domain: one\n  |         ^^^\n  \
         field: domain\n  help: put both in one file, or allow it with --merge-domains"
    );
    let clash = names(&[a.clone(), file("d.yaml", "one", "k")], true).expect_err("a key twice");
    assert!(clash.to_string().starts_with("the descriptor `k` is here twice\n --> d.yaml:2:"));
    // The errors of each file are reported.
    let bad = EnvoyFile::new("e.yaml", "domian: x");
    let both = names(&[bad.clone(), a, bad], false).expect_err("two bad files");
    assert_eq!(both.iter().map(|errors| errors.file()).collect::<Vec<_>>(), ["e.yaml", "e.yaml"]);
}

/// Counts are stored under policy names, so the name of a limit must not change when others are
/// added.
#[test]
fn policy_names_depend_only_on_the_descriptor_path() {
    let names = |all: &[(&str, &str)]| {
        let node = |(key, value): &(&str, &str)| {
            format!(
                "- {{ key: '{key}', value: '{value}', rate_limit: {{ unit: day, requests_per_unit: 1 }} }}\n"
            )
        };
        let text = all.iter().map(node).collect::<String>();
        let converted = converted(&format!("domain: d\ndescriptors:\n{text}")).expect("converted");
        let names = converted.config().policies.iter().map(|policy| policy.name().to_owned());
        names.collect::<Vec<String>>()
    };
    let all = [
        ("path", "a/b"),
        ("path", "a:b"),
        ("path", "a-b"),
        ("path", "a//b"),
        ("address", "10.0.0.1"),
        ("host", "a.example"),
        ("a.b", "c"),
        ("plain", "x"),
    ];
    let all_names = names(&all);
    for (one, name) in all.iter().zip(&all_names) {
        assert_eq!(names(&[*one]), [name.as_str()], "{one:?}");
    }
    assert_eq!(all_names[2], "d.path_a-b");
    assert!(all_names[0].starts_with("d.path_a-b-") && all_names[1].starts_with("d.path_a-b-"));
    assert_eq!(all_names[4], "d.address_10.0.0.1");
    assert_eq!(all_names[7], "d.plain_x");
    // Dots in values that could be mistaken for separators.
    let nested = converted(
        "domain: d\ndescriptors:\n- key: a\n  descriptors: [{ key: b, value: c, rate_limit: { unit: day, requests_per_unit: 1 } }]",
    );
    let nested = nested.expect("converted");
    assert!(nested.config().policies.get("d.a.b_c").is_some());
    assert_ne!(all_names[6], "d.a.b_c");
}

#[test]
fn numbers_depth_and_file_size_are_bounded() {
    let tree = |count: usize| {
        let all = (0..count).map(|number| {
            format!("- {{ key: a, value: v{number}, rate_limit: {{ unit: day, requests_per_unit: 1 }} }}\n")
        });
        format!("domain: d\ndescriptors:\n{}", all.collect::<String>())
    };
    assert_eq!(converted(&tree(16_384)).map(|all| all.config().policies.len()), Ok(16_384));
    let wildcards = |count: usize| {
        let all = (0..count).map(|number| {
            format!("- {{ key: a, value: 'v{number}*', rate_limit: {{ unit: day, requests_per_unit: 1 }} }}\n")
        });
        format!("domain: d\ndescriptors:\n{}", all.collect::<String>())
    };
    assert!(converted(&wildcards(1024)).is_ok());
    let errors = converted(&wildcards(1025)).expect_err("too many").to_string();
    assert!(
        errors.starts_with("more than 1024 wildcards have this key\n --> limits.yaml:3:5\n"),
        "{errors}"
    );
    let nested = |depth: usize| {
        let above = "[{ key: a, descriptors: ".repeat(depth - 1);
        let below = " }]".repeat(depth - 1);
        let last = "[{ key: a, rate_limit: { unit: day, requests_per_unit: 1 } }]";
        converted(&format!("domain: d\ndescriptors: {above}{last}{below}"))
    };
    assert!(nested(15).is_ok());
    let errors = nested(16).expect_err("too deep").to_string();
    assert!(errors.starts_with("values are nested more than 32 deep\n"), "{errors}");
    let large = format!("domain: d # {}", "x".repeat(4 << 20));
    let errors = converted(&large).expect_err("too large").to_string();
    assert!(errors.starts_with("the file is larger than 4096 KiB\n --> limits.yaml"), "{errors}");
}

#[test]
fn yaml_files_of_a_directory_are_listed() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("envoy-files");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(directory.join("sub.yaml")).expect("a directory");
    let list = || EnvoyFile::list(&directory);
    assert!(list().expect_err("none").to_string().starts_with("there is no *.yaml file"));
    for below in ["tenants/eu", ".git"] {
        fs::create_dir_all(directory.join(below)).expect("a directory");
    }
    let skipped = [".hidden.yaml", "README.md", ".git/c.yaml", "tenants/eu/notes.txt"];
    let listed = ["a.yml", "b.yaml", "sub.yaml/x.yaml", "tenants/eu/d.yaml"];
    for name in listed.iter().chain(&skipped) {
        fs::write(directory.join(name), "domain: d").expect("a file");
    }
    #[cfg(unix)]
    std::os::unix::fs::symlink(&directory, directory.join("tenants/again.yaml")).expect("a link");
    let expected: Vec<_> = listed.iter().map(|name| directory.join(name)).collect();
    let Listing { files, skipped } = list().expect("four");
    assert_eq!(files, expected);
    assert_eq!(skipped, ["README.md", "tenants/eu/notes.txt"].map(|name| directory.join(name)));
    let missing = EnvoyFile::list(Path::new("no/such")).expect_err("none").to_string();
    assert!(missing.starts_with("the directory cannot be read: No such file"), "{missing}");
    assert!(EnvoyFile::load(Path::new("no/such.yaml")).is_err());
}
