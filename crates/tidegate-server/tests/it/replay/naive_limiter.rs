//! A second, naive implementation of the algorithms: every key has a list or a few wide integers,
//! nothing is packed, and nothing expires early.

use std::collections::HashMap;

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Log,
    Window,
    Counter,
    Fixed,
    Tokens,
}

/// A number of units per window, which is also the burst.
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
    /// Times and costs.
    entries: Vec<(i128, i128)>,
    /// The window, its count and that of the previous window; for token buckets the time and the
    /// debt.
    window: i128,
    current: i128,
    previous: i128,
}

fn div_ceil(dividend: i128, divisor: i128) -> i128 {
    (dividend + divisor - 1) / divisor
}

impl Limit {
    fn advance(&self, state: &mut State, now: i128) {
        match self.kind {
            Kind::Log => {
                state.entries.iter_mut().for_each(|entry| entry.0 = entry.0.min(now));
                state.entries.retain(|entry| entry.0 > now - self.window_us);
            }
            Kind::Window => {
                self.reenter(state, now);
                let over: Vec<bool> =
                    state.entries.iter().map(|entry| self.is_over(state, entry.0, now)).collect();
                let mut over = over.into_iter();
                state.entries.retain(|_| over.next() == Some(false));
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

    /// Returns the length of a cell of a sliding window, or for limits up to 20 of a step of the
    /// grid of its log.
    fn cell_us(&self) -> i128 {
        let steps = (0..12).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_i128.pow(power)));
        match self.count {
            0..=20 => steps.into_iter().find(|step| div_ceil(self.window_us, *step) <= 65_535),
            21..=2_000 => Some(div_ceil(self.window_us, 15)),
            2_001..=2_000_000 => Some(div_ceil(self.window_us, 7)),
            _ => Some(div_ceil(self.window_us, 3)),
        }
        .expect("some step is coarse enough")
    }

    /// Moves hits in cells after the current one to the current time.
    fn reenter(&self, state: &mut State, now: i128) {
        let last = match self.count {
            0..=20 => div_ceil(now, self.cell_us()) * self.cell_us(),
            _ => (now / self.cell_us() + 1) * self.cell_us() - 1,
        };
        let ahead: i128 = state.entries.iter().filter(|hit| hit.0 > last).map(|hit| hit.1).sum();
        state.entries.retain(|hit| hit.0 <= last);
        if ahead > 0 {
            state.entries.push((now, ahead));
        }
    }

    /// Returns whether all hits in the cell of a hit are a window old.
    fn is_over(&self, state: &State, at: i128, now: i128) -> bool {
        let cell = self.cell_us();
        if self.count <= 20 {
            return div_ceil(at, cell) + div_ceil(self.window_us, cell) <= now / cell;
        }
        let (start, step) = (at / cell * cell, div_ceil(cell, 15));
        let hits = state.entries.iter().filter(|hit| hit.0 / cell == at / cell);
        let last = hits.map(|hit| div_ceil(hit.0 - start, step) * step).max().unwrap_or(0);
        start + last.min(cell) + self.window_us <= now
    }

    /// Returns the units of a sliding window that count: all except those that are certainly a
    /// window old.
    fn used(&self, state: &State, now: i128) -> i128 {
        let cell = self.cell_us();
        let all: i128 = state.entries.iter().map(|hit| hit.1).sum();
        if self.count <= 20 {
            return all;
        }
        let paced = |us: i128| self.count * us / self.window_us;
        let mut cells: Vec<i128> = state.entries.iter().map(|hit| hit.0 / cell).collect();
        cells.dedup();
        let expired = |index: &i128| {
            let (mut units, mut lag) = (0, 0);
            for hit in state.entries.iter().filter(|hit| hit.0 / cell == *index) {
                lag = lag.max(paced(hit.0 % cell) - units).min(paced(cell));
                units += hit.1;
            }
            let passed = now - self.window_us - index * cell;
            if passed > 0 { (paced(passed) - lag).clamp(0, units) } else { 0 }
        };
        all - cells.iter().map(expired).sum::<i128>()
    }

    fn admits(&self, state: &State, now: i128, cost: i128) -> bool {
        if cost < 0 {
            return true;
        }
        let cost = cost.max(1);
        let window = self.window_us;
        match self.kind {
            Kind::Log => {
                state.entries.iter().map(|entry| entry.1).sum::<i128>() + cost <= self.count
            }
            Kind::Window => self.used(state, now) + cost <= self.count,
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
            Kind::Log | Kind::Window if cost > 0 => state.entries.push((now, cost)),
            Kind::Log | Kind::Window => {
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

/// Returns the string of decisions. Each event passes if every limit admits it.
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

/// Returns the largest number of units admitted for a key in any half-open window, for events in
/// order of time: every window that ends at an event is summed.
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
