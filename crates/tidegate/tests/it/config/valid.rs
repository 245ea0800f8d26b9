//! The settings read from valid configs.

use std::time::Duration;

use tidegate::unstable::attributes::{Attributes, Headers};
use tidegate::unstable::config::{Config, StoreUrl, Tls};
use tidegate::unstable::headers::{Form, Forms};
use tidegate::unstable::identity::{Identity, Source};
use tidegate::unstable::policy::{CostSource, Mode, OnStoreFailure, PathVariants};
use tidegate::{Overflow, WhenFull};

fn load(name: &str) -> Config {
    let path = format!("tests/it/config/valid/{name}.yaml");
    Config::load(path.as_ref()).unwrap_or_else(|errors| panic!("{errors}"))
}

fn limits(config: &Config, policy: &str, variant: usize) -> Vec<String> {
    let policy = config.policies.get(policy).expect("the policy");
    policy.variants()[variant].limits().iter().map(ToString::to_string).collect()
}

#[test]
fn documented_example_parses() {
    let config = load("surface");
    assert_eq!(config.store, StoreUrl::Memory);
    assert_eq!(config.store_timeout, Duration::from_millis(25));
    assert_eq!((config.key_prefix.as_str(), config.nodes, config.max_keys), ("tg", 1, 1_000_000));
    assert_eq!(config.headers, Forms::NONE.with(Form::Draft10));
    assert!(config.identity.trusts("10.1.2.3".parse().expect("an address")));
    assert!(!config.identity.trusts("11.1.2.3".parse().expect("an address")));
    let names: Vec<&str> = config.policies.iter().map(|policy| policy.name()).collect();
    assert_eq!(names, ["login", "api"]);
    assert_eq!(limits(&config, "login", 0), ["5 per 1m sliding-log"]);
    let all =
        ["10 per 1s sliding-window", "600 per 1m sliding-window", "100000 per 1d sliding-window"];
    assert_eq!(limits(&config, "api", 0), all);
    assert_eq!(limits(&config, "api", 1), ["6000 per 1m sliding-window"]);
    assert_eq!(limits(&config, "api", 2), all);
    let api = config.policies.get("api").expect("the policy");
    let modes: Vec<Mode> = api.variants().iter().map(|variant| variant.mode()).collect();
    assert_eq!(modes, [Mode::Enforce, Mode::Enforce, Mode::Observe]);
    assert_eq!(
        config.policies.get("login").expect("a policy").on_store_failure(),
        OnStoreFailure::Deny
    );
}

#[test]
fn nodes_can_be_counted() {
    let config = "nodes: auto\npolicies: [{ name: a, key: all, limits: 1 per 1s }]";
    assert_eq!(Config::parse(config, "tidegate.yaml").expect("a config").nodes, 0);
}

#[test]
fn every_field_is_read() {
    let config = load("everything");
    assert_eq!(config.store, StoreUrl::Redis("rediss://:secret@cache.internal:6379/0".into()));
    assert_eq!(format!("{:?}", config.store), "rediss://cache.internal:6379/0");
    assert_eq!(config.store_timeout, Duration::from_secs(1));
    assert_eq!((config.key_prefix.as_str(), config.nodes), ("acme:tg", 3));
    assert_eq!(config.headers, Forms::NONE.with(Form::Draft7).with(Form::XRateLimit));
    assert_eq!((config.max_keys, config.max_log_entries, config.max_ids), (2_000_000, 1000, 0));
    assert_eq!(config.when_full, WhenFull::Deny);
    assert_eq!(
        config.identity.group("2001:db8:1:2ff::1".parse().expect("an address")).to_string(),
        "2001:db8:1:200::/56"
    );
    let trusted = ["10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32"];
    let identity = Identity::trusting(trusted).expect("networks").ipv6_prefix(56);
    assert_eq!(config.identity, identity.reading(Source::Forwarded));
    assert_eq!(config.path_variants, PathVariants::Keep);
    assert_eq!(config.policies.path_variants(), PathVariants::Keep);
    let fronts =
        [&config.fronts.http, &config.fronts.grpc, &config.fronts.resp, &config.fronts.admin];
    let fronts: Vec<&str> = fronts.iter().map(|front| front.as_deref().unwrap_or("-")).collect();
    assert_eq!(fronts, ["0.0.0.0:8080", "off", "[::1]:6380", "localhost:9090"]);
    let tls = |cert: &str, key: &str, client_ca: Option<&str>| {
        Some(Tls { cert: cert.into(), key: key.into(), client_ca: client_ca.map(Into::into) })
    };
    assert_eq!(config.tls.http, tls("/etc/tidegate/cert.pem", "/etc/tidegate/key.pem", None));
    assert_eq!(config.tls.admin, tls("cert.pem", "key.pem", Some("ca.pem")));
    assert_eq!((config.tls.grpc, config.tls.resp), (None, None));
}

#[test]
fn every_form_of_limit_and_override_is_read() {
    let config = load("everything");
    assert_eq!(limits(&config, "everything", 0), ["1000 per 1s sliding-window"]);
    let expected = [
        "10 concurrent lease 5m",
        "600 per 1m token-bucket burst 50",
        "100 per 1h sliding-window",
        "5000 per 1d fixed-window",
        "9 per 2h sliding-window",
    ];
    assert_eq!(limits(&config, "uploads", 0), expected);
    assert_eq!(limits(&config, "uploads", 1), expected);
    assert_eq!(limits(&config, "downloads", 0), ["4 concurrent lease 1m"]);
    let uploads = config.policies.get("uploads").expect("the policy");
    assert!(uploads.has_concurrency());
    assert_eq!(uploads.cost(), &CostSource::From("header:x-cost".parse().expect("a part")));
    let over = &uploads.variants()[1];
    assert_eq!(
        (over.mode(), over.on_store_failure(), over.cost()),
        (Mode::Off, OnStoreFailure::Deny, &CostSource::Fixed(0))
    );
    let overflows: Vec<_> = uploads.variants().iter().map(|variant| variant.overflow()).collect();
    assert_eq!(overflows, [Some(Overflow::Consume), Some(Overflow::Refuse)]);
    let displayed = "method: PUT, host: [*.example.com, [::1]], path: [/files/**, /{a,b}/[0-9]/café], \
                 header:x-plan: [free, trial], header:x-beta: \"*\", query:v: 2, cookie:session: \"*\", \
                 descriptor:tenant: acme, client_ip: [0.0.0.0/0, ::/0]";
    assert_eq!(uploads.matching().to_string(), displayed);
    // An alias has the same conditions.
    let matching = |name: &str| config.policies.get(name).expect("a policy").matching().to_string();
    assert_eq!(matching("downloads-per-day"), matching("downloads"));
}

#[test]
fn a_config_without_settings_has_the_defaults() {
    let text = "policies: [{ name: a, key: all, limits: 1 per 1s }]";
    let config = Config::parse(text, "config.yaml").expect("a valid config");
    let default = Config::default();
    assert_eq!(config.store, default.store);
    assert_eq!(config.store_timeout, Duration::from_millis(25));
    assert_eq!(
        (config.max_keys, config.max_log_entries, config.max_ids),
        (1_000_000, 16_000_000, 100_000)
    );
    assert_eq!(config.headers, default.headers);
    assert_eq!((config.fronts, config.tls), (default.fronts, default.tls));
    let policy = config.policies.get("a").expect("a policy");
    assert_eq!((policy.mode(), policy.on_store_failure()), (Mode::Enforce, OnStoreFailure::Local));
    assert_eq!(policy.cost(), &CostSource::Fixed(1));
    assert_eq!(policy.overflow(), None, "the front decides");
}

/// The config of a server that is started without one.
#[test]
fn default_policy_limits_each_address() {
    let config = Config::default();
    let attributes = Attributes {
        client_ip: Some("192.0.2.1".parse().expect("an address")),
        headers: Headers::None,
        ..Attributes::default()
    };
    let selected = config.policies.select(&attributes).expect("no cost");
    assert_eq!(selected.len(), 1);
    assert_eq!(selected[0].policy.name(), "default");
    assert_eq!(selected[0].key.to_string(), "192.0.2.1");
    assert_eq!(selected[0].limits[0].to_string(), "100 per 1m sliding-window");
}

/// Some editors begin a file with a byte order mark.
#[test]
fn a_byte_order_mark_is_skipped() {
    let text = "\u{feff}policies: [{ name: a, key: all, limits: 1 per 1s }]";
    assert!(Config::parse(text, "config.yaml").is_ok());
}
