//! Caddy's `reverse_proxy` as an authorizer, for which `forward_auth` is a short form.

use super::processes::{CheckedOver, Fields, Gateway};

const CADDY: Gateway = Gateway {
    program: "caddy",
    open: &["caddy/open.Caddyfile"],
    closed: &["caddy/closed.Caddyfile"],
    arguments: &["run", "--config", "{config}", "--adapter", "caddyfile"],
    fields: Fields::ToClient,
    body_passes: true,
    closed_status: 503,
    closed_problem: true,
    closed_hurries: true,
    checked_over: CheckedOver::Http,
};

super::gateway_tests!(CADDY);
