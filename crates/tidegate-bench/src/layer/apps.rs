//! The apps: one empty handler behind each measured layer.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response};
use axum::routing::get;
use tidegate::Limiter;
use tidegate::tower::{RateLimitLayer, Rule};
use tidegate::unstable::headers::Forms;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_layer::Identity;
use tower_service::Service;

/// An app under measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Bare,
    /// tower's `Identity`: the cost of any layer in axum.
    Nothing,
    OneRule,
    OneRuleXHeaders,
    TwoRules,
    Governor,
}

impl Subject {
    pub const ALL: [Subject; 6] = [
        Subject::Bare,
        Subject::Nothing,
        Subject::OneRule,
        Subject::OneRuleXHeaders,
        Subject::TwoRules,
        Subject::Governor,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Subject::Bare => "axum alone",
            Subject::Nothing => "a layer that does nothing",
            Subject::OneRule => "tidegate, draft-10 fields",
            Subject::OneRuleXHeaders => "tidegate, x-ratelimit fields",
            Subject::TwoRules => "tidegate, 2 rules of 2 limits, draft-10",
            Subject::Governor => "tower_governor, its fields",
        }
    }

    /// The rate limit header fields of its responses. Checking them ensures that no subject does
    /// less work than its name says.
    pub const fn fields(self) -> &'static [&'static str] {
        match self {
            Subject::Bare | Subject::Nothing => &[],
            Subject::OneRule | Subject::TwoRules => &["ratelimit", "ratelimit-policy"],
            Subject::OneRuleXHeaders => {
                &["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]
            }
            Subject::Governor => &["x-ratelimit-limit", "x-ratelimit-remaining"],
        }
    }
}

/// An app and a function that returns the number of clients it tracks, if it tracks any.
pub struct App {
    router: Router,
    tracked_clients: Box<dyn Fn() -> Option<u64>>,
}

/// Higher than the number of requests of a run, so that all are admitted, in windows short enough
/// that several pass while a process runs.
const LIMITS: [&str; 2] = ["1000000 per 1s sliding-window", "2000000 per 2s sliding-window"];

/// Time before requests are timed: longer than either window.
pub const AGEING_TIME: Duration = Duration::from_millis(2_500);

impl App {
    pub fn new(subject: Subject) -> Self {
        let App { router, tracked_clients } = App::without_state(subject);
        // `into_make_service` does the same. Without it axum would apply the layers to every
        // request.
        App { router: router.with_state(()), tracked_clients }
    }

    fn without_state(subject: Subject) -> Self {
        let router = Router::new().route("/", get(|| async {}));
        match subject {
            Subject::Bare => App { router, tracked_clients: Box::new(|| None) },
            Subject::Nothing => {
                App { router: router.layer(Identity::new()), tracked_clients: Box::new(|| None) }
            }
            Subject::OneRule => tidegate_app(router, "draft-10", 1),
            Subject::OneRuleXHeaders => tidegate_app(router, "x-ratelimit", 1),
            Subject::TwoRules => tidegate_app(router, "draft-10", 2),
            Subject::Governor => {
                let config = GovernorConfigBuilder::default()
                    .per_nanosecond(1)
                    .burst_size(1_000_000_000)
                    .use_headers()
                    .finish()
                    .map(Arc::new)
                    .expect("a quota");
                let router = router.layer(GovernorLayer::new(Arc::clone(&config)));
                App {
                    router,
                    tracked_clients: Box::new(move || Some(config.limiter().len() as u64)),
                }
            }
        }
    }

    /// Returns the response. The future is ready on its first poll.
    #[inline]
    pub fn call(&mut self, request: Request<Body>) -> Response<Body> {
        let mut answering = pin!(self.router.call(request));
        match answering.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(response)) => response,
            Poll::Ready(Err(never)) => match never {},
            Poll::Pending => panic!("a handler that does nothing waits for nothing"),
        }
    }

    /// Returns the number of clients it tracks.
    pub fn tracked_clients(&self) -> Option<u64> {
        (self.tracked_clients)()
    }
}

/// Builds an app with one rule of one limit or two rules of two limits, by client address.
fn tidegate_app(router: Router, forms: &str, rule_count: usize) -> App {
    let limiter = Limiter::new();
    let forms: Forms = forms.parse().expect("forms");
    let mut builder = RateLimitLayer::builder().limiter(limiter.clone()).headers(forms);
    for number in 0..rule_count {
        let limits = LIMITS[..rule_count].iter().map(|text| text.parse().expect("a limit"));
        builder = builder.rule(Rule::new(format!("rule-{number}"), limits.collect::<Vec<_>>()));
    }
    let per_client = (rule_count * rule_count) as u64;
    let router = router.layer(builder.build().expect("a layer").for_axum());
    App {
        router,
        tracked_clients: Box::new(move || Some(limiter.stats().tracked_keys / per_client)),
    }
}

/// Builds a request of the client with this number, as a server passes it to the app.
pub fn request(client: u32) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    let [a, b, c, _] = client.to_le_bytes();
    let address = SocketAddr::from(([10, c, b, a], 40_000));
    request.extensions_mut().insert(ConnectInfo(address));
    request
}
