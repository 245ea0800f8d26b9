//! The environment variables of envoyproxy/ratelimit.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::Path;

use serde_json::json;
use tidegate_testkit::Authority;
use tidegate_testkit::redis::{Engine, RedisServer};

use super::{EDGE, as_program_named_ratelimit, ask, mode};
use crate::cli_harness::Files;
use crate::grpc::{GrpcClient, request_for};
use crate::server_harness::Start;

#[test]
fn variables_configure_the_server() {
    let server = mode("envoy-mode-variables", Some(EDGE)).env("REDIS_POOL_SIZE", "20").run();
    assert_eq!(ask(&server, &["plain"]).status, 200);
    assert_eq!(ask(&server, &["plain"]).status, 200);
    assert_eq!(ask(&server, &["plain"]).status, 429);
    let mut client = GrpcClient::new(&server);
    assert_eq!(client.code(&request_for("edge", &[("plain", "v")])), "OVER_LIMIT");
    let health = client.ask("health", json!({ "service": "ratelimit" }));
    assert_eq!(health["reply"]["status"], "SERVING");
    assert_eq!(server.ask("GET", "/healthcheck", &[], "").text(), "OK");
    let config = server.admin_get("/rlconfig").text();
    let expected =
        "edge.plain: unit=DAY requests_per_unit=2, shadow_mode: false, quota_mode: false\n";
    assert!(config.contains(expected), "{config}");
    assert!(config.contains("edge.shadow: unit=DAY requests_per_unit=1, shadow_mode: true"));
    // The path to a limit is shown, also if it has a name.
    assert!(config.contains("edge.named: unit=HOUR requests_per_unit=2"), "{config}");
    let stats = server.admin_get("/stats").text();
    assert!(stats.contains("tidegate_build_info"), "{stats}");
    assert!(stats.lines().all(|line| line.contains(": ")), "{stats}");
    let policies = server.admin_get("/admin/v1/policies").text();
    assert!(policies.contains("fixed-window") && !policies.contains("sliding-window"));
    let log = server.logged("REDIS_POOL_SIZE is ignored: one connection carries all requests");
    assert!(log.contains("REDIS_URL is not set"), "{log}");
    assert!(server.printed.contains("resp   off"), "{}", server.printed);
}

#[test]
fn open_addresses_need_no_secret_and_are_warned_of_once() {
    let start = mode("envoy-mode-open", Some(EDGE));
    let start = start.env("HOST", "0.0.0.0").env("GRPC_HOST", "0.0.0.0").env("LOG_FORMAT", "json");
    let server = start.run();
    let log = server.logged("every host that can reach these fronts may use them");
    assert!(log.contains(r#""fronts":"http, grpc""#), "{log}");
    assert_eq!(log.matches("every host that can reach").count(), 1);
    assert!(!log.contains("--insecure-no-auth"), "{log}");
}

/// As in Go, an unspecified or empty host is every address of both families.
#[test]
fn unspecified_hosts_are_dual_stack() {
    let start = mode("envoy-mode-dual-stack", Some(EDGE)).env("HOST", "").env("DEBUG_HOST", "::");
    let start = start.env("GRPC_HOST", "0.0.0.0").env("USE_PROMETHEUS", "true");
    let server = start.env("PROMETHEUS_ADDR", ":0").run();
    let log = server.logged("serving metrics for Prometheus");
    let page = log.split_once("address=[::]:").expect("an address").1;
    let page: String = page.chars().take_while(char::is_ascii_digit).collect();
    let ports = [server.http(), server.grpc(), server.admin()].map(|address| address.port());
    for port in ports.into_iter().chain([page.parse().expect("a port")]) {
        for host in ["127.0.0.1", "::1"] {
            TcpStream::connect((host, port)).expect(host);
        }
    }
}

#[test]
fn program_named_ratelimit_serves_without_arguments() {
    let start = mode("envoy-mode-name", Some(EDGE));
    let server = as_program_named_ratelimit(start).env("RUST_LOG", "").run();
    assert_eq!(ask(&server, &["plain"]).status, 200);
    assert_eq!(server.admin_get("/rlconfig").status, 200);
    // The default level is that of the reference, WARN.
    let log = server.logged("REDIS_URL is not set");
    assert!(!log.contains(" INFO "), "{log}");
}

#[test]
fn flags_override_variables() {
    let server = mode("envoy-mode-flags", Some(EDGE)).env("PORT", "1").env("DEBUG_PORT", "1");
    let server = server.args(&["--http", "127.0.0.1:0", "--algorithm", "sliding-log"]);
    let server = server.env("TIDEGATE_ADMIN", "127.0.0.1:0").run();
    assert!(server.admin_get("/admin/v1/policies").text().contains("sliding-log"));
}

#[test]
fn counts_are_kept_in_redis() {
    let redis = RedisServer::with_password("s3cret", &[]);
    let nodes = ["envoy-mode-redis-1", "envoy-mode-redis-2"].map(|test| {
        let start = mode(test, Some(EDGE)).env("REDIS_SOCKET_TYPE", "tcp");
        let start = start.env("REDIS_URL", &redis.address()).env("REDIS_AUTH", "s3cret");
        start.env("CACHE_KEY_PREFIX", "rl").env("REDIS_TIMEOUT", "10s").run()
    });
    let statuses = [0, 1, 0].map(|node| ask(&nodes[node], &["plain"]).status);
    assert_eq!(statuses, [200, 200, 429]);
    let keys: Vec<String> = redis.command(&["KEYS", "*"]);
    assert!(keys.iter().all(|key| key.starts_with("rl:")) && !keys.is_empty(), "{keys:?}");
}

#[test]
fn clients_need_a_certificate_with_the_name() {
    let authority = Authority::new();
    let start = mode("envoy-mode-tls", Some(EDGE));
    let signed = |name: &str| {
        let (cert, key) = authority.sign(name);
        let write = |end: &str, content| start.files().write(&format!("{name}.{end}"), content);
        (write("pem", cert), write("key", key))
    };
    let ca = start.files().write("ca.pem", authority.pem());
    let (cert, key) = signed("localhost");
    let clients = [signed("envoy.example"), signed("other.example")];
    let start = start.env("GRPC_SERVER_USE_TLS", "true").env("GRPC_SERVER_TLS_CERT", &cert);
    let start = start.env("GRPC_SERVER_TLS_KEY", &key).env("GRPC_CLIENT_TLS_CACERT", &ca);
    let server = start.env("GRPC_CLIENT_TLS_SAN", "envoy.example").run();
    let target = format!("localhost:{}", server.grpc().port());
    let [known, other] = clients.map(|(cert, key)| {
        let mut client = GrpcClient::start();
        client.connect(json!({ "target": target, "ca": ca, "cert": cert, "key": key }));
        client.limit(&request_for("edge", &[("plain", "v")]))["code"].clone()
    });
    assert_eq!((known, other), (json!("OK"), json!("UNAVAILABLE")));
}

#[test]
fn unusable_variables_stop_the_start() {
    let rows = [
        ("BACKEND_TYPE", "memcache", "error: BACKEND_TYPE=memcache: refused: counts are kept in"),
        ("REDIS_URL", "redis:6379", "error: REDIS_URL: REDIS_SOCKET_TYPE is unix: write the path"),
        ("REDIS_SOCKET_TYPE", "udp", "error: REDIS_SOCKET_TYPE=udp: write tcp or unix"),
        ("GRPC_MAX_CONNECTION_AGE_GRACE", "x", "error: GRPC_MAX_CONNECTION_AGE_GRACE=x: write a"),
        ("GRPC_PORT", "http", "error: GRPC_PORT=http: this is not a whole number"),
        ("GRPC_SERVER_USE_TLS", "true", "error: GRPC_SERVER_TLS_CERT=: GRPC_SERVER_USE_TLS is"),
    ];
    for (name, value, expected) in rows {
        let (code, error) = mode("envoy-mode-unusable", Some(EDGE)).env(name, value).fails();
        assert_eq!(code, 1);
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn addresses_that_cannot_be_bound_are_named_by_variable() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let port = taken.local_addr().expect("an address").port().to_string();
    for (host, name) in [("HOST", "PORT"), ("GRPC_HOST", "GRPC_PORT"), ("DEBUG_HOST", "DEBUG_PORT")]
    {
        let (code, error) = mode("envoy-mode-bind", Some(EDGE)).env(name, &port).fails();
        let expected = format!("error: {host}=127.0.0.1 {name}={port}: the address is in use");
        assert!(code == 1 && error.contains(&expected), "{error}");
    }
    let free = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let port = free.local_addr().expect("an address").port().to_string();
    drop(free);
    let both = mode("envoy-mode-same", Some(EDGE)).env("PORT", &port).env("GRPC_PORT", &port);
    let (code, error) = both.fails();
    let expected = format!("HOST=127.0.0.1 PORT={port} and GRPC_HOST=127.0.0.1 GRPC_PORT={port}: ");
    assert!(code == 1 && error.contains(&expected), "{error}");
    // A flag is named as a flag.
    let flag = format!("127.0.0.1:{}", taken.local_addr().expect("an address").port());
    let (_, error) = mode("envoy-mode-flag", Some(EDGE)).args(&["--http", &flag]).fails();
    assert!(error.contains(&format!("error: --http {flag}: the address is in use")), "{error}");
}

#[test]
fn unusable_files_and_credentials_are_named_by_variable() {
    let redis = RedisServer::with_password("s3cret", &[]);
    let start = || mode("envoy-mode-named", Some(EDGE)).env("REDIS_SOCKET_TYPE", "tcp");
    let (code, error) = start().env("REDIS_URL", &redis.address()).env("REDIS_AUTH", "x").fails();
    assert!(code == 1 && error.contains("error: REDIS_AUTH: the store refused"), "{error}");
    assert!(!error.contains("in the URL"), "{error}");
    let cert = start().env("REDIS_URL", &redis.address()).env("REDIS_TLS", "true");
    let (_, error) = cert.env("REDIS_TLS_CACERT", "/no/ca").fails();
    assert!(error.contains("error: REDIS_TLS_CACERT=/no/ca: "), "{error}");

    let files = Files::new("envoy-mode-named-tls");
    let (cert, key) = Authority::new().sign("localhost");
    let (cert, key) = (files.write("cert.pem", cert), files.write("key.pem", key));
    let rows = [
        ("/no/cert", &*key, "", "GRPC_SERVER_TLS_CERT=/no/cert: the file cannot be read"),
        (&*cert, "/no/key", "", "GRPC_SERVER_TLS_KEY=/no/key: the file cannot be read"),
        (&*cert, &*key, "/no/ca", "GRPC_CLIENT_TLS_CACERT=/no/ca: the file cannot be read"),
    ];
    for (cert, key, ca, expected) in rows {
        let start = mode("envoy-mode-named", Some(EDGE)).env("GRPC_SERVER_USE_TLS", "true");
        let start = start.env("GRPC_SERVER_TLS_CERT", cert).env("GRPC_SERVER_TLS_KEY", key);
        let (code, error) = start.env("GRPC_CLIENT_TLS_CACERT", ca).fails();
        assert!(code == 1 && error.contains(&format!("error: {expected}")), "{error}");
    }

    let start = mode("envoy-mode-named-xds", None).env("CONFIG_TYPE", "GRPC_XDS_SOTW");
    let start = start.env("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true");
    let server = start.env("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/no/ca").run();
    server.logged("CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/no/ca: No such file");
}

/// Flags override variables, these override the config file, and that overrides the defaults of
/// variables that are not set.
#[test]
fn config_file_overrides_variables_that_are_not_set() {
    let start = Start::new("envoy-mode-precedence").without_flags().args(&["--as-envoy-ratelimit"]);
    let root = start.files().path("");
    let config = "http: 127.0.0.1:0\ngrpc: 127.0.0.1:1\nadmin: 127.0.0.1:0\nresp: 127.0.0.1:0\n";
    let start = start.config(config).env("RUNTIME_ROOT", &root).env("LOG_FORMAT", "json");
    let start = start.env("GRPC_HOST", "127.0.0.1").env("GRPC_PORT", "0");
    let server = start.args(&["--log-format", "text"]).run();
    let addresses = [server.http(), server.grpc(), server.admin(), server.resp()];
    assert!(addresses.iter().all(|address| address.ip().is_loopback()), "{}", server.printed);
    assert_ne!(server.grpc().port(), 1);
    let log = server.logged("there are no limits");
    assert!(!log.contains('{'), "{log}");
}

#[test]
fn files_with_other_names_are_warned_of() {
    let start = mode("envoy-mode-names", Some(EDGE));
    start.files().write("ratelimit/config/limits.yaml.bak", EDGE);
    start.files().write("ratelimit/config/README", "text");
    start.files().write("ratelimit/config/.hidden", "text");
    let server = start.run();
    let log = server.logged("skipped, because their names do not end in .yaml or .yml");
    assert!(log.contains("README") && log.contains("limits.yaml.bak"), "{log}");
    assert!(!log.contains(".hidden"), "{log}");
    assert_eq!(log.matches("because their names").count(), 1, "{log}");
}

#[test]
fn grpc_is_served_on_a_unix_socket() {
    let start = mode("envoy-mode-unix", Some(EDGE));
    let path = start.files().path("s");
    // A file that a killed server left behind is replaced.
    drop(UnixListener::bind(&path).expect("a socket"));
    let mut server = start.env("GRPC_UDS", &path).run();
    assert!(server.printed.contains(&format!("grpc   unix:{path}\n")), "{}", server.printed);
    let mut client = GrpcClient::start();
    client.connect(json!({ "target": format!("unix:{path}") }));
    let request = request_for("edge", &[("plain", "v")]);
    let codes = [0; 3].map(|_| client.code(&request));
    assert_eq!(codes, ["OK", "OK", "OVER_LIMIT"]);
    // Another server does not take the socket, and the first keeps it.
    let second = mode("envoy-mode-unix-2", Some(EDGE)).env("GRPC_UDS", &path);
    let (code, error) = second.fails();
    let in_use = "another program listens on this socket: stop it, or use another path\n";
    assert_eq!(code, 1);
    assert!(error.ends_with(&format!("error: GRPC_UDS={path}: {in_use}")), "{error}");
    assert_eq!(client.code(&request), "OVER_LIMIT");
    server.signal("-TERM");
    assert_eq!(server.ended(), 0);
    assert!(!Path::new(&path).exists(), "the file is removed");
}

#[test]
fn unusable_paths_of_sockets_stop_the_start() {
    let files = Files::new("envoy-mode-unix-paths");
    let (file, directory) = (files.write("file", "text"), files.path("directory"));
    fs::create_dir_all(&directory).expect("a directory");
    let not_a_socket = "the path exists and is not a socket: remove it, or use another path";
    let rows = [
        (file.clone(), not_a_socket),
        (directory, not_a_socket),
        (files.path("missing/s"), "the directory does not exist: create it, or use another path"),
        (
            format!("/tmp/{}", "s".repeat(100)),
            "the path has 105 bytes, and that of a unix socket may",
        ),
        // Nobody may create files there.
        ("/proc/s".to_owned(), ""),
    ];
    for (path, expected) in rows {
        let (code, error) = mode("envoy-mode-unix-path", Some(EDGE)).env("GRPC_UDS", &path).fails();
        assert_eq!(code, 1, "{error}");
        assert!(error.contains(&format!("error: GRPC_UDS={path}: {expected}")), "{error}");
    }
    assert_eq!(fs::read_to_string(file).expect("the file stays"), "text");
    let (code, error) = Start::new("unix-http").args(&["--http", "unix:/tmp/s"]).fails();
    assert_eq!(code, 1);
    assert!(error.starts_with("error: --http: only --grpc can listen on a unix socket"), "{error}");
}

#[test]
fn counts_are_kept_in_redis_over_a_unix_socket() {
    let directory = Files::new("envoy-mode-redis-unix");
    let path = directory.path("redis");
    let redis = RedisServer::with(Engine::Redis, &["--unixsocket", &path]);
    let server = mode("envoy-mode-redis-socket", Some(EDGE)).env("REDIS_URL", &path).run();
    assert!(server.printed.contains(&format!("redis+unix://{path} store, ")), "{}", server.printed);
    let statuses = [0; 3].map(|_| ask(&server, &["plain"]).status);
    assert_eq!(statuses, [200, 200, 429]);
    // The names of states have braces.
    let keys: Vec<String> = redis.command(&["KEYS", "*{*"]);
    assert_eq!(keys.len(), 1, "{keys:?}");
}

/// A path that is not the socket of a server is a store that is not reachable yet.
#[test]
fn unusable_sockets_of_redis_are_logged() {
    let files = Files::new("envoy-mode-redis-unix-paths");
    drop(UnixListener::bind(files.path("stale")).expect("a socket"));
    let rows = [
        (files.path("stale"), "Connection refused"),
        (files.path("missing"), "No such file or directory"),
        (files.path(""), "the path is not that of a socket"),
        (files.write("file", ""), "the path is not that of a socket"),
    ];
    for (path, expected) in rows {
        let path = path.trim_end_matches('/');
        let server = mode("envoy-mode-redis-path", Some(EDGE)).env("REDIS_URL", path).run();
        server.logged(expected);
        // The server decides with its own memory.
        assert_eq!(ask(&server, &["plain"]).status, 200, "{path}");
    }
}

#[test]
fn variables_outside_the_mode_are_warned_of() {
    let start = Start::new("envoy-mode-outside").env("REDIS_URL", "redis:6379");
    let server = start.env("SHADOW_MODE", "true").env("PORT", "1").run();
    server.logged("REDIS_URL, SHADOW_MODE: set, but only read with --as-envoy-ratelimit");
}
