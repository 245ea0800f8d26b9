//! The smallest limit that would have passed a share of the requests.
//!
//! The number of requests that pass cannot be computed from the traffic alone: a denied request
//! leaves capacity for later ones, and each algorithm denies different requests. So candidates are
//! replayed on the engine, several per pass over the files. The next candidates lie between those
//! already tried, until there is none left between. A suggested limit has been replayed and was
//! enough; the limit one lower has been replayed and was not. If not even the highest possible
//! limit is enough, nothing is suggested, and the report gives the reason.

use std::fmt;

use tidegate::Limit;
use tidegate::unstable::ParsedLimit;
use tidegate::unstable::bounds::MAX_COUNT;

use crate::block::Block;
use crate::engine::{Engine, EventOutcome};
use crate::error::ReplayError;
use crate::ground_truth::GroundTruth;

/// The number of candidates per pass. Reading costs more than deciding, and each candidate holds
/// separate states.
const CANDIDATES_PER_PASS: u64 = 8;

const MILLION: u64 = 1_000_000;

/// A share, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub millionths: u64,
    /// Whether the text has a percent sign.
    pub has_sign: bool,
}

impl Share {
    /// Returns the hint for a value of this option that may be a fraction of 1: it is above 0 and
    /// below 1, without a percent sign.
    pub fn hint(self, option: &str) -> Option<String> {
        if self.has_sign || !(1..10_000).contains(&self.millionths) {
            return None;
        }
        let number = |share: Share| share.to_string().replace(" %", "");
        let share = number(Share { millionths: self.millionths * 100, ..self });
        let this = number(self);
        Some(format!("{option} {this} is read as {this} %; for {share} % write {share}"))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.millionths / 10_000, self.millionths % 10_000);
        let rest = format!("{rest:04}");
        match rest.trim_end_matches('0') {
            "" => write!(f, "{whole} %"),
            rest => write!(f, "{whole}.{rest} %"),
        }
    }
}

/// Parses a percentage above 0 and at most 100.
pub fn share(text: &str) -> Result<Share, &'static str> {
    let share = percent(text).filter(|share| (1..=MILLION).contains(&share.millionths));
    share.ok_or("write percent above 0 and up to 100 with at most four decimals, e.g. 99.9")
}

/// Parses a percentage of at most 10,000, which does not overflow a limit.
pub fn headroom(text: &str) -> Result<Share, &'static str> {
    let share = percent(text).filter(|share| share.millionths <= 100 * MILLION);
    share.ok_or("write percent from 0 to 10000, e.g. 15%")
}

fn percent(text: &str) -> Option<Share> {
    let text = text.trim();
    let has_sign = text.ends_with('%');
    let text = text.trim_end_matches('%').trim_end();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || fraction.len() > 4 || !digits(whole) || !digits(fraction) {
        return None;
    }
    let whole: u64 = whole.parse().ok().filter(|whole| *whole < MILLION)?;
    let fraction: u64 = format!("{fraction:0<4}").parse().ok()?;
    Some(Share { millionths: whole * 10_000 + fraction, has_sign })
}

/// The result of the search for one limit.
#[derive(Clone, Debug)]
pub struct Suggestion {
    pub goal: Goal,
    /// The number of requests with a cost above 0.
    pub asked: u64,
    pub found: SearchResult,
}

/// A sufficient limit, or the reason that there is none.
#[derive(Clone, Debug)]
pub enum SearchResult {
    Enough {
        limit: Limit,
        /// The number of requests that the limit passes.
        passed: u64,
        /// The limit plus the headroom, or `None` if that exceeds the bounds of limits.
        with_headroom: Option<Limit>,
    },
    /// Not even the highest possible limit is enough.
    NotFound { highest: Limit, passed: u64 },
}

impl SearchResult {
    /// Returns why nothing is suggested, and how to change that.
    pub fn why_nothing(&self) -> Option<String> {
        let SearchResult::NotFound { highest, .. } = self else { return None };
        let burst = highest.burst();
        Some(if burst < highest.count() {
            format!("no number passes with burst {burst}, not even {highest}; raise the burst")
        } else {
            format!("no possible limit passes, not even {highest}")
        })
    }
}

/// The goal of the search.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    pub share: Share,
    pub headroom: Share,
}

/// Finds the smallest sufficient limit for each of these, alone. `read` makes one pass over all
/// events.
pub fn suggest(
    limits: &[ParsedLimit],
    goal: Goal,
    mut read: impl FnMut(&mut ReadPass) -> Result<(), ReplayError>,
) -> Result<Vec<Suggestion>, ReplayError> {
    let mut suggestions = Vec::new();
    for limit in limits {
        let mut demand = ReadPass::Demand(Demand::new(&limit.limit));
        read(&mut demand)?;
        let ReadPass::Demand(demand) = demand else { continue };
        let asked = demand.asked;
        let found = find_smallest(limit, goal, &demand, &mut read)?;
        suggestions.extend(found.map(|found| Suggestion { goal, asked, found }));
    }
    Ok(suggestions)
}

fn find_smallest(
    limit: &ParsedLimit,
    goal: Goal,
    demand: &Demand,
    read: &mut impl FnMut(&mut ReadPass) -> Result<(), ReplayError>,
) -> Result<Option<SearchResult>, ReplayError> {
    let asked = demand.asked;
    if asked == 0 {
        return Ok(enough(limit, 0, 0, goal));
    }
    // No algorithm counts units for longer than two windows, so twice the demand is enough, except
    // under a low burst. A higher rate may make up for that.
    let likely = demand.ground_truth.largest().count.saturating_mul(2).min(MAX_COUNT);
    let mut passed_at_most = 0;
    for (low, most) in [(0, likely), (likely, MAX_COUNT)] {
        let mut search = Search::new(low, most);
        let mut found = None;
        while let Some(counts) = search.next() {
            let pass =
                |count: &u64| Some((*count, Engine::new(vec![with_count(limit, *count)?]), 0));
            let mut pass =
                ReadPass::Candidates(counts.iter().filter_map(pass).collect(), Vec::new());
            read(&mut pass)?;
            let ReadPass::Candidates(tried, _) = pass else { continue };
            for (count, _, passed) in tried {
                let enough = u128::from(passed) * u128::from(MILLION)
                    >= u128::from(asked) * u128::from(goal.share.millionths);
                if search.learn(count, enough) {
                    found = Some((count, passed));
                }
                if count == most {
                    passed_at_most = passed;
                }
            }
        }
        if let Some((count, passed)) = found {
            return Ok(enough(limit, count, passed, goal));
        }
    }
    let highest = with_count(limit, MAX_COUNT);
    Ok(highest.map(|highest| SearchResult::NotFound { highest, passed: passed_at_most }))
}

fn enough(limit: &ParsedLimit, count: u64, passed: u64, goal: Goal) -> Option<SearchResult> {
    let more = u128::from(count) * u128::from(MILLION + goal.headroom.millionths);
    let more = u64::try_from(more.div_ceil(MILLION.into())).unwrap_or(u64::MAX);
    let with_headroom = with_count(limit, more);
    Some(SearchResult::Enough { limit: with_count(limit, count)?, passed, with_headroom })
}

/// One pass over all events.
pub enum ReadPass {
    Demand(Demand),
    /// For each candidate the count, the engine and the number of requests passed; then the
    /// outcomes of the last block.
    Candidates(Vec<(u64, Engine, u64)>, Vec<EventOutcome>),
}

/// The demand: the units that would be used if everything were admitted.
pub struct Demand {
    ground_truth: GroundTruth,
    asked: u64,
}

impl Demand {
    fn new(limit: &Limit) -> Self {
        Demand { ground_truth: GroundTruth::new(limit.window_us(), u64::MAX), asked: 0 }
    }
}

impl ReadPass {
    /// Processes a block of events. Blocks are in order.
    pub fn take(&mut self, block: &Block) -> Result<(), ReplayError> {
        let asks = |row: &crate::block::Row| row.cost > 0;
        match self {
            ReadPass::Demand(Demand { ground_truth, asked }) => {
                ground_truth.record_all(&block.rows, |_| true, |_, _| ());
                *asked += block.rows.iter().filter(|row| asks(row)).count() as u64;
            }
            ReadPass::Candidates(candidates, answers) => {
                for (_, engine, passed) in candidates {
                    engine.decide(block, answers)?;
                    let both = answers.iter().zip(&block.rows);
                    *passed += both.filter(|(one, row)| one.allowed && asks(row)).count() as u64;
                }
            }
        }
        Ok(())
    }
}

/// A search between `low`, which is too low, and `high`, which is sufficient or above every
/// candidate.
#[derive(Debug)]
struct Search {
    low: u64,
    high: u64,
    /// Whether nothing has been tried yet.
    fresh: bool,
}

impl Search {
    /// Creates a search above `low` and up to `most`.
    fn new(low: u64, most: u64) -> Self {
        Search { low, high: most.saturating_add(1), fresh: true }
    }

    /// Returns evenly spaced counts between the bounds, or `None` if there are none.
    fn next(&mut self) -> Option<Vec<u64>> {
        let between = self.high.saturating_sub(self.low).checked_sub(1).filter(|&n| n > 0)?;
        let count = between.min(CANDIDATES_PER_PASS);
        let at = |n: u64| u128::from(self.high - self.low) * u128::from(n) / u128::from(count + 1);
        let even = (1..=count).map(|n| self.low + u64::try_from(at(n)).unwrap_or(1).max(1));
        let mut counts: Vec<u64> = even.collect();
        // The highest count is tried in the first pass: if it is not enough, the search ends early.
        if std::mem::take(&mut self.fresh)
            && let Some(last) = counts.last_mut()
        {
            *last = self.high - 1;
        }
        Some(counts)
    }

    /// Records whether a count is enough. Returns whether it is the lowest sufficient count so far.
    fn learn(&mut self, count: u64, enough: bool) -> bool {
        if enough && count < self.high {
            self.high = count;
            // A count may be sufficient below one that was not, because passing is not monotonic.
            // The lowest sufficient count is wanted.
            self.low = self.low.min(count.saturating_sub(1));
            return true;
        }
        if !enough && count < self.high {
            self.low = self.low.max(count);
        }
        false
    }
}

/// Returns the limit with another count and the given burst, or `None` if that is not a valid
/// limit.
fn with_count(given: &ParsedLimit, count: u64) -> Option<Limit> {
    let limit = given.limit.with_count(count).ok()?;
    given.burst.map_or(Some(limit), |burst| limit.with_burst(burst).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_percentages() {
        for (text, millionths, shown) in [
            ("99.9", 999_000, "99.9 %"),
            ("100%", 1_000_000, "100 %"),
            ("0.0001 %", 1, "0.0001 %"),
            ("50.25", 502_500, "50.25 %"),
        ] {
            let share = share(text).expect(text);
            assert_eq!((share.millionths, &*share.to_string()), (millionths, shown), "{text}");
        }
        for bad in ["", "0", "100.1", "-1", "1e1", "99.99999", ".5", "x", "%"] {
            assert!(share(bad).is_err(), "{bad}");
        }
        assert_eq!(headroom("0%"), Ok(Share { millionths: 0, has_sign: true }));
        assert!(headroom("10001").is_err());
    }

    #[test]
    fn search_finds_smallest_sufficient_count() {
        for (high, find_smallest) in
            [(1, 1), (2, 1), (17, 5), (1_000_000, 77_777), (MAX_COUNT, 3), (7, 8)]
        {
            let mut search = Search::new(0, high);
            let mut rounds = 0;
            while let Some(counts) = search.next() {
                assert!(
                    counts.is_sorted() && counts.iter().all(|&n| n > search.low && n < search.high)
                );
                for &count in &counts {
                    search.learn(count, count >= find_smallest);
                }
                rounds += 1;
                assert!(rounds < 64);
            }
            assert_eq!(search.high, find_smallest, "{high}");
        }
    }

    #[test]
    fn suggested_limit_is_minimal() {
        // Ten at once for key 1, one at a time for key 2.
        let mut events: Vec<(u64, u32)> = (0..90).map(|n| (1_000_000 * n, 2)).collect();
        events.extend((0..10).map(|_| (100_000_000, 1)));
        let block = Block::of(&events);
        let share = |millionths| Share { millionths, has_sign: true };
        for algorithm in ["sliding-log", "sliding-window", "fixed-window", "token-bucket"] {
            let limit: Limit = format!("1 per 500ms {algorithm}").parse().expect("a limit");
            for (percent, find_smallest) in [(1_000_000, 10), (950_000, 5), (900_000, 1)] {
                let goal = Goal { share: share(percent), headroom: share(150_000) };
                let given = ParsedLimit { limit, burst: None };
                let found = suggest(&[given], goal, |pass| pass.take(&block)).expect("no fault");
                let SearchResult::Enough { limit, passed, with_headroom } = found[0].found else {
                    panic!("{algorithm}, {percent}: {found:?}");
                };
                assert_eq!(limit.count(), find_smallest, "{algorithm}, {percent}");
                assert_eq!(passed, 90 + find_smallest, "{algorithm}");
                let more = (find_smallest * 115).div_ceil(100);
                assert_eq!(with_headroom.map(|limit| limit.count()), Some(more), "{algorithm}");
            }
        }
    }
}
