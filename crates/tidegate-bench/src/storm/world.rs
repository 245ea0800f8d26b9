//! A scene on virtual time: events in their order, the real limiter, seeded chance.
//!
//! A request takes a while to arrive and its answer a while to come back. Both vary,
//! because clients that never overtake each other would make it too easy.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use tidegate::{Decision, Limit, Limiter, Timestamp};
use tidegate_client::{Fields, Standing};

use super::Outcome;
use super::behaviour::{Client, Way};
use super::scene::{CHANGES_AT, Change, LASTS, Scene, Tally, Told, scenes};

/// The mean time of a request on its way, and of its answer; it varies by half.
const ON_ITS_WAY: Duration = Duration::from_micros(500);

/// When the world begins. Any time will do, but no multiple of a window: then
/// aligned windows would begin with it.
const START_US: u64 = 1_700_000_000_300_000;

/// The limit's key, the only one there is.
const KEY: &str = "storm";

/// All scenes that a way of retrying is shown in: the naive one makes millions of requests,
/// and is shown in the first only.
pub fn all(ways: &[Way], seed: u64) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for (at, scene) in scenes().iter().enumerate() {
        for way in ways.iter().filter(|way| at == 0 || **way == Way::Helper) {
            let tally = World::new(scene, *way, seed).run();
            outcomes.push(Outcome { scene: scene.name.to_owned(), way: *way, tally });
        }
    }
    outcomes
}

/// What happens to a client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrives,
    /// Allowed, remaining, wait and reset in microseconds.
    Answered(bool, u64, u64, u64),
}

/// A scene as it goes on.
pub struct World<'a> {
    scene: &'a Scene,
    limiter: Limiter,
    limit: Limit,
    clients: Vec<Client>,
    chance: Chance,
    /// What is to come, soonest first; the number keeps equal times in order.
    events: BinaryHeap<Reverse<(Duration, u64, usize, Event)>>,
    number: u64,
    tally: Tally,
}

impl<'a> World<'a> {
    pub fn new(scene: &'a Scene, way: Way, seed: u64) -> Self {
        let counted = f64::from(LASTS - scene.counted_from());
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let capacity = scene.limit_counted() as f64 * counted;
        World {
            scene,
            limiter: Limiter::new(),
            limit: limit(scene, scene.limit),
            clients: (0..scene.clients).map(|_| Client::new(way)).collect(),
            chance: Chance(seed),
            events: BinaryHeap::new(),
            number: 0,
            tally: Tally { sent: 0, successes: vec![0; scene.clients], capacity },
        }
    }

    pub fn run(mut self) -> Tally {
        for at in 0..self.clients.len() {
            let first = self.clients[at].first(Duration::ZERO, self.chance.draw());
            self.send(first, at);
        }
        let end = self.scene.window * LASTS;
        let mut is_changed = false;
        while let Some(Reverse((now, _, client, event))) = self.events.pop() {
            if now >= end {
                break;
            }
            if !is_changed && now >= self.scene.window * CHANGES_AT {
                is_changed = true;
                self.change();
            }
            if client >= self.clients.len() {
                continue;
            }
            match event {
                Event::Arrives => self.arrive(now, client),
                Event::Answered(allowed, remaining, wait_us, reset_us) => {
                    let fields = self.told(allowed, remaining, wait_us, reset_us);
                    let chance = self.chance.draw();
                    let next = self.clients[client].next(now, allowed, fields, chance);
                    self.send(next, client);
                }
            }
        }
        self.tally
    }

    fn change(&mut self) {
        match self.scene.change {
            Change::Nothing => {}
            Change::Limit(number) => self.limit = limit(self.scene, number),
            Change::Stay(clients) => {
                self.clients.truncate(clients);
                self.tally.successes.truncate(clients);
            }
        }
    }

    fn send(&mut self, at: Duration, client: usize) {
        let arrives = at + self.on_its_way();
        self.push(arrives, client, Event::Arrives);
    }

    fn arrive(&mut self, now: Duration, client: usize) {
        let now_us = START_US + u64::try_from(now.as_micros()).expect("a scene lasts for minutes");
        let now_us = Timestamp::from_micros(now_us);
        let decided = self.limiter.check_at(now_us, KEY, &self.limit, 1);
        let Decision { allowed, remaining, retry_after, reset_after, .. } =
            decided.expect("the limit is no concurrency limit");
        if now >= self.scene.window * self.scene.counted_from() {
            self.tally.sent += 1;
            self.tally.successes[client] += u64::from(allowed);
        }
        let wait_us = retry_after.as_micros().expect("a cost of 1 can pass");
        let answer = Event::Answered(allowed, remaining, wait_us, reset_after.as_micros());
        let back = now + self.on_its_way();
        self.push(back, client, answer);
    }

    fn push(&mut self, at: Duration, client: usize, event: Event) {
        self.number += 1;
        self.events.push(Reverse((at, self.number, client, event)));
    }

    fn on_its_way(&mut self) -> Duration {
        ON_ITS_WAY.mul_f64(0.5 + self.chance.draw())
    }

    /// What the client is told, in the form the scene has it. On a denial the time until
    /// the reset is the one until the request would pass, as fields have it.
    fn told(&self, allowed: bool, remaining: u64, wait_us: u64, reset_us: u64) -> Fields {
        let (limit, window) = (self.limit.count(), self.scene.window);
        if self.scene.told == Told::Lies {
            let standing = Standing { limit, remaining: limit, window: Some(window), reset: None };
            let wait = (!allowed).then_some(Duration::ZERO);
            return Fields { wait, pause: None, standing: Some(standing) };
        }
        if self.scene.told == Told::Json {
            let ms = |us: u64| Duration::from_millis(us.div_ceil(1000));
            let reset = Some(ms(if allowed { reset_us } else { wait_us }));
            let standing = Standing { limit, remaining, window: Some(window), reset };
            let wait = (!allowed).then(|| ms(wait_us));
            return Fields { wait, pause: None, standing: Some(standing) };
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

fn limit(scene: &Scene, number: u64) -> Limit {
    let text = format!("{number} per {}s {}", scene.window.as_secs(), scene.algorithm);
    text.parse().expect("scenes have sound limits")
}

/// A small generator: a world must be the same every time.
struct Chance(u64);

impl Chance {
    /// A number from 0 up to 1.
    fn draw(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
        let drawn = (mixed >> 11) as f64;
        drawn / 9_007_199_254_740_992.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (scene, goodput at least, sent per success at most), over several seeds each.
    const ROWS: &[(&str, f64, f64)] = &[
        ("storm", 0.95, 1.2),
        ("told milliseconds", 0.95, 1.2),
        ("one client", 0.92, 1.02),
        ("3 clients", 0.93, 1.02),
        ("50 clients", 0.94, 1.1),
        ("1000 clients", 0.95, 2.1),
        ("a minute's window", 0.9, 1.1),
        ("sliding-counter", 0.95, 1.2),
        // Capacity returns up to a fifteenth of the window late.
        ("sliding-window", 0.87, 1.3),
        ("fixed-window", 0.95, 1.7),
        ("token-bucket", 0.98, 1.2),
        // Nothing is ever left, so nobody knows how much is idle.
        ("bucket of one", 0.3, 1.7),
        ("limit halved", 0.92, 1.5),
        ("limit doubled", 0.93, 1.1),
        ("20 clients stay", 0.92, 1.05),
        ("a server that lies", 0.95, 2.0),
    ];

    #[test]
    fn scenes_end_as_they_should() {
        let all = scenes();
        for (name, goodput, sent) in ROWS {
            let scene = all.iter().find(|scene| scene.name == *name).expect("a scene");
            for seed in 1..=3 {
                let tally = World::new(scene, Way::Helper, seed).run();
                assert!(tally.goodput() >= *goodput, "{name}, {seed}: {:.3}", tally.goodput());
                assert!(tally.goodput() <= 1.0 + 1e-9 || scene.algorithm != "sliding-log");
                assert!(
                    tally.sent_per_success() <= *sent,
                    "{name}, {seed}: {:.3}",
                    tally.sent_per_success()
                );
            }
        }
        assert_eq!(ROWS.len(), all.len(), "every scene has a row");
    }

    #[test]
    fn the_same_seed_is_the_same_world() {
        let storm = &scenes()[0];
        let run = |seed| World::new(storm, Way::Helper, seed).run().successes;
        assert_eq!(run(5), run(5));
        assert_ne!(run(5), run(6));
    }

    #[test]
    fn what_the_helper_is_for() {
        let storm = &scenes()[0];
        let [jitter, helper] =
            [Way::FullJitter, Way::Helper].map(|way| World::new(storm, way, 1).run());
        assert!(jitter.fairness() < 0.4 && jitter.starved() > 20, "{}", jitter.fairness());
        assert!(helper.fairness() > 0.6 && helper.starved() < 5, "{}", helper.fairness());
    }
}
