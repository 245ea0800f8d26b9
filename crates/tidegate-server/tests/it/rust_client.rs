//! `tidegate-client` with a real server.

use std::time::Duration;

use tidegate_client::Retry;
use tidegate_client::server::{Attributes, Check, Client, Error, Taken};

use crate::server_harness::{PATIENCE, Server, Start};

const POLICIES: &str = r#"
policies:
  - name: login
    match: { methods: [POST], path: /login }
    key: "{client_ip}"
    limits: ["2 per 1h sliding-log"]
  - name: jobs
    match: { path: /jobs }
    key: "{client_ip}"
    limits: ["1 concurrent lease 600ms"]
  - name: quick
    match: { path: /quick }
    key: "{path}"
    limits: ["3 per 1s sliding-log"]
"#;

fn serve(test: &str) -> (Server, Client) {
    let server = Start::new(test).config(POLICIES).run();
    let client = Client::new(&format!("http://{}", server.http())).expect("an address");
    (server, client)
}

#[tokio::test]
async fn client_receives_decisions_of_checks_and_batches() {
    let (_server, client) = serve("client-checks");
    let login = Check::policy("login", "alice");
    let first = client.check(&login).await.expect("a response");
    assert_eq!((first.allowed, first.limit, first.remaining), (true, Some(2), Some(1)));
    let usage = first.fields().usage.expect("a known limit");
    assert_eq!(usage.window, Some(Duration::from_secs(3600)));
    let same = Check::request(Attributes::new("POST", "/login").client_ip("192.0.2.1"));
    let own = Check::limits("alice", ["1 per 1h"]).cost(2);
    let checks = [login.clone().id("once"), login.clone().id("once"), login, same, own];
    let answers = client.batch(&checks).await.expect("answers");
    let allowed: Vec<_> = answers.iter().flatten().map(|answer| answer.allowed).collect();
    assert_eq!(allowed, [true, true, false, true, false], "the replay returns the first verdict");
    let denied = answers[2].as_ref().expect("a denial is not an error");
    assert!(denied.retry_after().is_some_and(|wait| wait > Duration::from_secs(3000)));
    assert_eq!(answers[4].as_ref().expect("a response").retry_after(), None, "the cost never fits");
    let unknown =
        client.check(&Check::policy("none", "alice")).await.expect_err("an unknown policy");
    assert!(matches!(&unknown, Error::Refused(problem) if problem.status == 404), "{unknown}");
    let bad = client.check(&Check::policy("login", "")).await.expect_err("no key");
    let Error::Refused(problem) = bad else { panic!("{bad}") };
    assert_eq!((problem.status, problem.field.as_deref()), (400, Some("key")));
}

#[tokio::test]
async fn held_permit_is_renewed_past_its_lease() {
    let (_server, client) = serve("client-permits");
    let jobs = Check::policy("jobs", "alice");
    let permit = client.permit(&jobs, None).await.expect("a response").held().expect("a permit");
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(!permit.is_lost());
    let Taken::Denied(denial) = client.permit(&jobs, None).await.expect("a response") else {
        panic!("the permit is held")
    };
    assert_eq!(denial.violated, ["jobs"]);
    permit.release().await.expect("a released permit");
    let again = client.permit(&jobs, None).await.expect("a response").held().expect("a permit");
    drop(again);
    let freed = async {
        while client.permit(&jobs, None).await.expect("a response").held().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, freed).await.expect("a dropped permit is released");
}

#[tokio::test]
async fn middleware_retries_within_limit() {
    let (server, _) = serve("client-retries");
    let url = format!("http://{}/v1/forward-auth/quick", server.http());
    let http = reqwest_middleware::ClientBuilder::new(reqwest::Client::new());
    let http = http.with(Retry::default()).build();
    for _ in 0..8 {
        assert_eq!(http.get(&url).send().await.expect("a response").status(), 200);
    }
}
