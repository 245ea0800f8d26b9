//! Envoy's rate limit filter, which asks over gRPC.

use super::stand::{Asks, Fails, Fields, Gateway, Stand, eventually};
use super::wire::Request;
use super::{
    ALICE, BOB, LIMIT, PROBE, WINDOW_S, admitted, check_admission, check_arrival, denied, login,
    open, seconds, use_up,
};

const ENVOY: Gateway = Gateway {
    program: "envoy",
    open: &["envoy/ratelimit-open.yaml"],
    closed: &["envoy/ratelimit-closed.yaml"],
    arguments: &["-c", "{config}", "--concurrency", "1", "--disable-hot-restart"],
    fields: Fields::ToClient,
    body_passes: false,
    closed_status: 503,
    closed_problem: false,
    closed_hurries: true,
    asks: Asks::Grpc,
};

#[test]
fn admits_then_denies_and_says_so() {
    let stand = Stand::start(&ENVOY, Fails::Closed, "denies", "");
    for remaining in (0..LIMIT).rev() {
        let response = admitted(&stand, &login(ALICE));
        check_arrival(&response);
        check_admission(ENVOY.fields, &response, remaining);
    }
    let response = denied(&stand, &login(ALICE));
    let retry_after = seconds(response.header("retry-after"));
    assert!((1..=WINDOW_S).contains(&retry_after), "{response:?}");
    let limit = format!("\"login\";r=0;t={retry_after}");
    assert_eq!(response.header("ratelimit"), Some(&*limit), "{response:?}");
    let policy = format!("\"login\";q={LIMIT};w={WINDOW_S}");
    assert_eq!(response.header("ratelimit-policy"), Some(&*policy));
    assert_eq!(response.header("x-envoy-ratelimited"), Some("true"));
    // What is not asked about, and somebody else.
    for (method, target) in [("GET", &b"/login/alice"[..]), ("POST", b"/logins/alice")] {
        let response = admitted(&stand, &Request { method, target, ..login(ALICE) });
        assert_eq!(response.header("ratelimit"), None, "{response:?}");
    }
    admitted(&stand, &login(BOB));
    // A gRPC client is told in its own terms.
    let call = Request { headers: &["content-type: application/grpc"], ..login(ALICE) };
    let response = stand.send(&call);
    assert_eq!((response.status, response.header("grpc-status")), (200, Some("8")), "{response:?}");
}

#[test]
fn what_a_client_claims_does_not_help() {
    let stand = Stand::start(&ENVOY, Fails::Open, "claims", "");
    use_up(&stand, ALICE);
    for headers in super::CLAIMS {
        denied(&stand, &Request { headers, ..login(ALICE) });
    }
    for target in
        [&b"//login/alice"[..], b"/login//alice", b"/free/../login/alice", b"/./login/alice"]
    {
        denied(&stand, &Request { target, ..login(ALICE) });
    }
}

#[test]
fn fails_closed_and_recovers() {
    let mut stand = Stand::start(&ENVOY, Fails::Closed, "closed", "");
    use_up(&stand, ALICE);
    stand.tidegate.freeze();
    refused(&stand);
    stand.tidegate.kill();
    refused(&stand);
    stand.tidegate.restart();
    eventually("nothing passes again", || stand.send(&login(PROBE)).status == 200);
    use_up(&stand, ALICE);
}

/// What is asked about is refused, and not as the client's fault.
#[track_caller]
fn refused(stand: &Stand) {
    for request in [login(ALICE), login(BOB)] {
        let before = stand.application.asked();
        let response = stand.send(&request);
        assert_eq!(response.status, 503, "{response:?}");
        assert_eq!(stand.application.asked(), before, "it reached the application");
    }
    admitted(stand, &Request { target: b"/", ..login(ALICE) });
}

#[test]
fn fails_open_and_recovers() {
    let mut stand = Stand::start(&ENVOY, Fails::Open, "open", "");
    use_up(&stand, ALICE);
    stand.tidegate.freeze();
    open(&stand);
    stand.tidegate.kill();
    open(&stand);
    stand.tidegate.restart();
    eventually("nothing is limited again", || stand.send(&login(PROBE)).status == 429);
    use_up(&stand, ALICE);
}
