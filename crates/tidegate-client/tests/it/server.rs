//! The typed client against canned answers. The tests of tidegate-server run it against the
//! real server.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_client::server::{Attributes, Check, Client, Error, Taken};

use crate::scripted::{RecordedRequest, Scripted};

const ALLOWED: &str = r#"{"allowed":true,"policy":"login","limit":2,"remaining":1,"retry_after_ms":0,"reset_after_ms":3600000,"decided":"exact","limits":[{"policy":"login","limit":2,"window_ms":3600000,"algorithm":"sliding-log","remaining":1,"allowed":true,"retry_after_ms":0}]}"#;
const NEVER: &str = r#"{"allowed":false,"policy":null,"limit":1,"remaining":1,"retry_after_ms":null,"reset_after_ms":0,"decided":"exact","limits":[]}"#;
const OPEN: &str = r#"{"allowed":true,"policy":"api","limit":1,"remaining":null,"retry_after_ms":0,"reset_after_ms":null,"decided":"failed-open","limits":[],"new":1}"#;
const CONFLICT: &str = r#"{"type":"about:blank","title":"Conflict","status":409,"detail":"another cost","field":"id"}"#;
const DENIED: &str = r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"used up","violated-policies":["jobs"]}"#;

async fn answering(status: u16, fields: &'static str, body: &'static str) -> (Scripted, Client) {
    let server = Scripted::start(move |_, _| (status, fields.to_owned(), body.to_owned())).await;
    let client = Client::new(&format!("http://{}", server.address)).expect("an address");
    (server, client)
}

fn body(request: &RecordedRequest) -> Value {
    serde_json::from_str(&request.body).expect("JSON")
}

#[tokio::test]
async fn sends_checks_in_the_format_of_the_api() {
    let (server, client) = answering(200, "", ALLOWED).await;
    let attributes =
        Attributes::new("POST", "/login").client_ip("192.0.2.1").header("x-org", "acme");
    let rows = [
        (Check::policy("login", "alice"), json!({"policy":"login","key":"alice"})),
        (
            Check::policy("login", "alice").cost(2).id("a"),
            json!({"policy":"login","key":"alice","cost":2,"id":"a"}),
        ),
        (
            Check::limits("alice", ["1 per 1h"]).force(),
            json!({"key":"alice","limits":["1 per 1h"],"force":true}),
        ),
        (
            Check::request(attributes).max_wait(Duration::from_millis(5)),
            json!({"attributes":{"method":"POST","path":"/login","client_ip":"192.0.2.1","headers":{"x-org":"acme"}},"max_wait_ms":5}),
        ),
    ];
    for (check, _) in &rows {
        let answer = client.check(check).await.expect("an answer");
        assert!(answer.allowed);
        assert_eq!((answer.remaining, answer.limits.len()), (Some(1), 1));
    }
    let recorded = server.requests();
    assert!(
        recorded.iter().all(|request| (&*request.method, &*request.path) == ("POST", "/v1/check"))
    );
    let sent: Vec<_> = recorded.iter().map(body).collect();
    assert_eq!(sent, rows.map(|(_, expected)| expected));
}

#[tokio::test]
async fn returns_denials_as_values_and_failures_as_errors() {
    let check = Check::policy("login", "alice");
    let (_server, client) = answering(200, "", NEVER).await;
    let answer = client.check(&check).await.expect("a denial is an answer");
    assert_eq!((answer.allowed, answer.retry_after()), (false, None));
    let (_server, client) = answering(200, "", OPEN).await;
    let answer = client.check(&check).await.expect("unknown fields are ignored");
    assert_eq!((answer.decided.as_str(), answer.remaining), ("failed-open", None));
    const TEXT: &str = "content-type: text/plain; charset=utf-8\r\n";
    // (status, fields, body, the error's text with URL in place of the address)
    let rows = [
        (409, "", CONFLICT, "409 Conflict, field `id`: another cost"),
        (502, "", "<html>", "502 Bad Gateway: the response of URL has no problem document"),
        (
            400,
            TEXT,
            "this is the \x1bgRPC port\nuse another one",
            "400 Bad Request: the response of URL has no problem document: this is the \\u{1b}gRPC port",
        ),
        (502, TEXT, "\n", "502 Bad Gateway: the response of URL has no problem document"),
        (
            429,
            "",
            DENIED,
            "429 Request cannot be satisfied as assigned quota has been exceeded: used up",
        ),
        (
            200,
            "",
            "7",
            "the response is not from a tidegate server: URL: invalid type: integer `7`, expected struct Answer at line 1 column 1",
        ),
    ];
    for (status, fields, body, expected) in rows {
        let (server, client) = answering(status, fields, body).await;
        let error = client.check(&check).await.expect_err("no decision");
        let url = format!("http://{}/v1/check", server.address);
        assert_eq!(error.to_string(), expected.replace("URL", &url));
    }
    let gone = Client::new("http://127.0.0.1:1").expect("an address");
    let error = gone.check(&check).await.expect_err("nothing listens there");
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
}

#[test]
fn accepts_only_http_addresses() {
    for (address, is_sound) in [
        ("http://127.0.0.1:8080", true),
        ("https://limits.example/behind/", true),
        ("127.0.0.1:8080", false),
        ("ftp://127.0.0.1", false),
        ("", false),
    ] {
        assert_eq!(Client::new(address).is_ok(), is_sound, "{address}");
    }
}

/// Regression: a query and a fragment were dropped. Secrets in them were expected to be sent.
#[test]
fn rejects_addresses_with_a_query_or_a_fragment() {
    for address in [
        "http://127.0.0.1:8080?token=hush",
        "http://127.0.0.1:8080/?",
        "https://limits.example/behind#hush",
        "http://user:hu#sh@limits.example",
        "limits.example?token=hush",
    ] {
        let error = Client::new(address).expect_err(address);
        let expected = "invalid server settings: the address must not have a query or a fragment: \
                        remove the `?` or `#` and what follows it; `Client::token` sets a secret";
        assert_eq!(error.to_string(), expected);
    }
}

/// Regression: an empty token and one that is not ASCII were sent.
#[test]
fn rejects_a_token_that_cannot_be_sent() {
    let client = Client::new("http://127.0.0.1:8080").expect("an address");
    for token in ["", "hush\n", "hu\nsh", " hush", "hüsh"] {
        let error = client.clone().token(token).expect_err("not a token");
        let expected = "invalid server settings: the token must not be empty and may have only \
                        printable ASCII characters, without a space at either end; if it was read \
                        from a file, remove the line break at its end";
        assert_eq!(error.to_string(), expected);
    }
    assert!(client.token("hu sh").is_ok());
}

/// Regression: an answer of another program did not say which address it came from.
#[tokio::test]
async fn errors_name_the_address_without_the_password() {
    for (status, body) in [(200, "<html>"), (404, "<html>"), (502, "")] {
        let server = Scripted::start(move |_, _| (status, String::new(), body.to_owned())).await;
        let address = format!("http://user:hush@{}", server.address);
        let client = Client::new(&address).expect("an address");
        let error = client.check(&Check::policy("login", "alice")).await.expect_err("no answer");
        let text = format!("{error} {error:?}");
        assert!(text.contains(&format!("http://{}/v1/check", server.address)), "{text}");
        assert!(!text.contains("hush"), "{text}");
    }
    let unreachable = Client::new("http://user:hush@127.0.0.1:1").expect("an address");
    let error = unreachable.check(&Check::policy("login", "alice")).await.expect_err("nobody");
    let text = format!("{error} {error:?}");
    assert!(text.contains("http://127.0.0.1:1/v1/check") && !text.contains("hush"), "{text}");
    let error = Client::new("ftp://user:hush@limits.example").expect_err("not http");
    let expected = "invalid server settings: address `limits.example`: \
                    expected a URL such as http://127.0.0.1:8080";
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn keeps_the_order_of_a_batch() {
    let text = format!("{{\"answers\":[{ALLOWED},{CONFLICT},{NEVER}]}}");
    let server = Scripted::start(move |_, _| (200, String::new(), text.clone())).await;
    let client = Client::new(&format!("http://{}/behind", server.address)).expect("an address");
    let client = client.token("secret").expect("a token");
    let checks = ["a", "b", "c"].map(|key| Check::policy("login", key));
    let answers = client.batch(&checks).await.expect("answers");
    let allowed: Vec<_> = answers
        .iter()
        .map(|answer| answer.as_ref().map(|answer| answer.allowed).map_err(|it| it.status))
        .collect();
    assert_eq!(allowed, [Ok(true), Err(409), Ok(false)]);
    let request = &server.requests()[0];
    assert_eq!(request.path, "/behind/v1/check/batch");
    assert_eq!(request.header("authorization"), Some("Bearer secret"));
    assert_eq!(body(request)["checks"][2]["key"], "c");
    let error = client.batch(&checks[..1]).await.expect_err("three answers to one");
    assert_eq!(
        error.to_string(),
        format!(
            "the response is not from a tidegate server: http://{}/behind/v1/check/batch: \
             3 answers to 1 checks",
            server.address
        )
    );
}

/// A server of permits that accepts a number of renewals and then does not know the permit.
async fn permits(lease_ms: u64, renewals: usize) -> (Scripted, Client) {
    let server = Scripted::start(move |at, request| match &*request.method {
        "POST" => {
            let open = ALLOWED.strip_suffix('}').expect("an object");
            (201, String::new(), format!("{open},\"id\":\"p1\",\"ttl_ms\":{lease_ms}}}"))
        }
        "PUT" if at <= renewals => {
            (200, String::new(), format!("{{\"id\":\"p1\",\"ttl_ms\":{lease_ms}}}"))
        }
        "PUT" => (404, String::new(), String::new()),
        _ => (204, String::new(), String::new()),
    })
    .await;
    let client = Client::new(&format!("http://{}", server.address)).expect("an address");
    (server, client)
}

async fn take(client: &Client) -> tidegate_client::server::Permit {
    let check = Check::policy("jobs", "alice");
    let taken = client.permit(&check, Some(Duration::from_millis(150))).await.expect("an answer");
    taken.held().expect("a permit")
}

/// Waits until a background event has happened, for ten seconds at most.
async fn eventually(mut happened: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if happened() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it did not happen");
}

#[tokio::test]
async fn renews_a_permit_and_releases_it_once() {
    // Long enough that a slow machine does not lose it.
    let (server, client) = permits(1500, usize::MAX).await;
    let methods =
        || server.requests().iter().map(|request| request.method.clone()).collect::<Vec<_>>();
    let permit = take(&client).await;
    assert_eq!((permit.id(), permit.answer().allowed), ("p1", true));
    assert_eq!(body(&server.requests()[0]), json!({"policy":"jobs","key":"alice","ttl_ms":150}));
    eventually(|| methods().iter().filter(|method| *method == "PUT").count() >= 2).await;
    permit.release().await.expect("given back");
    assert_eq!(methods().iter().filter(|method| *method == "DELETE").count(), 1);
    assert_eq!(server.requests().last().expect("requests").path, "/v1/permits/p1");
    drop(take(&client).await);
    eventually(|| methods().iter().filter(|method| *method == "DELETE").count() == 2).await;
}

#[tokio::test]
async fn reports_a_permit_that_the_server_forgot_as_lost() {
    let (server, client) = permits(150, 0).await;
    let permit = take(&client).await;
    let lost = tokio::time::timeout(Duration::from_secs(10), permit.lost()).await;
    assert!(lost.is_ok() && permit.is_lost());
    permit.release().await.expect("nothing is held");
    assert!(server.requests().iter().all(|request| request.method != "DELETE"));
}

/// Regression: a permit was lost only if the server did not know it. While the server failed or did
/// not answer, `is_lost` stayed false after the lease had ended.
#[tokio::test]
async fn a_permit_that_cannot_be_renewed_is_lost_when_its_lease_ends() {
    // The client waits for another response after 100 (Continue).
    for status in [503, 100] {
        let server = Scripted::start(move |_, request| match &*request.method {
            "POST" => {
                let open = ALLOWED.strip_suffix('}').expect("an object");
                (201, String::new(), format!("{open},\"id\":\"p1\",\"ttl_ms\":150}}"))
            }
            _ => (status, String::new(), String::new()),
        })
        .await;
        let client = Client::new(&format!("http://{}", server.address)).expect("an address");
        let client = client.answer_within(Duration::from_secs(60));
        let permit = take(&client).await;
        let lost = tokio::time::timeout(Duration::from_secs(10), permit.lost()).await;
        assert!(lost.is_ok() && permit.is_lost(), "{status}");
    }
}

#[tokio::test]
async fn returns_a_denied_permit_as_a_value() {
    let (_server, client) = answering(429, "retry-after: 30\r\n", DENIED).await;
    let taken = client.permit(&Check::policy("jobs", "alice"), None).await.expect("an answer");
    let Taken::Denied(denial) = taken else { panic!("{taken:?}") };
    assert_eq!(denial.retry_after, Some(Duration::from_secs(30)));
    assert_eq!((denial.violated, denial.detail), (vec!["jobs".to_owned()], "used up".to_owned()));
    let (_server, client) = answering(503, "", "").await;
    let error = client.permit(&Check::policy("jobs", "alice"), None).await.expect_err("no answer");
    assert!(error.is_unavailable());
}
