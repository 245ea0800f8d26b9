//! Kinds of traffic: when clients send requests, and how they react to denials.
//!
//! All traffic comes from a number of clients. A client sends a request, receives the outcome and
//! then computes the time of its next request. Most clients ignore the outcome. Those of the retry
//! storms do not, so their requests depend on the algorithm, and each algorithm gets a separate
//! storm.
//!
//! Traffic is scaled to the limit: a client sends `load` times the limit in each window. So the
//! same traffic is equally hard for every limit.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;

use tidegate::RetryAfter;

use super::rng::{Rng, whole};
use crate::block::Block;
use crate::format::Event;
use crate::report::counted;

/// The start of simulations, 2023-11-14 22:13:20 UTC. The time has no meaning.
pub const START_US: u64 = 1_700_000_000_000_000;

/// The kinds of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    Poisson,
    Bursts,
    Boundary,
    Diurnal,
    RetryStorm,
    RetryStormJitter,
    Zipf,
    HotTenant,
    /// A client at a steady pace, with gaps of 70 to 130 percent of the mean. Only for
    /// `--accuracy`.
    Steady,
}

impl Traffic {
    /// All kinds that `--traffic` accepts.
    pub const ALL: [Traffic; 8] = [
        Traffic::Poisson,
        Traffic::Bursts,
        Traffic::Boundary,
        Traffic::Diurnal,
        Traffic::RetryStorm,
        Traffic::RetryStormJitter,
        Traffic::Zipf,
        Traffic::HotTenant,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Traffic::Poisson => "poisson",
            Traffic::Bursts => "bursts",
            Traffic::Boundary => "boundary",
            Traffic::Diurnal => "diurnal",
            Traffic::RetryStorm => "retry-storm",
            Traffic::RetryStormJitter => "retry-storm-jitter",
            Traffic::Zipf => "zipf",
            Traffic::HotTenant => "hot-tenant",
            Traffic::Steady => "steady",
        }
    }

    /// Returns whether clients react to outcomes.
    pub const fn reacts_to_answers(self) -> bool {
        matches!(self, Traffic::RetryStorm | Traffic::RetryStormJitter)
    }

    /// Returns the default number of clients.
    pub const fn usual_clients(self) -> u32 {
        match self {
            Traffic::Boundary => 20,
            Traffic::RetryStorm | Traffic::RetryStormJitter => 200,
            Traffic::Zipf => 10_000,
            Traffic::HotTenant => 500,
            _ => 100,
        }
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The parameters of the traffic.
#[derive(Clone, Copy, Debug)]
pub struct TrafficSpec {
    pub traffic: Traffic,
    pub clients: u32,
    /// The requests of a client per window, as a multiple of the limit.
    pub load: f64,
    pub windows: u32,
    pub limit: u64,
    pub window_us: u64,
    /// Clients begin at times spread evenly over this duration. With 0 all begin at the start,
    /// which is the start of a window.
    pub spread_us: u64,
    pub seed: u64,
}

impl TrafficSpec {
    /// Estimates the number of requests. Retry storms send about as many again.
    pub fn requests(&self) -> f64 {
        let each = float(self.limit).max(1.0) * self.load * f64::from(self.windows);
        match self.traffic {
            Traffic::Boundary => {
                float(self.limit).max(1.0) * 3.0 * f64::from(self.windows) * f64::from(self.clients)
            }
            Traffic::Zipf => each * 10.0 * (libm::log(f64::from(self.clients)) + 1.0),
            Traffic::HotTenant => each * 8.0,
            // A denied request is repeated, so a load below 1 does not reduce the number of
            // requests.
            Traffic::RetryStorm | Traffic::RetryStormJitter => {
                each / self.load * self.load.max(1.0) * f64::from(self.clients)
            }
            _ => each * f64::from(self.clients),
        }
    }

    pub fn end_us(&self) -> u64 {
        let start = START_US.next_multiple_of(self.window_us);
        start.saturating_add(self.window_us.saturating_mul(self.windows.into()))
    }

    pub fn start_us(&self) -> u64 {
        START_US.next_multiple_of(self.window_us)
    }

    /// Returns the mean time between two requests of a client.
    fn pace_us(&self) -> f64 {
        float(self.window_us) / (float(self.limit).max(1.0) * self.load)
    }

    /// Describes the traffic in words.
    pub fn about(&self) -> String {
        let TrafficSpec { clients, load, windows, .. } = self;
        let (noun, what) = match self.traffic {
            Traffic::Poisson => ("client", " at random times"),
            Traffic::Bursts => ("client", " in bursts with time to think between"),
            Traffic::Boundary => (
                "attacker",
                ": the limit just before windows turn, again just after, then steadily",
            ),
            Traffic::Diurnal => ("client", " at random times, from calm to twice as busy and back"),
            Traffic::RetryStorm => ("client", " of one key, with retries exactly at retry_after"),
            Traffic::RetryStormJitter => {
                ("client", " of one key, with retries after up to twice retry_after")
            }
            Traffic::Zipf => ("client", ", the n-th busiest sending 1/n of the busiest"),
            Traffic::HotTenant => ("tenant", ", one of which sends half of everything"),
            Traffic::Steady => ("client", " at an even pace"),
        };
        let clients = counted((*clients).into(), noun);
        let windows = counted((*windows).into(), "window");
        format!("{clients}{what}; load {load}, {windows}")
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "whether a pace is off by one in 2^53 does not matter"
)]
fn float(number: u64) -> f64 {
    number as f64
}

/// The time of a request, the order in which it was scheduled, which breaks ties, and the client.
type Wakeup = Reverse<(u64, u64, u32)>;

/// The clients, and when each sends its next request.
pub struct TrafficGenerator {
    spec: TrafficSpec,
    clients: Vec<Client>,
    due: BinaryHeap<Wakeup>,
    number: u64,
    now_us: u64,
}

struct Client {
    rng: Rng,
    /// The remaining requests of a burst, or the steps of an attack.
    step: u64,
    /// The mean time between requests. It differs from that of the spec if clients differ.
    pace_us: f64,
    /// The fraction of a microsecond that is left over from earlier waits, because many waits are
    /// shorter than a microsecond.
    left_us: f64,
}

impl Client {
    /// Returns a random wait with this mean.
    fn wait_us(&mut self, mean_us: f64) -> u64 {
        let wait_us = self.rng.wait(mean_us);
        self.whole_us(wait_us)
    }

    /// Returns a random wait that differs from the mean by at most 30 percent.
    fn steady_us(&mut self, mean_us: f64) -> u64 {
        let wait_us = mean_us * (0.7 + 0.6 * self.rng.unit());
        self.whole_us(wait_us)
    }

    /// Rounds a wait to whole microseconds. The remainder is added to the next wait.
    fn whole_us(&mut self, wait_us: f64) -> u64 {
        self.left_us += wait_us;
        let waited = whole(self.left_us);
        self.left_us -= float(waited);
        waited
    }
}

impl TrafficGenerator {
    pub fn new(spec: TrafficSpec) -> Self {
        let mut rng = Rng::new(spec.seed);
        let clients = (0..spec.clients).map(|number| Client {
            rng: rng.fork(),
            step: 0,
            pace_us: pace_us(&spec, number),
            left_us: 0.0,
        });
        let clients: Vec<Client> = clients.collect();
        let now_us = spec.start_us();
        let mut generator =
            TrafficGenerator { spec, clients, due: BinaryHeap::new(), number: 0, now_us };
        for client in 0..spec.clients {
            let first = generator.first_us(client);
            let offset_us = generator.offset_us(client);
            generator.schedule(client, first.saturating_add(offset_us));
        }
        generator
    }

    /// Returns the time and the client of the next request, or `None` at the end.
    pub fn next(&mut self) -> Option<(u64, u32)> {
        let Reverse((time_us, _, client)) = self.due.pop()?;
        if time_us >= self.spec.end_us() {
            return None;
        }
        self.now_us = time_us;
        Some((time_us, client))
    }

    /// Passes the outcome of a request to its client, and schedules the next request of the client.
    pub fn record_answer(&mut self, client: u32, allowed: bool, retry_after: RetryAfter) {
        let next = self.next_us(client, allowed, retry_after);
        self.schedule(client, next);
    }

    /// Returns the number of the key of a client.
    pub fn key_number(&self, client: u32) -> u32 {
        if self.spec.traffic.reacts_to_answers() { 0 } else { client }
    }

    /// Appends a request to a block.
    pub fn push(&self, block: &mut Block, time_us: u64, client: u32) {
        let key = self.key(client).into_bytes().into();
        block.push_numbered(&Event { time_us, key, cost: 1 }, self.key_number(client));
    }

    fn key(&self, client: u32) -> String {
        match self.spec.traffic {
            Traffic::RetryStorm | Traffic::RetryStormJitter => "tenant".into(),
            Traffic::HotTenant => format!("tenant-{client}"),
            Traffic::Boundary => format!("attacker-{client}"),
            _ => format!("client-{client}"),
        }
    }

    fn schedule(&mut self, client: u32, at_us: u64) {
        self.number += 1;
        self.due.push(Reverse((at_us, self.number, client)));
    }

    fn first_us(&mut self, client: u32) -> u64 {
        let TrafficSpec { traffic, window_us, .. } = self.spec;
        let start = self.spec.start_us();
        let client = &mut self.clients[client as usize];
        match traffic {
            // Just before the end of the first window.
            Traffic::Boundary => start + window_us - window_us / EDGE - 1,
            Traffic::RetryStorm | Traffic::RetryStormJitter => start + client.rng.below(SPREAD_US),
            Traffic::Diurnal => diurnal_us(client, &self.spec, start),
            _ => start.saturating_add(client.wait_us(client.pace_us)),
        }
    }

    /// Returns the delay after which this client begins. The spread is divided evenly among the
    /// clients, and each begins at a random time of its part.
    fn offset_us(&mut self, client: u32) -> u64 {
        let part_us = self.spec.spread_us / u64::from(self.spec.clients.max(1));
        if part_us == 0 {
            return 0;
        }
        let drawn_us = self.clients[client as usize].rng.below(part_us);
        part_us * u64::from(client) + drawn_us
    }

    fn next_us(&mut self, client: u32, allowed: bool, retry_after: RetryAfter) -> u64 {
        let (now_us, spec) = (self.now_us, self.spec);
        let client = &mut self.clients[client as usize];
        match spec.traffic {
            Traffic::Poisson | Traffic::Zipf | Traffic::HotTenant => {
                now_us.saturating_add(client.wait_us(client.pace_us))
            }
            Traffic::Steady => now_us.saturating_add(client.steady_us(client.pace_us)),
            Traffic::Bursts => now_us.saturating_add(burst_us(client, &spec)),
            Traffic::Boundary => attack_us(client, &spec, now_us),
            Traffic::Diurnal => diurnal_us(client, &spec, now_us),
            Traffic::RetryStorm | Traffic::RetryStormJitter => {
                let on_its_way = 1 + client.rng.below(SPREAD_US);
                let wait_us = if allowed {
                    client.wait_us(client.pace_us)
                } else {
                    let retry_after_us = retry_after.as_micros().unwrap_or(spec.window_us);
                    let jitter = spec.traffic == Traffic::RetryStormJitter;
                    let more_us = if jitter { client.rng.below(retry_after_us.max(1)) } else { 0 };
                    retry_after_us.saturating_add(more_us)
                };
                now_us.saturating_add(wait_us).saturating_add(on_its_way)
            }
        }
    }
}

/// The range of the network delay of the clients of a storm.
const SPREAD_US: u64 = 5_000;

/// Attackers come within a hundredth of a window to its end.
const EDGE: u64 = 100;

/// Returns the mean time between requests of a client, which for some traffic differs between
/// clients.
fn pace_us(spec: &TrafficSpec, client: u32) -> f64 {
    let usual = spec.pace_us();
    match spec.traffic {
        // The busiest clients send ten times the limit, so that some are limited and most are not.
        Traffic::Zipf => usual * f64::from(client + 1) / 10.0,
        // One client sends as much as all others together, which stay well below the limit.
        Traffic::HotTenant if client == 0 => usual / 4.0,
        Traffic::HotTenant => usual / 4.0 * f64::from(spec.clients.max(2) - 1),
        // All clients share one key, and together send twice what a single client would.
        Traffic::RetryStorm | Traffic::RetryStormJitter => usual * f64::from(spec.clients) / 2.0,
        _ => usual,
    }
}

/// Returns the time to the next request of a burst, or the pause before the next burst.
fn burst_us(client: &mut Client, spec: &TrafficSpec) -> u64 {
    if client.step > 0 {
        client.step -= 1;
        // A burst of the whole limit takes a tenth of the window.
        return whole(float(spec.window_us) / 10.0 / float(spec.limit).max(1.0));
    }
    client.step = client.rng.below(spec.limit.max(1));
    client.wait_us(client.pace_us * float(client.step + 1))
}

/// Returns the time of the next step of an attack that takes two windows and repeats.
///
/// The attacker sends the limit just before the first window ends, and the limit again just after,
/// which fixed windows admit. Then it sends four times the limit evenly until just before the
/// second window ends, of which the two-counter estimate admits nearly the limit.
fn attack_us(client: &mut Client, spec: &TrafficSpec, now_us: u64) -> u64 {
    let (limit, window_us) = (spec.limit.max(1), spec.window_us);
    let edge_us = window_us / EDGE;
    let apart_us = edge_us / limit;
    client.step += 1;
    let window = now_us / window_us * window_us;
    match client.step {
        step if step < limit => now_us + apart_us,
        step if step == limit => window + window_us,
        step if step < 2 * limit => now_us + apart_us,
        step if step < 6 * limit => now_us + (window_us - edge_us) / (4 * limit + 1),
        _ => {
            client.step = 0;
            window + 2 * window_us - edge_us - 1
        }
    }
}

/// Returns the time of the next request of traffic that varies over time. Requests are drawn at the
/// highest rate, and dropped at random to match the rate of the current time.
fn diurnal_us(client: &mut Client, spec: &TrafficSpec, mut now_us: u64) -> u64 {
    loop {
        now_us = now_us.saturating_add(client.wait_us(client.pace_us / 2.0));
        if now_us >= spec.end_us() || 2.0 * client.rng.unit() < time_of_day_load(spec, now_us) {
            return now_us;
        }
    }
}

/// Returns the rate relative to the mean: from 0 to 2 and back, once per simulation.
fn time_of_day_load(spec: &TrafficSpec, now_us: u64) -> f64 {
    let length = float(spec.end_us() - spec.start_us());
    let share = float(now_us - spec.start_us()) / length;
    1.0 - libm::cos(2.0 * std::f64::consts::PI * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(traffic: Traffic) -> TrafficSpec {
        TrafficSpec {
            traffic,
            clients: traffic.usual_clients().min(200),
            load: 1.0,
            windows: 20,
            limit: 10,
            window_us: 10_000_000,
            spread_us: 0,
            seed: 1,
        }
    }

    fn events(spec: TrafficSpec, allowed: bool) -> Vec<(u64, u32)> {
        let mut generator = TrafficGenerator::new(spec);
        let mut events = Vec::new();
        while let Some((time_us, client)) = generator.next() {
            events.push((time_us, client));
            let retry_after = if allowed { RetryAfter::Now } else { RetryAfter::Micros(1_000_000) };
            generator.record_answer(client, allowed, retry_after);
        }
        events
    }

    #[test]
    fn traffic_is_ordered_and_repeatable() {
        for traffic in Traffic::ALL {
            let first = events(spec(traffic), true);
            assert!(first.len() > 500, "{traffic}: {}", first.len());
            assert!(first.is_sorted_by_key(|event| event.0), "{traffic}");
            assert_eq!(first, events(spec(traffic), true), "{traffic}");
            let inside = |event: &(u64, u32)| (START_US..spec(traffic).end_us()).contains(&event.0);
            assert!(first.iter().all(inside), "{traffic}");
            if traffic != Traffic::Boundary {
                assert_ne!(
                    first,
                    events(TrafficSpec { seed: 2, ..spec(traffic) }, true),
                    "{traffic}"
                );
            }
            assert_eq!(
                first == events(spec(traffic), false),
                !traffic.reacts_to_answers(),
                "{traffic}"
            );
        }
    }

    #[test]
    fn load_scales_requests() {
        // 100 clients, 20 windows, 10 requests each: about 20,000.
        for traffic in [Traffic::Poisson, Traffic::Bursts, Traffic::Diurnal, Traffic::Steady] {
            let sent = events(spec(traffic), true).len();
            assert!((17_000..23_000).contains(&sent), "{traffic}: {sent}");
            let twice = events(TrafficSpec { load: 2.0, ..spec(traffic) }, true).len();
            assert!((sent * 17 / 10..sent * 23 / 10).contains(&twice), "{traffic}: {twice}");
        }
    }

    #[test]
    fn spreads_client_starts() {
        let spread =
            TrafficSpec { clients: 4, load: 1.0, spread_us: 10_000_000, ..spec(Traffic::Steady) };
        let events = events(spread, true);
        for client in 0..4 {
            let first = events.iter().find(|event| event.1 == client).expect("some").0;
            let part = u64::from(client) * 2_500_000;
            // A gap of up to 1.3 s precedes the first request.
            let expected = spread.start_us() + part..spread.start_us() + part + 3_800_000;
            assert!(expected.contains(&first), "{client}: {first}");
        }
        let gaps = events.iter().filter(|event| event.1 == 0).map(|event| event.0);
        let gaps: Vec<u64> = gaps.clone().zip(gaps.skip(1)).map(|(one, next)| next - one).collect();
        assert!(gaps.iter().all(|gap| (699_999..=1_300_001).contains(gap)), "{gaps:?}");
    }

    #[test]
    fn hot_tenant_sends_half() {
        let all = events(spec(Traffic::HotTenant), true);
        let hot = all.iter().filter(|(_, client)| *client == 0).count();
        assert!((all.len() * 45 / 100..all.len() * 55 / 100).contains(&hot), "{hot}");
    }

    #[test]
    fn extreme_traffic_terminates() {
        for traffic in Traffic::ALL {
            for (limit, window_us, load) in
                [(0, 1_000, 1.0), (1, 1_000, 0.001), (1_000, 1_000, 1.0)]
            {
                let small =
                    TrafficSpec { clients: 2, windows: 3, limit, window_us, load, ..spec(traffic) };
                assert!(events(small, false).len() < 1_000_000, "{traffic}");
            }
        }
    }
}
