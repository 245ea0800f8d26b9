//! Envoy's `ext_authz` over HTTP.

use super::processes::{CheckedOver, Fields, Gateway};

const ENVOY: Gateway = Gateway {
    program: "envoy",
    open: &["envoy/open.yaml"],
    closed: &["envoy/closed.yaml"],
    arguments: &["-c", "{config}", "--concurrency", "1", "--disable-hot-restart"],
    fields: Fields::ToClient,
    body_passes: true,
    closed_status: 503,
    closed_problem: false,
    closed_hurries: true,
    checked_over: CheckedOver::Http,
};

super::gateway_tests!(ENVOY);
