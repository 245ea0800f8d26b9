//! Policies over domains and descriptors: which of them apply, their keys, and which of them
//! replace others.

use tidegate::unstable::policy::{
    Condition, ConditionErrorKind, DescriptorEntry, Policies, PoliciesError, Policy, RequestField,
};

use super::{TestRequest, config, key};

const CONFIG: &str = r#"
policies:
  - name: everywhere
    match: { descriptors: { user: "*" } }
    key: "{descriptor:user}"
    limits: 100 per 1m
  - name: address
    match: { domain: edge, descriptors: [remote_address] }
    key: "{descriptor:remote_address}"
    limits: 10 per 1s
    exempt: { descriptors: { remote_address: [50.0.0.5, "10.*"] } }
  - name: banned
    match: { domain: edge, descriptors: [{ remote_address: 50.0.0.5 }] }
    key: all
    limits: 0 per 1s
  - name: inside
    match: { domain: edge, descriptors: [{ remote_address: "10.*" }] }
    key: "{descriptor:remote_address}"
    limits: unlimited
    replaces: banned
  - name: pair
    match: { domain: [edge, other], descriptors: [{ generic_key: [api, web] }, { path: "/a/*/z" }] }
    key: "{descriptor:path}"
    limits: 5 per 1s
  - name: twice
    match: { domain: edge, descriptors: [{ h: a }, h] }
    key: "{descriptor:h#2}"
    limits: 5 per 1s
  - name: any-domain
    match: { descriptors: [{ plan: free }] }
    key: "{domain}"
    limits: 5 per 1s
  - name: domain-alone
    match: { domain: "ed*" }
    key: "{descriptors}"
    limits: 1000 per 1s
    mode: observe
  - name: domains
    match: { domain: [quiet, other] }
    key: "{domain}"
    limits: 1 per 1s
  - name: second
    match: { "descriptor:h#2": "*", "descriptor:#3": last }
    key: "{descriptor:#3}"
    limits: 1 per 1s
  - name: tiers
    match: { "descriptor:tier": [gold, "**"] }
    key: all
    limits: 1 per 1s
"#;

#[test]
fn descriptor_conditions_match() {
    let rows: &[(&str, &[&str])] = &[
        ("", &[]),
        ("/x @user=a", &["everywhere a"]),
        // `"*"` matches an empty value too, or a client could send one to avoid being counted.
        ("@user=", &["everywhere \\x00"]),
        ("@h= @h= @x=last", &["second last"]),
        ("@tier=", &["tiers all"]),
        ("domain=edge @user=a", &["everywhere a", "domain-alone 4#user1#a"]),
        (
            "domain=edge @remote_address=1.2.3.4",
            &["address 1.2.3.4", "domain-alone 14#remote_address7#1.2.3.4"],
        ),
        (
            "domain=edge @remote_address=50.0.0.5",
            &["banned all", "domain-alone 14#remote_address8#50.0.0.5"],
        ),
        (
            "domain=edge @remote_address=10.0.0.5",
            &["inside 10.0.0.5", "domain-alone 14#remote_address8#10.0.0.5"],
        ),
        // An entry without a value matches an empty one too, which is a separate key.
        ("domain=edge @remote_address=", &["address \\x00", "domain-alone 14#remote_address0#"]),
        ("domain=elsewhere @remote_address=1.2.3.4", &[]),
        ("@remote_address=1.2.3.4", &[]),
        // The number and the order of entries must match.
        ("domain=other @generic_key=api @path=/a/b/z", &["pair /a/b/z", "domains other"]),
        ("domain=other @generic_key=web @path=/a/b/z", &["pair /a/b/z", "domains other"]),
        ("domain=other @generic_key=app @path=/a/b/z", &["domains other"]),
        ("domain=other @generic_key=api @path=/a/b", &["domains other"]),
        ("domain=other @path=/a/b/z @generic_key=api", &["domains other"]),
        ("domain=other @generic_key=api", &["domains other"]),
        ("domain=other @generic_key=api @path=/a/b/z @x=y", &["domains other"]),
        ("domain=quiet", &["domains quiet"]),
        ("domain=edge @h=a @h=b", &["twice b", "domain-alone 1#h1#a1#h1#b"]),
        ("@h=a @h=b", &[]),
        ("@h=a @h=b @x=last", &["second last"]),
        ("@h=a @x=last @h=b", &[]),
        ("@plan=free", &["any-domain \\x00"]),
        ("domain=quiet @plan=free", &["any-domain quiet", "domains quiet"]),
    ];
    let config = config(CONFIG);
    for (words, expected) in rows {
        let request = TestRequest::new(words);
        let selected = config.policies.select(&request.attributes()).expect(words);
        let show = selected.iter().map(|one| format!("{} {}", one.policy.name(), one.key));
        assert_eq!(show.collect::<Vec<_>>(), *expected, "{words}");
        let explained = config.policies.explain(&request.attributes());
        let from_explanation = explained.policies.iter().filter(|one| one.is_selected());
        let names = selected.iter().map(|one| one.policy.name());
        assert!(from_explanation.map(|one| one.policy.name()).eq(names), "{words}");
    }
}

const REPLACING: &str = r#"
policies:
  - { name: a, match: { "descriptor:a": "*" }, key: all, limits: 1 per 1s, replaces: [b] }
  - { name: b, match: { "descriptor:b": "*" }, key: all, limits: 1 per 1s, replaces: c }
  - { name: c, match: { "descriptor:c": "*" }, key: all, limits: 1 per 1s }
  - { name: d, match: { "descriptor:d": "*" }, key: all, limits: unlimited, replaces: [a, e] }
  - { name: e, match: { "descriptor:e": "*" }, key: all, limits: 1 per 1s, replaces: [d], mode: observe }
  - { name: f, match: { "descriptor:f": "*" }, key: all, limits: 1 per 1s, replaces: [c], mode: off }
"#;

#[test]
fn replacing_policies_leave_out_the_replaced() {
    let rows: &[(&str, &[&str])] = &[
        ("@a=1", &["a"]),
        ("@b=1", &["b"]),
        ("@a=1 @b=1", &["a"]),
        // A replaced policy still replaces others.
        ("@a=1 @b=1 @c=1", &["a"]),
        ("@b=1 @c=1", &["b"]),
        ("@d=1 @a=1", &["d"]),
        ("@d=1 @e=1", &[]),
        ("@f=1 @c=1", &["c"]),
    ];
    let config = config(REPLACING);
    for (words, expected) in rows {
        let request = TestRequest::new(words);
        let selected = config.policies.select(&request.attributes()).expect(words);
        assert!(
            selected.iter().map(|one| one.policy.name()).eq(expected.iter().copied()),
            "{words}"
        );
    }
    let request = TestRequest::new("@a=1 @b=1 @d=1");
    let text = config.policies.explain(&request.attributes()).to_string();
    assert!(text.starts_with(
        "a: replaced\n  because the request also matches d, which replaces it\n\nb: replaced\n"
    ));
    assert!(text.contains("\nd: unlimited\n  key     all -> all\n  store down: decided locally\n"));
}

#[test]
fn replaced_policy_must_exist() {
    let policy = |name: &str| {
        let key = "all".parse().expect("a key");
        Policy::unlimited(name, key).expect("a policy")
    };
    let all = |first: Policy| Policies::new(vec![first, policy("b")], Default::default());
    assert!(all(policy("a").with_replaces(["b"])).is_ok());
    for names in [["b", "a"], ["b", "c"]] {
        let error = all(policy("a").with_replaces(names)).expect_err("an unknown policy");
        assert_eq!(error, PoliciesError::ReplacesUnknown { policy: 0, replaced: 1 });
    }
    let many = (0..1025).map(|n| n.to_string());
    let error = all(policy("a").with_replaces(many)).expect_err("too many");
    assert_eq!(error, PoliciesError::TooManyReplaced { policy: 0 });
}

#[test]
fn descriptor_fields_are_rendered() {
    let rows = [
        ("descriptor:x", "descriptor:x"),
        ("descriptor:x#1", "descriptor:x"),
        ("descriptor:x#2", "descriptor:x#2"),
        ("descriptor:#1", "descriptor:#1"),
        ("descriptor:x#2#1", "descriptor:x#2#1"),
        ("descriptor:x#0", "descriptor:x#0"),
        ("descriptor:x#y", "descriptor:x#y"),
        ("descriptor:x#99999", "descriptor:x#99999"),
        ("domain", "domain"),
        ("descriptors", "descriptors"),
    ];
    for (text, displayed) in rows {
        let field: RequestField = text.parse().expect(text);
        assert_eq!(field.to_string(), displayed);
        assert_eq!(field.to_string().parse(), Ok(field));
    }
    for bad in ["descriptor:", "descriptor", "descriptor:a b", "descriptor:a}#2", "domain:x"] {
        assert!(bad.parse::<RequestField>().is_err(), "{bad}");
    }
    let request = TestRequest::new("@x=1 @x#2=2 @x=3");
    let of =
        |template: &str| String::from_utf8(key(template, &request.attributes())).expect("text");
    assert_eq!(of("{descriptor:x#2}"), "3");
    assert_eq!(of("{descriptor:x#2#1}"), "2");
    assert_eq!(of("{descriptor:#2}"), "2");
    assert_eq!(of("{descriptor:x#3}"), "\0");
}

/// Different lists of entries with the same concatenation are different keys.
#[test]
fn lists_of_descriptors_render_distinct_keys() {
    let keys = ["@a=b @c=d", "@a=b1#c1#d", "@a=b @cd=", "@ab= @c=d", "@a=b", "@c=d @a=b"];
    let keys = keys.map(|words| key("{descriptors}", &TestRequest::new(words).attributes()));
    for (index, one) in keys.iter().enumerate() {
        assert!(!keys[..index].contains(one), "{index}");
    }
}

#[test]
fn invalid_entries_are_rejected() {
    assert!(DescriptorEntry::any("").is_err() && DescriptorEntry::any(&"x".repeat(1025)).is_err());
    let none: [&str; 0] = [];
    assert!(DescriptorEntry::new("a", &none).is_err() && DescriptorEntry::new("a", &[""]).is_err());
    assert!(
        DescriptorEntry::new("a", &["*", "b"]).is_err()
            && DescriptorEntry::new("a", &["*"]).is_ok()
    );
    let entries =
        |count| (0..count).map(|_| DescriptorEntry::any("a").expect("an entry")).collect();
    assert!(Condition::entries(entries(0)).is_err() && Condition::entries(entries(17)).is_err());
    assert!(Condition::entries(entries(16)).is_ok());
    assert!(Condition::new(RequestField::Descriptors, &["a"]).is_err());
}

/// One value among thousands is found without trying all of them, and without allocation.
#[test]
fn a_request_among_many_descriptors_does_not_allocate() {
    let mut text = String::from("policies:\n");
    for number in 0..1000 {
        text.push_str(&format!(
            "  - {{ name: p{number}, match: {{ domain: edge, descriptors: [{{ tenant: t{number} }}, user] }}, \
             key: '{{descriptor:user}}', limits: 5 per 1s }}\n"
        ));
    }
    let config = config(&text);
    let request = TestRequest::new("domain=edge @tenant=t777 @user=alice");
    let attributes = request.attributes();
    let select = || {
        let selected = config.policies.select(&attributes).expect("selected");
        assert_eq!((selected.len(), selected[0].policy.name()), (1, "p777"));
    };
    select();
    assert_eq!(allocation_counter::measure(select).count_total, 0);
}

fn listed(name: &str, entries: Vec<DescriptorEntry>) -> Policy {
    let policy = Policy::unlimited(name, "all".parse().expect("a key")).expect("a policy");
    policy.with_match([Condition::entries(entries).expect("entries")].into_iter().collect())
}

/// Policies that are found by exact values may be many. Those that a request is compared with may
/// not.
#[test]
fn policies_that_one_request_is_compared_with_are_bounded() {
    let exact = |n: usize| {
        listed(
            &format!("e{n}"),
            vec![DescriptorEntry::new("a", &[n.to_string()]).expect("an entry")],
        )
    };
    let wild = |n: usize| {
        listed(
            &format!("w{n}"),
            vec![DescriptorEntry::new("a", &[format!("{n}*")]).expect("an entry")],
        )
    };
    let every = |n: usize| {
        Policy::unlimited(&format!("u{n}"), "all".parse().expect("a key")).expect("a policy")
    };
    let new = |exact_count: usize, wild_count: usize, every_count: usize| {
        let all = (0..exact_count).map(exact).chain((0..wild_count).map(wild));
        let all: Vec<Policy> = all.chain((0..every_count).map(every)).collect();
        Policies::new(all, Default::default()).map(|policies| policies.len())
    };
    assert_eq!(new(5000, 1000, 23), Ok(6023));
    assert_eq!(new(0, 1024, 0), Ok(1024));
    assert_eq!(new(0, 0, 1024), Ok(1024));
    // One policy is found by the exact value of a request.
    assert_eq!(new(5000, 1000, 24), Err(PoliciesError::TooManyCompared { policy: 6023 }));
    assert_eq!(new(0, 1025, 0), Err(PoliciesError::TooManyCompared { policy: 1024 }));
    assert_eq!(new(0, 0, 1025), Err(PoliciesError::TooManyCompared { policy: 1024 }));
    assert_eq!(new(65_537, 0, 0), Err(PoliciesError::TooMany));
    let mut twice: Vec<Policy> = (0..3000).map(exact).collect();
    twice.push(exact(17));
    let error = Policies::new(twice, Default::default()).expect_err("a name twice");
    assert_eq!(error, PoliciesError::SameName { first: 17, second: 3000 });
}

#[test]
fn exemptions_may_have_more_values_than_other_conditions() {
    let values: Vec<String> = (0..65_537).map(|n| format!("v{n}")).collect();
    let field = || "descriptor:a".parse().expect("a field");
    let too_many = |most: usize| Err(ConditionErrorKind::TooMany(most));
    let new = |count: usize| Condition::new(field(), &values[..count]).map_err(|e| e.kind);
    assert!(new(1024).is_ok());
    assert_eq!(new(1025), too_many(1024));
    let exempting =
        |count: usize| Condition::exempting(field(), &values[..count]).map_err(|e| e.kind);
    assert!(exempting(65_536).is_ok());
    assert_eq!(exempting(65_537), too_many(65_536));
    let wild: Vec<String> = (0..1025).map(|n| format!("{n}*")).collect();
    let wild = Condition::exempting(field(), &wild).map_err(|e| e.kind);
    assert_eq!(wild, Err(ConditionErrorKind::TooManyWildcards));
    let paths: Vec<String> = (0..1025).map(|n| format!("/{n}")).collect();
    let paths = Condition::exempting("path".parse().expect("a field"), &paths);
    assert_eq!(paths.map_err(|e| e.kind), too_many(1024));
}
