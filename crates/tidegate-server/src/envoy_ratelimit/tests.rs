//! Tests of the settings, and of the table in docs/envoy.md.

use super::variables::{Kind, Treatment, VARIABLES};
use super::*;

fn settings(set: &[(&str, &str)]) -> Result<EnvoySettings, VariableError> {
    EnvoySettings::new(set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
}

fn directory(settings: &EnvoySettings) -> String {
    match &settings.configs {
        ConfigType::Files(path) => path.display().to_string(),
        ConfigType::Xds(xds) => panic!("{xds:?}"),
    }
}

#[test]
fn defaults_are_those_of_envoyproxy_ratelimit() {
    let settings = settings(&[("PATH", "/bin"), ("USE_STATSD", "false")]).expect("settings");
    let addresses = [&settings.http, &settings.grpc, &settings.admin];
    assert!(addresses.iter().all(|one| !one.is_set));
    let addresses = addresses.map(|one| one.address.to_string());
    assert_eq!(addresses, ["[::]:8080", "[::]:8081", "[::]:6070"]);
    assert_eq!(settings.grpc_max_connection_age, None);
    assert_eq!(settings.log_filter, "warn");
    assert_eq!(settings.checks, CheckSettings::default());
    assert_eq!(settings.health, HealthSettings::default());
    assert!(settings.store.is_none() && settings.grpc_tls.is_none());
    assert_eq!(directory(&settings), "/srv/runtime_data/current/config");
    assert_eq!(settings.warnings, [""; 0]);
}

#[test]
fn reads_every_used_variable() {
    let set = [
        ("HOST", "::1"),
        ("PORT", "1"),
        ("GRPC_HOST", ""),
        ("GRPC_MAX_CONNECTION_AGE", "0"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", "c"),
        ("GRPC_SERVER_TLS_KEY", "k"),
        ("LOG_LEVEL", "Fatal"),
        ("LOG_FORMAT", "JSON"),
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_APPDIRECTORY", "limits"),
        ("CACHE_KEY_PREFIX", "rl:"),
        ("REDIS_TIMEOUT", "1.5s"),
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "1"),
        ("LIMIT_RESET_HEADER", "X-Reset"),
        ("SHADOW_MODE", "T"),
        ("QUOTA_MODE", "TRUE"),
        ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true"),
        ("REDIS_POOL_SIZE", "20"),
        ("REDIS_PERSECOND", "true"),
    ];
    let settings = settings(&set).expect("settings");
    assert_eq!(settings.http.address.to_string(), "[::1]:1");
    assert_eq!(settings.grpc.address.to_string(), "[::]:8081");
    assert_eq!(settings.grpc_max_connection_age, Some(MAX_AGE));
    assert_eq!(
        settings.grpc_tls.clone().map(|tls| (tls.cert, tls.client_ca)),
        Some(("c".into(), None))
    );
    assert_eq!((settings.log_filter, settings.log_format), ("error", LogFormat::Json));
    assert_eq!(directory(&settings), "/data/ratelimit/limits");
    assert_eq!(settings.key_prefix.as_deref(), Some("rl:"));
    assert_eq!(settings.store_timeout, Some(Duration::from_millis(1500)));
    let names = ["RateLimit-Limit", "RateLimit-Remaining", "X-Reset"].map(str::to_owned);
    assert_eq!(settings.checks.headers, Some(names));
    assert!(settings.checks.shadow_mode && settings.checks.quota_mode);
    assert!(settings.health.needs_domain);
    assert_eq!(
        settings.warnings,
        [
            "REDIS_POOL_SIZE is ignored: one connection carries all requests",
            "REDIS_PERSECOND is ignored: limits per second are kept in the store of `REDIS_URL`",
        ]
    );
}

#[test]
fn metrics_go_to_statsd_by_default() {
    let sinks = |set: &[(&str, &str)]| {
        let metrics = settings(set).expect("settings").metrics;
        metrics.map(|metrics| {
            let page = metrics.prometheus.map(|page| format!("{}{}", page.address, page.path));
            let statsd =
                metrics.statsd.map(|one| format!("{}:{} {:?}", one.host, one.port, one.form));
            [page, statsd].map(Option::unwrap_or_default)
        })
    };
    let found = |page: &str, statsd: &str| Some([page.to_owned(), statsd.to_owned()]);
    let on = |name| (name, "true");
    let (page, tcp) = ("[::]:9090/metrics", "localhost:8125 Tcp");
    assert_eq!(sinks(&[]), found("", tcp));
    assert_eq!(sinks(&[on("USE_PROMETHEUS")]), found(page, ""));
    assert_eq!(sinks(&[on("USE_PROMETHEUS"), on("USE_STATSD")]), found(page, tcp));
    let dog = [on("USE_DOG_STATSD"), ("USE_STATSD", "false")];
    assert_eq!(sinks(&dog), found("", "localhost:8125 DogStatsd"));
    assert_eq!(sinks(&[("USE_STATSD", "false")]), None);
    assert_eq!(sinks(&[on("USE_PROMETHEUS"), on("DISABLE_STATS")]), None);
    let address = [on("USE_PROMETHEUS"), ("PROMETHEUS_ADDR", "[::1]:19001")];
    assert_eq!(sinks(&address), found("[::1]:19001/metrics", ""));
    let address = [on("USE_PROMETHEUS"), ("PROMETHEUS_ADDR", "0.0.0.0:19001")];
    assert_eq!(sinks(&address), found("[::]:19001/metrics", ""));
    let rows = [
        ("PROMETHEUS_ADDR", "9090"),
        ("PROMETHEUS_ADDR", "off"),
        ("PROMETHEUS_ADDR", "[::1]"),
        ("PROMETHEUS_ADDR", "no such host:1"),
        ("PROMETHEUS_PATH", "x"),
    ];
    for (name, value) in rows {
        let error = settings(&[on("USE_PROMETHEUS"), (name, value)]).expect_err(value);
        assert_eq!(error.name, name);
    }
}

#[test]
fn bad_values_are_errors_by_name_and_value() {
    let rows = [
        ("BACKEND_TYPE", "memcache", "BACKEND_TYPE=memcache: refused: "),
        ("GRPC_CLIENT_TLS_SAN", "envoy", "GRPC_CLIENT_TLS_SAN=envoy: set GRPC_CLIENT_TLS_CACERT"),
        ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "t", "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=t: "),
        ("PORT", "99999", "PORT=99999: this is not a whole number in the allowed range"),
        ("DEBUG_PORT", "", "DEBUG_PORT=: this is not a whole number"),
        ("HOST", "no such host", "HOST=no such host: this is neither an address nor a known host"),
        ("SHADOW_MODE", "yes", "SHADOW_MODE=yes: write true or false"),
        ("REDIS_TIMEOUT", "10", "REDIS_TIMEOUT=10: write a duration such as 300ms"),
        ("REDIS_TIMEOUT", "2m", "REDIS_TIMEOUT=2m: write a duration from 1ms to 60s"),
        ("LOG_LEVEL", "loud", "LOG_LEVEL=loud: write error, warn, info, debug or trace"),
        ("CONFIG_TYPE", "file", "CONFIG_TYPE=file: write FILE or GRPC_XDS_SOTW"),
        ("GRPC_SERVER_USE_TLS", "true", "GRPC_SERVER_TLS_CERT=: GRPC_SERVER_USE_TLS is true"),
        ("CACHE_KEY_PREFIX", "a b", "CACHE_KEY_PREFIX=a b: use up to 32 letters"),
        ("NEAR_LIMIT_RATIO", "80", "NEAR_LIMIT_RATIO=80: write a number from 0 to 1"),
        ("STATS_FLUSH_INTERVAL", "0", "STATS_FLUSH_INTERVAL=0: write a duration from 100ms to 1h"),
        ("STATSD_PROTOCOL", "unix", "STATSD_PROTOCOL=unix: write tcp or udp"),
        ("EXTRA_TAGS", "a", "EXTRA_TAGS=a: write name:value,name:value"),
        ("LIMIT_LIMIT_HEADER", "a:b", "LIMIT_LIMIT_HEADER=a:b: this is not the name of a header"),
    ];
    for (name, value, expected) in rows {
        let error = settings(&[(name, value)]).expect_err(expected).to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    // Values are also read if nothing selects or uses them.
    let rows = [
        ("REDIS_TLS", "x", "REDIS_TLS=x: write true or false"),
        ("REDIS_POOL_SIZE", "abc", "REDIS_POOL_SIZE=abc: this is not a whole number"),
        ("REDIS_PIPELINE_WINDOW", "1", "REDIS_PIPELINE_WINDOW=1: write a duration"),
        ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "1", "XDS_CLIENT_BACKOFF_MAX_INTERVAL=1: write a"),
        ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "x", "XDS_CLIENT_BACKOFF_RANDOM_FACTOR=x: this is"),
        ("STATS_FLUSH_INTERVAL", "often", "STATS_FLUSH_INTERVAL=often: write a duration"),
        ("STATSD_PORT", "99999", "STATSD_PORT=99999: this is not a whole number"),
        ("GRPC_PORT", "x", "GRPC_PORT=x: this is not a whole number"),
        ("MEMCACHE_TLS", "on", "MEMCACHE_TLS=on: write true or false"),
        ("CONFIG_GRPC_XDS_NODE_METADATA", "s3cret", "CONFIG_GRPC_XDS_NODE_METADATA: write name="),
    ];
    for (name, value, expected) in rows {
        let set = [("USE_STATSD", "false"), ("GRPC_UDS", "/s"), (name, value)];
        let error = settings(&set).expect_err(expected).to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    // Values that select nothing are accepted.
    let off = [("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "false")];
    assert!(settings(&off).is_ok());
}

#[test]
fn reads_settings_of_the_control_plane() {
    let set = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "dns:///plane.example:18000"),
        ("CONFIG_GRPC_XDS_NODE_ID", "node-1"),
        ("CONFIG_GRPC_XDS_NODE_METADATA", "a=b,c=d=e"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "X-Team:edge"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "name"),
        ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "0"),
        ("XDS_CLIENT_BACKOFF_JITTER", "false"),
        ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "1000"),
    ];
    let settings = settings(&set).expect("settings");
    let ConfigType::Xds(xds) = settings.configs else { panic!("xDS") };
    assert_eq!((&*xds.address, &*xds.node_id), ("plane.example:18000", "node-1"));
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(xds.node_metadata, [pair("a", "b"), pair("c", "d=e")]);
    assert_eq!(xds.headers, [pair("x-team", "edge")]);
    let server_name = xds.tls.and_then(|tls| tls.server_name);
    assert_eq!(server_name, ServerName::try_from("name").ok());
    assert_eq!(xds.backoff.first, Duration::from_millis(100), "never without a pause");
    assert_eq!((xds.backoff.max, xds.backoff.jitter), (Duration::from_secs(60), false));
    assert_eq!(xds.max_message_bytes, 1000);
}

#[test]
fn bad_settings_of_the_control_plane_are_errors() {
    let rows = [
        ("CONFIG_GRPC_XDS_SERVER_URL", "plane", "=plane: write the control plane as host:port"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "a b:1", "=a b:1: write the control plane as host:port"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "u@h:1", "=u@h:1: write the control plane as host:port"),
        ("CONFIG_GRPC_XDS_NODE_METADATA", "s3cret", ": write name=value,name=value"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "a b:c", ": a name or value cannot be sent"),
        ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "4MB", "=4MB: this is not a whole number"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "on", "=on: write true or false"),
        (
            "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
            "a b",
            "=a b: this is neither a host name nor an address",
        ),
    ];
    for (name, value, expected) in rows {
        let on = [("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true")];
        let error = settings(&[&on[..], &[(name, value)]].concat());
        let error = error.expect_err(expected).to_string();
        assert!(error.starts_with(&format!("{name}{expected}")), "{error}");
    }
}

/// Every used variable is read: another valid value changes the settings, or is an error.
#[test]
fn every_used_variable_of_the_table_is_read() {
    let plain = format!("{:?}", settings(&[]).expect("settings"));
    for variable in VARIABLES {
        let is_of_files = variable.name.starts_with("RUNTIME_");
        let on = [
            ("CONFIG_TYPE", if is_of_files { "FILE" } else { "GRPC_XDS_SOTW" }),
            ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "cert"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "key"),
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", "cert"),
            ("GRPC_CLIENT_TLS_CACERT", "ca"),
            ("GRPC_SERVER_TLS_KEY", "key"),
            ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
            ("REDIS_TYPE", "SENTINEL"),
            ("REDIS_URL", "main,a:1"),
            ("REDIS_TLS", "true"),
            ("REDIS_TLS_CLIENT_CERT", "cert"),
            ("REDIS_TLS_CLIENT_KEY", "key"),
            ("USE_PROMETHEUS", "true"),
            ("USE_STATSD", "true"),
        ];
        let base = settings(&on).map(|settings| format!("{settings:?} {:?}", settings.store));
        let base = base.expect("settings");
        let with = on.into_iter().filter(|(name, _)| *name != variable.name);
        let is_on = |(name, value): &(&str, &str)| *name == variable.name && *value == "true";
        let is_on = on.iter().any(is_on) || variable.default == "true";
        let value = match variable.kind {
            Kind::Text if variable.name == "LOG_FORMAT" => "json",
            Kind::Text => "another",
            Kind::Boolean if is_on => "false",
            Kind::Boolean => "true",
            Kind::Whole | Kind::Port => "4321",
            Kind::Decimal => "0.25",
            Kind::Duration => "7s",
            Kind::Pairs(':') => "a:b",
            Kind::Pairs(_) => "a=b",
        };
        let with: Vec<_> = with.chain([(variable.name, value)]).collect();
        let url =
            |store: &Option<StoreUrl>| format!("{:?}", store.as_ref().and_then(StoreUrl::redis));
        let read = match settings(&with) {
            Err(error) => error.name == variable.name || error.name == "REDIS_URL",
            Ok(other) => {
                let plain_url = url(&settings(&on).expect("settings").store);
                format!("{other:?} {:?}", other.store) != base && (other.warnings.is_empty())
                    || url(&other.store) != plain_url
            }
        };
        // Only read for a single server, which excludes the Sentinel above.
        let is_used =
            variable.treatment != Treatment::Ignored && variable.name != "REDIS_SOCKET_TYPE";
        assert_eq!(read, is_used, "{}: {plain}", variable.name);
    }
}

#[test]
fn documentation_lists_the_variables_of_the_table() {
    let page = include_str!("../../../../docs/envoy.md");
    let rows: Vec<&str> =
        page.lines().skip_while(|line| !line.starts_with("| variable |")).collect();
    let rows = rows.iter().skip(2).take_while(|line| line.starts_with('|'));
    let expected = VARIABLES.iter().map(|variable| {
        let word = match variable.treatment {
            Treatment::Used => "used",
            Treatment::Ignored => "ignored",
            Treatment::Refused => "refused",
        };
        let default = match variable.default {
            "" => String::new(),
            text => format!("`{text}`"),
        };
        format!("| `{}` | {default} | {word} | {} |", variable.name, variable.text)
    });
    let expected: Vec<String> = expected.collect();
    let rows: Vec<&str> = rows.copied().collect();
    assert_eq!(rows, expected, "the table should be:\n{}", expected.join("\n"));
}
