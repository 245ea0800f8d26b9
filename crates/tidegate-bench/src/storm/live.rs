//! The storm over HTTP, with the server as a process, reqwest and the retry middleware.
//!
//! Every client has separate connections and a separate middleware, as if it were a separate
//! program. Requests are counted behind the middleware. Clients call forward-auth, whose 200 and
//! 429 with header fields are like the answers of an API behind a gateway.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::Extensions;
use reqwest::{Request, Response, StatusCode};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use tidegate_client::{Backoff, Retry, RetryRules};

use super::Outcome;
use super::client::RetryStrategy;
use super::scenario::{STORM, StormCounts, TOTAL_WINDOWS, WARM_UP_WINDOWS};
use crate::BoxError;
use crate::cli::StormArgs;
use crate::http::{LIMITS, LOOSE_LIMITS, Program, Server, build_tidegate, config, temp_directory};

/// Runs every strategy on a separate server.
pub fn run(strategies: &[RetryStrategy], args: &StormArgs) -> io::Result<Vec<Outcome>> {
    let directory = temp_directory()?;
    let file = directory.path().join("storm.yaml");
    let limit = format!("{} per {}s {}", STORM.limit, STORM.window.as_secs(), STORM.algorithm);
    let policy = format!(
        "  - name: storm\n    match: {{ path: /storm }}\n    key: \"{{path}}\"\n    \
         limits: [\"{limit}\"]\n"
    );
    // The other policies are needed by the request that checks whether a server is ready.
    std::fs::write(&file, config(&LOOSE_LIMITS[..1], LIMITS.tight) + &policy)?;
    let program = match &args.tidegate {
        Some(path) => path.clone(),
        None => build_tidegate()?,
    };
    let program = Program::Tidegate { program, config: file };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut outcomes = Vec::new();
    for strategy in strategies {
        let server = Server::start(&program, None, directory.path())?;
        let url = format!("http://{}/v1/forward-auth/storm", server.address);
        let counts = runtime.block_on(run_strategy(
            *strategy,
            &url,
            Duration::from_secs(args.seconds.into()),
        ));
        let counts = counts.map_err(|error| server.error_with_log(&error.to_string()))?;
        outcomes.push(Outcome { scenario: STORM.name.to_owned(), strategy: *strategy, counts });
    }
    Ok(outcomes)
}

async fn run_strategy(
    strategy: RetryStrategy,
    url: &str,
    lasts: Duration,
) -> Result<StormCounts, BoxError> {
    let start = Instant::now();
    let interval = CountedInterval {
        from: start + lasts * WARM_UP_WINDOWS / TOTAL_WINDOWS,
        until: start + lasts,
    };
    let mut tasks = tokio::task::JoinSet::new();
    let mut counters = Vec::new();
    for _ in 0..STORM.clients {
        let counter = RequestCounter { interval, sent: Arc::default(), admitted: Arc::default() };
        let client = client(strategy, counter.clone());
        counters.push(counter);
        let (url, until) = (url.to_owned(), interval.until);
        tasks.spawn(async move {
            // A client runs until the time is up. If it returns earlier, it has failed.
            tokio::time::timeout_at(until.into(), send_in_loop(strategy, client, &url)).await
        });
    }
    while let Some(ended) = tasks.join_next().await {
        if let Ok(Err(error)) = ended? {
            return Err(error);
        }
    }
    let sent = counters.iter().map(|counter| counter.sent.load(Ordering::Relaxed)).sum();
    let successes =
        counters.iter().map(|counter| counter.admitted.load(Ordering::Relaxed)).collect();
    let windows = (interval.until - interval.from).as_secs_f64() / STORM.window.as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let capacity = STORM.limit as f64 * windows;
    Ok(StormCounts { sent, successes, capacity })
}

/// Sends requests in a loop and returns only when an answer is neither 200 nor 429.
async fn send_in_loop(
    strategy: RetryStrategy,
    client: ClientWithMiddleware,
    url: &str,
) -> Result<(), BoxError> {
    let mut failures = 0_u32;
    loop {
        let response = client.get(url).send().await?;
        let allowed = match response.status() {
            StatusCode::OK => true,
            StatusCode::TOO_MANY_REQUESTS => false,
            other => return Err(format!("forward-auth answered {other}").into()),
        };
        // The body is read to the end, so that the connection is reused.
        response.bytes().await?;
        failures = if allowed { 0 } else { failures.saturating_add(1) };
        if strategy == RetryStrategy::FullJitter && failures > 0 {
            let jitter = Backoff::default().jitter(failures - 1, fastrand::f64());
            tokio::time::sleep(jitter).await;
        }
    }
}

fn client(strategy: RetryStrategy, counter: RequestCounter) -> ClientWithMiddleware {
    let client = ClientBuilder::new(reqwest::Client::new());
    let client = match strategy {
        RetryStrategy::Naive | RetryStrategy::FullJitter => client,
        RetryStrategy::Backoff => client.with(Retry::new(RetryRules::default().unpaced())),
        RetryStrategy::Helper => client.with(Retry::default()),
    };
    client.with(counter).build()
}

/// The interval in which requests are counted.
#[derive(Clone, Copy)]
struct CountedInterval {
    from: Instant,
    until: Instant,
}

/// Counts the requests and successes of one client, including retries.
#[derive(Clone)]
struct RequestCounter {
    interval: CountedInterval,
    sent: Arc<AtomicU64>,
    admitted: Arc<AtomicU64>,
}

#[async_trait::async_trait]
impl Middleware for RequestCounter {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        let is_counted = (self.interval.from..self.interval.until).contains(&Instant::now());
        let response = next.run(request, extensions).await?;
        if is_counted {
            self.sent.fetch_add(1, Ordering::Relaxed);
            let admitted = u64::from(response.status() == StatusCode::OK);
            self.admitted.fetch_add(admitted, Ordering::Relaxed);
        }
        Ok(response)
    }
}
