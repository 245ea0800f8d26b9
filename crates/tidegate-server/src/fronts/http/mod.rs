//! The HTTP front: decodes requests, calls the gate and encodes responses.
//!
//! | path | file |
//! | --- | --- |
//! | `/v1/check`, `/v1/check/batch` | `check.rs`; the body is decoded by `json_body.rs` and converted by `check_request.rs`, the response is written by `check_response.rs` |
//! | `/v1/permits` | `permits.rs` |
//! | `/v1/forward-auth` | `forward_auth.rs`, and `original_request.rs`, the request that the gateway received |
//! | `/json` | `envoy_json.rs`: Envoy's rate limit service in JSON |
//! | `/healthcheck` | this file: the health check of envoyproxy/ratelimit |
//! | `/openapi.json` | `openapi.json`, sent by `response.rs` |
//! | `/`, `/docs`, `/dashboard` | `front_page.rs`: links to pages, and redirects |
//! | `/playground`, `/v1/playground` | `playground.rs` |
//!
//! Paths are matched by one `match`, because a general router takes longer to find its handler than
//! a decision takes. A check whose body has arrived and the request of a gateway are answered
//! before that, in the first poll of the request (`start`). A request that cannot be decided is a
//! [`RequestError`], sent as problem+json.

mod check;
mod check_request;
mod check_response;
mod envoy_json;
mod forward_auth;
mod front_page;
pub mod json_body;
mod original_request;
mod permits;
mod playground;
mod response;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::Context;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};
use tidegate::Algorithm;
use tidegate::unstable::gate::Gate;
use tidegate::unstable::headers::Forms;
use tokio::sync::Semaphore;

use self::permits::LocalPermits;
use self::response::{HttpBody, HttpResponse, RequestId, content};
use crate::authentication::{Access, AuthError};
use crate::envoy_ratelimit::{CheckSettings, EnvoyMetrics};
use crate::error::{ErrorKind, RequestError};
use crate::fronts::request_body;
use crate::fronts::{Front, FrontCall, Start, host_error};
use crate::logs::LogThrottle;
use crate::server_state::{FrontName, ServerState};

/// The path of the health check of envoyproxy/ratelimit.
const HEALTH: &str = "/healthcheck";

/// The HTTP front.
#[derive(Debug)]
pub struct HttpFront {
    gate: Arc<Gate>,
    server_state: Arc<ServerState>,
    forms: ArcSwap<Forms>,
    /// The algorithm of limits that are sent with a request of Envoy.
    algorithm: Algorithm,
    /// The contents of replies to Envoy with `--as-envoy-ratelimit`.
    envoy_ratelimit: Option<CheckSettings>,
    /// The metrics of envoyproxy/ratelimit.
    metrics: Option<Arc<EnvoyMetrics>>,
    access: Access,
    /// Limits how often rejected checks of gateways are logged.
    rejected_checks: LogThrottle,
    local_permits: LocalPermits,
    /// The number of checks that are waiting.
    waiting: AtomicUsize,
    /// Limits how many scenarios of the playground are decided concurrently.
    playground_slots: Arc<Semaphore>,
}

impl HttpFront {
    /// Creates a front over this gate. Responses carry header fields in `forms`. Only callers with
    /// `access` are accepted.
    pub fn new(
        gate: Arc<Gate>,
        server_state: Arc<ServerState>,
        forms: Forms,
        access: Access,
    ) -> Self {
        HttpFront {
            gate,
            server_state,
            forms: ArcSwap::from_pointee(forms),
            algorithm: Algorithm::default(),
            envoy_ratelimit: None,
            metrics: None,
            access,
            rejected_checks: LogThrottle::default(),
            local_permits: LocalPermits::default(),
            waiting: AtomicUsize::new(0),
            playground_slots: Arc::new(Semaphore::new(playground::MAX_CONCURRENT_SCENARIOS)),
        }
    }

    /// Sets the algorithm of limits that are sent with a request of Envoy.
    #[must_use]
    pub fn with_algorithm(self, algorithm: Algorithm) -> Self {
        HttpFront { algorithm, ..self }
    }

    /// Sets the contents of replies to Envoy in the form of envoyproxy/ratelimit.
    #[must_use]
    pub fn with_envoy_ratelimit(self, checks: Option<CheckSettings>) -> Self {
        HttpFront { envoy_ratelimit: checks, ..self }
    }

    /// Counts requests to `/json` in the metrics of envoyproxy/ratelimit.
    #[must_use]
    pub fn with_metrics(self, metrics: Option<Arc<EnvoyMetrics>>) -> Self {
        HttpFront { metrics, ..self }
    }

    /// Replaces the forms of header fields, for all later responses.
    pub fn set_forms(&self, forms: Forms) {
        self.forms.store(Arc::new(forms));
    }

    /// Releases permits whose lease has ended. Called periodically.
    pub fn sweep(&self) {
        self.local_permits.sweep();
    }

    /// Responds to all requests except those of gateways.
    async fn route(&self, request: Request<Incoming>) -> HttpResponse {
        let path = request.uri().path();
        if (path.starts_with("/v1/") || path == envoy_json::PATH)
            && let Err(error) = self.authorize(request.headers())
        {
            return reject_unread(request, &error).await;
        }
        let method = request.method();
        match path {
            "/v1/check" if method == Method::POST => self.check(request, None).await,
            "/v1/check" => reject_unread(request, &RequestError::method("POST")).await,
            "/v1/check/batch" if method == Method::POST => self.batch(request).await,
            "/v1/check/batch" => reject_unread(request, &RequestError::method("POST")).await,
            "/v1/permits" if method == Method::POST => self.acquire_permit(request).await,
            "/v1/permits" => reject_unread(request, &RequestError::method("POST")).await,
            envoy_json::PATH if method == Method::POST || self.envoy_ratelimit.is_some() => {
                self.should_rate_limit(request).await
            }
            envoy_json::PATH => reject_unread(request, &RequestError::method("POST")).await,
            HEALTH if matches!(*method, Method::GET | Method::HEAD) => self.health(),
            HEALTH => reject_unread(request, &RequestError::method("GET, HEAD")).await,
            playground::ENDPOINT if method == Method::POST => self.play(request).await,
            playground::ENDPOINT => reject_unread(request, &RequestError::method("POST")).await,
            path => match path.strip_prefix("/v1/permits/") {
                Some(id) if *method == Method::PUT => {
                    let id = id.to_owned();
                    self.renew_permit(request, &id).await
                }
                Some(id) if *method == Method::DELETE => {
                    self.release_permit(request.headers(), id).await
                }
                Some(_) => reject_unread(request, &RequestError::method("PUT, DELETE")).await,
                None => self.page(request).await,
            },
        }
    }

    /// The health check, with the responses of envoyproxy/ratelimit.
    fn health(&self) -> HttpResponse {
        let (status, text) = match self.server_state.unready_reason() {
            None => (StatusCode::OK, "OK"),
            Some(reason) => (StatusCode::INTERNAL_SERVER_ERROR, reason),
        };
        let mut response = Response::new(content(text));
        *response.status_mut() = status;
        let plain = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, plain);
        response
    }

    /// Responds to paths that are not part of the API: the OpenAPI description and the pages.
    async fn page(&self, request: Request<Incoming>) -> HttpResponse {
        let (uri, headers) = (request.uri(), request.headers());
        let has_dashboard = self.server_state.page_links().admin.is_some();
        let page = match uri.path() {
            "/" => Some(front_page::page(headers, has_dashboard)),
            "/openapi.json" => Some(response::openapi()),
            "/docs" => Some(front_page::docs(headers, has_dashboard)),
            "/dashboard" => {
                let admin = self.server_state.page_links().admin;
                admin.map(|front| front_page::redirect(&front.url("/dashboard", uri, headers)))
            }
            path => playground::asset(path).map(playground::file),
        };
        match page {
            Some(page) if matches!(*request.method(), Method::GET | Method::HEAD) => page,
            Some(_) => reject_unread(request, &RequestError::method("GET, HEAD")).await,
            None => {
                let error = not_found(uri.path());
                reject_unread(request, &error).await
            }
        }
    }

    /// Checks whether a caller with these headers is accepted.
    fn authorize(&self, headers: &HeaderMap) -> Result<(), RequestError> {
        self.access.authorize(headers).map_err(auth_error)
    }
}

impl Front for HttpFront {
    type Body = HttpBody;

    /// Responds to a check whose body has arrived and to the request of a gateway, unless the store
    /// is shared.
    fn start(&self, call: &mut FrontCall, context: &mut Context<'_>) -> Start<HttpBody> {
        if host_error(&call.request).is_some() {
            return Start::Later(None);
        }
        let mut first_chunk = None;
        if is_check(&call.request) {
            match call.first_chunk(context) {
                Ok(chunk) => first_chunk = chunk,
                Err(broken) => {
                    let headers = call.request.headers();
                    // A caller without access must not learn anything about its body.
                    let error = self.authorize(headers).err().unwrap_or(broken);
                    return Start::Ready(error.respond(&RequestId::of(headers)));
                }
            }
        }
        let request = &call.request;
        let response = match &first_chunk {
            _ if self.gate.is_shared() => None,
            Some(body) if request.body().is_end_stream() => {
                self.check_in_place(request.headers(), body)
            }
            Some(_) => None,
            None => self.forward_auth(request, call.peer),
        };
        response.map_or(Start::Later(first_chunk), Start::Ready)
    }

    async fn finish(self: Arc<Self>, call: FrontCall, first_chunk: Option<Bytes>) -> HttpResponse {
        let FrontCall { request, peer, in_flight: _in_flight } = call;
        if let Some(detail) = host_error(&request) {
            return reject_unread(request, &RequestError::invalid(detail)).await;
        }
        if first_chunk.is_some() {
            return self.check(request, first_chunk).await;
        }
        if self.gate.is_shared()
            && let Some(response) = self.forward_auth_shared(&request, peer).await
        {
            return response;
        }
        self.route(request).await
    }

    fn record(&self, response: &HttpResponse) {
        self.server_state.count_response(FrontName::Http, response.status());
    }
}

fn is_check(request: &Request<Incoming>) -> bool {
    request.uri().path() == "/v1/check" && request.method() == Method::POST
}

fn not_found(path: &str) -> RequestError {
    let is_admin =
        ["/metrics", "/healthz", "/readyz"].contains(&path) || path.starts_with("/admin/");
    let detail = match is_admin {
        true => {
            "not found; metrics, health and the admin API are at the address of --admin \
             (default: 127.0.0.1:9090), or of DEBUG_PORT with --as-envoy-ratelimit"
        }
        false => "not found; see / for the pages and /openapi.json for the API",
    };
    RequestError::new(ErrorKind::NotFound, detail)
}

fn auth_error(why: AuthError) -> RequestError {
    why.error("`Authorization: Bearer ...`", "`Origin`")
}

/// Rejects a request whose body was not read.
async fn reject_unread(request: Request<Incoming>, error: &RequestError) -> HttpResponse {
    let (head, body) = request.into_parts();
    request_body::discard(head.version, body).await;
    error.respond(&RequestId::of(&head.headers))
}

/// Reads the body of a request, which must be JSON. `first` is the part that was already read.
async fn read_json(
    head: &Parts,
    body: Incoming,
    first: Option<Bytes>,
    max_bytes: usize,
) -> Result<Bytes, RequestError> {
    if let Err(error) = json_only(&head.headers) {
        request_body::discard(head.version, body).await;
        return Err(error);
    }
    request_body::collect(body, first, max_bytes).await
}

/// Rejects bodies whose content type is not JSON. A body without a content type is accepted, and so
/// is a form, which is the default of `curl -d`. A form with an `Origin` is rejected: browsers let
/// a web page send one to another site without a CORS preflight, but they add the `Origin` of the
/// page.
fn json_only(headers: &HeaderMap) -> Result<(), RequestError> {
    let Some(kind) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let kind = kind.as_bytes();
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or(kind).trim_ascii();
    let is_form = kind.eq_ignore_ascii_case(b"application/x-www-form-urlencoded");
    if kind.eq_ignore_ascii_case(b"application/json") || is_form && !headers.contains_key(ORIGIN) {
        return Ok(());
    }
    let detail = "unsupported content type: send `content-type: application/json`";
    Err(RequestError::new(ErrorKind::Unsupported, detail))
}
