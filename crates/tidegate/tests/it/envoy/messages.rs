//! Configs that arrive as messages: they convert like files, and their errors name the resource and
//! the field.

use std::sync::Arc;

use tidegate::unstable::config::envoy::{
    DescriptorConfig, DomainConfig, EnvoyFile, Options, RateLimitConfig, Unit, convert,
    convert_domains,
};
use tidegate::unstable::policy::{Metadata, MetadataValue, Policy};

use super::converted;

fn limit(requests_per_unit: u32) -> RateLimitConfig {
    RateLimitConfig { unit: Unit::Hour, requests_per_unit, ..RateLimitConfig::default() }
}

fn descriptor(key: &str, value: &str) -> DescriptorConfig {
    DescriptorConfig { key: key.into(), value: value.into(), ..DescriptorConfig::default() }
}

fn with_limit(key: &str, value: &str) -> DescriptorConfig {
    DescriptorConfig { rate_limit: Some(limit(5)), ..descriptor(key, value) }
}

fn domain(descriptors: Vec<DescriptorConfig>) -> DomainConfig {
    DomainConfig { name: "limits".into(), domain: "d".into(), descriptors }
}

fn errors(domains: &[DomainConfig]) -> Vec<String> {
    let errors = convert_domains(domains, &Options::default()).expect_err("errors");
    let each = errors.iter().flat_map(|errors| errors.iter().map(|error| (errors.file(), error)));
    let lines = each.map(|(file, error)| {
        assert_eq!(error.line(), None);
        assert!(!error.help().is_empty());
        format!("{file}: {}: {}", error.field(), error.message())
    });
    lines.collect()
}

const FILE: &str = "
domain: d
descriptors:
  - key: a
    value: x
    rate_limit: { unit: hour, requests_per_unit: 5, name: one }
  - key: a
    value: x*
    share_threshold: true
    shadow_mode: true
    rate_limit: { unit: day, requests_per_unit: 7, replaces: [{ name: one }] }
  - key: a
    value_to_metric: true
    descriptors:
      - key: b
        quota_mode: true
        detailed_metric: true
        metadata: { tier: gold, rank: 3, odd: [0x1f, 1.5e1, yes, ~, \"7\", { 2: n }] }
        rate_limit: { unlimited: true }
";

fn message() -> DomainConfig {
    let one = RateLimitConfig { name: "one".into(), ..limit(5) };
    let replaced = RateLimitConfig { unit: Unit::Day, replaces: vec!["one".into()], ..limit(7) };
    let unlimited = RateLimitConfig { unlimited: true, ..RateLimitConfig::default() };
    let odd = vec![
        MetadataValue::Number(31.0),
        MetadataValue::Number(15.0),
        MetadataValue::Bool(true),
        MetadataValue::Null,
        MetadataValue::Text("7".into()),
        MetadataValue::Map(Metadata::from([("2".into(), MetadataValue::Text("n".into()))])),
    ];
    let metadata = Metadata::from([
        ("tier".into(), MetadataValue::Text("gold".into())),
        ("rank".into(), MetadataValue::Number(3.0)),
        ("odd".into(), MetadataValue::List(odd)),
    ]);
    let below = DescriptorConfig {
        rate_limit: Some(unlimited),
        quota_mode: true,
        detailed_metric: true,
        metadata: Some(Arc::new(metadata)),
        ..descriptor("b", "")
    };
    domain(vec![
        DescriptorConfig { rate_limit: Some(one), ..descriptor("a", "x") },
        DescriptorConfig {
            rate_limit: Some(replaced),
            share_threshold: true,
            shadow_mode: true,
            ..descriptor("a", "x*")
        },
        DescriptorConfig { value_to_metric: true, descriptors: vec![below], ..descriptor("a", "") },
    ])
}

#[test]
fn messages_and_files_convert_to_the_same_policies() {
    let options = Options::default();
    let file = convert(&[EnvoyFile::new("a.yaml", FILE)], &options).expect("a file");
    let from_message = convert_domains(&[message()], &options).expect("a message");
    let policies = |config: &tidegate::unstable::config::Config| -> Vec<Policy> {
        config.policies.iter().cloned().collect()
    };
    assert_eq!(policies(file.config()), policies(from_message.config()));
    assert_eq!(file.config().policies.len(), 3);
}

#[test]
fn policies_keep_metadata_and_metric_settings() {
    let converted = convert_domains(&[message()], &Options::default()).expect("converted");
    let policy = converted.config().policies.get("d.a.b").expect("a policy");
    let details = policy.envoy_details().expect("details");
    assert_eq!((&*details.domain, &*details.name, details.detailed_metric), ("d", "", true));
    let levels = details.levels.iter();
    let levels: Vec<_> = levels
        .map(|one| (&*one.key, &*one.value, one.value_to_metric, one.share_threshold))
        .collect();
    assert_eq!(levels, [("a", "", true, false), ("b", "", false, false)]);
    let metadata = details.metadata.as_deref().expect("metadata");
    assert_eq!(metadata.get("tier"), Some(&MetadataValue::Text("gold".into())));
    let omitted: Vec<_> = converted.omitted().iter().map(|one| one.about().field()).collect();
    assert_eq!(
        omitted,
        [
            "descriptors[2].value_to_metric",
            "descriptors[2].descriptors[0].detailed_metric",
            "descriptors[2].descriptors[0].metadata",
        ]
    );
    assert!(converted.notices().is_empty());
}

#[test]
fn errors_of_messages_name_the_resource_and_the_field() {
    let unknown = RateLimitConfig { requests_per_unit: 1, ..RateLimitConfig::default() };
    let named = RateLimitConfig {
        name: "n".into(),
        replaces: vec!["m".into(), "n".into(), String::new()],
        ..limit(1)
    };
    let bad = domain(vec![
        DescriptorConfig { rate_limit: Some(unknown), ..descriptor("a", "") },
        DescriptorConfig { descriptors: vec![descriptor("", "x")], ..descriptor("a*", "") },
        DescriptorConfig { share_threshold: true, ..descriptor("b", "x") },
        DescriptorConfig { rate_limit: Some(named), ..descriptor("c", "") },
        descriptor("c", ""),
    ]);
    assert_eq!(
        errors(&[bad, DomainConfig { name: "empty".into(), ..DomainConfig::default() }]),
        [
            "limits: descriptors[0].rate_limit.unit: a limit has no `unit`",
            "limits: descriptors[1].key: a key with `*` in it",
            "limits: descriptors[1].descriptors[0].key: a descriptor has an empty key",
            "limits: descriptors[2].share_threshold: only the values of a wildcard can share a count",
            "limits: descriptors[3].rate_limit.replaces[1].name: a limit cannot replace itself",
            "limits: descriptors[3].rate_limit.replaces[2].name: a limit replaces one without a name",
            "limits: descriptors[4]: the descriptor `c` is here twice",
            "empty: domain: the domain is empty",
        ]
    );
    let twice = [domain(Vec::new()), domain(Vec::new())];
    assert_eq!(errors(&twice), ["limits: domain: another resource has the domain `d` too"]);
}

#[test]
fn deep_messages_are_rejected() {
    let nested = |depth: usize| {
        (1..depth).fold(with_limit("a", ""), |inner, _| DescriptorConfig {
            descriptors: vec![inner],
            ..descriptor("a", "")
        })
    };
    assert!(convert_domains(&[domain(vec![nested(16)])], &Options::default()).is_ok());
    let message = errors(&[domain(vec![nested(17)])]).concat();
    assert!(
        message.ends_with("descriptors: descriptors are nested more than 16 deep"),
        "{message}"
    );
}

#[test]
fn numbers_of_values_and_limits_are_bounded() {
    let values = |count: usize| -> Vec<DescriptorConfig> {
        (0..count).map(|number| descriptor("a", &format!("v{number}"))).collect()
    };
    let mut many = values(65_536);
    many.push(with_limit("a", ""));
    assert!(convert_domains(&[domain(many.clone())], &Options::default()).is_ok());
    many.extend(values(65_537).pop());
    assert_eq!(
        errors(&[domain(many)]),
        ["limits: descriptors[65536]: more than 65536 values come before this one"]
    );
    let limits: Vec<DescriptorConfig> =
        (0..65_538).map(|number| with_limit("a", &format!("v{number}"))).collect();
    assert_eq!(
        errors(&[domain(limits)]),
        ["limits: descriptors[65536]: there are more than 65536 limits"]
    );
    // Different keys, so that no list of wildcards is too long.
    let below = |key: usize| {
        let wildcards = (0..600).map(|number| with_limit("b", &format!("{key}v{number}*")));
        let values = [format!("x{key}"), String::new()];
        DescriptorConfig { descriptors: wildcards.collect(), ..descriptor("a", &values[key]) }
    };
    let message = errors(&[domain(vec![below(0), below(1)])]).concat();
    assert_eq!(
        message,
        "limits: descriptors[1].descriptors[424]: a request would be compared with more than 1024 policies"
    );
}

/// A wildcard has a list of the exact values that it matches, so the lists grow with a product.
#[test]
fn lists_of_names_and_values_are_bounded() {
    let exact = (0..4000).map(|number| descriptor("a", &format!("v{number}")));
    let wild = (0..300).map(|number| with_limit("a", &format!("v{}", "*".repeat(number + 1))));
    assert_eq!(
        errors(&[domain(exact.chain(wild).collect())]),
        ["limits: descriptors[4254]: more than 1048576 values come before others"]
    );
    let named = |name: &str, replaces: &[&str], value: usize| {
        let replaces = replaces.iter().map(|name| (*name).to_owned()).collect();
        let limit = RateLimitConfig { name: name.into(), replaces, ..limit(1) };
        DescriptorConfig { rate_limit: Some(limit), ..descriptor("a", &format!("v{value}")) }
    };
    let all = |replaced: usize, replacing: usize| {
        let replaced = (0..replaced).map(|value| named("x", &[], value));
        let replacing = (0..replacing).map(|value| named("y", &["x", "x"], 100_000 + value));
        [domain(replaced.chain(replacing).collect())]
    };
    let converted = convert_domains(&all(1024, 1), &Options::default()).expect("converted");
    let replaces = converted.config().policies.iter().map(|policy| policy.replaces().len());
    assert_eq!(replaces.max(), Some(1024));
    assert_eq!(
        errors(&all(1025, 1)),
        ["limits: descriptors[1025]: this replaces more than 1024 limits"]
    );
    assert_eq!(
        errors(&all(1024, 1025)),
        ["limits: descriptors[2048]: limits replace more than 1048576 others in all"]
    );
}

#[test]
fn written_yaml_may_be_too_large() {
    let mut many: Vec<DescriptorConfig> =
        (0..30_000).map(|number| descriptor("a", &format!("value-{number}"))).collect();
    let children = (0..20).map(|number| with_limit("b", &format!("v{number}")));
    many.push(DescriptorConfig { descriptors: children.collect(), ..descriptor("a", "") });
    let converted = convert_domains(&[domain(many)], &Options::default()).expect("converted");
    assert_eq!(converted.config().policies.len(), 20);
    let errors = converted.yaml().expect_err("too large").to_string();
    assert!(errors.starts_with("converted, they take more than 4096 KiB"), "{errors}");
}

#[test]
fn metadata_without_a_limit_is_reported() {
    let text = "domain: d\ndescriptors: [{ key: a, metadata: { x: 1 }, detailed_metric: true }]";
    let converted = converted(text).expect("converted");
    let messages: Vec<_> = converted.notices().iter().map(|one| one.about().message()).collect();
    assert_eq!(
        messages,
        [
            "`metadata` does nothing without a `rate_limit` beside it",
            "`detailed_metric` does nothing without a `rate_limit` beside it",
        ]
    );
}
