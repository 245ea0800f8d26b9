//! The policies, overrides, modes and costs that apply to a request, and the reasons.

use tidegate::unstable::attributes::Attributes;
use tidegate::unstable::config::Config;
use tidegate::unstable::identity::Identity;
use tidegate::unstable::policy::{
    Condition, CostSource, Mode, OnStoreFailure, Override, Policies, PoliciesError, Policy,
    PolicyError, SelectedPolicy,
};

use super::{TestRequest, config};

const CONFIG: &str = r#"
policies:
  - name: login
    match: { methods: [POST], path: /login }
    key: "{client_ip}"
    limits: ["5 per 1m sliding-log"]
    on_store_failure: deny
  - name: api
    match: { path: "/v1/**" }
    key: "{header:x-api-key | client_ip}"
    limits: ["10 per 1s", "600 per 1m"]
    cost: "{header:x-cost}"
    exempt: { client_ip: [192.168.0.0/16], "header:x-internal": "*" }
    overrides:
      - when: { "header:x-org": [acme, bigco] }
        limits: ["6000 per 1m"]
        cost: 2
      - when: { "header:x-org": newco, method: POST }
        mode: observe
        on_store_failure: allow
      - when: { "header:x-org": oldco }
        mode: off
  - name: never
    mode: off
    key: all
    limits: ["0 per 1s"]
"#;

fn show(selected: &SelectedPolicy<'_>) -> String {
    let limits: Vec<String> = selected.limits.iter().map(ToString::to_string).collect();
    format!(
        "{} {} [{}] {} {} cost {} variant {}",
        selected.policy.name(),
        selected.key,
        limits.join(", "),
        selected.mode,
        selected.on_store_failure,
        selected.cost,
        selected.variant
    )
}

const BOTH: &str = "[10 per 1s sliding-window, 600 per 1m sliding-window]";

#[test]
fn policies_are_selected_as_tabulated() {
    let login = "login 1.2.3.4 [5 per 1m sliding-log] enforce deny cost 1 variant 0".to_owned();
    let api = |rest: &str| format!("api client_ip=1.2.3.4 {rest}");
    let org = |name: &str| format!("/v1/x ip=1.2.3.4 x-org:{name}");
    let rows: &[(&str, &[String])] = &[
        ("POST /login ip=1.2.3.4", std::slice::from_ref(&login)),
        ("POST /%6cogin ip=1.2.3.4", std::slice::from_ref(&login)),
        ("GET /login ip=1.2.3.4", &[]),
        ("", &[]),
        ("/v1/x ip=1.2.3.4", &[api(&format!("{BOTH} enforce local cost 1 variant 0"))]),
        ("/v1/x ip=1.2.3.4 x-cost:7", &[api(&format!("{BOTH} enforce local cost 7 variant 0"))]),
        ("/v1/x ip=1.2.3.4 x-cost:0", &[api(&format!("{BOTH} enforce local cost 0 variant 0"))]),
        ("/v1/x ip=192.168.3.4", &[]),
        ("/v1/x ip=1.2.3.4 x-internal:1", &[]),
        (&org("acme"), &[api("[6000 per 1m sliding-window] enforce local cost 2 variant 1")]),
        (
            &format!("POST {}", org("newco")),
            &[api(&format!("{BOTH} observe allow cost 1 variant 2"))],
        ),
        (
            &format!("GET {}", org("newco")),
            &[api(&format!("{BOTH} enforce local cost 1 variant 0"))],
        ),
        (&org("oldco"), &[]),
        // The cost of an override takes precedence over the header.
        (
            &format!("{} x-cost:nonsense", org("bigco")),
            &[api("[6000 per 1m sliding-window] enforce local cost 2 variant 1")],
        ),
    ];
    let config = config(CONFIG);
    for (words, expected) in rows {
        let request = TestRequest::new(words);
        let selected = config.policies.select(&request.attributes()).expect(words);
        assert_eq!(selected.iter().map(show).collect::<Vec<_>>(), *expected, "{words}");
    }
}

#[test]
fn non_numeric_cost_is_an_error() {
    let config = config(CONFIG);
    for bad in ["x", "-1", "1.5", "1e3", "+1", "1000000000001", "99999999999999999999"] {
        let request = TestRequest::new(&format!("/v1/x x-cost:{bad}"));
        let error = config.policies.select(&request.attributes()).expect_err(bad);
        let expected = format!(
            "the cost for policy `api` comes from {{header:x-cost}}, which holds `{bad}`: send a whole \
             number from 0 to 1000000000000, or leave it out for 1"
        );
        assert_eq!(error.to_string(), expected);
        assert_eq!(
            config.policies.select_named("api", &request.attributes()).expect_err(bad),
            error
        );
        // A caller that gives the key also gives the cost.
        let named =
            config.policies.with_key("api", b"k", Some(&request.attributes())).expect("a policy");
        assert_eq!(named.cost, 1);
    }
    // An observed policy must not make requests fail.
    let watched = TestRequest::new("POST /v1/x x-org:newco x-cost:lots");
    let selected = config.policies.select(&watched.attributes()).expect("it is only observed");
    assert_eq!((selected[0].mode, selected[0].cost), (Mode::Observe, 1));
    let explained = config.policies.explain(&watched.attributes()).to_string();
    assert!(explained.contains("  cost    {header:x-cost} holds `lots`: 1\n"), "{explained}");
    let most = TestRequest::new("/v1/x x-cost:1000000000000");
    assert_eq!(
        config.policies.select(&most.attributes()).expect("the most")[0].cost,
        1_000_000_000_000
    );
}

#[test]
fn selects_one_policy_by_name() {
    let config = config(CONFIG);
    let by_name = |name: &str, words: &str| {
        let request = TestRequest::new(words);
        let selected = config.policies.select_named(name, &request.attributes());
        selected.map(|selected| selected.map(|one| show(&one)))
    };
    // The policy need not match the request.
    let login = "login 1.2.3.4 [5 per 1m sliding-log] enforce deny cost 1 variant 0".to_owned();
    assert_eq!(by_name("login", "GET /x ip=1.2.3.4"), Ok(Some(login)));
    assert_eq!(by_name("api", "ip=192.168.0.1"), Ok(None));
    assert_eq!(by_name("never", ""), Ok(None));
    assert_eq!(
        by_name("nope\n", "").expect_err("unknown").to_string(),
        "there is no policy `nope\\x0a`"
    );
    // At most 64 bytes are shown, at a character boundary, with dots only if something was cut off.
    for (name, displayed) in [
        ("x".repeat(64), "x".repeat(64)),
        ("x".repeat(65), "x".repeat(64) + "..."),
        ("\u{20ac}".repeat(65), "\u{20ac}".repeat(21) + "..."),
    ] {
        let unknown = by_name(&name, "").expect_err("unknown").to_string();
        assert_eq!(unknown, format!("there is no policy `{displayed}`"));
    }
}

#[test]
fn selects_one_policy_with_a_given_key() {
    let config = config(CONFIG);
    let named = |name: &str, words: Option<&str>| {
        let request = words.map(TestRequest::new);
        let attributes = request.as_ref().map(TestRequest::attributes);
        config.policies.with_key(name, b"alice", attributes.as_ref()).map(|one| show(&one))
    };
    assert_eq!(
        named("api", None),
        Some(format!("api alice {BOTH} enforce local cost 1 variant 0"))
    );
    let acme = "api alice [6000 per 1m sliding-window] enforce local cost 2 variant 1";
    assert_eq!(named("api", Some("x-org:acme")), Some(acme.into()));
    assert_eq!(
        named("never", None),
        Some("never alice [0 per 1s sliding-window] off local cost 1 variant 0".into())
    );
    assert_eq!(named("nope", None), None);
}

/// The explanation of a request.
const EXPLAINED: &str = "\
login: does not match
  because the policy requires path: /login, and the request has /v1/x

api: observes, never denies
  key     {header:x-api-key | client_ip} -> client_ip=1.2.3.4
  because override 2 holds: header:x-org: newco, method: POST
  limit   10 per 1s sliding-window
  limit   600 per 1m sliding-window
  cost    3
  store down: allowed

never: off
  key     all -> all
  limit   0 per 1s sliding-window
  store down: decided locally
";

#[test]
fn explanations_are_as_tabulated() {
    let config = config(CONFIG);
    let request = TestRequest::new("POST /v1/./x ip=1.2.3.4 x-org:newco x-cost:3");
    assert_eq!(config.policies.explain(&request.attributes()).to_string(), EXPLAINED);
    let explanation = |words: &str| {
        let request = TestRequest::new(words);
        let text = config.policies.explain(&request.attributes()).to_string();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(explanation("POST").contains(
        &"  because the policy requires path: /login, and the request has none".to_owned()
    ));
    assert!(
        explanation("/v1/x ip=192.168.1.1")
            .contains(&"  because client_ip: 192.168.0.0/16".to_owned())
    );
    let missing = "          the request has no header:x-api-key | client_ip: all such requests share this key";
    assert!(explanation("/v1/x").contains(&missing.to_owned()));
    assert!(
        explanation("/v1/x x-cost:x")
            .contains(&"  cost    {header:x-cost} holds `x`: bad input".to_owned())
    );
}

/// The explanation always agrees with the selection.
#[test]
fn explanation_agrees_with_selection() {
    let config = config(CONFIG);
    for words in [
        "",
        "POST /login",
        "/v1/x",
        "/v1/x x-org:oldco",
        "/v1/x x-org:acme",
        "/v1/x ip=192.168.0.1",
    ] {
        let request = TestRequest::new(words);
        let selected = config.policies.select(&request.attributes()).expect("selected");
        let names: Vec<&str> = selected.iter().map(|one| one.policy.name()).collect();
        let explained = config.policies.explain(&request.attributes());
        let from_explanation = explained.policies.iter().filter(|one| one.is_selected());
        assert_eq!(
            from_explanation.map(|one| one.policy.name()).collect::<Vec<_>>(),
            names,
            "{words}"
        );
    }
}

/// A request with short keys and a normalized path does not allocate.
#[test]
fn selecting_does_not_allocate() {
    let config = Config::load("tests/it/config/valid/surface.yaml".as_ref()).expect("a config");
    let request =
        TestRequest::new("POST /v1/files/42 ip=192.0.2.1 x-api-key:0123456789abcdef x-org:newco");
    let attributes = request.attributes();
    let select = || config.policies.select(&attributes).expect("selected").len();
    // The scratch space of the automaton and the thread's vector are allocated once.
    assert_eq!((select(), select()), (1, 1));
    let allocations = allocation_counter::measure(|| assert_eq!(select(), 1));
    assert_eq!(allocations.count_total, 0);
}

fn policy(name: &str) -> Policy {
    Policy::new(name, "all".parse().expect("a key"), vec!["1 per 1s".parse().expect("a limit")])
        .expect("a policy")
}

fn when(field: &str, values: &[&str]) -> tidegate::unstable::policy::Conditions {
    let condition = Condition::new(field.parse().expect("a part"), values).expect("a condition");
    [condition].into_iter().collect()
}

/// The order in which a policy is built does not matter.
#[test]
fn overrides_inherit_fields_they_do_not_set() {
    let over = || Override {
        when: when("method", &["GET"]),
        cost: Some(CostSource::Fixed(3)),
        ..Override::default()
    };
    let early = policy("a").with_mode(Mode::Observe).with_override(over()).expect("an override");
    let late = policy("a").with_override(over()).expect("an override").with_mode(Mode::Observe);
    assert_eq!(early, late);
    assert_eq!(late.variants()[1].mode(), Mode::Observe);
    let late = late.with_cost(CostSource::Fixed(2)).with_on_store_failure(OnStoreFailure::Deny);
    let costs: Vec<&CostSource> = late.variants().iter().map(|variant| variant.cost()).collect();
    assert_eq!(costs, [&CostSource::Fixed(2), &CostSource::Fixed(3)]);
    assert_eq!(late.variants()[1].on_store_failure(), OnStoreFailure::Deny);
}

#[test]
fn invalid_policies_are_rejected() {
    let limit = |text: &str| text.parse().expect("a limit");
    let new = |name: &str, limits: &[&str]| {
        Policy::new(
            name,
            "all".parse().expect("a key"),
            limits.iter().map(|text| limit(text)).collect(),
        )
    };
    assert_eq!(new("", &["1 per 1s"]), Err(PolicyError::Name));
    assert_eq!(new("a b", &["1 per 1s"]), Err(PolicyError::Name));
    assert_eq!(new("a", &[]), Err(PolicyError::NoLimits));
    let shared = PolicyError::SharedState { first: 0, second: 1 };
    assert_eq!(new("a", &["1 per 60s", "2 per 1m"]), Err(shared.clone()));
    assert_eq!(
        shared.to_string(),
        "limits 1 and 2 have the same algorithm and window, so they would share one count: \
         keep the stricter one, or give them different windows or algorithms"
    );
    let held = PolicyError::BothConcurrent { first: 0, second: 1 };
    assert_eq!(new("a", &["1 concurrent", "2 concurrent lease 5s"]), Err(held.clone()));
    assert_eq!(
        held.to_string(),
        "limits 1 and 2 are both concurrent, so they would share one count: keep the stricter one"
    );
    let unchanged = Override { when: when("method", &["GET"]), ..Override::default() };
    assert_eq!(policy("a").with_override(unchanged), Err(PolicyError::ReplacesNothing));
    let always = Override { mode: Some(Mode::Off), ..Override::default() };
    assert_eq!(policy("a").with_override(always), Err(PolicyError::NoCondition));
    let same = Policies::new(vec![policy("a"), policy("b"), policy("a")], Identity::default());
    assert_eq!(same.expect_err("two of a name"), PoliciesError::SameName { first: 0, second: 2 });
    assert!(
        Policies::new(Vec::new(), Identity::default())
            .expect("none")
            .select(&Attributes::default())
            .expect("none")
            .is_empty()
    );
}

#[test]
fn enum_names_parse_and_display() {
    for mode in Mode::ALL {
        assert_eq!(mode.to_string().parse(), Ok(mode));
    }
    for behavior in OnStoreFailure::ALL {
        assert_eq!(behavior.to_string().parse(), Ok(behavior));
    }
    assert_eq!(
        "on".parse::<Mode>().expect_err("no mode").to_string(),
        "use enforce, observe or off"
    );
}
