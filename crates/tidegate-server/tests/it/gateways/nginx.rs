//! nginx's `auth_request`.

use super::processes::{CheckedOver, Fails, Fields, Gateway, GatewaySetup};
use super::{ALICE, login};

const NGINX: Gateway = Gateway {
    program: "nginx",
    open: &["nginx/open.conf"],
    closed: &["nginx/closed.conf"],
    arguments: &["-p", ".", "-c", "{config}", "-e", "stderr", "-g", "daemon off;"],
    fields: Fields::ToClient,
    body_passes: false,
    closed_status: 503,
    closed_problem: true,
    closed_hurries: true,
    checked_over: CheckedOver::Http,
};

super::gateway_tests!(NGINX);

/// Regression: `auth_request` passed the 401 for a missing token on to every client.
#[test]
fn missing_token_is_not_a_401_for_clients() {
    for fails in [Fails::Closed, Fails::Open] {
        let mut setup = GatewaySetup::start(&NGINX, fails, &format!("token-{fails:?}"), "");
        setup.tidegate.require_token("a-secret-that-nginx-does-not-send");
        let response = setup.send(&login(ALICE));
        assert_eq!(response.status, 503, "{response:?}");
        assert_eq!(response.header("www-authenticate"), None, "{response:?}");
        assert_eq!(response.header("content-type"), Some("application/problem+json"));
        assert!(response.body.contains("#temporary-reduced-capacity"), "{response:?}");
        assert!(!response.reached_application(), "{response:?}");
    }
}
