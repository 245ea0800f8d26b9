//! A scenario in virtual time: ordered events, the real limiter, seeded random numbers.
//!
//! Requests and answers take time, and the time varies: without variation clients would never
//! overtake each other, which would be too easy.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use tidegate::{Decision, Limit, Limiter, Timestamp};
use tidegate_client::{Fields, Usage};

use super::Outcome;
use super::client::{Client, RetryStrategy};
use super::scenario::{
    CHANGE_WINDOW, Change, Scenario, ServerReply, StormCounts, TOTAL_WINDOWS, scenarios,
};
use crate::workloads::Random;

/// Mean latency of a request, and of its answer; it varies by half.
const MEAN_LATENCY: Duration = Duration::from_micros(500);

/// Start of virtual time. The value is arbitrary, but not a multiple of a window: otherwise
/// aligned windows would start together with the simulation.
const START_US: u64 = 1_700_000_000_300_000;

/// The only key.
const KEY: &str = "storm";

/// Runs all scenarios with the helper. The other strategies run in the first scenario only, because
/// the naive one makes millions of requests.
pub fn all(strategies: &[RetryStrategy], seed: u64) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for (at, scenario) in scenarios().iter().enumerate() {
        for strategy in
            strategies.iter().filter(|strategy| at == 0 || **strategy == RetryStrategy::Helper)
        {
            let counts = Simulation::new(scenario, *strategy, seed).run();
            outcomes.push(Outcome {
                scenario: scenario.name.to_owned(),
                strategy: *strategy,
                counts,
            });
        }
    }
    outcomes
}

/// An event of a client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrives,
    /// Allowed, remaining, wait and reset in microseconds.
    Answered(bool, u64, u64, u64),
}

/// The state of a running scenario.
pub struct Simulation<'a> {
    scenario: &'a Scenario,
    limiter: Limiter,
    limit: Limit,
    clients: Vec<Client>,
    random: Random,
    /// Future events, soonest first; the number keeps events of the same time in order.
    events: BinaryHeap<Reverse<(Duration, u64, usize, Event)>>,
    number: u64,
    counts: StormCounts,
}

impl<'a> Simulation<'a> {
    pub fn new(scenario: &'a Scenario, strategy: RetryStrategy, seed: u64) -> Self {
        let counted = f64::from(TOTAL_WINDOWS - scenario.counted_from());
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let capacity = scenario.counted_limit() as f64 * counted;
        Simulation {
            scenario,
            limiter: Limiter::new(),
            limit: limit(scenario, scenario.limit),
            clients: (0..scenario.clients).map(|_| Client::new(strategy)).collect(),
            random: Random(seed),
            events: BinaryHeap::new(),
            number: 0,
            counts: StormCounts { sent: 0, successes: vec![0; scenario.clients], capacity },
        }
    }

    pub fn run(mut self) -> StormCounts {
        for at in 0..self.clients.len() {
            let first = self.clients[at].first(Duration::ZERO, self.random.unit());
            self.send(first, at);
        }
        let end = self.scenario.window * TOTAL_WINDOWS;
        let mut is_changed = false;
        while let Some(Reverse((now, _, client, event))) = self.events.pop() {
            if now >= end {
                break;
            }
            if !is_changed && now >= self.scenario.window * CHANGE_WINDOW {
                is_changed = true;
                self.change();
            }
            if client >= self.clients.len() {
                continue;
            }
            match event {
                Event::Arrives => self.arrive(now, client),
                Event::Answered(allowed, remaining, wait_us, reset_us) => {
                    let fields = self.reply_fields(allowed, remaining, wait_us, reset_us);
                    let random = self.random.unit();
                    let next = self.clients[client].next(now, allowed, fields, random);
                    self.send(next, client);
                }
            }
        }
        self.counts
    }

    fn change(&mut self) {
        match self.scenario.change {
            Change::Nothing => {}
            Change::Limit(number) => self.limit = limit(self.scenario, number),
            Change::KeepClients(clients) => {
                self.clients.truncate(clients);
                self.counts.successes.truncate(clients);
            }
        }
    }

    fn send(&mut self, at: Duration, client: usize) {
        let arrives = at + self.latency();
        self.push(arrives, client, Event::Arrives);
    }

    fn arrive(&mut self, now: Duration, client: usize) {
        let now_us =
            START_US + u64::try_from(now.as_micros()).expect("a scenario lasts for minutes");
        let now_us = Timestamp::from_micros(now_us);
        let decided = self.limiter.check_at(now_us, KEY, &self.limit, 1);
        let Decision { allowed, remaining, retry_after, reset_after, .. } =
            decided.expect("the limit is not a concurrency limit");
        if now >= self.scenario.window * self.scenario.counted_from() {
            self.counts.sent += 1;
            self.counts.successes[client] += u64::from(allowed);
        }
        let wait_us = retry_after.as_micros().expect("a cost of 1 can be admitted");
        let event = Event::Answered(allowed, remaining, wait_us, reset_after.as_micros());
        let back = now + self.latency();
        self.push(back, client, event);
    }

    fn push(&mut self, at: Duration, client: usize, event: Event) {
        self.number += 1;
        self.events.push(Reverse((at, self.number, client, event)));
    }

    fn latency(&mut self) -> Duration {
        MEAN_LATENCY.mul_f64(0.5 + self.random.unit())
    }

    /// Returns the information that the client receives, in the format of the scenario. On a
    /// denial, the reset is the time until the request would be admitted, as in header fields.
    fn reply_fields(&self, allowed: bool, remaining: u64, wait_us: u64, reset_us: u64) -> Fields {
        let (limit, window) = (self.limit.count(), self.scenario.window);
        if self.scenario.reply == ServerReply::Misleading {
            let usage = Usage { limit, remaining: limit, window: Some(window), reset: None };
            let wait = (!allowed).then_some(Duration::ZERO);
            return Fields { wait, pause: None, usage: Some(usage) };
        }
        if self.scenario.reply == ServerReply::Json {
            let ms = |us: u64| Duration::from_millis(us.div_ceil(1000));
            let reset = Some(ms(if allowed { reset_us } else { wait_us }));
            let usage = Usage { limit, remaining, window: Some(window), reset };
            let wait = (!allowed).then(|| ms(wait_us));
            return Fields { wait, pause: None, usage: Some(usage) };
        }
        let seconds = |us: u64| us.div_ceil(1_000_000);
        let t = seconds(if allowed { reset_us } else { wait_us });
        let retry_after = seconds(wait_us).to_string();
        let rate_limit = format!("\"storm\";r={remaining};t={t}");
        let policy = format!("\"storm\";q={limit};w={}", window.as_secs());
        let fields = [
            ("ratelimit", rate_limit.as_bytes()),
            ("ratelimit-policy", policy.as_bytes()),
            ("retry-after", retry_after.as_bytes()),
        ];
        let fields = &fields[..if allowed { 2 } else { 3 }];
        Fields::read(if allowed { 200 } else { 429 }, fields.iter().copied(), START_US / 1000)
    }
}

fn limit(scenario: &Scenario, number: u64) -> Limit {
    let text = format!("{number} per {}s {}", scenario.window.as_secs(), scenario.algorithm);
    text.parse().expect("the limits of scenarios are valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (scenario, minimum goodput, maximum requests sent per success), for several seeds each.
    const ROWS: &[(&str, f64, f64)] = &[
        ("storm", 0.95, 1.2),
        ("wait in milliseconds", 0.95, 1.2),
        ("one client", 0.92, 1.02),
        ("3 clients", 0.93, 1.02),
        ("50 clients", 0.94, 1.1),
        ("1000 clients", 0.95, 2.1),
        ("a minute's window", 0.9, 1.1),
        ("sliding-counter", 0.95, 1.2),
        // Capacity returns late, by up to a fifteenth of the window.
        ("sliding-window", 0.87, 1.3),
        ("fixed-window", 0.95, 1.7),
        ("token-bucket", 0.98, 1.2),
        // Nothing is ever remaining, so clients cannot know how much capacity is unused.
        ("bucket of one", 0.3, 1.7),
        ("limit halved", 0.92, 1.5),
        ("limit doubled", 0.93, 1.1),
        ("20 clients stay", 0.92, 1.05),
        ("wrong answers", 0.95, 2.0),
    ];

    #[test]
    fn scenarios_reach_their_figures() {
        let all = scenarios();
        for (name, goodput, sent) in ROWS {
            let scenario = all
                .iter()
                .find(|scenario| scenario.name == *name)
                .expect("a scenario of this name");
            for seed in 1..=3 {
                let counts = Simulation::new(scenario, RetryStrategy::Helper, seed).run();
                assert!(counts.goodput() >= *goodput, "{name}, {seed}: {:.3}", counts.goodput());
                assert!(counts.goodput() <= 1.0 + 1e-9 || scenario.algorithm != "sliding-log");
                assert!(
                    counts.sent_per_success() <= *sent,
                    "{name}, {seed}: {:.3}",
                    counts.sent_per_success()
                );
            }
        }
        assert_eq!(ROWS.len(), all.len(), "every scenario has a row");
    }

    #[test]
    fn same_seed_gives_the_same_result() {
        let storm = &scenarios()[0];
        let run = |seed| Simulation::new(storm, RetryStrategy::Helper, seed).run().successes;
        assert_eq!(run(5), run(5));
        assert_ne!(run(5), run(6));
    }

    #[test]
    fn helper_is_fairer_than_full_jitter() {
        let storm = &scenarios()[0];
        let [jitter, helper] = [RetryStrategy::FullJitter, RetryStrategy::Helper]
            .map(|strategy| Simulation::new(storm, strategy, 1).run());
        assert!(jitter.fairness() < 0.4 && jitter.starved() > 20, "{}", jitter.fairness());
        assert!(helper.fairness() > 0.6 && helper.starved() < 5, "{}", helper.fairness());
    }
}
