//! The algorithms written down a second time, as plainly as they can be: every
//! key a list or a few wide numbers, nothing packed, nothing expired early.

use std::collections::HashMap;

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Log,
    Buckets,
    Counter,
    Fixed,
    Tokens,
}

/// So many units a window, the burst the same and ten buckets.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub kind: Kind,
    pub count: i128,
    pub window_us: i128,
}

#[derive(Clone, Debug)]
pub struct Event {
    pub time_us: i128,
    pub key: String,
    pub cost: i128,
}

#[derive(Clone, Debug, Default)]
struct State {
    /// Times and costs; for buckets last hits and counts.
    entries: Vec<(i128, i128)>,
    /// Window, and what it and the one before it counted; for tokens time and debt.
    window: i128,
    current: i128,
    previous: i128,
}

const BUCKETS: i128 = 10;

impl Limit {
    fn bucket_of(&self, time_us: i128) -> i128 {
        let length = (self.window_us + BUCKETS - 1) / BUCKETS;
        time_us / length
    }

    fn advance(&self, state: &mut State, now: i128) {
        match self.kind {
            Kind::Log | Kind::Buckets => {
                state.entries.iter_mut().for_each(|entry| entry.0 = entry.0.min(now));
                if matches!(self.kind, Kind::Buckets) {
                    self.merge_buckets(state);
                }
                state.entries.retain(|entry| entry.0 > now - self.window_us);
            }
            Kind::Counter => {
                let window = now / self.window_us;
                if window < state.window {
                    (state.previous, state.current) = (0, state.previous + state.current);
                } else if window == state.window + 1 {
                    (state.previous, state.current) = (state.current, 0);
                } else if window > state.window {
                    (state.previous, state.current) = (0, 0);
                }
                state.window = window;
            }
            Kind::Fixed => {
                let window = now / self.window_us;
                if window > state.window {
                    state.current = 0;
                }
                state.window = window;
            }
            Kind::Tokens => {
                let paid = (now - state.window).max(0) * self.count;
                state.current = (state.current - paid).max(0);
                state.window = now;
            }
        }
    }

    /// Hits of one sub-window are one bucket, as old as its last.
    fn merge_buckets(&self, state: &mut State) {
        let mut merged: Vec<(i128, i128)> = Vec::new();
        for &(at, count) in &state.entries {
            match merged.last_mut() {
                Some(last) if self.bucket_of(last.0) == self.bucket_of(at) => {
                    *last = (at, last.1 + count);
                }
                _ => merged.push((at, count)),
            }
        }
        state.entries = merged;
    }

    fn admits(&self, state: &State, now: i128, cost: i128) -> bool {
        if cost < 0 {
            return true;
        }
        let cost = cost.max(1);
        let window = self.window_us;
        match self.kind {
            Kind::Log | Kind::Buckets => {
                state.entries.iter().map(|entry| entry.1).sum::<i128>() + cost <= self.count
            }
            Kind::Counter => {
                let weighed = state.previous * (window - now % window) / window;
                weighed + state.current + cost <= self.count
            }
            Kind::Fixed => state.current + cost <= self.count,
            Kind::Tokens => state.current + cost * window <= self.count * window,
        }
    }

    fn charge(&self, state: &mut State, now: i128, cost: i128) {
        match self.kind {
            Kind::Log | Kind::Buckets if cost > 0 => {
                state.entries.push((now, cost));
                if matches!(self.kind, Kind::Buckets) {
                    self.merge_buckets(state);
                }
            }
            Kind::Log | Kind::Buckets => {
                for _ in cost..0 {
                    let Some(newest) = state.entries.last_mut() else { break };
                    newest.1 -= 1;
                    if newest.1 == 0 {
                        state.entries.pop();
                    }
                }
            }
            Kind::Counter => {
                state.current += cost;
                state.previous = (state.previous + state.current.min(0)).max(0);
                state.current = state.current.max(0);
            }
            Kind::Fixed => state.current = (state.current + cost).max(0),
            Kind::Tokens => state.current = (state.current + cost * self.window_us).max(0),
        }
    }
}

/// The string of decisions: each event passes if every limit admits it.
pub fn decide(events: &[Event], limits: &[Limit]) -> String {
    let mut states: HashMap<&str, Vec<State>> = HashMap::new();
    let decide = |event: &Event, states: &mut Vec<State>| {
        let both = || limits.iter().enumerate();
        both().for_each(|(i, limit)| limit.advance(&mut states[i], event.time_us));
        let admitted = both().all(|(i, limit)| limit.admits(&states[i], event.time_us, event.cost));
        if admitted {
            both().for_each(|(i, limit)| limit.charge(&mut states[i], event.time_us, event.cost));
        }
        if admitted { '1' } else { '0' }
    };
    let blank = vec![State::default(); limits.len()];
    let mut answer =
        |event| decide(event, states.entry(&event.key).or_insert_with(|| blank.clone()));
    events.iter().map(&mut answer).collect()
}

/// The most any key was admitted in any half-open window, for events in order
/// of time: every window that ends at an event is added up.
pub fn largest(events: &[Event], decisions: &str, window_us: i128) -> i128 {
    let mut by_key: HashMap<&str, Vec<&Event>> = HashMap::new();
    for (event, decision) in events.iter().zip(decisions.chars()) {
        if decision == '1' {
            by_key.entry(&event.key).or_default().push(event);
        }
    }
    let mut largest = 0;
    for admitted in by_key.values() {
        for (index, end) in admitted.iter().enumerate() {
            let inside = |event: &&&Event| event.time_us > end.time_us - window_us;
            let costs = admitted[..=index].iter().rev().take_while(inside).map(|event| event.cost);
            largest = largest.max(costs.sum());
        }
    }
    largest
}
