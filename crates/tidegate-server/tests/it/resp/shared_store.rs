//! Decisions of a shared store over RESP.

use tidegate_testkit::redis::RedisServer;

use super::{RespClient, start};
use crate::server_harness::{Server, wait_for};
use crate::shared_store::redis_servers::start_redis;

const POLICIES: &str = "
policies:
  - name: login
    key: \"{client_ip}\"
    limits: [\"2 per 1h sliding-log\"]
  - name: closed
    key: \"{client_ip}\"
    limits: [\"2 per 1h sliding-log\"]
    on_store_failure: deny
    deny_cache: false
  - name: open
    key: \"{client_ip}\"
    limits: [\"2 per 1h sliding-log\"]
    on_store_failure: allow
  - name: lone
    key: \"{client_ip}\"
    limits: [\"1 per 1h sliding-counter\"]
";

fn node(test: &str, redis: &RedisServer) -> Server {
    let settings = format!("store: {}\nstore_timeout: 5s\nnodes: 2\n", redis.url_with_login());
    start(test).config(&format!("{settings}{POLICIES}")).run()
}

#[test]
fn pipeline_is_sent_at_once_and_answered_in_order() {
    let redis = start_redis();
    let nodes = ["shared-a", "shared-b"].map(|name| node(name, &redis));
    let mut callers = nodes.each_ref().map(|node| RespClient::connect(node.resp()));
    let login = |allowed: u8, remaining: u8| format!("*7\r\n:{allowed}\r\n:2\r\n:{remaining}\r\n");
    // Replies are in the order of the commands, of any kind, and each command sees the effect of
    // those before it.
    let pipeline = "TG.CHECK login a\r\nPING\r\nTG.CHECK login b\r\nTG.RESET login a\r\nECHO hi\r\n\
        TG.PEEK login a\r\nTG.CHECK login a COST 2\r\nTG.CHECK nobody a\r\nCL.THROTTLE a 15 30 60\r\n\
        HELLO 3\r\nTG.CHECK login c COST 3\r\nQUIT\r\n";
    callers[0].send(pipeline);
    let replies = callers[0].rest();
    let hello = replies.find("%7\r\n").expect("RESP3");
    let mut at = 0;
    for expected in [
        &login(1, 1),
        "+PONG\r\n",
        &login(1, 1),
        ":1\r\n$2\r\nhi\r\n",
        &login(1, 2),
        &login(1, 0),
        "-ERR policy: there is no policy `nobody`\r\n*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n%7\r\n",
        "*7\r\n:0\r\n:2\r\n:2\r\n_\r\n",
        "+OK\r\n",
    ] {
        let found = replies[at..].find(expected);
        at += found.unwrap_or_else(|| panic!("{expected:?} is not next in {:?}", &replies[at..]))
            + expected.len();
    }
    assert!(hello < at && at == replies.len());
    // Between MULTI and EXEC as well: more than one batch, and the commands after it.
    callers[0] = RespClient::connect(nodes[0].resp());
    callers[0].send(format!(
        "MULTI\r\n{}TG.RESET login m\r\nTG.PEEK login m\r\nECHO hi\r\nEXEC\r\nTG.CHECK login m\r\nQUIT\r\n",
        "TG.CHECK login m\r\n".repeat(600)
    ));
    let replies = callers[0].rest();
    let (queued, replies) = replies.split_once("*603\r\n").expect("an array");
    assert_eq!(queued, format!("+OK\r\n{}", "+QUEUED\r\n".repeat(603)));
    assert!(replies.starts_with(&login(1, 1)), "{replies}");
    let (checks, rest) = replies.split_once("exact\r\n:1\r\n").expect("the reset");
    let counted = |allowed: &str| checks.matches(&format!("*7\r\n:{allowed}\r\n")).count();
    assert_eq!((counted("1"), counted("0")), (2, 598));
    assert!(rest.starts_with(&login(1, 2)) && rest.contains("$2\r\nhi\r\n"), "{rest}");
    assert!(rest.ends_with("exact\r\n+OK\r\n") && rest.contains(&login(1, 1)), "{rest}");
    // The other node sees the same counts.
    callers[1].expect_reply("TG.CHECK login b\r\n", &login(1, 0));
    // A thousand checks at once: exactly the remaining units pass.
    callers[1] = RespClient::connect(nodes[1].resp());
    callers[1].send("TG.CHECK login d\r\n".repeat(1000) + "QUIT\r\n");
    let replies = callers[1].rest();
    assert_eq!(
        (replies.matches("*7\r\n:1\r\n").count(), replies.matches("*7\r\n").count()),
        (2, 1000)
    );
}

/// Regression: the refund of `[1, -1]` was lost, and the third check of `[1, -1, 1]` was denied.
#[test]
fn pipeline_checks_apply_in_order() {
    let redis = start_redis();
    let server = node("shared-order", &redis);
    for (key, costs, expected) in
        [("a", &[1, -1][..], "11"), ("b", &[1, -1, 1], "111"), ("c", &[1, 1, -1, 1], "1011")]
    {
        let mut client = RespClient::connect(server.resp());
        let pipeline: String =
            costs.iter().map(|cost| format!("TG.CHECK lone {key} COST {cost}\r\n")).collect();
        client.send(pipeline + "QUIT\r\n");
        let replies = client.rest();
        let allowed: String =
            replies.split("*7\r\n:").skip(1).filter_map(|reply| reply.chars().next()).collect();
        assert_eq!(allowed, expected, "{replies}");
    }
}

#[test]
fn store_failure_is_an_error_not_a_denial() {
    let mut redis = start_redis();
    let node = node("shared-down", &redis);
    let mut client = RespClient::connect(node.resp());
    client.expect_reply("TG.CHECK login a\r\n", "*7\r\n:1\r\n:2\r\n:1\r\n");
    redis.kill();
    let mut client = RespClient::connect(node.resp());
    client.expect_reply(
        "TG.CHECK closed a\r\n",
        "-STOREDOWN the store failed, and policy `closed` has `on_store_failure: deny`: try again\r\n",
    );
    client.expect_reply(
        "TG.CHECK open a\r\n",
        "*7\r\n:1\r\n:2\r\n$-1\r\n:0\r\n$-1\r\n$4\r\nopen\r\n$11\r\nfailed-open\r\n",
    );
    // Half of the limit, because two nodes share it.
    client.expect_reply(
        "TG.CHECK login z\r\n",
        "*7\r\n:1\r\n:1\r\n:0\r\n:0\r\n:3600000\r\n$5\r\nlogin\r\n$5\r\nlocal\r\n",
    );
    // More than that half, but not more than the limit.
    client.expect_reply(
        "TG.CHECK login w COST 2\r\n",
        "-STOREDOWN the store failed, and the cost exceeds this node's share of policy `login`: try again\r\n",
    );
    client.expect_reply(
        "TG.CHECK login w COST 3\r\n",
        "*7\r\n:0\r\n:1\r\n:1\r\n$-1\r\n:0\r\n$5\r\nlogin\r\n$5\r\nlocal\r\n",
    );
    client.expect_reply("CL.THROTTLE z 3 30 60\r\n", "*5\r\n:0\r\n:4\r\n:1\r\n:-1\r\n:4\r\n");
    client.expect_reply("TG.PEEK login z\r\n", "-STOREDOWN ");
    let mut client = RespClient::connect(node.resp());
    client.expect_reply("TG.RESET login z\r\n", "-STOREDOWN ");
    let count = |code| node.metric(&format!("tidegate_resp_requests_total{{code=\"{code}\"}}"));
    assert_eq!((count("OK"), count("STOREDOWN")), (Some(5), Some(4)));
    redis.restart();
    wait_for(|| {
        let mut client = RespClient::connect(node.resp());
        client.send("TG.CHECK closed back COST 0\r\n");
        client.read(4).starts_with("*7").then_some(())
    });
}
