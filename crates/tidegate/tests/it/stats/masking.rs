//! Keys are shown without the credentials in them, and the masked form resolves to the key.

use std::borrow::Cow;
use std::sync::Arc;

use proptest::prelude::*;
use tidegate::unstable::attributes::{Attributes, Headers};
use tidegate::unstable::gate::{Gate, GateError, GateRequest, Subject};
use tidegate::unstable::identity::Identity;
use tidegate::unstable::policy::{Policies, Policy};
use tidegate::unstable::stats::{
    LogKeys, MAX_SHOWN_CHARS, MAX_TEXT_BYTES, RankBy, Stats, StreamItem,
};
use tidegate::{Limiter, ManualClock};

use super::start;
use crate::common::limit;
use crate::futures::block_on;

/// Templates with a header `x` in every position of a key.
const TEMPLATES: [&str; 6] = [
    "{header:x}",
    "{header:x | client_ip}",
    "user:{header:x}/",
    "{header:x}:{path}",
    "{path}|{client_ip | header:x}|{query:q}",
    "{cookie:none | header:x}{method}",
];

fn gate(template: &str) -> Gate {
    let clock = ManualClock::new(start());
    let template = template.parse().expect("a template");
    let policy = Policy::new("p", template, vec![limit("1 per 1h sliding-log")]).expect("a policy");
    let policies = Policies::new(vec![policy], Identity::default()).expect("policies");
    let limiter = Limiter::builder().max_keys(10_000).clock(clock.clock()).build().expect("memory");
    Gate::new(limiter, policies, Arc::new(Stats::new(clock.clock())))
}

/// Sends two requests with this header, of which the second is denied. Returns the key as it is
/// counted, and for display.
fn deny(gate: &Gate, value: &str) -> (tidegate::unstable::policy::Key, String) {
    let headers = [(Cow::from("x"), Cow::from(value))];
    let attributes = Attributes {
        path: Some("/login"),
        method: Some("GET"),
        headers: Headers::Pairs(&headers),
        ..Attributes::default()
    };
    let active = gate.active_policies();
    for allowed in [true, false] {
        let request = GateRequest::new(Subject::Request(&attributes));
        let verdict = gate.poll_now(gate.check(&active, &[request]));
        assert_eq!(verdict.expect("a verdict").allowed, allowed);
    }
    let key = active.policies().select(&attributes).expect("a policy")[0].key.clone();
    let displayed = gate.stats().top(RankBy::Denied, None, 1).keys.entries[0].name.to_string();
    let mut reader = gate.stats().events().subscribe(None).expect("free capacity");
    let Some(StreamItem::Denial(event)) = reader.try_next() else { panic!("expected a denial") };
    assert_eq!(event.key.to_string(), displayed);
    (key, displayed)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Values of any length and any UTF-8 text. Long ones are cut.
    #[test]
    fn masked_forms_hide_values_and_resolve_to_their_key(
        template in prop::sample::select(TEMPLATES.to_vec()),
        value in prop_oneof!["[!-~]{1,40}", "\\PC{1,40}", "[a-z\\x00-\\x1f]{900,1200}"],
    ) {
        prop_assume!(!value.trim().is_empty());
        let gate = gate(template);
        let (key, displayed) = deny(&gate, &value);
        let trimmed = value.trim();
        prop_assert!(displayed.contains("...#"), "{}", displayed);
        prop_assert!(displayed.len() <= MAX_TEXT_BYTES);
        prop_assert!(displayed.chars().all(|c| !c.is_control()));
        // At most four characters of the value, and at most a quarter of it.
        let most = MAX_SHOWN_CHARS.min(trimmed.len() / 4);
        let (before, _) = displayed.split_once("...#").expect("a mask");
        let common = trimmed.char_indices().map(|(at, c)| at + c.len_utf8());
        let showing = common.filter(|end| before.ends_with(&trimmed[..*end])).max().unwrap_or(0);
        prop_assert!(showing <= most || trimmed.len() <= 4, "{} of {}", showing, trimmed);
        prop_assert_eq!(gate.stats().unmask("p", &displayed), Some(key));
        prop_assert_eq!(gate.stats().unmask("q", &displayed), None);
    }
}

#[test]
fn values_that_are_not_credentials_are_readable() {
    let gate = gate("{header:x | client_ip}");
    let attributes = Attributes { client_ip: "192.0.2.1".parse().ok(), ..Attributes::default() };
    let active = gate.active_policies();
    for _ in 0..2 {
        let request = GateRequest::new(Subject::Request(&attributes));
        gate.poll_now(gate.check(&active, &[request])).expect("a verdict");
    }
    let displayed = || gate.stats().top(RankBy::Denied, None, 9).keys.entries;
    assert_eq!(displayed()[0].name.to_string(), "client_ip=192.0.2.1");
    // Keys of callers' limits do not come from a template.
    let limits = [limit("1 per 1h sliding-log")];
    for _ in 0..2 {
        let subject = Subject::Limits { key: b"alice", limits: &limits };
        gate.poll_now(gate.check(&active, &[GateRequest::new(subject)])).expect("a verdict");
    }
    assert_eq!(displayed()[0].name.to_string(), "alice");
    gate.stats().set_log_keys(LogKeys::Off, None);
    assert!(displayed().is_empty());
}

#[test]
fn reload_keeps_masked_values_masked() {
    let gate = gate("{header:x}");
    let (_, displayed) = deny(&gate, "sk_live_4eC39HqLyjWD");
    let readable =
        Policy::new("p", "{client_ip}".parse().expect("a template"), vec![limit("1 per 1h")]);
    let policies = Policies::new(vec![readable.expect("a policy")], Identity::default());
    gate.reload(policies.expect("policies"));
    assert_eq!(
        gate.stats().top(RankBy::Denied, None, 1).keys.entries[0].name.to_string(),
        displayed
    );
}

#[test]
fn unknown_masked_form_is_an_error() {
    let gate = gate("{header:x}");
    let active = gate.active_policies();
    let form = "sk_l...#0123456789abcdef";
    let unknown = block_on(gate.keys(&active, "p").expect("a policy").find(form.as_bytes()));
    assert_eq!(unknown, Err(GateError::UnknownMask { form: form.into() }));
}

/// A value can look like a masked form, or like one that was cut off before its `#`.
#[test]
fn a_value_in_use_that_looks_masked_is_found() {
    for value in ["sk_l...#0123456789abcdef", "and so on..."] {
        for template in ["{header:x}", "{header:x | client_ip}", "{header:x}:{path}"] {
            let gate = gate(template);
            let active = gate.active_policies();
            let (key, _) = deny(&gate, value);
            let is_composite = template.contains(":{path}");
            let text = if is_composite { key.to_string() } else { value.to_owned() };
            let keys = gate.keys(&active, "p").expect("a policy");
            let found = block_on(keys.find(text.as_bytes())).expect("a key");
            assert_eq!((found.key, found.masked), (key, false), "{template} {text}");
        }
    }
}

/// Browsers and other clients send a URL without its fragment.
#[test]
fn masked_form_without_its_hash_is_an_error_with_a_hint() {
    for template in ["{header:x}", "{header:x | client_ip}"] {
        let gate = gate(template);
        let active = gate.active_policies();
        let (key, displayed) = deny(&gate, "sk_live_4eC39HqLyjWD");
        let (cut, _) = displayed.split_once('#').expect("a hash");
        let keys = gate.keys(&active, "p").expect("a policy");
        let find = |text: &str| block_on(keys.find(text.as_bytes()));
        let found = find(&displayed).expect("the complete form resolves to its key");
        assert_eq!((found.key, found.masked), (key, true), "{template}");
        let unknown = find(cut).expect_err("an unknown key");
        assert_eq!(unknown, GateError::UnknownMask { form: cut.into() }, "{template}");
        assert!(unknown.to_string().contains("in a URL, write `#` as `%23`"), "{unknown}");
    }
}
