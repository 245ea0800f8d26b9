//! Connecting to servers, and the errors of it.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use tidegate::redis::{ConnectError, RedisOptions, RedisStore};
use tidegate::unstable::redis::ACL_RULES;
use tidegate::{Check, Failure, Request, Store, StoreError};

use super::limit;
use super::servers::{
    Certificates, Cluster, Engine, Sentinel, Server, add_documented_user, connect, eventually,
    eventually_now, free_port, options, run, run_on_one_thread,
};

/// The error of connecting to `url`.
fn connect_error(url: impl Into<String>) -> ConnectError {
    run(RedisStore::connect(options(url))).expect_err("it is refused")
}

/// Decides under every algorithm, one limit at a time and all together.
async fn check_every_algorithm(store: &RedisStore) {
    let algorithms =
        ["sliding-counter", "sliding-log", "sliding-window", "fixed-window", "token-bucket"];
    let limits = algorithms.map(|algorithm| limit(&format!("2 per 1d {algorithm}")));
    for limit in &limits {
        for expect in [true, true, false] {
            let checks = [Check::new("alice", limit, 1)];
            let verdict = store.decide(&Request::new(&checks)).await.expect("a decision");
            assert_eq!(verdict.allowed, expect, "{limit}");
        }
    }
    let checks: Vec<Check<'_>> = limits.iter().map(|limit| Check::new("bob", limit, 1)).collect();
    for expect in [true, true, false] {
        let verdict = store.decide(&Request::new(&checks)).await.expect("a decision");
        assert_eq!(verdict.allowed, expect);
        assert_eq!(verdict.decisions().len(), limits.len());
    }
    for limit in &limits {
        assert_eq!(store.reset(b"alice", limit).await, Ok(true), "{limit}");
        assert_eq!(store.reset(b"alice", limit).await, Ok(false), "{limit}");
    }
    assert_eq!(store.stats().failures().map(|(_, count)| count), [0; 5]);
}

#[test]
fn every_kind_of_url_decides() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        run(async { check_every_algorithm(&connect(server.url()).await).await });
        // Another database has separate states.
        run(async { check_every_algorithm(&connect(format!("{}/3", server.url())).await).await });
        run_on_one_thread(async {
            let other = RedisOptions { key_prefix: "other".into(), ..options(server.url()) };
            check_every_algorithm(&RedisStore::connect(other).await.expect("a store")).await;
        });
    }
    let sentinel = Sentinel::start();
    run(async { check_every_algorithm(&connect(sentinel.url()).await).await });
    for engine in Engine::ALL {
        let cluster = Cluster::start(engine);
        run(async { check_every_algorithm(&connect(cluster.url()).await).await });
    }
}

#[test]
fn tls_is_verified() {
    let (certificates, strangers) = (Certificates::new(), Certificates::new());
    let (_server, port) = certificates.serve("no");
    let url =
        |of: &Certificates| format!("rediss://127.0.0.1:{port}?ca={}", of.file("ca.pem").display());
    run(async { check_every_algorithm(&connect(url(&certificates)).await).await });
    // Another authority, the authorities of the system, and another host name.
    let named = url(&certificates).replace("127.0.0.1", "localhost");
    for url in [url(&strangers), format!("rediss://127.0.0.1:{port}"), named] {
        let refused = connect_error(&url);
        assert!(matches!(refused, ConnectError::Tls(_)), "{url}: {refused}");
    }
    let missing = connect_error(format!("rediss://127.0.0.1:{port}?ca=/nowhere/ca.pem"));
    assert!(missing.to_string().contains("/nowhere/ca.pem"), "{missing}");
}

#[test]
fn tls_mismatch_is_reported() {
    let certificates = Certificates::new();
    let (server, secured) = certificates.serve("no");
    let ca = certificates.file("ca.pem").display().to_string();
    // A server without TLS does not answer, because it waits for more bytes.
    for url in [
        format!("rediss://{}?ca={ca}", server.address()),
        format!("redis-cluster://{}?tls=true", server.address()),
        format!("redis-sentinel://{}/name?tls=true", server.address()),
    ] {
        let hasty = RedisOptions { timeout: Duration::from_millis(100), ..options(&url) };
        let refused = run(RedisStore::connect(hasty)).expect_err("it is refused");
        assert_eq!(refused, ConnectError::NoTls, "{url}");
    }
    // A server with TLS closes the connection, as one that crashes does.
    let store = run(RedisStore::connect(options(format!("redis://127.0.0.1:{secured}"))));
    let reason = store.expect("that is no error").last_error().expect("a reason");
    assert!(
        reason.ends_with(
            "; if it uses TLS, write rediss:// or tls=true; or it is not a Redis server"
        ),
        "{reason}"
    );
}

#[test]
fn client_certificate_is_sent() {
    let certificates = Certificates::new();
    let (_server, port) = certificates.serve("yes");
    let file = |name: &str| certificates.file(name).display().to_string();
    let bare = format!("rediss://127.0.0.1:{port}?ca={}", file("ca.pem"));
    let own = format!("{bare}&cert={}&key={}", file("server.pem"), file("server.key"));
    run(async { check_every_algorithm(&connect(own).await).await });
    run(async {
        // The server closes the connection after the handshake, which looks like a crash.
        let store = RedisStore::connect(options(bare)).await;
        let reason = store.map(|store| store.last_error().expect("a reason"));
        let reason = reason.unwrap_or_else(|error| error.to_string());
        assert!(reason.contains("certificate"), "{reason}");
    });
}

#[test]
fn credentials_are_needed_and_never_shown() {
    let mut server = Server::with(Engine::Redis, &["--requirepass", "s3cret"]);
    server.log_in_as(":s3cret@");
    let at = server.address();
    for login in ["", ":wr0ng@", "nobody:s3cret@"] {
        let refused = connect_error(format!("redis://{login}{at}"));
        assert!(matches!(refused, ConnectError::Credentials(_)), "{login}: {refused}");
        let displayed = format!("{refused} {refused:?}");
        assert!(!displayed.contains("s3cret") && !displayed.contains("wr0ng"), "{displayed}");
    }
    // The error is the server's own text, unless that repeats the password.
    let open = Server::start(Engine::Redis);
    let renamed = Server::with(Engine::Redis, &["--rename-command", "AUTH", ""]);
    for (server, excerpt) in [(open, "without any password configured"), (renamed, "AUTH failed")] {
        let refused = connect_error(format!("redis://:wr0ng@{}", server.address()));
        assert!(matches!(&refused, ConnectError::Credentials(text) if text.contains(excerpt)));
        assert!(!format!("{refused} {refused:?}").contains("wr0ng"), "{refused}");
    }
    for login in [":s3cret@", "default:s3cret@"] {
        run(async {
            let options = options(format!("redis://{login}{at}"));
            assert!(!format!("{options:?}").contains("s3cret"));
            let store = RedisStore::connect(options).await.expect("a store");
            assert!(!format!("{store:?}").contains("s3cret"));
            check_every_algorithm(&store).await;
        });
        let _: () = server.command(&["FLUSHALL"]);
    }
}

#[test]
fn documented_acl_rules_suffice() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        add_documented_user(&server);
        run(async {
            let url = format!("redis://tidegate:pass@{}", server.address());
            let store = connect(url).await;
            check_every_algorithm(&store).await;
            let _: () = server.command(&["SCRIPT", "FLUSH"]);
            let held = limit("1 concurrent");
            let checks = [Check::new("carol", &held, 1)];
            let permit = store.new_permit();
            let request = Request::new(&checks).with_permit(permit);
            assert!(store.decide(&request).await.expect("a decision").allowed);
            let release = tidegate::PermitOperation::Release(permit);
            assert_eq!(store.update_permit(b"carol", &held, release).await, Ok(true));
        });
    }
}

#[test]
fn missing_rights_are_found_when_connecting() {
    for engine in Engine::ALL {
        // A cluster of one node requires every command of `ACL_RULES`.
        let server = Server::with(engine, &["--cluster-enabled", "yes"]);
        let _: () = server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        eventually_now("it serves", || {
            server.command::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
        });
        add_documented_user(&server);
        let url = format!("redis-cluster://tidegate:pass@{}", server.address());
        run(connect(&url));
        let commands: Vec<&str> =
            ACL_RULES.split_whitespace().filter_map(|rule| rule.strip_prefix('+')).collect();
        assert_eq!(commands.len(), 12);
        for command in commands {
            let _: () = server.command(&["ACL", "SETUSER", "tidegate", &format!("-{command}")]);
            match connect_error(&url) {
                ConnectError::NotPermitted(text) => {
                    assert!(text.to_lowercase().contains(command), "{command}: {text}");
                }
                other => panic!("{command}: {other:?}"),
            }
            let _: () = server.command(&["ACL", "SETUSER", "tidegate", &format!("+{command}")]);
        }
        let other = RedisOptions { key_prefix: "other".into(), ..options(&url) };
        let refused = run(RedisStore::connect(other)).expect_err("keys it may not touch");
        let expect = "the store's user may not do what is needed: GET is not permitted for keys like `other:2:{%}`; \
                      as an administrator run ACL SETUSER <name> on ><password> ";
        assert!(refused.to_string().starts_with(expect), "{refused}");
    }
}

#[test]
fn full_server_is_connected_to_later() {
    let server = Server::with(Engine::Redis, &["--maxclients", "4"]);
    let crowd: Vec<TcpStream> =
        (0..4).map(|_| TcpStream::connect(server.address()).expect("a socket")).collect();
    run(async {
        // Regression: with a password, every error was reported as a wrong password.
        for login in ["", ":any@"] {
            let store =
                connect_to_missing_server(format!("redis://{login}{}", server.address())).await;
            // The text of the server is lost if it closes the connection before the first command.
            let reason = store.last_error().expect("a reason");
            let known = ["max number of clients reached", "it closed the connection"];
            assert!(known.iter().any(|excerpt| reason.contains(excerpt)), "{reason}");
        }
        let store = connect_to_missing_server(server.url()).await;
        drop(crowd);
        eventually("it is found", async || store.stats().up).await;
    });
}

#[test]
fn wrong_kind_of_server_is_rejected() {
    for engine in Engine::ALL {
        let single = Server::start(engine);
        let port = single.port.to_string();
        let replica = Server::with(engine, &["--replicaof", "127.0.0.1", &port]);
        let node = Server::with(engine, &["--cluster-enabled", "yes"]);
        let rows = [
            (format!("redis-cluster://{}", single.address()), ConnectError::NotCluster),
            (node.url(), ConnectError::IsCluster),
            (replica.url(), ConnectError::IsReplica),
        ];
        for (url, expect) in rows {
            assert_eq!(connect_error(&url), expect, "{engine:?} {url}");
        }
    }
    let (single, sentinel) = (Server::start(Engine::Redis), Sentinel::start());
    let watcher = sentinel.sentinel.address();
    assert_eq!(connect_error(format!("redis://{watcher}")), ConnectError::IsSentinel);
    let unknown = ConnectError::UnknownMaster("nobody".into());
    assert_eq!(connect_error(format!("redis-sentinel://{watcher}/nobody")), unknown);
    let refused =
        connect_error(format!("redis-sentinel://{watcher}/the%20primary?sentinel_password=wr0ng"));
    assert!(matches!(refused, ConnectError::SentinelRefuses(_)), "{refused}");
    assert!(!refused.to_string().contains("wr0ng"), "{refused}");
    let refused = connect_error(format!("redis-sentinel://{}/name", single.address()));
    assert!(matches!(refused, ConnectError::NotSentinel(_)), "{refused}");
}

/// Starts a server that reports a version to `INFO`, and does not answer other commands.
fn server_of_version(version: &str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let info = format!("redis_version:{version}\r\nredis_mode:standalone\r\nrole:master\r\n");
    std::thread::spawn(move || {
        // The thread runs until the process ends, and serves one connection at a time.
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut lines = BufReader::new(stream.try_clone().expect("a socket")).lines();
            while let Some(Ok(line)) = lines.next() {
                let reply = match line.as_str() {
                    "INFO" => format!("${}\r\n{info}\r\n", info.len()),
                    _ => continue,
                };
                if stream.write_all(reply.as_bytes()).is_err() {
                    break;
                }
            }
        }
    });
    port
}

#[test]
fn a_server_that_is_too_old_is_refused() {
    for version in ["5.0.14", "3.2.1", "2.8"] {
        let refused = connect_error(format!("redis://127.0.0.1:{}", server_of_version(version)));
        assert_eq!(refused, ConnectError::TooOld(version.into()));
        let fix = format!("the store is version {version}: use Redis 6.0 or later, or Valkey");
        assert_eq!(refused.to_string(), fix);
    }
    let refused = connect_error(format!("redis://127.0.0.1:{}", server_of_version("x")));
    assert!(matches!(refused, ConnectError::Unusable(_)), "{refused}");
}

#[test]
fn invalid_options_are_rejected() {
    let base = RedisOptions::new("redis://127.0.0.1:1");
    let rows = [
        (RedisOptions { url: "redis://".into(), ..base.clone() }, "the store's host is missing"),
        (RedisOptions { key_prefix: String::new(), ..base.clone() }, "key_prefix must be"),
        (RedisOptions { key_prefix: "a{b}".into(), ..base.clone() }, "key_prefix must be"),
        (RedisOptions { key_prefix: "a".repeat(65), ..base.clone() }, "key_prefix must be"),
        (RedisOptions { timeout: Duration::ZERO, ..base }, "store_timeout is 0"),
    ];
    for (options, expect) in rows {
        let error = run(RedisStore::connect(options)).expect_err(expect).to_string();
        assert!(error.starts_with(expect), "{error}");
    }
}

/// A store whose server cannot be reached.
async fn connect_to_missing_server(url: String) -> RedisStore {
    let store = RedisStore::connect(options(url)).await.expect("that is no error");
    assert!(!store.stats().up);
    store
}

#[test]
fn missing_server_is_connected_to_later() {
    let port = free_port();
    run(async {
        let at = format!("127.0.0.1:{port}");
        let urls = [
            format!("redis://{at}"),
            format!("redis-sentinel://{at}/name"),
            format!("redis-cluster://{at}"),
        ];
        for url in urls {
            let store = connect_to_missing_server(url).await;
            assert!(store.last_error().is_some());
            let limit = limit("1 per 1d");
            let checks = [Check::new("alice", &limit, 1)];
            let result = store.decide(&Request::new(&checks)).await;
            assert_eq!(result, Err(StoreError::Failed(Failure::Down)));
            assert_eq!(store.stats().failed_down, 1);
        }
        let store = connect_to_missing_server(format!("redis://{at}")).await;
        let _server = Server::at(port);
        eventually("it is found", async || store.stats().up).await;
        assert_eq!(store.last_error(), None);
        check_every_algorithm(&store).await;
    });
}

#[test]
fn evicting_maxmemory_policy_is_warned_about() {
    let server = Server::with(Engine::Redis, &["--maxmemory-policy", "allkeys-lru"]);
    run(async {
        let store = connect(server.url()).await;
        let warning = "the store's maxmemory-policy is allkeys-lru: when its memory is full, it evicts keys, \
                       and their limits start from zero; set it to noeviction";
        assert_eq!(store.warnings(), [warning]);
    });
}
