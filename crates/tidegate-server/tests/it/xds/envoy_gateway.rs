//! The deployment that Envoy Gateway 1.9 creates: the command `/bin/ratelimit` without arguments,
//! its environment, its probes and its traffic.

use serde_json::{Value, json};
use tidegate_testkit::Authority;
use tidegate_testkit::redis::{Engine, RedisServer};

use super::ControlPlane;
use crate::envoy_mode::as_program_named_ratelimit;
use crate::envoy_mode::metrics::scrape;
use crate::grpc::{GrpcClient, descriptor};
use crate::server_harness::{Server, Start, wait_for};

const DOMAIN: &str = "gateway-system/eg/http";
/// The name of a route without a host.
const ROUTE: &str = "httproute/gateway-system/web/rule/0/match/0/*";
const RULE: &str = "rule-0-match-0";

/// A control plane, a Redis server, and a server with the environment of the deployment.
struct Deployment {
    plane: ControlPlane,
    redis: RedisServer,
    server: Server,
    ca: String,
}

impl Deployment {
    /// Starts everything with mutual TLS between the control plane and the server.
    fn new(test: &str) -> Self {
        let authority = Authority::new();
        let redis = RedisServer::start(Engine::Redis);
        let start = Start::new(test);
        let write = |name: &str, text: &str| start.files().write(name, text);
        let ca = write("ca.crt", &authority.pem());
        let (cert, key) = authority.sign("localhost");
        let plane = json!({
            "ca": ca, "cert": write("plane.crt", &cert), "key": write("plane.key", &key),
        });
        let plane = ControlPlane::new(plane);
        let (cert, key) = authority.sign("localhost");
        let (cert, key) = (write("tls.crt", &cert), write("tls.key", &key));
        // The variables of the deployment, in its order. Addresses and the paths of files differ.
        let variables = [
            ("RUNTIME_ROOT", "/data"),
            ("RUNTIME_SUBDIRECTORY", "ratelimit"),
            ("RUNTIME_IGNOREDOTFILES", "true"),
            ("RUNTIME_WATCH_ROOT", "false"),
            ("LOG_LEVEL", "info"),
            ("USE_STATSD", "false"),
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_URL", &format!("localhost:{}", plane.port)),
            ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", &cert),
            ("GRPC_SERVER_TLS_KEY", &key),
            ("GRPC_SERVER_TLS_CA_CERT", &ca),
            ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &cert),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &key),
            ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &ca),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
            ("REDIS_SOCKET_TYPE", "tcp"),
            ("REDIS_URL", &redis.address()),
            ("USE_PROMETHEUS", "true"),
            ("PROMETHEUS_ADDR", "127.0.0.1:0"),
            ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
            // Not in the deployment: free ports.
            ("PORT", "0"),
            ("GRPC_PORT", "0"),
            ("DEBUG_PORT", "0"),
        ];
        let start =
            variables.into_iter().fold(start, |start, (name, value)| start.env(name, value));
        let server = as_program_named_ratelimit(start).run();
        Deployment { plane, redis, server, ca }
    }

    /// Returns the status of the startup, readiness and liveness probes.
    fn probe(&self) -> u16 {
        self.server.ask("GET", "/healthcheck", &[], "").status
    }

    /// Connects to the gRPC front as Envoy does, with TLS.
    fn envoy(&self) -> GrpcClient {
        let mut client = GrpcClient::start();
        let target = format!("localhost:{}", self.server.grpc().port());
        client.ask("connect", json!({ "target": target, "ca": self.ca }));
        client
    }
}

/// A config as Envoy Gateway makes it for a route with one rule: 21 requests per hour.
fn config() -> Value {
    let limit = json!({ "unit": "HOUR", "requests_per_unit": 21 });
    let rule = json!({ "key": RULE, "value": RULE, "rate_limit": limit });
    let route = json!({ "key": ROUTE, "value": ROUTE, "descriptors": [rule] });
    json!({ "name": DOMAIN, "domain": DOMAIN, "descriptors": [route] })
}

/// A request of Envoy with this number of hits.
fn request(hits: u32) -> Value {
    let mut descriptor = descriptor(&[(ROUTE, ROUTE), (RULE, RULE)]);
    descriptor["hits_addend"] = json!(hits);
    json!({ "domain": DOMAIN, "descriptors": [descriptor] })
}

#[test]
fn environment_of_the_deployment_is_enough() {
    let mut deployment = Deployment::new("envoy-gateway");
    // The probes succeed before the first config.
    wait_for(|| (deployment.probe() == 200).then_some(()));
    let first = deployment.plane.subscribed();
    assert_eq!(first["node"]["id"], "envoy-ratelimit", "{first}");
    deployment.plane.accepted("1", &[config()]);
    assert_eq!(deployment.probe(), 200);
    let mut envoy = deployment.envoy();
    let health = envoy.ask("health", json!({ "service": "ratelimit" }));
    assert_eq!(health["reply"]["status"], "SERVING", "{health}");

    let reply = envoy.reply(&request(1));
    let status = &reply["statuses"][0];
    assert_eq!(status["current_limit"], json!({ "requests_per_unit": 21, "unit": "HOUR" }));
    assert_eq!(status["limit_remaining"], 20, "{reply}");
    let unlimited = json!({ "domain": DOMAIN, "descriptors": [descriptor(&[("other", "x")])] });
    assert_eq!(envoy.code(&unlimited), "OK");
    // The names of states have braces.
    let keys: Vec<String> = deployment.redis.command(&["KEYS", "*{*"]);
    assert_eq!(keys.len(), 1, "{keys:?}");
    let page = deployment.server.admin_get("/rlconfig").text();
    assert!(page.contains("unit=HOUR requests_per_unit=21"), "{page}");
    let samples = scrape(&deployment.server, "/metrics");
    let key = |name: &str| format!("{name}_{name}");
    let labels = format!(r#"{{domain="{DOMAIN}",key1="{}",key2="{}"}}"#, key(ROUTE), key(RULE));
    let count = |name: &str| samples.get(&format!("ratelimit_service_rate_limit_{name}{labels}"));
    assert_eq!(count("total_hits"), Some(&1.0), "{samples:#?}");
    assert_eq!(count("within_limit"), Some(&1.0), "{samples:#?}");
    assert_eq!(samples.get("ratelimit_service_config_load_success"), Some(&1.0));
    let calls = r#"ratelimit_service_total_requests{grpc_method="ShouldRateLimit"}"#;
    assert_eq!(samples.get(calls), Some(&2.0), "{samples:#?}");
}

/// A rule with `cost.request: 0` and a response cost: Envoy sends 0 hits when a request arrives,
/// and the usage of the response when it ends. With 21 per hour and a usage of 10, the third
/// response uses up the limit, and the fourth request is denied.
#[test]
fn fourth_request_of_a_usage_limit_is_denied() {
    let mut deployment = Deployment::new("envoy-gateway-usage");
    deployment.plane.subscribed();
    deployment.plane.accepted("1", &[config()]);
    let mut envoy = deployment.envoy();
    for number in 1..=3 {
        assert_eq!(envoy.code(&request(0)), "OK", "request {number}");
        envoy.reply(&request(10));
    }
    let denied = envoy.reply(&request(0));
    assert_eq!(denied["overall_code"], "OVER_LIMIT", "{denied}");
}
