//! What happens in a run: limits, traffic, faults and clocks, all from the seed.

use tidegate_testkit::Random;

use super::network::Latency;
use super::oracle::{Definition, Kind};

/// A fault of a node, of the network or of the server.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The connections of a node break.
    Break(usize),
    /// A node is cut off from the server for some microseconds.
    CutOff(usize, u64),
    /// A node crashes, and starts again.
    Crash(usize),
    /// A node is shut down, gives back its leases, and starts again.
    Restart(usize),
    /// The wall clock of a node is set, by microseconds.
    SetNodeClock(usize, i64),
    /// The server loses its scripts.
    FlushScripts,
    /// The server loses its keys.
    FlushKeys,
    /// The replica of the server takes over.
    FailOver,
    /// The clock of the server is set, by microseconds.
    SetServerClock(i64),
}

/// The kinds of runs. All but the first have a documented loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Nothing is counted twice or forgotten, so nothing is admitted beyond the limits.
    Sound,
    /// The server loses its keys.
    KeysLost,
    /// A replica without the last writes takes over.
    WritesLost,
    /// The clock of the server is set.
    ClockSet,
}

/// A limit under which keys are counted.
#[derive(Clone, Debug)]
pub struct SimulatedLimit {
    pub text: String,
    /// The limit after a change of the configuration, over the same window.
    pub changed: Option<String>,
    /// The larger one of both.
    pub definition: Definition,
}

/// A time in which requests arrive.
#[derive(Clone, Copy, Debug)]
pub struct Burst {
    pub begin: u64,
    pub requests: u64,
    /// The longest time between two requests of a node, in microseconds.
    pub gap_us: u64,
}

/// All that a seed decides before a run.
#[derive(Debug)]
pub struct Plan {
    pub scenario: Scenario,
    /// Whether the oracle knows of losses.
    pub is_declared: bool,
    pub random: Random,
    /// For each node, the parts per million by which its clocks are slow; fast if negative.
    pub slow_ppm: Vec<i64>,
    /// The limit of each key.
    pub limits: Vec<SimulatedLimit>,
    pub bursts: Vec<Burst>,
    /// The faults, with their times.
    pub faults: Vec<(u64, Fault)>,
    /// The time from which on nodes use the changed limits.
    pub change_at: u64,
    /// One request in this number is a refund of an earlier one; 0 for none.
    pub refund_one_in: u64,
    pub latency: Latency,
    pub replication_us: u64,
    pub end: u64,
}

/// The largest difference in the speed of two clocks that leases allow for.
const DRIFT_ALLOWANCE_PPM: i64 = 1_000;

impl Plan {
    pub fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d);
        for _ in 0..4 {
            random.below(2);
        }
        let scenario = match random.below(10) {
            0 => Scenario::KeysLost,
            1 => Scenario::WritesLost,
            2 => Scenario::ClockSet,
            _ => Scenario::Sound,
        };
        let nodes = 2 + random.below(2) as usize;
        // Keys under longer windows become hot earlier, and have longer leases.
        let window_us =
            pick(&mut random, &[1_000_000, 5_000_000, 20_000_000, 20_000_000, 30_000_000]);
        let is_changed = scenario == Scenario::Sound && random.below(6) == 0;
        let keys = 1 + random.below(2) as usize;
        let is_stepped_back = scenario == Scenario::ClockSet && random.below(2) == 0;
        let limits = (0..keys)
            .map(|_| SimulatedLimit::new(&mut random, window_us, is_changed, is_stepped_back))
            .collect();
        let bursts = bursts(&mut random, window_us);
        let end = bursts.iter().map(|burst| burst.begin).max().unwrap_or(0) + 400_000;
        let slow = |random: &mut Random| match random.below(3) {
            0 => DRIFT_ALLOWANCE_PPM,
            1 => -DRIFT_ALLOWANCE_PPM,
            _ => random.below(2_001) as i64 - DRIFT_ALLOWANCE_PPM,
        };
        let mut plan = Plan {
            scenario,
            is_declared: true,
            slow_ppm: (0..nodes).map(|_| slow(&mut random)).collect(),
            limits,
            faults: Vec::new(),
            change_at: random.below(end),
            // After a step, the time at which a refund took effect is not known.
            refund_one_in: match random.below(5) {
                0 if scenario != Scenario::ClockSet => 12,
                _ => 0,
            },
            latency: Latency {
                usual_us: pick(&mut random, &[100, 300, 1_000, 4_000]),
                slow_one_in: pick(&mut random, &[20, 60, 200]),
                slow_us: pick(&mut random, &[4_000, 20_000, 80_000]),
            },
            replication_us: 1_000 + random.below(300_000),
            bursts,
            end,
            random,
        };
        plan.add_faults(is_stepped_back);
        plan
    }

    fn add_faults(&mut self, is_stepped_back: bool) {
        let nodes = self.slow_ppm.len() as u64;
        for _ in 0..self.random.below(5) {
            let random = &mut self.random;
            let node = random.below(nodes) as usize;
            let fault = match random.below(7) {
                0 => Fault::Break(node),
                1 => Fault::CutOff(node, 1_000 + random.below(300_000)),
                2 => Fault::Crash(node),
                3 => Fault::Restart(node),
                4 => Fault::SetNodeClock(node, random.below(200_000) as i64 - 100_000),
                5 => Fault::FlushScripts,
                _ => Fault::CutOff(node, 1_000 + random.below(20_000)),
            };
            let at = self.fault_time();
            self.faults.push((at, fault));
        }
        let window_us = self.limits[0].definition.window_us;
        let step_us = 1 + self.random.below(2 * window_us) as i64;
        let at = self.fault_time();
        match self.scenario {
            Scenario::Sound => {}
            Scenario::KeysLost => self.faults.push((at, Fault::FlushKeys)),
            Scenario::WritesLost => self.faults.push((at, Fault::FailOver)),
            Scenario::ClockSet => {
                let step_us = if is_stepped_back { -step_us } else { step_us };
                self.faults.push((at, Fault::SetServerClock(step_us)));
            }
        }
    }

    /// A time during a burst or shortly after it, when leases are out.
    fn fault_time(&mut self) -> u64 {
        let burst = self.random.below(self.bursts.len() as u64) as usize;
        let burst = self.bursts[burst];
        burst.begin + self.random.below(burst.requests * burst.gap_us / 2 + 30_000)
    }
}

/// Bursts at and around the times at which units of an earlier one stop counting.
fn bursts(random: &mut Random, window_us: u64) -> Vec<Burst> {
    let cell_us = window_us / 15;
    let mut bursts = Vec::new();
    let mut begin = random.below(50_000);
    for _ in 0..2 + random.below(4) / 3 {
        let gap_us = pick(random, &[200, 700, 1_500]);
        bursts.push(Burst { begin, requests: 60 + random.below(120), gap_us });
        let laters = [window_us, window_us, window_us, window_us - 40_000, cell_us];
        let later = pick(random, &laters);
        begin += later + random.below(60_000);
    }
    bursts
}

fn pick<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[random.below(choices.len() as u64) as usize]
}

impl SimulatedLimit {
    fn new(random: &mut Random, window_us: u64, is_changed: bool, is_rolling: bool) -> Self {
        let algorithms: &[&str] = match is_rolling {
            true => &["sliding-window", "sliding-log", "token-bucket"],
            false => &[
                "sliding-window",
                "sliding-window",
                "sliding-window",
                "sliding-log",
                "fixed-window",
                "sliding-counter",
                "token-bucket",
                "token-bucket",
            ],
        };
        let algorithm = pick(random, algorithms);
        let count = pick(random, &[60, 120, 200, 300, 500, 1_000, 2_200]);
        let burst = count / pick(random, &[1, 2, 8]);
        let text = |count: u64| {
            let ms = window_us / 1_000;
            match algorithm {
                "token-bucket" => format!("{count} per {ms}ms token-bucket burst {burst}"),
                _ => format!("{count} per {ms}ms {algorithm}"),
            }
        };
        let other = is_changed.then(|| pick(random, &[90, 200, 400, 700, 2_100]));
        let kind = match algorithm {
            "sliding-window" | "sliding-log" => Kind::Rolling,
            "fixed-window" => Kind::Aligned,
            "sliding-counter" => Kind::Estimated,
            _ => Kind::Bucket { burst },
        };
        let largest = count.max(other.unwrap_or(0));
        SimulatedLimit {
            text: text(count),
            changed: other.map(text),
            definition: Definition { kind, count: largest, window_us },
        }
    }
}
