//! The middleware against an HTTP server on loopback.

use std::time::{Duration, Instant};

use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use tidegate_client::{Backoff, Paused, Retry, RetryRules};

use crate::scripted::Scripted;

fn rules() -> RetryRules {
    RetryRules::default().backoff(Backoff::default().base(Duration::from_millis(1)))
}

fn client(retry: Retry) -> ClientWithMiddleware {
    ClientBuilder::new(reqwest::Client::new()).with(retry).build()
}

const DENIED: (u16, &str) = (429, "retry-after: 0\r\n");
const FINE: (u16, &str) = (200, "");

#[tokio::test]
async fn retries_until_the_last_response_is_the_result() {
    let rows: &[(&'static [(u16, &'static str)], u16, usize)] = &[
        (&[FINE], 200, 1),
        (&[DENIED, FINE], 200, 2),
        (&[(503, ""), (503, ""), FINE], 200, 3),
        (&[DENIED], 429, 6),
        (&[(500, "retry-after: 0\r\n")], 500, 1),
        (&[(404, "")], 404, 1),
        // Longer than the longest wait: the denial is the result.
        (&[(429, "retry-after: 3155760000\r\n"), FINE], 429, 1),
        (&[(429, "retry-after: -1\r\nratelimit: ;;;\r\n"), FINE], 200, 2),
    ];
    for (replies, status, requests) in rows {
        let server = Scripted::replying(replies).await;
        let response = client(Retry::new(rules())).get(server.url()).send().await;
        let response = response.expect("an answer");
        assert_eq!(response.status().as_u16(), *status, "{replies:?}");
        assert_eq!(response.text().await.expect("a body"), "done", "{replies:?}");
        assert_eq!(server.requests().len(), *requests, "{replies:?}");
    }
}

#[tokio::test]
async fn waits_for_retry_after() {
    let server = Scripted::replying(&[(429, "retry-after: 1\r\n"), FINE]).await;
    let start = Instant::now();
    let response = client(Retry::default()).get(server.url()).send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    assert!(start.elapsed() >= Duration::from_secs(1), "not earlier than it was asked to");
}

#[tokio::test]
async fn sends_one_key_with_all_retries_of_a_post() {
    let server = Scripted::replying(&[DENIED, DENIED, FINE]).await;
    let client = client(Retry::new(rules()));
    for _ in 0..2 {
        let sent = client.post(server.url()).body("order").send().await;
        assert_eq!(sent.expect("an answer").status(), 200);
    }
    let recorded = server.requests();
    let keys: Vec<_> = recorded.iter().map(|request| request.header("idempotency-key")).collect();
    assert_eq!(keys.len(), 4);
    assert!(keys[0].is_some_and(|key| key.len() == 36 && &key[14..15] == "4"), "{keys:?}");
    assert_eq!((keys[1], keys[2]), (keys[0], keys[0]), "the same for all retries");
    assert_ne!(keys[3], keys[0], "another call, another key");
    assert!(recorded.iter().all(|request| request.body == "order" && request.method == "POST"));
}

#[tokio::test]
async fn repeats_a_post_only_if_it_was_not_processed() {
    const LATER: (u16, &str) = (503, "retry-after: 0\r\n");
    // (responses, the caller's key, whether servers honour keys, requests)
    let rows: &[(&'static [(u16, &'static str)], Option<&str>, bool, usize)] = &[
        (&[DENIED, FINE], None, false, 2),
        (&[LATER, FINE], None, false, 2),
        (&[(503, ""), FINE], None, false, 1),
        (&[(503, ""), FINE], None, true, 2),
        (&[(503, ""), FINE], Some("mine"), false, 2),
    ];
    for (replies, own, honoured, requests) in rows {
        let server = Scripted::replying(replies).await;
        let retry = Retry::new(rules());
        let retry = if *honoured { retry.keys_honoured() } else { retry };
        let mut post = client(retry).post(server.url());
        if let Some(own) = own {
            post = post.header("idempotency-key", *own);
        }
        post.send().await.expect("an answer");
        let recorded = server.requests();
        assert_eq!(recorded.len(), *requests, "{replies:?} {own:?} {honoured}");
        let key = recorded[0].header("idempotency-key");
        assert!(key.is_some() && (own.is_none() || key == *own), "{key:?}");
    }
    let server = Scripted::replying(&[DENIED, FINE]).await;
    let get = client(Retry::new(rules())).get(server.url()).send().await;
    assert_eq!(get.expect("an answer").status(), 200);
    assert!(server.requests().iter().all(|request| request.header("idempotency-key").is_none()));
}

/// An address on which no server listens.
fn refusing_url() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    format!("http://{}/", listener.local_addr().expect("an address"))
}

#[tokio::test]
async fn retries_failed_connections() {
    let error = client(Retry::new(rules().retries(2))).get(refusing_url()).send();
    let error = error.await.expect_err("nobody listens");
    assert!(matches!(&error, reqwest_middleware::Error::Reqwest(error) if error.is_connect()));
}

/// The server has processed the POST when it redirects, but what became of the redirect was taken
/// for the outcome of the POST, which was then sent up to six times.
#[tokio::test]
async fn sends_a_post_once_if_its_redirect_fails() {
    let denying = Scripted::replying(&[DENIED]).await;
    for other in [refusing_url(), denying.url()] {
        let redirect = format!("location: {other}\r\n");
        let server = Scripted::start(move |_, _| (303, redirect.clone(), String::new())).await;
        let client = client(Retry::new(rules()));
        let _ = client.post(server.url()).send().await;
        assert_eq!(server.requests().len(), 1, "{other}");
        let _ = client.get(server.url()).send().await;
        assert_eq!(server.requests().len(), 1 + 6, "{other}: a GET may be repeated");
    }
}

#[tokio::test]
async fn does_not_send_a_request_paced_past_its_deadline() {
    let used_up =
        "retry-after: 20\r\nratelimit: \"a\";r=0;t=20\r\nratelimit-policy: \"a\";q=1;w=20\r\n";
    let server = Scripted::start(move |_, _| (429, used_up.to_owned(), String::new())).await;
    let client = client(Retry::new(rules().deadline(Duration::from_secs(1))));
    assert_eq!(client.get(server.url()).send().await.expect("an answer").status(), 429);
    let error = client.get(server.url()).send().await.expect_err("its turn is after the deadline");
    let reqwest_middleware::Error::Middleware(error) = error else { panic!("{error}") };
    assert!(error.downcast_ref::<Paused>().is_some_and(|paused| paused.wait.as_secs() >= 19));
    assert_eq!(server.requests().len(), 1);
    let elsewhere = Scripted::replying(&[FINE]).await;
    let sent = client.get(elsewhere.url()).send().await;
    assert_eq!(sent.expect("another server, another limit").status(), 200);
}

#[tokio::test]
async fn sends_nothing_after_the_future_is_dropped() {
    let used_up = "ratelimit: \"a\";r=0;t=10\r\nratelimit-policy: \"a\";q=1;w=10\r\n";
    let server = Scripted::start(move |_, _| (200, used_up.to_owned(), String::new())).await;
    // The limit is used up for ten seconds: there is a turn for one more request, not for two.
    let client = client(Retry::new(rules().deadline(Duration::from_secs(15))));
    assert_eq!(client.get(server.url()).send().await.expect("an answer").status(), 200);
    for _ in 0..3 {
        let waiting = client.get(server.url()).send();
        let ended = tokio::time::timeout(Duration::from_millis(50), waiting).await;
        assert!(ended.is_err(), "the turn was given back, so this request waits for it: {ended:?}");
    }
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn sends_a_stream_once() {
    let server = Scripted::replying(&[DENIED, FINE]).await;
    let stream = reqwest::Body::wrap(Once(Some("streamed")));
    let sent = client(Retry::new(rules())).put(server.url()).body(stream).send().await;
    assert_eq!(sent.expect("an answer").status(), 429);
    assert_eq!(server.requests().len(), 1);
}

/// A body that cannot be cloned.
struct Once(Option<&'static str>);

impl http_body::Body for Once {
    type Data = &'static [u8];
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        std::task::Poll::Ready(
            self.0.take().map(|text| Ok(http_body::Frame::data(text.as_bytes()))),
        )
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.0.map_or(0, |text| text.len() as u64))
    }
}
