//! The judge of leases: a plain list of the units that were really admitted, with their times on
//! the clock of the store. It recomputes every count from the list and shares no code with the
//! crate.

use tidegate_core::{Algorithm, Limit};

/// The admitted units, oldest first, and the definition of the algorithm.
#[derive(Clone, Debug, Hash)]
pub struct Judge {
    algorithm: Algorithm,
    window: i128,
    /// Times and units that may count. Times may become negative when the clock steps back.
    list: Vec<(i128, i128)>,
    /// Times and units of the newest window, until the clock steps.
    newest: Option<Vec<(i128, i128)>>,
    /// The documented bound on the units of any window, for the larger of both limits.
    bound: i128,
    /// The count and the capacity of the limit under which the store last charged or granted.
    count: i128,
    capacity: i128,
}

impl Judge {
    pub fn new(limits: &[Limit; 2]) -> Self {
        let mut judge = Judge {
            algorithm: limits[0].algorithm(),
            window: limits[0].window_us().into(),
            list: Vec::new(),
            newest: Some(Vec::new()),
            bound: limits.iter().map(documented_bound).max().unwrap_or(0),
            count: 0,
            capacity: 0,
        };
        judge.charged_under(&limits[0]);
        judge
    }

    /// The store has charged or granted units under a limit. Until it does so again, nothing but
    /// the bound of this limit is promised.
    pub fn charged_under(&mut self, limit: &Limit) {
        (self.count, self.capacity) = (limit.count().into(), limit.capacity().into());
    }

    /// Units were admitted, by the store or by a node.
    pub fn admit(&mut self, units: u64, now: u64) {
        let (now, units) = (i128::from(now), i128::from(units));
        self.list.push((now, units));
        if let Some(newest) = &mut self.newest {
            newest.retain(|(at, _)| *at > now - self.window);
            newest.push((now, units));
        }
    }

    /// Returns why the units of the list, with `more` at `now`, are more than the algorithm admits.
    pub fn violation(&self, more: u64, now: u64) -> Option<String> {
        let (now, more) = (i128::from(now), i128::from(more));
        let level = self.level(now) + more;
        let most =
            if self.algorithm == Algorithm::TokenBucket { self.capacity } else { self.count };
        let text = || format!("{level} of {most} with {more} more at {now}: {self:?}");
        (level > most || self.newest_window(now) + more > self.bound).then(text)
    }

    /// The units that count at `now` by the definition of the algorithm, rounded up for a bucket.
    fn level(&self, now: i128) -> i128 {
        let index = |at: i128| at.div_euclid(self.window);
        let in_aligned = |number: i128| {
            self.list.iter().filter(|(at, _)| index(*at) == number).map(|(_, units)| units).sum()
        };
        match self.algorithm {
            Algorithm::FixedWindow => in_aligned(index(now)),
            Algorithm::SlidingCounter => {
                let previous: i128 = in_aligned(index(now) - 1);
                let current: i128 = in_aligned(index(now));
                current + previous * (self.window - now.rem_euclid(self.window)) / self.window
            }
            Algorithm::TokenBucket => {
                // The debt is the largest sum of a suffix, less what is paid off since its start.
                let (mut sum, mut debt) = (0, 0);
                for (at, units) in self.list.iter().rev() {
                    sum += units * self.window;
                    debt = debt.max(sum - self.count * (now - at));
                }
                (debt + self.window - 1) / self.window
            }
            _ => in_window(&self.list, now - self.window),
        }
    }

    /// The units in the window that ends at `now`; 0 if the clock stepped.
    pub fn newest_window(&self, now: i128) -> i128 {
        self.newest.as_deref().map_or(0, |newest| in_window(newest, now - self.window))
    }

    /// Forgets units that no longer count at `now`, because a store that decided then has forgotten
    /// them. They would count again if the clock stepped back.
    pub fn decided_at(&mut self, now: u64) {
        let (now, window, algorithm) = (i128::from(now), self.window, self.algorithm);
        let age = |at: i128| now.div_euclid(window) - at.div_euclid(window);
        self.list.retain(|(at, _)| match algorithm {
            Algorithm::FixedWindow => age(*at) <= 0,
            Algorithm::SlidingCounter => age(*at) <= 1,
            // A bucket of at most two windows' units is paid off by then.
            Algorithm::TokenBucket => *at > now - 3 * window,
            _ => *at > now - window,
        });
    }

    /// Removes the newest units.
    pub fn refund(&mut self, units: u64) {
        remove_newest(&mut self.list, units);
        if let Some(newest) = &mut self.newest {
            remove_newest(newest, units);
        }
    }

    pub fn reset(&mut self) {
        self.list.clear();
        if let Some(newest) = &mut self.newest {
            newest.clear();
        }
    }

    /// The clock stepped. The definition still applies, but a window across a step may hold more: a
    /// `fixed-window` counts in the same aligned window again.
    pub fn stepped(&mut self) {
        self.newest = None;
    }

    /// The clock stepped back by some time, to `now`. Later times become `now`. A bucket has paid
    /// off debt until the step and does not owe it again, so all its times move.
    pub fn stepped_back(&mut self, by: u64, now: u64) {
        for (at, _) in &mut self.list {
            *at = match self.algorithm {
                Algorithm::TokenBucket => *at - i128::from(by),
                _ => (*at).min(now.into()),
            };
        }
    }
}

/// The units after a time.
fn in_window(list: &[(i128, i128)], after: i128) -> i128 {
    list.iter().filter(|(at, _)| *at > after).map(|(_, units)| units).sum()
}

fn remove_newest(list: &mut Vec<(i128, i128)>, units: u64) {
    let mut units = i128::from(units);
    while units > 0
        && let Some((_, newest)) = list.last_mut()
    {
        let taken = units.min(*newest);
        *newest -= taken;
        units -= taken;
        if *newest == 0 {
            list.pop();
        }
    }
}

/// The bound of the algorithm on the units that are admitted in any window.
fn documented_bound(limit: &Limit) -> i128 {
    let (count, window) = (i128::from(limit.count()), i128::from(limit.window_us()));
    match limit.algorithm() {
        Algorithm::FixedWindow => 2 * count,
        Algorithm::TokenBucket => count + i128::from(limit.capacity()),
        Algorithm::SlidingCounter => count.max(2 * count - 2 * count / window),
        _ => count,
    }
}
