//! `/admin/v1/history`: the requests of the last minutes, so that the charts of the dashboard begin
//! before the page was opened.
//!
//! A background thread samples the counters once per second, which takes milliseconds if there are
//! thousands of policies. A sample holds differences, not totals: only the policies that had
//! requests take space, and a policy that joins or leaves a sample does not look like a jump. Times
//! are on the monotonic clock, so a step of the wall clock does not affect them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use tidegate::unstable::gate::Gate;
use tidegate::unstable::stats::{LatencyCounts, OTHER, Outcome, Stats};
use tracing::warn;

use super::json;
use super::stats_api::RequestsView;
use super::{AdminState, ServerState};
use crate::background;

/// The interval between samples.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// The number of samples kept: five minutes, the time that the charts show.
const MAX_SAMPLES: usize = 300;

/// The number of policies per sample. The charts show the busiest six. Requests of further policies
/// are added up under [`OTHER`], so all samples take at most 400 KB.
const MAX_POLICIES: usize = 32;

/// Requests by outcome, in the order of [`Outcome::ALL`].
type Outcomes = [u64; Outcome::ALL.len()];

/// The samples of the last minutes.
#[derive(Debug, Default)]
pub struct History {
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    samples: VecDeque<Sample>,
    /// The totals at the end of the last sample, of policies that had requests.
    uptime: Duration,
    requests: BTreeMap<Arc<str>, Outcomes>,
    latency: LatencyCounts,
}

/// The requests and decisions of an interval.
#[derive(Debug)]
struct Sample {
    /// The end of the interval, as the time since the start of the server.
    uptime: Duration,
    length: Duration,
    requests: Vec<(Arc<str>, Outcomes)>,
    /// The timed decisions, by bucket.
    latency: Vec<u64>,
    /// The keys in memory at the end of the interval.
    tracked_keys: u64,
}

impl History {
    /// Starts to sample the statistics of a gate, until the gate is dropped.
    pub fn start(gate: &Arc<Gate>, server_state: &Arc<ServerState>) -> Arc<Self> {
        let history = Arc::new(History::default());
        let (sampled, server_state) = (Arc::clone(&history), Arc::clone(server_state));
        let gate = Arc::downgrade(gate);
        let sampling = background::spawn("history", move || {
            while let Some(gate) = gate.upgrade() {
                let tracked_keys = gate.limiter().stats().tracked_keys;
                sampled.sample(gate.stats(), tracked_keys, server_state.uptime());
                drop(gate);
                std::thread::sleep(SAMPLE_EVERY);
            }
        });
        if let Err(error) = sampling {
            warn!(%error, "the charts of the dashboard begin when it is opened");
        }
        history
    }

    /// Adds a sample of everything since the last one.
    fn sample(&self, stats: &Stats, tracked_keys: u64, uptime: Duration) {
        let requests = stats.requests().into_iter().map(|one| (one.policy, one.outcomes));
        let requests: BTreeMap<_, _> =
            requests.filter(|(_, outcomes)| *outcomes != Outcomes::default()).collect();
        let latency = stats.latency();
        let mut ring = self.ring();
        let length = uptime.saturating_sub(ring.uptime);
        let sample = Sample {
            uptime,
            length,
            requests: busiest(&differences(&requests, &ring.requests)),
            latency: subtract(latency.buckets, ring.latency.buckets).into(),
            tracked_keys,
        };
        (ring.uptime, ring.requests, ring.latency) = (uptime, requests, latency);
        if ring.samples.len() == MAX_SAMPLES {
            ring.samples.pop_front();
        }
        ring.samples.push_back(sample);
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The policies whose counts increased, and by how much. The counts of a policy decrease only when
/// they move to [`OTHER`], where they are older than this interval.
fn differences(
    now: &BTreeMap<Arc<str>, Outcomes>,
    before: &BTreeMap<Arc<str>, Outcomes>,
) -> Vec<(Arc<str>, Outcomes)> {
    let is_moved = before.keys().any(|policy| !now.contains_key(policy));
    let increase = |(policy, counts): (&Arc<str>, &Outcomes)| {
        if is_moved && **policy == *OTHER {
            return None;
        }
        let new = subtract(*counts, before.get(policy).copied().unwrap_or_default());
        (new != Outcomes::default()).then(|| (Arc::clone(policy), new))
    };
    now.iter().filter_map(increase).collect()
}

fn subtract<const N: usize>(now: [u64; N], before: [u64; N]) -> [u64; N] {
    std::array::from_fn(|index| now[index].saturating_sub(before[index]))
}

/// The busiest policies, and the sum of the others.
fn busiest(requests: &[(Arc<str>, Outcomes)]) -> Vec<(Arc<str>, Outcomes)> {
    let mut requests = requests.to_vec();
    if requests.len() <= MAX_POLICIES {
        return requests;
    }
    requests.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.iter().sum::<u64>()));
    let rest = requests.split_off(MAX_POLICIES - 1);
    let mut sum = Outcomes::default();
    for (_, counts) in rest {
        sum = std::array::from_fn(|index| sum[index] + counts[index]);
    }
    requests.push((OTHER.into(), sum));
    requests
}

/// Returns the samples, oldest first.
pub async fn history(State(state): State<AdminState>) -> Response {
    let ring = state.history.ring();
    json(&HistoryView {
        samples: ring.samples.iter().map(SampleView::new).collect(),
        totals: TotalsView {
            uptime_seconds: ring.uptime.as_secs_f64(),
            requests: views(&ring.requests),
            latency: TimedView { counts: &ring.latency.buckets },
        },
    })
}

fn views<'a>(
    requests: impl IntoIterator<Item = (&'a Arc<str>, &'a Outcomes)>,
) -> Vec<RequestsView<'a>> {
    requests.into_iter().map(|(policy, counts)| RequestsView::new(policy, *counts)).collect()
}

#[derive(Serialize)]
struct HistoryView<'a> {
    samples: Vec<SampleView<'a>>,
    totals: TotalsView<'a>,
}

/// The counts at the end of the last sample, from which a client continues with `/admin/v1/stats`.
/// The fields are those of that page.
#[derive(Serialize)]
struct TotalsView<'a> {
    uptime_seconds: f64,
    requests: Vec<RequestsView<'a>>,
    latency: TimedView<'a>,
}

#[derive(Serialize)]
struct TimedView<'a> {
    counts: &'a [u64],
}

#[derive(Serialize)]
struct SampleView<'a> {
    /// The end of the interval, in seconds since the start of the server.
    uptime_seconds: f64,
    length_seconds: f64,
    requests: Vec<RequestsView<'a>>,
    /// The timed decisions, by bucket of `latency.bounds_seconds` in `/admin/v1/stats`.
    latency: &'a [u64],
    /// The keys in memory at the end of the interval, one per key and limit.
    tracked_keys: u64,
}

impl<'a> SampleView<'a> {
    fn new(sample: &'a Sample) -> Self {
        let requests = sample.requests.iter().map(|(policy, counts)| (policy, counts));
        SampleView {
            uptime_seconds: sample.uptime.as_secs_f64(),
            length_seconds: sample.length.as_secs_f64(),
            requests: views(requests),
            latency: &sample.latency,
            tracked_keys: sample.tracked_keys,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::Limit;
    use tidegate::unstable::policy::Mode;
    use tidegate::unstable::stats::{Decided, LimitRecord, RequestRecord};

    fn allow(stats: &Stats, policy: &str, times: usize) {
        let limit: Limit = "10 per 1s".parse().expect("a limit");
        let counters = stats.limit(policy, &limit, Mode::Enforce);
        let limits = [LimitRecord {
            stats: &counters,
            limit: &limit,
            key: b"k",
            allowed: true,
            remaining: Some(9),
            retry_after: tidegate::RetryAfter::Now,
            decided: Decided::Exact,
        }];
        for _ in 0..times {
            let record = RequestRecord { limits: &limits, allowed: true, ..Default::default() };
            stats.record(&record);
        }
    }

    fn last(history: &History) -> (Duration, Vec<(String, Outcomes)>) {
        let ring = history.ring();
        let sample = ring.samples.back().expect("a sample");
        let requests = sample.requests.iter().map(|(name, counts)| (name.to_string(), *counts));
        (sample.length, requests.collect())
    }

    #[test]
    fn sample_holds_the_requests_since_the_last_one() {
        let (history, stats) = (History::default(), Stats::default());
        allow(&stats, "api", 3);
        history.sample(&stats, 0, Duration::from_secs(1));
        assert_eq!(last(&history), (Duration::from_secs(1), vec![("api".into(), [3, 0, 0])]));
        history.sample(&stats, 0, Duration::from_secs(2));
        assert_eq!(last(&history), (Duration::from_secs(1), vec![]));
        allow(&stats, "api", 2);
        allow(&stats, "login", 1);
        history.sample(&stats, 0, Duration::from_millis(4_500));
        let requests = vec![("api".into(), [2, 0, 0]), ("login".into(), [1, 0, 0])];
        assert_eq!(last(&history), (Duration::from_millis(2_500), requests));
    }

    #[test]
    fn samples_and_policies_are_bounded() {
        let (history, stats) = (History::default(), Stats::default());
        for second in 0..2 * MAX_SAMPLES as u64 {
            history.sample(&stats, 0, Duration::from_secs(second));
        }
        assert_eq!(history.ring().samples.len(), MAX_SAMPLES);
        for number in 0..3 * MAX_POLICIES {
            allow(&stats, &format!("policy-{number:02}"), number + 1);
        }
        history.sample(&stats, 0, Duration::from_secs(1_000));
        let (_, requests) = last(&history);
        assert_eq!(requests.len(), MAX_POLICIES);
        assert_eq!(requests[0], ("policy-95".into(), [96, 0, 0]));
        let total: u64 = requests.iter().map(|(_, counts)| counts[0]).sum();
        assert_eq!(total, 96 * 97 / 2, "none is lost");
        assert_eq!(requests.last().map(|(name, _)| &**name), Some(OTHER));
    }
}
