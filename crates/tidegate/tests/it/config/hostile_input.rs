//! Files that are made to exhaust the parser. They are rejected quickly; without bounds every test
//! here would take minutes, gigabytes or the stack.

use std::fs::File;
use std::path::Path;

use tidegate::unstable::config::{Config, MAX_CONFIG_BYTES};

/// Returns the first line of the error message.
fn refused(text: &str) -> String {
    let errors = Config::parse(text, "bomb.yaml").expect_err("refused");
    let text = errors.to_string();
    // Messages are short enough for a terminal, whatever the file contains.
    assert!(text.len() < 20_000, "{} bytes", text.len());
    text.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn a_file_of_ten_megabytes_is_refused_unread() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ten-megabytes.yaml");
    let file = File::create(&path).expect("a file");
    file.set_len(10_000_000).expect("ten megabytes");
    let errors = Config::load(&path).expect_err("refused");
    assert_eq!(
        errors.iter().next().map(|error| error.message()),
        Some("the config is larger than 4096 KiB")
    );
}

#[test]
fn a_text_over_the_bound_is_refused() {
    let fits = format!("#{}", "x".repeat(MAX_CONFIG_BYTES - 1));
    assert_eq!(refused(&fits), "the config is empty");
    assert_eq!(refused(&format!("{fits}x")), "the config is larger than 4096 KiB");
}

#[test]
fn nested_aliases_are_bounded() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..=9 {
        let below = vec![format!("*a{}", level - 1); 9].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{below}]\n"));
    }
    assert_eq!(refused(&text), "the config has more than 500000 values once aliases are followed");
}

#[test]
fn deep_nesting_is_rejected() {
    let deep = "values are nested more than 32 deep";
    assert_eq!(refused(&"[".repeat(1_000_000)), deep);
    assert_eq!(refused(&"{a: ".repeat(200_000)), deep);
    assert_eq!(refused(&"- ".repeat(400_000)), deep);
    assert_eq!(refused(&"? ".repeat(400_000)), deep);
    let stairs: String = (0..1000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    assert_eq!(refused(&stairs), deep);
}

#[test]
fn chained_aliases_are_bounded() {
    let mut text = String::from("a0: &a0 [x]\n");
    for level in 1..20_000 {
        text.push_str(&format!("a{level}: &a{level} [*a{}]\n", level - 1));
    }
    assert_eq!(refused(&text), "the config has more than 500000 values once aliases are followed");
}

#[test]
fn number_of_reported_errors_is_bounded() {
    let unknown: String = (0..80_000).map(|index| format!("f{index}: 1\n")).collect();
    assert_eq!(refused(&unknown), "unknown field `f0`");
    let doubled = "a: 1\n".repeat(90_000);
    assert_eq!(refused(&doubled), "`a` is here twice");
    let policies = format!("policies:\n{}", "  - name: 1\n".repeat(1024));
    assert_eq!(refused(&policies), "`key` is missing");
    let values = format!("trusted_proxies: [{}]\npolicies: []", "x,".repeat(90_000));
    assert!(refused(&values).starts_with("`x`: "));
}

#[test]
fn long_words_and_lines_are_shortened() {
    let word = "x".repeat(900_000);
    let displayed = format!("{}...", "x".repeat(60));
    assert_eq!(refused(&format!("? {word}\n: 1")), format!("unknown field `{displayed}`"));
    let policies = "policies: [{ name: a, key: all, limits: 1 per 1s }]";
    assert_eq!(
        refused(&format!("when_full: {word}\n{policies}")),
        format!("`when_full` cannot be `{displayed}`")
    );
    let policy = |field: &str| {
        let rest = "name: a, key: all, limits: 1 per 1s";
        refused(&format!("policies:\n  - {{ {rest} , {field} }}"))
    };
    assert!(policy(&format!("match: {{ path: /{word} }}")).ends_with("the pattern is too long"));
    assert!(policy(&format!("match: {{ \"header:{}\": x }}", &word[..1000])).contains("x..."));
}

/// Each override is compared with all overrides before it.
#[test]
fn number_of_overrides_is_bounded() {
    type When = fn(usize) -> String;
    let kinds: [When; 4] = [
        |n| format!("path: /tenant/{n}"),
        |n| format!("path: '/{{a,b}}/{n}/*'"),
        |n| if n % 2 == 0 { format!("path: '/*/{n}?z'") } else { format!("path: /x/{n}") },
        |n| format!("'header:x': [{}]", listed(80, |v| format!("{n}v{v}"))),
    ];
    for when in kinds {
        let overrides = listed(1024, |n| format!("{{ when: {{ {} }}, mode: off }}", when(n)));
        let head = "name: a, key: all, limits: 1 per 1s";
        let text = format!("policies: [{{ {head}, overrides: [{overrides}] }}]");
        let config =
            Config::parse(&text, "config.yaml").unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(
            config.policies.iter().map(|policy| policy.variants().len()).sum::<usize>(),
            1025
        );
    }
}

#[test]
fn number_of_patterns_is_bounded() {
    let policies = listed(40, |p| {
        let globs = listed(1000, |n| format!("/*/{p}x{n}?"));
        format!("{{ name: p{p}, key: all, limits: 1 per 1s, match: {{ path: [{globs}] }} }}")
    });
    let message = refused(&format!("policies: [{policies}]"));
    assert_eq!(message, "the patterns are too large to compile together");
}

fn listed(count: usize, item: impl Fn(usize) -> String) -> String {
    (0..count).map(item).collect::<Vec<_>>().join(", ")
}

/// A request that all of these policies match would exceed the number of checks of a request.
#[test]
fn limits_per_request_are_bounded() {
    let policies = |count, more: &str| {
        let limits = listed(16, |n| format!("{} per {}s", n + 1, n + 1));
        let policies =
            listed(count, |p| format!("{{ name: p{p}, key: all, limits: [{limits}]{more} }}"));
        format!("policies: [{policies}]")
    };
    assert_eq!(refused(&policies(17, "")), "more than 256 limits hold for every request");
    for (count, more) in [
        (16, ""),
        (17, ", mode: off"),
        (17, ", match: { path: /a }"),
        (17, ", exempt: { method: GET }"),
    ] {
        let config = Config::parse(&policies(count, more), "config.yaml");
        assert!(config.is_ok(), "{count} {more}: {config:?}");
    }
}
