//! Counts in a shared store, over gRPC.

use serde_json::{Value, json};

use super::{GrpcClient, descriptor, request_for, serve};
use crate::server_harness::wait_for;
use crate::shared_store::redis_servers::start_redis;

fn config(store: &str) -> String {
    let mut config = format!("store: {store}\nstore_timeout: 5s\nnodes: 3\npolicies:\n");
    for (name, failing) in [("here", "local"), ("open", "allow"), ("closed", "deny")] {
        config += &format!(
            "  - {{ name: {name}, match: {{ domain: edge, descriptors: [{name}] }}, \
             key: \"{{descriptor:{name}}}\", limits: [\"6 per 1h sliding-log\"], \
             on_store_failure: {failing} }}\n"
        );
    }
    config
}

#[test]
fn applies_store_failure_policies() {
    let server = serve("grpc-down", &config("redis://127.0.0.1:1"));
    let mut client = GrpcClient::new(&server);
    // Each of three nodes has a share of two of six.
    let here = request_for("edge", &[("here", "a")]);
    for left in [1.0, 0.0] {
        let reply = client.reply(&here);
        let metadata =
            json!({ "policy": "here", "decided": "local", "limit": 2.0, "remaining": left });
        assert_eq!(reply["dynamic_metadata"], metadata);
    }
    assert_eq!(client.code(&here), "OVER_LIMIT");
    let reply = client.reply(&request_for("edge", &[("open", "a")]));
    // The units left are unknown, so no limit is sent to Envoy.
    assert_eq!(
        (&reply["overall_code"], &reply["statuses"]),
        (&json!("OK"), &json!([{ "code": "OK" }]))
    );
    assert_eq!(reply["dynamic_metadata"]["decided"], "failed-open");
    assert_eq!(reply["dynamic_metadata"]["remaining"], Value::Null);
    let message = "the store failed, and policy `closed` has `on_store_failure: deny`: try again";
    let refused = json!({ "code": "UNAVAILABLE", "message": message });
    assert_eq!(client.limit(&request_for("edge", &[("closed", "a")])), refused);
    // Three of six: more than this node's share of two, but not more than the limit.
    let mut costly = request_for("edge", &[("here", "c")]);
    costly["hits_addend"] = json!(3);
    let message = "the store failed, and the cost exceeds this node's share of policy `here`: \
        try again";
    let beyond = json!({ "code": "UNAVAILABLE", "message": message });
    assert_eq!(client.limit(&costly), beyond);
    costly["hits_addend"] = json!(7);
    assert_eq!(client.code(&costly), "OVER_LIMIT");
    // Any denial wins, and charges nothing.
    let both = json!({ "domain": "edge", "descriptors": [
        descriptor(&[("here", "b")]), descriptor(&[("closed", "b")]) ] });
    assert_eq!(client.limit(&both), refused);
    let reply = client.reply(&request_for("edge", &[("here", "b")]));
    assert_eq!(reply["dynamic_metadata"]["remaining"], 1.0, "{reply}");
}

#[test]
fn nodes_share_a_limit() {
    let redis = start_redis();
    let config = config(&redis.url_with_login());
    let servers = ["grpc-live-a", "grpc-live-b"].map(|test| serve(test, &config));
    let mut askers = servers.each_ref().map(GrpcClient::new);
    let look = json!({ "domain": "edge", "descriptors": [
        { "entries": [{ "key": "here", "value": "x" }], "hits_addend": "0" } ] });
    for client in &mut askers {
        let decided = |reply: Value| reply["dynamic_metadata"]["decided"] == "exact";
        wait_for(|| decided(client.reply(&look)).then_some(()));
    }
    let both = json!({ "domain": "edge", "hits_addend": 2, "descriptors": [
        descriptor(&[("here", "a")]), descriptor(&[("open", "a")]) ] });
    let left: Vec<Value> = (0..4)
        .map(|turn| {
            let reply = askers[turn % 2].reply(&both);
            let status = |index: usize| reply["statuses"][index]["limit_remaining"].clone();
            json!([reply["overall_code"], status(0), status(1)])
        })
        .collect();
    let denied = json!(["OVER_LIMIT", null, null]);
    assert_eq!(left, [json!(["OK", 4, 4]), json!(["OK", 2, 2]), json!(["OK", null, null]), denied]);
    // Descriptors of one count: refunds are subtracted from costs, even if the sum is 0, and the
    // stricter of two limits applies.
    let one = |fields: Value| {
        let mut one = descriptor(&[("here", "a")]);
        for (field, value) in fields.as_object().expect("fields") {
            one[field] = value.clone();
        }
        one
    };
    let (take, give) = (one(json!({})), one(json!({ "is_negative_hits": true })));
    let limit =
        |count: u32| one(json!({ "limit": { "requests_per_unit": count, "unit": "HOUR" } }));
    let rows = [
        (vec![take.clone(), give.clone()], json!(["OK", null])),
        (vec![give.clone(), give.clone(), take.clone()], json!(["OK", 1])),
        (vec![take.clone(), give, take], json!(["OK", null])),
        (vec![limit(3), limit(9)], json!(["OK", 1])),
        // Two hits with one unit left consume it.
        (vec![limit(9), limit(3)], json!(["OVER_LIMIT", null])),
    ];
    for (turn, (descriptors, expected)) in rows.into_iter().enumerate() {
        let reply =
            askers[turn % 2].reply(&json!({ "domain": "edge", "descriptors": descriptors }));
        let outcome = json!([reply["overall_code"], reply["statuses"][0]["limit_remaining"]]);
        assert_eq!(outcome, expected, "{turn}: {reply}");
    }
}
