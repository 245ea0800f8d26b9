//! The header fields of every form, as text and as read by an independent parser.

use std::collections::BTreeSet;
use std::time::Duration;

use allocation_counter::measure;
use http::HeaderMap;
use proptest::prelude::*;
use sfv::{Dictionary, Item, List, ListEntry, Parser};
use tidegate::unstable::headers::{
    Form, Forms, FormsError, LimitView, MAX_POLICY_BYTES, ResponseView, render,
};
use tidegate::{Limit, RetryAfter, Timestamp};

use crate::common::limit;

/// The largest integer of a structured field.
const MAX_INTEGER: i64 = 999_999_999_999_999;

/// A limit in a test: policy, limit, remaining, retry after, reset after.
type LimitRow<'a> = (&'a str, &'a str, Option<u64>, RetryAfter, u64);

const NOW_PASSES: RetryAfter = RetryAfter::Now;

fn forms(text: &str) -> Forms {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// A time of 0.5 s after a full second, to show the rounding.
fn now() -> Timestamp {
    Timestamp::from_micros(1_700_000_000_500_000)
}

fn rendered(
    forms: Forms,
    allowed: bool,
    reported: Option<usize>,
    any_limit_rows: &[LimitRow<'_>],
) -> HeaderMap {
    let limits: Vec<Limit> =
        any_limit_rows.iter().map(|any_limit_rows| limit(any_limit_rows.1)).collect();
    let views: Vec<LimitView<'_>> = any_limit_rows
        .iter()
        .zip(&limits)
        .map(|(&(policy, _, remaining, retry_after, reset_us), limit)| {
            let reset_after = Duration::from_micros(reset_us);
            LimitView { policy, limit, remaining, retry_after, reset_after }
        })
        .collect();
    let mut out = HeaderMap::new();
    render(forms, &ResponseView { allowed, limits: &views, reported }, now(), &mut out);
    out
}

/// Returns `name: value` lines in the order of the names.
fn text(map: &HeaderMap) -> String {
    let lines: BTreeSet<String> = map
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().expect("printable")))
        .collect();
    assert_eq!(lines.len(), map.len(), "one line per field");
    lines.into_iter().collect::<Vec<_>>().join("\n")
}

/// Rows of `(forms, fields)` for one limit, allowed.
#[test]
fn renders_every_form_of_an_allowed_request() {
    let rows = [
        ("draft-10", "ratelimit-policy: \"api\";q=100;w=60\nratelimit: \"api\";r=50;t=30"),
        ("draft-7", "ratelimit-policy: 100;w=60\nratelimit: limit=100, remaining=50, reset=30"),
        (
            "draft-6",
            "ratelimit-limit: 100\nratelimit-policy: 100;w=60\nratelimit-remaining: 50\nratelimit-reset: 30",
        ),
        (
            "x-ratelimit",
            "x-ratelimit-limit: 100\nx-ratelimit-remaining: 50\nx-ratelimit-reset: 1700000030",
        ),
        ("none", ""),
        (
            "draft-10,x-ratelimit",
            "ratelimit-policy: \"api\";q=100;w=60\nratelimit: \"api\";r=50;t=30\n\
             x-ratelimit-limit: 100\nx-ratelimit-remaining: 50\nx-ratelimit-reset: 1700000030",
        ),
        // Both forms use both fields: the newest form is sent.
        ("draft-7,draft-10", "ratelimit-policy: \"api\";q=100;w=60\nratelimit: \"api\";r=50;t=30"),
        // Both forms use the policy field, which is sent in the newest form.
        (
            "draft-10,draft-6",
            "ratelimit-limit: 100\nratelimit-policy: \"api\";q=100;w=60\nratelimit-remaining: 50\n\
             ratelimit-reset: 30\nratelimit: \"api\";r=50;t=30",
        ),
        // Both forms use the policy field, and write it in the same form.
        (
            "draft-6,draft-7",
            "ratelimit-limit: 100\nratelimit-policy: 100;w=60\nratelimit-remaining: 50\n\
             ratelimit-reset: 30\nratelimit: limit=100, remaining=50, reset=30",
        ),
    ];
    for (names, expected) in rows {
        let any_limit_rows = [("api", "100 per 1m", Some(50), NOW_PASSES, 29_000_001)];
        let out = rendered(forms(names), true, Some(0), &any_limit_rows);
        let expected_lines: BTreeSet<&str> = expected.lines().collect();
        assert_eq!(text(&out).lines().collect::<BTreeSet<_>>(), expected_lines, "{names}");
    }
}

/// `(retry after, Retry-After, t, draft-6's reset, X-RateLimit-Reset)` of a denial.
#[test]
fn waits_are_rounded_up() {
    let never = RetryAfter::Never;
    let rows: [(RetryAfter, Option<&str>, &str, &str, &str); 6] = [
        (RetryAfter::Micros(1), Some("1"), ";t=1", "1", "1700000001"),
        (RetryAfter::Micros(500_001), Some("1"), ";t=1", "1", "1700000002"),
        (RetryAfter::Micros(1_000_000), Some("1"), ";t=1", "1", "1700000002"),
        (RetryAfter::Micros(1_000_001), Some("2"), ";t=2", "2", "1700000002"),
        (RetryAfter::Micros(4_200_000), Some("5"), ";t=5", "5", "1700000005"),
        // The request never passes. The older forms require a time.
        (never, None, "", "60", "1700000061"),
    ];
    for (retry_after, wait, t, reset, epoch) in rows {
        let any_limit_rows = [("api", "100 per 1m", Some(3), retry_after, 60_000_000)];
        let out = rendered(forms("draft-10,draft-6,x-ratelimit"), false, Some(0), &any_limit_rows);
        let value = |name: &str| out.get(name).map(|value| value.to_str().expect("printable"));
        assert_eq!(value("retry-after"), wait, "{retry_after:?}");
        assert_eq!(value("ratelimit"), Some(format!("\"api\";r=3{t}").as_str()), "{retry_after:?}");
        assert_eq!(value("ratelimit-reset"), Some(reset), "{retry_after:?}");
        assert_eq!(value("x-ratelimit-reset"), Some(epoch), "{retry_after:?}");
    }
}

/// `none` keeps the fields that a 429 needs.
#[test]
fn a_denial_has_retry_after_in_every_form() {
    for names in ["none", "draft-10", "draft-7", "draft-6", "x-ratelimit"] {
        let any_limit_rows =
            [("api", "100 per 1m", Some(0), RetryAfter::Micros(1_500_000), 60_000_000)];
        assert_eq!(
            rendered(forms(names), false, Some(0), &any_limit_rows)["retry-after"],
            "2",
            "{names}"
        );
        let allowed = [("api", "100 per 1m", Some(9), NOW_PASSES, 60_000_000)];
        let out = rendered(forms(names), true, Some(0), &allowed);
        assert!(!out.contains_key("retry-after"), "{names}");
    }
}

/// A 429 that described another limit, which admitted the request, made a client wait an hour
/// (agentgateway #3328).
#[test]
fn a_denial_describes_the_limit_that_denied() {
    let any_limit_rows = [
        ("api", "10 per 1s", Some(0), RetryAfter::Micros(300_000), 1_000_000),
        ("api", "600 per 1h", Some(590), NOW_PASSES, 3_600_000_000),
    ];
    let all = forms("draft-10,draft-6,x-ratelimit");
    let out = rendered(all, false, Some(0), &any_limit_rows);
    assert_eq!(out["ratelimit"], "\"api-1s\";r=0;t=1");
    assert_eq!(out["retry-after"], "1");
    assert_eq!(out["ratelimit-policy"], "\"api-1s\";q=10;w=1, \"api-1h\";q=600;w=3600");
    assert_eq!(
        (&out["ratelimit-limit"], &out["ratelimit-reset"]),
        (&header_value("10"), &header_value("1"))
    );
    assert_eq!(out["x-ratelimit-limit"], "10");
}

fn header_value(text: &str) -> http::HeaderValue {
    text.parse().expect("a value")
}

/// Rows of `(description, forms, limits, RateLimit-Policy)`.
#[test]
fn the_policy_field_lists_every_limit() {
    type Row = (&'static str, &'static str, &'static [(&'static str, &'static str)], &'static str);
    let rows: &[Row] = &[
        ("one limit", "draft-10", &[("api", "10 per 1s")], "\"api\";q=10;w=1"),
        (
            "several limits",
            "draft-10",
            &[
                ("api", "10 per 1s"),
                ("api", "600 per 60s"),
                ("api", "9 per 1d"),
                ("ip", "5 per 2w"),
            ],
            "\"api-1s\";q=10;w=1, \"api-1m\";q=600;w=60, \"api-1d\";q=9;w=86400, \"ip\";q=5;w=1209600",
        ),
        (
            "parts of a second",
            "draft-10",
            &[("api", "10 per 1ms"), ("api", "10 per 1500ms")],
            "\"api-1ms\";q=10;w=1, \"api-1500ms\";q=10;w=2",
        ),
        (
            "held, not counted",
            "draft-10",
            &[("api", "3 concurrent lease 5m"), ("api", "9 per 1s"), ("db", "2 concurrent")],
            "\"api-concurrent\";q=3;qu=\"concurrent-requests\", \"api-1s\";q=9;w=1, \
             \"db\";q=2;qu=\"concurrent-requests\"",
        ),
        (
            "one window twice",
            "draft-10",
            &[
                ("api", "9 per 1s"),
                ("api", "5 per 1s token-bucket"),
                ("api", "7 per 1s fixed-window"),
            ],
            "\"api-1s\";q=9;w=1, \"api-1s-2\";q=5;w=1, \"api-1s-3\";q=7;w=1",
        ),
        (
            "a policy of that name",
            "draft-10",
            &[
                ("api", "9 per 1s"),
                ("api", "5 per 1m"),
                ("api-1s", "5 per 1h"),
                ("api-1s-2", "1 per 1d"),
            ],
            "\"api-1s-3\";q=9;w=1, \"api-1m\";q=5;w=60, \"api-1s\";q=5;w=3600, \"api-1s-2\";q=1;w=86400",
        ),
        (
            "apart, though they should be together",
            "draft-10",
            &[("api", "9 per 1s"), ("ip", "5 per 1m"), ("api", "5 per 1h")],
            "\"api\";q=9;w=1, \"ip\";q=5;w=60, \"api-2\";q=5;w=3600",
        ),
        (
            "no policy",
            "draft-10",
            &[("", "9 per 1s"), ("", "5 per 1m")],
            "\"1s\";q=9;w=1, \"1m\";q=5;w=60",
        ),
        ("no policy, one limit", "draft-10", &[("", "9 per 1s")], "\"1s\";q=9;w=1"),
        ("odd names", "draft-10", &[("a\"b\\c\u{e9}\n", "9 per 1s")], "\"a\\\"b\\\\c???\";q=9;w=1"),
        ("nothing passes", "draft-10", &[("api", "0 per 1s")], "\"api\";q=0;w=1"),
        ("as once", "draft-7", &[("api", "10 per 1s"), ("api", "600 per 1m")], "10;w=1, 600;w=60"),
        (
            "held: no window, no place",
            "draft-7",
            &[("a", "3 concurrent"), ("b", "9 per 1s")],
            "9;w=1",
        ),
        (
            "the same number: the strictest",
            "draft-6",
            &[("a", "9 per 1s"), ("b", "9 per 1h"), ("c", "9 per 1m")],
            "9;w=3600",
        ),
        (
            "the same number and window",
            "draft-6",
            &[("a", "9 per 1s"), ("b", "9 per 1s fixed-window")],
            "9;w=1",
        ),
    ];
    for (description, names, limits, expected) in rows {
        let any_limit_rows: Vec<LimitRow<'_>> = limits
            .iter()
            .map(|(policy, limit)| (*policy, *limit, Some(1), NOW_PASSES, 1))
            .collect();
        let out = rendered(forms(names), true, Some(0), &any_limit_rows);
        assert_eq!(
            out["ratelimit-policy"].to_str().expect("printable"),
            *expected,
            "{description}"
        );
        let _: List = Parser::new(expected.as_bytes()).parse().expect("a list");
    }
    let held = [("a", "3 concurrent", Some(2), NOW_PASSES, 60_000_000)];
    let out = rendered(forms("draft-6"), true, Some(0), &held);
    assert!(!out.contains_key("ratelimit-policy"), "an empty list is no field");
    assert_eq!(out["ratelimit-remaining"], "2");
}

/// When failing open, the remaining units are unknown. When failing closed, the wait is as well.
#[test]
fn unknown_values_are_not_sent() {
    let policy = "ratelimit-policy: \"api\";q=100;w=60";
    let all = "draft-10,draft-6,x-ratelimit";
    for allowed in [true, false] {
        let any_limit_rows = [("api", "100 per 1m", None, NOW_PASSES, 0)];
        assert_eq!(text(&rendered(forms(all), allowed, Some(0), &any_limit_rows)), policy);
    }
    let any_limit_rows = [("api", "100 per 1m", Some(5), NOW_PASSES, 0)];
    assert_eq!(
        text(&rendered(forms(all), true, None, &any_limit_rows)),
        policy,
        "no limit is reported"
    );
    assert_eq!(text(&rendered(forms(all), true, None, &[])), "", "no policy matches");
    assert_eq!(
        text(&rendered(forms(all), false, Some(7), &any_limit_rows)),
        policy,
        "the reported limit does not exist"
    );
}

#[test]
fn integers_stay_in_the_range_of_structured_fields() {
    let any_limit_rows =
        [("api", "100 per 1m", Some(u64::MAX), RetryAfter::Micros(u64::MAX), u64::MAX)];
    let out = rendered(forms("draft-10,draft-6"), false, Some(0), &any_limit_rows);
    assert_eq!(out["ratelimit"], "\"api\";r=999999999999999;t=18446744073710");
    assert_eq!(out["ratelimit-remaining"], "999999999999999");
    assert_eq!(out["retry-after"], "18446744073710");
    let _: List = Parser::new(out["ratelimit"].as_bytes()).parse().expect("a list");
}

/// Fields that another hop has set are replaced.
#[test]
fn existing_fields_are_replaced() {
    let limit = limit("5 per 1m");
    let reset_after = Duration::from_secs(60);
    let view = LimitView {
        policy: "a",
        limit: &limit,
        remaining: Some(1),
        retry_after: NOW_PASSES,
        reset_after,
    };
    let mut out = HeaderMap::new();
    for field in ["ratelimit", "ratelimit-policy", "x-ratelimit-limit"] {
        out.append(field, header_value("forged"));
        out.append(field, header_value("forged again"));
    }
    let response_view = ResponseView { allowed: true, limits: &[view], reported: Some(0) };
    render(forms("draft-10,x-ratelimit"), &response_view, now(), &mut out);
    for field in ["ratelimit", "ratelimit-policy", "x-ratelimit-limit"] {
        assert_eq!(out.get_all(field).iter().count(), 1, "{field}");
        assert_ne!(out[field], "forged");
    }
}

/// Gateways reject long fields, so the list is cut. The reported limit is always in it.
#[test]
fn long_policy_field_is_shortened() {
    let name = "n".repeat(64);
    let windows: Vec<String> = (1..=200).map(|s| format!("5 per {s}s")).collect();
    let any_limit_rows: Vec<LimitRow<'_>> =
        windows.iter().map(|text| (name.as_str(), text.as_str(), Some(1), NOW_PASSES, 1)).collect();
    for reported in [0, 100, 199] {
        let out = rendered(Forms::default(), true, Some(reported), &any_limit_rows);
        let field = out["ratelimit-policy"].as_bytes();
        assert!(field.len() <= MAX_POLICY_BYTES && field.len() > MAX_POLICY_BYTES / 2);
        let names = names_of(field);
        assert!(names.contains(&names_of(out["ratelimit"].as_bytes())[0]), "reported {reported}");
        assert!(names[0].ends_with("-1s"), "limits are in the order of the config");
    }
}

/// Values are composed on the stack.
#[test]
fn rendering_allocates_only_the_values() {
    let limits = ["10 per 1s", "600 per 1m"].map(limit);
    let views = limits.each_ref().map(|limit| {
        let reset_after = Duration::from_secs(60);
        LimitView { policy: "api", limit, remaining: Some(1), retry_after: NOW_PASSES, reset_after }
    });
    for count in [1, 2] {
        let response_view =
            ResponseView { allowed: true, limits: &views[..count], reported: Some(0) };
        let mut out = HeaderMap::with_capacity(16);
        let counted =
            measure(|| render(Forms::default(), &response_view, now(), &mut out)).count_total;
        assert_eq!((counted, out.len()), (2, 2), "{count} limits");
    }
}

/// Rows of `(text, forms or the error)`.
#[test]
fn forms_parse_from_their_names() {
    let unknown =
        "unknown header form `draft-8`: use draft-10, draft-7, draft-6, x-ratelimit or none";
    let rows: [(&str, Result<&str, &str>); 11] = [
        ("draft-10", Ok("draft-10")),
        ("x-ratelimit , draft-6", Ok("draft-6, x-ratelimit")),
        ("draft-7,draft-7", Ok("draft-7")),
        ("draft-6,draft-7,draft-10,x-ratelimit", Ok("draft-10, draft-7, draft-6, x-ratelimit")),
        ("none", Ok("none")),
        ("draft-8", Err(unknown)),
        ("draft-10,draft-8", Err(unknown)),
        ("none,draft-10", Err("`none` beside other header forms: use it alone, or leave it out")),
        ("", Err("unknown header form ``: use draft-10, draft-7, draft-6, x-ratelimit or none")),
        (
            "Draft-10",
            Err(
                "unknown header form `Draft-10`: use draft-10, draft-7, draft-6, x-ratelimit or none",
            ),
        ),
        (
            "\u{7}",
            Err(
                "unknown header form `\u{fffd}`: use draft-10, draft-7, draft-6, x-ratelimit or none",
            ),
        ),
    ];
    for (text, expected) in rows {
        let read = text.parse::<Forms>();
        let displayed = read.as_ref().map(Forms::to_string).map_err(FormsError::to_string);
        assert_eq!(displayed, expected.map(String::from).map_err(String::from), "{text:?}");
    }
    assert_eq!(
        Forms::from_names([]).expect_err("no forms").to_string(),
        "no header form is named: write `none` to send no rate limit fields"
    );
    assert_eq!(forms("draft-10,draft-7").shadowed(), Some(Form::Draft7));
    assert_eq!(forms("draft-10,draft-6,x-ratelimit").shadowed(), None);
    assert_eq!(forms("draft-7,draft-6").shadowed(), None);
}

fn items(field: &[u8]) -> Vec<Item> {
    let list: List = Parser::new(field).parse().expect("a list");
    let item = |entry: ListEntry| match entry {
        ListEntry::Item(item) => item,
        ListEntry::InnerList(_) => panic!("no list in a list"),
    };
    list.into_iter().map(item).collect()
}

fn names_of(field: &[u8]) -> Vec<String> {
    let name = |item: &Item| item.bare_item.as_string().expect("a string").as_str().to_owned();
    items(field).iter().map(name).collect()
}

fn integer(item: &Item, name: &str) -> Option<i64> {
    let value = item.params.get(name)?;
    Some(value.as_integer().expect("an integer").into())
}

/// Policies with few names, so that names repeat, and limits of all kinds.
fn any_limit_rows() -> impl Strategy<Value = Vec<(String, String, Option<u64>, RetryAfter, u64)>> {
    let policy = prop_oneof!["[ab](-1s)?", "(-)?(2)?", "\\PC{0,8}", ".{0,8}"];
    let limit = prop_oneof![
        (0..5_u64, 1..4_u64, 0..5_usize).prop_map(|(count, window, unit)| {
            format!("{count} per {window}{}", ["ms", "s", "m", "h", "d"][unit])
        }),
        (0..5_u64).prop_map(|count| format!("{count} concurrent")),
        (0..=1_000_000_000_000_u64).prop_map(|count| format!("{count} per 366d")),
        (1..9_u64).prop_map(|count| format!("{count} per 1s sliding-window")),
    ];
    let retry_after = prop_oneof![
        Just(RetryAfter::Now),
        any::<u64>().prop_map(RetryAfter::from_micros),
        Just(RetryAfter::Never)
    ];
    let view = (policy, limit, any::<Option<u64>>(), retry_after, any::<u64>());
    prop::collection::vec(view, 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// For all inputs the fields can be parsed, and the names are unique and refer to each other.
    #[test]
    fn fields_of_any_limits_are_valid_structured_fields(any_limit_rows in any_limit_rows(), reported in prop::option::of(0..12_usize), allowed: bool) {
        let any_limit_rows: Vec<LimitRow<'_>> = any_limit_rows.iter().map(|t| (t.0.as_str(), t.1.as_str(), t.2, t.3, t.4)).collect();
        let out = rendered(forms("draft-10,draft-6,x-ratelimit"), allowed, reported, &any_limit_rows);
        let reported_row = reported.and_then(|index| any_limit_rows.get(index));
        if any_limit_rows.is_empty() {
            prop_assert!(out.is_empty());
            return Ok(());
        }
        let policies = items(out["ratelimit-policy"].as_bytes());
        prop_assert_eq!(policies.len(), any_limit_rows.len(), "no limit is cut off");
        let names = names_of(out["ratelimit-policy"].as_bytes());
        prop_assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{:?}", names);
        for item in &policies {
            prop_assert!((0..=MAX_INTEGER).contains(&integer(item, "q").expect("q is required")));
            let unit = item.params.get("qu").map(|unit| unit.as_string().expect("a string").as_str());
            match integer(item, "w") {
                Some(window) => prop_assert!(window > 0 && unit.is_none()),
                None => prop_assert_eq!(unit, Some("concurrent-requests")),
            }
        }
        let known = reported_row.is_some_and(|any_limit_rows| any_limit_rows.2.is_some());
        prop_assert_eq!(out.contains_key("ratelimit"), known);
        let wait = out.get("retry-after").map(|v| v.to_str().expect("text").parse::<i64>().expect("a number"));
        prop_assert!(wait.is_none() || !allowed);
        if known {
            let service = items(out["ratelimit"].as_bytes());
            prop_assert_eq!(service.len(), 1);
            prop_assert_eq!(&names_of(out["ratelimit"].as_bytes())[0], &names[reported.expect("a reported limit")]);
            prop_assert!(integer(&service[0], "r").is_some());
            if let (Some(wait), Some(t)) = (wait, integer(&service[0], "t")) {
                prop_assert!(wait >= t, "Retry-After is not earlier than t");
            }
            for field in ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"] {
                let item: Item = Parser::new(out[field].as_bytes()).parse().expect("an item");
                prop_assert!(item.bare_item.as_integer().is_some());
            }
        }
    }

    #[test]
    fn draft_7_fields_of_any_limits_are_valid_structured_fields(any_limit_rows in any_limit_rows(), reported in 0..12_usize, allowed: bool) {
        let any_limit_rows: Vec<LimitRow<'_>> = any_limit_rows.iter().map(|t| (t.0.as_str(), t.1.as_str(), t.2, t.3, t.4)).collect();
        let out = rendered(forms("draft-7"), allowed, Some(reported), &any_limit_rows);
        if let Some(field) = out.get("ratelimit") {
            let dictionary: Dictionary = Parser::new(field.as_bytes()).parse().expect("a dictionary");
            let keys: Vec<&str> = dictionary.keys().map(|key| key.as_str()).collect();
            prop_assert_eq!(keys, ["limit", "remaining", "reset"]);
        }
        let Some(field) = out.get("ratelimit-policy") else { return Ok(()) };
        let counts: Vec<i64> = items(field.as_bytes())
            .iter()
            .map(|item| {
                assert!(integer(item, "w").is_some_and(|window| window > 0));
                item.bare_item.as_integer().expect("an integer").into()
            })
            .collect();
        let distinct: BTreeSet<&i64> = counts.iter().collect();
        prop_assert_eq!(distinct.len(), counts.len(), "no number twice");
    }
}
