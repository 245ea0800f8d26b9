//! Keys: their form, and that different requests do not share one by accident or by design.

use std::borrow::Cow;

use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;
use tidegate::unstable::attributes::{Attributes, Headers};
use tidegate::unstable::policy::{MAX_KEY_BYTES, SHARED_KEY, Template, TemplateErrorKind};

use super::{TestRequest, config, key, with_key};

/// Rows of a template, a request and the key for display.
const RENDERED: &[(&str, &str, &str)] = &[
    ("{client_ip}", "ip=192.0.2.1", "192.0.2.1"),
    ("{client_ip}", "ip=::ffff:192.0.2.1", "192.0.2.1"),
    ("{client_ip}", "ip=0.9.10.99", "0.9.10.99"),
    ("{client_ip}", "ip=100.109.200.255", "100.109.200.255"),
    ("{client_ip}", "ip=2001:db8:0:1:2:3:4:5", "2001:db8:0:1::/64"),
    ("{method}", "post", "POST"),
    ("{path}", "/a//b/../c", "/a/c"),
    // Path parameters and backslashes do not make new keys.
    ("{path}", "/login;a=1", "/login"),
    ("{path}", "/login%3Ba=2", "/login"),
    ("{path}", "/a\\..\\login", "/login"),
    ("{path}", "/a/..;b/login", "/login"),
    ("{path}", "/login%2e", "/login."),
    ("{path}", "/login/.", "/login/"),
    ("{path}", "/%c0%ae%c0%ae/a", "/%C0%AE%C0%AE/a"),
    ("{host}", "host=Example.COM:8080", "example.com"),
    ("{host}", "host=example.com.", "example.com"),
    ("{host}", "host=[::1]:80", "[::1]"),
    ("{header:x-user}", "X-User:alice", "alice"),
    ("{header:X-USER}", "x-user:alice x-user:bob", "alice"),
    ("{query:q}", "/?p=1&q=a%20b+c&q=d", "a b c"),
    ("{query:q}", "/?%71=x", "x"),
    ("{cookie:session}", "cookie:a=1;session=xyz;session=no", "xyz"),
    ("{cookie:session}", "cookie:a=1 cookie:session=xyz", "xyz"),
    ("{descriptor:tenant}", "@tenant=acme", "acme"),
    ("all", "", "all"),
    ("user:{header:x-user}!", "x-user:alice", "user:alice!"),
    ("{{{method}}}", "GET", "{GET}"),
    // Keys with several parts contain the lengths of the parts.
    ("{header:x-user}:{path}", "/login x-user:alice", "5#alice:6#/login"),
    ("{method}{path}", "GET /", "3#GET1#/"),
    // A key from alternatives names the alternative.
    ("{header:x-api-key | client_ip}", "x-api-key:abc ip=1.2.3.4", "header:x-api-key=abc"),
    ("{header:x-api-key | client_ip}", "ip=1.2.3.4", "client_ip=1.2.3.4"),
    ("{header:k|client_ip}{method}", "GET k:v", "10#header:k=v3#GET"),
    // A missing or empty value is a NUL.
    ("{client_ip}", "", "\\x00"),
    ("{header:x-user}", "x-user:", "\\x00"),
    ("{header:x-user}:{path}", "/login", "1#\\x00:6#/login"),
    ("{header:k | cookie:c}", "", "\\x00"),
    ("{header:k | client_ip}", "k: ip=1.2.3.4", "client_ip=1.2.3.4"),
];

#[test]
fn templates_render_keys() {
    for (template, words, expected) in RENDERED {
        let (config, request) = (with_key(template), TestRequest::new(words));
        let selected = config.policies.select(&request.attributes()).expect("selected");
        assert_eq!(selected[0].key.to_string(), *expected, "{template} of {words}");
    }
}

/// Missing braces would count all clients under one key.
#[test]
fn template_without_a_field_is_rejected() {
    for text in
        ["client_ip", "header:x-api-key", "header:x-api-key | client_ip", "All", " all", "{{a}}"]
    {
        let error = text.parse::<Template>().expect_err(text);
        assert_eq!(error.kind(), TemplateErrorKind::NoField, "{text}");
        assert_eq!(error.span(), 0..text.len(), "{text}");
    }
    assert_eq!(SHARED_KEY.parse::<Template>().map(|all| all.fields().count()), Ok(0));
}

#[test]
fn header_value_cannot_imitate_an_address_key() {
    let template = "{header:x-api-key | client_ip}";
    let honest = TestRequest::new("ip=1.2.3.4");
    let forged = TestRequest::new("x-api-key:client_ip=1.2.3.4 ip=6.6.6.6");
    assert_ne!(key(template, &honest.attributes()), key(template, &forged.attributes()));
}

#[test]
fn headers_from_a_map_and_from_pairs_are_the_same() {
    let mut map = HeaderMap::new();
    map.append("x-user", HeaderValue::from_static(" alice "));
    map.append("x-user", HeaderValue::from_static("bob"));
    let attributes = Attributes { headers: Headers::Map(&map), ..Attributes::default() };
    assert_eq!(key("{header:x-user}", &attributes), b"alice");
    assert_eq!(attributes.headers.all("X-User").count(), 2);
    assert_eq!(Headers::None.all("x-user").count(), 0);
}

/// Invalid UTF-8 is kept in the key, and escaped for display.
#[test]
fn key_keeps_any_bytes() {
    let mut map = HeaderMap::new();
    map.append("x", HeaderValue::from_bytes(b"a\xff\xe2\x80\xae<img onerror>\\").expect("a value"));
    let attributes = Attributes { headers: Headers::Map(&map), ..Attributes::default() };
    let config = with_key("{header:x}");
    let selected = config.policies.select(&attributes).expect("selected");
    assert_eq!(selected[0].key.as_ref(), b"a\xff\xe2\x80\xae<img onerror>\\");
    assert_eq!(selected[0].key.to_string(), "a\\xff\\xe2\\x80\\xae<img onerror>\\\\");
}

fn key_of_header(value: &str) -> Vec<u8> {
    let pairs = [(Cow::from("x"), Cow::from(value))];
    key("{header:x}", &Attributes { headers: Headers::Pairs(&pairs), ..Attributes::default() })
}

#[test]
fn long_keys_are_cut_and_stay_distinct() {
    let fits = "a".repeat(MAX_KEY_BYTES);
    assert_eq!(key_of_header(&fits), fits.as_bytes());
    let (one, two) = (key_of_header(&format!("{fits}1")), key_of_header(&format!("{fits}2")));
    assert_ne!(one, two);
    for cut in [&one, &two] {
        assert_eq!(cut.len(), MAX_KEY_BYTES);
        assert!(cut.starts_with(b"\0#aaaa"));
    }
    // A client that sends the shortened text has another key.
    let forged = String::from_utf8(one.clone()).expect("text");
    assert_ne!(key_of_header(&forged), one);
    assert_eq!(key_of_header(&"x".repeat(1_000_000)).len(), MAX_KEY_BYTES);
}

/// A key given by a caller equals the key that the template makes of the same value.
#[test]
fn literal_key_equals_the_rendered_key() {
    let config = with_key("{header:x}");
    for value in ["alice", "", "\0", "\0\0x", "\0#aa", &"y".repeat(2000)] {
        let named = config.policies.with_key("p", value.as_bytes(), None).expect("the policy");
        if value.is_empty() {
            assert_eq!(named.key.as_ref(), b"");
        } else {
            assert_eq!(named.key.as_ref(), key_of_header(value), "{value:?}");
        }
    }
    let missing = key("{header:x}", &Attributes::default());
    let named = config.policies.with_key("p", &missing, None).expect("the policy");
    assert_ne!(named.key.as_ref(), missing);
}

/// Values that an attacker would try: separators, lengths, tags, NULs.
fn value() -> impl Strategy<Value = Option<String>> {
    let piece = prop_oneof![
        Just("\0"),
        Just("#"),
        Just("1#"),
        Just("2#"),
        Just(":"),
        Just("a"),
        Just("/"),
        Just("="),
        Just("descriptor:a="),
        Just("descriptor:b="),
        Just("client_ip="),
        Just("1#\0"),
        Just("é"),
    ];
    let text = prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat());
    prop::option::of(text)
}

const TEMPLATES: [&str; 9] = [
    "{descriptor:a}",
    "{descriptor:a}{descriptor:b}",
    "{descriptor:a}:{descriptor:b}",
    "{descriptor:a}#{descriptor:b}{descriptor:c}",
    "x{descriptor:a}y",
    "{descriptor:a | descriptor:b}",
    "{descriptor:a | descriptor:b}{descriptor:c}",
    "{descriptor:b | descriptor:a}:{descriptor:a | descriptor:c}",
    "1#{descriptor:a}{descriptor:b | descriptor:c}",
];

type Three = [Option<String>; 3];

fn key_of(template: &str, values: &Three) -> Vec<u8> {
    let named = ["a", "b", "c"].into_iter().zip(values);
    let pairs: Vec<(Cow<'_, str>, Cow<'_, str>)> =
        named.filter_map(|(name, value)| Some((name.into(), value.as_deref()?.into()))).collect();
    key(template, &Attributes { descriptors: &pairs, ..Attributes::default() })
}

/// Returns the values that a template reads, computed independently of the renderer: for each
/// placeholder the alternative that was present (empty is absent) and its value.
fn values_read_by(template: &str, values: &Three) -> Vec<Option<(String, String)>> {
    let value = |name: &str| {
        let index = ["a", "b", "c"].iter().position(|known| *known == name).expect("a name");
        values[index].clone().filter(|value| !value.is_empty())
    };
    let slots = template.split('{').skip(1).map(|slot| slot.split('}').next().expect("closed"));
    let first = |slot: &str| {
        let mut names = slot.split('|').map(|name| name.trim().trim_start_matches("descriptor:"));
        names.find_map(|name| Some((name.to_owned(), value(name)?)))
    };
    slots.map(first).collect()
}

proptest! {
    /// Two requests share a key only if the template reads the same values from both.
    #[test]
    fn keys_are_injective(
        one in [value(), value(), value()],
        two in [value(), value(), value()],
        template in prop::sample::select(&TEMPLATES[..]),
    ) {
        let same = values_read_by(template, &one) == values_read_by(template, &two);
        prop_assert_eq!(key_of(template, &one) == key_of(template, &two), same, "{}", template);
    }

    #[test]
    fn arbitrary_values_keep_keys_distinct(one in any::<[Option<String>; 2]>(), two in any::<[Option<String>; 2]>()) {
        let three = |values: [Option<String>; 2]| { let [a, b] = values; [a, b, None] };
        let (one, two) = (three(one), three(two));
        for template in TEMPLATES {
            let same = values_read_by(template, &one) == values_read_by(template, &two);
            prop_assert_eq!(key_of(template, &one) == key_of(template, &two), same);
        }
    }

    #[test]
    fn templates_never_panic(text in "[{}|:a-z_ \\PC]{0,40}") {
        match text.parse::<Template>() {
            Ok(template) => {
                prop_assert_eq!(template.to_string(), text);
            }
            Err(error) => {
                prop_assert!(text.get(error.span()).is_some(), "{:?}", error.span());
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }

    #[test]
    fn paths_are_normalised_once(path in prop_oneof![any::<String>(), "[/.a%2eEfF5]{0,24}", "(/|\\.|%2[eEfF]|%25|a|é| ){0,12}", "(/|\\.|;|%3[bB]|\\\\|%5[cC]|%25|a){0,12}"]) {
        let normal = |path: &str| {
            let attributes = Attributes { path: Some(path), ..Attributes::default() };
            String::from_utf8(key("{path}", &attributes)).expect("a path is text")
        };
        let once = normal(&path);
        if once.len() < MAX_KEY_BYTES {
            prop_assert_eq!(&normal(&once), &once);
            prop_assert!(once.starts_with('/') && !once.contains("//"), "{}", once);
            prop_assert!(once.split('/').all(|segment| segment != "." && segment != ".."), "{}", once);
            prop_assert!(once.bytes().all(|byte| byte.is_ascii_graphic()), "{}", once);
            prop_assert!(!once.contains(';') && !once.contains("%5C"), "{}", once);
        }
    }
}

/// Policies with the same template make the same key. Their counts are separated by the policy.
#[test]
fn the_same_template_in_two_policies_makes_the_same_key() {
    let text = "policies: [{ name: a, key: all, limits: 1 per 1s }, { name: b, key: all, limits: 1 per 1s }]";
    let config = config(text);
    let selected = config.policies.select(&Attributes::default()).expect("selected");
    let keys: Vec<(&str, &[u8])> =
        selected.iter().map(|one| (one.policy.name(), one.key.as_ref())).collect();
    assert_eq!(keys, [("a", &b"all"[..]), ("b", b"all")]);
}
