//! nginx's `auth_request`.

use super::processes::{CheckedOver, Fields, Gateway};

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
