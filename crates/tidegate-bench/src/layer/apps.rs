//! The apps: one handler that does nothing, behind every layer that is measured.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response};
use axum::routing::get;
use tidegate::Limiter;
use tidegate::headers::Forms;
use tidegate::tower::{RateLimitLayer, Rule};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_layer::Identity;
use tower_service::Service;

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Bare,
    /// tower's `Identity`: what any layer costs in axum.
    Nothing,
    Tidegate,
    TidegateHeaders,
    TidegateXHeaders,
    TidegateFourLimits,
    Governor,
    GovernorHeaders,
}

impl Subject {
    pub const ALL: [Subject; 8] = [
        Subject::Bare,
        Subject::Nothing,
        Subject::Tidegate,
        Subject::TidegateHeaders,
        Subject::TidegateXHeaders,
        Subject::TidegateFourLimits,
        Subject::Governor,
        Subject::GovernorHeaders,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Subject::Bare => "axum alone",
            Subject::Nothing => "a layer that does nothing",
            Subject::Tidegate => "tidegate, no fields",
            Subject::TidegateHeaders => "tidegate, draft-10 fields",
            Subject::TidegateXHeaders => "tidegate, x-ratelimit fields",
            Subject::TidegateFourLimits => "tidegate, 2 rules of 2 limits, draft-10",
            Subject::Governor => "tower_governor, no fields",
            Subject::GovernorHeaders => "tower_governor, its fields",
        }
    }

    /// The fields its responses have, so that nobody is measured for less than is claimed.
    pub const fn fields(self) -> &'static [&'static str] {
        match self {
            Subject::Bare | Subject::Nothing | Subject::Tidegate | Subject::Governor => &[],
            Subject::TidegateHeaders | Subject::TidegateFourLimits => {
                &["ratelimit", "ratelimit-policy"]
            }
            Subject::TidegateXHeaders => {
                &["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]
            }
            Subject::GovernorHeaders => &["x-ratelimit-limit", "x-ratelimit-remaining"],
        }
    }
}

/// An app, and how many clients it has counted, if it counts any.
pub struct App {
    router: Router,
    counted: Box<dyn Fn() -> Option<u64>>,
}

/// More than any run asks for, so that all are admitted; the number that `inprocess` has.
const PLENTY: &str = "1000000 per 1h";

impl App {
    pub fn new(subject: Subject) -> Self {
        let App { router, counted } = App::unserved(subject);
        // As `into_make_service` does: else axum would put the layers on anew for every request.
        App { router: router.with_state(()), counted }
    }

    fn unserved(subject: Subject) -> Self {
        let router = Router::new().route("/", get(|| async {}));
        match subject {
            Subject::Bare => App { router, counted: Box::new(|| None) },
            Subject::Nothing => {
                App { router: router.layer(Identity::new()), counted: Box::new(|| None) }
            }
            Subject::Tidegate => ours(router, "none", 1),
            Subject::TidegateHeaders => ours(router, "draft-10", 1),
            Subject::TidegateXHeaders => ours(router, "x-ratelimit", 1),
            Subject::TidegateFourLimits => ours(router, "draft-10", 2),
            Subject::Governor => {
                let config = GovernorConfigBuilder::default()
                    .per_nanosecond(1)
                    .burst_size(1_000_000_000)
                    .finish()
                    .map(Arc::new)
                    .expect("a quota");
                let router = router.layer(GovernorLayer::new(Arc::clone(&config)));
                App { router, counted: Box::new(move || Some(config.limiter().len() as u64)) }
            }
            Subject::GovernorHeaders => {
                let config = GovernorConfigBuilder::default()
                    .per_nanosecond(1)
                    .burst_size(1_000_000_000)
                    .use_headers()
                    .finish()
                    .map(Arc::new)
                    .expect("a quota");
                let router = router.layer(GovernorLayer::new(Arc::clone(&config)));
                App { router, counted: Box::new(move || Some(config.limiter().len() as u64)) }
            }
        }
    }

    /// The answer, which is there at once.
    #[inline]
    pub fn call(&mut self, request: Request<Body>) -> Response<Body> {
        let mut answering = pin!(self.router.call(request));
        match answering.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(response)) => response,
            Poll::Ready(Err(never)) => match never {},
            Poll::Pending => panic!("a handler that does nothing waits for nothing"),
        }
    }

    /// How many clients it has counted.
    pub fn counted(&self) -> Option<u64> {
        (self.counted)()
    }
}

/// Rules by address: one of one limit, or two of two.
fn ours(router: Router, forms: &str, rules: usize) -> App {
    let limiter = Limiter::new();
    let forms: Forms = forms.parse().expect("forms");
    let mut builder = RateLimitLayer::builder().limiter(limiter.clone()).headers(forms);
    for number in 0..rules {
        let texts = if rules == 1 { vec![PLENTY] } else { vec![PLENTY, "1000000 per 1d"] };
        let limits: Vec<_> = texts.into_iter().map(|text| text.parse().expect("a limit")).collect();
        builder = builder.rule(Rule::new(format!("rule-{number}"), limits));
    }
    let per_client = if rules == 1 { 1 } else { 4 };
    let router = router.layer(builder.build().expect("a layer").for_axum());
    App { router, counted: Box::new(move || Some(limiter.stats().tracked_keys / per_client)) }
}

/// A request of the client of this number, as a server hands it on.
pub fn request(client: u32) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    let [a, b, c, _] = client.to_le_bytes();
    let address = SocketAddr::from(([10, c, b, a], 40_000));
    request.extensions_mut().insert(ConnectInfo(address));
    request
}
