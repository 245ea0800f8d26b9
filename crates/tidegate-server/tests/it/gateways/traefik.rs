//! Traefik's `forwardAuth`.

use super::processes::{CheckedOver, Fields, Gateway};

const TRAEFIK: Gateway = Gateway {
    program: "traefik",
    open: &["traefik/open/traefik.yaml", "traefik/open/dynamic.yaml"],
    closed: &["traefik/closed/traefik.yaml", "traefik/closed/dynamic.yaml"],
    arguments: &["--configFile={config}"],
    fields: Fields::ToApplication,
    body_passes: true,
    closed_status: 500,
    closed_problem: false,
    // Traefik waits 30 s, which cannot be configured.
    closed_hurries: false,
    checked_over: CheckedOver::Http,
};

super::gateway_tests!(TRAEFIK);
