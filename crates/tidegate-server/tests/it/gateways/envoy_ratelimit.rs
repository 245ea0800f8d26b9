//! Envoy's rate limit filter, which sends its requests over gRPC.

use std::net::Ipv4Addr;

use tidegate_testkit::eventually;

use super::http_client::{Request, USAGE};
use super::processes::{CheckedOver, Fails, Fields, Gateway, GatewaySetup};
use super::{
    ALICE, BOB, LIMIT, PROBE, WINDOW_S, admitted, check_admission, check_arrival, denied, login,
    open, seconds, use_up,
};
use crate::http2_frames::{Connection, Frames, HEADERS};

pub const ENVOY: Gateway = Gateway {
    program: "envoy",
    open: &["envoy/ratelimit-open.yaml"],
    closed: &["envoy/ratelimit-closed.yaml"],
    arguments: &["-c", "{config}", "--concurrency", "1", "--disable-hot-restart"],
    fields: Fields::ToClient,
    body_passes: false,
    closed_status: 503,
    closed_problem: false,
    closed_hurries: true,
    checked_over: CheckedOver::Grpc,
};

#[test]
fn admits_then_denies_with_headers() {
    let setup = GatewaySetup::start(&ENVOY, Fails::Closed, "denies", "");
    for remaining in (0..LIMIT).rev() {
        let response = admitted(&setup, &login(ALICE));
        check_arrival(&response);
        check_admission(ENVOY.fields, &response, remaining);
    }
    let response = denied(&setup, &login(ALICE));
    let retry_after = seconds(response.header("retry-after"));
    assert!((1..=WINDOW_S).contains(&retry_after), "{response:?}");
    let limit = format!("\"login\";r=0;t={retry_after}");
    assert_eq!(response.header("ratelimit"), Some(&*limit), "{response:?}");
    let policy = format!("\"login\";q={LIMIT};w={WINDOW_S}");
    assert_eq!(response.header("ratelimit-policy"), Some(&*policy));
    assert_eq!(response.header("x-envoy-ratelimited"), Some("true"));
    // Requests that are not checked, and another client.
    for (method, target) in [("GET", &b"/login/alice"[..]), ("POST", b"/logins/alice")] {
        let response = admitted(&setup, &Request { method, target, ..login(ALICE) });
        assert_eq!(response.header("ratelimit"), None, "{response:?}");
    }
    admitted(&setup, &login(BOB));
    // A gRPC client gets the denial as a gRPC status.
    let call = Request { headers: &["content-type: application/grpc"], ..login(ALICE) };
    let response = setup.send(&call);
    assert_eq!((response.status, response.header("grpc-status")), (200, Some("8")), "{response:?}");
}

#[test]
fn ignores_forged_client_headers() {
    let setup = GatewaySetup::start(&ENVOY, Fails::Open, "claims", "");
    use_up(&setup, ALICE);
    for headers in super::CLAIMS {
        denied(&setup, &Request { headers, ..login(ALICE) });
    }
    for target in
        [&b"//login/alice"[..], b"/login//alice", b"/free/../login/alice", b"/./login/alice"]
    {
        denied(&setup, &Request { target, ..login(ALICE) });
    }
}

#[test]
fn fails_closed_and_recovers() {
    let mut setup = GatewaySetup::start(&ENVOY, Fails::Closed, "closed", "");
    use_up(&setup, ALICE);
    setup.tidegate.freeze();
    refused(&setup);
    setup.tidegate.kill();
    refused(&setup);
    setup.tidegate.restart();
    eventually("requests pass again", || setup.send(&login(PROBE)).status == 200);
    use_up(&setup, ALICE);
}

/// Checked requests are rejected, and not as the client's fault.
#[track_caller]
fn refused(setup: &GatewaySetup) {
    for request in [login(ALICE), login(BOB)] {
        let before = setup.application.request_count();
        let response = setup.send(&request);
        assert_eq!(response.status, 503, "{response:?}");
        assert_eq!(
            setup.application.request_count(),
            before,
            "the request reached the application"
        );
    }
    admitted(setup, &Request { target: b"/", ..login(ALICE) });
}

#[test]
fn fails_open_and_recovers() {
    let mut setup = GatewaySetup::start(&ENVOY, Fails::Open, "open", "");
    use_up(&setup, ALICE);
    setup.tidegate.freeze();
    open(&setup);
    setup.tidegate.kill();
    open(&setup);
    setup.tidegate.restart();
    eventually("the limit applies again", || setup.send(&login(PROBE)).status == 429);
    use_up(&setup, ALICE);
}

/// How often a client cancels requests, with a new connection each time, because Envoy closes a
/// connection with more than 500 cancelled requests.
const ROUNDS: u8 = 20;
/// The number of requests cancelled in one write. tidegate used to close Envoy's connection after
/// 32.
const CANCELLED: u32 = 36;

/// Returns requests of one client over HTTP/2: first cancelled ones, then complete ones.
fn posts(cancelled: u32, whole: u32) -> Frames {
    let head = |frames: Frames, stream: u32| {
        frames.post(stream, "/login/alice", &[(":authority", "shop.example")], true)
    };
    let streams = |range: std::ops::Range<u32>| range.map(|n| 2 * n + 1);
    let frames = streams(0..cancelled)
        .fold(Frames::default(), |frames, stream| head(frames, stream).cancel(stream));
    streams(cancelled..cancelled + whole).fold(frames, head)
}

/// Waits for `count` responses.
fn answers(connection: &mut Connection, count: u32) {
    let mut left = count;
    while left > 0 {
        left -= u32::from(connection.next().kind == HEADERS);
    }
}

/// Regression: when a client cancelled 36 requests in one write, tidegate closed the connection
/// that all clients of an Envoy share, and half of the requests that followed passed unlimited.
#[test]
fn cancelled_requests_keep_the_limit() {
    const WHOLE: u32 = 100;
    let setup = GatewaySetup::start(&ENVOY, Fails::Open, "cancelled-open", "");
    use_up(&setup, ALICE);
    let before = setup.application.request_count();
    for _ in 0..ROUNDS {
        let mut connection = Connection::begin(setup.connect(ALICE));
        connection.send(posts(CANCELLED, WHOLE));
        answers(&mut connection, WHOLE);
        assert_eq!(setup.application.request_count(), before, "requests above the limit passed");
    }
}

/// Regression: with the same cancellations, and Envoy failing closed, other clients got a 503.
#[test]
fn cancelled_requests_do_not_block_others() {
    let setup = GatewaySetup::start(&ENVOY, Fails::Closed, "cancelled-closed", "");
    use_up(&setup, ALICE);
    let limit = u32::try_from(LIMIT).expect("a small limit");
    for round in 0..ROUNDS {
        let mut others = Connection::begin(setup.connect(Ipv4Addr::new(127, 0, 1, round)));
        let before = setup.application.request_count();
        let mut connection = Connection::begin(setup.connect(ALICE));
        connection.send(posts(CANCELLED, 1));
        others.send(posts(0, limit));
        answers(&mut others, limit);
        answers(&mut connection, 1);
        assert_eq!(setup.application.request_count(), before + LIMIT, "another client was refused");
    }
}

/// A limit on usage, which is charged when the response ends.
const USAGE_LIMIT: Gateway = Gateway { closed: &["envoy/ratelimit-usage.yaml"], ..ENVOY };

/// Regression: usage above the units left was rejected as a whole, so nothing was charged and the
/// next request of 0 hits passed: 30 of 30 responses of 300 tokens passed under 1,000 per hour.
#[test]
fn cost_above_remaining_consumes_the_rest() {
    const LIMIT: u64 = 1000;
    let setup = GatewaySetup::start(&USAGE_LIMIT, Fails::Closed, "usage", "");
    let chat = Request { target: b"/chat/alice", ..login(ALICE) };
    let mut passed = 0;
    for _ in 0..30 {
        let before = setup.application.request_count();
        let response = setup.send(&chat);
        let reached = setup.application.request_count() > before;
        assert_eq!(response.status, if reached { 200 } else { 429 }, "{response:?}");
        passed += u64::from(reached);
        // Envoy charges after the response has been sent, without waiting for the result.
        eventually("the usage is charged", || setup.tidegate.decisions("tokens") >= passed);
    }
    // A response that begins with at least one unit left passes.
    assert_eq!(passed, LIMIT.div_ceil(USAGE));
    denied(&setup, &chat);
    admitted(&setup, &Request { from: BOB, ..chat });
}
