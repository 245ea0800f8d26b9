//! The admin front: health, metrics, policies, statistics and denials.
//!
//! ```text
//!   /healthz /readyz /metrics      open: probes and scrapers send no secret
//!   /dashboard                     open: the page contains no data and prompts for the secret
//!   /playground /docs              open: redirects to pages of the HTTP front
//!   /admin/v1/*                    requires the admin secret
//!   /rlconfig /stats               requires the admin secret; the pages of envoyproxy/ratelimit
//! ```
//!
//! - `metrics.rs`: the metrics page;
//! - `policies.rs`, `stats_api.rs`, `fleet.rs`: the admin API as JSON;
//! - `history.rs`: samples of the last minutes; `events.rs`: the stream of denials;
//! - this file: the router as a front, and its responses;
//! - `assets/`: the dashboard, a web page over this API.

mod events;
mod fleet;
mod history;
mod metrics;
mod policies;
mod stats_api;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body as AxumBody;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, LOCATION};
use http::{HeaderMap, StatusCode, Uri};
use hyper::body::{Body, Frame, SizeHint};
use serde::Serialize;
use tidegate::redis::RedisStore;
use tidegate::unstable::config::envoy::Unit;
use tidegate::unstable::gate::Gate;
use tidegate::unstable::policy::Mode;
use tidegate::unstable::stats::{PROMETHEUS_CONTENT_TYPE, Stats};
use tidegate_replay::uplot;
use tower_service::Service;

pub use self::fleet::differing;
use self::history::History;
pub use self::policies::fingerprint;
use crate::authentication::{Access, AuthError};
use crate::background;
use crate::connections::InFlight;
use crate::error::{ErrorKind, RequestError};
use crate::fronts::{Front, FrontCall, host_error};
use crate::server_state::{FrontName, ServerState};
use crate::web_pages::{self, Asset, CSS, HTML, ICON, SCRIPT, SVG, TEXT, own_asset};

/// The state that the handlers share.
#[derive(Clone)]
struct AdminState {
    gate: Arc<Gate>,
    server_state: Arc<ServerState>,
    /// The store that nodes share, if there is one.
    store: Option<RedisStore>,
    history: Arc<History>,
    /// The callers that `/admin/v1` accepts.
    access: Access,
}

impl AdminState {
    fn stats(&self) -> &Stats {
        self.gate.stats()
    }
}

/// Creates the router of the admin front, and starts to sample its history: call it in a runtime.
/// `access` applies to `/admin/v1`.
pub fn router(
    gate: Arc<Gate>,
    server_state: Arc<ServerState>,
    store: Option<RedisStore>,
    access: Access,
) -> Router {
    let history = History::start(&gate, &server_state);
    let state = AdminState { gate, server_state, store, history, access };
    let guarded = Router::new()
        .route("/admin/v1/policies", get(policies::list))
        .route(
            "/admin/v1/policies/{policy}/keys/{key}",
            get(policies::peek).delete(policies::reset),
        )
        .route("/admin/v1/policies/{policy}/keys", get(policies::peek).delete(policies::reset))
        .route("/admin/v1/stats", get(stats_api::stats))
        .route("/admin/v1/fleet", get(fleet::list))
        .route("/admin/v1/history", get(history::history))
        .route("/admin/v1/events", get(events::stream))
        .route_layer(middleware::from_fn(reject_unknown_parameters))
        .route("/admin/v1/top", get(stats_api::top))
        .route("/rlconfig", get(list_limits))
        .route("/stats", get(list_metrics))
        .route_layer(middleware::from_fn_with_state(state.clone(), authorize));
    Router::new()
        .route("/", get(redirect_to_dashboard))
        .route("/playground", get(redirect_to_http))
        .route("/docs", get(redirect_to_http))
        .route("/healthz", get(|| async { text(StatusCode::OK, "ok\n") }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .merge(dashboard())
        .merge(guarded)
        .fallback(no_such_page)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::from_fn(require_host))
        .layer(middleware::map_response(harden))
        .with_state(state)
}

/// Readiness: fails while the server starts or drains, and while it lacks a config or a store that
/// it needs. Liveness (`/healthz`) succeeds whenever the server responds.
async fn ready(State(state): State<AdminState>) -> Response {
    match state.server_state.unready_reason() {
        None => text(StatusCode::OK, "ready\n"),
        Some(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

async fn metrics(State(state): State<AdminState>) -> Response {
    let page = background::run(move || metrics::page(&state)).await;
    let mut page = text(StatusCode::OK, page);
    let format = HeaderValue::from_static(PROMETHEUS_CONTENT_TYPE);
    page.headers_mut().insert(CONTENT_TYPE, format);
    page
}

/// `/rlconfig`: lists the limits of all policies, one per line, by the path of envoyproxy/ratelimit
/// or the name of the policy.
async fn list_limits(State(state): State<AdminState>) -> Response {
    let active = state.gate.active_policies();
    let mut page = String::new();
    for policy in active.policies() {
        let (shadow, quota) = (policy.mode() == Mode::Observe, policy.is_quota());
        let path = policy.envoy_details().map(|details| details.path());
        let name = path.as_deref().unwrap_or(policy.name());
        for limit in policy.limits() {
            // Writing to memory cannot fail.
            let _ = match Unit::of_limit(limit) {
                Some(unit) => write!(
                    page,
                    "{name}: unit={} requests_per_unit={}",
                    unit.message_name(),
                    limit.count()
                ),
                None => write!(page, "{name}: limit={limit}"),
            };
            let _ = writeln!(page, ", shadow_mode: {shadow}, quota_mode: {quota}");
        }
        if policy.limits().is_empty() {
            let _ = writeln!(page, "{name}: unlimited");
        }
    }
    text(StatusCode::OK, page)
}

/// `/stats`: lists the metrics, one per line.
async fn list_metrics(State(state): State<AdminState>) -> Response {
    let mut page = String::new();
    let metrics = background::run(move || metrics::page(&state)).await;
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        if let Some((name, value)) = line.rsplit_once(' ') {
            let _ = writeln!(page, "{name}: {value}");
        }
    }
    text(StatusCode::OK, page)
}

async fn authorize(State(state): State<AdminState>, request: Request, next: Next) -> Response {
    match state.access.authorize_operator(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(AuthError::MissingSecret) => {
            let detail = "authentication required: the secret is missing or wrong; send that of \
                          TIDEGATE_ADMIN_TOKEN as `Authorization: Bearer ...`";
            RequestError::new(ErrorKind::Unauthenticated, detail).into_response()
        }
        Err(AuthError::ForeignSite) => {
            let detail = "without TIDEGATE_ADMIN_TOKEN, only requests to localhost are accepted, and this \
                          request names another host or site: use localhost, or set the token and send it";
            RequestError::new(ErrorKind::Forbidden, detail).into_response()
        }
    }
}

/// Rejects query parameters other than `key` of a key's page. If they were ignored,
/// `events?policy=login` would look like a filter, and `DELETE .../keys/a?b` would reset the key
/// `a`.
async fn reject_unknown_parameters(request: Request, next: Next) -> Response {
    let takes_key = request.uri().path().starts_with("/admin/v1/policies/");
    let names = request.uri().query().unwrap_or_default().split('&');
    let mut names = names.filter_map(|pair| pair.split('=').next()).filter(|name| !name.is_empty());
    match names.find(|name| !takes_key || *name != "key") {
        None => next.run(request).await,
        Some(name) => {
            let known =
                if takes_key { "`key`, or percent-encode the key" } else { "no parameters" };
            unknown_parameter(name, known).into_response()
        }
    }
}

/// The error about a query parameter, whose name can be as long as the URL.
fn unknown_parameter(name: &str, known: &str) -> RequestError {
    let name: String = name.chars().take(64).collect();
    RequestError::field(name, format!("it is unknown: use {known}"))
}

/// Rejects requests without exactly one `Host` header, where HTTP requires one.
async fn require_host(request: Request, next: Next) -> Response {
    match host_error(&request) {
        None => next.run(request).await,
        Some(detail) => RequestError::invalid(detail).into_response(),
    }
}

async fn no_such_page(uri: Uri) -> RequestError {
    let detail = match uri.path() {
        path if path.starts_with("/v1/") => {
            "not found; checks are at the address of --http (default: 127.0.0.1:8080)".into()
        }
        path => {
            format!(
                "not found: {path:.200}; see /healthz, /readyz, /metrics, /dashboard and \
                 /admin/v1/policies"
            )
        }
    };
    RequestError::new(ErrorKind::NotFound, detail)
}

async fn no_such_method(uri: Uri) -> RequestError {
    let detail = match uri.path().contains("/keys") {
        true => "method not allowed here: use GET, or DELETE to reset the key",
        false => "method not allowed here: use GET",
    };
    RequestError::new(ErrorKind::MethodNotAllowed(None), detail)
}

/// Adds the security headers to every response.
async fn harden(mut response: Response) -> Response {
    web_pages::harden(response.headers_mut());
    response
}

const DASHBOARD: [Asset; 11] = [
    Asset { path: "/dashboard", kind: HTML, text: include_str!("assets/dashboard.html") },
    own_asset!("dashboard", "dashboard.css", CSS),
    own_asset!("dashboard", "dashboard.js", SCRIPT),
    own_asset!("dashboard", "api.js", SCRIPT),
    own_asset!("dashboard", "charts.js", SCRIPT),
    own_asset!("dashboard", "format.js", SCRIPT),
    own_asset!("dashboard", "intervals.js", SCRIPT),
    Asset { path: "/dashboard/uplot.css", kind: CSS, text: uplot::STYLE },
    Asset { path: "/dashboard/uplot.js", kind: SCRIPT, text: uplot::SCRIPT },
    Asset { path: "/dashboard/uplot.txt", kind: TEXT, text: uplot::LICENCE },
    Asset { path: "/dashboard/icon.svg", kind: SVG, text: ICON },
];

/// Creates the routes of the dashboard page and its files.
fn dashboard() -> Router<AdminState> {
    DASHBOARD.into_iter().fold(Router::new(), |router, Asset { path, kind, text }| {
        router.route(path, get(move || async move { with_type(StatusCode::OK, kind, text.into()) }))
    })
}

/// Redirects `/` to the dashboard.
async fn redirect_to_dashboard() -> Response {
    redirect("dashboard")
}

/// Redirects to the page with the same path on the HTTP front.
async fn redirect_to_http(
    State(state): State<AdminState>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    match state.server_state.page_links().http {
        Some(front) => redirect(&front.url(uri.path(), &uri, &headers)),
        None => {
            let detail = "the HTTP front is off, and this page with it";
            RequestError::new(ErrorKind::NotFound, detail).into_response()
        }
    }
}

fn redirect(url: &str) -> Response {
    let mut response = text(StatusCode::SEE_OTHER, format!("see {url}\n"));
    if let Ok(url) = HeaderValue::from_str(url) {
        response.headers_mut().insert(LOCATION, url);
    }
    response
}

/// Creates a plain-text response.
pub fn text(status: StatusCode, text: impl Into<Cow<'static, str>>) -> Response {
    with_type(status, "text/plain; charset=utf-8", text.into())
}

/// Creates a JSON response.
pub fn json(value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => with_type(StatusCode::OK, "application/json", text.into()),
        // Unreachable while the keys of all maps are strings.
        Err(error) => RequestError::new(ErrorKind::Internal, error.to_string()).into_response(),
    }
}

/// Creates a response with a content type.
pub fn with_type(status: StatusCode, kind: &'static str, text: Cow<'static, str>) -> Response {
    let mut response = Response::new(match text {
        Cow::Borrowed(text) => AxumBody::from(text),
        Cow::Owned(text) => AxumBody::from(text),
    });
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        self.to_response(AxumBody::from)
    }
}

/// Returns a header as text, if it is present and valid text.
pub fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The admin front: serves an axum router.
#[derive(Debug)]
pub struct AdminFront {
    router: Router,
    server_state: Arc<ServerState>,
}

impl AdminFront {
    /// Creates a front from a router. Handlers find the `SocketAddr` of the peer among the
    /// extensions of the request.
    pub fn new(router: Router, server_state: Arc<ServerState>) -> Self {
        AdminFront { router, server_state }
    }
}

impl Front for AdminFront {
    type Body = TrackedBody;

    async fn finish(
        self: Arc<Self>,
        call: FrontCall,
        _: Option<Bytes>,
    ) -> http::Response<TrackedBody> {
        let FrontCall { mut request, peer, in_flight } = call;
        request.extensions_mut().insert(peer);
        match self.router.clone().call(request).await {
            Ok(response) => response.map(|body| TrackedBody { body, _in_flight: in_flight }),
            Err(never) => match never {},
        }
    }

    fn record(&self, response: &http::Response<TrackedBody>) {
        self.server_state.count_response(FrontName::Admin, response.status());
    }
}

/// A response body that keeps its request in flight until it is dropped.
#[derive(Debug)]
pub struct TrackedBody {
    body: AxumBody,
    _in_flight: InFlight,
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
