//! The debug pages of envoyproxy/ratelimit: `/rlconfig` and `/stats`.

use std::fmt::Write as _;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use tidegate::unstable::policy::Mode;

use super::response::text;
use super::{AdminState, metrics};
use crate::fronts::grpc::envoy::{UNITS, unit};

/// Lists the limits of all policies, one per line.
pub async fn config(State(state): State<AdminState>) -> Response {
    let active = state.gate.active_policies();
    let mut page = String::new();
    for policy in active.policies() {
        let (shadow, quota) = (policy.mode() == Mode::Observe, policy.is_quota());
        for limit in policy.limits() {
            let number = usize::try_from(unit(limit)).unwrap_or_default();
            // Writing to memory cannot fail.
            let _ = match UNITS.get(number).filter(|_| number > 0) {
                Some(unit) => write!(
                    page,
                    "{}: unit={unit} requests_per_unit={}",
                    policy.name(),
                    limit.count()
                ),
                None => write!(page, "{}: limit={limit}", policy.name()),
            };
            let _ = writeln!(page, ", shadow_mode: {shadow}, quota_mode: {quota}");
        }
        if policy.limits().is_empty() {
            let _ = writeln!(page, "{}: unlimited", policy.name());
        }
    }
    text(StatusCode::OK, page)
}

/// Lists the metrics, one per line.
pub async fn stats(State(state): State<AdminState>) -> Response {
    let mut page = String::new();
    for line in metrics::page(&state).lines().filter(|line| !line.starts_with('#')) {
        if let Some((name, value)) = line.rsplit_once(' ') {
            let _ = writeln!(page, "{name}: {value}");
        }
    }
    text(StatusCode::OK, page)
}
